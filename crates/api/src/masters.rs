//! The list of a cell's masters, learned by clients. A client is configured with one or a few;
//! masters come and go, and a configured one may be gone for good tomorrow. So every master names
//! all masters in every answer to an authenticated caller; clients learn them, try them all, and
//! save them in a file for the next run. Configured masters stay in the list.
//!
//! A list counts only from a master that proved, by its certificate, to be one of the cell, and
//! only in place of an older list: a replica that was left behind must not make its clients forget
//! those that went on without it. The log position at which a list was committed says which one is
//! newer; lists that are not committed yet are not sent.
//!
//! Rejected: a list in the messages of agents and schedulers. People's commands need it as well,
//! and a header is one place for all of them.

use cellwright_identity::private_files::write_private;
use cellwright_identity::tls::{self, TlsError};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt::{self, Display};
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;
use tokio::time::Instant;

/// Header in answers of masters to authenticated callers: [`MasterList`] as text.
pub const MASTERS_HEADER: &str = "cell-masters";
/// Limit of the masters that are learned; cells have three or five.
const MAX_MASTERS: usize = 16;
/// Limit of one address: the longest host name, a colon and a port.
const MAX_ADDRESS_BYTES: usize = 253 + 6;
/// How long a master that did not answer is not dialled again on a redirect from another.
const SHUN_DURATION: Duration = Duration::from_secs(15);
/// Size limit of the file.
const MAX_FILE_BYTES: u64 = 256 << 10;
/// Limit of the cells in one file.
const MAX_CELLS: usize = 64;
/// Of the form of the file.
const FILE_VERSION: u32 = 1;

/// When the list of masters was committed. Invariant: compared field by field, in this order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct MasterListVersion {
    /// Log epoch; a restored cell has a later one.
    pub log_epoch: u64,
    /// Term of the entry in the log.
    pub term: u64,
    pub index: u64,
}

/// The masters of a cell, as one of them lists them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MasterList {
    pub version: MasterListVersion,
    /// `host:port` of each.
    pub addresses: Vec<String>,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} is no list of masters; allowed: ERA.TERM.INDEX HOST:PORT,..., at most {MAX_MASTERS}"
)]
pub struct InvalidMasterList(String);

impl Display for MasterList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let MasterListVersion { log_epoch, term, index } = self.version;
        write!(f, "{log_epoch}.{term}.{index} {}", self.addresses.join(","))
    }
}

impl FromStr for MasterList {
    type Err = InvalidMasterList;

    fn from_str(text: &str) -> Result<MasterList, InvalidMasterList> {
        let bad = || InvalidMasterList(text.chars().take(MAX_ADDRESS_BYTES).collect());
        let (version, addresses) = text.split_once(' ').ok_or_else(bad)?;
        let numbers: Vec<u64> = version.split('.').map_while(|part| part.parse().ok()).collect();
        let &[log_epoch, term, index] = numbers.as_slice() else { return Err(bad()) };
        let addresses: Vec<String> = addresses.split(',').map(str::to_owned).collect();
        if addresses.len() > MAX_MASTERS || !addresses.iter().all(|address| is_address(address)) {
            return Err(bad());
        }
        Ok(MasterList { version: MasterListVersion { log_epoch, term, index }, addresses })
    }
}

/// Whether the text is a valid address; nothing else is put into requests, files and logs.
fn is_address(text: &str) -> bool {
    let plain = |c: char| c.is_ascii_alphanumeric() || ".-_:[]".contains(c);
    let port = text.rsplit_once(':').filter(|(host, _)| !host.is_empty());
    let has_port = port.is_some_and(|(_, port)| port.parse::<u16>().is_ok_and(|port| port > 0));
    has_port && text.len() <= MAX_ADDRESS_BYTES && text.chars().all(plain)
}

/// Every master that a client knows of.
#[derive(Clone, Debug, Default)]
pub struct KnownMasters {
    /// As configured.
    configured: Vec<String>,
    learned: Option<MasterList>,
    /// Those learned, then those configured.
    all: Vec<String>,
}

impl KnownMasters {
    #[must_use]
    pub fn new(named: Vec<String>) -> KnownMasters {
        let mut known = KnownMasters { configured: named, ..KnownMasters::default() };
        known.rebuild();
        known
    }

    /// Replaces the learned list if this one is newer. Returns whether anything changed.
    pub fn learn(&mut self, masters: &MasterList) -> bool {
        let is_older = |known: &MasterList| masters.version <= known.version;
        if masters.addresses.is_empty() || self.learned.as_ref().is_some_and(is_older) {
            return false;
        }
        self.learned = Some(masters.clone());
        self.rebuild();
        true
    }

    fn rebuild(&mut self) {
        let learned = self.learned.iter().flat_map(|masters| &masters.addresses);
        self.all.clear();
        for address in learned.chain(&self.configured) {
            if !self.all.contains(address) {
                self.all.push(address.clone());
            }
        }
    }

    /// Each once, the learned ones first.
    #[must_use]
    pub fn all(&self) -> &[String] {
        &self.all
    }

    #[must_use]
    pub fn learned(&self) -> Option<&MasterList> {
        self.learned.as_ref()
    }
}

/// The master that an agent polls: the one it is redirected to, or the next in rotation when one
/// does not answer.
#[derive(Clone, Debug)]
pub struct MasterRotation {
    master: String,
    tries: u32,
    /// Index of the rotation through all of them; advances by itself, wherever the agent was
    /// redirected in between.
    next: usize,
    /// Masters that did not answer, and when. Invariant: no more than there are masters.
    unresponsive: BTreeMap<String, Instant>,
}

impl MasterRotation {
    #[must_use]
    pub fn from(master: String) -> MasterRotation {
        MasterRotation { master, tries: 0, next: 0, unresponsive: BTreeMap::new() }
    }

    /// The master to poll now.
    #[must_use]
    pub fn master(&self) -> &str {
        &self.master
    }

    /// Number of attempts without an answer.
    #[must_use]
    pub fn tries(&self) -> u32 {
        self.tries
    }

    /// The answer may redirect the agent to another master.
    pub fn on_answer(&mut self, redirect: Option<String>, now: Instant) {
        self.unresponsive.remove(&self.master);
        self.unresponsive.retain(|_, at| now.duration_since(*at) < SHUN_DURATION);
        if let Some(other) = redirect.filter(|other| !self.unresponsive.contains_key(other)) {
            self.master = other;
        }
    }

    /// Moves on to the next of all known masters, or to the same where there is no other.
    pub fn on_failure(&mut self, masters: &[String], now: Instant) {
        self.tries = self.tries.wrapping_add(1);
        self.unresponsive.retain(|address, _| masters.contains(address));
        self.unresponsive.insert(self.master.clone(), now);
        for _ in masters {
            self.next = (self.next + 1) % masters.len();
            if masters[self.next] != self.master {
                self.master.clone_from(&masters[self.next]);
                return;
            }
        }
    }
}

/// The file in which learned masters are saved. Losing it costs only what was learned, so an
/// unreadable file counts as none.
#[derive(Clone, Debug)]
pub struct MastersFile {
    path: PathBuf,
    /// The cell, by the fingerprint of its authority: names of cells and contexts are not unique.
    cell: String,
}

/// Saved masters of one cell.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SavedMasters {
    pub masters: Option<MasterList>,
    /// The master that answered last, and is tried first.
    pub last: Option<String>,
}

#[derive(Default, Serialize, Deserialize)]
struct MastersToml {
    #[serde(default)]
    version: u32,
    #[serde(default)]
    cells: BTreeMap<String, CellEntry>,
}

#[derive(Serialize, Deserialize)]
struct CellEntry {
    /// As in the header: numbers of the log may be larger than integers of the file's format.
    masters: Option<String>,
    last: Option<String>,
}

impl MastersFile {
    /// `authority`: the certificate of the cell's authority, PEM.
    ///
    /// # Errors
    /// When the text has no certificate.
    pub fn new(path: PathBuf, authority: &str) -> Result<MastersFile, TlsError> {
        let chain = tls::certificates("authority", authority)?;
        let first = chain.first().ok_or(TlsError::Empty { what: "authority" })?;
        Ok(MastersFile { path, cell: tls::fingerprint(first) })
    }

    /// Path of the file, beside a file of credentials or contexts.
    #[must_use]
    pub fn path_beside(file: &Path) -> PathBuf {
        file.with_extension("masters.toml")
    }

    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    #[must_use]
    pub fn load(&self) -> SavedMasters {
        let mut file = read_file(&self.path);
        let of_cell = file.cells.remove(&self.cell).filter(|_| file.version <= FILE_VERSION);
        let Some(CellEntry { masters, last }) = of_cell else { return SavedMasters::default() };
        let last = last.filter(|last| is_address(last));
        SavedMasters { masters: masters.and_then(|text| text.parse().ok()), last }
    }

    /// Replaces the file atomically, readable by its owner alone.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn save(&self, saved: &SavedMasters) -> io::Result<()> {
        let mut text = read_file(&self.path);
        if text.version > FILE_VERSION {
            let (path, found) = (self.path.display(), text.version);
            let why = format!("{path} is of version {found}; allowed: 1 to {FILE_VERSION}");
            return Err(io::Error::new(io::ErrorKind::InvalidData, why));
        }
        text.version = FILE_VERSION;
        let masters = saved.masters.as_ref().map(MasterList::to_string);
        let of_cell = CellEntry { masters, last: saved.last.clone() };
        text.cells.insert(self.cell.clone(), of_cell);
        while text.cells.len() > MAX_CELLS {
            let other = text.cells.keys().find(|cell| **cell != self.cell).cloned();
            other.map(|other| text.cells.remove(&other));
        }
        let text = toml::to_string(&text).map_err(io::Error::other)?;
        let fresh = self.path.with_extension(format!("new-{}", std::process::id()));
        match std::fs::remove_file(&fresh) {
            Err(why) if why.kind() != io::ErrorKind::NotFound => return Err(why),
            _ => {}
        }
        write_private(&fresh, text.as_bytes())?;
        std::fs::rename(&fresh, &self.path).inspect_err(|_| {
            // The rename's error says more than one of the cleanup.
            drop(std::fs::remove_file(&fresh));
        })
    }
}

/// What does not read as this counts for nothing: it is a hint, and masters tell it again. What a
/// newer build wrote stays, for that build.
fn read_file(path: &Path) -> MastersToml {
    let mut text = String::new();
    let bytes =
        File::open(path).and_then(|file| file.take(MAX_FILE_BYTES).read_to_string(&mut text));
    bytes.ok().and_then(|_| toml::from_str(&text).ok()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    fn masters(index: u64, addresses: &[&str]) -> MasterList {
        let addresses = addresses.iter().map(|address| (*address).to_owned()).collect();
        MasterList { version: MasterListVersion { log_epoch: 0, term: 2, index }, addresses }
    }

    #[test]
    fn a_list_is_read_as_it_was_written_and_nothing_else_is_taken_for_one() {
        let list = masters(u64::MAX, &["m1.example:7070", "[fd00::1]:7070", "10.0.0.1:1"]);
        assert_eq!(list.to_string().parse(), Ok(list));
        let many = vec!["a:1"; MAX_MASTERS + 1].join(",");
        let long = format!("{}:1", "a".repeat(MAX_ADDRESS_BYTES));
        for bad in [
            "",
            "1.2.3",
            "1.2.3 ",
            "1.2 a:1",
            "1.2.3.4 a:1",
            "1.x.3 a:1",
            "1.2.3 a",
            "1.2.3 a:0",
            "1.2.3 :1",
            "1.2.3 a:65536",
            "1.2.3 a:1,",
            "1.2.3 a b:1",
            "1.2.3 a\u{7}:1",
            &format!("1.2.3 {many}"),
            &format!("1.2.3 {long}"),
        ] {
            assert!(bad.parse::<MasterList>().is_err(), "{bad:?}");
        }
    }

    #[test]
    fn a_file_of_a_newer_build_is_not_used_and_stays() {
        let path = std::env::temp_dir().join(format!("cell-newer-{}.toml", std::process::id()));
        let file = MastersFile { path: path.clone(), cell: "aa".into() };
        let saved = SavedMasters { masters: Some(masters(7, &["m1:1"])), last: None };
        file.save(&saved).unwrap();
        assert_eq!(file.load(), saved);
        let newer = std::fs::read_to_string(&path).unwrap().replace("version = 1", "version = 2");
        std::fs::write(&path, &newer).unwrap();
        assert_eq!(file.load(), SavedMasters::default());
        let error = file.save(&saved).unwrap_err().to_string();
        assert!(error.ends_with("is of version 2; allowed: 1 to 1"), "{error}");
        assert_eq!(std::fs::read_to_string(&path).unwrap(), newer);
        std::fs::remove_file(&path).unwrap();
    }

    #[test]
    fn a_later_list_counts_an_earlier_one_does_not_and_those_named_stay() {
        let mut known = KnownMasters::new(vec!["m1:1".into()]);
        assert_eq!(known.all(), ["m1:1"]);
        assert!(known.learn(&masters(5, &["m1:1", "m2:1", "m3:1"])));
        assert_eq!(known.all(), ["m1:1", "m2:1", "m3:1"]);
        assert!(known.learn(&masters(9, &["m4:1", "m5:1"])));
        assert_eq!(known.all(), ["m4:1", "m5:1", "m1:1"]);
        assert!(!known.learn(&masters(5, &["m1:1", "m2:1", "m3:1"])), "one that was left behind");
        assert!(!known.learn(&masters(9, &["x:1"])));
        assert_eq!(known.all(), ["m4:1", "m5:1", "m1:1"]);
        let mut elected = masters(7, &["m6:1"]);
        elected.version.term = 3;
        assert!(known.learn(&elected), "what no majority held was written over");
    }

    #[test]
    fn every_master_is_tried_and_the_dead_are_not_dialled_at_the_word_of_others() {
        let all = ["a:1", "b:1", "c:1"].map(str::to_owned);
        let (mut now, mut round) = (Instant::now(), MasterRotation::from("a:1".into()));
        let mut polled = Vec::new();
        for _ in 0..4 {
            round.on_failure(&all, now);
            polled.push(round.master.clone());
        }
        assert_eq!(polled, ["b:1", "c:1", "a:1", "b:1"]);
        round.on_answer(None, now);
        round.on_answer(Some("a:1".into()), now);
        assert_eq!(round.master, "b:1", "that one has just not answered");
        now += SHUN_DURATION;
        round.on_answer(Some("a:1".into()), now);
        assert_eq!(round.master, "a:1");
        round.on_answer(Some("d:1".into()), now);
        assert_eq!(round.master, "d:1", "a new one");
        round.on_failure(&all, now);
        assert!(all.contains(&round.master));
        let mut alone = MasterRotation::from("a:1".into());
        alone.on_failure(&all[..1], now);
        assert_eq!(alone.master, "a:1", "there is no other");
        // However many were ever named, only known masters are remembered.
        for number in 0..100 {
            round.on_answer(Some(format!("x{number}:1")), now);
            round.on_failure(&all, now);
        }
        assert!(round.unresponsive.len() <= all.len() + 1, "{:?}", round.unresponsive);
    }

    #[test]
    fn what_was_learned_of_each_cell_is_found_again_by_its_owner_alone() {
        let folder =
            std::env::temp_dir().join(format!("cellwright-masters-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let path = MastersFile::path_beside(&folder.join("contexts.toml"));
        let of = |cell: &str| MastersFile { path: path.clone(), cell: cell.to_owned() };
        assert_eq!(of("aa").load(), SavedMasters::default());
        let one = SavedMasters { masters: Some(masters(3, &["m1:1"])), last: Some("m1:1".into()) };
        let two = SavedMasters { masters: Some(masters(4, &["m2:1"])), last: None };
        of("aa").save(&one).unwrap();
        of("bb").save(&two).unwrap();
        assert_eq!((of("aa").load(), of("bb").load()), (one.clone(), two));
        let mode = std::fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        for number in 0..2 * MAX_CELLS {
            of(&format!("c{number}")).save(&one).unwrap();
        }
        assert_eq!(read_file(&path).cells.len(), MAX_CELLS);
        assert_eq!(of(&format!("c{}", 2 * MAX_CELLS - 1)).load(), one, "the newest is there");
        std::fs::write(&path, "cells = 3").unwrap();
        assert_eq!(of("aa").load(), SavedMasters::default(), "as good as none");
        of("aa").save(&one).unwrap();
        assert_eq!(of("aa").load(), one);
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
