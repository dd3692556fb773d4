//! Paths inside a package. A parsed path has nothing in it that could lead out: no `..`, no root,
//! no empty part. What remains are links, and those have rules of their own here.
//!
//! A link may climb only at its beginning, and no higher than its own folder is deep. `a/../..` is
//! rejected even where it seems to stay inside: if `a` is itself a link, what `..` means there is
//! not what the text says. With climbing at the beginning only, every step starts from a folder of
//! the package and ends in one, however links are chained.

use crate::error::PackageError;
use std::cmp::Ordering;
use std::fmt;

/// Longest part of a path, as on Linux.
const MAX_PART: usize = 255;
/// Longest path; Linux has 4096 with the root in front of it.
const MAX_PATH: usize = 3000;
/// Deepest path. Deep trees cost an open folder per level when they are removed.
const MAX_DEPTH: usize = 100;

/// A path of normal parts, relative to the package's root.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct EntryPath(String);

impl EntryPath {
    /// # Errors
    /// When the text is not a plain relative path.
    pub fn new(text: &str) -> Result<EntryPath, PackageError> {
        match broken_rule(text) {
            None => Ok(EntryPath(text.to_owned())),
            Some(rule) => Err(PackageError::BadPath { path: truncate(text), rule }),
        }
    }

    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    pub fn parts(&self) -> impl Iterator<Item = &str> {
        self.0.split('/')
    }

    /// The folder it is in, or nothing at the root.
    #[must_use]
    pub fn folder(&self) -> Option<&str> {
        self.0.rsplit_once('/').map(|(folder, _)| folder)
    }

    #[must_use]
    pub fn name(&self) -> &str {
        self.0.rsplit('/').next().unwrap_or(&self.0)
    }

    fn depth(&self) -> usize {
        self.parts().count()
    }
}

impl Ord for EntryPath {
    /// By parts, so that a folder comes right before what is in it.
    fn cmp(&self, other: &EntryPath) -> Ordering {
        self.parts().cmp(other.parts())
    }
}

impl PartialOrd for EntryPath {
    fn partial_cmp(&self, other: &EntryPath) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl fmt::Display for EntryPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for EntryPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.0)
    }
}

fn broken_rule(text: &str) -> Option<&'static str> {
    if text.is_empty() {
        return Some("it is empty");
    }
    if text.len() > MAX_PATH {
        return Some("it has more than 3000 bytes");
    }
    if text.starts_with('/') {
        return Some("it starts at the root; paths are relative");
    }
    if text.contains('\0') {
        return Some("it holds a zero byte");
    }
    if text.split('/').count() > MAX_DEPTH {
        return Some("it is more than 100 folders deep");
    }
    text.split('/').find_map(|part| match part {
        "" => Some("it has an empty part"),
        "." | ".." => Some("it has a part . or .."),
        long if long.len() > MAX_PART => Some("it has a part of more than 255 bytes"),
        _ => None,
    })
}

/// Checks where a symbolic link at `path` leads.
///
/// # Errors
/// When it could lead out of the package.
pub fn check_link(path: &EntryPath, target: &str) -> Result<(), PackageError> {
    let refuse = |rule| {
        Err(PackageError::BadLink { path: path.to_string(), target: truncate(target), rule })
    };
    if target.is_empty() || target.contains('\0') {
        return refuse("the target is empty or holds a zero byte");
    }
    if target.len() > MAX_PATH {
        return refuse("the target has more than 3000 bytes");
    }
    if target.starts_with('/') {
        return refuse("the target starts at the root; allowed: relative targets");
    }
    let mut climbed = 0;
    let mut descended = false;
    for part in target.split('/') {
        match part {
            "" | "." => {}
            ".." if descended => return refuse("the target has .. after a name"),
            ".." => climbed += 1,
            _ => descended = true,
        }
    }
    if climbed >= path.depth() {
        return refuse("the target is above the package's root");
    }
    Ok(())
}

/// An untrusted text, shortened for an error message.
pub(crate) fn truncate(text: &str) -> String {
    text.chars().take(200).collect()
}

/// The same, safe to print on a terminal.
pub(crate) fn printable(text: &str) -> String {
    truncate(text).chars().flat_map(char::escape_debug).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_plain_relative_paths_are_paths() {
        for good in ["a", "a/b.c", "...", "a b/ü", "-", "a/..b"] {
            assert_eq!(EntryPath::new(good).unwrap().as_str(), good);
        }
        let deep = vec!["d"; MAX_DEPTH + 1].join("/");
        let long = "x".repeat(MAX_PART + 1);
        let many = vec!["y".repeat(200); 20].join("/");
        for bad in [
            "", "/", "/a", "a/", "a//b", ".", "./a", "..", "a/..", "a/../b", "a\0b", &deep, &long,
            &many,
        ] {
            let error = EntryPath::new(bad);
            assert!(matches!(error, Err(PackageError::BadPath { .. })), "{bad:?} {error:?}");
        }
    }

    #[test]
    fn a_folder_comes_right_before_what_is_in_it() {
        let mut paths: Vec<EntryPath> =
            ["a.b", "a/b", "a", "a-b/c", "a/a"].map(|p| EntryPath::new(p).unwrap()).into();
        paths.sort();
        let sorted: Vec<&str> = paths.iter().map(EntryPath::as_str).collect();
        assert_eq!(sorted, ["a", "a/a", "a/b", "a-b/c", "a.b"]);
    }

    #[test]
    fn links_climb_at_their_beginning_and_stay_inside() {
        let check = |path: &str, target: &str, fine: bool| {
            let got = check_link(&EntryPath::new(path).unwrap(), target);
            assert_eq!(got.is_ok(), fine, "{path} -> {target}: {got:?}");
        };
        check("a", "b", true);
        check("a", "./b/c/", true);
        check("a/b/c", "../../d", true);
        check("a/b/c", "..", true);
        check("a", "..", false);
        check("a/b/c", "../../../d", false);
        check("a/b", "x/../y", false);
        check("a", "/etc/passwd", false);
        check("a", "", false);
        check("a", "b\0", false);
    }
}
