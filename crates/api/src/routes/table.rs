//! The route table, in the order of the document: the building blocks of rows are here, the rows
//! are in one file for each kind of object.

mod archive;
mod jobs;
mod machines;
mod records;
mod users;

use super::{
    Access, Content, Method, Operation as O, Parameter, ParameterType, Route, RouteKind, schema,
};
use crate::error::Code as C;
use crate::exec::MAX_COMMAND;
use crate::output::OutputPiece;
use crate::types::{
    AddJoinToken, AddMaster, AddUser, AddUserToken, Alarms, Applied, ArchiveStatus, ArchivedDay,
    ArchivedJob, ArchivedJobRow, ArchivedLogRow, AuditView, Batch, BatchAnswer, BlobView, Changed,
    CheckpointView, ClusterStatus, ConfirmMaster, CronView, EventPage, EventView, ExplanationView,
    FoundView, JobExplanation, JobRow, JobVersions, JobView, MachinePackages, MachineView,
    MasterStatus, NameView, NewToken, One, Overview, Page, PartRevocation, PlanJobs, PlanView,
    ResourceView, RestoreHistory, RestoredHistory, RevertJob, ScaleView, SetCapabilities,
    SetResource, SetScaleMode, ShapesQuery, ShapesView, SqlAnswer, SqlQuery, SubmitJob, TaskView,
    TokenView, UserView, VersionDiff,
};
use cellwright_cell::admit::MAX_SPAN;
use cellwright_cell::cron::CronSpec;
use cellwright_cell::job_size::JobSize;
use cellwright_cell::machine::MachineSpec;
use cellwright_cell::quota::Capability as P;
use cellwright_cell::quota::Quota;
use cellwright_cell::spec::JobSpec;

const AFTER: Parameter = Parameter {
    name: "after",
    about: "The `next` of the page before.",
    value_type: ParameterType::Text(64),
};
const LIMIT: Parameter = Parameter {
    name: "limit",
    about: "Most items of the page. Left out: 100.",
    value_type: ParameterType::Integer { min: 1, max: super::PAGE_MAX as u64 },
};
const SELECTOR: Parameter = Parameter {
    name: "selector",
    about: "Label query: terms `a=b`, `a!=b`, `a` (has it) and `!a` (has it not), separated by \
            commas; all must hold.",
    value_type: ParameterType::Text(4096),
};
const USER: Parameter =
    Parameter { name: "user", about: "Only of this user.", value_type: ParameterType::Name };
const JOB_STATE: Parameter = Parameter {
    name: "state",
    about: "Only jobs in this state; `live` is all but dead, `waiting` those with pending tasks.",
    value_type: ParameterType::OneOf(&[
        "deferred", "active", "stopping", "dead", "live", "waiting",
    ]),
};
const TASK_STATE: Parameter = Parameter {
    name: "state",
    about: "Only tasks in this state.",
    value_type: ParameterType::OneOf(&[
        "deferred", "pending", "assigned", "running", "stopping", "dead",
    ]),
};
const MACHINE_STATUS: Parameter = Parameter {
    name: "status",
    about: "Only machines that are so.",
    value_type: ParameterType::OneOf(&["up", "down", "draining"]),
};
const SUMMARY: Parameter = Parameter {
    name: "summary",
    about: "True: sums only, no nodes.",
    value_type: ParameterType::Boolean,
};
const FORCE: Parameter = Parameter {
    name: "force",
    about: "True: also while tasks are on it; they end at once.",
    value_type: ParameterType::Boolean,
};
const NOTICE: Parameter = Parameter {
    name: "notice",
    about: "Longest notice in milliseconds, from now; also of tasks that are stopping already. 0: \
            they are killed at once. Left out: the notice of the job.",
    value_type: ParameterType::Integer { min: 0, max: MAX_SPAN.0 },
};
const WITHIN: Parameter = Parameter {
    name: "within",
    about: "Milliseconds after which tasks that are still there end at once, whatever the jobs' \
            budgets and notices. 0: now. Left out: these hold for as long as it takes.",
    value_type: ParameterType::Integer { min: 0, max: MAX_SPAN.0 },
};
const DRY_RUN: Parameter = Parameter {
    name: "dry_run",
    about: "True: say what would be done, and with which differences; nothing changes.",
    value_type: ParameterType::Boolean,
};
const VERSION: Parameter = Parameter {
    name: "version",
    about: "Which version. Left out: the job's version now.",
    value_type: ParameterType::Integer { min: 1, max: u32::MAX as u64 },
};
const AGAINST: Parameter = Parameter {
    name: "against",
    about: "The version to compare it with. Left out: the one before it.",
    value_type: ParameterType::Integer { min: 1, max: u32::MAX as u64 },
};
const AGAIN: Parameter = Parameter {
    name: "again",
    about: "True: run a batch job again that has ended with this very spec. Otherwise it stays so.",
    value_type: ParameterType::Boolean,
};
const FIND_NAME: Parameter = Parameter {
    name: "name",
    about: "A name, or how it begins: web, ann/web, ann/web/3, m1; or last: the caller's job that \
            was submitted last.",
    value_type: ParameterType::Text(200),
};
const NEAR: Parameter = Parameter {
    name: "near",
    about: "True: where nothing is called so or begins so, what has a name near it, if any has.",
    value_type: ParameterType::Boolean,
};
const AFTER_EVENT: Parameter = Parameter {
    name: "after",
    about: "A cursor, or a log index: only what followed. Left out: from the oldest kept.",
    value_type: ParameterType::Text(64),
};
const WATCH_AFTER: Parameter = Parameter {
    name: "after",
    about: "The id of the last event seen, as in Last-Event-ID. Left out: from now on.",
    value_type: ParameterType::Text(64),
};
const WATCH_JOBS_AFTER: Parameter = Parameter {
    name: "after",
    about: "The id of the last event seen, as in Last-Event-ID. Left out: all jobs as they are, \
            then what changes.",
    value_type: ParameterType::Text(64),
};

const STREAM: Parameter = Parameter {
    name: "stream",
    about: "Which of the program's two, or both in order of time, as `parts`. Left out: stdout.",
    value_type: ParameterType::OneOf(&["stdout", "stderr", "all"]),
};
const SINCE: Parameter = Parameter {
    name: "since",
    about: "Nothing written before this time, in milliseconds since 1970. Left out: see `lines`.",
    value_type: ParameterType::Integer { min: 0, max: u64::MAX },
};
const PARTS: Parameter = Parameter {
    name: "parts",
    about: "The answer has `parts`, each with its stream and time, in place of `text`.",
    value_type: ParameterType::Boolean,
};
const ATTEMPT: Parameter = Parameter {
    name: "attempt",
    about: "Which placement of the task. Left out: the newest.",
    value_type: ParameterType::Integer { min: 1, max: u32::MAX as u64 },
};
const FROM: Parameter = Parameter {
    name: "from",
    about: "The `next` of the piece before, of the same attempt; `0-0` is the beginning. Left out: \
            near the end, see `lines` and `tail`.",
    value_type: ParameterType::Text(96),
};
const LINES: Parameter = Parameter {
    name: "lines",
    about: "How many lines before the end to begin. Left out: see `tail`.",
    value_type: ParameterType::Integer { min: 0, max: 1_000_000 },
};
const TAIL: Parameter = Parameter {
    name: "tail",
    about: "How many bytes before the end to begin. Left out: 65536.",
    value_type: ParameterType::Integer { min: 0, max: u64::MAX },
};
const OUTPUT_AFTER: Parameter = Parameter {
    name: "after",
    about: "The id of the last event seen, as in Last-Event-ID. Left out: near the end of the \
            newest attempt.",
    value_type: ParameterType::Text(128),
};
const DIRECTION: Parameter = Parameter {
    name: "direction",
    about: "Whether files are copied `into` the task or `out_of` it.",
    value_type: ParameterType::OneOf(&["into", "out_of"]),
};
const COPY_PATH: Parameter = Parameter {
    name: "path",
    about: "Where in the task, as it sees its files; below its folder unless it begins with /.",
    value_type: ParameterType::Text(4096),
};
const COPY_NAME: Parameter = Parameter {
    name: "name",
    about: "What is copied into the task is called so where `path` is a folder.",
    value_type: ParameterType::Text(255),
};
const PORT: Parameter = Parameter {
    name: "port",
    about: "The port: one that the task was given, or any where it has a network of its own.",
    value_type: ParameterType::Integer { min: 1, max: u16::MAX as u64 },
};
const COMMAND: Parameter = Parameter {
    name: "command",
    about: "The program and its arguments: a JSON list of words.",
    value_type: ParameterType::Text(MAX_COMMAND),
};
const TERMINAL: Parameter = Parameter {
    name: "terminal",
    about: "Rows and columns of the terminal, as `24x80`. Left out: no terminal; output and \
            problems apart.",
    value_type: ParameterType::Text(11),
};
const TERM: Parameter = Parameter {
    name: "term",
    about: "The terminal's kind, for the variable TERM.",
    value_type: ParameterType::Text(64),
};

const BASE: Route = Route {
    operation: O::Health,
    method: Method::Get,
    path: "",
    tag: "",
    summary: "",
    query: &[],
    versioned: false,
    kind: RouteKind::Read,
    access: Access::Authenticated,
    request: Content::Nothing,
    response: Content::Nothing,
    status: 200,
    capability: None,
    errors: &[],
};

const fn read(
    operation: O,
    path: &'static str,
    tag: &'static str,
    summary: &'static str,
    response: Content,
) -> Route {
    Route { operation, path, tag, summary, response, ..BASE }
}

const fn change(
    operation: O,
    method: Method,
    path: &'static str,
    tag: &'static str,
    summary: &'static str,
) -> Route {
    let response = Content::Json(schema::<Changed>);
    let kind = RouteKind::Change;
    Route { operation, method, path, tag, summary, response, kind, ..BASE }
}

const fn with_body(route: Route, request: Content) -> Route {
    Route { request, ..route }
}

const fn with_query(route: Route, query: &'static [Parameter]) -> Route {
    Route { query, ..route }
}

const fn versioned(route: Route) -> Route {
    Route { versioned: true, ..route }
}

const fn with_errors(route: Route, errors: &'static [C]) -> Route {
    Route { errors, ..route }
}

const fn with_capability(route: Route, capability: P) -> Route {
    Route { capability: Some(capability), ..route }
}

const fn with_access(route: Route, access: Access) -> Route {
    Route { access, ..route }
}

const fn with_kind(route: Route, kind: RouteKind) -> Route {
    Route { kind, ..route }
}

const fn with_response(route: Route, status: u16, response: Content) -> Route {
    Route { status, response, ..route }
}

macro_rules! json {
    ($type:ty) => {
        Content::Json(schema::<$type>)
    };
}
use json;

const JOB: &str = "/v1/jobs/{user}/{job}";
const SCALE: &str = "/v1/jobs/{user}/{job}/scale";
const TASKS: &str = "/v1/jobs/{user}/{job}/tasks";
const TASK: &str = "/v1/jobs/{user}/{job}/tasks/{index}";
const MACHINE: &str = "/v1/machines/{machine}";
const OUTPUT: &str = "/v1/jobs/{user}/{job}/tasks/{index}/output";
const WATCH_OUTPUT: &str = "/v1/watch/output/{user}/{job}/{index}";
const COPY: &str = "/v1/jobs/{user}/{job}/tasks/{index}/copy";
const FORWARD: &str = "/v1/jobs/{user}/{job}/tasks/{index}/forward";
const EXEC: &str = "/v1/jobs/{user}/{job}/tasks/{index}/exec";
const USER_PATH: &str = "/v1/users/{user}";
const QUOTA: &str = "/v1/users/{user}/quota/{band}";
const TOKENS: &str = "/v1/users/{user}/tokens";
const CRON: &str = "/v1/crons/{user}/{cron}";
const RESOURCE: &str = "/v1/resources/{namespace}/{name}";
const BLOB: &str = "/v1/blobs/{digest}";

const OWNER_ERRORS: &[C] = &[C::NotOwner, C::NoSuchJob, C::WrongState];
const STOP_ERRORS: &[C] = &[C::NotOwner, C::NoSuchJob, C::NoSuchTask, C::WrongState];
const START_ERRORS: &[C] =
    &[C::NotOwner, C::NoSuchJob, C::NoSuchTask, C::WrongState, C::QuotaExceeded];
const ADMISSION_ERRORS: &[C] =
    &[C::NotOwner, C::NoSuchJob, C::WrongState, C::QuotaExceeded, C::BadField, C::Exists];
const AGENT_ERRORS: &[C] =
    &[C::NoSuchJob, C::NoSuchTask, C::NoSuchMachine, C::WrongState, C::AgentSilent, C::Overloaded];
const EXEC_ERRORS: &[C] = &[
    C::NoSuchJob,
    C::NoSuchTask,
    C::NoSuchMachine,
    C::WrongState,
    C::AgentSilent,
    C::Overloaded,
    C::UpgradeRequired,
];
const MANAGES_USERS: Access = Access::HasCapability(P::ManageUsers);
const SELF_OR_MANAGES_USERS: Access = Access::SelfOrHasCapability(P::ManageUsers);

/// All routes.
pub fn routes() -> impl Iterator<Item = &'static Route> {
    [jobs::ROUTES, machines::ROUTES, users::ROUTES, records::ROUTES, archive::ROUTES]
        .into_iter()
        .flatten()
}
