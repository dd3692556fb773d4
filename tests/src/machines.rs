//! A cell with machines that run real programs: masters on the first hosts, then machines, each a
//! host of its own with an agent that joined by a token.
//!
//! Hosts share the computer's processes and files; only their networks are apart. So a test can see
//! every pid, and tasks tell it what they do through files in one folder that all of them know
//! (`$SHARED`), which no cut reaches. Rejected: asking tasks over the network. What a task does
//! while it is cut off is just what some of these tests are about.
//!
//! When a cell goes, in whatever way, its agents are killed by their ids, and then everything in
//! the networks of its hosts: shims and tasks too. What has a network of its own goes with the
//! folder.

use crate::binary::{cell, command_output};
use crate::hosts::{Host, address};
use crate::process::Process;
use crate::replicas::{CLOCK, Replicas, ReplicasPlan, master};
use crate::{POLL_INTERVAL, TIMEOUT};
use cellwright_api::client::{ChangeOptions, Client, PageRequest};
use cellwright_api::types::{Changed, EventView, JobView, MachineView, TaskView};
use cellwright_cell::name::{JobKey, Name};
use cellwright_cell::quota::Quota;
use cellwright_cell::resource::Resources;
use cellwright_cell::spec::JobSpec;
use cellwright_cell::task::TaskState;
use cellwright_cell::time::Time;
use hyper::Method;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use std::path::PathBuf;
use std::process::Command;
use tokio::time::{Instant, sleep};

/// Machines of every such cell.
pub const MACHINES: usize = 3;
/// Of each machine, in thousandths of cores and bytes, whatever the computer has.
pub const CAPACITY: Resources = Resources { cpu: 4000, ram: 4 << 30, disk: 4 << 30, disk_rate: 0 };
/// Whose jobs they are.
pub const USER: &str = "admin";

/// Says the task's pid under its name. Tasks are different users, and write to the same files.
const WRITE_PID: &str = r#"
    umask 0; echo $$ > "$SHARED/.$$" &&
    mv "$SHARED/.$$" "$SHARED/pid-$CELL_JOB-$CELL_INDEX-$CELL_ATTEMPT"
"#;
/// Waits for ever without using the processor, and hears signals at once.
pub const SLEEP_FOREVER: &str = r#"
    while :; do sleep 1000 & wait $!; done"#;

/// A script that says its pid: one that stays, when all before that is done, so that a test that
/// has its pid finds it ready for signals; any other, first.
fn with_pid_file(script: &str) -> String {
    match script.strip_suffix(SLEEP_FOREVER) {
        Some(before) => format!("umask 0\n{before}{WRITE_PID}{SLEEP_FOREVER}"),
        None => format!("{WRITE_PID}{script}"),
    }
}

/// Number of a machine, from 1.
pub type Machine = usize;

pub struct Machines {
    /// By machine; absent while dead. Before the masters and hosts, so that they end first.
    agents: Vec<Option<Process>>,
    pub masters: Replicas,
    client: Client,
}

/// The cell to be laid out.
#[derive(Default)]
pub struct MachinesPlan<'a> {
    /// Masters; one if it is 0.
    pub masters: usize,
    /// As in [`ReplicasPlan`].
    pub changes: &'a [(&'a str, &'a str)],
    /// Lines added to every agent's configuration.
    pub agents: &'a str,
    /// Of each machine; [`CAPACITY`] if nothing is said.
    pub capacity: Option<Resources>,
    /// Whether tasks run in containers, which hide the folder that others meet the test in.
    pub in_containers: bool,
}

#[must_use]
pub fn key(job: &str) -> JobKey {
    let name = |text| Name::new(text).expect("a name");
    JobKey { user: name(USER), job: name(job) }
}

/// The name of a machine.
#[must_use]
pub fn name(machine: Machine) -> Name {
    Name::new(&format!("n{machine}")).expect("a name")
}

impl Machines {
    /// A cell of one master and three machines; nothing where there can be no hosts.
    pub async fn launch() -> Option<Machines> {
        Machines::launch_with(&MachinesPlan::default()).await
    }

    pub async fn launch_with(machines_plan: &MachinesPlan<'_>) -> Option<Machines> {
        let masters = machines_plan.masters.max(1);
        let plan = ReplicasPlan { masters, spare: MACHINES, changes: machines_plan.changes };
        let masters = Replicas::launch_with(&plan).await?;
        let client = masters.client();
        let agents = (0..MACHINES).map(|_| None).collect();
        let mut cell = Machines { agents, masters, client };
        cell.open_folder("");
        for machine in 1..=MACHINES {
            cell.join(machine, machines_plan);
            cell.start_agent(machine);
        }
        cell.until("all machines up", async |cell| {
            let up = cell.client.cluster_status().await.ok()?.value.machines_up;
            (up as usize == MACHINES).then_some(())
        })
        .await;
        cell.grant_quota(machines_plan).await;
        Some(cell)
    }

    /// All there is, in both bands.
    async fn grant_quota(&self, machines_plan: &MachinesPlan<'_>) {
        let amount = machines_plan.capacity.unwrap_or(CAPACITY).times(MACHINES as u64);
        let quota = Quota { amount, from: Time(0), until: Time::NEVER };
        for band in ["batch", "production"] {
            let path = format!("/v1/users/{USER}/quota/{band}");
            let change = ChangeOptions::default();
            let put = self.client.change::<_, Changed>(Method::PUT, &path, Some(&quota), &change);
            put.await.expect("quota is granted");
        }
    }

    fn join(&self, machine: Machine, machines_plan: &MachinesPlan<'_>) {
        let name = name(machine);
        let config = self.config(machine);
        let token = config.with_extension("token");
        // Left from when the machine joined before.
        let _ = std::fs::remove_file(&token);
        let file = token.to_str().expect("a path in UTF-8");
        let words = ["token", "create", "--agent", name.as_str(), "--token-file", file];
        self.masters.cell(&words).expect("a token is made");
        let mut join = Command::new(cell());
        for host in self.masters.masters() {
            join.args(["--master", &master(host)]);
        }
        join.args(["agent", "join", "--token-file", file, "--config"]).arg(&config);
        command_output(&mut join).expect("a machine joins");
        let mut text = std::fs::read_to_string(&config).expect("a configuration");
        let Resources { cpu, ram, disk, disk_rate } = machines_plan.capacity.unwrap_or(CAPACITY);
        let driver = if machines_plan.in_containers { "container" } else { "process" };
        let more = machines_plan.agents;
        text.push_str(&format!(
            "driver = {driver:?}\n\
             data_dir = {:?}\n\
             address = {:?}\n\
             capacity = {{ cpu = {cpu}, ram = {ram}, disk = {disk}, disk_rate = {disk_rate} }}\n\
             attributes = {{ number = {{ integer = {machine} }} }}\n\
             {more}\n",
            self.data(machine),
            address(self.host(machine)),
        ));
        std::fs::write(&config, text).expect("it is changed");
    }

    fn config(&self, machine: Machine) -> PathBuf {
        self.masters.folder.path(&format!("n{machine}.toml"))
    }

    /// Where the machine's agent keeps its state.
    #[must_use]
    pub fn data(&self, machine: Machine) -> PathBuf {
        self.masters.folder.path(&format!("n{machine}"))
    }

    #[must_use]
    pub fn host(&self, machine: Machine) -> Host {
        assert!((1..=MACHINES).contains(&machine), "machine {machine}; allowed: 1 to {MACHINES}");
        self.masters.masters().count() + machine
    }

    pub fn start_agent(&mut self, machine: Machine) {
        let program = cell().to_str().expect("a path in UTF-8");
        let mut command = self.masters.hosts.enter(self.host(machine), program);
        command.args(["agent", "start", "--config"]).arg(self.config(machine));
        command.env(CLOCK, self.masters.clock_file(&format!("n{machine}")));
        let log = self.masters.folder.path(&format!("n{machine}.log"));
        self.agents[machine - 1] = Some(Process::start(command, &log));
    }

    /// Ends the agent without asking. Shims and tasks go on.
    pub fn kill_agent(&mut self, machine: Machine) {
        self.agents[machine - 1].take().expect("it runs").kill();
    }

    /// Its agent, which must run.
    pub fn agent(&mut self, machine: Machine) -> &mut Process {
        self.agents[machine - 1].as_mut().expect("it runs")
    }

    /// Asks the agent to end, and waits until it has. Shims and tasks go on.
    pub async fn stop_agent(&mut self, machine: Machine) {
        let mut agent = self.agents[machine - 1].take().expect("it runs");
        agent.signal(Signal::TERM);
        let deadline = Instant::now() + TIMEOUT;
        while agent.is_alive() {
            assert!(Instant::now() < deadline, "the agent does not end:\n{}", agent.output());
            sleep(POLL_INTERVAL).await;
        }
    }

    /// How often an agent of the machine has come as far as to poll.
    #[must_use]
    pub fn agent_starts(&self, machine: Machine) -> usize {
        let log = self.masters.folder.path(&format!("n{machine}.log"));
        let text = std::fs::read_to_string(log).unwrap_or_default();
        text.matches(&format!("cell agent of n{machine} polls")).count()
    }

    /// Nobody hears the machine, and it hears nobody.
    pub fn disconnect(&self, machine: Machine) {
        self.masters.hosts.cut(self.host(machine));
    }

    #[must_use]
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// A path in the folder that all tasks know as `$SHARED`.
    #[must_use]
    pub fn shared(&self, name: &str) -> PathBuf {
        self.masters.folder.path("shared").join(name)
    }

    /// Makes a folder there that tasks can write, who are nobody.
    pub fn open_folder(&self, name: &str) {
        // First under another name: whoever looks for it finds it open.
        let (path, draft) = (self.shared(name), self.masters.folder.path("draft"));
        std::fs::create_dir(&draft).expect("a folder");
        let open = std::os::unix::fs::PermissionsExt::from_mode(0o777);
        std::fs::set_permissions(&draft, open).expect("it is opened to all");
        std::fs::rename(draft, path).expect("it gets its name");
    }

    /// What is in it; empty if there is no such file.
    #[must_use]
    pub fn read(&self, name: &str) -> String {
        std::fs::read_to_string(self.shared(name)).unwrap_or_default()
    }

    /// A job of shell scripts, small, without restarts after a failure; for the test to change.
    #[must_use]
    pub fn job(&self, name: &str, count: u32, script: &str) -> Value {
        json!({
            "name": name,
            "count": count,
            "priority": 100,
            "restart": { "max_failures": 0, "backoff": 1, "backoff_max": 1 },
            "task": {
                "limits": { "cpu": 10, "ram": 8 << 20, "disk": 1 << 20 },
                "command": ["sh", "-c", with_pid_file(script)],
                "env": { "SHARED": self.shared("") },
                "notice": 20_000,
            },
        })
    }

    pub async fn submit(&self, spec: &Value) {
        let spec = parse(spec);
        let done = self.client.submit_job(None, &spec).await;
        done.unwrap_or_else(|why| panic!("{}: {why}", spec.name));
    }

    pub async fn update(&self, spec: &Value) {
        let spec = parse(spec);
        let user = Name::new(USER).expect("a name");
        let done = self.client.update_job(&user, &spec, &ChangeOptions::default()).await;
        done.unwrap_or_else(|why| panic!("{}: {why}", spec.name));
    }

    pub async fn stop(&self, job: &str) {
        let done = self.client.stop_job(&key(job), &ChangeOptions::default()).await;
        done.unwrap_or_else(|why| panic!("{job}: {why}"));
    }

    pub async fn job_view(&self, job: &str) -> JobView {
        let view = self.client.job(&key(job)).await;
        view.unwrap_or_else(|why| panic!("{job}: {why}")).value.item
    }

    pub async fn machine(&self, machine: Machine) -> Option<MachineView> {
        Some(self.client.machine(&name(machine)).await.ok()?.value.item)
    }

    /// Asks again and again until there is an answer; panics with what everybody said when that
    /// takes for ever.
    pub async fn until<T>(&self, what: &str, ask: impl AsyncFn(&Machines) -> Option<T>) -> T {
        let deadline = Instant::now() + TIMEOUT;
        loop {
            if let Some(answer) = ask(self).await {
                return answer;
            }
            assert!(Instant::now() < deadline, "waited in vain: {what}\n{}", self.output());
            sleep(POLL_INTERVAL).await;
        }
    }

    /// The tasks of a job, by index; none while no master answers.
    pub async fn tasks(&self, job: &str) -> Vec<TaskView> {
        let page = PageRequest { limit: Some(1000), ..PageRequest::default() };
        let page = self.client.tasks(&key(job), &page).await;
        let mut tasks = page.map(|reply| reply.value.items).unwrap_or_default();
        // What they use differs from look to look, and lists are compared.
        tasks.iter_mut().for_each(|task| task.used = None);
        tasks
    }

    /// Waits until the job has as many tasks as it wants and all of them are as wanted.
    pub async fn wait_for_tasks(
        &self,
        job: &str,
        want: impl Fn(&TaskView) -> bool,
    ) -> Vec<TaskView> {
        let count = self.job_view(job).await.spec.count as usize;
        let deadline = Instant::now() + TIMEOUT;
        loop {
            let tasks = self.tasks(job).await;
            if tasks.len() == count && tasks.iter().all(&want) {
                return tasks;
            }
            if Instant::now() >= deadline {
                panic!("{job} never came to be as wanted: {tasks:#?}\n{}", self.output());
            }
            sleep(POLL_INTERVAL).await;
        }
    }

    pub async fn wait_until_running(&self, job: &str) -> Vec<TaskView> {
        self.wait_for_tasks(job, |task| task.state == TaskState::Running && task.healthy).await
    }

    /// The pid of a task of [`Machines::job`].
    pub async fn pid(&self, job: &str, index: u32, attempt: u32) -> u32 {
        let file = format!("pid-{job}-{index}-{attempt}");
        self.until(&file, async |cell| cell.read(&file).trim().parse().ok()).await
    }

    /// Pids of all tasks of a job in the given attempt, by index.
    pub async fn pids(&self, tasks: &[TaskView]) -> Vec<u32> {
        let mut pids = Vec::new();
        for task in tasks {
            let job = task.name.split('/').nth(1).expect("user/job/index");
            pids.push(self.pid(job, task.index, task.attempt).await);
        }
        pids
    }

    /// Sends a signal to a process of one of the machines.
    pub fn signal(&self, pid: u32, signal: Signal) {
        let pid = i32::try_from(pid).ok().and_then(Pid::from_raw).expect("a pid");
        kill_process(pid, signal).expect("it lives");
    }

    /// Everything that happened to a job and its tasks.
    pub async fn events(&self, job: &str) -> Vec<EventView> {
        let own = format!("{USER}/{job}");
        let inner = format!("{own}/");
        let (mut found, mut after) = (Vec::new(), None);
        loop {
            let page = self.client.events(after, 1000).await.expect("events").value;
            if page.items.is_empty() {
                return found;
            }
            let about = |event: &EventView| event.object == own || event.object.starts_with(&inner);
            found.extend(page.items.into_iter().filter(about));
            after = Some(page.next);
        }
    }

    /// What masters and agents said, for a test that failed.
    #[must_use]
    pub fn output(&self) -> String {
        let agents = self.agents.iter().flatten().map(Process::output);
        let agents: Vec<String> = agents.collect();
        format!("{}\n---- agents\n{}", self.masters.output(), agents.join("\n----\n"))
    }
}

fn parse(spec: &Value) -> JobSpec {
    serde_json::from_value(spec.clone()).unwrap_or_else(|why| panic!("{why}: {spec:#}"))
}

/// Only on the machine of this number.
#[must_use]
pub fn on(machine: Machine) -> Value {
    json!([{ "attribute": "number", "operator": { "equal": { "integer": machine } } }])
}

/// At most so many tasks of the job on one machine.
#[must_use]
pub fn spread(limit: u32) -> Value {
    json!([{ "domain": "machine", "limit": limit }])
}

/// The state of a process; one that has ended and waits to be reaped is not alive.
#[must_use]
pub fn is_alive(pid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let state = stat.rsplit(')').next().map(str::trim_start);
    !stat.is_empty() && state.is_some_and(|rest| !rest.starts_with(['Z', 'X']))
}

/// The parent of a process, which for a task's program is its shim.
#[must_use]
pub fn parent(pid: u32) -> u32 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).expect("it lives");
    let parent = stat.rsplit(')').next().and_then(|rest| rest.split_whitespace().nth(1));
    parent.and_then(|parent| parent.parse().ok()).expect("a process has a parent")
}

/// Waits until a process is gone that is no child of ours.
pub async fn wait_until_gone(pid: u32) {
    let deadline = Instant::now() + TIMEOUT;
    while is_alive(pid) {
        assert!(Instant::now() < deadline, "process {pid} does not end");
        sleep(POLL_INTERVAL / 10).await;
    }
}
