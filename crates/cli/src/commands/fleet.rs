//! `cell sim agents`: thousands of virtual machines on the line of a real master.

use super::Success;
use super::parse::{some_cores, some_size, span};
use super::virtual_args::VirtualArgs;
use crate::args::OutputArgs;
use crate::failure::Failure;
use crate::format;
use crate::output::{Output, print_json, say};
use crate::reach::Reach;
use crate::server::{Stop, serve};
use cellwright_api::client::{Client, Settings};
use cellwright_cell::machine::MachineSpec;
use cellwright_cell::name::Name;
use cellwright_cell::time::Span;
use cellwright_gateway::config::Config;
use cellwright_identity::authority::Authority;
use cellwright_identity::enroll::CERTIFICATE_LIFE;
use cellwright_identity::files::IdentityFiles;
use cellwright_identity::spiffe::Part;
use cellwright_identity::tls::{self, Shown, Trust};
use cellwright_master::clock::{Clock, SystemClock};
use cellwright_sim::fleet::{Fleet, Member, Summary};
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
    --attribute arch=x86_64,arm64 --device gpu:a100:4 --usage 30-90 --ill 5

The machines speak the protocol of real agents and run nothing: a task whose
command is `sim finish 500` ends well after 500 ms, `sim fail 500` badly, and
`sim use 120 60` uses 120 % of its limit of CPU and 60 % of that of memory; any
other runs until it is stopped or its max_run is over. What tasks use, and
which of them fail or fall ill, is drawn from --seed. With --config, on a
master's machine, each machine gets its own certificate.";

/// Virtual machines that poll a real master
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct FleetArgs {
    /// How many machines
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100_000))]
    machines: u32,

    /// Cores of each
    #[arg(long, value_name = "CORES", default_value = "16", value_parser = some_cores)]
    cpu: u64,

    /// Memory of each
    #[arg(long, value_name = "SIZE", default_value = "64GiB", value_parser = some_size)]
    ram: u64,

    /// Machines are called PREFIX-0, PREFIX-1, ...
    #[arg(long, value_name = "PREFIX", default_value = "virtual")]
    prefix: String,

    /// How long; then the summary [default: until it is stopped]
    #[arg(long = "for", value_name = "TIME", value_parser = span)]
    length: Option<Span>,

    /// Configuration of a master on this machine, for the machines' certificates
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,

    #[command(flatten)]
    virtual_args: VirtualArgs,

    #[command(flatten)]
    output: OutputArgs,
}

/// How the machines show who they are.
pub enum Papers {
    /// They do not: the master is open.
    None,
    Signed(Box<Authority>),
}

/// Between two lines of progress.
const PROGRESS: Duration = Duration::from_secs(5);

impl FleetArgs {
    pub fn plain(
        prefix: &str,
        machines: u32,
        (cpu, ram): (u64, u64),
        virtual_args: VirtualArgs,
    ) -> FleetArgs {
        FleetArgs {
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

    pub fn run(self, reach: &Reach) -> Result<Success, Failure> {
        serve(async move |stop| {
            let (masters, papers) = self.masters(reach)?;
            let fleet = self.start(masters, &papers)?;
            let summary = self.watch(&fleet, stop).await;
            match self.output.output {
                Output::Json => print_json(&summary)?,
                Output::Table => say(&shown(&summary))?,
            }
            Ok(Success::Done)
        })
    }

    /// Whom they poll, and as whom.
    fn masters(&self, reach: &Reach) -> Result<(Vec<String>, Papers), Failure> {
        match &self.config {
            Some(file) => {
                let next = "name the configuration of a master on this machine";
                let config = Config::load(file).map_err(|error| Failure::work(&error, next))?;
                let files = IdentityFiles::in_data(&config.data_dir);
                let authority = files.authority().map_err(|error| Failure::work(&error, next))?;
                Ok((vec![config.advertise], Papers::Signed(Box::new(authority))))
            }
            None if reach.masters.is_empty() => Err(Failure::Usage {
                message: "no master is named for the machines to poll".into(),
                next: "--master HOST:PORT of an open master, or --config of one here".into(),
            }),
            None => Ok((reach.masters.clone(), Papers::None)),
        }
    }

    pub fn start(&self, masters: Vec<String>, papers: &Papers) -> Result<Fleet, Failure> {
        let open = match papers {
            Papers::None => {
                let mut settings = Settings::new(masters.clone());
                // Every machine has a connection of its own.
                settings.idle = usize::try_from(self.machines).unwrap_or(usize::MAX).max(64);
                Some(Client::new(settings)?)
            }
            Papers::Signed(_) => None,
        };
        let mut members = Vec::new();
        for number in 0..self.machines {
            let spec = self.machine(number)?;
            let client = match (&open, papers) {
                (Some(client), _) => client.clone(),
                (None, Papers::Signed(authority)) => {
                    signed(authority, &spec.name, masters.clone())?
                }
                (None, Papers::None) => continue,
            };
            members.push(Member { spec, client });
        }
        Ok(Fleet::start(members, self.virtual_args.settings()))
    }

    fn machine(&self, number: u32) -> Result<MachineSpec, Failure> {
        let shape = self.virtual_args.shape(self.cpu, self.ram);
        shape.spec(&self.prefix, number).map_err(|error| Failure::Usage {
            message: error.to_string(),
            next: "correct --prefix".into(),
        })
    }

    async fn watch(&self, fleet: &Fleet, mut stop: Stop) -> Summary {
        let over = async {
            match self.length {
                Some(length) => tokio::time::sleep(Duration::from_millis(length.0)).await,
                None => std::future::pending().await,
            }
        };
        tokio::pin!(over);
        let mut ticks = tokio::time::interval(PROGRESS);
        loop {
            tokio::select! {
                () = stop.told() => return fleet.summary(),
                () = &mut over => return fleet.summary(),
                _ = ticks.tick() => {
                    let now = fleet.summary();
                    let (connected, running) = (now.connected, now.tasks_running);
                    crate::output::note!(
                        "{connected} of {} connected, {}, {} failed, {} running",
                        format::counted(now.agents as u64, "machine"),
                        format::counted(now.polls, "poll"),
                        now.failures,
                        format::counted(running as u64, "task"),
                    );
                }
            }
        }
    }
}

fn signed(authority: &Authority, name: &Name, masters: Vec<String>) -> Result<Client, Failure> {
    let next = "look at the clock and the memory of this machine, then run it again";
    let part = Part::Agent(name.clone());
    let papers = authority
        .equip(&part, &[], SystemClock.wall(), CERTIFICATE_LIFE)
        .map_err(|error| Failure::work(&error, next))?;
    let shown = Shown::new(&papers.certificate, &papers.key)
        .map_err(|error| Failure::work(&error, next))?;
    let trust = Trust::Authority(authority.certificate_pem().to_owned());
    let tls = tls::client(&trust, Some(shown)).map_err(|error| Failure::work(&error, next))?;
    let settings = Settings { tls: Some(Arc::new(tls)), idle: 2, ..Settings::new(masters) };
    Ok(Client::new(settings)?)
}

fn shown(summary: &Summary) -> String {
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
