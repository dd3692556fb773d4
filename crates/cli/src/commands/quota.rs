//! `cell quota set`: how much a user may ask for in one band.

use super::Success;
use super::parse::{cores, name, size};
use crate::failure::Failure;
use crate::output::print;
use crate::reach::Reach;
use crate::server::ask;
use cellwright_api::client::{Change, Client};
use cellwright_api::types::Changed;
use cellwright_cell::name::Name;
use cellwright_cell::priority::Band;
use cellwright_cell::quota::Quota as Granted;
use cellwright_cell::resource::Resources;
use cellwright_cell::time::Time;
use clap::{Args, Subcommand};
use hyper::Method;

/// Quota: set
#[derive(Debug, Subcommand)]
pub enum Quota {
    /// Grant a user so much at once in one band; replaces what was granted there
    Set(SetArgs),
}

#[derive(Debug, Args)]
pub struct SetArgs {
    #[arg(value_name = "USER", value_parser = name)]
    user: Name,

    /// best_effort, batch, production or monitoring
    #[arg(value_name = "BAND", value_parser = band)]
    band: Band,

    /// Cores
    #[arg(long, value_name = "CORES", value_parser = cores)]
    cpu: u64,

    /// Memory
    #[arg(long, value_name = "SIZE", value_parser = size)]
    ram: u64,

    /// Disk space
    #[arg(long, value_name = "SIZE", value_parser = size, default_value = "0B")]
    disk: u64,

    /// Disk traffic a second
    #[arg(long, value_name = "SIZE", value_parser = size, default_value = "0B")]
    disk_rate: u64,
}

fn band(text: &str) -> Result<Band, String> {
    serde_json::from_value(text.into()).map_err(|error| error.to_string())
}

impl Quota {
    pub fn run(self, reach: &Reach) -> Result<Success, Failure> {
        let Quota::Set(args) = self;
        let cell = reach.cell()?;
        let SetArgs { user, band, cpu, ram, disk, disk_rate } = args;
        let amount = Resources { cpu, ram, disk, disk_rate };
        ask(grant(&cell.client, &user, band, amount))?;
        print(&format!("user {user} has quota in {}\nnext: cell user ls\n", word(band)))?;
        Ok(Success::Done)
    }
}

fn word(band: Band) -> String {
    let word = serde_json::to_value(band).ok();
    word.and_then(|value| value.as_str().map(str::to_owned)).unwrap_or_default()
}

/// From now on, without an end.
pub async fn grant(
    client: &Client,
    user: &Name,
    band: Band,
    amount: Resources,
) -> Result<(), Failure> {
    let quota = Granted { amount, from: Time(0), until: Time::NEVER };
    let path = format!("/v1/users/{user}/quota/{}", word(band));
    let change = Change::default();
    let _: Changed = client.change(Method::PUT, &path, Some(&quota), &change).await?.value;
    Ok(())
}
