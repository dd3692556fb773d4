//! A service as a queue: requests arrive by the trace, cores serve them at a fixed rate, and what
//! waits too long is late. New tasks serve after a while, new limits at once.
//!
//! A step is a quarter of a minute, within which everything is even. Counted in thousandths of
//! requests, so that nothing is lost by rounding.

use cellwright_cell::scale::ScaleSize;
use std::collections::VecDeque;

pub const STEPS_PER_MINUTE: u64 = 4;
/// Milliseconds of a step.
const STEP: u64 = 60_000 / STEPS_PER_MINUTE;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ServiceModel {
    /// Requests that one core serves in a minute.
    pub per_core: u64,
    /// Steps until a new task serves.
    pub start_steps: u64,
    /// A request that waits longer, in milliseconds, is late.
    pub patience: u64,
    /// One that would wait longer than this goes away, late.
    pub give_up: u64,
}

#[derive(Clone, Debug)]
pub struct Service {
    model: ServiceModel,
    size: ScaleSize,
    ready: u32,
    /// When they serve, and how many.
    starting: VecDeque<(u64, u32)>,
    /// Thousandths of requests.
    backlog: u64,
    step: u64,
}

/// What happened in a step, in thousandths of requests and of cores.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StepResult {
    pub arrived: u64,
    pub late: u64,
    /// On average.
    pub used: u64,
    /// What all tasks held, those included that have not started.
    pub held: u64,
}

impl Service {
    /// All tasks of `size` serve.
    #[must_use]
    pub fn new(model: ServiceModel, size: ScaleSize) -> Service {
        Service { model, size, ready: size.count, starting: VecDeque::new(), backlog: 0, step: 0 }
    }

    #[must_use]
    pub fn size(&self) -> ScaleSize {
        self.size
    }

    /// Tasks that serve.
    #[must_use]
    pub fn ready(&self) -> u32 {
        self.ready
    }

    /// Those that have not started go first.
    pub fn resize(&mut self, to: ScaleSize) {
        let present = self.size.count;
        if to.count > present {
            let at = self.step + self.model.start_steps;
            self.starting.push_back((at, to.count - present));
        }
        let mut fewer = present.saturating_sub(to.count);
        while let Some((at, tasks)) = self.starting.pop_back() {
            let gone = tasks.min(fewer);
            fewer -= gone;
            if tasks > gone {
                self.starting.push_back((at, tasks - gone));
                break;
            }
        }
        self.ready -= fewer.min(self.ready);
        self.size = to;
    }

    /// `arrived`: thousandths of requests.
    pub fn step(&mut self, arrived: u64) -> StepResult {
        self.step += 1;
        while let Some((_, tasks)) = self.starting.front().filter(|(at, _)| *at <= self.step) {
            self.ready += tasks;
            self.starting.pop_front();
        }
        let ServiceModel { per_core, patience, give_up, .. } = self.model;
        let capacity = u64::from(self.ready) * self.size.cpu * per_core / STEPS_PER_MINUTE;
        let before = self.backlog;
        let waiting = before + arrived;
        let served = waiting.min(capacity);
        let after = waiting - served;
        self.backlog = after.min(capacity * give_up / STEP);
        let is_late = before.max(after) > capacity * patience / STEP;
        StepResult {
            arrived,
            late: if is_late { arrived } else { 0 },
            used: served * STEPS_PER_MINUTE / per_core.max(1),
            held: u64::from(self.size.count) * self.size.cpu,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MODEL: ServiceModel =
        ServiceModel { per_core: 400, start_steps: 3, patience: 1000, give_up: 30_000 };

    fn size(count: u32, cpu: u64) -> ScaleSize {
        ScaleSize { count, cpu, ram: 0 }
    }

    /// Requests of a step that one core just serves.
    const ONE_CORE: u64 = 100_000;

    #[test]
    fn a_service_is_late_when_its_queue_is_longer_than_its_patience() {
        let mut service = Service::new(MODEL, size(2, 1000));
        let even = service.step(2 * ONE_CORE);
        assert_eq!(even, StepResult { arrived: 2 * ONE_CORE, late: 0, used: 2000, held: 2000 });
        assert_eq!(service.step(ONE_CORE).used, 1000);
        // A second of work is a fifteenth of a step.
        assert_eq!(service.step(2 * ONE_CORE + 2 * ONE_CORE / 15).late, 0);
        let over = service.step(2 * ONE_CORE + 100);
        assert_eq!((over.late, over.used), (2 * ONE_CORE + 100, 2000));
        // Nobody waits longer than half a minute.
        service.step(100 * ONE_CORE);
        assert_eq!(service.backlog, 4 * ONE_CORE);
        assert!(service.step(0).late == 0 && service.step(0).used == 2000);
        assert_eq!(service.step(0).used, 0);
    }

    #[test]
    fn tasks_take_time_to_start_and_limits_do_not() {
        let mut service = Service::new(MODEL, size(1, 1000));
        service.resize(size(3, 1000));
        let used: Vec<u64> = (0..4).map(|_| service.step(10 * ONE_CORE).used).collect();
        assert_eq!(used, [1000, 1000, 3000, 3000]);
        service.resize(size(3, 500));
        assert_eq!(service.step(10 * ONE_CORE).used, 1500);
        service.resize(size(5, 500));
        service.resize(size(4, 500));
        service.resize(size(2, 500));
        assert_eq!((service.ready(), service.starting.len()), (2, 0));
        assert_eq!(service.step(0).held, 1000);
    }
}
