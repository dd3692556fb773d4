//! Durable nouns carry no serde attribute that the binary encoding cannot.
//!
//! The same noun goes into the log, the checkpoint and the public JSON. The binary form has no
//! field names and no self-description, so an attribute that adds, drops or guesses fields works in
//! JSON and corrupts the log. It fails only on reading back, long after the write.

use super::Finding;
use crate::repo::Repo;
use crate::rust_file::{Kind, RustFile};

const BANNED: &[&str] = &[
    "flatten",
    "untagged",
    "tag",
    "skip_serializing_if",
    "skip_serializing",
    "skip_deserializing",
];

/// Where the nouns are that the log and checkpoints hold.
const DURABLE: [&str; 2] = ["crates/rows/src/", "crates/cell/src/"];

pub fn check(repo: &Repo) -> Vec<Finding> {
    let mut findings = Vec::new();
    let durable = |path: &str| DURABLE.iter().any(|folder| path.starts_with(folder));
    for (path, file) in repo.rust_files().filter(|(path, _)| durable(path)) {
        let start = (0..file.tokens.len()).filter(|&i| starts_serde_attribute(file, i));
        for open in start.map(|index| index + 1) {
            for token in &file.tokens[open..file.close_of(open)] {
                if token.kind == Kind::Ident && BANNED.contains(&token.text.as_str()) {
                    let message = format!(
                        "`#[serde({})]` on a durable noun: the binary encoding has no field names, \
                         so the log could not be read back",
                        token.text
                    );
                    findings.push(Finding::new(path, token.line, message));
                }
            }
        }
    }
    findings
}

/// `serde(` right after `#[`, or anywhere inside `#[cfg_attr(…)]`.
fn starts_serde_attribute(file: &RustFile, index: usize) -> bool {
    file.text_at(index) == "serde"
        && file.text_at(index + 1) == "("
        && index > 0
        && matches!(file.text_at(index - 1), "[" | ",")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::messages;

    #[test]
    fn attributes_that_binary_cannot_carry_are_found() {
        for source in [
            "struct A { #[serde(flatten)] b: B }",
            "#[serde(untagged)] enum A { B }",
            "#[serde(tag = \"kind\")] enum A { B }",
            "struct A { #[serde(default, skip_serializing_if = \"Vec::is_empty\")] b: B }",
            "#[cfg_attr(feature = \"x\", serde(untagged))] enum A { B }",
        ] {
            let found = messages(check, &[("crates/cell/src/job.rs", source)]);
            assert_eq!(found.len(), 1, "{source}: {found:?}");
        }
    }

    #[test]
    fn harmless_attributes_and_other_crates_pass() {
        for (path, source) in [
            ("crates/cell/src/job.rs", "#[serde(rename_all = \"snake_case\")] enum A { B }"),
            ("crates/cell/src/job.rs", "#[serde(default, deny_unknown_fields)] struct A;"),
            ("crates/cell/src/job.rs", "// #[serde(untagged)]\nfn tag(serde: u8) {}"),
            ("crates/sim/src/report.rs", "#[serde(untagged)] enum A { B }"),
        ] {
            assert_eq!(messages(check, &[(path, source)]), Vec::<String>::new(), "{source}");
        }
    }
}
