//! What was meant by a command that there is not. People bring the words of the cluster managers
//! they know, and slips of the finger; either is told in the cell's own words. Rejected: aliases,
//! which would make two names of everything, and read as if they did what they do elsewhere.

use crate::failure::Failure;
use crate::retyped;
use cellwright_cell::near::nearest;
use clap::Command;
use clap::error::{ContextKind, ContextValue, ErrorKind};

/// What is typed elsewhere, behind `cell`, and what does the same here; of two that fit, the longer
/// counts.
const ELSEWHERE: [(&str, &str); 44] = [
    ("alloc", "cell status JOB/INDEX"),
    ("alloc exec", "cell exec TASK -- COMMAND"),
    ("alloc logs", "cell logs TASK"),
    ("apply", "cell run FILE"),
    ("attach", "cell logs JOB --follow"),
    ("cordon", "cell drain MACHINE"),
    ("create", "cell run FILE"),
    ("cron delete", "cell cron rm CRON"),
    ("cron status", "cell cron ls"),
    ("cron stop", "cell cron pause CRON"),
    ("delete", "cell stop JOB"),
    ("deploy", "cell run FILE"),
    ("deployment", "cell update JOB"),
    ("diff", "cell plan FILE"),
    ("eval", "cell explain JOB"),
    ("get", "cell status NAME"),
    ("get jobs", "cell job status"),
    ("get nodes", "cell machine ls"),
    ("get pods", "cell job status"),
    ("job inspect", "cell describe JOB"),
    ("job list", "cell job status"),
    ("job logs", "cell logs JOB"),
    ("job ls", "cell job status"),
    ("job plan", "cell plan FILE"),
    ("job run", "cell run FILE"),
    ("job scale", "cell resize JOB --tasks N"),
    ("jobs", "cell job status"),
    ("kill", "cell stop JOB"),
    ("list", "cell job status"),
    ("ls", "cell job status"),
    ("machine list", "cell machine ls"),
    ("machine status", "cell machine show MACHINE"),
    ("machines", "cell machine ls"),
    ("node", "cell machine ls"),
    ("nodes", "cell machine ls"),
    ("ps", "cell job status"),
    ("restart", "cell stop JOB, then cell run FILE"),
    ("rm", "cell stop JOB"),
    ("rollback", "cell update undo JOB"),
    ("rollout", "cell update JOB"),
    ("scale", "cell resize JOB --tasks N"),
    ("uncordon", "cell drain MACHINE --undo"),
    ("undo", "cell update undo JOB"),
    ("version", "cell --version"),
];

/// What to say instead of the parser, where it does not know a command.
pub fn instead(root: &Command, error: &clap::Error) -> Option<Failure> {
    if error.kind() != ErrorKind::InvalidSubcommand {
        return None;
    }
    let Some(ContextValue::String(unknown)) = error.get(ContextKind::InvalidSubcommand) else {
        return None;
    };
    let typed: Vec<String> =
        std::env::args_os().skip(1).map(|word| word.to_string_lossy().into_owned()).collect();
    Some(told(root, &typed, unknown))
}

fn told(root: &Command, typed: &[String], unknown: &str) -> Failure {
    let at = typed.iter().position(|word| word == unknown).unwrap_or(typed.len());
    let (group, verbs) = above(root, &typed[..at]);
    let after = typed.get(at + 1).map_or("", String::as_str);
    let path = [verbs.as_slice(), &[unknown]].concat().join(" ");
    let usage = |message: String, next: String| Failure::Usage {
        message: format!("there is no command `{path}`; {message}"),
        next,
    };
    if let Some(here) = elsewhere(&path, after) {
        return usage(format!("what you mean is `{here}`"), help_of(root, here));
    }
    let commands: Vec<&str> = group.get_subcommands().map(Command::get_name).collect();
    if let Some(near) = nearest(unknown, commands.iter().copied()) {
        let right = [&["cell"], verbs.as_slice(), &[near]].concat().join(" ");
        return usage(format!("the nearest is `{right}`"), retyped::with(unknown, near));
    }
    // `cell greeter status`: the verb comes first here.
    if verbs.is_empty() && root.find_subcommand(after).is_some() {
        let right = format!("cell {after} {unknown}");
        return usage("the verb comes before the name".into(), right);
    }
    let all = [&["cell"], verbs.as_slice(), &["--help"]].concat().join(" ");
    usage(format!("allowed: {}", commands.join(", ")), all)
}

fn elsewhere(path: &str, after: &str) -> Option<&'static str> {
    let called = |words: &str| ELSEWHERE.iter().find(|(there, _)| *there == words);
    called(&format!("{path} {after}")).or_else(|| called(path)).map(|(_, here)| *here)
}

/// `cell run --help` of `cell run FILE`.
fn help_of(root: &Command, here: &str) -> String {
    let (_, verbs) = above(root, &here.split(' ').map(str::to_owned).collect::<Vec<_>>()[1..]);
    [&["cell"], verbs.as_slice(), &["--help"]].concat().join(" ")
}

/// The command that these words lead to, and the verbs among them.
fn above<'a>(root: &'a Command, words: &[String]) -> (&'a Command, Vec<&'a str>) {
    let (mut group, mut verbs) = (root, Vec::new());
    for word in words {
        if let Some(inner) = group.find_subcommand(word) {
            group = inner;
            verbs.push(inner.get_name());
        }
    }
    (group, verbs)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(typed: &str) -> (String, String) {
        let words: Vec<String> = typed.split(' ').map(str::to_owned).collect();
        let error = crate::typeable().try_get_matches_from(&words).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidSubcommand, "{typed}: {error}");
        let unknown = error.get(ContextKind::InvalidSubcommand).unwrap().to_string();
        match told(&crate::typeable(), &words[1..], &unknown) {
            Failure::Usage { message, next } => (message, next),
            other => panic!("{other:?}"),
        }
    }

    fn check(typed: &str, message: &str, next: &str) {
        let (said, then) = said(typed);
        assert_eq!((said.as_str(), then.as_str()), (message, next), "{typed}");
    }

    #[test]
    fn words_of_other_systems_are_told_in_our_own() {
        let apply = "there is no command `apply`; what you mean is `cell run FILE`";
        check("cell apply -f web.yaml", apply, "cell run --help");
        check("cell --master m:1 apply", apply, "cell run --help");
        let list = "there is no command `job ls`; what you mean is `cell job status`";
        check("cell job ls", list, "cell job status --help");
        let nodes = "there is no command `get`; what you mean is `cell machine ls`";
        check("cell get nodes", nodes, "cell machine ls --help");
        for (there, here) in ELSEWHERE {
            let said = said(&format!("cell {there}")).0;
            assert!(said.ends_with(&format!("; what you mean is `{here}`")), "{there}: {said}");
        }
    }

    #[test]
    fn what_does_the_same_here_is_a_command() {
        for (there, here) in ELSEWHERE.into_iter().filter(|(_, here)| !here.contains(" --v")) {
            assert_ne!(help_of(&crate::typeable(), here), "cell --help", "{there}");
        }
        assert!(ELSEWHERE.is_sorted(), "in the order of the alphabet");
    }

    #[test]
    fn slips_are_told_with_the_nearest_command() {
        let (said, _) = said("cell stauts hello");
        assert_eq!(said, "there is no command `stauts`; the nearest is `cell status`");
        let verb = "there is no command `greeter`; the verb comes before the name";
        check("cell greeter status", verb, "cell status greeter");
    }

    #[test]
    fn whatever_is_like_nothing_is_told_what_there_is() {
        let (said, next) = said("cell cron xylophone");
        let want = "there is no command `cron xylophone`; allowed: ls, run, pause, resume, rm";
        assert_eq!((said.as_str(), next.as_str()), (want, "cell cron --help"));
    }
}
