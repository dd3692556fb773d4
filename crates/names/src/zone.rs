//! The DNS zone of a cell: `CELL.SUFFIX`.
//!
//! A task is `INDEX.JOB.USER.CELL.SUFFIX`, a job `JOB.USER.CELL.SUFFIX`. Names of users and jobs
//! are DNS labels from the start (`cellwright_cell::name`), so nothing needs escaping.

use cellwright_cell::name::{InvalidName, JobKey, Name};
use std::fmt;

/// `.internal` is set aside for private use, so this name can never mean something else outside.
pub const DEFAULT_SUFFIX: &str = "cell.internal";
/// Longest name that DNS can carry, in text.
const MAX_DOMAIN: usize = 253;
/// What the rest of a longest name takes: index, job, user, a port and a protocol.
const MAX_RELATIVE: usize = 10 + 63 + 63 + 6 + 5 + 5;

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidZone {
    #[error("names.suffix {value:?} is not valid: {why}")]
    Suffix { value: String, why: InvalidName },
    #[error("names.suffix {value:?} is too long; allowed: at most {most} characters here")]
    TooLong { value: String, most: usize },
}

/// The names of one cell.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Zone {
    origin: String,
    cell: String,
}

impl Zone {
    /// # Errors
    /// When the suffix is not made of DNS labels, or leaves no room for names.
    pub fn new(cell: &Name, suffix: &str) -> Result<Zone, InvalidZone> {
        let suffix = suffix.trim_end_matches('.');
        for label in suffix.split('.') {
            Name::new(label).map_err(|why| InvalidZone::Suffix {
                value: suffix.chars().take(300).collect(),
                why,
            })?;
        }
        let max = MAX_DOMAIN - MAX_RELATIVE - cell.as_str().len() - 1;
        if suffix.len() > max {
            return Err(InvalidZone::TooLong {
                value: suffix.chars().take(300).collect(),
                most: max,
            });
        }
        Ok(Zone { origin: format!("{cell}.{suffix}"), cell: cell.to_string() })
    }

    /// `CELL.SUFFIX`.
    #[must_use]
    pub fn origin(&self) -> &str {
        &self.origin
    }

    #[must_use]
    pub fn cell(&self) -> &str {
        &self.cell
    }

    #[must_use]
    pub fn job(&self, job: &JobKey) -> String {
        format!("{}.{}.{}", job.job, job.user, self.origin)
    }

    #[must_use]
    pub fn task(&self, job: &JobKey, index: u32) -> String {
        format!("{index}.{}", self.job(job))
    }

    /// The labels in front of the origin, or `None` for a name outside the zone. `name` is in lower
    /// case and may end with a dot.
    #[must_use]
    pub fn relative_labels<'a>(&self, name: &'a str) -> Option<Vec<&'a str>> {
        let name = name.strip_suffix('.').unwrap_or(name);
        let rest = name.strip_suffix(self.origin.as_str())?;
        match rest.strip_suffix('.') {
            Some(labels) => Some(labels.split('.').collect()),
            None => rest.is_empty().then(Vec::new),
        }
    }
}

impl Default for Zone {
    /// The zone of a cell without a name.
    fn default() -> Zone {
        Zone { origin: format!("cell.{DEFAULT_SUFFIX}"), cell: "cell".into() }
    }
}

impl fmt::Display for Zone {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.origin)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_names_below_the_origin_are_ours() {
        let zone = Zone::new(&Name::new("main").unwrap(), "cell.internal.").unwrap();
        let check = |name: &str, expected: Option<&[&str]>| {
            assert_eq!(zone.relative_labels(name).as_deref(), expected, "{name}");
        };
        check("0.web.ada.main.cell.internal.", Some(&["0", "web", "ada"]));
        check("main.cell.internal", Some(&[]));
        check("xmain.cell.internal", None);
        check("cell.internal", None);
        check("main.cell.internal.example.", None);
        check(".main.cell.internal.", Some(&[""]));
    }

    #[test]
    fn a_suffix_is_made_of_labels_and_leaves_room() {
        let cell = Name::new("main").unwrap();
        let bad = Zone::new(&cell, "Bad_.internal").unwrap_err().to_string();
        assert!(bad.contains("names.suffix") && bad.contains("Bad_"), "{bad}");
        let long = ["abcdefghi"; 12].join(".");
        assert!(matches!(Zone::new(&cell, &long), Err(InvalidZone::TooLong { .. })));
        assert!(matches!(Zone::new(&cell, ""), Err(InvalidZone::Suffix { .. })));
        let widest = Name::new(&"c".repeat(63)).unwrap();
        let zone = Zone::new(&widest, DEFAULT_SUFFIX).unwrap();
        let name = Name::new(&"n".repeat(63)).unwrap();
        let job = JobKey { user: name.clone(), job: name };
        let longest = format!("_65535._tcp.{}", zone.job(&job));
        assert!(longest.len() <= MAX_DOMAIN, "{}", longest.len());
    }
}
