//! `cell quota`: how much users may request in a priority band, and for how long.

use super::parse::{cores, end_time, name, rate, size, time_or_delay};
use super::{Success, enum_words, pagination};
use crate::args::{OutputArgs, WatchArgs};
use crate::connection::ConnectionArgs;
use crate::failure::Failure;
use crate::output::{Output, is_wide, print_json, print_notice, print_prose};
use crate::runtime::block_on;
use crate::{format, table};
use cellwright_api::client::{ChangeOptions, Client};
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
    #[arg(value_name = "BAND", value_parser = parse_band)]
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
    #[arg(long, value_name = "TIME", value_parser = time_or_delay)]
    from: Option<Time>,

    /// When it ends, in the same way, or never; jobs that were admitted stay [default of a first
    /// grant: never]
    #[arg(long, value_name = "TIME", value_parser = end_time)]
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

fn parse_band(text: &str) -> Result<Band, String> {
    enum_words::parse_enum(text, &Band::ALL)
}

impl Quota {
    pub fn run(self, connection: &ConnectionArgs) -> Result<Success, Failure> {
        match self {
            Quota::Ls(args) => args.show(connection)?,
            Quota::Set(args) => args.set(connection)?,
        }
        Ok(Success::Done)
    }
}

impl SetArgs {
    /// Reads the grant, changes the given values, and writes it back unless another writer has
    /// changed it meanwhile.
    fn set(self, connection: &ConnectionArgs) -> Result<(), Failure> {
        let (user, band) = (&self.user, self.band);
        if !self.has_changes() {
            return Err(Failure::Usage {
                message: "nothing is named that is to change".into(),
                next: format!("cell quota set {user} {} --cpu 2 --ram 4GiB", band_name(band)),
            });
        }
        let cell = connection.cell()?;
        let user_view = block_on(async { Ok(cell.client.user(user).await?.value.item) })?;
        let row = user_view.quota.iter().find(|row| row.band == band);
        let quota = self.granted(row.and_then(|row| row.quota))?;
        block_on(put_quota(&cell.client, user, band, &quota, Some(user_view.version)))?;
        let charged = row.map(|row| row.charged).unwrap_or_default();
        print_prose(&granted_text(user, band, &quota, charged, crate::clock::now()))
    }

    fn has_changes(&self) -> bool {
        let amounts = [self.cpu, self.ram, self.disk, self.disk_rate];
        amounts.iter().any(Option::is_some) || self.from.is_some() || self.until.is_some()
    }

    /// The grant with the given values changed.
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

/// The current grant, with warnings about it.
fn granted_text(user: &Name, band: Band, quota: &Granted, charged: Resources, now: Time) -> String {
    let amounts = Dimension::ALL.map(|dimension| {
        let noun = match dimension {
            Dimension::Cpu => String::new(),
            other => format!(" {}", other.as_str().replace('-', " ")),
        };
        match (dimension, quota.amount.get(dimension)) {
            (Dimension::Cpu, granted @ MAX_TOTAL..) => {
                format!("{} cores", format_amount(dimension, granted))
            }
            (_, granted) => format!("{}{noun}", format_amount(dimension, granted)),
        }
    });
    let counts = match validity_text(quota.from, quota.until) {
        span if span.is_empty() => span,
        span => format!("; counts {span}"),
    };
    let mut out =
        format!("user {user} has quota in {}: {}{counts}\n", band_name(band), amounts.join(", "));
    for dimension in Dimension::ALL {
        let (charged, granted) = (charged.get(dimension), quota.amount.get(dimension));
        if charged > granted {
            let (charged, granted) =
                (format_amount(dimension, charged), format_amount(dimension, granted));
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
    fn show(&self, connection: &ConnectionArgs) -> Result<(), Failure> {
        let cell = connection.cell()?;
        let users: Vec<UserView> = match &self.user {
            Some(user) => vec![block_on(async { Ok(cell.client.user(user).await?.value.item) })?],
            None => block_on(pagination::fetch_all(async |page| {
                Ok(cell.client.users(page).await?.value)
            }))?,
        };
        match self.output.output {
            Output::Json => print_json(&users),
            Output::Table if users.iter().all(|user| user.quota.is_empty()) => {
                print_notice("no quota; next: cell quota set USER batch --cpu 2 --ram 4GiB");
                Ok(())
            }
            Output::Table => print_prose(&render_list(&users, is_wide())),
        }
    }
}

fn render_list(users: &[UserView], wide: bool) -> String {
    let dimensions = table_dimensions(wide);
    let rows = users.iter().flat_map(|user| user.quota.iter().map(move |quota| (user, quota)));
    let rows: Vec<Vec<String>> =
        rows.map(|(user, quota)| render_row(&user.name, quota, dimensions)).collect();
    let amounts = amount_columns(dimensions);
    let columns = ["user", "band"].into_iter().chain(amounts.iter().map(String::as_str));
    let columns: Vec<&str> = columns.chain(["counts"]).collect();
    table::render_with_text_column(&columns, &rows)
}

/// The dimensions that fit a terminal, or all.
pub fn table_dimensions(wide: bool) -> &'static [Dimension] {
    if wide { &Dimension::ALL } else { &[Dimension::Cpu, Dimension::Ram] }
}

/// The headers of [`used_and_granted`].
pub fn amount_columns(dimensions: &[Dimension]) -> Vec<String> {
    let names = dimensions.iter().map(|dimension| dimension.as_str().replace('-', " "));
    names.flat_map(|name| [format!("{name} used"), name]).collect()
}

fn render_row(user: &Name, view: &QuotaView, dimensions: &[Dimension]) -> Vec<String> {
    let (from, until) =
        view.quota.map_or((Time(0), Time::NEVER), |quota| (quota.from, quota.until));
    let mut row = vec![user.to_string(), enum_words::enum_text(&view.band)];
    row.extend(used_and_granted(view, dimensions));
    row.push(validity_text(from, until));
    row
}

/// The charged and the granted amount of each dimension.
pub fn used_and_granted(view: &QuotaView, dimensions: &[Dimension]) -> Vec<String> {
    let granted = view.quota.map(|quota| quota.amount).unwrap_or_default();
    let both = |dimension: &Dimension| {
        [
            format_amount(*dimension, view.charged.get(*dimension)),
            format_amount(*dimension, granted.get(*dimension)),
        ]
    };
    dimensions.iter().flat_map(both).collect()
}

fn format_amount(dimension: Dimension, amount: u64) -> String {
    match amount {
        // A total this large means no limit.
        MAX_TOTAL.. => "unbounded".to_owned(),
        _ => format::amount(Units::CoresAndBytes, dimension.as_str(), amount),
    }
}

fn band_name(band: Band) -> String {
    let word = serde_json::to_value(band).ok();
    word.and_then(|value| value.as_str().map(str::to_owned)).unwrap_or_default()
}

/// The period in which a quota is valid; empty if it always is.
fn validity_text(from: Time, until: Time) -> String {
    // Whole minutes are precise enough for periods of days.
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

/// Grants a quota from now on, without an end.
pub async fn grant(
    client: &Client,
    user: &Name,
    band: Band,
    amount: Resources,
) -> Result<(), Failure> {
    let quota = Granted { amount, from: Time(0), until: Time::NEVER };
    put_quota(client, user, band, &quota, None).await
}

async fn put_quota(
    client: &Client,
    user: &Name,
    band: Band,
    quota: &Granted,
    expect: Option<u32>,
) -> Result<(), Failure> {
    let path = format!("/v1/users/{user}/quota/{}", band_name(band));
    let change = ChangeOptions { expect, ..ChangeOptions::default() };
    let _: Changed = client.change(Method::PUT, &path, Some(quota), &change).await?.value;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_span_is_told_as_far_as_it_has_ends() {
        let day = |days: u64| Time(days * 86_400_000);
        assert_eq!(validity_text(Time(0), Time::NEVER), "");
        assert_eq!(validity_text(Time(0), day(1)), "until 1970-01-02 00:00Z");
        assert_eq!(validity_text(day(1), Time::NEVER), "from 1970-01-02 00:00Z");
        assert_eq!(
            validity_text(day(1), day(31)),
            "from 1970-01-02 00:00Z until 1970-02-01 00:00Z"
        );
    }

    fn parse_set_args(rest: &str) -> SetArgs {
        #[derive(clap::Parser)]
        struct Line {
            #[command(flatten)]
            args: SetArgs,
        }
        let words = "set dev production ".to_owned() + rest;
        <Line as clap::Parser>::parse_from(words.split_whitespace()).args
    }

    const GRANTED: Granted = Granted {
        amount: Resources { cpu: 2000, ram: 4 << 30, disk: 8 << 30, disk_rate: MAX_TOTAL },
        from: Time(0),
        until: Time(86_400_000),
    };

    #[test]
    fn what_is_not_named_stays_as_it_is() {
        let got = parse_set_args("--cpu 0.9 --ram 10GiB").granted(Some(GRANTED)).unwrap();
        let amount = Resources { cpu: 900, ram: 10 << 30, ..GRANTED.amount };
        assert_eq!(got, Granted { amount, ..GRANTED });
        let got = parse_set_args("--until never").granted(Some(GRANTED)).unwrap();
        assert_eq!(got, Granted { until: Time::NEVER, ..GRANTED });
        let got = parse_set_args("--disk 1GiB").granted(None).unwrap();
        let amount = Resources { disk: 1 << 30, ..Resources::ZERO };
        assert_eq!(got, Granted { amount, from: Time(0), until: Time::NEVER });
        assert!(!parse_set_args("").has_changes());
        let wrong =
            parse_set_args("--from 1970-01-03T00:00:00Z").granted(Some(GRANTED)).unwrap_err();
        assert!(wrong.to_string().contains("is not after --from 1970-01-03"), "{wrong}");
    }

    #[test]
    fn what_was_granted_is_repeated_and_what_is_odd_about_it_is_said() {
        let user = Name::new("dev").unwrap();
        let charged = Resources { cpu: 2500, ..Resources::ZERO };
        let text = granted_text(&user, Band::Production, &GRANTED, charged, Time(86_400_001));
        assert_eq!(
            text,
            "user dev has quota in production: 2 cores, 4 GiB ram, 8 GiB disk, unbounded disk \
             rate; counts until 1970-01-02 00:00Z\n\
             warning: cpu: 2.50 cores charged, 2 cores granted; no more is admitted until less \
             is charged\n\
             warning: this is over and admits nothing; for longer: --until 30d or never\n\
             next: cell quota ls\n"
        );
        let text = granted_text(&user, Band::Batch, &GRANTED, Resources::ZERO, Time(0));
        assert!(!text.contains("warning"), "{text}");
    }

    #[test]
    fn the_wide_list_has_every_dimension() {
        let charged = Resources { disk: 1 << 30, ..Resources::ZERO };
        let view = QuotaView { band: Band::Batch, quota: Some(GRANTED), charged, exceeded: false };
        let cells = |wide: bool| {
            let dimensions = table_dimensions(wide);
            amount_columns(dimensions)
                .into_iter()
                .zip(used_and_granted(&view, dimensions))
                .collect::<Vec<_>>()
        };
        let pair = |column: &str, cells: &str| (column.to_owned(), cells.to_owned());
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
        assert_eq!(cells(false), narrow);
        assert_eq!(cells(true), [narrow, disk].concat());
    }
}
