//! A file for two cells with a library and parameters, run and planned on two real cells.

use super::dev;
use super::support::{Folder, cell, json, stdout_of, text};
use std::os::unix::fs::PermissionsExt;

const LIBRARY: &str = "{
  sizes:: { staging: 1, production: 3 },
  web(name, cell, version): {
    name: name, priority: 100, count: $.sizes[cell], cpu: 0.1, ram: '32Mi',
    command: ['sim', version], labels: { cell: cell },
  },
}";

const FILE: &str = "function(cell, version) (import 'acme.libsonnet').web('shop', cell, version)";

fn joined<'a>(options: &[&'a str], words: &[&'a str]) -> Vec<&'a str> {
    [options, words].concat()
}

#[test]
fn one_file_is_planned_and_run_in_two_cells() {
    let folder = Folder::new();
    let write = |name: &str, text: &str| {
        std::fs::create_dir_all(folder.0.join(name).parent().unwrap()).unwrap();
        std::fs::write(folder.path(name), text).unwrap();
        folder.path(name)
    };
    write("lib/acme.libsonnet", LIBRARY);
    let file = write("shop.jsonnet", FILE);
    let homes = [Folder::new(), Folder::new()];
    let (first, staging) = dev(&homes[0], "2");
    let (second, production) = dev(&homes[1], "2");
    let contexts = write(
        "contexts.toml",
        &format!(
            "[contexts.staging]\nmasters = [\"{staging}\"]\n\
             [contexts.production]\nmasters = [\"{production}\"]\n"
        ),
    );
    let private = std::fs::Permissions::from_mode(0o600);
    std::fs::set_permissions(&contexts, private).unwrap();
    let lib = folder.path("lib");
    for context in ["staging", "production"] {
        let set = ["--contexts", &contexts, "context", "set", context, "-J", &lib];
        assert!(stdout_of(&set).contains(&format!("files for {context} may import from")));
    }
    let listed = json(&["--contexts", &contexts, "context", "ls", "-o", "json"]);
    assert!(listed[0]["libraries"][0].as_str().unwrap().ends_with("/lib"), "{listed}");
    let both = ["--contexts", &contexts, "--context", "staging", "--context", "production"];

    // What is wrong for one cell is run in none.
    let output = cell(&joined(&both, &["run", &file]));
    assert_eq!(output.status.code(), Some(1));
    let message = text(&output.stderr);
    assert!(message.contains("the parameter `version` is missing"), "{message}");
    assert!(message.contains("--set NAME=VALUE for cell, version"), "{message}");
    assert_eq!(json(&["--master", &staging, "job", "status", "-o", "json"]), serde_json::json!([]));

    let plans = json(&joined(&both, &["plan", &file, "--set", "version=v7", "-o", "json"]));
    let planned =
        |at: usize| (plans[at]["context"].clone(), plans[at]["jobs"][0]["placed"].clone());
    assert_eq!(planned(0).0, "staging", "{plans}");
    assert_eq!(planned(1).0, "production", "{plans}");
    let ran = json(&joined(&both, &["run", &file, "--set", "version=v7", "-o", "json"]));
    for (at, (context, address, count)) in
        [("staging", &staging, 1), ("production", &production, 3)].into_iter().enumerate()
    {
        assert_eq!((&ran[at]["context"], &ran[at]["tasks"]), (&context.into(), &count.into()));
        let job = json(&["--master", address, "status", "shop", "-o", "json"]);
        let spec = &job["job"]["spec"];
        assert_eq!(spec["labels"]["cell"], context, "{spec}");
        assert_eq!(spec["task"]["command"], serde_json::json!(["sim", "v7"]), "{spec}");
        assert_eq!(spec["task"]["limits"]["cpu"], "100m");
    }
    // Other commands are about one cell.
    let output = cell(&joined(&both, &["job", "status"]));
    assert_eq!(output.status.code(), Some(2), "{}", text(&output.stderr));
    assert!(text(&output.stderr).contains("2 contexts; allowed: one here"));
    first.stop();
    second.stop();
}
