//! The one configuration file of a master.
//!
//! One table, [`keys::KEYS`], has every key, its meaning and its default. The default file that
//! `cell master init` writes is that table printed, and an unknown key is rejected with the nearest
//! known one as a suggestion. Numbers that only matter to readers of the code are not here: they
//! are constants beside their argument.
//!
//! Rejected: environment variables and flags for everything. With three ways to set a value it is
//! unclear which one applied.

mod archive;
mod keys;

use crate::access::listener::ListenerLimits;
use crate::archiver::ArchiveConfig;
use crate::http::FlowConfig;
use crate::http::bodies::MinBodyRate;
use cellwright_cell::bounds::Bounds;
use cellwright_cell::name::Name;
use cellwright_cell::notice::LongestNotice;
use cellwright_cell::reclaim;
use cellwright_cell::resource::{MAX_QUANTITY, Resources};
use cellwright_cell::spec::MAX_TASKS;
use cellwright_cell::time::Span;
use cellwright_control::controller::reclaim::ReclamationConfig;
use cellwright_control::liveness::DownRate;
use cellwright_master::history::QueryConfig;
use cellwright_master::segments::RetentionLimits;
use cellwright_names::Zone;
use keys::KEYS;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;
use toml::{Table, Value};

/// Why a configuration file is not valid.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum ConfigError {
    #[error("{file}: {why}")]
    Unreadable { file: PathBuf, why: String },
    #[error("{why}")]
    NotToml { why: String },
    #[error("unknown key `{key}`{}", nearest.map_or_else(
        || format!("; known: {}", known()), |near| format!("; did you mean `{near}`?")))]
    UnknownKey { key: String, nearest: Option<&'static str> },
    #[error("`{key}` is missing: {about}")]
    Missing { key: &'static str, about: &'static str },
    #[error("`{key}` is {value}; allowed: {allowed}")]
    Bad { key: &'static str, value: String, allowed: &'static str },
}

fn known() -> String {
    KEYS.iter().map(|key| key.name).collect::<Vec<_>>().join(", ")
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    pub cell: Name,
    pub name: Name,
    pub id: u64,
    pub data_dir: PathBuf,
    pub listen: SocketAddr,
    pub advertise: String,
    /// Absent: no DNS server on this replica.
    pub dns_listen: Option<SocketAddr>,
    pub zone: Zone,
    pub supervise_scheduler: bool,
    pub poll_interval: Span,
    pub missed_polls: u64,
    pub down_per_minute: DownRate,
    pub clock_skew_alarm: Span,
    pub reclaim: ReclamationConfig,
    pub task_certificate_lifetime: Span,
    pub keep_dead_jobs: Span,
    pub keep_events: Span,
    pub events_size: u64,
    pub history_recent: Span,
    pub keep_history: Span,
    pub history_size: u64,
    pub keep_audit: Span,
    pub audit_size: u64,
    pub audit_size_user: u64,
    /// Absent: no archive.
    pub archive: Option<ArchiveConfig>,
    pub body_limit: u64,
    pub tasks_per_job: u32,
    pub blob_limit: u64,
    pub package_quota_user: u64,
    pub package_quota_cell: u64,
    pub disk_reserve: u64,
    pub heartbeat: Span,
    pub snapshot_entries: u64,
    pub checkpoint_interval: Span,
    pub checkpoints: u64,
    pub connections: u64,
    pub connections_per_identity: u64,
    pub flow: FlowConfig,
    pub queries: QueryConfig,
    /// Limits for each user, which the leader proposes to the cell.
    pub bounds: Bounds,
}

/// Upper limit of the configured minimum charge of a task in one dimension; `apply` allows no more.
const MAX_LEAST_CHARGE: u64 = 1 << 30;
const DURATION: &str = "a whole number with ms, s, m, h or d, such as \"5s\"";
const TASKS: &str = "a number from 1 to 200000";
const SIZE: &str = "a whole number with B, KiB, MiB, GiB or TiB, such as \"512MiB\"";

impl Config {
    /// # Errors
    /// When the file cannot be read or has a value that is not allowed.
    pub fn load(file: &Path) -> Result<Config, ConfigError> {
        let unreadable = |why: String| ConfigError::Unreadable { file: file.to_owned(), why };
        let text = std::fs::read_to_string(file).map_err(|why| unreadable(why.to_string()))?;
        Config::parse(&text).map_err(|why| unreadable(why.to_string()))
    }

    /// # Errors
    /// The first error: key, value and what is allowed.
    pub fn parse(text: &str) -> Result<Config, ConfigError> {
        let table: Table = text
            .parse()
            .map_err(|why: toml::de::Error| ConfigError::NotToml { why: why.to_string() })?;
        if let Some(key) = table.keys().find(|name| KEYS.iter().all(|key| key.name != *name)) {
            return Err(ConfigError::UnknownKey { key: key.clone(), nearest: nearest_key(key) });
        }
        let read = ConfigReader(&table);
        let config = Config {
            cell: read.name("cell")?,
            name: read.name("name")?,
            id: read.number("id", 1, "a number from 1")?,
            data_dir: read.text("data_dir")?.into(),
            listen: read.address("listen")?,
            advertise: read.host_and_port("advertise")?,
            dns_listen: read.address_or_off("dns_listen")?,
            zone: read.zone("names_suffix")?,
            supervise_scheduler: read.boolean("supervise_scheduler")?,
            poll_interval: read.span("poll_interval", Span(100))?,
            missed_polls: read.number("missed_polls", 2, "a number from 2")?,
            down_per_minute: read.down_rate("down_per_minute")?,
            clock_skew_alarm: read.span("clock_skew_alarm", Span(500))?,
            reclaim: read.reclaim()?,
            task_certificate_lifetime: read.task_certificate_lifetime()?,
            keep_dead_jobs: read.span("keep_dead_jobs", Span::ZERO)?,
            keep_events: read.span("keep_events", Span::ZERO)?,
            events_size: read.size("events_size", 1 << 20)?,
            history_recent: read.span("history_recent", Span::seconds(86_400))?,
            keep_history: read.span("keep_history", Span::seconds(86_400))?,
            history_size: read.size("history_size", 16 << 20)?,
            keep_audit: read.span("keep_audit", Span::ZERO)?,
            audit_size: read.size("audit_size", 1 << 20)?,
            audit_size_user: read.size("audit_size_user", 1 << 16)?,
            archive: read.archive()?,
            body_limit: read.size("body_limit", 1 << 10)?,
            tasks_per_job: read.tasks("tasks_per_job")?,
            blob_limit: read.size("blob_limit", 0)?,
            package_quota_user: read.size("package_quota_user", 0)?,
            package_quota_cell: read.size("package_quota_cell", 0)?,
            disk_reserve: read.size("disk_reserve", 0)?,
            heartbeat: read.heartbeat()?,
            snapshot_entries: read.number("snapshot_entries", 100, "a number from 100")?,
            checkpoint_interval: read.span("checkpoint_interval", Span::seconds(1))?,
            checkpoints: read.number("checkpoints", 1, "a number from 1")?,
            connections: read.number("connections", 16, "a number from 16")?,
            connections_per_identity: read.number(
                "connections_per_identity",
                1,
                "a number from 1",
            )?,
            flow: read.flow()?,
            queries: read.queries()?,
            bounds: read.bounds()?,
        };
        Ok(config)
    }

    /// The default file with every key explained. `given` are the values of the keys that have no
    /// default, and of others that should differ; texts without quotes.
    ///
    /// # Errors
    /// When the result is not accepted by [`Config::parse`].
    pub fn default_file(given: &[(&str, String)]) -> Result<String, ConfigError> {
        let mut text = String::from(
            "# Configuration of a cellwright master. Durations are written like \"5s\" or\n\
             # \"24h\", sizes like \"512MiB\". A key that is left out has the value shown here.\n",
        );
        for key in KEYS {
            let value = match given.iter().find(|(name, _)| *name == key.name) {
                Some((_, value)) => Value::String(value.clone()).to_string(),
                None => key.default.to_owned(),
            };
            let quoted_number = value.trim_matches('"');
            let plain = quoted_number.parse::<u64>().is_ok() && !key.default.starts_with('"');
            let value = if plain { quoted_number } else { &value };
            for line in key.about.lines() {
                text.push_str(&format!("\n# {line}"));
            }
            text.push_str(&format!("\n{} = {value}\n", key.name));
        }
        Config::parse(&text)?;
        Ok(text)
    }

    /// Hosts in this replica's certificate: the advertised address, the listen address, and
    /// loopback, for people on the machine itself.
    #[must_use]
    pub fn hosts(&self) -> Vec<String> {
        let mut hosts = vec!["localhost".to_owned(), "127.0.0.1".to_owned(), "::1".to_owned()];
        hosts.push(host_of(&self.advertise).to_owned());
        if !self.listen.ip().is_unspecified() {
            hosts.push(self.listen.ip().to_string());
        }
        hosts.sort();
        hosts.dedup();
        hosts
    }

    #[must_use]
    pub fn limits(&self) -> ListenerLimits {
        let number = |value: u64| usize::try_from(value).unwrap_or(usize::MAX);
        ListenerLimits {
            connections: number(self.connections),
            per_address: number(self.connections / 2),
            per_identity: number(self.connections_per_identity),
            drain: Duration::from_secs(10),
            ..ListenerLimits::default()
        }
    }

    #[must_use]
    pub fn event_retention(&self) -> RetentionLimits {
        retention(self.events_size, self.keep_events)
    }

    #[must_use]
    pub fn history_config(&self) -> cellwright_history::RetentionConfig {
        cellwright_history::RetentionConfig {
            recent: self.history_recent,
            keep: self.keep_history,
            max_bytes: self.history_size,
        }
    }

    #[must_use]
    pub fn audit_retention(&self) -> RetentionLimits {
        retention(self.audit_size, self.keep_audit)
    }
}

/// Segments are a sixteenth of the whole, so that dropping one drops little.
fn retention(total_bytes: u64, age: Span) -> RetentionLimits {
    RetentionLimits { segment_bytes: (total_bytes / 16).min(8 << 20), total_bytes, age }
}

/// `host` of `host:port` or `[host]:port`.
#[must_use]
pub fn host_of(address: &str) -> &str {
    let host = address.rsplit_once(':').map_or(address, |(host, _)| host);
    host.trim_start_matches('[').trim_end_matches(']')
}

/// Reads keys of a file, falling back on the defaults of [`KEYS`].
struct ConfigReader<'a>(&'a Table);

impl ConfigReader<'_> {
    fn value(&self, name: &'static str) -> Result<Value, ConfigError> {
        if let Some(value) = self.0.get(name) {
            return Ok(value.clone());
        }
        let found = KEYS.iter().find(|key| key.name == name);
        let about = found.map_or("", |key| key.about);
        let default = found.map(|key| key.default).filter(|default| !default.is_empty());
        let default = default.and_then(|text| format!("v = {text}").parse::<Table>().ok());
        default
            .and_then(|table| table.get("v").cloned())
            .ok_or(ConfigError::Missing { key: name, about })
    }

    fn bad(value: &Value, key: &'static str, allowed: &'static str) -> ConfigError {
        ConfigError::Bad { key, value: value.to_string(), allowed }
    }

    fn text(&self, key: &'static str) -> Result<String, ConfigError> {
        let value = self.value(key)?;
        match value.as_str() {
            Some(text) if !text.is_empty() => Ok(text.to_owned()),
            _ => Err(Self::bad(&value, key, "a text that is not empty")),
        }
    }

    fn parsed<T>(
        &self,
        key: &'static str,
        allowed: &'static str,
        parse: impl FnOnce(&str) -> Option<T>,
    ) -> Result<T, ConfigError> {
        let value = self.value(key)?;
        value.as_str().and_then(parse).ok_or_else(|| Self::bad(&value, key, allowed))
    }

    fn name(&self, key: &'static str) -> Result<Name, ConfigError> {
        let allowed = "1 to 63 characters a-z, 0-9 and -, not starting or ending with -";
        self.parsed(key, allowed, |text| Name::new(text).ok())
    }

    fn address(&self, key: &'static str) -> Result<SocketAddr, ConfigError> {
        self.parsed(key, "address:port, such as \"0.0.0.0:7070\" or \"[::]:7070\"", |text| {
            text.parse().ok()
        })
    }

    /// The reclamation margins and their pace.
    fn reclaim(&self) -> Result<ReclamationConfig, ConfigError> {
        let allowed = "\"baseline\", \"medium\" or \"aggressive\"";
        let named =
            self.parsed("reclaim", allowed, |text| reclaim::ReclaimConfig::by_name(text).ok())?;
        let speed = self.number("reclaim_speed", 1, "a number from 1")?;
        let warm_up = self.span("reclaim_warm_up", Span::ZERO)?;
        let gather = Span(ReclamationConfig::default().gather_for.0 / speed);
        let estimate = reclaim::ReclaimConfig { warm_up, ..named.accelerated(speed) };
        Ok(ReclamationConfig { estimate, gather_for: gather })
    }

    fn address_or_off(&self, key: &'static str) -> Result<Option<SocketAddr>, ConfigError> {
        self.parsed(key, "address:port, such as \"0.0.0.0:53\", or \"off\"", |text| match text {
            "off" => Some(None),
            text => text.parse().ok().map(Some),
        })
    }

    fn zone(&self, key: &'static str) -> Result<Zone, ConfigError> {
        let cell = self.name("cell")?;
        self.parsed(key, "DNS labels such as \"cell.internal\"; up to 37 characters fit", |text| {
            Zone::new(&cell, text).ok()
        })
    }

    fn host_and_port(&self, key: &'static str) -> Result<String, ConfigError> {
        self.parsed(key, "host:port, such as \"master-1.example:7070\"", |text| {
            let (host, port) = text.rsplit_once(':')?;
            let port: u16 = port.parse().ok()?;
            (!host.is_empty() && port > 0).then(|| text.to_owned())
        })
    }

    fn boolean(&self, key: &'static str) -> Result<bool, ConfigError> {
        let value = self.value(key)?;
        value.as_bool().ok_or_else(|| Self::bad(&value, key, "true or false"))
    }

    fn number(
        &self,
        key: &'static str,
        min: u64,
        allowed: &'static str,
    ) -> Result<u64, ConfigError> {
        let value = self.value(key)?;
        let number = value.as_integer().and_then(|number| u64::try_from(number).ok());
        number.filter(|number| *number >= min).ok_or_else(|| Self::bad(&value, key, allowed))
    }

    fn tasks(&self, key: &'static str) -> Result<u32, ConfigError> {
        let value = self.value(key)?;
        let number = value.as_integer().and_then(|number| u32::try_from(number).ok());
        number
            .filter(|number| (1..=MAX_TASKS).contains(number))
            .ok_or_else(|| Self::bad(&value, key, TASKS))
    }

    fn span(&self, key: &'static str, min: Span) -> Result<Span, ConfigError> {
        self.parsed(key, DURATION, |text| parse_duration(text).filter(|span| *span >= min))
    }

    fn count(&self, key: &'static str) -> Result<usize, ConfigError> {
        let number = self.number(key, 1, "a number from 1")?;
        Ok(usize::try_from(number).unwrap_or(usize::MAX))
    }

    fn bytes(&self, key: &'static str, min: u64) -> Result<usize, ConfigError> {
        Ok(usize::try_from(self.size(key, min)?).unwrap_or(usize::MAX))
    }

    fn time(&self, key: &'static str, min: Span) -> Result<Duration, ConfigError> {
        self.span(key, min).map(|span| Duration::from_millis(span.0))
    }

    /// What one caller may use of a replica at once. A body that is allowed must fit.
    fn flow(&self) -> Result<FlowConfig, ConfigError> {
        let largest = self.size("body_limit", 1 << 10)?;
        Ok(FlowConfig {
            streams: self.count("streams")?,
            streams_per_user: self.count("streams_per_user")?,
            stream_timeout: self.time("stream_timeout", Span::seconds(1))?,
            requests: self.count("requests")?,
            requests_per_user: self.count("requests_per_user")?,
            body_bytes: self.memory_size("body_bytes", largest)?,
            body_bytes_per_user: self.memory_size("body_bytes_per_user", largest)?,
            pace: MinBodyRate {
                patience: self.time("body_timeout", Span::seconds(1))?,
                rate: self.size("body_rate", 1)?,
            },
            report_limit: self.bytes("report_limit", 64 << 10)?,
            output_readers: self.count("output_readers")?,
            output_readers_per_user: self.count("output_readers_per_user")?,
            sessions: self.count("sessions")?,
            sessions_per_user: self.count("sessions_per_user")?,
            questions_per_user: self.count("questions_per_user")?,
        })
    }

    fn memory_size(&self, key: &'static str, min: u64) -> Result<usize, ConfigError> {
        let value = self.value(key)?;
        let found = value.as_str().and_then(parse_size).filter(|bytes| *bytes >= min);
        let allowed = "a size such as \"64MiB\", body_limit or more";
        let bytes = found.ok_or_else(|| Self::bad(&value, key, allowed))?;
        Ok(usize::try_from(bytes).unwrap_or(usize::MAX))
    }

    fn queries(&self) -> Result<QueryConfig, ConfigError> {
        Ok(QueryConfig {
            concurrency: self.count("sql_queries")?,
            per_user: self.count("sql_queries_per_user")?,
            waiting_per_user: self.count("sql_waiting_per_user")?,
            timeout: self.time("sql_time", Span::seconds(1))?,
        })
    }

    fn down_rate(&self, key: &'static str) -> Result<DownRate, ConfigError> {
        let value = self.value(key)?;
        let number = value.as_integer().and_then(|number| u64::try_from(number).ok());
        let percent = value.as_str().and_then(|text| text.strip_suffix('%')?.parse().ok());
        let rate = match (number, percent) {
            (Some(number), _) if number >= 1 => Some(DownRate::Machines(number)),
            (_, Some(percent)) if (1..=100).contains(&percent) => Some(DownRate::Percent(percent)),
            _ => None,
        };
        rate.ok_or_else(|| Self::bad(&value, key, "a number from 1, or a share such as \"5%\""))
    }

    /// A longest notice; none at all is allowed.
    fn notice(&self, key: &'static str) -> Result<Span, ConfigError> {
        self.span(key, Span::ZERO)
    }

    fn bounds(&self) -> Result<Bounds, ConfigError> {
        let number = |key| self.number(key, 1, "a number from 1");
        let milli = self.number("least_charge_cpu", 0, "thousandths of a core, from 0")?;
        let ram = self.size("least_charge_ram", 0)?;
        if milli > MAX_LEAST_CHARGE || ram > MAX_LEAST_CHARGE {
            let (key, value) = if milli > MAX_LEAST_CHARGE {
                ("least_charge_cpu", milli)
            } else {
                ("least_charge_ram", ram)
            };
            let allowed = "at most a thousand cores and a gibibyte";
            return Err(ConfigError::Bad { key, value: value.to_string(), allowed });
        }
        Ok(Bounds {
            least_charge: Resources { cpu: milli, ram, ..Resources::ZERO },
            jobs: number("jobs_per_user")?,
            tasks: number("tasks_per_user")?,
            spec_bytes: self.size("spec_bytes_per_user", 64 << 10)?,
            crons: number("crons_per_user")?,
            tokens: number("tokens_per_user")?,
            resources: number("resources_per_user")?,
            packages: number("packages_per_user")?,
            answer_bytes: self.size("answer_bytes_per_user", 16 << 10)?,
            machine_tasks: number("tasks_per_machine")?,
            longest_notice: LongestNotice {
                best_effort: self.notice("notice_best_effort")?,
                batch: self.notice("notice_batch")?,
                production: self.notice("notice_production")?,
                monitoring: self.notice("notice_monitoring")?,
            },
            versions: number("versions_per_job")?,
            default_disk: self.parsed("default_disk", SIZE, |text| {
                parse_size(text).filter(|size| *size <= MAX_QUANTITY)
            })?,
        })
    }

    /// Leases of tasks that run at most once rely on the leader's heartbeat being at most a second
    /// old, so heartbeats cannot be any slower.
    fn heartbeat(&self) -> Result<Span, ConfigError> {
        let allowed = |span: &Span| (Span(10)..=Span(500)).contains(span);
        self.parsed("heartbeat", "10ms to 500ms", |text| parse_duration(text).filter(allowed))
    }

    /// A task's certificate cannot be revoked, so a day is the longest; certificate dates are in
    /// seconds.
    fn task_certificate_lifetime(&self) -> Result<Span, ConfigError> {
        let allowed = |span: &Span| (Span::seconds(10)..=Span::seconds(86_400)).contains(span);
        self.parsed("task_certificate_lifetime", "10s to 24h", |text| {
            parse_duration(text).filter(allowed)
        })
    }

    fn size(&self, key: &'static str, min: u64) -> Result<u64, ConfigError> {
        self.parsed(key, SIZE, |text| parse_size(text).filter(|size| *size >= min))
    }
}

/// A number and its unit.
fn parse_quantity(text: &str) -> Option<(u64, &str)> {
    let end = text.bytes().position(|b| !b.is_ascii_digit()).unwrap_or(text.len());
    Some((text[..end].parse().ok()?, &text[end..]))
}

/// `250ms`, `5s`, `10m`, `24h`, `30d`.
#[must_use]
pub fn parse_duration(text: &str) -> Option<Span> {
    let (number, unit) = parse_quantity(text)?;
    let factor = match unit {
        "ms" => 1,
        "s" => 1000,
        "m" => 60_000,
        "h" => 3_600_000,
        "d" => 86_400_000,
        _ => return None,
    };
    number.checked_mul(factor).map(Span)
}

/// `10B`, `64KiB`, `512MiB`, `4GiB`, `1TiB`.
#[must_use]
pub fn parse_size(text: &str) -> Option<u64> {
    let (number, unit) = parse_quantity(text)?;
    let shift = match unit {
        "B" => 0,
        "KiB" => 10,
        "MiB" => 20,
        "GiB" => 30,
        "TiB" => 40,
        _ => return None,
    };
    number.checked_mul(1 << shift)
}

/// The known key with the smallest edit distance, if that is at most a third of its length.
fn nearest_key(wrong: &str) -> Option<&'static str> {
    let close = KEYS.iter().map(|key| (edit_distance(wrong, key.name), key.name)).min()?;
    (close.0 * 3 <= close.1.len().max(wrong.len())).then_some(close.1)
}

/// Letters to insert, delete or replace to get from one word to the other.
fn edit_distance(one: &str, other: &str) -> usize {
    let other = other.as_bytes();
    let mut row: Vec<usize> = (0..=other.len()).collect();
    for (at, byte) in one.bytes().enumerate() {
        let mut corner = row[0];
        row[0] = at + 1;
        for (place, expected) in other.iter().enumerate() {
            let exchanged = corner + usize::from(byte != *expected);
            corner = row[place + 1];
            row[place + 1] = exchanged.min(corner + 1).min(row[place] + 1);
        }
    }
    row[other.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEAST: &str = "cell = \"aa\"\nname = \"m1\"\nadvertise = \"h:7070\"\n";

    fn error(line: &str) -> String {
        Config::parse(&format!("{LEAST}{line}\n")).unwrap_err().to_string()
    }

    #[test]
    fn the_default_file_means_the_defaults_and_explains_every_key() {
        let given = [
            ("cell", "aa".to_owned()),
            ("name", "m1".to_owned()),
            ("advertise", "h:7070".to_owned()),
        ];
        let file = Config::default_file(&given).unwrap();
        assert_eq!(Config::parse(&file), Config::parse(LEAST));
        for key in KEYS {
            assert!(file.contains(&format!("\n{} = ", key.name)), "{}", key.name);
            assert!(!key.about.is_empty());
        }
        let given = [&given[..], &[("id", "7".to_owned())]].concat();
        assert_eq!(Config::parse(&Config::default_file(&given).unwrap()).unwrap().id, 7);
        assert!(Config::default_file(&[]).is_err(), "a cell needs a name");
    }

    #[test]
    fn an_unknown_key_is_named_with_its_nearest_neighbour() {
        assert_eq!(
            error("pol_interval = \"5s\""),
            "unknown key `pol_interval`; did you mean `poll_interval`?"
        );
        assert_eq!(
            error("keep_event = \"1d\""),
            "unknown key `keep_event`; did you mean `keep_events`?"
        );
        assert!(error("colour = 1").starts_with("unknown key `colour`; known: cell, name, id"));
        assert!(error("[poll_interval2]").starts_with("unknown key `poll_interval2`"));
    }

    #[test]
    fn a_bad_value_is_shown_with_what_is_allowed() {
        let check = |line: &str, expected: &str| assert_eq!(error(line), expected);
        check("poll_interval = \"5\"", &format!("`poll_interval` is \"5\"; allowed: {DURATION}"));
        check("poll_interval = 5", &format!("`poll_interval` is 5; allowed: {DURATION}"));
        check(
            "poll_interval = \"1ms\"",
            &format!("`poll_interval` is \"1ms\"; allowed: {DURATION}"),
        );
        check("body_limit = \"8MB\"", &format!("`body_limit` is \"8MB\"; allowed: {SIZE}"));
        check("heartbeat = \"1s\"", "`heartbeat` is \"1s\"; allowed: 10ms to 500ms");
        check(
            "task_certificate_lifetime = \"9s\"",
            "`task_certificate_lifetime` is \"9s\"; allowed: 10s to 24h",
        );
        check("tasks_per_job = 0", &format!("`tasks_per_job` is 0; allowed: {TASKS}"));
        check("tasks_per_job = 200001", &format!("`tasks_per_job` is 200001; allowed: {TASKS}"));
        assert!(TASKS.ends_with(&MAX_TASKS.to_string()));
        check("missed_polls = 1", "`missed_polls` is 1; allowed: a number from 2");
        check("missed_polls = -4", "`missed_polls` is -4; allowed: a number from 2");
        check(
            "supervise_scheduler = \"yes\"",
            "`supervise_scheduler` is \"yes\"; allowed: true or false",
        );
        assert!(error("listen = \"localhost\"").contains("address:port"));
        let missing = Config::parse("name = \"m1\"").unwrap_err().to_string();
        assert!(missing.starts_with("`cell` is missing: Name of the cell"), "{missing}");
        assert!(matches!(Config::parse("cell ="), Err(ConfigError::NotToml { .. })));
    }

    #[test]
    fn reclamation_has_margins_and_a_pace() {
        let parse = |lines: &str| Config::parse(&format!("{LEAST}{lines}")).unwrap().reclaim;
        assert_eq!(parse(""), ReclamationConfig::default());
        let fast = parse("reclaim = \"baseline\"\nreclaim_warm_up = \"2s\"\nreclaim_speed = 60\n");
        let usual = reclaim::ReclaimConfig::BASELINE;
        assert_eq!(fast.estimate.dimensions[0].half_life, Span::seconds(10));
        assert_eq!(
            fast.estimate.dimensions[0].margin_permille,
            usual.dimensions[0].margin_permille
        );
        assert_eq!((fast.estimate.warm_up, fast.gather_for), (Span::seconds(2), Span(500)));
        let bold = error("reclaim = \"bold\"");
        assert!(bold.ends_with("allowed: \"baseline\", \"medium\" or \"aggressive\""), "{bold}");
        assert!(error("reclaim_speed = 0").ends_with("allowed: a number from 1"));
    }

    #[test]
    fn durations_and_sizes_have_units_and_do_not_overflow() {
        let spans =
            ["250ms", "5s", "10m", "24h", "30d"].map(|text| parse_duration(text).unwrap().0);
        assert_eq!(spans, [250, 5_000, 600_000, 86_400_000, 2_592_000_000]);
        let sizes = ["10B", "1KiB", "1MiB", "1GiB", "1TiB"].map(|text| parse_size(text).unwrap());
        assert_eq!(sizes, [10, 1 << 10, 1 << 20, 1 << 30, 1 << 40]);
        for wrong in ["", "5", "s", "5 s", "-5s", "5S", "1.5s", "99999999999999999999s"] {
            assert_eq!(parse_duration(wrong), None, "{wrong}");
        }
        assert_eq!(parse_size("18446744073709551615TiB"), None);
        assert_eq!(parse_duration("18446744073709551615d"), None);
    }

    #[test]
    fn hosts_of_the_certificate_are_those_it_is_reached_at() {
        let text =
            format!("{LEAST}listen = \"10.0.0.1:7070\"\n").replace("h:7070", "[fd00::1]:7070");
        let config = Config::parse(&text).unwrap();
        assert_eq!(config.hosts(), ["10.0.0.1", "127.0.0.1", "::1", "fd00::1", "localhost"]);
        assert_eq!(host_of("h.example:1"), "h.example");
    }
}
