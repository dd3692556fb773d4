//! Words that must not reach the repository: promises instead of code, silenced tests, paths of
//! somebody's machine.

use super::Finding;
use crate::repo::Repo;
use crate::rust_file::{Kind, RustFile};

const MACROS: &[(&str, &str)] = &[
    ("todo", "an unfinished branch panics in somebody's cell; leave it out or finish it"),
    ("unimplemented", "an unfinished branch panics in somebody's cell; return an error instead"),
    ("dbg", "left over from debugging"),
];

/// Folders in which people and build machines keep their checkouts. Spelt in halves, for this file
/// is checked too.
const PRIVATE_FOLDERS: &[&str] = &[
    concat!("/ho", "me/"),
    concat!("/Us", "ers/"),
    concat!("/ro", "ot/"),
    concat!("/wo", "rk/"),
    concat!("\\Us", "ers\\"),
];

/// Text of others must not command a terminal, so the command line prints in one place, which sees
/// to that.
const PRINTING: &[&str] = &["print", "println", "eprint", "eprintln"];
const CLI_SOURCES: &str = "crates/cli/src/";

fn bypasses_output_filter(path: &str, file: &RustFile, index: usize) -> bool {
    let token = &file.tokens[index];
    path.starts_with(CLI_SOURCES)
        && token.kind == Kind::Ident
        && PRINTING.contains(&token.text.as_str())
        && file.tokens.get(index + 1).is_some_and(|next| next.text == "!")
}

pub fn check(repo: &Repo) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (path, text) in repo.texts() {
        for (index, line) in text.lines().enumerate() {
            if let Some(folder) = private_folder(line) {
                let message = format!("`{folder}…` is a path of one machine; nobody else has it");
                findings.push(Finding::new(path, index + 1, message));
            }
        }
    }
    for (path, file) in repo.rust_files() {
        findings.extend((0..file.tokens.len()).filter_map(|index| {
            banned_token(file, index).map(|why| Finding::new(path, file.tokens[index].line, why))
        }));
    }
    for (path, file) in repo.rust_files() {
        let found = (0..file.tokens.len()).filter(|at| bypasses_output_filter(path, file, *at));
        findings.extend(found.map(|at| {
            let why = "what others wrote may command a terminal; print with crate::output";
            Finding::new(path, file.tokens[at].line, why.to_owned())
        }));
    }
    findings
}

fn private_folder(line: &str) -> Option<&'static str> {
    let starts_here = |position: usize| {
        // `docs/home/` is a relative path, not a machine's.
        let before = line[..position].chars().next_back();
        !before.is_some_and(|c| c.is_alphanumeric() || "._-}".contains(c))
    };
    PRIVATE_FOLDERS.iter().copied().find(|folder| {
        line.match_indices(folder)
            .any(|(position, _)| folder.starts_with('\\') || starts_here(position))
    })
}

fn banned_token(file: &RustFile, index: usize) -> Option<String> {
    let token = &file.tokens[index];
    if token.kind != Kind::Ident {
        return None;
    }
    if token.text == "ignore"
        && index >= 2
        && file.text_at(index - 1) == "["
        && file.text_at(index - 2) == "#"
    {
        return Some(
            "`#[ignore]`: a test that does not run proves nothing; fix or delete it".into(),
        );
    }
    let (name, reason) = MACROS.iter().find(|(name, _)| token.text == *name)?;
    (file.text_at(index + 1) == "!").then(|| format!("`{name}!`: {reason}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::messages;

    #[test]
    fn leftovers_are_found() {
        for source in
            ["fn f() { todo!() }", "fn f() { unimplemented!(\"x\") }", "fn f() { dbg!(1); }"]
        {
            assert_eq!(messages(check, &[("a/src/lib.rs", source)]).len(), 1, "{source}");
        }
        assert_eq!(messages(check, &[("a/src/lib.rs", "#[ignore = \"slow\"] fn f() {}")]).len(), 1);
    }

    #[test]
    fn talk_about_them_is_fine() {
        let source = "// todo!( is banned\nfn todo() { let ignore = [\"dbg!(\"]; }";
        assert_eq!(messages(check, &[("a/src/lib.rs", source)]), Vec::<String>::new());
    }

    #[test]
    fn private_paths_are_found_in_any_text() {
        for folder in PRIVATE_FOLDERS {
            let line = format!("see {folder}someone/notes.txt\n");
            assert_eq!(messages(check, &[("docs/a.md", &line)]).len(), 1, "{line}");
        }
        let relative = concat!("see docs/ho", "me/page.md and target/wo", "rk/x\n");
        assert_eq!(messages(check, &[("docs/a.md", relative)]), Vec::<String>::new());
    }
}
