//! What a cell has, written as its owner would, means the same again.

use cellwright_cell::name::Name;
use cellwright_cell::spec::JobSpec;
use cellwright_lang::diagnostic::Source;
use cellwright_lang::{Document, Evaluator, Format, Limits, Options, load, load_text, written};
use std::path::{Path, PathBuf};

fn options() -> Options {
    let owner = Some(Name::new("dev").unwrap());
    Options { evaluator: Evaluator::Inside, limits: Limits::default(), owner }
}

fn specs(documents: Vec<Document>) -> Vec<JobSpec> {
    documents.iter().map(|document| document.job().clone()).collect()
}

/// Every file of jobs among the examples.
fn examples() -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples");
    let entries = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    entries.filter(|path| path.is_file() && Format::of(path).is_some()).collect()
}

#[test]
fn what_is_written_back_means_the_same() {
    let mut seen = 0;
    for path in examples() {
        let loaded = load(&path, &options()).unwrap_or_else(|wrong| panic!("{path:?}: {wrong:?}"));
        for spec in specs(loaded.documents) {
            let text = written::job(&spec).to_string();
            let source = Source { name: "written.json".into(), text: text.as_str().into() };
            let again = load_text(&source, Path::new("."), Format::Json, &options());
            let again = again.unwrap_or_else(|wrong| panic!("{text}: {wrong:?}"));
            assert_eq!(specs(again.documents), [spec], "{path:?}: {text}");
            assert!(!text.contains("\"cpu\":1") && text.contains("MiB\""), "{text}");
            seen += 1;
        }
    }
    assert!(seen >= 10, "only {seen} jobs among the examples");
}
