//! Suggestions for unknown commands: the commands of other cluster managers, and typing errors;
//! both are answered with the command of this program. Rejected: aliases, which would give
//! everything two names and suggest that they behave as they do elsewhere.

use crate::command_line;
use crate::failure::Failure;
use cellwright_cell::suggestions::nearest;
use clap::Command;
use clap::error::{ContextKind, ContextValue, ErrorKind};

/// Commands of other cluster managers, after `cell`, with the equivalent here; if two match, the
/// longer one counts.
const FOREIGN_COMMANDS: [(&str, &str); 52] = [
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
    ("rm", "cell stop JOB"),
    ("rollback", "cell update undo JOB"),
    ("rollout", "cell update JOB"),
    ("rollout restart", "cell restart JOB"),
    ("sacct", "cell job status --all"),
    ("salloc", "cell run FILE"),
    ("sbatch", "cell run --detach SCRIPT"),
    ("scancel", "cell stop JOB"),
    ("scontrol", "cell describe NAME"),
    ("sinfo", "cell machine ls"),
    ("squeue", "cell job status"),
    ("srun", "cell run -- COMMAND"),
    ("uncordon", "cell drain MACHINE --undo"),
    ("undo", "cell update undo JOB"),
    ("undrain", "cell drain MACHINE --undo"),
    ("version", "cell --version"),
];

/// The failure to report instead of the parser's error for an unknown command.
pub fn suggest(root: &Command, error: &clap::Error) -> Option<Failure> {
    if error.kind() != ErrorKind::InvalidSubcommand {
        return None;
    }
    let Some(ContextValue::String(unknown)) = error.get(ContextKind::InvalidSubcommand) else {
        return None;
    };
    let args: Vec<String> =
        std::env::args_os().skip(1).map(|word| word.to_string_lossy().into_owned()).collect();
    Some(suggestion_for(root, &args, unknown))
}

fn suggestion_for(root: &Command, args: &[String], unknown: &str) -> Failure {
    let at = args.iter().position(|word| word == unknown).unwrap_or(args.len());
    let (group, verbs) = resolve_subcommand(root, &args[..at]);
    let after = args.get(at + 1).map_or("", String::as_str);
    let path = [verbs.as_slice(), &[unknown]].concat().join(" ");
    let usage = |message: String, next: String| Failure::Usage {
        message: format!("there is no command `{path}`; {message}"),
        next,
    };
    if let Some(equivalent) = foreign_command(&path, after) {
        return usage(format!("what you mean is `{equivalent}`"), help_command(root, equivalent));
    }
    let commands: Vec<&str> = group.get_subcommands().map(Command::get_name).collect();
    if let Some(near) = nearest(unknown, commands.iter().copied()) {
        let right = [&["cell"], verbs.as_slice(), &[near]].concat().join(" ");
        return usage(format!("the nearest is `{right}`"), command_line::corrected(unknown, near));
    }
    // `cell greeter status`: the verb comes first here.
    if verbs.is_empty() && root.find_subcommand(after).is_some() {
        let right = format!("cell {after} {unknown}");
        return usage("the verb comes before the name".into(), right);
    }
    let all = [&["cell"], verbs.as_slice(), &["--help"]].concat().join(" ");
    usage(format!("allowed: {}", commands.join(", ")), all)
}

fn foreign_command(path: &str, after: &str) -> Option<&'static str> {
    let lookup = |words: &str| FOREIGN_COMMANDS.iter().find(|(foreign, _)| *foreign == words);
    lookup(&format!("{path} {after}")).or_else(|| lookup(path)).map(|(_, here)| *here)
}

/// The help command of an equivalent: `cell run --help` for `cell run FILE`.
fn help_command(root: &Command, equivalent: &str) -> String {
    let (_, verbs) = resolve_subcommand(
        root,
        &equivalent.split(' ').map(str::to_owned).collect::<Vec<_>>()[1..],
    );
    [&["cell"], verbs.as_slice(), &["--help"]].concat().join(" ")
}

/// The command that these words lead to, and the verbs among them.
fn resolve_subcommand<'a>(root: &'a Command, words: &[String]) -> (&'a Command, Vec<&'a str>) {
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

    fn suggested(args: &str) -> (String, String) {
        let words: Vec<String> = args.split(' ').map(str::to_owned).collect();
        let error = crate::command_tree().try_get_matches_from(&words).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidSubcommand, "{args}: {error}");
        let unknown = error.get(ContextKind::InvalidSubcommand).unwrap().to_string();
        match suggestion_for(&crate::command_tree(), &words[1..], &unknown) {
            Failure::Usage { message, next } => (message, next),
            other => panic!("{other:?}"),
        }
    }

    fn check(args: &str, message: &str, next: &str) {
        let (actual_message, actual_next) = suggested(args);
        assert_eq!((actual_message.as_str(), actual_next.as_str()), (message, next), "{args}");
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
        for (foreign, here) in FOREIGN_COMMANDS {
            let message = suggested(&format!("cell {foreign}")).0;
            assert!(
                message.ends_with(&format!("; what you mean is `{here}`")),
                "{foreign}: {message}"
            );
        }
    }

    #[test]
    fn what_does_the_same_here_is_a_command() {
        for (foreign, here) in
            FOREIGN_COMMANDS.into_iter().filter(|(_, here)| !here.contains(" --v"))
        {
            assert_ne!(help_command(&crate::command_tree(), here), "cell --help", "{foreign}");
        }
        assert!(FOREIGN_COMMANDS.is_sorted(), "in the order of the alphabet");
    }

    #[test]
    fn slips_are_told_with_the_nearest_command() {
        let (message, _) = suggested("cell stauts hello");
        assert_eq!(message, "there is no command `stauts`; the nearest is `cell status`");
        let verb = "there is no command `greeter`; the verb comes before the name";
        check("cell greeter status", verb, "cell status greeter");
    }

    #[test]
    fn whatever_is_like_nothing_is_told_what_there_is() {
        let (message, next) = suggested("cell cron xylophone");
        let want = "there is no command `cron xylophone`; allowed: ls, run, pause, resume, rm";
        assert_eq!((message.as_str(), next.as_str()), (want, "cell cron --help"));
    }
}
