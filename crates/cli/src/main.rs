//! The `cell` binary, the command-line interface: arguments in, tables or JSON out. Shared options
//! are in [`args`], each verb is one file under [`commands`]; the work itself is done by the
//! libraries.

mod args;
mod clock;
mod command_line;
mod commands;
mod connection;
mod examples;
mod failure;
mod format;
mod output;
mod progress;
mod runtime;
mod sanitize;
mod style;
mod suggestions;
mod table;
mod token_input;
mod watch;

use cellwright_agent::session;
use cellwright_agent::shim;
use clap::{ArgMatches, CommandFactory, FromArgMatches, Parser};
use commands::Success;
use failure::Failure;
use rustix::process::{Resource, Rlimit, setrlimit};
use std::ffi::OsString;
use std::process::ExitCode;

const EXAMPLES: &str = "\
Examples:
  cell dev
  cell --master 127.0.0.1:7070 run examples/hello.json
  cell status
  cell status hello
  cell logs dev/hello -f
  cell sim pack --trace example:examples/small-cell
  cell sim whatif --trace example:examples/small-cell \\
    --job cpu=8,ram=32GiB,count=20
  cell sim pack --help

Exit codes: 0 done, 1 error, 2 wrong usage, 3 the job does not fit.";

/// Manage a cell: a set of machines as one.
#[derive(Debug, Parser)]
#[command(name = "cell", version, arg_required_else_help = true, subcommand_required = true)]
#[command(after_help = EXAMPLES, max_term_width = table::WIDTH)]
struct Cli {
    #[command(flatten)]
    connection: connection::ConnectionArgs,

    /// No colours, also on a terminal; the same as NO_COLOR=1
    #[arg(long, global = true)]
    no_color: bool,

    #[command(subcommand)]
    command: commands::Command,
}

/// The only place where exit codes are decided, except wrong usage (2), which clap decides.
fn main() -> ExitCode {
    disable_core_dumps();
    // Before anything else: every task has a shim process, and each must stay small.
    if let Some(code) = run_internal_role() {
        return code;
    }
    match parse_and_run() {
        Ok(Success::Done) => ExitCode::SUCCESS,
        Ok(Success::DoesNotFit) => ExitCode::from(3),
        Ok(Success::WouldChange) => ExitCode::from(4),
        Ok(Success::ExitWith(code)) => ExitCode::from(code),
        Ok(Success::NoLeader) => ExitCode::from(1),
        // The reader of our output has closed it and needs no more.
        Err(Failure::OutputClosed) => ExitCode::SUCCESS,
        Err(failure @ Failure::Usage { .. }) => {
            failure.print();
            ExitCode::from(2)
        }
        Err(failure) => {
            failure.print();
            ExitCode::from(1)
        }
    }
}

/// The memory of masters, agents, schedulers and clients holds keys, tokens and secrets; a crash
/// must not write them to a file. Child processes inherit the limit.
fn disable_core_dumps() {
    let no_core = Rlimit { current: Some(0), maximum: Some(0) };
    // Lowering one's own limit is always permitted.
    let _never = setrlimit(Resource::Core, no_core);
}

/// All commands, with their examples.
fn command_tree() -> clap::Command {
    examples::add_examples(Cli::command())
}

/// The arguments as typed, except that `cell help --help` becomes `cell --help`.
fn command_line_args() -> Vec<OsString> {
    let mut args: Vec<OsString> = std::env::args_os().collect();
    if let [_, help, flag] = &args[..]
        && help == "help"
        && (flag == "--help" || flag == "-h")
    {
        args.remove(1);
    }
    args
}

fn parse_and_run() -> Result<Success, Failure> {
    let mut command = command_tree();
    let output_format = std::env::var(output::OUTPUT_ENV).unwrap_or_default();
    if !output_format.is_empty() {
        command = output::with_default_format(command, &output_format)?;
    }
    // Clap prints its own usage errors and exits with code 2; for unknown commands we suggest
    // others.
    let args = command_line_args();
    token_input::reject_tokens_in_args(&args)?;
    let matches = match command.try_get_matches_from_mut(args) {
        Ok(matches) => matches,
        Err(error) => match suggestions::suggest(&command, &error) {
            Some(failure) => return Err(failure),
            None => error.exit(),
        },
    };
    output::choose_format(&matches);
    style::allow_colours(!matches.get_flag("no_color"));
    if is_watched(&matches) { watch::run_repeatedly(|| run(&matches)) } else { run(&matches) }
}

fn run(matches: &ArgMatches) -> Result<Success, Failure> {
    // Clap prints its own usage errors and exits with code 2.
    let Cli { connection, no_color: _, command } =
        Cli::from_arg_matches(matches).unwrap_or_else(|error| error.exit());
    command.run(&connection)
}

/// Whether the innermost command was given `--watch`.
fn is_watched(matches: &ArgMatches) -> bool {
    match matches.subcommand() {
        Some((_, inner)) => is_watched(inner),
        None => matches.try_get_one::<bool>("watch").ok().flatten().copied().unwrap_or(false),
    }
}

/// Runs the internal roles of this binary: the shim, where `cell-shim` is not installed; session
/// processes, which only agents start; and the evaluator of job files, which only commands that
/// read job files start.
fn run_internal_role() -> Option<ExitCode> {
    let internal_args: Vec<OsString> = std::env::args_os().skip(1).collect();
    match &internal_args[..] {
        [verb, ..] if verb == shim::VERB => shim::dispatch(&internal_args),
        [verb] if verb == session::HELPER_VERB => Some(session::helper::run()),
        [verb] if verb == cellwright_lang::CHILD_COMMAND => Some(cellwright_lang::run_child()),
        [verb, internal_args @ ..] if verb == session::LEADER_VERB => {
            Some(session::leader::run(internal_args))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Command;

    /// All commands, by the words that are typed for each.
    fn commands() -> Vec<(String, Command)> {
        fn add(command: &Command, command_path: &str, found: &mut Vec<(String, Command)>) {
            found.push((command_path.to_owned(), command.clone()));
            for inner in command.get_subcommands().filter(|inner| inner.get_name() != "help") {
                add(inner, &format!("{command_path} {}", inner.get_name()), found);
            }
        }
        let mut root = command_tree();
        root.build();
        let mut found = Vec::new();
        add(&root, "cell", &mut found);
        found
    }

    /// Whether a help text is not empty and ends without a full stop, as all of them do.
    fn is_documented(text: &str) -> bool {
        !text.trim().is_empty() && (!text.ends_with('.') || text.ends_with("..."))
    }

    #[test]
    fn every_command_and_every_argument_says_what_it_is_for() {
        let mut undocumented = Vec::new();
        for (command_path, command) in commands() {
            let about = command.get_about().map(ToString::to_string).unwrap_or_default();
            if !is_documented(&about) {
                undocumented.push(format!("{command_path}: {about:?}"));
            }
            for arg in command.get_arguments().filter(|arg| !arg.is_hide_set()) {
                let help = arg.get_help().map(ToString::to_string).unwrap_or_default();
                if !is_documented(&help) {
                    undocumented.push(format!("{command_path} {}: {help:?}", arg.get_id()));
                }
            }
        }
        assert!(undocumented.is_empty(), "{undocumented:#?}");
    }

    #[test]
    fn no_help_is_wider_than_a_terminal() {
        let mut wide = Vec::new();
        for (command_path, mut command) in commands() {
            for text in [command.render_help(), command.render_long_help()] {
                let text = text.to_string();
                let lines = text.lines().filter(|line| line.chars().count() > table::WIDTH);
                wide.extend(lines.map(|line| format!("{command_path}: {line}")));
            }
        }
        assert!(wide.is_empty(), "{wide:#?}");
    }
}
