//! `cell dev`: a whole cell in one process, for trying things out. An open master on loopback, its
//! scheduler, and machines that are not there: virtual agents speak the protocol of real ones and
//! run nothing.

use super::Success;
use super::fleet::{FleetArgs, Papers};
use super::parse::{cores, size};
use super::scheduler::{SchedulerArgs, run_scheduler};
use crate::failure::Failure;
use crate::output::print;
use crate::server::{serve, told_to_stop};
use cellwright_api::client::{Client, Settings};
use cellwright_master::config::Config;
use cellwright_master::serve::{Access, Running, run_master};
use cellwright_store::Role;
use clap::Args;
use std::net::SocketAddr;
use std::path::PathBuf;

/// A cell for trying things out: open master, scheduler and virtual machines in one process
#[derive(Debug, Args)]
pub struct DevArgs {
    /// Where the cell is kept; it is there again at the next start
    #[arg(long, value_name = "DIR", default_value = "cell-dev")]
    data_dir: PathBuf,

    /// Where the master listens; port 0 takes a free one
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:7070")]
    listen: SocketAddr,

    /// Virtual machines
    #[arg(long, value_name = "N", default_value_t = 3,
          value_parser = clap::value_parser!(u32).range(0..=20_000))]
    machines: u32,

    /// Cores of each virtual machine
    #[arg(long, value_name = "CORES", default_value = "4", value_parser = cores)]
    cpu: u64,

    /// Memory of each virtual machine
    #[arg(long, value_name = "SIZE", default_value = "16GiB", value_parser = size)]
    ram: u64,
}

impl DevArgs {
    /// A master and a scheduler without machines.
    pub fn bare(data_dir: PathBuf, listen: SocketAddr) -> DevArgs {
        DevArgs { data_dir, listen, machines: 0, cpu: 4000, ram: 16 << 30 }
    }

    pub fn run(self) -> Result<Success, Failure> {
        let config = self.config()?;
        serve(self.cell(config))
    }

    fn config(&self) -> Result<Config, Failure> {
        let given = [
            ("cell", "dev".to_owned()),
            ("name", "dev".to_owned()),
            ("data_dir", self.data_dir.display().to_string()),
            ("listen", self.listen.to_string()),
            ("advertise", "127.0.0.1:7070".to_owned()),
        ];
        let parsed = Config::default_file(&given).and_then(|text| Config::parse(&text));
        let config = parsed.map_err(|error| Failure::Usage {
            message: error.to_string(),
            next: "correct --data-dir or --listen".into(),
        })?;
        Ok(Config { advertise: self.listen.to_string(), ..config })
    }

    async fn cell(self, config: Config) -> Result<Success, Failure> {
        let name = config.name.clone();
        let running = run_master(config, Access::Open, None).await?;
        let address = running.address().to_string();
        // The next commands must work at once.
        let mut status = running.handle().replica().watch();
        drop(status.wait_for(|status| status.role == Role::Leader).await);
        let client = Client::new(Settings::new(vec![address.clone()]))?;
        let scheduler = tokio::spawn(run_scheduler(SchedulerArgs::in_process(name), client));
        let fleet = FleetArgs::plain("dev", self.machines, self.cpu, self.ram);
        let fleet = fleet.start(vec![address.clone()], &Papers::None)?;
        print(&self.welcome(&running, &address))?;
        told_to_stop().await?;
        scheduler.abort();
        drop(fleet);
        running.stop().await;
        Ok(Success::Done)
    }

    fn welcome(&self, running: &Running, address: &str) -> String {
        let program = std::env::args().next().unwrap_or_else(|| "cell".into());
        let machines = crate::format::counted(u64::from(self.machines), "virtual machine");
        format!(
            "cell dev serves {} with {machines}; its data is in {}\n\
             everybody on this computer may do everything with it; stop it with ctrl-c\n\
             next, in another terminal:\n\
             \x20 {program} --master {address} job run examples/hello.json\n\
             \x20 {program} --master {address} job status dev/hello\n\
             \x20 {program} --master {address} events\n",
            running.url(),
            self.data_dir.display(),
        )
    }
}
