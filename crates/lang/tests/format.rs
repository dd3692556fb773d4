//! Formatting is idempotent for every job file in this repository: the examples, the library, and
//! the files in the guide.

use cellwright_lang::diagnostic::Source;
use cellwright_lang::format::format_source;
use cellwright_lang::{Format, LIBRARY, LIBRARY_NAME};
use std::path::{Path, PathBuf};

fn repo() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn files_below(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let inner = |path: PathBuf| if path.is_dir() { files_below(&path) } else { vec![path] };
    entries.flat_map(inner).collect()
}

/// The job files that a page of the guide contains.
fn files_of(page: &Path) -> Vec<Source> {
    let text = std::fs::read_to_string(page).unwrap();
    let blocks = text.split("<!-- file: ").skip(1).filter_map(|rest| {
        let (name, rest) = rest.split_once(" -->\n```")?;
        let (_, rest) = rest.split_once('\n')?;
        let (text, _) = rest.split_once("\n```")?;
        let name = format!("{}: {name}", page.display());
        Some(Source { name, text: format!("{text}\n") })
    });
    blocks.collect()
}

#[test]
fn formatting_twice_is_formatting_once() {
    let examples = files_below(&repo().join("examples")).into_iter().filter_map(|path| {
        let text = std::fs::read_to_string(&path).ok()?;
        Some(Source { name: path.display().to_string(), text })
    });
    let pages = files_below(&repo().join("docs/guide")).into_iter();
    let pages = pages.filter(|path| path.extension().is_some_and(|ending| ending == "md"));
    let library = Source { name: LIBRARY_NAME.into(), text: LIBRARY.into() };
    let all = examples.chain(pages.flat_map(|page| files_of(&page))).chain([library]);
    let mut checked = 0;
    for source in all {
        let Some(language) = Format::of(Path::new(&source.name)) else { continue };
        let format = |source: &Source| {
            format_source(source, language)
                .unwrap_or_else(|errors| panic!("{}", errors.render(false)))
        };
        // YAML stays as it is.
        let Some(once) = format(&source) else { continue };
        let reformatted = Source { name: source.name.clone(), text: once.clone() };
        assert_eq!(format(&reformatted), Some(once), "{}", source.name);
        checked += 1;
    }
    assert!(checked >= 20, "only {checked} files were found");
}
