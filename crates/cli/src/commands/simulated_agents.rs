//! `cell sim agents`: a load generator, thousands of virtual machines connected to a real master.

use super::Success;
use super::parse::{duration, nonzero_cores, nonzero_size};
use super::virtual_args::VirtualArgs;
use crate::args::OutputArgs;
use crate::connection::ConnectionArgs;
use crate::failure::Failure;
use crate::format;
use crate::output::{Output, print_json, print_prose};
use crate::runtime::{ShutdownSignal, serve};
use cellwright_api::client::{ApiClientConfig, Client};
use cellwright_cell::machine::MachineSpec;
use cellwright_cell::name::Name;
use cellwright_cell::time::Span;
use cellwright_gateway::config::Config;
use cellwright_identity::authority::Authority;
use cellwright_identity::enroll::CERTIFICATE_LIFETIME;
use cellwright_identity::files::IdentityFiles;
use cellwright_identity::spiffe::Part;
use cellwright_identity::tls::{self, CertificateResolver, Trust};
use cellwright_master::clock::{Clock, SystemClock};
use cellwright_sim::simulated_agents::{PollSummary, SimulatedAgents, SimulatedMachine};
use clap::Args;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

const EXAMPLES: &str = "\
Examples:
  cell sim agents --master 127.0.0.1:7070 --machines 1000
  cell sim agents --master 127.0.0.1:7070 --machines 10000 --for 60s -o json
  cell sim agents --config /etc/cellwright/master.toml --machines 100
  cell sim agents --master 127.0.0.1:7070 --machines 40 --racks 8 \\
    --attribute arch=x86_64,arm64 --device gpu:a100:4 --unhealthy 5

The machines speak the protocol of real agents and run nothing: a task whose
command is `sim finish 500` ends well after 500 ms, `sim fail 500` badly, and
`sim use 120 60` uses 120 % of its limit of CPU and 60 % of that of memory; any
other runs until it is stopped or its max_run is over. What tasks use, and
which of them fail or fall ill, is drawn from --seed. With --config, on a
master's machine, each machine gets its own certificate.";

/// Virtual machines that poll a real master
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct SimulatedAgentsArgs {
    /// How many machines
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100_000))]
    machines: u32,

    /// Cores of each
    #[arg(long, value_name = "CORES", default_value = "16", value_parser = nonzero_cores)]
    cpu: u64,

    /// Memory of each
    #[arg(long, value_name = "SIZE", default_value = "64GiB", value_parser = nonzero_size)]
    ram: u64,

    /// Machines are called PREFIX-0, PREFIX-1, ...
    #[arg(long, value_name = "PREFIX", default_value = "virtual")]
    prefix: String,

    /// How long; then the summary [default: until it is stopped]
    #[arg(long = "for", value_name = "TIME", value_parser = duration)]
    length: Option<Span>,

    /// Configuration of a master on this machine, for the machines' certificates
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,

    #[command(flatten)]
    virtual_args: VirtualArgs,

    #[command(flatten)]
    output: OutputArgs,
}

/// How the machines authenticate.
pub enum AgentCredentials {
    /// They do not authenticate: the master is open.
    None,
    Signed(Box<Authority>),
}

/// The interval between two lines of progress.
const PROGRESS_INTERVAL: Duration = Duration::from_secs(5);

impl SimulatedAgentsArgs {
    pub fn with_defaults(
        prefix: &str,
        machines: u32,
        (cpu, ram): (u64, u64),
        virtual_args: VirtualArgs,
    ) -> SimulatedAgentsArgs {
        SimulatedAgentsArgs {
            machines,
            cpu,
            ram,
            prefix: prefix.to_owned(),
            length: None,
            config: None,
            virtual_args,
            output: OutputArgs { output: Output::Table },
        }
    }

    pub fn run(self, connection: &ConnectionArgs) -> Result<Success, Failure> {
        serve(async move |stop| {
            let (masters, credentials) = self.masters(connection)?;
            let agents = self.start(masters, &credentials)?;
            let summary = self.watch(&agents, stop).await;
            match self.output.output {
                Output::Json => print_json(&summary)?,
                Output::Table => print_prose(&render(&summary))?,
            }
            Ok(Success::Done)
        })
    }

    /// The masters to poll, and the credentials for it.
    fn masters(
        &self,
        connection: &ConnectionArgs,
    ) -> Result<(Vec<String>, AgentCredentials), Failure> {
        match &self.config {
            Some(file) => {
                let next = "name the configuration of a master on this machine";
                let config =
                    Config::load(file).map_err(|error| Failure::from_error(&error, next))?;
                let files = IdentityFiles::in_data_dir(&config.data_dir);
                let authority =
                    files.load_authority().map_err(|error| Failure::from_error(&error, next))?;
                Ok((vec![config.advertise], AgentCredentials::Signed(Box::new(authority))))
            }
            None if connection.masters.is_empty() => Err(Failure::Usage {
                message: "no master is named for the machines to poll".into(),
                next: "--master HOST:PORT of an open master, or --config of one here".into(),
            }),
            None => Ok((connection.masters.clone(), AgentCredentials::None)),
        }
    }

    pub fn start(
        &self,
        masters: Vec<String>,
        credentials: &AgentCredentials,
    ) -> Result<SimulatedAgents, Failure> {
        let shared_client = match credentials {
            AgentCredentials::None => {
                let mut settings = ApiClientConfig::new(masters.clone());
                // Every machine has a connection of its own.
                settings.max_idle_connections =
                    usize::try_from(self.machines).unwrap_or(usize::MAX).max(64);
                Some(Client::new(settings)?)
            }
            AgentCredentials::Signed(_) => None,
        };
        let mut members = Vec::new();
        for number in 0..self.machines {
            let spec = self.machine(number)?;
            let client = match (&shared_client, credentials) {
                (Some(client), _) => client.clone(),
                (None, AgentCredentials::Signed(authority)) => {
                    certified_client(authority, &spec.name, masters.clone())?
                }
                (None, AgentCredentials::None) => continue,
            };
            members.push(SimulatedMachine { spec, client });
        }
        Ok(SimulatedAgents::start(members, self.virtual_args.settings()))
    }

    fn machine(&self, number: u32) -> Result<MachineSpec, Failure> {
        let shape = self.virtual_args.machine_shape(self.cpu, self.ram);
        shape.spec(&self.prefix, number).map_err(|error| Failure::Usage {
            message: error.to_string(),
            next: "correct --prefix".into(),
        })
    }

    async fn watch(&self, agents: &SimulatedAgents, mut stop: ShutdownSignal) -> PollSummary {
        let deadline = async {
            match self.length {
                Some(length) => tokio::time::sleep(Duration::from_millis(length.0)).await,
                None => std::future::pending().await,
            }
        };
        tokio::pin!(deadline);
        let mut ticks = tokio::time::interval(PROGRESS_INTERVAL);
        loop {
            tokio::select! {
                () = stop.requested() => return agents.summary(),
                () = &mut deadline => return agents.summary(),
                _ = ticks.tick() => {
                    let now = agents.summary();
                    let (connected, running) = (now.connected, now.tasks_running);
                    crate::output::note!(
                        "{connected} of {} connected, {}, {} failed, {} running",
                        format::pluralize(now.agents as u64, "machine"),
                        format::pluralize(now.polls, "poll"),
                        now.failures,
                        format::pluralize(running as u64, "task"),
                    );
                }
            }
        }
    }
}

fn certified_client(
    authority: &Authority,
    name: &Name,
    masters: Vec<String>,
) -> Result<Client, Failure> {
    let next = "look at the clock and the memory of this machine, then run it again";
    let part = Part::Agent(name.clone());
    let credentials = authority
        .issue_credentials(&part, &[], SystemClock.wall_time(), CERTIFICATE_LIFETIME)
        .map_err(|error| Failure::from_error(&error, next))?;
    let resolver = CertificateResolver::new(&credentials.certificate, &credentials.key)
        .map_err(|error| Failure::from_error(&error, next))?;
    let trust = Trust::Authority(authority.certificate_pem().to_owned());
    let tls = tls::client_config(&trust, Some(resolver))
        .map_err(|error| Failure::from_error(&error, next))?;
    let settings = ApiClientConfig {
        tls: Some(Arc::new(tls)),
        max_idle_connections: 2,
        ..ApiClientConfig::new(masters)
    };
    Ok(Client::new(settings)?)
}

fn render(summary: &PollSummary) -> String {
    let millis = |value: Option<u32>| value.map_or("none".into(), |ms| format!("{ms} ms"));
    format!(
        "machines   {}, {} connected\n\
         polls      {}, {} failed\n\
         interval   p50 {}, p95 {}, longest {}\n\
         tasks      {} running\n",
        format::count(summary.agents as u64),
        format::count(summary.connected),
        format::count(summary.polls),
        format::count(summary.failures),
        millis(summary.interval_p50),
        millis(summary.interval_p95),
        millis(summary.interval_max),
        format::count(summary.tasks_running as u64),
    )
}
