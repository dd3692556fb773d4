//! Checks the JSON that `cell sim` prints against docs/guide/json.md: every field printed is
//! documented, with its type, and every field documented for a command is printed.
//!
//! The page is the schema, so there is no second file to keep up to date. Rejected: a generated
//! schema, which has the types of fields and not their meaning.

use crate::support::{cell, repo};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// Fields with their types, by section in lower case; `...` includes the fields of another section.
struct Page {
    sections: BTreeMap<String, BTreeMap<String, String>>,
}

impl Page {
    fn read() -> Page {
        let text = std::fs::read_to_string(repo().join("docs/guide/json.md")).expect("the page");
        let mut sections: BTreeMap<String, BTreeMap<String, String>> = BTreeMap::new();
        let mut section = String::new();
        for line in text.lines() {
            if let Some(title) = line.strip_prefix("##") {
                section = title.trim_start_matches('#').trim().to_lowercase();
            }
            let cells: Vec<&str> = line.split('|').map(str::trim).collect();
            let ["", field, kind, _, ""] = cells.as_slice() else { continue };
            if field.starts_with('`') || *field == "..." {
                let fields = sections.entry(section.clone()).or_default();
                fields.insert(field.trim_matches('`').to_owned(), (*kind).to_owned());
            }
        }
        Page { sections }
    }

    fn section(&self, name: &str) -> &BTreeMap<String, String> {
        self.sections.get(name).unwrap_or_else(|| panic!("the page has no section {name:?}"))
    }

    /// The type of a field, also from included sections.
    fn kind(&self, section: &str, field: &str) -> Option<&str> {
        let fields = self.section(section);
        if let Some(kind) = fields.get(field) {
            return Some(kind);
        }
        self.kind(&linked(fields.get("...")?)?, field)
    }
}

/// `[short room](#short-room)` refers to the section `short room`.
fn linked(kind: &str) -> Option<String> {
    let (name, anchor) = kind.strip_prefix('[')?.split_once("](#")?;
    assert_eq!(anchor, format!("{})", name.replace(' ', "-")), "the link of {kind}");
    Some(name.to_owned())
}

/// Checks printed JSON against the page.
struct Check<'a> {
    page: &'a Page,
    /// Section and field of everything that was printed.
    seen: BTreeSet<(String, String)>,
    wrong: Vec<String>,
}

impl Check<'_> {
    fn object(&mut self, section: &str, value: &Value, path: &str) {
        let Some(fields) = value.as_object() else {
            self.wrong.push(format!("{path} is no object: {value}"));
            return;
        };
        for (field, value) in fields {
            let path = format!("{path}.{field}");
            self.seen.insert((section.to_owned(), field.clone()));
            match self.page.kind(section, field).map(str::to_owned) {
                Some(kind) => self.value(&kind, value, &path),
                None => self.wrong.push(format!("{path} is not in section {section:?}")),
            }
        }
    }

    fn value(&mut self, kind: &str, value: &Value, path: &str) {
        let (kind, optional) = match kind.strip_suffix(" or nothing") {
            Some(kind) => (kind, true),
            None => (kind, false),
        };
        if value.is_null() && optional {
            return;
        }
        if let Some(of) = kind.strip_prefix("list of ") {
            let Some(items) = value.as_array() else {
                return self.wrong.push(format!("{path} is no list: {value}"));
            };
            return items.iter().for_each(|item| self.value(of, item, &format!("{path}[]")));
        }
        let is_right = match kind {
            "number" => value.is_number(),
            "text" => value.is_string(),
            "yes or no" => value.is_boolean(),
            linked_kind => return self.linked(linked_kind, value, path),
        };
        if !is_right {
            self.wrong.push(format!("{path} is not of type {kind}: {value}"));
        }
    }

    /// Checks an object of another section, or the name of one of its fields.
    fn linked(&mut self, kind: &str, value: &Value, path: &str) {
        let Some(section) = linked(kind) else {
            return self.wrong.push(format!("{path}: the page gives the unknown type {kind:?}"));
        };
        match value.as_str() {
            Some(text) => {
                if self.page.section(&section).get(text).map(String::as_str) != Some("alone") {
                    self.wrong.push(format!("{path} is {text:?}, not in section {section:?}"));
                }
            }
            None => self.object(&section, value, path),
        }
    }
}

fn run(args: &[&str]) -> Value {
    let output = cell(&[&["sim"], args].concat());
    serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|e| panic!("{args:?}: {e}: {}", String::from_utf8_lossy(&output.stderr)))
}

/// Every field printed is documented; every field of the command's own section is printed.
fn check(section: &str, answers: &[Value]) {
    let page = Page::read();
    let mut check = Check { page: &page, seen: BTreeSet::new(), wrong: Vec::new() };
    for answer in answers {
        check.object(section, answer, "");
    }
    assert!(check.wrong.is_empty(), "{}", check.wrong.join("\n"));
    for field in page.section(section).keys() {
        let is_seen = check.seen.contains(&(section.to_owned(), field.clone()));
        assert!(is_seen, "{field} of {section:?} is documented and was not printed");
    }
}

const EXAMPLE: &str = "example:examples/small-cell";

fn on_example(verb: &str, more: &[&str]) -> Value {
    run(&[&[verb, "--trace", EXAMPLE, "-o", "json"], more].concat())
}

#[test]
fn pack_prints_what_the_page_says() {
    let named = ["--explain", "research/genome-assembly/0"];
    check("cell sim pack", &[on_example("pack", &[]), on_example("pack", &named)]);
}

#[test]
fn arrivals_print_what_the_page_says() {
    // A cell of one node and three pods, with published figures.
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("tiny-openb");
    std::fs::create_dir_all(&folder).expect("a folder for the test");
    let write = |name: &str, text: &str| {
        std::fs::write(folder.join(name), text).expect("a file for the test");
    };
    write(
        "openb_node_list_gpu_node.csv",
        "sn,cpu_milli,memory_mib,gpu,model\nn-1,64000,262144,2,T4\n",
    );
    let pods = "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos,pod_phase,creation_time,\
                deletion_time,scheduled_time\n\
                p-1,1000,1024,1,500,,LS,Running,1,2,1\n\
                p-2,1000,1024,1,1000,T4,BE,Running,1,2,1\n";
    write("openb_pod_list_default.csv", pods);
    write("openb_pod_list_unpublished.csv", pods);
    write(
        "published_gpu_allocation.csv",
        "workload,01-Random,02-DotProd,03-GpuClustering,04-GpuPacking,05-BestFit,06-FGD\n\
         openb_pod_list_default,80,81,82,83,84,85\n",
    );
    let trace = format!("openb:{}", folder.display());
    let single = run(&["pack", "--trace", &trace, "-o", "json", "--seeds", "2"]);
    let all = run(&["pack", "--trace", &trace, "-o", "json", "--pods", "all"]);
    let workloads = all["workloads"].as_array().expect("a list").clone();
    assert_eq!(workloads.len(), 2);
    check("cell sim pack with openb", &[vec![single], workloads].concat());
}

#[test]
fn compact_prints_what_the_page_says() {
    let svg = Path::new(env!("CARGO_TARGET_TMPDIR")).join("json.svg");
    let svg = ["--trials", "2", "--svg", svg.to_str().expect("a path in UTF-8")];
    let all = on_example("compact", &[&svg[..], &["--score", "all"]].concat());
    let keys: Vec<&String> = all.as_object().expect("an object").keys().collect();
    assert_eq!(keys, ["scores", "svg"]);
    let scores = all["scores"].as_array().expect("a list").clone();
    check("cell sim compact", &[scores, vec![on_example("compact", &svg)]].concat());
}

#[test]
fn fits_prints_what_the_page_says() {
    let jobs = [
        "cpu=2,ram=8GiB",
        "cpu=1,ram=1TiB,gpus=8,gpu_model=a100",
        "cpu=1,ram=1GiB,static_ports=8080,max_per_machine=1",
        "cpu=1,ports=2,constraints=arch = arm64",
    ];
    let answers: Vec<Value> = jobs.iter().map(|job| on_example("fits", &["--job", job])).collect();
    check("cell sim fits", &answers);
}

#[test]
fn whatif_prints_what_the_page_says() {
    let jobs = [
        "cpu=8,ram=32GiB,count=30,priority=250",
        "cpu=1,ram=2TiB",
        "cpu=1,gpus=2,count=80,gang=yes,priority=250",
    ];
    let answers: Vec<Value> =
        jobs.iter().map(|job| on_example("whatif", &["--job", job])).collect();
    assert!(answers[0]["victims"].as_array().is_some_and(|victims| !victims.is_empty()));
    check("cell sim whatif", &answers);
}

#[test]
fn scale_prints_what_the_page_says() {
    let svg = Path::new(env!("CARGO_TARGET_TMPDIR")).join("json-scale.svg");
    let svg = svg.to_str().expect("a path in UTF-8");
    let answer =
        run(&["scale", "--trace", "rates:examples/requests.csv", "--svg", svg, "-o", "json"]);
    let rows = answer["rows"].as_array().expect("a list");
    let named = |name: &str| rows.iter().find(|row| row["name"] == name).expect("a row");
    let rules = named("rules");
    assert!(rules["saved_percent"].as_f64().is_some_and(|saved| saved > 30.0), "{rules}");
    assert_eq!(rules["keeps_promise"], true, "{rules}");
    assert_eq!(rules["opposed"], 0, "{rules}");
    assert!(named("two controllers")["opposed"].as_u64().is_some_and(|n| n > 0));
    check("cell sim scale", &[answer]);
}
