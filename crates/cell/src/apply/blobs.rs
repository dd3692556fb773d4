//! Blobs are added when the masters have the bytes, and removed when nothing needs them: a live job
//! or a periodic one that names the digest keeps it.

use super::Context;
use crate::blob::{self, Blob, BlobLimits, StoredPackages};
use crate::bounds::BoundKind;
use crate::command::{Done, Verdict};
use crate::event::{BlobChange, EventKind};
use crate::name::Token;
use crate::reason::{Conflict, Object, Reason, Rejection, Storage};
use crate::spec::JobSpec;

impl Context<'_> {
    pub(super) fn add_blob(&mut self, digest: &Token, bytes: u64, limits: BlobLimits) -> Verdict {
        blob::check_digest_and_size(digest, bytes)?;
        if let Some(old) = self.state.blob_named(digest).and_then(|id| self.state.blobs.get(id)) {
            return if old.bytes == bytes {
                Ok(Done::Unchanged)
            } else {
                Err(Rejection::Exists(Object::Package { digest: digest.clone(), bytes: old.bytes }))
            };
        }
        let own = self.state.blobs.iter().filter(|(_, blob)| blob.by == *self.by).count();
        self.check_one_more(BoundKind::Packages, own, self.state.bounds.packages)?;
        if !self.state.blobs.has_room_for(1) {
            return Err(Rejection::Full(Storage::Packages));
        }
        let stored = StoredPackages::of(self.state.blobs.iter().map(|(_, row)| row), self.by);
        stored.check_quota(self.by, bytes, limits)?;
        let (digest, created, by) = (digest.clone(), self.now, self.by.clone());
        let blob = self.state.insert_blob(Blob { digest, bytes, created, by });
        self.emit(EventKind::Blob { blob, change: BlobChange::Added }, Reason::Requested);
        Ok(Done::Applied)
    }

    /// Allowed for the actor that added it, and for administrators of jobs.
    pub(super) fn remove_blob(&mut self, digest: &Token) -> Verdict {
        let id = self.state.blob_named(digest);
        let blob = id.ok_or_else(|| Rejection::NoSuchBlob(digest.clone()))?;
        if let Some(needed) = self.needed_by(digest) {
            return Err(Rejection::WrongState(needed));
        }
        self.state.remove_blob(blob);
        self.emit(EventKind::Blob { blob, change: BlobChange::Removed }, Reason::Requested);
        Ok(Done::Applied)
    }

    /// A job whose tasks would not start without it.
    fn needed_by(&self, digest: &Token) -> Option<Conflict> {
        let names = |spec: &JobSpec| spec.task.packages.iter().any(|p| p.digest == *digest);
        let live = self.state.jobs.iter().filter(|(_, job)| !job.is_dead());
        let job = live.map(|(id, job)| (id, job.specs.values().any(|spec| names(spec))));
        let job = job.filter(|(_, named)| *named).find_map(|(id, _)| self.state.job_key(id));
        let cron = || self.state.crons().iter().find(|(_, cron)| names(&cron.spec.job));
        let cron = || self.state.cron_key(cron()?.0);
        let (by, is_cron) = job.map(|key| (key, false)).or_else(|| Some((cron()?, true)))?;
        Some(Conflict::PackageNeeded { digest: digest.clone(), by, is_cron })
    }
}

#[cfg(test)]
mod tests {
    use crate::apply::fixture::{Cell, job, key, name};
    use crate::blob::{BlobLimits, MIN_CHARGED_BYTES};
    use crate::command::{Command, Done};
    use crate::cron::schedule::Schedule;
    use crate::cron::{CronSpec, MissedRuns, Overlap};
    use crate::name::Token;
    use crate::spec::{JobSpec, PackageRef};
    use crate::words;

    fn digest(letter: &str) -> Token {
        Token::new(&letter.repeat(64)).unwrap()
    }

    fn add(letter: &str, bytes: u64) -> Command {
        Command::AddBlob { digest: digest(letter), bytes, limits: BlobLimits::UNLIMITED }
    }

    fn remove(letter: &str) -> Command {
        Command::RemoveBlob { digest: digest(letter) }
    }

    fn with_package(named: &str, letter: &str) -> JobSpec {
        let mut spec = job(named, 1, 0);
        let package = Token::new("server").unwrap();
        spec.task.packages = vec![PackageRef { name: package, digest: digest(letter), bytes: 9 }];
        spec
    }

    #[test]
    fn blobs_are_added_once_and_removed_by_who_brought_them() {
        let mut cell = Cell::with_machines(0);
        cell.ok(Command::AddUser { name: name("ufoo") });
        let check = |cell: &mut Cell, by: &str, command, want: &str| {
            let got = cell.send_as(by, command);
            assert_eq!(words::verdict(&cell.state, &got), want);
        };
        let a = "a".repeat(64);
        check(&mut cell, "ubar", add("a", 9), "done");
        check(&mut cell, "ufoo", add("a", 9), "nothing to do");
        let other = format!("refused: package {a} of 9 bytes exists already");
        check(&mut cell, "ufoo", add("a", 8), &other);
        let lacks = "refused: user ufoo lacks the capability administrate_jobs";
        check(&mut cell, "ufoo", remove("a"), lacks);
        check(&mut cell, "ufoo", remove("b"), lacks);
        check(&mut cell, "nobody", add("b", 9), "refused: there is no user nobody");
        check(&mut cell, "ubar", remove("a"), "done");
        assert_eq!(cell.rejection_text(remove("a")), format!("there is no package {a}"));
        let (digest, limits) = (Token::new("abc").unwrap(), BlobLimits::UNLIMITED);
        let short = Command::AddBlob { digest, bytes: 1, limits };
        assert!(cell.rejection_text(short).starts_with("field digest: value abc is not valid"));
        assert!(cell.rejection_text(add("A", 1)).starts_with("field digest"));
        assert!(cell.rejection_text(add("a", 1 << 51)).starts_with("field bytes"));
    }

    #[test]
    fn packages_stay_within_the_quota_of_their_user_and_of_the_cell() {
        let mut cell = Cell::with_machines(0);
        cell.ok(Command::AddUser { name: name("ufoo") });
        let limits = BlobLimits { per_user: 3 * MIN_CHARGED_BYTES, in_all: 5 * MIN_CHARGED_BYTES };
        let mut check = |by: &str, letter: &str, bytes, want: &str| {
            let got = cell.send_as(by, Command::AddBlob { digest: digest(letter), bytes, limits });
            assert_eq!(words::verdict(&cell.state, &got), want);
        };
        check("ubar", "a", 2 * MIN_CHARGED_BYTES, "done");
        // However small it is, a package costs a row and a file.
        check("ubar", "b", 1, "done");
        let own = "refused: packages of ubar take 196608 bytes; 65536 more would exceed the quota \
                   of 196608";
        check("ubar", "c", 0, own);
        check("ubar", "a", 2 * MIN_CHARGED_BYTES, "nothing to do");
        check("ufoo", "c", 2 * MIN_CHARGED_BYTES, "done");
        let all = "refused: packages of the cell take 327680 bytes; 65536 more would exceed the \
                   quota of 327680";
        check("ufoo", "d", 9, all);
    }

    #[test]
    fn what_a_job_needs_stays() {
        let mut cell = Cell::with_machines(0);
        cell.ok(add("a", 9));
        cell.ok(add("b", 9));
        cell.submit(&with_package("jfoo", "a"));
        let cron = CronSpec {
            name: name("tick"),
            schedule: Schedule::new("0 0 * * *").unwrap(),
            job: with_package("tick", "b"),
            missed: MissedRuns::Skip,
            overlap: Overlap::Allow,
            paused: false,
            keep_runs: 1,
        };
        cell.ok(crate::cron::Command::Set {
            owner: name("ubar"),
            spec: Box::new(cron),
            expect: None,
        });
        let needs = |who: &str, letter: &str| {
            format!("not possible while {who} needs package {}", letter.repeat(64))
        };
        assert_eq!(cell.rejection_text(remove("a")), needs("job ubar/jfoo", "a"));
        assert_eq!(cell.rejection_text(remove("b")), needs("periodic job ubar/tick", "b"));
        cell.ok(Command::StopJob { job: key("ubar/jfoo"), expect: None });
        assert_eq!(cell.ok(remove("a")), Done::Applied);
        cell.ok(crate::cron::Command::Remove { cron: key("ubar/tick"), expect: None });
        assert_eq!(cell.ok(remove("b")), Done::Applied);
    }
}
