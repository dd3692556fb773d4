//! Users, their capabilities (B12) and their quota (B11).
//!
//! Quota in the prod bands is a promise of real machines, so the sum over all users is kept below
//! the cell's capacity at every moment of every span. In the lower bands more is sold than there
//! is, on purpose: reclaimed room and idle machines are to be used.

use super::Context;
use crate::admit;
use crate::bounds::BoundKind;
use crate::command::{Done, Verdict};
use crate::event::{EventKind, UserChange};
use crate::id::UserId;
use crate::job::Job;
use crate::name::Name;
use crate::priority::Band;
use crate::quota::{Capability, Quota};
use crate::reason::{Allowed, Conflict, Given, Object, Reason, Rejection, Storage};
use crate::resource::{Resources, Shortfall};
use crate::state::State;
use crate::time::Time;
use std::collections::BTreeSet;

impl Context<'_> {
    pub(super) fn add_user(&mut self, name: &Name) -> Verdict {
        if self.state.user_named(name).is_some() {
            return Ok(Done::Unchanged);
        }
        if !self.state.users.has_room_for(1) {
            return Err(Rejection::Full(Storage::Users));
        }
        let user = self.state.insert_user(name.clone());
        self.emit(EventKind::User { user, change: UserChange::Added }, Reason::Requested);
        Ok(Done::Applied)
    }

    /// A user with live jobs cannot be removed; dead jobs are purged with their owner.
    pub(super) fn remove_user(&mut self, name: &Name, expect: Option<u32>) -> Verdict {
        let user = self.user_by_name(name)?;
        self.check_expected_user(name, user, expect)?;
        let counts = |job: &Job| job.user == user && !job.is_dead();
        let live = self.state.jobs.iter().filter(|(_, job)| counts(job)).count();
        let has = |what, held| {
            Rejection::WrongState(Conflict::UserHas { user: name.clone(), what, held })
        };
        if live > 0 {
            return Err(has(BoundKind::Jobs, live as u64));
        }
        if let Some((what, held)) = self.state.components.blocks_user_removal(user) {
            return Err(has(what, held));
        }
        let dead = self.state.jobs.iter().filter(|(_, job)| job.user == user).count();
        let held = dead - self.purgeable_jobs(|_, job| job.user == user).len();
        if held > 0 {
            let (user, dead) = (name.clone(), held as u32);
            return Err(Rejection::WrongState(Conflict::UserLeft { user, dead }));
        }
        // Dead jobs do not keep a user in the cell; the event feed still has their history.
        self.purge(|_, job| job.user == user);
        self.drop_tokens_of(name);
        self.state.remove_user(user);
        self.emit(EventKind::User { user, change: UserChange::Removed }, Reason::Requested);
        Ok(Done::Applied)
    }

    pub(super) fn set_capabilities(
        &mut self,
        name: &Name,
        capabilities: &BTreeSet<Capability>,
        expect: Option<u32>,
    ) -> Verdict {
        let user = self.user_by_name(name)?;
        if self.state.users.get(user).is_some_and(|row| row.capabilities == *capabilities) {
            return Ok(Done::Unchanged);
        }
        self.check_expected_user(name, user, expect)?;
        if let Some(row) = self.state.users.get_mut(user) {
            row.capabilities = capabilities.clone();
            row.version = row.version.saturating_add(1);
        }
        self.emit(
            EventKind::User { user, change: UserChange::CapabilitiesChanged },
            Reason::Requested,
        );
        match self.drop_unauthorized_tokens(name, capabilities) {
            0 => Ok(Done::Applied),
            tokens => Ok(Done::Revoked(u32::try_from(tokens).unwrap_or(u32::MAX))),
        }
    }

    /// A cut below the charge is not rejected: jobs stay, the excess is flagged, and nothing more
    /// is admitted until it is gone.
    pub(super) fn set_quota(
        &mut self,
        name: &Name,
        band: Band,
        quota: Option<Quota>,
        expect: Option<u32>,
    ) -> Verdict {
        let user = self.user_by_name(name)?;
        let old = self.state.users.get(user).and_then(|row| row.quota.get(&band).copied());
        if old == quota {
            return Ok(Done::Unchanged);
        }
        self.check_expected_user(name, user, expect)?;
        if let Some(quota) = &quota {
            check_quota(quota)?;
            let shrinks = old.is_some_and(|old| shrinks(&old, quota));
            if band.is_prod()
                && !shrinks
                && let Some(shortfall) = oversold(self.state, user, band, quota)
            {
                return Err(Rejection::QuotaOversold(shortfall));
            }
        }
        if let Some(row) = self.state.users.get_mut(user) {
            row.version = row.version.saturating_add(1);
            match quota {
                Some(quota) => row.quota.insert(band, quota),
                None => row.quota.remove(&band),
            };
        }
        self.charged.push((user, band));
        let change = UserChange::QuotaChanged { band };
        self.emit(EventKind::User { user, change }, Reason::Requested);
        Ok(Done::Applied)
    }

    fn check_expected_user(
        &self,
        name: &Name,
        user: UserId,
        expect: Option<u32>,
    ) -> Result<(), Rejection> {
        let found = self.state.users.get(user).map_or(0, |row| row.version);
        Self::check_expected(|| Object::User(name.clone()), found, expect)
    }
}

fn check_quota(quota: &Quota) -> Result<(), Rejection> {
    admit::check_bounded("quota.amount", quota.amount, admit::MAX_TOTAL)?;
    if quota.from < quota.until {
        return Ok(());
    }
    let allowed = Allowed::AfterQuotaFrom(quota.from);
    Err(Rejection::bad_field("quota.until", Given::text(quota.until.0), allowed))
}

/// Whether a grant only shrinks, which is possible even in a cell that has lost machines.
fn shrinks(old: &Quota, new: &Quota) -> bool {
    new.amount.within(old.amount) && new.from >= old.from && new.until <= old.until
}

/// What would be sold beyond the cell if `quota` became that of `user` in `band`. Sums rise only
/// where some quota starts, so only those moments are checked.
fn oversold(state: &State, user: UserId, band: Band, quota: &Quota) -> Option<Shortfall> {
    let others = state.users.iter().flat_map(|(id, row)| {
        let prod = row.quota.iter().filter(move |(b, _)| b.is_prod() && (id, **b) != (user, band));
        prod.map(|(_, quota)| *quota)
    });
    let overlaps = |other: &Quota| other.from < quota.until && quota.from < other.until;
    let sold: Vec<Quota> = others.filter(overlaps).chain([*quota]).collect();
    let mut changes: Vec<(Time, bool, Resources)> = sold
        .iter()
        .flat_map(|q| [(q.from.max(quota.from), true, q.amount), (q.until, false, q.amount)])
        .collect();
    // At equal times ends come first: a span does not include its last moment.
    changes.sort_unstable();
    let mut sum = Resources::ZERO;
    changes.into_iter().find_map(|(_, starts, amount)| {
        sum = if starts { sum.plus(amount) } else { sum.minus(amount) };
        if starts { sum.first_excess(state.capacity()) } else { None }
    })
}

#[cfg(test)]
mod tests {
    use crate::apply::fixture::{Cell, all, job, key, name};
    use crate::command::{Command, Done};
    use crate::job_size::JobSize;
    use crate::priority::Band;
    use crate::quota::{Capability, Quota};
    use crate::time::Time;
    use crate::words;
    use std::collections::BTreeSet;

    /// Makes grants one after the other in a cell of capacity 100: `(user, band, amount, from,
    /// until)`.
    fn check_sale(grants: &[(&str, Band, u64, u64, u64)], want: &str) {
        let mut cell = Cell::default();
        cell.ok(Command::AddMachine(crate::apply::fixture::machine("m1", 100)));
        for user in ["ua", "ub", "uc"] {
            cell.ok(Command::AddUser { name: name(user) });
        }
        let mut message = String::new();
        for (user, band, amount, from, until) in grants {
            let quota = Quota { amount: all(*amount), from: Time(*from), until: Time(*until) };
            let command = Command::SetQuota {
                user: name(user),
                band: *band,
                quota: Some(quota),
                expect: None,
            };
            let verdict = cell.send(command);
            message = words::verdict(&cell.state, &verdict);
        }
        assert_eq!(message, want, "{grants:?}");
    }

    #[test]
    fn prod_quota_is_never_sold_beyond_the_cell() {
        use Band::{Batch, Monitoring, Production};
        let oversold = "refused: prod quota sold would exceed the cell's capacity: \
            cpu: asked 0.101 cores, available 0.1 cores, short by 0.001 cores";
        check_sale(&[("ua", Production, 100, 0, 9)], "done");
        check_sale(&[("ua", Production, 101, 0, 9)], oversold);
        check_sale(&[("ua", Batch, 1_000_000, 0, 9)], "done");
        check_sale(&[("ua", Production, 60, 0, 9), ("ub", Monitoring, 41, 0, 9)], oversold);
        // Consecutive spans do not overlap.
        check_sale(&[("ua", Production, 60, 0, 5), ("ub", Production, 100, 5, 9)], "done");
        check_sale(&[("ua", Production, 60, 0, 6), ("ub", Production, 41, 5, 9)], oversold);
        let three = [("ua", Production, 60, 0, 5), ("ub", Production, 60, 7, 9)];
        check_sale(&[three[0], three[1], ("uc", Production, 40, 0, 9)], "done");
        check_sale(&[three[0], three[1], ("uc", Production, 41, 0, 9)], oversold);
        let next = [("ua", Production, 60, 0, 5), ("ub", Production, 60, 5, 9)];
        check_sale(&[next[0], next[1], ("uc", Production, 40, 0, 9)], "done");
        // A user's own old grant does not count against the new one.
        check_sale(&[("ua", Production, 60, 0, 9), ("ua", Production, 100, 0, 9)], "done");
        check_sale(&[("ua", Production, 60, 0, 9), ("ua", Production, 60, 0, 9)], "nothing to do");
        let span = "refused: field quota.until: value 3 is not valid; allowed: after quota.from, 3";
        check_sale(&[("ua", Batch, 1, 3, 3)], span);
        let huge = "refused: field quota.amount.cpu: value 18446744073709551615 is not valid; \
            allowed: at most 1152921504606846976";
        check_sale(&[("ua", Batch, u64::MAX, 0, 9)], huge);
    }

    #[test]
    fn a_cut_below_the_charge_is_flagged_and_recovers() {
        let mut cell = Cell::with_machines(1);
        cell.submit(&job("jfoo", 5, 200));
        cell.grant("ubar", Band::Production, 40);
        let cut = [
            "user ubar has another production quota: requested",
            "user ubar exceeds the production quota: more is held than there is",
        ];
        assert_eq!(cell.event_lines, cut);
        cell.ok(Command::ResizeJob {
            job: key("ubar/jfoo"),
            size: JobSize::tasks(4),
            expect: None,
        });
        let last = "user ubar is within the production quota again: no more is held than there is";
        assert_eq!(cell.event_lines.last().map(String::as_str), Some(last));
    }

    #[test]
    fn users_come_and_go_only_without_jobs() {
        let mut cell = Cell::with_machines(1);
        assert_eq!(cell.ok(Command::AddUser { name: name("ubar") }), Done::Unchanged);
        cell.submit(&job("jfoo", 1, 0));
        let remove = || Command::RemoveUser { name: name("ubar"), expect: None };
        assert_eq!(cell.rejection_text(remove()), "not possible while user ubar has 1 live job");
        cell.ok(Command::StopJob { job: key("ubar/jfoo"), expect: None });
        // Dead jobs are purged with their owner.
        assert_eq!(cell.ok(remove()), Done::Applied);
        assert_eq!(cell.state.job_named(&key("ubar/jfoo")), None);
        assert_eq!(cell.rejection_text(remove()), "there is no user ubar");
        cell.ok(Command::AddUser { name: name("ubar") });
        let capabilities = BTreeSet::from([Capability::ManageUsers]);
        let set = || {
            let capabilities = capabilities.clone();
            Command::SetCapabilities { user: name("ubar"), capabilities, expect: None }
        };
        assert_eq!(cell.ok(set()), Done::Applied);
        assert_eq!(cell.ok(set()), Done::Unchanged);
        cell.send_as("ubar", Command::AddUser { name: name("ufoo") }).unwrap();
    }
}
