//! How a task of a virtual machine behaves: what it uses, when it fails, whether it becomes
//! unhealthy. Drawn from a seed, the task's name and its attempt, so that one more task does not
//! change the behaviour of others.
//!
//! A command sets the behaviour of one task: `sim finish 500` ends successfully after 500 ms, `sim
//! fail 500` fails, `sim fail 500 2` fails as task 2 of its job and as no other, `sim use 120 60`
//! uses 120 % of its CPU limit and 60 % of its memory limit. Any other command behaves as the
//! profile of its machine draws it.

use cellwright_cell::desired::DesiredTask;
use cellwright_cell::resource::Resources;
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// How tasks of a virtual machine behave, unless their commands say otherwise.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Profile {
    pub seed: u64,
    /// Percent of its limits that a task uses, from and to; each draws its own level.
    pub usage: (u64, u64),
    /// Mean time until a task fails, in milliseconds; `None`: none does by itself.
    pub fails_after: Option<u64>,
    /// Attempts in a thousand that become unhealthy, if they have a health check.
    pub unhealthy_permille: u64,
}

impl Profile {
    /// Tasks use about half of their limits, and none fails or becomes unhealthy.
    #[must_use]
    pub fn new(seed: u64) -> Profile {
        Profile { seed, usage: (20, 70), fails_after: None, unhealthy_permille: 0 }
    }
}

/// How an attempt ends by itself, in milliseconds after its start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PlannedEnd {
    Never,
    Finish(u64),
    Fail(u64),
}

/// The behaviour drawn for one attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Behaviour {
    seed: u64,
    pub planned_end: PlannedEnd,
    /// Percent of the limits of CPU and memory, around which usage moves or which it keeps exactly.
    cpu: u64,
    ram: u64,
    is_exact: bool,
    /// When it becomes unhealthy.
    pub unhealthy_after: Option<u64>,
}

/// A task takes this long to reach the memory it will hold.
const RAMP_MILLIS: u64 = 30_000;
/// Period of the waves in which its CPU usage moves.
const WAVE_PERIOD_MILLIS: u64 = 60_000;
/// The time within which an unhealthy attempt becomes so.
const UNHEALTHY_WITHIN_MILLIS: u64 = 120_000;

impl Behaviour {
    #[must_use]
    pub fn draw(profile: &Profile, order: &DesiredTask, command: &[String]) -> Behaviour {
        let seed =
            xxh3_64_with_seed(order.name.as_bytes(), profile.seed ^ u64::from(order.attempt));
        let draw =
            |purpose: &str, below: u64| xxh3_64_with_seed(purpose.as_bytes(), seed) % below.max(1);
        let (from, to) = profile.usage;
        let level = |purpose| from + draw(purpose, to.saturating_sub(from) + 1);
        // Uniform up to twice the mean.
        let fails = profile.fails_after.map(|mean| PlannedEnd::Fail(draw("fails", mean * 2) + 1));
        let is_unhealthy = draw("ill", 1000) < profile.unhealthy_permille;
        let mut drawn = Behaviour {
            seed,
            planned_end: fails.unwrap_or(PlannedEnd::Never),
            cpu: level("cpu"),
            ram: level("ram"),
            is_exact: false,
            unhealthy_after: is_unhealthy.then(|| draw("when", UNHEALTHY_WITHIN_MILLIS)),
        };
        let words: Vec<&str> = command.iter().map(String::as_str).collect();
        let number = |text: &str| text.parse::<u64>().ok();
        match words.as_slice() {
            ["sim", "finish", ms] => {
                drawn.planned_end = number(ms).map_or(drawn.planned_end, PlannedEnd::Finish)
            }
            ["sim", "fail", ms] => {
                drawn.planned_end = number(ms).map_or(drawn.planned_end, PlannedEnd::Fail)
            }
            ["sim", "fail", ms, index] => {
                let is_meant = order.name.rsplit('/').next() == Some(index);
                drawn.planned_end = match number(ms).filter(|_| is_meant) {
                    Some(ms) => PlannedEnd::Fail(ms),
                    None => drawn.planned_end,
                }
            }
            ["sim", "use", cpu, ram] => {
                if let (Some(cpu), Some(ram)) = (number(cpu), number(ram)) {
                    (drawn.cpu, drawn.ram, drawn.is_exact) = (cpu, ram, true);
                }
            }
            _ => {}
        }
        drawn
    }

    /// The resources it wants at this age.
    #[must_use]
    pub fn demand(&self, limits: Resources, age: u64) -> Resources {
        let percent = |amount: u64, percent: u64| {
            u64::try_from(u128::from(amount) * u128::from(percent) / 100).unwrap_or(u64::MAX)
        };
        if self.is_exact {
            let ram = percent(limits.ram, self.ram);
            return Resources { cpu: percent(limits.cpu, self.cpu), ram, disk: 0, disk_rate: 0 };
        }
        // A triangle between seven and thirteen tenths of its level, each task in its own phase.
        let at = (age + self.seed % WAVE_PERIOD_MILLIS) % WAVE_PERIOD_MILLIS;
        let slope = at.min(WAVE_PERIOD_MILLIS - at) * 1200 / WAVE_PERIOD_MILLIS;
        let cpu = percent(limits.cpu, self.cpu) * (700 + slope) / 1000;
        let ramp = 300 + age.min(RAMP_MILLIS) * 700 / RAMP_MILLIS;
        let ram = percent(limits.ram, self.ram) / 1000 * ramp;
        let (disk, disk_rate) =
            (limits.disk / 1000 * ramp / 4, percent(limits.disk_rate, self.cpu));
        Resources { cpu, ram, disk, disk_rate }
    }
}
