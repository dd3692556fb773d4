//! Pointers from prose into the code: `` `crates/cell/src/apply.rs` `` or
//! `` `crates/cell/tests/gang.rs::all_or_none` `` in backticks.
//!
//! Prose rots because nothing breaks when the code moves on. A document that names a file or a test
//! is therefore checked like a link. Bare words stay prose: guessing would punish good writing.

use crate::repo::Repo;

/// The texts between single backticks of one line.
pub fn in_backticks(line: &str) -> Vec<&str> {
    line.split('`').skip(1).step_by(2).map(str::trim).filter(|text| !text.is_empty()).collect()
}

/// Whether the text means a file or folder of this repository.
pub fn is_path(text: &str) -> bool {
    const EXTENSIONS: &[&str] = &["rs", "md", "toml", "txt", "sh", "json", "svg"];
    let file = text.split("::").next().unwrap_or(text);
    let slashed = file.contains('/') && !file.starts_with('/');
    let named = file
        .rsplit_once('.')
        .is_some_and(|(stem, extension)| !stem.is_empty() && EXTENSIONS.contains(&extension));
    let is_word = |c: char| c.is_alphanumeric() || "/_-.".contains(c);
    (slashed || named) && file.chars().all(is_word)
}

/// Whether the text reads like a test's name: a sentence in snake case.
pub fn is_test_name(text: &str) -> bool {
    let is_word = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
    text.matches('_').count() >= 3 && text.chars().all(is_word)
}

/// Checks one pointer; the error says what is missing.
pub fn resolve(repo: &Repo, text: &str) -> Result<(), String> {
    if !is_path(text) {
        let declared = repo.rust_files().any(|(_, file)| file.declares(text));
        return if declared { Ok(()) } else { Err(format!("no item `{text}` in any Rust file")) };
    }
    let (path, item) = match text.split_once("::") {
        Some((path, item)) => (path, item.rsplit("::").next()),
        None => (text, None),
    };
    if !repo.exists(path) {
        return Err(format!("`{path}` does not exist"));
    }
    match item {
        Some(item) if !repo.rust(path).is_some_and(|file| file.declares(item)) => {
            Err(format!("`{path}` declares no `{item}`"))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_told_from_prose() {
        for text in ["crates/cell/src/a.rs", "bench/", "deny.toml", "a/b.rs::some_test"] {
            assert!(is_path(text), "{text}");
        }
        for text in ["cell", "cell::fit", "cell/user/job/index = 3", "/metrics", "make test", ".rs"]
        {
            assert!(!is_path(text), "{text}");
        }
    }

    #[test]
    fn pointers_must_lead_somewhere() {
        let repo = Repo::of(&[("crates/a/src/lib.rs", "fn holds() {} struct Plan;")]);
        for good in ["crates/a", "crates/a/src/lib.rs", "crates/a/src/lib.rs::holds", "Plan"] {
            assert_eq!(resolve(&repo, good), Ok(()), "{good}");
        }
        for bad in ["crates/b", "crates/a/src/lib.rs::fails", "nowhere_to_be_found"] {
            assert!(resolve(&repo, bad).is_err(), "{bad}");
        }
    }
}
