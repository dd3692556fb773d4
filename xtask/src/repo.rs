//! The repository as a value: every path, the text of text files, the tokens of Rust files.
//!
//! Checks are pure functions over this value, so their tests build a repository from a few strings.
//! Asking git for the file list was rejected: tidy must also see files not yet added, and must run
//! from an unpacked archive.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::path::Path;

use crate::modules;
use crate::rust_file::RustFile;

/// Larger text is recorded data (traces, reports), which has no style.
const TEXT_LIMIT_BYTES: u64 = 1 << 20;

const TEXT_EXTENSIONS: &[&str] = &[
    "css", "html", "js", "json", "jsonnet", "md", "py", "rs", "sh", "svg", "toml", "txt", "yaml",
    "yml",
];
const TEXT_NAMES: &[&str] = &["Makefile", ".gitignore", "run"];

#[derive(Default)]
pub struct Repo {
    paths: BTreeSet<String>,
    texts: BTreeMap<String, String>,
    rust: BTreeMap<String, RustFile>,
    unreadable: Vec<(String, String)>,
    test_files: BTreeSet<String>,
    reachable: BTreeSet<String>,
}

impl Repo {
    pub fn load(root: &Path) -> io::Result<Repo> {
        let mut repo = Repo::default();
        repo.walk(root, "")?;
        Ok(repo.indexed())
    }

    #[cfg(test)]
    pub fn of(files: &[(&str, &str)]) -> Repo {
        let mut repo = Repo::default();
        for (path, text) in files {
            repo.paths.insert((*path).to_owned());
            repo.texts.insert((*path).to_owned(), (*text).to_owned());
        }
        repo.indexed()
    }

    fn walk(&mut self, folder: &Path, prefix: &str) -> io::Result<()> {
        // Cargo marks its output folders, whatever they are called.
        if folder.join("CACHEDIR.TAG").exists() {
            return Ok(());
        }
        for entry in fs::read_dir(folder)? {
            let entry = entry?;
            let name = entry.file_name().to_string_lossy().into_owned();
            let path = format!("{prefix}{name}");
            let kind = entry.file_type()?;
            if kind.is_dir() {
                if !matches!(name.as_str(), ".git" | "target" | "node_modules") {
                    self.walk(&entry.path(), &format!("{path}/"))?;
                }
                continue;
            }
            if kind.is_file() && is_text(&name) && entry.metadata()?.len() <= TEXT_LIMIT_BYTES {
                match fs::read_to_string(entry.path()) {
                    Ok(text) => drop(self.texts.insert(path.clone(), text)),
                    Err(error) => self.unreadable.push((path.clone(), error.to_string())),
                }
            }
            self.paths.insert(path);
        }
        Ok(())
    }

    fn indexed(mut self) -> Repo {
        for (path, text) in self.texts.iter().filter(|(path, _)| path.ends_with(".rs")) {
            match RustFile::lex(text) {
                Ok(file) => drop(self.rust.insert(path.clone(), file)),
                Err(error) => self.unreadable.push((path.clone(), error)),
            }
        }
        let reachable = modules::reachable_files(&self);
        self.reachable = reachable.all;
        self.test_files = reachable.tests;
        self
    }

    pub fn file_count(&self) -> usize {
        self.paths.len()
    }

    /// A file, or a folder that holds one.
    pub fn exists(&self, path: &str) -> bool {
        let path = path.trim_end_matches('/');
        let inside = format!("{path}/");
        path.is_empty()
            || self.paths.contains(path)
            || self.paths.range(inside.clone()..).next().is_some_and(|p| p.starts_with(&inside))
    }

    pub fn paths(&self) -> impl Iterator<Item = &str> {
        self.paths.iter().map(String::as_str)
    }

    pub fn text(&self, path: &str) -> Option<&str> {
        self.texts.get(path).map(String::as_str)
    }

    pub fn texts(&self) -> impl Iterator<Item = (&str, &str)> {
        self.texts.iter().map(|(path, text)| (path.as_str(), text.as_str()))
    }

    pub fn rust(&self, path: &str) -> Option<&RustFile> {
        self.rust.get(path)
    }

    pub fn rust_files(&self) -> impl Iterator<Item = (&str, &RustFile)> {
        self.rust.iter().map(|(path, file)| (path.as_str(), file))
    }

    /// Files that could not be read as text or as Rust, each with the reason.
    pub fn unreadable(&self) -> &[(String, String)] {
        &self.unreadable
    }

    /// Whether the whole file is test code: under `tests/`, or only reached by `#[cfg(test)] mod`.
    pub fn is_test_file(&self, path: &str) -> bool {
        self.test_files.contains(path)
    }

    /// Whether some crate root leads to this file by `mod` declarations.
    pub fn is_reached(&self, path: &str) -> bool {
        self.reachable.contains(path)
    }

    /// Folders of packages (`crates/cell`, `xtask`), the workspace root left out.
    pub fn packages(&self) -> impl Iterator<Item = &str> {
        self.paths().filter_map(|path| path.strip_suffix("/Cargo.toml"))
    }
}

fn is_text(name: &str) -> bool {
    let extension = name.rsplit_once('.').map_or("", |(_, extension)| extension);
    TEXT_EXTENSIONS.contains(&extension) || TEXT_NAMES.contains(&name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folders_exist_when_they_hold_a_file() {
        let repo = Repo::of(&[("docs/guide/start.md", "# Start\n")]);
        for path in ["docs", "docs/", "docs/guide/start.md"] {
            assert!(repo.exists(path), "{path}");
        }
        for path in ["doc", "docs/guide/star", "docs/other"] {
            assert!(!repo.exists(path), "{path}");
        }
    }

    #[test]
    fn source_that_does_not_lex_is_reported() {
        let repo = Repo::of(&[("crates/cell/src/lib.rs", "//! Doc.\nfn broken( {\n")]);
        assert_eq!(repo.unreadable().len(), 1);
    }
}
