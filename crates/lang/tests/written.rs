//! A cell's spec, written as a job file, loads as the same spec.

use cellwright_cell::alloc_pairing::AllocPairing;
use cellwright_cell::name::{JobKey, Name};
use cellwright_cell::spec::JobSpec;
use cellwright_lang::diagnostic::Source;
use cellwright_lang::{
    Document, Evaluator, Format, Inputs, Limits, LoadOptions, load, load_text, to_source,
};
use std::path::{Path, PathBuf};

fn options() -> LoadOptions {
    let owner = Some(Name::new("dev").unwrap());
    LoadOptions {
        evaluator: Evaluator::InProcess,
        limits: Limits::default(),
        owner,
        inputs: Inputs::default(),
    }
}

fn specs(documents: Vec<Document>) -> Vec<JobSpec> {
    documents.iter().map(|document| document.job().clone()).collect()
}

/// Every job file among the examples.
fn examples() -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples");
    let entries = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    entries.filter(|path| path.is_file() && Format::of(path).is_some()).collect()
}

#[test]
fn what_is_written_back_means_the_same() {
    let mut seen = 0;
    for path in examples() {
        let loaded =
            load(&path, &options()).unwrap_or_else(|errors| panic!("{path:?}: {errors:?}"));
        for spec in specs(loaded.documents) {
            let text = to_source::job(&spec).to_string();
            let source = Source { name: "written.json".into(), text: text.as_str().into() };
            let reloaded = load_text(&source, Path::new("."), Format::Json, &options());
            let reloaded = reloaded.unwrap_or_else(|errors| panic!("{text}: {errors:?}"));
            assert_eq!(specs(reloaded.documents), std::slice::from_ref(&spec), "{path:?}: {text}");
            assert!(!text.contains("\"cpu\":1") && text.contains("MiB\""), "{text}");
            // So does the spec as programs print it.
            let mut printed = serde_json::json!({ "spec": &spec });
            to_source::mark_milli_cores(&mut printed);
            let text = printed["spec"].to_string();
            let source = Source { name: "printed.json".into(), text: text.clone() };
            let reloaded = load_text(&source, Path::new("."), Format::Json, &options());
            let reloaded = reloaded.unwrap_or_else(|errors| panic!("{text}: {errors:?}"));
            assert_eq!(specs(reloaded.documents), [spec], "{path:?}: {text}");
            seen += 1;
        }
    }
    assert!(seen >= 10, "only {seen} jobs among the examples");
}

/// Whether the written job says how it pairs with the allocs of a set.
fn says_how_it_pairs(change: impl FnOnce(&mut JobSpec)) -> bool {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/hello.json");
    let loaded = load(&path, &options()).unwrap_or_else(|errors| panic!("{errors:?}"));
    let mut spec = specs(loaded.documents).remove(0);
    change(&mut spec);
    to_source::job(&spec).get("alloc_pairing").is_some()
}

#[test]
fn how_a_job_pairs_is_written_where_it_has_allocs_to_pair_with() {
    let set = || {
        let name = |text: &str| Name::new(text).unwrap();
        Some(JobKey { user: name("dev"), job: name("set") })
    };
    assert!(!says_how_it_pairs(|_| {}));
    assert!(says_how_it_pairs(|spec| spec.alloc_set = set()));
    assert!(says_how_it_pairs(|spec| spec.alloc_pairing = AllocPairing::Any));
}
