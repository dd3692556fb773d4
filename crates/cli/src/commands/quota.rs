//! `cell quota`: how much users may ask for in a band, and for how long.

use super::parse::{cores, end, name, rate, size, when};
use super::{Success, pages, words};
use crate::args::{OutputArgs, WatchArgs};
use crate::failure::Failure;
use crate::output::{Output, aside, is_wide, print_json, say};
use crate::reach::Reach;
use crate::server::ask;
use crate::{format, table};
use cellwright_api::client::{Change, Client};
use cellwright_api::types::{Changed, QuotaView, UserView};
use cellwright_cell::admit::MAX_TOTAL;
use cellwright_cell::name::Name;
use cellwright_cell::priority::Band;
use cellwright_cell::quota::Quota as Granted;
use cellwright_cell::resource::{Dimension, Resources};
use cellwright_cell::time::Time;
use cellwright_sim::experiment::load::Units;
use clap::{Args, Subcommand};
use hyper::Method;

/// Quota: set, ls
#[derive(Debug, Subcommand)]
pub enum Quota {
    /// List what is granted and what of it is charged
    Ls(LsArgs),
    /// Grant a user so much at once in one band; what is not named stays as it is
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
    cpu: Option<u64>,

    /// Memory
    #[arg(long, value_name = "SIZE", value_parser = size)]
    ram: Option<u64>,

    /// Disk space
    #[arg(long, value_name = "SIZE", value_parser = size)]
    disk: Option<u64>,

    /// Disk traffic a second
    #[arg(long, value_name = "SIZE", value_parser = rate)]
    disk_rate: Option<u64>,

    /// From when on it counts: a UTC time such as 2026-12-01T00:00:00Z, or how long from now, such
    /// as 7d [default of a first grant: at once]
    #[arg(long, value_name = "TIME", value_parser = when)]
    from: Option<Time>,

    /// When it ends, in the same way, or never; jobs that were admitted stay [default of a first
    /// grant: never]
    #[arg(long, value_name = "TIME", value_parser = end)]
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
    /// Reads what is granted, changes what was named, and writes it back as long as nobody else
    /// has written meanwhile.
    fn set(self, reach: &Reach) -> Result<(), Failure> {
        let (user, band) = (&self.user, self.band);
        if !self.names_something() {
            return Err(Failure::Usage {
                message: "nothing is named that is to change".into(),
                next: format!("cell quota set {user} {} --cpu 2 --ram 4GiB", word(band)),
            });
        }
        let cell = reach.cell()?;
        let seen = ask(async { Ok(cell.client.user(user).await?.value.item) })?;
        let row = seen.quota.iter().find(|row| row.band == band);
        let quota = self.granted(row.and_then(|row| row.quota))?;
        ask(put(&cell.client, user, band, &quota, Some(seen.version)))?;
        let charged = row.map(|row| row.charged).unwrap_or_default();
        say(&told(user, band, &quota, charged, crate::clock::now()))
    }

    fn names_something(&self) -> bool {
        let amounts = [self.cpu, self.ram, self.disk, self.disk_rate];
        amounts.iter().any(Option::is_some) || self.from.is_some() || self.until.is_some()
    }

    /// What was granted, changed where something was named.
    fn granted(&self, before: Option<Granted>) -> Result<Granted, Failure> {
        let first = Granted { amount: Resources::ZERO, from: Time(0), until: Time::NEVER };
        let old = before.unwrap_or(first);
        let amount = Resources {
            cpu: self.cpu.unwrap_or(old.amount.cpu),
            ram: self.ram.unwrap_or(old.amount.ram),
            disk: self.disk.unwrap_or(old.amount.disk),
            disk_rate: self.disk_rate.unwrap_or(old.amount.disk_rate),
        };
        let (from, until) = (self.from.unwrap_or(old.from), self.until.unwrap_or(old.until));
        if until > from {
            return Ok(Granted { amount, from, until });
        }
        let (from, until) = (format::utc(from), format::utc(until));
        let next = match (self.from, self.until) {
            (Some(_), None) => "give an earlier --from, or a later --until as well",
            _ => "give a later --until",
        };
        Err(Failure::Usage {
            message: format!("--until {until} is not after --from {from}"),
            next: next.into(),
        })
    }
}

/// What is granted now, and what is odd about it.
fn told(user: &Name, band: Band, quota: &Granted, charged: Resources, now: Time) -> String {
    let amounts = Dimension::ALL.map(|dimension| {
        let noun = match dimension {
            Dimension::Cpu => String::new(),
            other => format!(" {}", other.as_str().replace('-', " ")),
        };
        match (dimension, quota.amount.get(dimension)) {
            (Dimension::Cpu, granted @ MAX_TOTAL..) => {
                format!("{} cores", amount(dimension, granted))
            }
            (_, granted) => format!("{}{noun}", amount(dimension, granted)),
        }
    });
    let counts = match counts(quota.from, quota.until) {
        span if span.is_empty() => span,
        span => format!("; counts {span}"),
    };
    let mut out =
        format!("user {user} has quota in {}: {}{counts}\n", word(band), amounts.join(", "));
    for dimension in Dimension::ALL {
        let (charged, granted) = (charged.get(dimension), quota.amount.get(dimension));
        if charged > granted {
            let (charged, granted) = (amount(dimension, charged), amount(dimension, granted));
            out.push_str(&format!(
                "warning: {dimension}: {charged} charged, {granted} granted; no more is admitted \
                 until less is charged\n"
            ));
        }
    }
    if quota.until <= now {
        out.push_str(
            "warning: this is over and admits nothing; for longer: --until 30d or never\n",
        );
    }
    out + "next: cell quota ls\n"
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
            Output::Table => say(&list(&users, is_wide())),
        }
    }
}

fn list(users: &[UserView], wide: bool) -> String {
    let shown = shown_dimensions(wide);
    let rows = users.iter().flat_map(|user| user.quota.iter().map(move |quota| (user, quota)));
    let rows: Vec<Vec<String>> = rows.map(|(user, quota)| row(&user.name, quota, shown)).collect();
    let amounts = columns(shown);
    let columns = ["user", "band"].into_iter().chain(amounts.iter().map(String::as_str));
    let columns: Vec<&str> = columns.chain(["counts"]).collect();
    table::render_told(&columns, &rows)
}

/// As many as a terminal has room for, or all.
pub fn shown_dimensions(wide: bool) -> &'static [Dimension] {
    if wide { &Dimension::ALL } else { &[Dimension::Cpu, Dimension::Ram] }
}

/// What stands above [`amounts`].
pub fn columns(shown: &[Dimension]) -> Vec<String> {
    let names = shown.iter().map(|dimension| dimension.as_str().replace('-', " "));
    names.flat_map(|name| [format!("{name} used"), name]).collect()
}

fn row(user: &Name, view: &QuotaView, shown: &[Dimension]) -> Vec<String> {
    let (from, until) =
        view.quota.map_or((Time(0), Time::NEVER), |quota| (quota.from, quota.until));
    let mut row = vec![user.to_string(), words::word(&view.band)];
    row.extend(amounts(view, shown));
    row.push(counts(from, until));
    row
}

/// Of each dimension what is charged, and what is granted.
pub fn amounts(view: &QuotaView, shown: &[Dimension]) -> Vec<String> {
    let granted = view.quota.map(|quota| quota.amount).unwrap_or_default();
    let both =
        |one: &Dimension| [amount(*one, view.charged.get(*one)), amount(*one, granted.get(*one))];
    shown.iter().flat_map(both).collect()
}

fn amount(dimension: Dimension, amount: u64) -> String {
    match amount {
        // Nobody counts up to there.
        MAX_TOTAL.. => "unbounded".to_owned(),
        _ => format::amount(Units::CoresAndBytes, dimension.as_str(), amount),
    }
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
    let quota = Granted { amount, from: Time(0), until: Time::NEVER };
    put(client, user, band, &quota, None).await
}

async fn put(
    client: &Client,
    user: &Name,
    band: Band,
    quota: &Granted,
    expect: Option<u32>,
) -> Result<(), Failure> {
    let path = format!("/v1/users/{user}/quota/{}", word(band));
    let change = Change { expect, ..Change::default() };
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

    fn typed(rest: &str) -> SetArgs {
        #[derive(clap::Parser)]
        struct Line {
            #[command(flatten)]
            args: SetArgs,
        }
        let words = "set dev production ".to_owned() + rest;
        <Line as clap::Parser>::parse_from(words.split_whitespace()).args
    }

    const HAD: Granted = Granted {
        amount: Resources { cpu: 2000, ram: 4 << 30, disk: 8 << 30, disk_rate: MAX_TOTAL },
        from: Time(0),
        until: Time(86_400_000),
    };

    #[test]
    fn what_is_not_named_stays_as_it_is() {
        let got = typed("--cpu 0.9 --ram 10GiB").granted(Some(HAD)).unwrap();
        let amount = Resources { cpu: 900, ram: 10 << 30, ..HAD.amount };
        assert_eq!(got, Granted { amount, ..HAD });
        let got = typed("--until never").granted(Some(HAD)).unwrap();
        assert_eq!(got, Granted { until: Time::NEVER, ..HAD });
        let got = typed("--disk 1GiB").granted(None).unwrap();
        let amount = Resources { disk: 1 << 30, ..Resources::ZERO };
        assert_eq!(got, Granted { amount, from: Time(0), until: Time::NEVER });
        assert!(!typed("").names_something());
        let wrong = typed("--from 1970-01-03T00:00:00Z").granted(Some(HAD)).unwrap_err();
        assert!(wrong.to_string().contains("is not after --from 1970-01-03"), "{wrong}");
    }

    #[test]
    fn what_was_granted_is_repeated_and_what_is_odd_about_it_is_said() {
        let user = Name::new("dev").unwrap();
        let charged = Resources { cpu: 2500, ..Resources::ZERO };
        let said = told(&user, Band::Production, &HAD, charged, Time(86_400_001));
        assert_eq!(
            said,
            "user dev has quota in production: 2 cores, 4 GiB ram, 8 GiB disk, unbounded disk \
             rate; counts until 1970-01-02 00:00Z\n\
             warning: cpu: 2.50 cores charged, 2 cores granted; no more is admitted until less \
             is charged\n\
             warning: this is over and admits nothing; for longer: --until 30d or never\n\
             next: cell quota ls\n"
        );
        let said = told(&user, Band::Batch, &HAD, Resources::ZERO, Time(0));
        assert!(!said.contains("warning"), "{said}");
    }

    #[test]
    fn the_wide_list_has_every_dimension() {
        let charged = Resources { disk: 1 << 30, ..Resources::ZERO };
        let view = QuotaView { band: Band::Batch, quota: Some(HAD), charged, exceeded: false };
        let told = |wide: bool| {
            let shown = shown_dimensions(wide);
            columns(shown).into_iter().zip(amounts(&view, shown)).collect::<Vec<_>>()
        };
        let pair = |column: &str, told: &str| (column.to_owned(), told.to_owned());
        let narrow = [
            pair("cpu used", "0 cores"),
            pair("cpu", "2 cores"),
            pair("ram used", "0 B"),
            pair("ram", "4 GiB"),
        ];
        let disk = [
            pair("disk used", "1 GiB"),
            pair("disk", "8 GiB"),
            pair("disk rate used", "0 B/s"),
            pair("disk rate", "unbounded"),
        ];
        assert_eq!(told(false), narrow);
        assert_eq!(told(true), [narrow, disk].concat());
    }
}
