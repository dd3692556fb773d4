//! `cell quota`: how much users may ask for in a band, and for how long.

use super::parse::{cores, name, size, when};
use super::{Success, pages, words};
use crate::args::{OutputArgs, WatchArgs};
use crate::failure::Failure;
use crate::output::{Output, aside, print_json, say};
use crate::reach::Reach;
use crate::server::ask;
use crate::{format, table};
use cellwright_api::client::{Change, Client};
use cellwright_api::types::{Changed, QuotaView, UserView};
use cellwright_cell::admit::MAX_TOTAL;
use cellwright_cell::name::Name;
use cellwright_cell::priority::Band;
use cellwright_cell::quota::Quota as Granted;
use cellwright_cell::resource::Resources;
use cellwright_cell::time::Time;
use cellwright_sim::experiment::load::Units;
use clap::{Args, Subcommand};
use hyper::Method;

/// Quota: set, ls
#[derive(Debug, Subcommand)]
pub enum Quota {
    /// List what is granted and what of it is charged
    Ls(LsArgs),
    /// Grant a user so much at once in one band; replaces what was granted there
    Set(SetArgs),
}

#[derive(Debug, Args)]
pub struct SetArgs {
    /// Who
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

    /// From when on it counts: a UTC time such as 2026-12-01T00:00:00Z, or how long from now, such
    /// as 7d [default: at once]
    #[arg(long, value_name = "TIME", value_parser = when)]
    from: Option<Time>,

    /// When it ends, in the same way; jobs that were admitted stay [default: never]
    #[arg(long, value_name = "TIME", value_parser = when)]
    until: Option<Time>,
}

#[derive(Debug, Args)]
pub struct LsArgs {
    /// Only of this user
    #[arg(value_name = "USER", value_parser = name)]
    user: Option<Name>,

    #[command(flatten)]
    watch: WatchArgs,

    #[command(flatten)]
    output: OutputArgs,
}

fn band(text: &str) -> Result<Band, String> {
    words::one_of(text, &Band::ALL)
}

impl Quota {
    pub fn run(self, reach: &Reach) -> Result<Success, Failure> {
        match self {
            Quota::Ls(args) => args.show(reach)?,
            Quota::Set(args) => args.set(reach)?,
        }
        Ok(Success::Done)
    }
}

impl SetArgs {
    fn set(self, reach: &Reach) -> Result<(), Failure> {
        let cell = reach.cell()?;
        let SetArgs { user, band, cpu, ram, disk, disk_rate, from, until } = self;
        let amount = Resources { cpu, ram, disk, disk_rate };
        let (from, until) = (from.unwrap_or(Time(0)), until.unwrap_or(Time::NEVER));
        if until <= from {
            let (from, until) = (format::utc(from), format::utc(until));
            return Err(Failure::Usage {
                message: format!("--until {until} is not after --from {from}"),
                next: "give a later --until".into(),
            });
        }
        ask(put(&cell.client, &user, band, &Granted { amount, from, until }))?;
        say(&format!("user {user} has quota in {}\nnext: cell quota ls\n", word(band)))
    }
}

impl LsArgs {
    fn show(&self, reach: &Reach) -> Result<(), Failure> {
        let cell = reach.cell()?;
        let users: Vec<UserView> = match &self.user {
            Some(user) => vec![ask(async { Ok(cell.client.user(user).await?.value.item) })?],
            None => ask(pages::all(async |page| Ok(cell.client.users(page).await?.value)))?,
        };
        match self.output.output {
            Output::Json => print_json(&users),
            Output::Table if users.iter().all(|user| user.quota.is_empty()) => {
                aside("no quota; next: cell quota set USER batch --cpu 2 --ram 4GiB");
                Ok(())
            }
            Output::Table => say(&list(&users)),
        }
    }
}

fn list(users: &[UserView]) -> String {
    let rows = users.iter().flat_map(|user| user.quota.iter().map(move |quota| (user, quota)));
    let rows: Vec<Vec<String>> = rows.map(|(user, quota)| row(&user.name, quota)).collect();
    table::render_told(&["user", "band", "cpu used", "cpu", "ram used", "ram", "counts"], &rows)
}

fn row(user: &Name, view: &QuotaView) -> Vec<String> {
    let amount = |name: &str, amount: u64| match amount {
        MAX_TOTAL.. => "unbounded".to_owned(),
        _ => format::amount(Units::CoresAndBytes, name, amount),
    };
    let (granted, from, until) = match view.quota {
        Some(quota) => (quota.amount, quota.from, quota.until),
        None => (Resources::default(), Time(0), Time::NEVER),
    };
    vec![
        user.to_string(),
        words::word(&view.band),
        amount("cpu", view.charged.cpu),
        amount("cpu", granted.cpu),
        amount("ram", view.charged.ram),
        amount("ram", granted.ram),
        counts(from, until),
    ]
}

fn word(band: Band) -> String {
    let word = serde_json::to_value(band).ok();
    word.and_then(|value| value.as_str().map(str::to_owned)).unwrap_or_default()
}

/// When a quota counts; nothing of one that always does.
fn counts(from: Time, until: Time) -> String {
    // Whole minutes say enough of spans of days.
    let minute = |time: Time| match format::utc(time).rsplit_once(':') {
        Some((minute, _)) => format!("{minute}Z"),
        None => format::utc(time),
    };
    match (from == Time(0), until == Time::NEVER) {
        (true, true) => String::new(),
        (true, false) => format!("until {}", minute(until)),
        (false, true) => format!("from {}", minute(from)),
        (false, false) => format!("from {} until {}", minute(from), minute(until)),
    }
}

/// From now on, without an end.
pub async fn grant(
    client: &Client,
    user: &Name,
    band: Band,
    amount: Resources,
) -> Result<(), Failure> {
    put(client, user, band, &Granted { amount, from: Time(0), until: Time::NEVER }).await
}

async fn put(client: &Client, user: &Name, band: Band, quota: &Granted) -> Result<(), Failure> {
    let path = format!("/v1/users/{user}/quota/{}", word(band));
    let change = Change::default();
    let _: Changed = client.change(Method::PUT, &path, Some(quota), &change).await?.value;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_span_is_told_as_far_as_it_has_ends() {
        let day = |days: u64| Time(days * 86_400_000);
        assert_eq!(counts(Time(0), Time::NEVER), "");
        assert_eq!(counts(Time(0), day(1)), "until 1970-01-02 00:00Z");
        assert_eq!(counts(day(1), Time::NEVER), "from 1970-01-02 00:00Z");
        assert_eq!(counts(day(1), day(31)), "from 1970-01-02 00:00Z until 1970-02-01 00:00Z");
    }
}
