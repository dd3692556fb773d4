//! What can go wrong, for people: the cause, then what to type next.

use crate::style;
use cellwright_sim::convert::ConvertError;
use cellwright_sim::experiment::arrivals::ArrivalError;
use cellwright_sim::experiment::compact::CompactError;
use cellwright_sim::experiment::load::LoadError;
use cellwright_sim::experiment::scheduler::PlanRefused;
use cellwright_sim::experiment::threads::ThreadsError;
use std::io;

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
        eprintln!("{} {self}", style.bad("error:"));
        eprintln!("{} {next}", style.strong("next:"));
    }

    pub fn work(cause: &dyn std::error::Error, next: &str) -> Failure {
        Failure::Work { message: cause.to_string(), next: next.to_owned() }
    }
}

const FAULT: &str = "this is a fault of the program, not of your input: run the same command with \
     -o json and report it";

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
            ConvertError::Trace(_) => LOOK_AT_TRACE,
            ConvertError::Load(_) => "choose another --load or --pods",
            ConvertError::Name(_) | ConvertError::Field { .. } => {
                "correct that field in the trace, then run it again"
            }
        };
        Failure::work(&error, next)
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
