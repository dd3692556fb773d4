//! API errors: a stable code for programs, a message for people, a hint what to do next, and
//! details as data.
//!
//! One structure for every layer (parsing, admission, consensus), so that a client handles errors
//! in one place. Rejected: problem documents with a URI per error. Nobody follows those URIs, and a
//! short word is easier to match on, to grep for and to say aloud.

mod unavailable;

use cellwright_cell::bounds::BoundKind;
use cellwright_cell::name::{JobKey, Name};
use cellwright_cell::reason::{Conflict, Rejection};
use cellwright_cell::time::Span;
use cellwright_cell::words;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fmt;

macro_rules! codes {
    ($($(#[$doc:meta])* $name:ident = ($text:literal, $status:literal, $hint:literal);)*) => {
        /// Stable error codes.
        #[derive(
            Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
            JsonSchema,
        )]
        pub enum Code {
            $($(#[$doc])* #[serde(rename = $text)] $name,)*
        }

        impl Code {
            pub const ALL: &'static [Code] = &[$(Code::$name),*];

            #[must_use]
            pub fn as_str(self) -> &'static str {
                match self { $(Code::$name => $text,)* }
            }

            /// The HTTP status of the code.
            #[must_use]
            pub fn status(self) -> u16 {
                match self { $(Code::$name => $status,)* }
            }

            /// The default hint, where nothing better is known.
            #[must_use]
            pub fn hint(self) -> &'static str {
                match self { $(Code::$name => $hint,)* }
            }
        }
    };
}

codes! {
    /// The body is not JSON, or does not match the schema in the document.
    BadBody = ("bad-body", 400, "see the request schema in /v1/openapi.json");
    /// A query, path or header parameter is unknown or not valid.
    BadParameter = ("bad-parameter", 400, "see the parameters in /v1/openapi.json");
    /// A field of the request is out of its range.
    BadField = ("bad-field", 400, "correct that field and send it again");
    /// The SQL is wrong, or asks for more than reading.
    BadSql = ("bad-sql", 400, "see the tables: cell sql --tables");
    Unauthenticated = ("unauthenticated", 401, "send a user token or a client certificate");
    BadToken = ("bad-token", 401, "ask for a new token");
    NotAllowed = ("not-allowed", 403, "ask a user with manage_users: cell user grant");
    NotOwner = ("not-owner", 403, "ask the owner, or a user with administrate_jobs");
    /// The caller is authenticated, but is not of the kind that may do this.
    WrongActor = ("wrong-actor", 403, "the message says whose this is");
    ForeignNamespace = ("foreign-namespace", 403, "choose a namespace of your own");
    NoSuchRoute = ("no-such-route", 404, "see the paths in /v1/openapi.json");
    NoSuchUser = ("no-such-user", 404, "list the users: cell user ls");
    NoSuchJob = ("no-such-job", 404, "list the jobs: cell job status");
    NoSuchTask = ("no-such-task", 404, "list the tasks of the job: cell job status USER/JOB");
    NoSuchMachine = ("no-such-machine", 404, "list the machines: cell machine ls");
    NoSuchResource = ("no-such-resource", 404, "list the resources: GET /v1/resources");
    NoSuchCron = ("no-such-cron", 404, "list the crons: cell cron ls");
    NoSuchToken = ("no-such-token", 404, "list the tokens: cell token ls");
    NoSuchBlob = ("no-such-package", 404, "list the packages: cell package ls");
    /// The object is not in the archive.
    NotArchived = ("not-archived", 404, "list what is there: cell archive ls jobs");
    NoSuchReplica = ("no-such-replica", 404, "list the masters: cell master status");
    NoSuchRow = ("no-such-row", 404, "it may have ended meanwhile; read again");
    MethodNotAllowed = ("method-not-allowed", 405, "see the methods of the path in details");
    Exists = ("exists", 409, "choose another name, or change what is there: cell run FILE");
    QuotaExceeded = ("quota-exceeded", 409, "ask for less, or for more: cell quota set");
    QuotaOversold = ("quota-oversold", 409, "grant less, or add machines");
    WrongState = ("wrong-state", 409, "see how it stands: cell status");
    BudgetExhausted = ("budget-exhausted", 409, "wait until tasks of the job are up again");
    DoesNotFit = ("does-not-fit", 409, "read the state again and choose another place");
    TooFewNodes = ("too-few-nodes", 409, "ask for fewer nodes or for less on each");
    /// The body stalled, or arrived too slowly.
    SlowBody = ("slow-body", 408, "send it again, without pauses");
    /// A user has as many of something as one user may have.
    TooMany = ("too-many", 409, "remove some first, or ask whoever runs the masters for more");
    /// Events that old are no longer kept.
    Gone = ("gone", 410, "start again without a cursor");
    /// The object is not at the version the client expected.
    StaleVersion = ("stale-version", 412, "read the object again and decide anew");
    TooLarge = ("too-large", 413, "send less in one request");
    /// Needs an upgraded connection, and was requested without an upgrade.
    UpgradeRequired = ("upgrade-required", 426, "use `cell exec`, or send the headers in details");
    UnsupportedMediaType = ("unsupported-media-type", 415, "send content-type: application/json");
    /// This replica does not lead, and knows who does.
    NotLeader = ("not-leader", 307, "send the request to the leader named in details");
    /// An idempotency key was used before for something else.
    KeyReused = ("key-reused", 422, "take a new idempotency key for a new request");
    KeyTooOld = ("key-too-old", 422, "read the object and send its version instead");
    /// The masters of the cell were given no place for an archive.
    NoArchive = ("no-archive", 409, "set `archive` in the configuration of the masters");
    /// The query took longer than a query may.
    SlowSql = ("slow-sql", 422, "ask for fewer days, or ask the daily sums");
    /// This client sends more than its share.
    Overloaded = ("overloaded", 429, "send again after retry_after_ms");
    Internal = ("internal", 500, "this is a bug; the master's log says more");
    /// The agent of the machine does not answer.
    AgentSilent = ("agent-silent", 502, "see whether its agent runs: cell machine show MACHINE");
    /// The store of the archive does not answer, or refuses.
    ArchiveAway = ("archive-away", 502, "see what is wrong: cell archive status");
    /// The caller speaks no version of messages between parts that is spoken here.
    OtherWire = ("other-wire", 505, "upgrade masters first, one release at a time, then the rest");
    NoLeader = ("no-leader", 503, "an election is under way; send again after retry_after_ms");
    NoQuorum = ("no-quorum", 503, "too few replicas answer; check them");
    ShuttingDown = ("shutting-down", 503, "send the request to another replica");
    NotReady = ("not-ready", 503, "the replica is still catching up");
    /// It may or may not have taken effect.
    TimedOut = ("timed-out", 504, "send again with the same idempotency key");
    DiskFull = ("disk-full", 507, "free space on the master's disk; reads still work");
    Full = ("full", 507, "the cell holds as many as it can; remove some");
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Details of an error, by name.
pub type Details = BTreeMap<String, Value>;

/// Hint for an error of a dev cell (`cell dev`), which has no users.
pub const DEV_ACCOUNT_HINT: &str =
    "run it as the account that started the cell, or as root; a cell of your own: cell dev";

/// Key in the details: true if the replica that answers was removed from its cell.
pub const REMOVED: &str = "removed";

/// Key in the details, set by the client: true if a change was not acknowledged and may take effect
/// all the same, as when a leader had it in its log before it lost its majority.
pub const IN_DOUBT: &str = "in_doubt";

/// Key in the details: the job that is stopping. Once it has stopped the same request may be
/// admitted.
pub const STOPPING_JOB: &str = "stopping_job";

/// The body of every reply with an error.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema, thiserror::Error)]
#[error("{message} ({code})")]
pub struct ApiError {
    pub code: Code,
    /// What happened, in a sentence.
    pub message: String,
    /// What to do next.
    pub hint: String,
    /// The details: which field, which value, what is allowed, which version was found.
    pub details: Details,
}

impl ApiError {
    #[must_use]
    pub fn new(code: Code, message: impl Into<String>) -> ApiError {
        ApiError {
            code,
            message: message.into(),
            hint: code.hint().into(),
            details: Details::new(),
        }
    }

    #[must_use]
    pub fn with(mut self, name: &str, value: impl Into<Value>) -> ApiError {
        self.details.insert(name.into(), value.into());
        self
    }

    #[must_use]
    pub fn hint(mut self, hint: impl Into<String>) -> ApiError {
        self.hint = hint.into();
        self
    }

    /// A query, path or header parameter that is not valid.
    #[must_use]
    pub fn parameter(name: &str, value: &str, allowed: &str) -> ApiError {
        // A value can be as long as a request; an error is read by a person.
        let value: String = value.chars().take(200).collect();
        let message = format!("parameter {name}: value {value:?} is not valid; allowed: {allowed}");
        let error = ApiError::new(Code::BadParameter, message)
            .with("parameter", name)
            .with("value", value)
            .with("allowed", allowed);
        match name {
            "selector" => error.hint("labels, as in -l team=search,tier!=web,gpu,'!spot'"),
            _ => error,
        }
    }

    /// A field of a body that is not valid.
    #[must_use]
    pub fn field(name: &str, value: &str, allowed: &str) -> ApiError {
        let message = words::bad_field(name, value, allowed);
        ApiError::new(Code::BadField, message)
            .with("field", name)
            .with("value", value)
            .with("allowed", allowed)
    }

    /// How long to wait before the next attempt, if the server said so.
    #[must_use]
    pub fn retry_after(&self) -> Option<Span> {
        self.details.get("retry_after_ms").and_then(Value::as_u64).map(Span)
    }

    #[must_use]
    pub fn with_retry_after(self, after: Span) -> ApiError {
        self.with("retry_after_ms", after.0)
    }

    /// The job that has to stop before the same request can be admitted, if that is the obstacle.
    #[must_use]
    pub fn stopping_job(&self) -> Option<JobKey> {
        let (user, job) = self.details.get(STOPPING_JOB)?.as_str()?.split_once('/')?;
        Some(JobKey { user: Name::new(user).ok()?, job: Name::new(job).ok()? })
    }

    /// The address of the leader, if the server knew it.
    #[must_use]
    pub fn leader(&self) -> Option<&str> {
        self.details.get("leader").and_then(Value::as_str)
    }
}

/// The code alone, for metrics and batch verdicts.
#[must_use]
pub fn code_of(rejection: &Rejection) -> Code {
    use Rejection as R;
    match rejection {
        R::NotAllowed { .. } => Code::NotAllowed,
        R::NotOwner { .. } => Code::NotOwner,
        R::BadField { .. } | R::BadLevel { .. } => Code::BadField,
        R::NoSuchUser(_) => Code::NoSuchUser,
        R::NoSuchJob(_) => Code::NoSuchJob,
        R::NoSuchMachine(_) => Code::NoSuchMachine,
        R::NoSuchResource(_) => Code::NoSuchResource,
        R::NoSuchRow(_) | R::NoSuchTask { .. } => Code::NoSuchRow,
        R::NoSuchCron(_) => Code::NoSuchCron,
        R::NoSuchToken(_) => Code::NoSuchToken,
        R::BadToken { .. } => Code::BadToken,
        R::NoSuchBlob(_) => Code::NoSuchBlob,
        R::Exists(_) => Code::Exists,
        R::QuotaExceeded { .. } => Code::QuotaExceeded,
        R::QuotaOversold(_) => Code::QuotaOversold,
        R::StaleVersion { .. } | R::StaleAttempt { .. } | R::StaleIncarnation { .. } => {
            Code::StaleVersion
        }
        R::WrongState(_) | R::WrongTaskState { .. } | R::TooEarly { .. } => Code::WrongState,
        R::HoldsTasks { .. } | R::JobStopping(_) => Code::WrongState,
        R::PackageQuota { .. } => Code::QuotaExceeded,
        R::DoesNotFit { .. } | R::MayNotPreempt { .. } | R::NeedlessVictim(_) => Code::DoesNotFit,
        R::BudgetExhausted { .. } | R::DisruptedTooOften { .. } => Code::BudgetExhausted,
        R::PartialGang { .. } => Code::DoesNotFit,
        R::RequestIdReused => Code::KeyReused,
        R::RequestTooOld => Code::KeyTooOld,
        R::Full(_) => Code::Full,
        R::WrongActor { .. } => Code::WrongActor,
        R::ForeignNamespace { .. } => Code::ForeignNamespace,
        R::OverBound { .. } => Code::TooMany,
        R::TooFewNodes { .. } => Code::TooFewNodes,
    }
}

/// Details that a program wants to read without knowing every rejection; the whole rejection is
/// included as well.
fn details_of(rejection: &Rejection) -> Vec<(&'static str, Value)> {
    match rejection {
        Rejection::BadField { field, value, allowed } => vec![
            ("field", json!(field.to_string())),
            ("value", json!(value.to_string())),
            ("allowed", json!(allowed.to_string())),
        ],
        Rejection::StaleVersion { object, expected, found } => vec![
            ("object", json!(object.to_string())),
            ("expected", json!(expected)),
            ("found", json!(found)),
        ],
        Rejection::QuotaExceeded { shortfall, .. } | Rejection::QuotaOversold(shortfall) => vec![
            ("dimension", json!(shortfall.dimension)),
            ("requested", json!(shortfall.requested)),
            ("available", json!(shortfall.available)),
        ],
        Rejection::NotAllowed { capability, .. } => vec![("capability", json!(capability))],
        Rejection::HoldsTasks { tasks, .. } => vec![("tasks", json!(tasks))],
        Rejection::JobStopping(job) => vec![(STOPPING_JOB, json!(job.to_string()))],
        Rejection::PackageQuota { used, more, limit, .. } => {
            vec![("used", json!(used)), ("more", json!(more)), ("limit", json!(limit))]
        }
        Rejection::OverBound { what, held, requested, most, .. } => vec![
            ("has", json!(held)),
            ("requested", json!(requested)),
            ("limit", json!(most)),
            ("setting", json!(what.config_key())),
        ],
        Rejection::TooFewNodes { matching, requested } => {
            vec![("matching", json!(matching)), ("requested", json!(requested))]
        }
        _ => vec![],
    }
}

/// The next command to type, where it depends on more than the code.
fn hint_of(rejection: &Rejection) -> Option<String> {
    match rejection {
        Rejection::HoldsTasks { machine, tasks } => {
            let them = if *tasks == 1 { "it" } else { "them" };
            Some(format!(
                "move {them} away first: cell drain {machine} --wait; or end {them}: \
                 cell machine rm {machine} --force"
            ))
        }
        Rejection::PackageQuota { user, .. } => {
            let key = match user {
                Some(_) => "package_quota_user",
                None => "package_quota_cell",
            };
            Some(format!(
                "remove packages that no job needs: cell package ls, cell package rm DIGEST; or \
                 have {key} raised in the masters' configuration"
            ))
        }
        Rejection::WrongState(conflict) => hint_of_conflict(conflict),
        Rejection::JobStopping(job) => {
            Some(format!("wait until it is over, then do it again: cell wait {job}"))
        }
        _ => None,
    }
}

fn hint_of_conflict(conflict: &Conflict) -> Option<String> {
    Some(match conflict {
        Conflict::NoUpdate(job) => format!("see what it runs: cell status {job}"),
        Conflict::UpdateOpen(job) => format!(
            "see how far it is: cell update {job}; keep it: cell update close {job}; \
             or go back: cell update undo {job}"
        ),
        Conflict::CanariesTry(job) => {
            format!("see them: cell update {job}; give it to all: cell update promote {job}")
        }
        Conflict::RolledBack { job, version } => format!(
            "see why: cell events {job}; change the file, or try it again: \
             cell job revert {job} {version}"
        ),
        Conflict::UpdateGoesOn { job, .. } => {
            format!("see it go on: cell update {job} --watch; or go back: cell update undo {job}")
        }
        Conflict::UserHas { user, what: BoundKind::Jobs, .. } => {
            format!("stop them: cell job status --user {user}, cell stop JOB; then again")
        }
        Conflict::UserHas { what: BoundKind::Crons, .. } => {
            "take them away first: cell cron ls, cell cron rm USER/CRON".into()
        }
        _ => return None,
    })
}

impl From<&Rejection> for ApiError {
    fn from(rejection: &Rejection) -> ApiError {
        let mut error = ApiError::new(code_of(rejection), rejection.to_string());
        for (name, value) in details_of(rejection) {
            error = error.with(name, value);
        }
        if let Some(hint) = hint_of(rejection) {
            error = error.hint(hint);
        }
        match serde_json::to_value(rejection) {
            Ok(value) => error.with("refusal", value),
            Err(_) => error,
        }
    }
}

impl From<Rejection> for ApiError {
    fn from(rejection: Rejection) -> ApiError {
        ApiError::from(&rejection)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cellwright_cell::reason::Object;
    use std::collections::BTreeSet;

    #[test]
    fn codes_are_distinct_kebab_words_with_a_status_and_a_hint() {
        let texts: BTreeSet<&str> = Code::ALL.iter().map(|code| code.as_str()).collect();
        assert_eq!(texts.len(), Code::ALL.len());
        for code in Code::ALL {
            let kebab = |c: char| c.is_ascii_lowercase() || c == '-';
            assert!(code.as_str().chars().all(kebab), "{code}");
            assert!((300..600).contains(&code.status()), "{code}");
            assert!(!code.hint().is_empty(), "{code}");
            assert_eq!(serde_json::to_value(code).unwrap(), json!(code.as_str()));
        }
    }

    #[test]
    fn a_bad_field_is_named_with_its_value_and_what_is_allowed() {
        let error = ApiError::field("count", "0", "1 to 10");
        assert_eq!((error.code, error.code.status()), (Code::BadField, 400));
        assert_eq!(error.details["field"], "count");
        assert_eq!(error.details["value"], "0");
        assert_eq!(error.details["allowed"], "1 to 10");
        assert!(error.message.contains("count") && error.message.contains("1 to 10"));
    }

    #[test]
    fn a_machine_that_holds_tasks_is_said_with_what_to_type() {
        let machine = cellwright_cell::name::Name::new("m1").unwrap();
        let error = ApiError::from(Rejection::HoldsTasks { machine, tasks: 2 });
        assert_eq!((error.code, &error.details["tasks"]), (Code::WrongState, &json!(2)));
        assert!(error.hint.contains("cell drain m1 --wait; or end them"), "{}", error.hint);
    }

    #[test]
    fn a_job_that_is_stopping_is_to_be_waited_for() {
        let name = |text: &str| Name::new(text).unwrap();
        let job = JobKey { user: name("dev"), job: name("hello") };
        let error = ApiError::from(Rejection::JobStopping(job.clone()));
        assert!(error.hint.ends_with("do it again: cell wait dev/hello"), "{}", error.hint);
        assert_eq!((error.code, error.stopping_job()), (Code::WrongState, Some(job.clone())));
        let dead = ApiError::from(Rejection::WrongState(Conflict::JobDead(job)));
        assert_eq!((dead.hint.as_str(), dead.stopping_job()), (Code::WrongState.hint(), None));
    }

    #[test]
    fn who_has_jobs_is_removed_after_them() {
        let hint = |what| {
            let user = Name::new("ann").unwrap();
            let has = Conflict::UserHas { user, what, held: 1 };
            ApiError::from(Rejection::WrongState(has)).hint
        };
        let stop = "stop them: cell job status --user ann, cell stop JOB; then again";
        assert_eq!(hint(BoundKind::Jobs), stop);
        assert!(hint(BoundKind::Crons).contains("cell cron rm USER/CRON"));
        assert_eq!(hint(BoundKind::Resources), Code::WrongState.hint());
    }

    #[test]
    fn a_wrong_selector_is_answered_with_a_right_one() {
        let error = ApiError::parameter("selector", "team in (a)", "terms a=b");
        assert!(error.hint.contains("-l team=search,tier!=web"), "{}", error.hint);
        assert_eq!(ApiError::parameter("limit", "x", "1").hint, Code::BadParameter.hint());
    }

    #[test]
    fn an_error_survives_the_wire() {
        let object = Object::User(Name::new("ann").unwrap());
        let stale = Rejection::StaleVersion { object, expected: 1, found: 2 };
        let error = ApiError::from(&stale).with_retry_after(Span(250));
        let text = serde_json::to_string(&error).unwrap();
        let back: ApiError = serde_json::from_str(&text).unwrap();
        assert_eq!(back, error);
        assert_eq!(back.retry_after(), Some(Span(250)));
        assert_eq!(back.details["found"], 2);
    }
}
