//! The table of all public routes. The server builds its router from this table and the OpenAPI
//! document is generated from it, so the two cannot differ: an operation without a handler does not
//! compile, and a request with a parameter that is not listed here is rejected.
//!
//! Rejected: macros on handlers. They document what a handler looks like, not what is checked
//! before it runs, and the client would have to depend on the server to read them.

mod number_ranges;
mod table;

pub use number_ranges::OutOfRange;
pub use table::routes;

use crate::error::Code;
use cellwright_cell::quota::Capability;
use schemars::{JsonSchema, Schema, SchemaGenerator};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Method {
    Get,
    Post,
    Put,
    Delete,
}

impl Method {
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Method::Get => "GET",
            Method::Post => "POST",
            Method::Put => "PUT",
            Method::Delete => "DELETE",
        }
    }
}

/// All operations of the API. The server matches on this without a default arm.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Operation {
    ListJobs,
    SubmitJob,
    ApplyJob,
    GetJob,
    UpdateJob,
    StopJob,
    StopTask,
    ResizeJob,
    RestartJob,
    RestartTask,
    StartFailedTasks,
    StartTask,
    UndoUpdate,
    CloseUpdate,
    PromoteUpdate,
    FinishUpdate,
    RevertJob,
    ListVersions,
    DiffVersions,
    PlanJobs,
    ExplainJob,
    GetScale,
    SetScaleMode,
    ListTasks,
    GetTask,
    ExplainTask,
    ReadOutput,
    WatchOutput,
    ExecTask,
    ExecTaskInPage,
    CopyFiles,
    ForwardPort,
    WatchJobs,
    WatchJobRows,
    LookUpJob,
    WatchNames,
    PrometheusTargets,
    ListMachines,
    AddMachine,
    GetMachine,
    ListMachineTasks,
    GetMachinePackages,
    UpdateMachine,
    RemoveMachine,
    StartDrain,
    StopDrain,
    ListUsers,
    AddUser,
    GetUser,
    RemoveUser,
    SetCapabilities,
    SetQuota,
    RemoveQuota,
    ListUserTokens,
    AddUserToken,
    ListTokens,
    AddJoinToken,
    RevokeToken,
    RevokePart,
    ListCrons,
    GetCron,
    SetCron,
    RemoveCron,
    RunCron,
    ListResources,
    GetResource,
    SetResource,
    DeleteResource,
    ClusterStatus,
    ListAlarms,
    Find,
    Overview,
    WatchOverview,
    Batch,
    ListEvents,
    Sql,
    WatchEvents,
    ListAudit,
    ListCheckpoints,
    SaveCheckpoint,
    MasterStatus,
    AddMaster,
    RemoveMaster,
    ConfirmMaster,
    ListBlobs,
    PutBlob,
    GetBlob,
    RemoveBlob,
    OpenApi,
    Metrics,
    Health,
    Ready,
    Shapes,
    GetArchive,
    ListArchivedJobs,
    GetArchivedJob,
    ListArchivedLogs,
    GetArchivedLog,
    ListArchivedDays,
    RestoreHistory,
}

/// The syntax of a parameter's value; checked before a handler runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ParameterType {
    Name,
    Token,
    Integer {
        min: u64,
        max: u64,
    },
    Boolean,
    /// One of these words.
    OneOf(&'static [&'static str]),
    /// Free text up to this many characters.
    Text(usize),
    /// 64 hex digits.
    Digest,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Parameter {
    pub name: &'static str,
    pub about: &'static str,
    pub value_type: ParameterType,
}

/// Generates the schema of a type; its definition goes to the generator.
pub type SchemaOf = fn(&mut SchemaGenerator) -> Schema;

#[must_use]
pub fn schema<T: JsonSchema>(generator: &mut SchemaGenerator) -> Schema {
    generator.subschema_for::<T>()
}

/// The content of a body.
#[derive(Clone, Copy, Debug)]
pub enum Content {
    Nothing,
    Json(SchemaOf),
    /// Server-sent events; each `data` is JSON of this type.
    Events(SchemaOf),
    Bytes,
    Text,
    /// Any JSON.
    AnyJson,
}

/// Who may call a route at all. What a change requires beyond that is decided where it takes
/// effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Anyone who reaches the listener.
    Open,
    /// Any authenticated caller.
    Authenticated,
    /// Users with the capability, and the cell itself.
    HasCapability(Capability),
    /// The user in the path, users with the capability, and the cell itself.
    SelfOrHasCapability(Capability),
}

/// How the answer relates to the replicated log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RouteKind {
    /// Any replica answers from its copy; `?consistent=true` asks the leader first.
    Read,
    /// Goes through the log; takes an idempotency key.
    Change,
    /// Goes through the log; each call makes something new, so a key would promise too much.
    Create,
    /// About the replica that answers, not about the log.
    Local,
}

#[derive(Clone, Copy, Debug)]
pub struct Route {
    pub operation: Operation,
    pub method: Method,
    /// The path, with `{parameter}`s.
    pub path: &'static str,
    /// Tag in the OpenAPI document.
    pub tag: &'static str,
    pub summary: &'static str,
    pub query: &'static [Parameter],
    /// Whether `If-Match` (or `?expect=`) is checked against the object's version.
    pub versioned: bool,
    pub kind: RouteKind,
    pub access: Access,
    pub request: Content,
    pub response: Content,
    pub status: u16,
    /// Capability a user needs for the change itself, stated in the document.
    pub capability: Option<Capability>,
    /// Error codes of its own, beside those any route of its kind can return.
    pub errors: &'static [Code],
}

impl Route {
    /// The operation id, such as `listJobs`.
    #[must_use]
    pub fn id(&self) -> String {
        let name = format!("{:?}", self.operation);
        let mut letters = name.chars();
        let first = letters.next().map(|c| c.to_ascii_lowercase());
        first.into_iter().chain(letters).collect()
    }

    /// Names in `{}`, in order.
    pub fn path_parameters(&self) -> impl Iterator<Item = &'static str> {
        self.path.split('/').filter_map(|part| part.strip_prefix('{')?.strip_suffix('}'))
    }

    /// Parameters of the query, including the common ones of its kind.
    pub fn parameters(&self) -> impl Iterator<Item = &'static Parameter> {
        let read: &'static [Parameter] = match self.kind {
            RouteKind::Read => &[CONSISTENT],
            _ => &[],
        };
        let expect: &'static [Parameter] = if self.versioned { &[EXPECT] } else { &[] };
        self.query.iter().chain(read).chain(expect)
    }

    /// Every error code it can return.
    #[must_use]
    pub fn codes(&self) -> Vec<Code> {
        let mut codes = self.errors.to_vec();
        codes.extend([Code::BadParameter, Code::Internal, Code::ShuttingDown]);
        if self.access != Access::Open {
            codes.push(Code::Unauthenticated);
        }
        if matches!(self.access, Access::HasCapability(_) | Access::SelfOrHasCapability(_)) {
            codes.extend([Code::NotAllowed, Code::NoSuchUser]);
        }
        if !matches!(self.request, Content::Nothing) {
            codes.push(Code::TooLarge);
        }
        if matches!(self.request, Content::Json(_)) {
            codes.extend([Code::BadBody, Code::UnsupportedMediaType, Code::BadField]);
        }
        if self.versioned {
            codes.push(Code::StaleVersion);
        }
        match self.kind {
            RouteKind::Read => codes.extend([Code::NotLeader, Code::NoLeader, Code::NoQuorum]),
            RouteKind::Change | RouteKind::Create => codes.extend([
                Code::NotLeader,
                Code::NoLeader,
                Code::NoQuorum,
                Code::Overloaded,
                Code::TooLarge,
                Code::DiskFull,
                Code::Full,
                Code::TimedOut,
                Code::NotAllowed,
                Code::NoSuchUser,
            ]),
            RouteKind::Local => {}
        }
        if self.kind == RouteKind::Change {
            codes.extend([Code::KeyReused, Code::KeyTooOld]);
        }
        codes.sort_unstable();
        codes.dedup();
        codes
    }
}

/// The syntax of a path parameter, by its name: one name means one thing everywhere.
#[must_use]
pub fn path_parameter(name: &str) -> Option<Parameter> {
    PATH_PARAMETERS.iter().find(|parameter| parameter.name == name).copied()
}

pub const BANDS: &[&str] = &["best_effort", "batch", "production", "monitoring"];

const PATH_PARAMETERS: &[Parameter] = &[
    Parameter { name: "user", about: "Name of the user.", value_type: ParameterType::Name },
    Parameter { name: "job", about: "Name of the job.", value_type: ParameterType::Name },
    Parameter {
        name: "index",
        about: "Index of the task in its job.",
        value_type: ParameterType::Integer { min: 0, max: u32::MAX as u64 },
    },
    Parameter { name: "machine", about: "Name of the machine.", value_type: ParameterType::Name },
    Parameter { name: "cron", about: "Name of the cron.", value_type: ParameterType::Name },
    Parameter { name: "band", about: "Priority band.", value_type: ParameterType::OneOf(BANDS) },
    Parameter { name: "token", about: "Id of the token.", value_type: ParameterType::Name },
    Parameter {
        name: "namespace",
        about: "The application's namespace.",
        value_type: ParameterType::Token,
    },
    Parameter { name: "name", about: "Name of the resource.", value_type: ParameterType::Token },
    Parameter {
        name: "replica",
        about: "Number of the replica.",
        value_type: ParameterType::Integer { min: 1, max: u64::MAX },
    },
    Parameter {
        name: "digest",
        about: "SHA-256 of the content.",
        value_type: ParameterType::Digest,
    },
];

pub const CONSISTENT: Parameter = Parameter {
    name: "consistent",
    about: "True: everything acknowledged before is in the answer. Left out: the answer may be \
            behind, and says of which log index it is.",
    value_type: ParameterType::Boolean,
};

pub const EXPECT: Parameter = Parameter {
    name: "expect",
    about: "Version the object must be at; the same as If-Match.",
    value_type: ParameterType::Integer { min: 0, max: u32::MAX as u64 },
};

/// Request headers that the API defines.
pub const IDEMPOTENCY_KEY: &str = "idempotency-key";
pub const LAST_EVENT_ID: &str = "last-event-id";
/// Reply headers: the log index of the answer, and whether it is `stale` or `consistent`.
pub const CELL_INDEX: &str = "cell-index";
pub const CELL_READ: &str = "cell-read";
/// Longest idempotency key.
pub const MAX_IDEMPOTENCY_KEY: usize = 128;
/// Default and largest number of items in a page.
pub const PAGE_DEFAULT: usize = 100;
pub const PAGE_MAX: usize = 1000;

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn every_operation_path_and_parameter_is_known_once() {
        let operations: BTreeSet<Operation> = routes().map(|r| r.operation).collect();
        assert_eq!(operations.len(), routes().count());
        let paths: BTreeSet<_> = routes().map(|r| (r.method.as_str(), r.path)).collect();
        assert_eq!(paths.len(), routes().count());
        for route in routes() {
            assert!(route.path_parameters().all(|p| path_parameter(p).is_some()), "{}", route.path);
            let names: Vec<&str> = route.parameters().map(|p| p.name).collect();
            let distinct: BTreeSet<&&str> = names.iter().collect();
            assert_eq!(distinct.len(), names.len(), "{}", route.path);
        }
    }

    #[test]
    fn changes_go_through_the_log_and_reads_do_not() {
        for route in routes() {
            let change = matches!(route.kind, RouteKind::Change | RouteKind::Create);
            let get = route.method == Method::Get;
            assert!(!(change && get), "{}", route.path);
            assert!(!route.versioned || route.kind == RouteKind::Change, "{}", route.path);
        }
    }
}
