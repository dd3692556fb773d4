//! A decision: the size that a rule wants, the size that is taken, and what stood in between.

use crate::name::Token;
use crate::spec::JobSpec;
use crate::time::Time;
use serde::{Deserialize, Serialize};
use std::borrow::Cow;

/// How many tasks, and what each may use.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct ScaleSize {
    pub count: u32,
    /// Milli-cores.
    pub cpu: u64,
    /// Bytes.
    pub ram: u64,
}

impl ScaleSize {
    /// The size that a spec has.
    #[must_use]
    pub fn of(spec: &JobSpec) -> ScaleSize {
        let limits = spec.task.limits;
        ScaleSize { count: spec.count, cpu: limits.cpu, ram: limits.ram }
    }
}

/// The measure that asked for a size.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum SignalName {
    Cpu,
    Ram,
    /// A number that tasks tell.
    Metric(Token),
}

/// The rule that set the size wanted.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum ScaleRule {
    /// The size fits what was measured.
    Steady,
    /// A measure is above or below its target.
    Target(SignalName),
    /// The load grows, and new tasks take a while to start.
    Trend,
    /// The load swings, and has risen again and again within the last hour.
    Swing,
    /// At this time of earlier days the load rose.
    SameTimeEarlier,
    /// The schedule asks for more.
    Schedule,
    /// The size was outside of the bounds.
    Bounds,
    /// The most that a task used, over days, is another than its limit was made for.
    Peak(SignalName),
    /// A task was killed for want of memory.
    OutOfMemory,
}

/// What kept a size from being taken whole, or at all.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum ScaleVeto {
    /// The policy's largest size.
    Max,
    /// The quota of the job's owner.
    Quota,
    /// The most that a job may grow or shrink in one step.
    Step,
    /// Within the time of stabilisation it would have needed more.
    Stabilise,
    /// It has grown a moment ago.
    CoolDown,
    /// On earlier days it would soon have had to grow again.
    GrowsSoon,
    /// What was measured is from before the last change.
    NotMeasured,
    /// Half of its tasks fail: more of them would fail as well.
    TasksFail,
    /// An update of the job is open.
    UpdateOpen,
    /// The policy asks for advice alone.
    Advise,
    /// Its owner has resized it by hand.
    Manual,
    /// Running tasks did not tell a number that they are scaled by.
    NotTold { tasks: u32, of: u32 },
}

impl ScaleRule {
    /// For programs: a word, and the name of the number after `metric`.
    #[must_use]
    pub fn code(&self) -> Cow<'static, str> {
        Cow::Borrowed(match self {
            ScaleRule::Target(SignalName::Metric(name)) => {
                return Cow::Owned(format!("metric {name}"));
            }
            ScaleRule::Steady => "steady",
            ScaleRule::Target(_) => "target",
            ScaleRule::Trend => "trend",
            ScaleRule::Swing => "swing",
            ScaleRule::SameTimeEarlier => "same-time-earlier",
            ScaleRule::Schedule => "schedule",
            ScaleRule::Bounds => "bounds",
            ScaleRule::Peak(_) => "peak",
            ScaleRule::OutOfMemory => "out-of-memory",
        })
    }
}

impl ScaleVeto {
    pub const ALL: [ScaleVeto; 12] = [
        ScaleVeto::Max,
        ScaleVeto::Quota,
        ScaleVeto::Step,
        ScaleVeto::Stabilise,
        ScaleVeto::CoolDown,
        ScaleVeto::GrowsSoon,
        ScaleVeto::NotMeasured,
        ScaleVeto::TasksFail,
        ScaleVeto::UpdateOpen,
        ScaleVeto::Advise,
        ScaleVeto::Manual,
        ScaleVeto::NotTold { tasks: 1, of: 2 },
    ];

    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            ScaleVeto::Max => "max",
            ScaleVeto::Quota => "quota",
            ScaleVeto::Step => "step",
            ScaleVeto::Stabilise => "stabilise",
            ScaleVeto::CoolDown => "cool-down",
            ScaleVeto::GrowsSoon => "grows-soon",
            ScaleVeto::NotMeasured => "not-measured",
            ScaleVeto::TasksFail => "tasks-fail",
            ScaleVeto::UpdateOpen => "update-open",
            ScaleVeto::Advise => "advise",
            ScaleVeto::Manual => "manual",
            ScaleVeto::NotTold { .. } => "not-told",
        }
    }
}

/// One decision, with what it was made from.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Decision {
    pub at: Time,
    pub from: ScaleSize,
    /// What the rule asks for.
    pub want: ScaleSize,
    /// What is taken: `from` where nothing changes.
    pub to: ScaleSize,
    pub rule: ScaleRule,
    /// In the order in which they applied.
    pub vetoes: Vec<ScaleVeto>,
    /// What was measured: thousandths of tasks at their largest limits. `None`: nothing was.
    pub measured: Option<u32>,
    /// What the size was chosen for, in the same unit: what was measured, or what is expected.
    pub expected: u32,
}

impl Decision {
    #[must_use]
    pub fn changes_size(&self) -> bool {
        self.from != self.to
    }

    /// Whether it says something that `other` does not: another rule, veto or wish, or that the
    /// size is to be another one than it is.
    #[must_use]
    pub fn differs_from(&self, other: &Decision) -> bool {
        // Not by how many tasks have not told a number: that is another one at any moment.
        let codes = |decision: &Decision| -> Vec<&str> {
            decision.vetoes.iter().map(|veto| veto.as_str()).collect()
        };
        self.changes_size()
            || (self.want, self.to, &self.rule) != (other.want, other.to, &other.rule)
            || codes(self) != codes(other)
    }
}
