//! Examples for every command. Commands with long examples have them in their own file; the short
//! ones are in one table here, where they can be read together and a test finds a missing one.
//! Rejected: a constant in each of fifty small structs, one of which would always be forgotten.

use clap::Command;

/// The heading above examples in a help text.
pub const HEADING: &str = "Examples:";

/// The words of each command after `cell`, and its examples, without `cell`.
const COMMAND_EXAMPLES: [(&str, &[&str]); 76] = [
    ("dev", &["dev", "dev --driver process --data-dir ./my-cell", "dev --machines 20 --cpu 8"]),
    ("top", &["top", "top --jobs", "top --once"]),
    ("drain", &["drain m1 --wait", "drain m1 m2", "drain -m m1 --undo"]),
    ("job status", &["job status", "job status dev/hello", "job status --state waiting"]),
    ("job history", &["job history dev/hello", "job history dev/hello -o json"]),
    ("job diff", &["job diff dev/hello", "job diff dev/hello 2", "job diff dev/hello 2 4"]),
    ("job revert", &["job revert dev/hello", "job revert dev/hello 2 --dry-run"]),
    ("revert", &["revert dev/hello", "revert dev/hello 2"]),
    ("promote", &["promote dev/hello"]),
    ("archive ls", &["archive ls", "archive ls logs dev/hello", "archive ls history"]),
    ("archive show", &["archive show dev/hello", "archive show dev/hello -o json"]),
    ("archive logs", &["archive logs dev/hello/0", "archive logs dev/hello/0 --timestamps"]),
    ("archive restore", &["archive restore dev/hello", "archive restore hello --to hello.yaml"]),
    (
        "archive restore-history",
        &["archive restore-history 2026-11-01", "archive restore-history 2026-11-01 2026-11-07"],
    ),
    ("archive status", &["archive status"]),
    ("cron", &["cron ls", "cron run dev/nightly", "cron rm dev/nightly"]),
    ("cron ls", &["cron ls", "cron ls -o json"]),
    ("cron run", &["cron run dev/nightly"]),
    ("cron pause", &["cron pause dev/nightly"]),
    ("cron resume", &["cron resume dev/nightly"]),
    ("cron rm", &["cron rm dev/nightly"]),
    ("machine", &["machine ls", "machine show m1", "machine rm m1"]),
    ("machine ls", &["machine ls", "machine ls -o name"]),
    ("machine show", &["machine show m1"]),
    ("machine packages", &["machine packages m1"]),
    ("machine drain", &["machine drain m1"]),
    ("machine undrain", &["machine undrain m1"]),
    ("machine rm", &["machine rm m1", "machine rm m1 --force"]),
    ("explain", &["explain dev/hello", "explain dev/hello/0"]),
    ("user", &["user ls", "user add ann > ann.toml", "user grant ann read_output"]),
    ("user add", &["user add ann > ann.toml", "user add eve --capability manage_machines"]),
    ("user token", &["user token ann --valid-for 30d > ann.toml"]),
    ("user ls", &["user ls"]),
    ("user show", &["user show ann"]),
    ("user grant", &["user grant ann read_output enter_tasks"]),
    ("user revoke", &["user revoke ann enter_tasks"]),
    ("user rm", &["user rm ann"]),
    ("quota", &["quota ls ann", "quota set ann batch --cpu 4 --ram 8GiB"]),
    ("quota ls", &["quota ls", "quota ls ann"]),
    ("quota set", &["quota set ann production --cpu 40 --ram 160GiB --until 30d"]),
    ("token", &["token create --agent m1", "token ls", "token revoke 7f3a9c"]),
    (
        "token create",
        &["token create --agent m1", "token create --replica r2 --token-file r2.token"],
    ),
    ("token ls", &["token ls", "token ls --user ann"]),
    ("token revoke", &["token revoke 7f3a9c", "token revoke --scheduler s2"]),
    ("package build", &["package build ./server", "package build ./server --to web.package"]),
    ("package import", &["package import docker://alpine:3.20", "package import alpine.tar"]),
    ("package push", &["package push ./server --name server"]),
    ("package ls", &["package ls", "package ls -o wide"]),
    ("package show", &["package show server.package", "package show c2a512f6"]),
    ("package rm", &["package rm c2a512f6e332"]),
    ("master init", &["master init --cell aa --name r1 --advertise r1.example.org:7070"]),
    ("master start", &["master start", "master start --dev --data-dir ./my-master"]),
    ("master join", &["master join --token-file r2.token --advertise r2.example.org:7070"]),
    ("master confirm", &["master confirm r2 3f1c-09ab-77d2-e0c4-5b6a-1e2f-8890-a4d1"]),
    ("master remove", &["master remove r2"]),
    ("master repair", &["master repair"]),
    ("master status", &["master status", "master status --watch"]),
    ("agent", &["agent join --token-file m1.token", "agent start"]),
    ("agent join", &["agent join", "agent join --token-file m1.token"]),
    ("agent start", &["agent start", "agent start --config ./agent.toml"]),
    ("checkpoint save", &["checkpoint save"]),
    ("checkpoint ls", &["checkpoint ls"]),
    ("checkpoint show", &["checkpoint show cell.ckpt"]),
    ("checkpoint replay", &["checkpoint replay --at 2026-11-15T22:00:00Z --to past.ckpt"]),
    ("checkpoint log", &["checkpoint log", "checkpoint log --from 4100 --full -o jsonl"]),
    ("checkpoint restore", &["checkpoint restore cell.ckpt --config ./master.toml"]),
    ("checkpoint export", &["checkpoint export cell.ckpt --job ann/web"]),
    ("checkpoint import", &["checkpoint import cell.jsonl --out mended.ckpt"]),
    ("context", &["context add ann.toml", "context ls", "context use aa"]),
    ("context ls", &["context ls"]),
    ("context use", &["context use aa"]),
    ("context add", &["context add ann.toml", "context add ann.toml --name aa-ann"]),
    ("context set", &["context set aa -J ~/acme/lib", "context set --no-libraries"]),
    ("context header", &["context header > header", "context header --context aa > header"]),
    ("context refresh", &["context refresh"]),
    ("man", &["man ~/.local/share/man/man1"]),
];

/// The same commands with their examples added to the help text.
pub fn add_examples(command: Command) -> Command {
    command.mut_subcommands(|inner| add_below(inner, ""))
}

fn add_below(command: Command, parents: &str) -> Command {
    let command_path = format!("{parents}{}", command.get_name());
    let known_examples = COMMAND_EXAMPLES.iter().find(|(name, _)| *name == command_path);
    let command = match known_examples {
        Some((_, examples)) => append_examples(command, examples),
        None => command,
    };
    command.mut_subcommands(|inner| add_below(inner, &format!("{command_path} ")))
}

/// Puts the examples before whatever else the help text ends with.
fn append_examples(command: Command, examples: &[&str]) -> Command {
    let lines: Vec<String> = examples.iter().map(|words| format!("\n  cell {words}")).collect();
    let rest = command.get_after_help().map(|rest| format!("\n\n{rest}")).unwrap_or_default();
    command.after_help(format!("{HEADING}{}{rest}", lines.concat()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    /// The lines below the heading; lines continued with a backslash are joined.
    fn examples(help: &str) -> Vec<String> {
        let below = help.lines().skip_while(|line| *line != HEADING).skip(1);
        let mut lines: Vec<String> = Vec::new();
        for line in below.take_while(|line| line.starts_with("  ")) {
            match lines.last_mut().filter(|last| last.ends_with('\\')) {
                Some(last) => {
                    last.pop();
                    last.push_str(line.trim_start());
                }
                None => lines.push(line.trim().to_owned()),
            }
        }
        lines
    }

    /// The words of a line as a shell would split them, up to a redirection of the output.
    fn words(line: &str) -> Vec<String> {
        let (mut words, mut word, mut quote) = (Vec::new(), None::<String>, None);
        for letter in line.chars() {
            match (letter, quote) {
                (_, Some(open)) if letter == open => quote = None,
                ('\'' | '"', None) => {
                    quote = Some(letter);
                    word.get_or_insert_default();
                }
                (' ', None) => words.extend(word.take()),
                ('>' | '|', None) => break,
                _ => word.get_or_insert_default().push(letter),
            }
        }
        words.extend(word);
        words
    }

    /// Every command without subcommands, by the words that are typed for it.
    fn leaves(command: &Command, command_path: &str, found: &mut Vec<(String, Command)>) {
        let mut inner = command.get_subcommands().filter(|inner| inner.get_name() != "help");
        let Some(first) = inner.next() else {
            found.push((command_path.to_owned(), command.clone()));
            return;
        };
        for inner in std::iter::once(first).chain(inner) {
            leaves(inner, &format!("{command_path} {}", inner.get_name()), found);
        }
    }

    #[test]
    fn every_command_has_an_example_and_every_example_can_be_typed() {
        let mut root = add_examples(crate::Cli::command());
        root.build();
        let (mut all, mut wrong) = (Vec::new(), Vec::new());
        leaves(&root, "cell", &mut all);
        for (command_path, mut command) in all {
            let examples = examples(&command.render_long_help().to_string());
            let is_own = |line: &&String| {
                line.starts_with(&command_path) || command_path.starts_with("cell job")
            };
            if !examples.iter().any(|line| is_own(&line)) {
                wrong.push(format!("{command_path} has no example of its own: {examples:?}"));
            }
            for line in examples.iter().filter(|line| line.starts_with("cell ")) {
                if let Err(error) = root.clone().try_get_matches_from(words(line)) {
                    wrong.push(format!("{command_path}: {line}: {error}"));
                }
            }
        }
        assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    }

    #[test]
    fn groups_of_commands_have_examples_that_can_be_typed() {
        let mut root = add_examples(crate::Cli::command());
        root.build();
        let help = [root.clone()].into_iter().chain(root.get_subcommands().cloned());
        let lines = help.flat_map(|mut group| {
            let lines = examples(&group.render_long_help().to_string());
            assert!(!lines.is_empty() || group.get_name() == "help", "{}", group.get_name());
            lines
        });
        for line in lines.filter(|line| line.starts_with("cell ")) {
            let read = root.clone().try_get_matches_from(words(&line));
            // An example that shows help was parsed successfully.
            let is_help = |error: &clap::Error| error.kind() == clap::error::ErrorKind::DisplayHelp;
            assert!(read.as_ref().map_or_else(is_help, |_| true), "{line}: {read:?}");
        }
    }

    #[test]
    fn what_stands_in_the_table_is_a_command() {
        let mut all = Vec::new();
        let root = add_examples(crate::Cli::command());
        leaves(&root, "cell", &mut all);
        for (command_path, _) in COMMAND_EXAMPLES {
            let is_leaf = all.iter().any(|(name, _)| *name == format!("cell {command_path}"));
            assert!(is_leaf || root.find_subcommand(command_path).is_some(), "{command_path}");
        }
    }

    #[test]
    fn words_are_split_as_shells_do() {
        assert_eq!(words("cell stop 'a/[2-5]' > x"), ["cell", "stop", "a/[2-5]"]);
        assert_eq!(words("cell sql \"select 'a'\""), ["cell", "sql", "select 'a'"]);
        assert_eq!(examples("x\nExamples:\n  a \\\n    b\n  c\n\nd\n"), ["a b", "c"]);
    }
}
