//! Expiry: whatever ends by the passing of time ends by a command of a controller, never by itself,
//! because the state has no clock. One command checks leases of ephemeral resources, disk retained
//! for log savers, quota spans, tokens and the replay windows of silent clients.

use super::Context;
use crate::command::{Done, Verdict};
use crate::components;
use crate::id::UserId;
use crate::priority::Band;

impl Context<'_> {
    pub(super) fn expire(&mut self) -> Verdict {
        let events = self.events.len();
        components::expire(self);
        self.expire_retained();
        self.expire_quotas();
        self.expire_tokens();
        let windows = self.state.windows.expire(self.now);
        if windows || self.events.len() > events { Ok(Done::Applied) } else { Ok(Done::Unchanged) }
    }

    /// A span that began or ended changes the grant without a request.
    fn expire_quotas(&mut self) {
        let quotas: Vec<(UserId, Band)> = self
            .state
            .users
            .iter()
            .flat_map(|(id, user)| user.quota.keys().map(move |band| (id, *band)))
            .collect();
        for (user, band) in quotas {
            self.settle_quota(user, band);
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::apply::fixture::{Cell, all, job, name};
    use crate::command::{Command, Done, Observed};
    use crate::id::MachineId;
    use crate::priority::Band;
    use crate::quota::Quota;
    use crate::spec::RetainDisk;
    use crate::time::{Span, Time};

    const M1: MachineId = MachineId(0);

    /// A cell in which `jfoo/0` left 4 bytes on `m1`, kept for a second.
    fn with_retained() -> Cell {
        let mut cell = Cell::with_machines(1);
        let mut spec = job("jfoo", 1, 100);
        spec.retain_disk = Some(RetainDisk { bytes: 4, keep: Span::seconds(1), log_saver: None });
        cell.submit(&spec);
        cell.run("jfoo", 0, "m1");
        cell.report("jfoo", 0, Observed::Finished);
        assert_eq!(disk(&cell), 4);
        cell
    }

    fn disk(cell: &Cell) -> u64 {
        cell.state.machine_load(M1).unwrap().reserved.disk
    }

    #[test]
    fn retained_disk_stays_charged_until_its_time_is_over() {
        let mut cell = with_retained();
        let until = cell.now + 1000;
        cell.now = until - 2;
        assert_eq!(cell.ok(Command::Expire), Done::Unchanged);
        assert_eq!(disk(&cell), 4);
        assert_eq!(cell.ok(Command::Expire), Done::Applied);
        assert_eq!(disk(&cell), 0);
        assert_eq!(cell.event_lines.len(), 1);
        assert_eq!(cell.ok(Command::Expire), Done::Unchanged);
    }

    #[test]
    fn retained_disk_is_released_once() {
        let mut cell = with_retained();
        let task = cell.task_id("jfoo", 0);
        let release = |attempt| Command::ReleaseRetained { machine: M1, task, attempt };
        assert_eq!(cell.ok(release(2)), Done::Unchanged);
        assert_eq!(cell.ok(release(1)), Done::Applied);
        assert_eq!(disk(&cell), 0);
        assert_eq!(cell.ok(release(1)), Done::Unchanged);
    }

    #[test]
    fn a_quota_that_runs_out_is_noticed() {
        let mut cell = Cell::with_machines(1);
        let quota = Quota { amount: all(50), from: Time::ZERO, until: Time(500) };
        let (user, band) = (name("ubar"), Band::Batch);
        cell.ok(Command::SetQuota { user, band, quota: Some(quota), expect: None });
        cell.submit(&job("jfoo", 1, 100));
        cell.now = 498;
        assert_eq!(cell.ok(Command::Expire), Done::Unchanged);
        assert_eq!(cell.ok(Command::Expire), Done::Applied);
        let user = cell.state.users().get(crate::id::UserId(0)).unwrap();
        assert!(user.exceeded.contains(&Band::Batch));
    }

    #[test]
    fn windows_of_silent_clients_are_forgotten() {
        use crate::command::{Actor, Entry, Request, RequestId};
        let mut cell = Cell::with_machines(1);
        let id = Some(RequestId { client: 7, sequence: 1 });
        let command = Command::StartDrain { name: name("m1"), expect: None };
        let requests = vec![Request { by: Actor::Operator, id, command }];
        cell.state.apply(&Entry { now: Time(cell.now), requests }, &mut Vec::new());
        assert_eq!(cell.state.windows.len(), 1);
        cell.now += crate::replay_windows::WINDOW_RETENTION.0;
        assert_eq!(cell.ok(Command::Expire), Done::Applied);
        assert_eq!(cell.state.windows.len(), 0);
    }
}
