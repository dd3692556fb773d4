//! Configuration of a replica: what an operator can set, the defaults, and the reasons for them.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use cellwright_supervise::Supervisor;
use openraft::{Config, SnapshotPolicy};

use crate::error::OpenError;

/// Called once when continuing would put a promise at risk, most of all after a failed flush.
pub type FatalHook = Arc<dyn Fn(&str) + Send + Sync>;

/// The default hook: prints the reason and ends the process. After a failed flush the kernel may
/// have dropped the dirty pages, so a second flush that succeeds would prove nothing. The only
/// honest continuation is to start again from what is really on the disk.
#[expect(clippy::disallowed_methods, reason = "no destructor may touch the disk any more")]
pub fn exit_process(why: &str) {
    /// `EX_IOERR` of sysexits.
    const INPUT_OUTPUT_ERROR: i32 = 74;
    eprintln!("cell: cannot go on: {why}");
    std::process::exit(INPUT_OUTPUT_ERROR);
}

/// Known bugs that the simulator injects to check that it catches them. All are off in every other
/// run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StoreBugs {
    /// Entries are applied and answered before they are flushed here.
    pub applies_unflushed: bool,
    /// Followers learn of commits that count a copy of the leader that is not flushed.
    pub announces_unflushed: bool,
    /// A leader that restarts goes on leading in its old term, as openraft would have it.
    pub resumes_term: bool,
}

#[derive(Clone)]
pub struct StoreConfig {
    /// Written into every file: a replica refuses files of another cell.
    pub cell: [u8; 16],
    pub heartbeat: Duration,
    /// Minimum election timeout: how long a replica waits for others in an election, and how long a
    /// flush of a leader may take before the leader stops its heartbeats.
    pub election_min: Duration,
    /// The leader's lease: for how long after its last message a leader counts as the leader. A
    /// candidate waits as long, plus up to three heartbeats.
    pub election_max: Duration,
    /// A leader that has heard from no quorum for this long rejects writes and linearizable reads.
    pub fence_after: Duration,
    /// Below this much free space proposals are rejected; the disk is needed for votes, snapshots
    /// and the other files on it.
    pub reserve_bytes: u64,
    /// Largest payload. Openraft allows one append call a heartbeat's time; a payload that does not
    /// fit through the network in that time would be sent again for ever.
    pub max_payload_bytes: usize,
    /// Payload bytes in one append call, at least one entry.
    pub max_append_bytes: usize,
    /// Log entries kept in memory for followers and readers; older ones are read from disk.
    pub cache_bytes: usize,
    pub segment_bytes: u64,
    /// A snapshot is taken after this many entries.
    pub snapshot_entries: u64,
    /// Entries kept behind a snapshot. Twice `snapshot_entries` reaches back past the older of the
    /// two snapshots on disk; without those entries the older one would be useless.
    pub keep_entries: u64,
    pub snapshot_chunk_bytes: u64,
    /// Time for one chunk of a snapshot to be sent and, for the last one, installed.
    pub snapshot_timeout: Duration,
    /// How far behind a learner may be to become a voter.
    pub promote_lag: u64,
    pub promote_timeout: Duration,
    pub on_fatal: FatalHook,
    /// Supervises the tasks that a replica cannot live without.
    pub supervisor: Supervisor,
    #[doc(hidden)]
    pub bugs: StoreBugs,
}

impl Default for StoreConfig {
    fn default() -> StoreConfig {
        StoreConfig {
            cell: [0; 16],
            heartbeat: Duration::from_millis(75),
            election_min: Duration::from_millis(300),
            election_max: Duration::from_millis(400),
            fence_after: Duration::from_millis(1000),
            reserve_bytes: 256 << 20,
            max_payload_bytes: 8 << 20,
            max_append_bytes: 1 << 20,
            cache_bytes: 64 << 20,
            segment_bytes: 64 << 20,
            snapshot_entries: 10_000,
            keep_entries: 20_000,
            snapshot_chunk_bytes: 1 << 20,
            snapshot_timeout: Duration::from_secs(10),
            promote_lag: 100,
            promote_timeout: Duration::from_secs(60),
            on_fatal: Arc::new(exit_process),
            supervisor: Supervisor::default(),
            bugs: StoreBugs::default(),
        }
    }
}

impl fmt::Debug for StoreConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StoreConfig")
            .field("heartbeat", &self.heartbeat)
            .field("election", &(self.election_min..self.election_max))
            .field("fence_after", &self.fence_after)
            .field("reserve_bytes", &self.reserve_bytes)
            .field("segment_bytes", &self.segment_bytes)
            .field("snapshot_entries", &self.snapshot_entries)
            .field("keep_entries", &self.keep_entries)
            .finish_non_exhaustive()
    }
}

impl StoreConfig {
    /// Derives all timers of consensus from one: the interval between two heartbeats of a leader. A
    /// replica becomes a candidate after four missed heartbeats; a leader that has heard from no
    /// quorum for twelve of them stops answering.
    #[must_use]
    pub fn with_heartbeat(self, heartbeat: Duration) -> StoreConfig {
        StoreConfig {
            heartbeat,
            election_min: heartbeat * 4,
            election_max: heartbeat * 16 / 3,
            fence_after: heartbeat * 40 / 3,
            ..self
        }
    }

    /// Free space below which nothing but votes is written: a quarter of the reserve. Between
    /// reserve and floor a leader accepts only removals, and followers accept what it sends.
    pub(crate) fn floor_bytes(&self) -> u64 {
        self.reserve_bytes / 4
    }

    pub(crate) fn check(&self) -> Result<(), OpenError> {
        let invalid = |field, value: String, allowed: &str| {
            Err(OpenError::InvalidConfig { field, value, allowed: allowed.to_owned() })
        };
        let text = |time: Duration| format!("{time:?}");
        if self.heartbeat.as_millis() == 0 {
            return invalid("heartbeat", text(self.heartbeat), "at least 1ms");
        }
        if self.election_min < self.heartbeat * 2 {
            let allowed = format!("at least twice the heartbeat ({:?})", self.heartbeat);
            return invalid("election_min", text(self.election_min), &allowed);
        }
        if self.election_max.as_millis() <= self.election_min.as_millis() {
            let allowed = format!("more than election_min ({:?})", self.election_min);
            return invalid("election_max", text(self.election_max), &allowed);
        }
        if self.fence_after < self.election_min {
            let allowed = format!("at least election_min ({:?})", self.election_min);
            return invalid("fence_after", text(self.fence_after), &allowed);
        }
        let counts = [
            ("snapshot_entries", self.snapshot_entries),
            ("segment_bytes", self.segment_bytes),
            ("snapshot_chunk_bytes", self.snapshot_chunk_bytes),
            ("max_append_bytes", self.max_append_bytes as u64),
        ];
        for (field, value) in counts {
            if value == 0 {
                return invalid(field, "0".to_owned(), "at least 1");
            }
        }
        /// A record's length is 32 bits wide.
        const MAX_PAYLOAD_BYTES: usize = 1 << 30;
        if self.max_payload_bytes == 0 || self.max_payload_bytes > MAX_PAYLOAD_BYTES {
            let value = self.max_payload_bytes.to_string();
            return invalid("max_payload_bytes", value, "1 to 1073741824");
        }
        Ok(())
    }

    pub(crate) fn raft_config(&self) -> Result<Config, OpenError> {
        self.check()?;
        let millis = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        let config = Config {
            cluster_name: "cell".to_owned(),
            heartbeat_interval: millis(self.heartbeat),
            election_timeout_min: millis(self.election_min),
            election_timeout_max: millis(self.election_max),
            install_snapshot_timeout: millis(self.snapshot_timeout),
            snapshot_max_chunk_size: self.snapshot_chunk_bytes,
            snapshot_policy: SnapshotPolicy::LogsSinceLast(self.snapshot_entries),
            max_in_snapshot_log_to_keep: self.keep_entries,
            // A follower further behind than the log reaches needs a snapshot anyway.
            replication_lag_threshold: self.keep_entries.max(self.snapshot_entries) + 1,
            max_payload_entries: 1000,
            // `Campaign` decides when to start an election.
            enable_elect: false,
            ..Config::default()
        };
        config.validate().map_err(|e| OpenError::Raft { what: e.to_string() })
    }
}
