//! Errors of commands, as people read them: the cause, then what to type next.

use crate::output::print_stderr;
use crate::style;
use crate::table::wrap;
use cellwright_agent::identity::IdentityError;
use cellwright_agent::main_loop::AgentError;
use cellwright_api::client::ClientError;
use cellwright_gateway::serve::ServeError;
use cellwright_sim::convert::ConvertError;
use cellwright_sim::experiment::arrivals::ArrivalError;
use cellwright_sim::experiment::compact::CompactError;
use cellwright_sim::experiment::load::LoadError;
use cellwright_sim::experiment::pack::PackError;
use cellwright_sim::experiment::scheduler::PlanRejected;
use cellwright_sim::experiment::threads::ThreadsError;
use cellwright_sim::trace::TraceError;
use cellwright_store::OpenError;
use std::io::{self, IsTerminal};

/// Why a command failed.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    #[error("{message}")]
    Usage { message: String, next: String },
    #[error("{message}")]
    Operation { message: String, next: String },
    #[error("cannot write {what}: {source}")]
    Write { what: String, source: io::Error },
    /// The reader of our output closed it, as `head` does.
    #[error("the output was closed")]
    OutputClosed,
}

impl Failure {
    /// Prints the cause and the next step to stderr.
    pub fn print(&self) {
        let next = match self {
            Failure::Usage { next, .. } | Failure::Operation { next, .. } => next.as_str(),
            Failure::Write { .. } => "check the path and the free space, then run it again",
            Failure::OutputClosed => return,
        };
        let style = style::for_stderr();
        print_stderr(&with_label(&style.bad("error:"), "error:", &self.to_string()));
        print_stderr(&with_label(&style.strong("next:"), "next:", next));
    }

    /// Converts an error of the cell. For a change that may take effect in spite of the error,
    /// `check_command` is the command that shows whether it did.
    pub fn from_change(error: ClientError, check_command: &str) -> Failure {
        let message = match &error {
            ClientError::Api(error) => error.to_string(),
            other => other.to_string(),
        };
        let is_in_doubt = error.is_in_doubt();
        let next = match error {
            ClientError::Api(error) if is_in_doubt => {
                format!("{}; then see whether it took effect: {check_command}", error.hint)
            }
            ClientError::Api(error) => error.hint,
            ClientError::InvalidConfig(_) => {
                let next = "correct --master, or use --context with a context of that cell".into();
                return Failure::Usage { message, next };
            }
            ClientError::Unreachable { .. } => {
                "see whether a master runs there: systemctl status cell-master; for a cell of your \
                 own: cell dev (make run); for another one: cell context ls"
                    .into()
            }
            ClientError::Unknown(_) => {
                format!("look whether it took effect before you do it again: {check_command}")
            }
            ClientError::BadReply(_) => {
                "compare `cell --version` with the version in `cell master status`".into()
            }
        };
        Failure::Operation { message, next }
    }

    /// The same failure with its subject in front of the cause.
    pub fn with_context(self, subject: &str) -> Failure {
        let prefixed = |message: String| format!("{subject}: {message}");
        match self {
            Failure::Usage { message, next } => Failure::Usage { message: prefixed(message), next },
            Failure::Operation { message, next } => {
                Failure::Operation { message: prefixed(message), next }
            }
            other => other,
        }
    }

    pub fn from_error(cause: &dyn std::error::Error, next: &str) -> Failure {
        Failure::Operation { message: cause.to_string(), next: next.to_owned() }
    }
}

/// A label and its text: wrapped for a person at a terminal, on one line for programs.
/// `plain_label` is the label without its colour.
fn with_label(label: &str, plain_label: &str, text: &str) -> String {
    if io::stderr().is_terminal() {
        wrap_lines(plain_label, text).replacen(plain_label, label, 1)
    } else {
        format!("{label} {text}\n")
    }
}

/// Wraps each line of the text by itself, so that line breaks in it are kept.
fn wrap_lines(plain_label: &str, text: &str) -> String {
    let mut out = String::new();
    for (at, line) in text.lines().enumerate() {
        let indent = &line[..line.len() - line.trim_start().len()];
        let first = if at == 0 { format!("{plain_label} ") } else { indent.to_owned() };
        out.push_str(&wrap(&first, &format!("{indent}  "), line));
    }
    out
}

const REPORT_BUG: &str = "this is a fault of the program, not of your input: run the same command \
                          with -o json and report it";

/// Where to look when no better place is known.
const SEE_EVENTS: &str = "cell events";

const CHECK_TRACE_HINT: &str = "\
check the path after the colon; for a cell that is sure to work type
      cell sim pack --trace example:examples/small-cell";

impl From<LoadError> for Failure {
    fn from(error: LoadError) -> Failure {
        let message = error.to_string();
        match error {
            LoadError::Convert(error) => error.into(),
            LoadError::Rejected(plain_error) => Failure::from_error(&plain_error, REPORT_BUG),
            LoadError::NotForThisTrace { option, .. } => {
                Failure::Usage { message, next: format!("the same command without {option}") }
            }
            LoadError::Empty { .. } => {
                let next = "leave out --prod-only, or choose another trace".into();
                Failure::Operation { message, next }
            }
        }
    }
}

impl From<ConvertError> for Failure {
    fn from(error: ConvertError) -> Failure {
        let next = match &error {
            ConvertError::Trace(error) => return from_trace_error(error),
            ConvertError::Load(_) => "choose another --load or --pods",
            ConvertError::Checkpoint(_) => "take another one: cell checkpoint ls",
            ConvertError::Name(_) | ConvertError::Field { .. } => {
                "correct that field in the trace, then run it again"
            }
        };
        Failure::from_error(&error, next)
    }
}

fn from_trace_error(error: &TraceError) -> Failure {
    let usage = |next: String| Failure::Usage { message: error.to_string(), next };
    match error {
        TraceError::UnknownPodList { known, .. } => match known.first() {
            Some(first) => {
                usage(format!("one of those, or all of them: --pods {first}, --pods all"))
            }
            None => Failure::from_error(error, CHECK_TRACE_HINT),
        },
        TraceError::BeyondTrace { last_us, .. } => {
            let last = last_us / 1_000_000;
            usage(format!("a time up to that, such as --at-time {last}; without it, the start"))
        }
        TraceError::Missing { what, .. } if what.ends_with("_events") => Failure::from_error(
            error,
            "put that table there, or leave out --at-time: the start needs no event tables",
        ),
        _ => Failure::from_error(error, CHECK_TRACE_HINT),
    }
}

impl From<PackError> for Failure {
    fn from(error: PackError) -> Failure {
        match error {
            PackError::PlanRejected(error) => error.into(),
            PackError::NoSuchTask(error) => Failure::Usage {
                message: error.to_string(),
                next: "correct the name after --explain, or give a number of classes".into(),
            },
        }
    }
}

impl From<PlanRejected> for Failure {
    fn from(error: PlanRejected) -> Failure {
        Failure::from_error(&error, REPORT_BUG)
    }
}

impl From<ThreadsError> for Failure {
    fn from(error: ThreadsError) -> Failure {
        Failure::from_error(&error, "the same command with --threads 1")
    }
}

impl From<ArrivalError> for Failure {
    fn from(error: ArrivalError) -> Failure {
        match error {
            ArrivalError::Convert(error) => error.into(),
            ArrivalError::Rejected(error) => Failure::from_error(&error, REPORT_BUG),
            ArrivalError::PlanRejected(error) => error.into(),
            ArrivalError::Threads(error) => error.into(),
        }
    }
}

impl From<CompactError> for Failure {
    fn from(error: CompactError) -> Failure {
        match error {
            CompactError::Rejected(error) => Failure::from_error(&error, REPORT_BUG),
            CompactError::PlanRejected(error) => error.into(),
            CompactError::Threads(error) => error.into(),
            error @ CompactError::DoesNotFit { .. } => Failure::from_error(
                &error,
                "see which tasks they are: cell sim pack --explain 5, then raise \
                 --pending-permille",
            ),
        }
    }
}

impl From<ClientError> for Failure {
    fn from(error: ClientError) -> Failure {
        Failure::from_change(error, SEE_EVENTS)
    }
}

/// The hint for a folder that is refused because of its owner or its permissions.
const FIX_FOLDER: &str = "mend the folder as said there, or choose another data_dir; then start \
     again";

/// Whether the error message is ours and names the remedy, and does not come from the kernel.
fn names_remedy(why: &io::Error) -> bool {
    why.kind() == io::ErrorKind::PermissionDenied && why.get_ref().is_some()
}

impl From<ServeError> for Failure {
    fn from(error: ServeError) -> Failure {
        let next = match &error {
            ServeError::Dns(_) => "stop what listens there, or choose another dns_listen",
            ServeError::Listen { why, .. } if why.kind() == io::ErrorKind::AddrInUse => {
                "stop what listens there, or choose another --listen"
            }
            ServeError::Listen { .. } => "choose another address to listen on",
            ServeError::Dev(_) => "see whose the folder is that is named, then start again",
            ServeError::Identity(_)
            | ServeError::Tls(_)
            | ServeError::Store(OpenError::WrongOwner { .. }) => {
                "see whether data_dir is that of this replica; `cell master init` makes a new cell"
            }
            ServeError::Store(OpenError::Damaged { .. }) => {
                "cell master repair; where there are no peers: cell checkpoint restore"
            }
            ServeError::Store(OpenError::TooNew { .. } | OpenError::Machine { .. }) => {
                "start the build that wrote it, or a newer one"
            }
            ServeError::Disk(why) if why.kind() == io::ErrorKind::WouldBlock => {
                "stop the other process, or give this one another data_dir"
            }
            ServeError::Disk(why) if names_remedy(why) => FIX_FOLDER,
            ServeError::Store(OpenError::Disk { .. })
            | ServeError::Disk(_)
            | ServeError::Blobs(_) => {
                "see whether data_dir can be written and has room, then start again"
            }
            _ => "correct the configuration and start again",
        };
        Failure::from_error(&error, next)
    }
}

impl From<AgentError> for Failure {
    fn from(error: AgentError) -> Failure {
        let next = match &error {
            AgentError::Config(_) => "correct the configuration and start again",
            AgentError::Listen { .. } => "stop what listens there, or choose another `listen`",
            AgentError::Occupied(_) => "stop the other agent, or give this one another data_dir",
            AgentError::Folder(why) if names_remedy(why) => FIX_FOLDER,
            AgentError::Record(_)
            | AgentError::Folder(_)
            | AgentError::Io { .. }
            | AgentError::Packages(_) => {
                "see whether data_dir can be written and has room, then start again"
            }
        };
        Failure::from_error(&error, next)
    }
}

impl From<IdentityError> for Failure {
    fn from(error: IdentityError) -> Failure {
        let next = match &error {
            IdentityError::OtherName { .. } => "correct `name`, or join under this machine's name",
            _ => "join again with a new token: cell agent join",
        };
        Failure::from_error(&error, next)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cellwright_api::error::{ApiError, Code, IN_DOUBT};

    fn next(failure: impl Into<Failure>) -> String {
        match failure.into() {
            Failure::Usage { next, .. } | Failure::Operation { next, .. } => next,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn errors_are_wrapped_at_words_and_keep_the_lines_they_have() {
        let long = "word ".repeat(30);
        let text = wrap_lines("error:", &long);
        assert!(text.lines().count() == 3 && text.starts_with("error: word"), "{text}");
        assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
        assert_eq!(wrap_lines("next:", CHECK_TRACE_HINT), format!("next: {CHECK_TRACE_HINT}\n"));
    }

    #[test]
    fn only_a_damaged_log_is_to_be_repaired() {
        let damaged =
            OpenError::Damaged { file: "log/1".into(), offset: 300, what: "a wrong sum".into() };
        assert!(next(ServeError::Store(damaged)).contains("cell master repair"));
        let too_open = || io::Error::new(io::ErrorKind::PermissionDenied, "x is open: chmod 700 x");
        for next_step in [next(ServeError::Disk(too_open())), next(AgentError::Folder(too_open()))]
        {
            assert!(next_step.starts_with("mend the folder as said there"), "{next_step}");
        }
        let plain_error = next(ServeError::Disk(io::Error::from_raw_os_error(13)));
        assert!(plain_error.contains("can be written"), "{plain_error}");
        let would_block = next(ServeError::Disk(io::Error::from(io::ErrorKind::WouldBlock)));
        assert!(would_block.contains("stop the other"), "{would_block}");
        let full = next(ServeError::Disk(io::Error::from(io::ErrorKind::StorageFull)));
        assert!(full.contains("has room"), "{full}");
    }

    #[test]
    fn a_change_that_may_take_effect_names_what_tells() {
        let no_leader = || ApiError::new(Code::NoLeader, "no leader").hint("start the replicas");
        let in_doubt = || ClientError::Api(no_leader().with(IN_DOUBT, true));
        let check_command = "cell status dev/web";
        let want = "start the replicas; then see whether it took effect: cell events";
        assert_eq!(next(in_doubt()), want);
        let named = next(Failure::from_change(in_doubt(), check_command));
        assert_eq!(named, want.replace("cell events", check_command));
        // A change that certainly had no effect need not be checked.
        assert_eq!(
            next(Failure::from_change(ClientError::Api(no_leader()), check_command)),
            no_leader().hint
        );
        let lost = Failure::from_change(ClientError::Unknown("m1".into()), check_command);
        assert!(next(lost).ends_with("before you do it again: cell status dev/web"));
    }

    #[test]
    fn whoever_reaches_no_master_is_not_sent_to_one() {
        let next = next(ClientError::Unreachable { tried: 1, last: "m1: refused".into() });
        assert!(!next.contains("cell master status"), "{next}");
        assert!(next.contains("systemctl status cell-master"), "{next}");
        assert!(next.contains("cell dev") && next.contains("cell context ls"), "{next}");
    }
}
