//! What can go wrong, for people: the cause, then what to type next.

use crate::output::warn;
use crate::style;
use crate::table::wrapped;
use cellwright_agent::identity::IdentityError;
use cellwright_agent::main_loop::AgentError;
use cellwright_api::client::ClientError;
use cellwright_gateway::serve::ServeError;
use cellwright_sim::convert::ConvertError;
use cellwright_sim::experiment::arrivals::ArrivalError;
use cellwright_sim::experiment::compact::CompactError;
use cellwright_sim::experiment::load::LoadError;
use cellwright_sim::experiment::pack::PackError;
use cellwright_sim::experiment::scheduler::PlanRefused;
use cellwright_sim::experiment::threads::ThreadsError;
use cellwright_sim::trace::TraceError;
use cellwright_store::OpenError;
use std::io::{self, IsTerminal};

/// Why a command did not do its work.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    #[error("{message}")]
    Usage { message: String, next: String },
    #[error("{message}")]
    Work { message: String, next: String },
    #[error("cannot write {what}: {source}")]
    Write { what: String, source: io::Error },
    /// The reader of our output went away, as `head` does.
    #[error("the output was closed")]
    OutputClosed,
}

impl Failure {
    /// Writes cause and next step to stderr.
    pub fn show(&self) {
        let next = match self {
            Failure::Usage { next, .. } | Failure::Work { next, .. } => next.as_str(),
            Failure::Write { .. } => "check the path and the free space, then run it again",
            Failure::OutputClosed => return,
        };
        let style = style::for_stderr();
        warn(&said(&style.bad("error:"), "error:", &self.to_string()));
        warn(&said(&style.strong("next:"), "next:", next));
    }

    /// As any error of the cell; of a change that may take effect all the same, `look` is what to
    /// type to see whether it did.
    pub fn of_change(error: ClientError, look: &str) -> Failure {
        let is_open = error.is_in_doubt();
        match Failure::from(error) {
            Failure::Work { message, next } if is_open => {
                let next = next.replace(SEE_WHETHER, look);
                Failure::Work { message, next }
            }
            other => other,
        }
    }

    /// The same, with what it is about before the cause.
    pub fn about(self, what: &str) -> Failure {
        let of = |message: String| format!("{what}: {message}");
        match self {
            Failure::Usage { message, next } => Failure::Usage { message: of(message), next },
            Failure::Work { message, next } => Failure::Work { message: of(message), next },
            other => other,
        }
    }

    pub fn work(cause: &dyn std::error::Error, next: &str) -> Failure {
        Failure::Work { message: cause.to_string(), next: next.to_owned() }
    }
}

/// A word and what follows it: wrapped for a person at a terminal, on one line for whoever reads it
/// with a program. `plain` is the word without its colour.
fn said(word: &str, plain: &str, text: &str) -> String {
    match io::stderr().is_terminal() {
        true => folded(plain, text).replacen(plain, word, 1),
        false => format!("{word} {text}\n"),
    }
}

/// Each line of the text wrapped by itself; what was set out over several lines keeps them.
fn folded(plain: &str, text: &str) -> String {
    let mut out = String::new();
    for (at, line) in text.lines().enumerate() {
        let indent = &line[..line.len() - line.trim_start().len()];
        let first = if at == 0 { format!("{plain} ") } else { indent.to_owned() };
        out.push_str(&wrapped(&first, &format!("{indent}  "), line));
    }
    out
}

const FAULT: &str = "this is a fault of the program, not of your input: run the same command with \
     -o json and report it";

/// Where nothing nearer is known.
const SEE_WHETHER: &str = "cell events";

const LOOK_AT_TRACE: &str = "\
check the path after the colon; for a cell that is sure to work type
      cell sim pack --trace example:examples/small-cell";

impl From<LoadError> for Failure {
    fn from(error: LoadError) -> Failure {
        let message = error.to_string();
        match error {
            LoadError::Convert(error) => error.into(),
            LoadError::Refused(refused) => Failure::work(&refused, FAULT),
            LoadError::NotForThisTrace { option, .. } => {
                Failure::Usage { message, next: format!("the same command without {option}") }
            }
            LoadError::Empty { .. } => {
                let next = "leave out --prod-only, or choose another trace".into();
                Failure::Work { message, next }
            }
        }
    }
}

impl From<ConvertError> for Failure {
    fn from(error: ConvertError) -> Failure {
        let next = match &error {
            ConvertError::Trace(error) => return of_trace(error),
            ConvertError::Load(_) => "choose another --load or --pods",
            ConvertError::Checkpoint(_) => "take another one: cell checkpoint ls",
            ConvertError::Name(_) | ConvertError::Field { .. } => {
                "correct that field in the trace, then run it again"
            }
        };
        Failure::work(&error, next)
    }
}

fn of_trace(error: &TraceError) -> Failure {
    let usage = |next: String| Failure::Usage { message: error.to_string(), next };
    match error {
        TraceError::NoPodList { known, .. } => match known.first() {
            Some(first) => {
                usage(format!("one of those, or all of them: --pods {first}, --pods all"))
            }
            None => Failure::work(error, LOOK_AT_TRACE),
        },
        TraceError::BeyondTrace { last_us, .. } => {
            let last = last_us / 1_000_000;
            usage(format!("a time up to that, such as --at-time {last}; without it, the start"))
        }
        TraceError::Missing { what, .. } if what.ends_with("_events") => Failure::work(
            error,
            "put that table there, or leave out --at-time: the start needs no event tables",
        ),
        _ => Failure::work(error, LOOK_AT_TRACE),
    }
}

impl From<PackError> for Failure {
    fn from(error: PackError) -> Failure {
        match error {
            PackError::Plan(error) => error.into(),
            PackError::NoSuchTask(error) => Failure::Usage {
                message: error.to_string(),
                next: "correct the name after --explain, or give a number of classes".into(),
            },
        }
    }
}

impl From<PlanRefused> for Failure {
    fn from(error: PlanRefused) -> Failure {
        Failure::work(&error, FAULT)
    }
}

impl From<ThreadsError> for Failure {
    fn from(error: ThreadsError) -> Failure {
        Failure::work(&error, "the same command with --threads 1")
    }
}

impl From<ArrivalError> for Failure {
    fn from(error: ArrivalError) -> Failure {
        match error {
            ArrivalError::Convert(error) => error.into(),
            ArrivalError::Refused(error) => Failure::work(&error, FAULT),
            ArrivalError::Plan(error) => error.into(),
            ArrivalError::Threads(error) => error.into(),
        }
    }
}

impl From<CompactError> for Failure {
    fn from(error: CompactError) -> Failure {
        match error {
            CompactError::Refused(error) => Failure::work(&error, FAULT),
            CompactError::Plan(error) => error.into(),
            CompactError::Threads(error) => error.into(),
            error @ CompactError::DoesNotFit { .. } => Failure::work(
                &error,
                "see which tasks they are: cell sim pack --explain 5, then raise \
                 --pending-permille",
            ),
        }
    }
}

impl From<ClientError> for Failure {
    fn from(error: ClientError) -> Failure {
        let message = match &error {
            ClientError::Api(error) => error.to_string(),
            other => other.to_string(),
        };
        let is_open = error.is_in_doubt();
        match error {
            ClientError::Api(error) if is_open => {
                let next =
                    format!("{}; then see whether it took effect: {SEE_WHETHER}", error.hint);
                Failure::Work { message, next }
            }
            ClientError::Api(error) => Failure::Work { message, next: error.hint },
            ClientError::Settings(_) => Failure::Usage {
                message,
                next: "correct --master, or use --context with a context of that cell".into(),
            },
            ClientError::Unreachable { .. } => {
                let next = "see whether a master runs there: systemctl status cell-master; for a \
                            cell of your own: cell dev (make run); for another one: cell context \
                            ls";
                Failure::Work { message, next: next.into() }
            }
            ClientError::Unknown(_) => {
                let next =
                    format!("look whether it took effect before you do it again: {SEE_WHETHER}");
                Failure::Work { message, next }
            }
            ClientError::BadReply(_) => {
                let next = "compare `cell --version` with the version in `cell master status`";
                Failure::Work { message, next: next.into() }
            }
        }
    }
}

/// Of a folder that is refused for whose it is, or who may read it.
const MEND_FOLDER: &str = "mend the folder as said there, or choose another data_dir; then start \
     again";

/// Whether the cause is told by us, with what to do about it, and not by the kernel.
fn says_itself(why: &io::Error) -> bool {
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
            | ServeError::Store(OpenError::Foreign { .. }) => {
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
            ServeError::Disk(why) if says_itself(why) => MEND_FOLDER,
            ServeError::Store(OpenError::Disk { .. })
            | ServeError::Disk(_)
            | ServeError::Blobs(_) => {
                "see whether data_dir can be written and has room, then start again"
            }
            _ => "correct the configuration and start again",
        };
        Failure::work(&error, next)
    }
}

impl From<AgentError> for Failure {
    fn from(error: AgentError) -> Failure {
        let next = match &error {
            AgentError::Config(_) => "correct the configuration and start again",
            AgentError::Listen { .. } => "stop what listens there, or choose another `listen`",
            AgentError::Occupied(_) => "stop the other agent, or give this one another data_dir",
            AgentError::Folder(why) if says_itself(why) => MEND_FOLDER,
            AgentError::Record(_)
            | AgentError::Folder(_)
            | AgentError::Io { .. }
            | AgentError::Packages(_) => {
                "see whether data_dir can be written and has room, then start again"
            }
        };
        Failure::work(&error, next)
    }
}

impl From<IdentityError> for Failure {
    fn from(error: IdentityError) -> Failure {
        let next = match &error {
            IdentityError::OtherName { .. } => "correct `name`, or join under this machine's name",
            _ => "join again with a new token: cell agent join",
        };
        Failure::work(&error, next)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cellwright_api::error::{ApiError, Code, IN_DOUBT};

    fn next(failure: impl Into<Failure>) -> String {
        match failure.into() {
            Failure::Usage { next, .. } | Failure::Work { next, .. } => next,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn errors_are_wrapped_at_words_and_keep_the_lines_they_have() {
        let long = "word ".repeat(30);
        let text = folded("error:", &long);
        assert!(text.lines().count() == 3 && text.starts_with("error: word"), "{text}");
        assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
        assert_eq!(folded("next:", LOOK_AT_TRACE), format!("next: {LOOK_AT_TRACE}\n"));
    }

    #[test]
    fn only_a_damaged_log_is_to_be_repaired() {
        let damaged =
            OpenError::Damaged { file: "log/1".into(), offset: 300, what: "a wrong sum".into() };
        assert!(next(ServeError::Store(damaged)).contains("cell master repair"));
        let open = || io::Error::new(io::ErrorKind::PermissionDenied, "x is open: chmod 700 x");
        for said in [next(ServeError::Disk(open())), next(AgentError::Folder(open()))] {
            assert!(said.starts_with("mend the folder as said there"), "{said}");
        }
        let refused = next(ServeError::Disk(io::Error::from_raw_os_error(13)));
        assert!(refused.contains("can be written"), "{refused}");
        let busy = next(ServeError::Disk(io::Error::from(io::ErrorKind::WouldBlock)));
        assert!(busy.contains("stop the other"), "{busy}");
        let full = next(ServeError::Disk(io::Error::from(io::ErrorKind::StorageFull)));
        assert!(full.contains("has room"), "{full}");
    }

    #[test]
    fn a_change_that_may_take_effect_names_what_tells() {
        let refused = || ApiError::new(Code::NoLeader, "no leader").hint("start the replicas");
        let in_doubt = || ClientError::Api(refused().with(IN_DOUBT, true));
        let look = "cell status dev/web";
        let want = "start the replicas; then see whether it took effect: cell events";
        assert_eq!(next(in_doubt()), want);
        let named = next(Failure::of_change(in_doubt(), look));
        assert_eq!(named, want.replace("cell events", look));
        // What certainly had no effect is not to be looked for.
        assert_eq!(next(Failure::of_change(ClientError::Api(refused()), look)), refused().hint);
        let lost = Failure::of_change(ClientError::Unknown("m1".into()), look);
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
