//! Plans: what applying a file of jobs would do, computed on a copy of the cell's state.

use super::{ExplanationView, ObstacleView, SubmitJob};
use crate::error::ApiError;
use cellwright_cell::job::ChangeClass;
use cellwright_cell::name::Name;
use cellwright_cell::priority::{Band, Priority};
use cellwright_cell::resource::Resources;
use cellwright_cell::spec::JobSpec;
use cellwright_cell::time::Time;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::fmt;
use std::str::FromStr;
use xxhash_rust::xxh3::xxh3_64;

/// Most jobs in one plan.
pub const MAX_PLANNED_JOBS: usize = 1000;

/// Jobs to plan as if they were applied one after the other.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PlanJobs {
    /// 1 to 1000.
    pub jobs: Vec<SubmitJob>,
}

/// What the cell would do with a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum PlanAction {
    Create,
    Update,
    /// It exists already, exactly like this.
    Nothing,
    /// The cell would reject it; see `rejected`.
    Rejected,
}

/// One field of the spec that differs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct FieldDiff {
    /// Such as `task.limits.ram`.
    pub path: String,
    /// Absent: the field was not there.
    pub old: Option<Value>,
    /// Absent: the field is removed.
    pub new: Option<Value>,
    /// What the change means for running tasks.
    pub class: ChangeClass,
}

/// What would happen to the tasks of a job.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct PlannedTasks {
    pub added: u32,
    pub removed: u32,
    /// They take the change without a restart.
    pub in_place: u32,
    /// They run on with other limits where they are.
    pub resized: u32,
    /// Stopped and started on the same machine.
    pub restarted: u32,
    /// Stopped, and in need of another machine.
    pub moved: u32,
    /// They keep the old spec, because the update's disruption limit is reached.
    pub skipped: u32,
    /// They start once another job has ended.
    pub deferred: u32,
    /// Number of tasks whose effect was estimated from the class of the change: the job is very
    /// large.
    pub estimated: u32,
}

/// What would become of a task that is there already.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum PlannedChange {
    /// Runs on with other limits.
    Resized,
    /// Stopped and started on the same machine.
    Restarted,
    /// Stopped, and in need of another machine.
    Moved,
    /// Keeps the old spec.
    Skipped,
}

/// Tasks of which the same would become, and why.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct PlannedEffect {
    pub change: PlannedChange,
    pub count: u32,
    /// The lowest of their indices.
    pub tasks: Vec<u32>,
    /// Such as `task.command` for a restart, and all that may not fit any more for a move.
    pub fields: Vec<String>,
}

/// Tasks of the job that would be placed on one machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct PlannedPlace {
    pub machine: String,
    pub count: u32,
    /// The lowest of their indices.
    pub tasks: Vec<u32>,
}

/// A task that would be evicted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct PlannedVictim {
    /// `user/job/index`.
    pub task: String,
    pub priority: Priority,
    pub machine: String,
    /// The machine it would move to; absent: it would wait.
    pub moves_to: Option<String>,
}

/// The disruption limits of an update, and the disruption it would cause.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct PlannedDisruption {
    /// Running tasks that are stopped.
    pub tasks: u32,
    /// The job's `max_down`: how many may be down at once. Absent: the cell rolls in waves.
    pub at_once: Option<u32>,
    /// The job's `max_update_disruptions`. Absent: no limit.
    pub most: Option<u32>,
}

/// The change of the owner's quota charge in one band.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct QuotaChange {
    pub band: Band,
    pub before: Resources,
    pub after: Resources,
    pub granted: Resources,
}

/// What applying one job would do.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct JobPlan {
    pub user: Name,
    pub name: Name,
    pub action: PlanAction,
    /// Version of the live job; absent: there is none.
    pub version: Option<u32>,
    /// When that job was submitted; milliseconds since the Unix epoch.
    pub submitted_at: Option<Time>,
    /// Version to which an update rolled that is complete and still open: applying the job closes
    /// it first.
    pub closes_update: Option<u32>,
    /// The error with which the cell would reject it.
    pub rejected: Option<ApiError>,
    /// Every field that differs; empty for a new job.
    pub changes: Vec<FieldDiff>,
    /// The strongest class of the changes; absent for a new job.
    pub class: Option<ChangeClass>,
    pub tasks: PlannedTasks,
    /// Which of its tasks are resized, restarted, moved or skipped, and for what.
    pub effects: Vec<PlannedEffect>,
    /// Tasks that would be placed.
    pub placed: u32,
    /// Tasks that would stay pending.
    pub pending: u32,
    /// Machines they would be on.
    pub machines: u32,
    /// The machines with most of them.
    pub places: Vec<PlannedPlace>,
    /// Tasks of other jobs that would be evicted, lowest priority first.
    pub victims: Vec<PlannedVictim>,
    /// Tasks that would be evicted next, to place the victims elsewhere.
    pub evicted_in_turn: Vec<PlannedVictim>,
    pub disruption: PlannedDisruption,
    /// Tasks that run an older version although the job is as requested: an update skipped them.
    #[serde(default)]
    pub outdated: u32,
    /// Tasks that try the new version before the others get it.
    #[serde(default)]
    pub canaries: u32,
    /// Bands in which the owner's charge changes.
    pub quota: Vec<QuotaChange>,
    /// Why the first of the pending tasks would wait.
    pub why_pending: Option<ExplanationView>,
    /// What would keep it waiting whatever resources the machines have.
    pub obstacles: Vec<ObstacleView>,
}

impl JobPlan {
    /// The base that a plan token encodes.
    #[must_use]
    pub fn base(&self) -> PlanBase {
        let at = self.version.zip(self.submitted_at);
        PlanBase { user: self.user.clone(), name: self.name.clone(), at }
    }
}

/// What applying the jobs would do.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct PlanView {
    pub jobs: Vec<JobPlan>,
    /// Send it with `cell run --plan`: rejected if a job has changed since, or the file has.
    pub token: String,
}

/// The job a plan was made against.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlanBase {
    pub user: Name,
    pub name: Name,
    /// Version and time of submission of the live job. The version alone is not enough: it starts
    /// again with every job of a name.
    pub at: Option<(u32, Time)>,
}

/// Compare-and-swap for a whole file: the base of each job in the plan, and the requested specs.
/// Other changes in the cell do not make it stale.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlanToken {
    /// The log index of the snapshot it was made from, for people.
    pub index: u64,
    /// Fingerprint of the jobs as they were.
    pub base: u64,
    /// Fingerprint of the requested specs.
    pub specs: u64,
}

impl PlanToken {
    #[must_use]
    pub fn new(index: u64, jobs: &[(PlanBase, JobSpec)]) -> PlanToken {
        let (mut base, mut specs) = (String::new(), Vec::new());
        for (at, spec) in jobs {
            let (version, submitted) = at.at.map_or((0, 0), |(v, t)| (v, t.0));
            base.push_str(&format!("{}/{} {version} {submitted}\n", at.user, at.name));
            // A spec has text keys only and always serializes.
            specs.extend(serde_json::to_vec(spec).unwrap_or_default());
        }
        PlanToken { index, base: xxh3_64(base.as_bytes()), specs: xxh3_64(&specs) }
    }
}

impl fmt::Display for PlanToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{:016x}-{:016x}", self.index, self.base, self.specs)
    }
}

/// A text that is not a plan token.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a plan's token; allowed: what `cell plan` prints, as 12-0123456789abcdef-…")]
pub struct InvalidPlanToken(String);

impl FromStr for PlanToken {
    type Err = InvalidPlanToken;

    fn from_str(text: &str) -> Result<PlanToken, InvalidPlanToken> {
        let bad = || InvalidPlanToken(text.chars().take(100).collect());
        let parts: Vec<&str> = text.split('-').collect();
        let [index, base, specs] = parts[..] else { return Err(bad()) };
        let hex = |part: &str| {
            let digits = part.len() == 16 && part.bytes().all(|b| b.is_ascii_hexdigit());
            u64::from_str_radix(part, 16).ok().filter(|_| digits).ok_or_else(bad)
        };
        let index = index.parse().map_err(|_| bad())?;
        Ok(PlanToken { index, base: hex(base)?, specs: hex(specs)? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn base(version: u32, at: u64) -> PlanBase {
        let name = |text: &str| Name::new(text).unwrap();
        PlanBase { user: name("ada"), name: name("web"), at: Some((version, Time(at))) }
    }

    fn spec(count: u32) -> JobSpec {
        let text = serde_json::json!({"name": "web", "priority": 100, "count": count,
            "task": {"limits": {"cpu": 1, "ram": 1}, "command": ["true"]}});
        serde_json::from_value(text).unwrap()
    }

    #[test]
    fn a_token_tells_what_it_was_made_from_and_survives_being_printed() {
        let token = PlanToken::new(12, &[(base(3, 9), spec(1))]);
        assert_eq!(token.to_string().parse(), Ok(token));
        assert_eq!(token, PlanToken::new(12, &[(base(3, 9), spec(1))]));
        for other in [base(4, 9), base(3, 10), PlanBase { at: None, ..base(3, 9) }] {
            let moved = PlanToken::new(12, &[(other, spec(1))]);
            assert_ne!((moved.base, moved.specs), (token.base, token.specs));
            assert_eq!(moved.specs, token.specs);
        }
        let edited = PlanToken::new(12, &[(base(3, 9), spec(2))]);
        assert_eq!(edited.base, token.base);
        assert_ne!(edited.specs, token.specs);
        for bad in ["", "12", "12-1-2", "x-0123456789abcdef-0123456789abcdef", "1-2-3-4"] {
            assert!(bad.parse::<PlanToken>().is_err(), "{bad}");
        }
    }
}
