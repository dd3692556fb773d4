//! `cell dev`: a whole cell in one process, for development and trials. An open master on loopback,
//! its scheduler, and this machine's agent, which runs tasks in containers if it can. With
//! `--machines` there are virtual machines instead, which use the protocol of real ones and run
//! nothing.
//!
//! When it is interrupted, it stops its tasks, which nobody wants left behind after a trial. When
//! it is killed, the tasks keep running, and the next start adopts them, as any agent does.

use super::dev_ports::PortBlock;
use super::dev_ready::{grant_production, wait_until_up};
use super::parse::{nonzero_cores, nonzero_size};
use super::scheduler::{SchedulerArgs, run_scheduler};
use super::simulated_agents::{AgentCredentials, SimulatedAgentsArgs};
use super::virtual_args::VirtualArgs;
use super::{Success, agent, pagination};
use crate::failure::Failure;
use crate::output::print;
use crate::runtime::{ShutdownSignal, serve};
use crate::table::wrap;
use cellwright_agent::config::{Config as AgentConfig, DriverChoice, HostVolume};
use cellwright_agent::listen::Access as Dialled;
use cellwright_agent::machine::CONTAINERS_OFF;
use cellwright_agent::main_loop::{Agent, AgentError, ShutdownMode};
use cellwright_api::client::{ApiClientConfig, ChangeOptions, Client};
use cellwright_api::types::Changed;
use cellwright_archive::ArchivePlace;
use cellwright_cell::constraint::AttributeValue;
use cellwright_cell::credential::{PartKind, TokenKind};
use cellwright_cell::machine::MachineSpec;
use cellwright_cell::name::Name;
use cellwright_cell::time::Span;
use cellwright_gateway::archiver::ArchiveConfig;
use cellwright_gateway::config::Config;
use cellwright_gateway::serve::{AccessMode, RunningMaster, ServeError, run_master};
use cellwright_identity::private_files::ensure_private_dir;
use cellwright_sim::simulated_agents::SimulatedAgents;
use cellwright_store::Role;
use cellwright_supervise::{Supervisor, exit_unless_stopping};
use clap::{Args, ValueEnum};
use hyper::Method;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

/// A cell for trying things out: open master, scheduler and this machine's agent in one process
#[derive(Debug, Args)]
pub struct DevArgs {
    /// Where the cell is kept; it is there again at the next start
    #[arg(long, visible_alias = "data", value_name = "DIR", default_value = "cell-dev")]
    data_dir: PathBuf,

    /// Where the master listens; port 0 takes a free one
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:7070")]
    listen: SocketAddr,

    /// Where names of tasks are answered over DNS; tasks here are reached at 127.0.0.1
    #[arg(long, value_name = "ADDRESS:PORT")]
    dns: Option<SocketAddr>,

    /// So many virtual machines, which run nothing, instead of this one
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(0..=20_000))]
    machines: Option<u32>,

    /// How this machine runs tasks: in containers where they work, else as plain processes
    #[arg(long, value_enum, default_value = "auto")]
    driver: Driver,

    /// A folder of this machine that tasks in containers may borrow as a volume, :ro after it for
    /// reading alone; repeat it for several
    #[arg(long, value_name = "PATH[:ro]", value_parser = parse_host_volume,
          conflicts_with = "machines")]
    volume: Vec<HostVolume>,

    /// A folder where jobs that ended, logs and history are kept for good
    #[arg(long, value_name = "DIR")]
    archive: Option<PathBuf>,

    /// How long jobs stay on the record after their end
    #[arg(long, value_name = "DURATION", default_value = "24h",
          value_parser = super::parse::duration)]
    keep_dead_jobs: Span,

    /// Cores of each virtual machine
    #[arg(long, value_name = "CORES", default_value = "4", value_parser = nonzero_cores)]
    cpu: u64,

    /// Memory of each virtual machine
    #[arg(long, value_name = "SIZE", default_value = "16GiB", value_parser = nonzero_size)]
    ram: u64,

    #[command(flatten)]
    virtual_args: VirtualArgs,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Driver {
    Auto,
    Container,
    Process,
}

/// The name of the cell and of its one replica.
const DEV_NAME: &str = "dev";
/// The name of this machine.
const LOCAL_MACHINE: &str = "local";
/// The configuration of this machine's agent.
const AGENT_CONFIG: &str = "name = \"local\"";

/// Parses `/srv/data` or `/srv/models:ro`. A path that does not exist is rejected: with a mistyped
/// path, tasks would wait for the volume for ever.
fn parse_host_volume(text: &str) -> Result<HostVolume, String> {
    let (path, writable) = match text.strip_suffix(":ro") {
        Some(path) => (path, false),
        None => (text.strip_suffix(":rw").unwrap_or(text), true),
    };
    let path = std::path::absolute(path).map_err(|error| error.to_string())?;
    if path.is_dir() {
        // Without a trailing slash, as job files spell it.
        Ok(HostVolume { path: path.components().collect(), writable })
    } else {
        Err("no such folder; allowed: one that is there, or one with :ro after it".into())
    }
}

/// A warning when host volumes are given but there are no containers to mount them into; without
/// it, tasks with volumes would wait with no visible reason.
fn host_volume_warning(host_volumes: &[HostVolume], machine: &MachineSpec) -> String {
    let reason = machine.attributes.iter().find(|(name, _)| name.as_str() == CONTAINERS_OFF);
    let Some((_, AttributeValue::Text(reason))) = reason.filter(|_| !host_volumes.is_empty())
    else {
        return String::new();
    };
    let no_volumes = "--volume lends nothing, and tasks with volumes wait: no containers here";
    wrap("", "  ", &format!("{no_volumes} ({reason})"))
}

/// Replaces hints about stopping replicas and correcting configuration files, which do not exist
/// here.
fn start_failure(error: ServeError) -> Failure {
    match &error {
        ServeError::Disk(why) if why.kind() == io::ErrorKind::WouldBlock => {
            let next = "stop the other cell dev, or give this one another --data-dir";
            Failure::from_error(&error, next)
        }
        _ => error.into(),
    }
}

/// The machines of the cell.
enum Machines {
    Virtual(SimulatedAgents),
    Real {
        stop: oneshot::Sender<()>,
        done: JoinHandle<()>,
        /// A warning to print before use, or empty.
        warning: String,
        _ports: PortBlock,
    },
}

impl Machines {
    fn warning(&self) -> &str {
        match self {
            Machines::Virtual(_) => "",
            Machines::Real { warning, .. } => warning,
        }
    }

    /// Sends the tasks their stop notice and waits. A second signal ends the wait and leaves them
    /// running.
    async fn stop(self, again: &mut ShutdownSignal) {
        let (stop, done) = match self {
            Machines::Virtual(agents) => return drop(agents),
            Machines::Real { stop, done, .. } => (stop, done),
        };
        drop(stop);
        crate::output::note!("stopping the tasks of this machine; once more leaves them running");
        tokio::select! {
            // The agent has ended by itself, with or without an error.
            _ = done => {}
            () = again.requested() => {}
        }
    }
}

impl DevArgs {
    /// A master and a scheduler without machines.
    pub fn without_machines(data_dir: PathBuf, listen: SocketAddr) -> DevArgs {
        let driver = Driver::Auto;
        let (dns, machines, volume, archive) = (None, Some(0), Vec::new(), None);
        let keep_dead_jobs = Span::seconds(24 * 3600);
        let (cpu, ram, virtual_args) = (4000, 16 << 30, VirtualArgs::with_defaults());
        DevArgs {
            data_dir,
            listen,
            dns,
            machines,
            driver,
            volume,
            archive,
            keep_dead_jobs,
            cpu,
            ram,
            virtual_args,
        }
    }

    pub fn run(self) -> Result<Success, Failure> {
        if self.driver == Driver::Process && !self.volume.is_empty() {
            return Err(Failure::Usage {
                message: "--volume is for tasks in containers, and --driver process has none"
                    .into(),
                next: "the same command without one of the two".into(),
            });
        }
        serve(async move |stop| {
            let config = self.config()?;
            self.run_cell(config, stop).await
        })
    }

    fn config(&self) -> Result<Config, Failure> {
        let given = [
            ("cell", DEV_NAME.to_owned()),
            ("name", DEV_NAME.to_owned()),
            ("data_dir", self.data_dir.display().to_string()),
            ("listen", self.listen.to_string()),
            ("advertise", "127.0.0.1:7070".to_owned()),
        ];
        let parsed = Config::default_file(&given).and_then(|text| Config::parse(&text));
        let config = parsed.map_err(|error| Failure::Usage {
            message: error.to_string(),
            next: "correct --data-dir or --listen".into(),
        })?;
        let (archive, keep_dead_jobs) = (self.archive_config()?, self.keep_dead_jobs);
        let (advertise, dns_listen) = (self.listen.to_string(), self.dns);
        Ok(Config { advertise, dns_listen, archive, keep_dead_jobs, ..config })
    }

    fn archive_config(&self) -> Result<Option<ArchiveConfig>, Failure> {
        let Some(folder) = &self.archive else { return Ok(None) };
        let folder = std::path::absolute(folder);
        let folder = folder.map_err(|error| Failure::from_error(&error, "name another folder"))?;
        Ok(Some(ArchiveConfig::keeping_all(ArchivePlace::Folder(folder))))
    }

    async fn run_cell(self, config: Config, mut stop: ShutdownSignal) -> Result<Success, Failure> {
        let starting = run_master(config, AccessMode::Dev, None);
        let Some(running) = stop.run_unless_requested(starting).await.map_err(start_failure)?
        else {
            return Ok(Success::Done);
        };
        // A shutdown at any time stops in order what has been started by then.
        let mut machines = None;
        let parts_started =
            stop.run_unless_requested(self.start_parts(&running, &mut machines)).await?;
        if parts_started.is_some() {
            stop.requested().await;
        }
        if let Some(machines) = machines {
            machines.stop(&mut stop).await;
        }
        running.stop().await;
        Ok(Success::Done)
    }

    /// Starts the components beside the master; returns when commands work at once.
    async fn start_parts(
        &self,
        running: &RunningMaster,
        machines: &mut Option<Machines>,
    ) -> Result<(), Failure> {
        let (name, address) = (Name::new(DEV_NAME), running.address().to_string());
        let name = name.map_err(|bad| Failure::from_error(&bad, "report it"))?;
        let mut status = running.handle().replica().watch();
        drop(status.wait_for(|status| status.role == Role::Leader).await);
        let client = Client::new(ApiClientConfig::new(vec![address.clone()]))?;
        let scheduler = run_scheduler(SchedulerArgs::in_process(name), client.clone());
        // The scheduler ends only with an error.
        Supervisor::default().spawn_finite("the scheduler", async {
            match scheduler.await {
                Ok(()) => exit_unless_stopping("the scheduler ended"),
                Err(failure) => {
                    exit_unless_stopping(&format!("the scheduler cannot work: {failure}"))
                }
            }
        });
        self.reconcile(&client).await?;
        let machines = machines.insert(self.machines(&client, &address).await?);
        let machine_count = self.machines.map_or(1, |number| number as usize);
        wait_until_up(running.handle(), machine_count).await;
        grant_production(&client, running.handle()).await?;
        print(&self.welcome(running, &address, machines.warning()))
    }

    /// Whether this start serves a machine of this name.
    fn is_served(&self, name: &str) -> bool {
        match self.machines {
            None => name == LOCAL_MACHINE,
            Some(number) => {
                let at = name.strip_prefix("dev-").and_then(|at| at.parse::<u32>().ok());
                at.is_some_and(|at| at < number && name == format!("dev-{at}"))
            }
        }
    }

    /// Removes machines of an earlier start that this one does not serve, because tasks would be
    /// placed on them. Machines that it serves and that were removed by hand may come back.
    async fn reconcile(&self, client: &Client) -> Result<(), Failure> {
        // With `--machines 0`, the machines are started by other processes.
        if self.machines == Some(0) {
            return Ok(());
        }
        let machines =
            pagination::fetch_all(async |page| Ok(client.machines(page).await?.value)).await?;
        let mut gone = 0;
        for machine in machines.iter().filter(|machine| !self.is_served(machine.name.as_str())) {
            // The tasks on it do not run any more.
            client.remove_machine(&machine.name, true, &ChangeOptions::default()).await?;
            gone += 1;
        }
        if gone > 0 {
            let gone = crate::format::pluralize(gone, "machine");
            crate::output::note!("{gone} of an earlier start with other --machines left the cell");
        }
        let tokens =
            pagination::fetch_all(async |page| Ok(client.tokens(page).await?.value)).await?;
        for token in tokens {
            let TokenKind::Revocation { part: PartKind::Agent, name } = &token.kind else {
                continue;
            };
            if self.is_served(name.as_str()) {
                let path = format!("/v1/tokens/{}", token.id);
                let (none, change) = (None::<&()>, ChangeOptions::default());
                let _: Changed = client.change(Method::DELETE, &path, none, &change).await?.value;
            }
        }
        Ok(())
    }

    async fn machines(&self, client: &Client, address: &str) -> Result<Machines, Failure> {
        let masters = vec![address.to_owned()];
        if let Some(number) = self.machines {
            let agents = SimulatedAgentsArgs::with_defaults(
                "dev",
                number,
                (self.cpu, self.ram),
                self.virtual_args.clone(),
            );
            return Ok(Machines::Virtual(agents.start(masters, &AgentCredentials::None)?));
        }
        let (mut agent, ports) = self.agent()?;
        agent.listen(Dialled::Open(masters.clone()), &masters).await?;
        let warning = host_volume_warning(&self.volume, agent.machine());
        let (stop, stopped) = oneshot::channel();
        let shutdown_mode = async {
            // Dropping the sender has the same effect.
            let _ = stopped.await;
            ShutdownMode::StopTasks
        };
        let running = agent.run(client.clone(), shutdown_mode);
        let done = Supervisor::default().spawn_essential("the agent", running);
        Ok(Machines::Real { stop, done, warning, _ports: ports })
    }

    /// The agent of this machine, and its block of ports, which stays claimed while it is held.
    fn agent(&self) -> Result<(Agent, PortBlock), Failure> {
        let folder = self.data_dir.join("agent");
        ensure_private_dir(&folder, 0o711)
            .map_err(|source| Failure::Write { what: folder.display().to_string(), source })?;
        let config = AgentConfig::parse(AGENT_CONFIG).map_err(AgentError::from)?;
        let with_volumes = config.with_host_volumes(self.volume.clone());
        let mut config = with_volumes.map_err(|error| Failure::Usage {
            message: error.to_string(),
            next: "correct --volume, then run it again".into(),
        })?;
        let ports = PortBlock::take(&folder.join("ports"))?;
        config.ports = Some(ports.range);
        config.data_dir = folder;
        // DNS names of a machine's tasks resolve to its address; without DNS no address is needed.
        config.address = self.dns.map(|_| Ipv4Addr::LOCALHOST.into());
        config.driver = match self.driver {
            Driver::Auto => DriverChoice::Auto,
            Driver::Container => DriverChoice::Container,
            Driver::Process => DriverChoice::Process,
        };
        Ok((agent::open_agent(config)?, ports))
    }

    fn welcome(&self, running: &RunningMaster, address: &str, warning: &str) -> String {
        let program = std::env::args().next().unwrap_or_else(|| "cell".into());
        let machines = match self.machines {
            Some(number) => crate::format::pluralize(u64::from(number), "virtual machine"),
            None => "this machine".to_owned(),
        };
        let console = running.console_url().map_or_else(String::new, |url| url.expose().to_owned());
        let names = self.dns.map_or(String::new(), |at| format!("names are answered at {at}\n"));
        format!(
            "cell dev serves {} with {machines}\nits data is in {}\n{names}{warning}\
             console: {console}\n\
             it is for this account alone; stop it with ctrl-c\n\
             next, in another terminal:\n\
             \x20 {program} --master {address} run examples/hello.json\n\
             \x20 {program} --master {address} status dev/hello\n\
             \x20 {program} --master {address} logs dev/hello\n\
             with CELL_ADDR={address} in the environment, --master can be left out\n",
            running.url(),
            self.data_dir.display(),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folders_are_lent_by_their_whole_path_and_for_reading_if_it_says_so() {
        let volume = |path: &str, writable| HostVolume { path: path.into(), writable };
        assert_eq!(parse_host_volume("/usr/"), Ok(volume("/usr", true)));
        assert_eq!(parse_host_volume("/usr:rw"), Ok(volume("/usr", true)));
        assert_eq!(parse_host_volume("/usr/bin/.:ro"), Ok(volume("/usr/bin", false)));
        let here = std::env::current_dir().unwrap();
        assert_eq!(parse_host_volume("."), Ok(HostVolume { path: here, writable: true }));
        assert!(parse_host_volume("/no/such/folder:ro").unwrap_err().contains("no such folder"));
    }
}
