//! A cell on this machine: a master with its scheduler, and agents, each a process of the product's
//! own program.

use crate::masters::cell::{Folder, free_addresses, until};
use cellwright_agent::shim::SHIM_BINARY;
use cellwright_api::client::{
    ApiClientConfig, ChangeOptions, Client, ClientError, PageRequest, Watch,
};
use cellwright_api::types::{EventView, TaskView};
use cellwright_cell::event::{EventKind, TaskChange};
use cellwright_cell::name::{JobKey, Name};
use cellwright_cell::spec::{JobSpec, PackageRef};
use cellwright_cell::task::TaskState;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// How tasks are run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Driver {
    Process,
    Container,
}

impl Driver {
    pub const ALL: [Driver; 2] = [Driver::Process, Driver::Container];

    pub fn name(self) -> &'static str {
        match self {
            Driver::Process => "process",
            Driver::Container => "container",
        }
    }

    /// A task too small for the driver is refused.
    pub fn min_ram(self) -> u64 {
        match self {
            // Less than two, and what becomes the program does not live to become it.
            Driver::Process => 4 << 20,
            Driver::Container => 16 << 20,
        }
    }
}

/// The product: `CELL_BINARY`, or what was built beside this program. Its shim lies beside it,
/// for without that agents start the whole `cell` in its place, and something else is measured.
pub fn program() -> io::Result<PathBuf> {
    let path = match std::env::var_os("CELL_BINARY") {
        Some(path) => PathBuf::from(path),
        None => std::env::current_exe()?.with_file_name("cell"),
    };
    match [path.clone(), path.with_file_name(SHIM_BINARY)].iter().find(|part| !part.is_file()) {
        None => Ok(path),
        Some(missing) => Err(io::Error::other(format!(
            "{} is not there; build it: cargo build --release -p cellwright-cli -p cellwright-shim",
            missing.display()
        ))),
    }
}

pub struct Cell {
    // In this order: processes end before their files go.
    agents: Vec<Child>,
    master: Child,
    address: String,
    pub client: Client,
    pub folder: Folder,
}

fn failed(error: ClientError) -> io::Error {
    io::Error::other(error.to_string())
}

impl Cell {
    pub async fn start(what: &str) -> io::Result<Cell> {
        let folder = Folder::new(what)?;
        let address = free_addresses(1)?.remove(0);
        let mut command = Command::new(program()?);
        command.args(["master", "start", "--dev", "--listen", &address, "--data-dir"]);
        command.arg(folder.path().join("master"));
        let master = spawn(command, &folder.path().join("master.log"))?;
        let client = Client::new(ApiClientConfig::new(vec![address.clone()])).map_err(failed)?;
        let cell = Cell { agents: Vec::new(), master, address, client, folder };
        let leads = async || {
            let status = cell.client.master_status().await.ok()?;
            (status.value.role == "leader").then_some(())
        };
        until("the master leads", leads).await?;
        Ok(cell)
    }

    /// Starts an agent and waits for its machine. Its process's number.
    pub async fn agent(&mut self, name: &str, driver: Driver, more: &str) -> io::Result<u32> {
        let data = self.data(name);
        let config = self.folder.path().join(format!("{name}.toml"));
        let driver = driver.name();
        let text = format!("name = {name:?}\ndata_dir = {data:?}\ndriver = {driver:?}\n{more}\n");
        std::fs::write(&config, text)?;
        let mut command = Command::new(program()?);
        command.args(["--master", &self.address, "agent", "start", "--config"]).arg(config);
        let log = self.folder.path().join(format!("{name}.log"));
        let mut agent = spawn(command, &log)?;
        let pid = agent.id();
        let name = Name::new(name).map_err(|error| io::Error::other(error.to_string()))?;
        let there = async || {
            if agent.try_wait().ok().flatten().is_some() {
                return Some(Err(io::Error::other(std::fs::read_to_string(&log).ok()?)));
            }
            self.client.machine(&name).await.ok().map(|_| Ok(()))
        };
        let there = until("the machine is there", there).await;
        self.agents.push(agent);
        there??;
        Ok(pid)
    }

    /// The folder of an agent.
    pub fn data(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub async fn submit(&self, spec: serde_json::Value) -> io::Result<JobKey> {
        let spec: JobSpec = serde_json::from_value(spec).map_err(io::Error::other)?;
        let user = Name::new("dev").map_err(|error| io::Error::other(error.to_string()))?;
        let key = JobKey { user: user.clone(), job: spec.name.clone() };
        self.client.submit_job(Some(&user), &spec).await.map_err(failed)?;
        Ok(key)
    }

    /// Makes a package of a folder and brings it to the master.
    pub fn push(&self, folder: &Path, name: &str) -> io::Result<PackageRef> {
        let mut command = Command::new(program()?);
        command.args(["--master", &self.address, "package", "push"]).arg(folder);
        let done = command.args(["--name", name, "-o", "json"]).output()?;
        if !done.status.success() {
            return Err(io::Error::other(String::from_utf8_lossy(&done.stderr).into_owned()));
        }
        serde_json::from_slice(&done.stdout).map_err(io::Error::other)
    }

    pub async fn stop(&self, job: &JobKey) -> io::Result<()> {
        self.client.stop_job(job, &ChangeOptions::default()).await.map_err(failed)?;
        Ok(())
    }

    pub async fn tasks(&self, job: &JobKey) -> io::Result<Vec<TaskView>> {
        let page = PageRequest { limit: Some(1000), ..PageRequest::default() };
        Ok(self.client.tasks(job, &page).await.map_err(failed)?.value.items)
    }

    /// Waits until all tasks are as wanted.
    pub async fn wait_for_tasks(
        &self,
        job: &JobKey,
        count: usize,
        want: impl Fn(&TaskView) -> bool,
    ) -> io::Result<Vec<TaskView>> {
        until("all tasks are as wanted", async || {
            let tasks = self.tasks(job).await.ok()?;
            (tasks.len() == count && tasks.iter().all(&want)).then_some(tasks)
        })
        .await
    }

    /// All that has happened and happens.
    pub fn events(&self) -> Watch<EventView> {
        self.client.watch_events(None)
    }

    /// Stops the job and waits until nothing of it is left.
    pub async fn stop_and_wait(&self, job: &JobKey) -> io::Result<()> {
        self.stop(job).await?;
        until("a job is over", async || {
            let tasks = self.tasks(job).await.ok()?;
            tasks.iter().all(|task| matches!(task.state, TaskState::Dead(_))).then_some(())
        })
        .await
    }
}

/// Waits until the feed says that so many tasks of the job have changed as wanted.
pub async fn wait_for_changes(
    events: &mut Watch<EventView>,
    job: &JobKey,
    count: usize,
    want: impl Fn(&TaskChange) -> bool,
) -> io::Result<()> {
    let prefix = format!("{}/{}/", job.user, job.job);
    let mut left = count;
    while left > 0 {
        let event = events.next().await.map_err(failed)?;
        let Some(event) = event.data else { continue };
        if let EventKind::Task { change, .. } = &event.kind
            && event.object.starts_with(&prefix)
            && want(change)
        {
            left -= 1;
        }
    }
    Ok(())
}

fn spawn(mut command: Command, log: &Path) -> io::Result<Child> {
    let log = File::create(log)?;
    command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log).spawn()
}

/// Everything below this process, as it is now.
pub fn descendants(root: u32) -> Vec<u32> {
    let parents: Vec<(u32, u32)> = std::fs::read_dir("/proc")
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| {
            let pid: u32 = entry.file_name().to_str()?.parse().ok()?;
            let stat = std::fs::read(entry.path().join("stat")).ok()?;
            let stat = String::from_utf8_lossy(&stat);
            let parent = stat.rsplit_once(')')?.1.split_ascii_whitespace().nth(1)?.parse().ok()?;
            Some((pid, parent))
        })
        .collect();
    let mut found = vec![root];
    let mut at = 0;
    while at < found.len() {
        let own = parents.iter().filter(|(_, parent)| *parent == found[at]).map(|(pid, _)| *pid);
        found.extend(own.collect::<Vec<u32>>());
        at += 1;
    }
    found.split_off(1)
}

pub fn signal(name: &str, pids: &[u32]) -> io::Result<()> {
    let pids = pids.iter().map(ToString::to_string);
    Command::new("kill").arg(name).args(pids).stderr(Stdio::null()).status().map(drop)
}

impl Drop for Cell {
    fn drop(&mut self) {
        // What a figure that failed has left; tasks outlive agents that are killed.
        let left: Vec<u32> = self.agents.iter().flat_map(|agent| descendants(agent.id())).collect();
        for process in self.agents.iter_mut().chain([&mut self.master]) {
            let ended = process.kill().and_then(|()| process.wait());
            if let Err(error) = ended {
                eprintln!("process {} is left behind: {error}", process.id());
            }
        }
        if !left.is_empty()
            && let Err(error) = signal("-KILL", &left)
        {
            eprintln!("tasks are left behind: {error}");
        }
    }
}
