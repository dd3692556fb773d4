//! A cell of replica processes on loopback, its files in a folder that goes away with it.

use super::cell_process::CellProcess;
use super::replica::{self, SNAPSHOT};
use super::workload;
use cellwright_api::client::{ApiClientConfig, Client};
use cellwright_api::types::MasterStatus;
use cellwright_cell::State;
use cellwright_master::checkpoint;
use cellwright_master::replicated_state::View;
use cellwright_store::{Peer, RealDisk};
use std::ffi::OsString;
use std::io;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long anything may take before the benchmark gives up on it.
const TIMEOUT: Duration = Duration::from_secs(180);
/// Between two looks at something that has not happened yet.
const POLL_INTERVAL: Duration = Duration::from_millis(5);

/// A folder that goes away with the benchmark, on the disk of the checkout's temporary folder.
pub struct Folder(PathBuf);

impl Folder {
    pub fn new(what: &str) -> io::Result<Folder> {
        let name = format!("cellwright-bench-{}-{what}", std::process::id());
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&path)?;
        Ok(Folder(path))
    }

    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        if let Err(error) = std::fs::remove_dir_all(&self.0) {
            eprintln!("{} is left behind: {error}", self.0.display());
        }
    }
}

/// Loopback addresses nobody listens on.
pub fn free_addresses(count: usize) -> io::Result<Vec<String>> {
    let bound: Vec<TcpListener> =
        (0..count).map(|_| TcpListener::bind("127.0.0.1:0")).collect::<io::Result<_>>()?;
    bound.iter().map(|listener| Ok(listener.local_addr()?.to_string())).collect()
}

/// Looks until there is something to see.
pub async fn until<T>(what: &str, mut look: impl AsyncFnMut() -> Option<T>) -> io::Result<T> {
    let begun = Instant::now();
    while begun.elapsed() < TIMEOUT {
        if let Some(seen) = look().await {
            return Ok(seen);
        }
        tokio::time::sleep(POLL_INTERVAL).await;
    }
    Err(io::Error::other(format!("not within {} s: {what}", TIMEOUT.as_secs())))
}

pub struct Cell {
    // In this order: the processes end before their files go.
    replicas: Vec<Option<CellProcess>>,
    others: Vec<CellProcess>,
    members: Vec<String>,
    client: Client,
    /// Missed polls after which a machine counts as down.
    missed_polls: u32,
    folder: Folder,
}

impl Cell {
    /// Starts so many replicas and waits until they serve; the user of [`workload`] is there.
    pub async fn start(what: &str, replicas: usize) -> io::Result<Cell> {
        let mut cell = Cell::prepared(what, replicas)?;
        (0..replicas).try_for_each(|at| cell.start_replica(at))?;
        cell.ready().await?;
        workload::add_user(&cell.client).await?;
        Ok(cell)
    }

    /// One replica that starts with this state, restored as from a checkpoint.
    pub async fn start_from(what: &str, state: State) -> io::Result<Cell> {
        let mut cell = Cell::prepared(what, 1)?;
        cell.missed_polls = u32::MAX;
        let dir = cell.folder.path().join("1");
        std::fs::create_dir_all(&dir)?;
        let disk = Arc::new(RealDisk::open(&dir)?);
        let peer = Peer { name: "replica-1".to_owned(), address: cell.members[0].clone() };
        let view = View { state, index: 0, term: 0, log_epoch: 0 };
        let (member, dir) = (&cell.members[0], dir.display().to_string());
        let config = replica::config_of(1, member, &dir, cell.missed_polls)?;
        let settings = cellwright_gateway::serve::store_config(&config, None);
        checkpoint::restore(view, disk, (1, peer), settings).await.map_err(io::Error::other)?;
        cell.start_replica(0)?;
        cell.ready().await?;
        Ok(cell)
    }

    /// Addresses, a client and a folder; nothing runs yet.
    fn prepared(what: &str, replicas: usize) -> io::Result<Cell> {
        let members = free_addresses(replicas)?;
        // A client that asks again as soon as it may: what is timed is the cell.
        let pause = Duration::from_millis(5);
        let mut settings = ApiClientConfig::new(members.clone());
        (settings.backoff, settings.backoff_max) = (pause, pause);
        (settings.deadline, settings.attempt_timeout) = (TIMEOUT, Duration::from_secs(60));
        let client = Client::new(settings).map_err(io::Error::other)?;
        Ok(Cell {
            replicas: (0..replicas).map(|_| None).collect(),
            others: Vec::new(),
            members,
            client,
            missed_polls: 3,
            folder: Folder::new(what)?,
        })
    }

    pub fn start_replica(&mut self, at: usize) -> io::Result<()> {
        let id = at + 1;
        let dir = self.folder.path().join(id.to_string());
        std::fs::create_dir_all(&dir)?;
        let flags = [
            ("id", id.to_string()),
            ("dir", dir.display().to_string()),
            ("members", self.members.join(",")),
            ("silence", self.missed_polls.to_string()),
        ];
        self.replicas[at] =
            Some(CellProcess::start("replica", &flags, &self.log(&id.to_string()))?);
        Ok(())
    }

    pub fn kill_replica(&mut self, at: usize) -> io::Result<()> {
        self.replicas[at].take().map_or(Ok(()), |mut part| part.kill())
    }

    pub fn start_scheduler(&mut self) -> io::Result<()> {
        let flags = [("masters", self.members.join(","))];
        let part = CellProcess::start("scheduler", &flags, &self.log("scheduler"))?;
        self.others.push(part);
        Ok(())
    }

    pub fn stop_schedulers(&mut self) {
        self.others.clear();
    }

    /// Ended by dropping it.
    pub fn start_agents(&self, machines: u32) -> io::Result<CellProcess> {
        let flags = [("masters", self.members.join(",")), ("machines", machines.to_string())];
        CellProcess::start("agents", &flags, &self.log("agents"))
    }

    fn log(&self, name: &str) -> PathBuf {
        self.folder.path().join(format!("{name}.log"))
    }

    pub fn client(&self) -> &Client {
        &self.client
    }

    pub fn member(&self, at: usize) -> &str {
        &self.members[at]
    }

    pub fn pids(&self) -> Vec<u32> {
        self.replicas.iter().flatten().map(CellProcess::pid).collect()
    }

    /// The log is cut behind a new snapshot of this replica; its index.
    pub fn snapshot(&mut self, at: usize) -> io::Result<u64> {
        let gone = || io::Error::other("the replica does not run");
        let line = self.replicas[at].as_mut().ok_or_else(gone)?.request(SNAPSHOT)?;
        line.parse().map_err(io::Error::other)
    }

    /// Size of the first replica's newest snapshot.
    pub fn snapshot_bytes(&self) -> io::Result<u64> {
        let folder = self.folder.path().join("1").join("snap");
        let mut newest: Option<(OsString, u64)> = None;
        for file in std::fs::read_dir(folder)? {
            let file = file?;
            newest = newest.max(Some((file.file_name(), file.metadata()?.len())));
        }
        let none = || io::Error::other("there is no snapshot on the disk");
        newest.map(|(_, bytes)| bytes).ok_or_else(none)
    }

    /// Waits until every replica that runs says it may be asked.
    pub async fn ready(&self) -> io::Result<()> {
        for at in (0..self.members.len()).filter(|at| self.replicas[*at].is_some()) {
            self.replica_ready(at).await?;
        }
        Ok(())
    }

    pub async fn replica_ready(&self, at: usize) -> io::Result<()> {
        let address = &self.members[at];
        until(&format!("{address} ready"), async || {
            self.client.bytes_at(address, "/readyz", REQUEST_TIMEOUT).await.ok()
        })
        .await
        .map(drop)
    }

    /// How one replica sees the log.
    pub async fn status_of(&self, at: usize) -> io::Result<MasterStatus> {
        let answer = self.client.bytes_at(&self.members[at], "/v1/masters", REQUEST_TIMEOUT).await;
        serde_json::from_slice(&answer.map_err(io::Error::other)?).map_err(io::Error::other)
    }

    /// Waits for a replica that says it leads; which one, and what it says.
    pub async fn leader(&self) -> io::Result<(usize, MasterStatus)> {
        until("a leader", async || {
            for at in (0..self.members.len()).filter(|at| self.replicas[*at].is_some()) {
                if let Ok(status) = self.status_of(at).await
                    && status.leader == Some(status.id)
                {
                    return Some((at, status));
                }
            }
            None
        })
        .await
    }

    /// Waits until a replica has applied everything its leader had when asked.
    pub async fn caught_up(&self, at: usize) -> io::Result<()> {
        let (_, leader) = self.leader().await?;
        until(&format!("replica {} caught up", at + 1), async || {
            let status = self.status_of(at).await.ok()?;
            (status.applied >= leader.last_log).then_some(())
        })
        .await
    }

    /// Waits until so many machines are up.
    pub async fn machines_up(&self, machines: u32) -> io::Result<()> {
        let wanted = format!("cell_machines_up {machines}");
        until(&wanted, async || {
            let page = self.client.text("/metrics").await.ok()?;
            let up = page.lines().any(|line| line == wanted);
            if !up {
                // The page sums the whole cell up; asking without a pause would be a load.
                tokio::time::sleep(Duration::from_millis(200)).await;
            }
            up.then_some(())
        })
        .await
    }
}

/// For a question to one replica.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);
