//! What stands in a field that is not as it must be, and what may stand there: data, which
//! [`crate::words`] puts into words.
//!
//! Rejected: the two as sentences made by the rule. They were kept with the answer and hashed, and
//! no program could read the bound out of them.

use crate::constraint::ConstraintFlaw;
use crate::isolation::TargetFlaw;
use crate::machine::PortRange;
use crate::name::{JobKey, Name, Token};
use crate::priority::Priority;
use crate::time::{Span, Time};
use serde::{Deserialize, Serialize};

/// A field that is not as it must be.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct FieldName {
    /// With dots: `task.limits.ram`.
    pub path: String,
    /// What of it is meant, where that is not its value.
    pub quality: Option<Quality>,
}

impl<T: Into<String>> From<T> for FieldName {
    fn from(path: T) -> FieldName {
        FieldName { path: path.into(), quality: None }
    }
}

/// What else a field has than its value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Quality {
    Bytes,
    /// Bytes of command and environment.
    ProgramBytes,
    /// The name of an entry.
    Name,
    /// The path of an entry.
    Path,
    /// The exit code of an entry.
    Code,
    /// The task that an entry is for.
    TaskIndex,
    /// The sum over all tasks.
    Total,
}

/// What stands in the field.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Given {
    /// As it was sent, from its beginning.
    Text(String),
    /// So many entries of a list.
    Entries(u64),
    Length(Span),
    /// Something, where nothing may be.
    Something,
    /// Another one than the field had.
    Another,
    Nothing,
    /// A change of a capacity that is `held`, which is nothing where it is unbounded.
    Added {
        by: i64,
        held: Option<u64>,
    },
}

impl Given {
    pub(crate) fn entries(count: usize) -> Given {
        Given::Entries(count as u64)
    }

    /// A value as people write it.
    pub(crate) fn text(value: impl ToString) -> Given {
        Given::Text(value.to_string())
    }

    pub(crate) fn texts_mut(&mut self) -> Option<&mut String> {
        match self {
            Given::Text(text) => Some(text),
            _ => None,
        }
    }
}

/// Things of which each may be in a list once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Listed {
    Job,
    Port,
    Model,
    Package,
    Domain,
    Metric,
}

/// What may stand in the field. Its words are in `words/allowed.rs`. Answers are kept by number:
/// new ones come last.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Allowed {
    // Ranges.
    AtMost(u64),
    AtLeast(u64),
    Range {
        least: u64,
        most: u64,
    },
    LengthAtMost(Span),
    LengthAtLeast(Span),
    LengthRange {
        least: Span,
        most: Span,
    },
    // Lists.
    EachOnce(Listed),
    NamesInOrder,
    /// Shortages, each resource once.
    ResourcesInOrder,
    // Of the fields of a job.
    Constraint(ConstraintFlaw),
    Target(TargetFlaw),
    /// A bound of others' notice is for production.
    NoneBelowProduction,
    /// Any but the one that stands for devices that are gone.
    AnotherDeviceKind,
    /// Memory for a program to begin with.
    RamToBegin,
    /// Exit codes that are no success.
    FailureCode,
    AtMostBackoffMax(Span),
    /// Only what an alloc left has a saver.
    NoSaver,
    SaverInsideSet,
    /// An alloc runs no program.
    NoProgram,
    /// Alloc sets do not nest.
    NoNesting,
    /// The tasks inside an alloc get ports from the machine.
    NoPortsOfAlloc,
    /// Inside an alloc set, what is the set's to ask for.
    NoneInsideSet,
    PackageDigest,
    Program,
    ProbeProgram,
    /// Shares, where more than one device is asked for.
    WholeDevices,
    NoZeroBytes,
    VariableName,
    RelativePath,
    AbsolutePath,
    HttpPath,
    OneOfPackages(Vec<Token>),
    CoresOfLimit,
    HostNetwork,
    SecretName,
    SecretItself,
    /// The task asks for no port.
    NoPort,
    /// Counted among the task's ports.
    PortOfTask {
        last: u64,
    },
    // Of a job among others.
    AnAllocSet,
    AnotherJob,
    PriorityOfInside {
        least: Priority,
        job: Name,
    },
    PriorityOfSet {
        most: Priority,
        set: JobKey,
    },
    /// Tasks from `least` on have overrides of their own.
    CountWithOverrides {
        least: u32,
    },
    /// What an update cannot change.
    AsInVersion(u32),
    // Of periodic jobs.
    CronName {
        most: u64,
    },
    AsCronName(Name),
    UpToNow(Time),
    /// A moment of this schedule.
    MomentOf(String),
    // Of machines.
    NoNamespace,
    AddressOfOneMachine,
    PortsOfMachine,
    // Of users, tokens, packages and resources.
    AfterQuotaFrom(Time),
    TokenKind,
    JoinTokenLifetime {
        most: Span,
    },
    /// What this replica itself shows where it joins.
    FingerprintOfReplica(Name),
    NamespaceWithoutSlash,
    ContentDigest,
    ChangeOfUnbounded,
    /// Capacity after all changes.
    CapacitySum,
    // Of plans.
    PortsGranted {
        fixed: Vec<u16>,
        more: u8,
        range: PortRange,
    },
    DevicesGranted,
    /// Tasks that pair with allocs by index are where their allocs are.
    SpreadOfAllocs,
    /// One of the versions of a job that are kept, of which these are the latest.
    VersionKept(Vec<u32>),
    /// A time to mend a gang is for gangs.
    NoneWithoutGang,
    WholeCoresOutsideSets,
    LatencySensitiveOnly,
    /// No machine has more cores to give away whole.
    WholeCoresOfMachines {
        most: u64,
    },
    /// A daemon has one task for each machine, all alike, and none waits for another.
    NotOfDaemons,
    /// A daemon has no end, and no next run.
    NoDaemonRuns,
    /// A gang and an alloc set have one size.
    NotScaled,
    /// A share of a limit, where there is no limit.
    NoneWithoutLimit,
    /// A number, or a label of one, as programs tell it.
    MetricName,
    /// Where numbers are told that a job is scaled by.
    MetricSource,
}

impl Allowed {
    pub(crate) fn range(least: impl Into<u64>, most: impl Into<u64>) -> Allowed {
        Allowed::Range { least: least.into(), most: most.into() }
    }

    /// Takes off what a client sent beyond so many bytes of each text, or of all names together.
    pub(crate) fn shorten(&mut self, most: usize, shorten: impl Fn(&mut String)) {
        match self {
            Allowed::MomentOf(text) => shorten(text),
            Allowed::Constraint(flaw) => flaw.text_mut().into_iter().for_each(shorten),
            Allowed::OneOfPackages(names) => {
                let mut bytes = 0;
                names.retain(|name| {
                    bytes += name.as_str().len();
                    bytes <= most
                });
            }
            // The others hold numbers, and names whose types bound them.
            _ => {}
        }
    }
}
