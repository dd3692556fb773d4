//! Where the archive is, and for how long it keeps what is in it.

use super::{ConfigError, ConfigReader, DURATION, parse_duration};
use crate::archiver::ArchiveConfig;
use cellwright_archive::{ArchivePlace, S3Config};
use cellwright_cell::time::Span;
use std::path::PathBuf;
use toml::{Table, Value};

const PLACES: &str = "\"off\", { folder = \"/absolute/path\" }, or { s3 = { endpoint, bucket, \
                      region, credentials, prefix, authority } }";
const ABSOLUTE: &str = "an absolute path";
const BUCKET: &str = "3 to 63 characters a-z, 0-9, - and .";
const PREFIX: &str = "letters, digits and -._ between slashes";
const FOREVER: &str = "\"forever\", or a whole number with ms, s, m, h or d, such as \"365d\"";

impl ConfigReader<'_> {
    /// `None`: the cell has no archive.
    pub(super) fn archive(&self) -> Result<Option<ArchiveConfig>, ConfigError> {
        let [keep_jobs, keep_logs, keep_history] = [
            self.span_or_forever("keep_archived_jobs")?,
            self.span_or_forever("keep_archived_logs")?,
            self.span_or_forever("keep_archived_history")?,
        ];
        let wait = self.parsed("archive_wait", DURATION, parse_duration)?;
        let place = self.place()?;
        let config = |place| ArchiveConfig { place, wait, keep_jobs, keep_logs, keep_history };
        Ok(place.map(config))
    }

    fn span_or_forever(&self, key: &'static str) -> Result<Option<Span>, ConfigError> {
        self.parsed(key, FOREVER, |text| match text {
            "forever" => Some(None),
            text => parse_duration(text).map(Some),
        })
    }

    fn place(&self) -> Result<Option<ArchivePlace>, ConfigError> {
        let value = self.value("archive")?;
        let bad = || Self::bad(&value, "archive", PLACES);
        let table = match &value {
            Value::String(text) if text == "off" => return Ok(None),
            Value::Table(table) => table,
            _ => return Err(bad()),
        };
        let mut entries = table.iter();
        match (entries.next(), entries.next()) {
            (Some((kind, value)), None) if kind == "folder" => {
                let folder = path(Some(value), "archive.folder")?;
                Ok(Some(ArchivePlace::Folder(folder)))
            }
            (Some((kind, Value::Table(s3))), None) if kind == "s3" => {
                s3_config(s3).map(|config| Some(ArchivePlace::S3(config)))
            }
            _ => Err(bad()),
        }
    }
}

fn s3_config(table: &Table) -> Result<S3Config, ConfigError> {
    const KNOWN: [&str; 6] = ["endpoint", "bucket", "region", "credentials", "prefix", "authority"];
    if let Some(key) = table.keys().find(|key| !KNOWN.contains(&key.as_str())) {
        let key = format!("archive.s3.{key}");
        return Err(ConfigError::Bad { key: "archive.s3", value: key, allowed: PLACES });
    }
    let bucket_character =
        |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "-.".contains(c);
    let is_bucket =
        |text: &str| (3..=63).contains(&text.len()) && text.chars().all(bucket_character);
    let is_prefix = |text: &str| {
        let trimmed = text.trim_matches('/');
        trimmed.is_empty() || cellwright_archive::names::is_plain(trimmed)
    };
    let is_endpoint = |text: &str| cellwright_archive::is_endpoint(text);
    let word = |text: &str| !text.is_empty() && text.chars().all(|c| c.is_ascii_graphic());
    let get = |name: &str| table.get(name);
    Ok(S3Config {
        endpoint: text(
            get("endpoint"),
            "archive.s3.endpoint",
            "https://HOST[:PORT], or http:// on a network of your own",
            is_endpoint,
        )?,
        bucket: text(get("bucket"), "archive.s3.bucket", BUCKET, is_bucket)?,
        region: match get("region") {
            None => "us-east-1".to_owned(),
            given => text(given, "archive.s3.region", "a word such as \"eu-central-1\"", word)?,
        },
        credentials: path(get("credentials"), "archive.s3.credentials")?,
        prefix: match get("prefix") {
            None => String::new(),
            given => text(given, "archive.s3.prefix", PREFIX, is_prefix)?,
        },
        authority: match get("authority") {
            None => None,
            given => Some(path(given, "archive.s3.authority")?),
        },
    })
}

fn text(
    value: Option<&Value>,
    key: &'static str,
    allowed: &'static str,
    is_allowed: impl Fn(&str) -> bool,
) -> Result<String, ConfigError> {
    let Some(value) = value else {
        return Err(ConfigError::Missing { key, about: allowed });
    };
    let found = value.as_str().filter(|text| is_allowed(text)).map(str::to_owned);
    found.ok_or_else(|| ConfigReader::bad(value, key, allowed))
}

fn path(value: Option<&Value>, key: &'static str) -> Result<PathBuf, ConfigError> {
    text(value, key, ABSOLUTE, |text| text.starts_with('/')).map(PathBuf::from)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;

    fn parse(lines: &str) -> Result<Option<ArchiveConfig>, String> {
        let least = "cell = \"aa\"\nname = \"m1\"\nadvertise = \"h:7070\"\n";
        let config = Config::parse(&format!("{least}{lines}\n"));
        config.map(|config| config.archive).map_err(|why| why.to_string())
    }

    #[test]
    fn an_archive_is_off_a_folder_or_a_bucket() {
        assert_eq!(parse(""), Ok(None));
        let folder = parse("archive = { folder = \"/srv/a\" }\nkeep_archived_logs = \"30d\"");
        let folder = folder.unwrap().unwrap();
        assert_eq!(folder.place, ArchivePlace::Folder("/srv/a".into()));
        assert_eq!((folder.keep_jobs, folder.keep_logs), (None, Some(Span::seconds(30 * 86_400))));
        assert_eq!(folder.wait, Span::seconds(7 * 86_400));
        let s3 = "[archive.s3]\nendpoint = \"http://s3:9000\"\nbucket = \"cells\"\n\
                  credentials = \"/etc/s3\"\n";
        let ArchivePlace::S3(s3) = parse(s3).unwrap().unwrap().place else { panic!("no bucket") };
        assert_eq!((s3.region.as_str(), s3.prefix.as_str(), s3.authority), ("us-east-1", "", None));
    }

    #[test]
    fn a_place_that_cannot_be_one_is_named_with_what_can() {
        let check = |lines: &str, expected: &str| {
            let error = parse(lines).unwrap_err();
            assert!(error.starts_with(expected), "{error}");
        };
        check("archive = \"on\"", "`archive` is \"on\"; allowed: \"off\", { folder");
        check(
            "archive = { folder = \"a\" }",
            "`archive.folder` is \"a\"; allowed: an absolute path",
        );
        check("archive = { tape = \"/a\" }", "`archive` is { tape = \"/a\" }; allowed: ");
        check("archive = { s3 = { bucket = \"cells\" } }", "`archive.s3.endpoint` is missing: ");
        let s3 = |more: &str| {
            format!(
                "archive = {{ s3 = {{ endpoint = \"https://a\", credentials = \"/c\", {more} }} }}"
            )
        };
        check(&s3("bucket = \"B\""), "`archive.s3.bucket` is \"B\"; allowed: 3 to 63");
        check(&s3("bucket = \"cells\", buckets = 1"), "`archive.s3` is archive.s3.buckets; ");
        check(&s3("bucket = \"cells\", prefix = \"../a\""), "`archive.s3.prefix` is \"../a\"");
        check(
            "keep_archived_jobs = \"1y\"",
            "`keep_archived_jobs` is \"1y\"; allowed: \"forever\"",
        );
        check("archive_wait = 5", "`archive_wait` is 5; allowed: ");
    }
}
