//! Every command block of the guide, typed as a reader would. One test for each page, so that a
//! page that no longer holds is named.

use cellwright_tests::guide::{Page, Step, walk};
use std::path::{Path, PathBuf};

fn guide() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/guide")
}

macro_rules! pages {
    ($($name:ident: $file:literal,)*) => {
        /// Pages with commands; the others have none to type.
        const PAGES: &[&str] = &[$($file),*];

        $(#[test]
        fn $name() {
            walk(&guide().join($file));
        })*
    };
}

pages! {
    a_first_cell: "first-cell.md",
    concepts: "concepts.md",
    the_job_language: "job-language.md",
    services: "services.md",
    batch: "batch.md",
    daemons: "daemons.md",
    allocs: "allocs.md",
    updates: "updates.md",
    autoscaling: "autoscaling.md",
    plans: "plan.md",
    priorities: "priorities.md",
    why_pending: "why-pending.md",
    packages: "packages.md",
    health: "health.md",
    names: "names.md",
    the_agent: "agent.md",
    isolation: "isolation.md",
    reclamation: "reclamation.md",
    the_command_line: "command-line.md",
    history: "history.md",
    the_archive: "archive.md",
    charging: "charging.md",
    troubleshooting: "troubleshooting.md",
    operations: "operations.md",
    the_api: "api.md",
    the_simulator: "sim.md",
}

#[test]
fn every_page_with_commands_is_walked() {
    let mut forgotten = Vec::new();
    for entry in std::fs::read_dir(guide()).expect("the guide") {
        let path = entry.expect("a page").path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if path.extension().is_none_or(|kind| kind != "md") || PAGES.contains(&name.as_str()) {
            continue;
        }
        let text = std::fs::read_to_string(&path).expect("a page can be read");
        let page = Page::parse(&text).unwrap_or_else(|why| panic!("{name}: {why}"));
        if page.steps.iter().any(|step| matches!(step, Step::Type(_))) {
            forgotten.push(name);
        }
    }
    assert!(forgotten.is_empty(), "pages with commands that nobody types: {forgotten:?}");
}
