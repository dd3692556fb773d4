//! The state of a cell: rows that are saved and hashed, and sums derived from them.
//!
//! Rows change only through the `edit_*` functions of `crate::edit`, which keep the derived sums
//! equal to their parts; the rules that decide *whether* a row may change live in [`crate::apply`].

use crate::blob::Blob;
use crate::bounds::Bounds;
use crate::components::Components;
use crate::credential::{AccessToken, PartKind, TokenKind};
use crate::id::{BlobId, JobId, MachineId, TaskId, TokenId, UserId};
use crate::index::Index;
use crate::job::{Job, JobOutcome, JobState};
use crate::load::{AllocLoad, JobLoad, MachineLoad, UserLoad};
use crate::machine::Machine;
use crate::name::{JobKey, Name, Token};
use crate::quota::User;
use crate::replay_windows::ReplayWindows;
use crate::resource::Resources;
use crate::spec::JobSpec;
use crate::table::Key;
use crate::table::Table;
use crate::tables::{RowRef, TableName, TableRow, each_table};
use crate::task::Task;
use crate::time::Time;
use std::collections::BTreeSet;
use std::sync::Arc;

/// The newest level of behaviour of `apply` that this build supports (a feature level). A cell
/// starts at 1, whatever build creates it, and is raised by a command once every replica supports
/// the next level, so that a log means the same to every replica that replays it. A change of
/// behaviour after a release adds a level here with a constant that names its purpose, and the
/// changed rule checks `state.level >= THAT`.
///
/// A level also begins a format of what is written to the log ([`crate::encode`]).
pub const LEVEL: u32 = 1;

/// The newest level that `apply` accepts. Builds for tests accept one more than they were made for,
/// so that raising it is tried before there is a release that does; which level a process says it
/// knows, and raises its cell to, is told it by whoever starts it, and [`LEVEL`] if nobody does.
pub const HIGHEST_LEVEL: u32 = if cfg!(any(test, debug_assertions)) { LEVEL + 1 } else { LEVEL };

#[derive(Clone, Debug)]
pub struct State {
    /// Components, which keep their rows and the data derived from them to themselves.
    pub(crate) components: Components,
    // Saved and hashed.
    pub(crate) level: u32,
    pub(crate) now: Time,
    pub(crate) bounds: Bounds,
    pub(crate) machines: Table<MachineId, Machine>,
    pub(crate) jobs: Table<JobId, Job>,
    pub(crate) tasks: Table<TaskId, Task>,
    pub(crate) users: Table<UserId, User>,
    pub(crate) tokens: Table<TokenId, AccessToken>,
    pub(crate) blobs: Table<BlobId, Blob>,
    pub(crate) windows: ReplayWindows,
    pub(crate) applied: u64,
    /// Above every attempt of a purged task row. New rows start here, so that a late report about
    /// the former user of a row never names an attempt of the present one.
    pub(crate) attempt_floor: u32,
    // Derived.
    pub(crate) machine_loads: Table<MachineId, MachineLoad>,
    pub(crate) job_loads: Table<JobId, JobLoad>,
    pub(crate) user_loads: Table<UserId, UserLoad>,
    pub(crate) alloc_loads: Index<TaskId, AllocLoad>,
    pub(crate) machine_names: Index<Name, MachineId>,
    pub(crate) user_names: Index<Name, UserId>,
    pub(crate) job_names: Index<(UserId, Name), JobId>,
    pub(crate) token_names: Index<Name, TokenId>,
    pub(crate) blob_names: Index<Token, BlobId>,
    /// Jobs deferred until the key has ended.
    pub(crate) dependents: Index<JobId, BTreeSet<JobId>>,
    /// Vacant task rows; the smallest is used next, so that replicas agree after a reload.
    pub(crate) vacant_tasks: Arc<BTreeSet<TaskId>>,
    /// Sum of the capacity of all machines.
    pub(crate) capacity: Resources,
}

impl Default for State {
    fn default() -> Self {
        State {
            components: Components::default(),
            level: 1,
            now: Time::ZERO,
            bounds: Bounds::default(),
            machines: Table::default(),
            jobs: Table::default(),
            tasks: Table::default(),
            users: Table::default(),
            tokens: Table::default(),
            blobs: Table::default(),
            windows: ReplayWindows::default(),
            applied: 0,
            attempt_floor: 0,
            machine_loads: Table::default(),
            job_loads: Table::default(),
            user_loads: Table::default(),
            alloc_loads: Index::default(),
            machine_names: Index::default(),
            user_names: Index::default(),
            job_names: Index::default(),
            token_names: Index::default(),
            blob_names: Index::default(),
            dependents: Index::default(),
            vacant_tasks: Arc::default(),
            capacity: Resources::ZERO,
        }
    }
}

/// The id under which the revocation of a part is stored among the tokens. Names may be as long as
/// ids, so the id is made from the name's hash; parts with the same hash are distinguished by the
/// row.
pub(crate) fn revocation_id(part: PartKind, name: &Name) -> Option<Name> {
    let hash = xxhash_rust::xxh3::xxh3_64(name.as_str().as_bytes());
    Name::new(&format!("gone-{part}-{hash:016x}")).ok()
}

/// Reading.
impl State {
    pub fn level(&self) -> u32 {
        self.level
    }
    /// Per-user limits, and the least that a task is charged.
    pub fn bounds(&self) -> &Bounds {
        &self.bounds
    }

    /// Time of the last applied entry.
    pub fn now(&self) -> Time {
        self.now
    }
    /// Number of entries applied so far.
    pub fn applied(&self) -> u64 {
        self.applied
    }
    pub fn machines(&self) -> &Table<MachineId, Machine> {
        &self.machines
    }
    pub fn jobs(&self) -> &Table<JobId, Job> {
        &self.jobs
    }
    pub fn tasks(&self) -> &Table<TaskId, Task> {
        &self.tasks
    }
    pub fn users(&self) -> &Table<UserId, User> {
        &self.users
    }
    pub fn tokens(&self) -> &Table<TokenId, AccessToken> {
        &self.tokens
    }
    pub fn blobs(&self) -> &Table<BlobId, Blob> {
        &self.blobs
    }
    /// Replay windows: recent answers to clients, for repeated requests.
    pub fn windows(&self) -> &ReplayWindows {
        &self.windows
    }
    pub fn capacity(&self) -> Resources {
        self.capacity
    }
    pub fn machine_load(&self, machine: MachineId) -> Option<&MachineLoad> {
        self.machine_loads.get(machine)
    }
    pub fn job_load(&self, job: JobId) -> Option<&JobLoad> {
        self.job_loads.get(job)
    }
    pub fn user_load(&self, user: UserId) -> Option<&UserLoad> {
        self.user_loads.get(user)
    }
    /// The sums of what tasks inside an alloc hold; `None` when nothing is inside.
    pub fn alloc_load(&self, alloc: TaskId) -> Option<&AllocLoad> {
        self.alloc_loads.get(&alloc)
    }
    pub fn machine_named(&self, name: &Name) -> Option<MachineId> {
        self.machine_names.get(name).copied()
    }
    pub fn user_named(&self, name: &Name) -> Option<UserId> {
        self.user_names.get(name).copied()
    }
    pub fn job_named(&self, key: &JobKey) -> Option<JobId> {
        let user = self.user_named(&key.user)?;
        self.job_names.get(&(user, key.job.clone())).copied()
    }
    pub fn token_named(&self, id: &Name) -> Option<TokenId> {
        self.token_names.get(id).copied()
    }
    /// The revocation of a part, while it is remembered.
    pub fn revocation(&self, part: PartKind, name: &Name) -> Option<TokenId> {
        let id = self.token_named(&revocation_id(part, name)?)?;
        let row = self.tokens.get(id)?;
        let same = matches!(&row.kind, TokenKind::Revocation { part: p, name: n }
            if *p == part && n == name);
        same.then_some(id)
    }
    /// Whether the certificates of this part are revoked.
    pub fn is_revoked(&self, part: PartKind, name: &Name) -> bool {
        self.revocation(part, name).is_some()
    }
    /// The blob with this digest.
    pub fn blob_named(&self, digest: &Token) -> Option<BlobId> {
        self.blob_names.get(digest).copied()
    }
    /// The spec a task runs under.
    pub fn spec_of(&self, task: &Task) -> Option<&Arc<JobSpec>> {
        Some(self.jobs.get(task.job)?.spec_of(task.version))
    }
    /// `user/job/index` for people.
    pub fn task_name(&self, task: TaskId) -> String {
        let named = self.tasks.get(task).and_then(|row| {
            let job = self.jobs.get(row.job)?;
            let user = self.users.get(job.user)?;
            Some(format!("{}/{}/{}", user.name, job.name, row.index))
        });
        named.unwrap_or_else(|| format!("task#{}", task.0))
    }

    /// `user/job` for people and specs.
    pub fn job_key(&self, job: JobId) -> Option<JobKey> {
        let row = self.jobs.get(job)?;
        let user = self.users.get(row.user)?.name.clone();
        Some(JobKey { user, job: row.name.clone() })
    }

    /// Of a job that never ran: the first of its dependencies that did not succeed, while that job
    /// is still known.
    pub fn failed_dependency(&self, job: &Job) -> Option<JobId> {
        let needed = job.spec().after.iter().filter(|after| after.require_success);
        let failed = |id: &JobId| {
            let state = self.jobs.get(*id).map(|row| row.state);
            matches!(state, Some(JobState::Dead(outcome)) if outcome != JobOutcome::Succeeded)
        };
        needed.filter_map(|after| self.job_named(&after.job)).find(failed)
    }

    /// The name of a row as people see it, while the row exists; `None` for rows without a name.
    pub fn row_name(&self, row: RowRef) -> Option<String> {
        let (state, slot) = (self, row.slot as usize);
        macro_rules! name {
            ($($field:ident $variant:ident $word:literal ($id:ty, $row:ty)
                at $($place:ident).+;)*) => {
                match row.table {
                    $(TableName::$variant => {
                        state.$($place).+.get(<$id>::from_slot(slot))?.name(state)
                    })*
                    TableName::Windows => None,
                }
            };
        }
        each_table!(name)
    }

    /// All rows of a table.
    pub fn rows_of(&self, table: TableName) -> Vec<RowRef> {
        let state = self;
        macro_rules! list {
            ($($field:ident $variant:ident $word:literal ($id:ty, $row:ty)
                at $($place:ident).+;)*) => {
                match table {
                    $(TableName::$variant => {
                        state.$($place).+.iter().map(|(id, _)| RowRef::from(id)).collect()
                    })*
                    TableName::Windows => Vec::new(),
                }
            };
        }
        each_table!(list)
    }

    /// Hash over everything saved; equal on replicas of one build that applied the same entries.
    /// Answers kept for repeated requests are data without words, so a build that words them
    /// differently has the same hash.
    pub fn hash(&mut self) -> u64 {
        let mut scratch = Vec::with_capacity(512);
        let mut parts = vec![
            self.applied,
            u64::from(self.level),
            u64::from(self.attempt_floor),
            self.now.0,
            self.windows.hash(),
            cellwright_rows::bytes::hash(&self.bounds),
        ];
        let tables = &mut *self;
        macro_rules! hash {
            ($($field:ident $variant:ident $word:literal ($id:ty, $row:ty)
                at $($place:ident).+;)*) => {
                $(
                    let table = &mut tables.$($place).+;
                    // A table that was never used adds nothing: a build that has it agrees with one
                    // that does not, until there is a row.
                    if table.slots() > 0 {
                        parts.push(xxhash_rust::xxh3::xxh3_64($word.as_bytes()));
                        parts.push(table.slots() as u64);
                        parts.push(table.hash(&mut scratch));
                    }
                )*
            };
        }
        each_table!(hash);
        scratch.clear();
        parts.iter().for_each(|p| scratch.extend_from_slice(&p.to_le_bytes()));
        xxhash_rust::xxh3::xxh3_64(&scratch)
    }
}
