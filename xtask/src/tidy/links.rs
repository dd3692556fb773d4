//! Relative links in Markdown lead to files that exist.
//!
//! Only inside the repository: the web changes on its own, and a check that needs the network would
//! fail for reasons no change here caused.

use super::Finding;
use crate::modules::join_path;
use crate::repo::Repo;

pub fn check(repo: &Repo) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (path, text) in repo.texts().filter(|(path, _)| path.ends_with(".md")) {
        let folder = path.rsplit_once('/').map_or("", |(folder, _)| folder);
        let mut fenced = false;
        for (index, line) in text.lines().enumerate() {
            if line.trim_start().starts_with("```") {
                fenced = !fenced;
            }
            if fenced {
                continue;
            }
            for target in targets(line).filter(|target| !resolves(repo, folder, target)) {
                let message = format!("link to `{target}`, which does not exist");
                findings.push(Finding::new(path, index + 1, message));
            }
        }
    }
    findings
}

/// What stands in `](…)`, and after `[name]:` at the start of a line; not inside code.
fn targets(line: &str) -> impl Iterator<Item = String> {
    let prose: String = line.split('`').step_by(2).collect();
    let definition = prose
        .strip_prefix('[')
        .and_then(|rest| rest.split_once("]:"))
        .map(|(_, target)| target.trim().to_owned());
    let inline: Vec<String> = prose
        .split("](")
        .skip(1)
        .filter_map(|rest| rest.split([')', ' ']).next().map(str::to_owned))
        .collect();
    inline.into_iter().chain(definition)
}

fn resolves(repo: &Repo, folder: &str, target: &str) -> bool {
    let is_web = target.contains("://") || target.starts_with("mailto:");
    let file = target.split('#').next().unwrap_or("");
    is_web || file.is_empty() || repo.exists(&join_path(folder, file))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(text: &str) -> Vec<String> {
        crate::tidy::messages(check, &[("docs/a.md", text), ("docs/b.md", ""), ("README.md", "")])
    }

    #[test]
    fn links_that_lead_somewhere_pass() {
        for text in [
            "[b](b.md), [up](../README.md#start \"title\"), [here](#x), [docs](../docs/)",
            "[web](https://example.org/no.md) <mailto:a@b>",
            "`[code](no.md)`",
            "```\n[fenced](no.md)\n```",
            "[b]: b.md",
        ] {
            assert_eq!(found(text), Vec::<String>::new(), "{text}");
        }
    }

    #[test]
    fn broken_links_are_found() {
        for text in ["[x](c.md)", "[x](../b.md)", "[x](../../README.md)", "[x]: c.md"] {
            assert_eq!(found(text).len(), 1, "{text}");
        }
    }
}
