//! Which master is asked, and who is asked when that one fails. Masters are learned from the
//! answers of masters that proved to be of the cell, and kept for the next client.

use super::{Client, Settings, connection, lanes};
use crate::masters::{Kept, KnownMasters, MASTERS_HEADER, Masters};
use hyper::StatusCode;
use hyper::header::HeaderMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::time::Instant;

/// Between two tries to write down what was learned, where the disk refuses.
const KEEP_AGAIN: Duration = Duration::from_secs(60);

pub(super) struct Rota(Mutex<Turn>);

struct Turn {
    known: KnownMasters,
    /// Who answered last: one that is known, or a leader somebody named.
    preferred: String,
    /// Who of those known is asked next when somebody fails. Goes round by itself, whoever was
    /// named in between: masters that were cut off together go on naming one of themselves as the
    /// leader, and a client that began anew after that one would stay among them.
    next: usize,
    /// As it is in the file.
    kept: Kept,
    /// When the file could not be written.
    unkept: Option<Instant>,
}

impl Rota {
    pub fn new(settings: &Settings) -> Rota {
        let mut known = KnownMasters::named(settings.masters.clone());
        let kept = settings.kept.as_ref().filter(|_| settings.tls.is_some());
        let kept = kept.map(|file| file.load()).unwrap_or_default();
        kept.masters.as_ref().map(|masters| known.learn(masters));
        let last = kept.last.clone().filter(|last| known.all().contains(last));
        let first = last.or_else(|| settings.masters.first().cloned()).unwrap_or_default();
        let next = known.all().iter().position(|address| *address == first).map_or(0, |at| at + 1);
        Rota(Mutex::new(Turn { known, preferred: first, next, kept, unkept: None }))
    }

    fn turn(&self) -> MutexGuard<'_, Turn> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Client {
    /// The master that answered last.
    #[must_use]
    pub fn preferred(&self) -> String {
        self.shared.rota.turn().preferred.clone()
    }

    /// Every master that is known, each once: those learned from the cell, then those named.
    #[must_use]
    pub fn masters(&self) -> Vec<String> {
        self.shared.rota.turn().known.all().to_vec()
    }

    /// Takes the masters that an answer names. Only one that is a success counts, and only from
    /// who has proved to be a master of the cell: without TLS nobody has.
    pub(super) fn learn(&self, status: StatusCode, headers: &HeaderMap) {
        if !status.is_success() || self.shared.settings.tls.is_none() {
            return;
        }
        let said = headers.get(MASTERS_HEADER).and_then(|value| value.to_str().ok());
        let Some(masters) = said.and_then(|text| text.parse::<Masters>().ok()) else { return };
        let mut turn = self.shared.rota.turn();
        turn.known.learn(&masters);
        self.keep(&mut turn);
    }

    /// It answered, or is said to lead.
    pub(super) fn prefer(&self, address: String) {
        let mut turn = self.shared.rota.turn();
        turn.preferred = address;
        self.keep(&mut turn);
    }

    /// Writes down what is not written yet. Changes are rare, and the file is small.
    fn keep(&self, turn: &mut Turn) {
        let Some(file) = &self.shared.settings.kept else { return };
        let last = turn.kept.last.as_ref() == Some(&turn.preferred);
        let learned = turn.known.learned();
        let lately = turn.unkept.is_some_and(|at| at.elapsed() < KEEP_AGAIN);
        if learned.is_none() || lately || last && turn.kept.masters.as_ref() == learned {
            return;
        }
        let kept = Kept { masters: learned.cloned(), last: Some(turn.preferred.clone()) };
        // Whoever cannot write it down knows it all the same, for as long as it lives.
        match file.save(&kept) {
            Ok(()) => (turn.kept, turn.unkept) = (kept, None),
            Err(why) => {
                if turn.unkept.replace(Instant::now()).is_none() {
                    let path = file.path().display();
                    tracing::warn!(%path, %why, "the masters of the cell cannot be written down");
                }
            }
        }
    }

    /// Leaders are named by masters we trust; only what could be spoken to safely is used.
    pub(super) fn trusted(&self, leader: &str) -> Option<String> {
        let bare = connection::bare_address(leader);
        let tls = self.shared.settings.tls.is_some();
        connection::check_address(bare, tls).ok().map(|()| bare.to_owned())
    }

    /// The next master that is not this one, unless there is no other.
    pub(super) fn other(&self, address: &str) -> String {
        let mut turn = self.shared.rota.turn();
        let count = turn.known.all().len();
        for _ in 0..count {
            let at = turn.next % count;
            turn.next = (at + 1) % count;
            let next = &turn.known.all()[at];
            if next != address {
                return next.clone();
            }
        }
        address.to_owned()
    }

    /// Somebody else, also for the calls to come: a master that hangs, or one that names it, would
    /// cost each of them the whole of its time, and those that may not be repeated their chance.
    pub(super) fn shun(&self, first: &str, address: &str) -> String {
        let other = self.other(address);
        let mut turn = self.shared.rota.turn();
        if turn.preferred == address || turn.preferred == first {
            turn.preferred.clone_from(&other);
        }
        other
    }

    /// Half to all of the pause, different for every client, so that many do not come back at once.
    #[must_use]
    pub fn jitter(&self, pause: Duration, tried: u32) -> Duration {
        let mixed = lanes::mix(self.shared.lanes.client() ^ u64::from(tried));
        pause.mul_f64(0.5 + (mixed % 1000) as f64 / 2000.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::masters::MastersFile;
    use cellwright_identity::tls::{self, Trust};
    use hyper::header::HeaderValue;
    use rcgen::{CertificateParams, KeyPair};
    use std::path::PathBuf;
    use std::sync::Arc;

    fn settings() -> Settings {
        let tls = tls::client(&Trust::Fingerprint("00".repeat(32)), None).unwrap();
        Settings { tls: Some(Arc::new(tls)), ..Settings::new(vec!["m1:1".into()]) }
    }

    fn said(text: &str) -> HeaderMap {
        let value = HeaderValue::from_str(text).unwrap();
        HeaderMap::from_iter([(MASTERS_HEADER.parse().unwrap(), value)])
    }

    #[test]
    fn masters_are_learned_from_answers_of_proved_masters_and_from_no_refusal() {
        let client = Client::new(settings()).unwrap();
        let list = said("0.1.5 m1:1,m2:1");
        for status in [StatusCode::SERVICE_UNAVAILABLE, StatusCode::UNAUTHORIZED] {
            client.learn(status, &list);
        }
        client.learn(StatusCode::OK, &said("0.1.9 not a list"));
        assert_eq!(client.masters(), ["m1:1"]);
        let open = Settings { tls: None, ..Settings::new(vec!["127.0.0.1:1".into()]) };
        let open = Client::new(open).unwrap();
        open.learn(StatusCode::OK, &list);
        assert_eq!(open.masters(), ["127.0.0.1:1"], "nobody has proved anything");
        client.learn(StatusCode::OK, &list);
        assert_eq!(client.masters(), ["m1:1", "m2:1"]);
        assert_eq!(client.other("m1:1"), "m2:1");
    }

    #[test]
    fn the_next_client_begins_with_who_answered_last_and_tries_all() {
        let folder: PathBuf =
            std::env::temp_dir().join(format!("cellwright-rota-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let key = KeyPair::generate().unwrap();
        let authority = CertificateParams::default().self_signed(&key).unwrap().pem();
        let file = MastersFile::new(folder.join("masters.toml"), &authority).unwrap();
        let keeping = || Settings { kept: Some(file.clone()), ..settings() };
        let client = Client::new(keeping()).unwrap();
        assert_eq!(client.preferred(), "m1:1");
        client.learn(StatusCode::OK, &said("0.1.5 m2:1,m3:1"));
        client.prefer("m3:1".into());
        let next = Client::new(keeping()).unwrap();
        assert_eq!(next.preferred(), "m3:1");
        assert_eq!(next.masters(), ["m2:1", "m3:1", "m1:1"]);
        let mut asked = vec!["m3:1".to_owned()];
        for _ in 0..2 {
            let other = next.other(&asked[asked.len() - 1]);
            asked.push(other);
        }
        assert_eq!(asked, ["m3:1", "m1:1", "m2:1"]);
        // A list that is older than what is in the file changes nothing.
        next.learn(StatusCode::OK, &said("0.1.4 x:1"));
        assert_eq!(next.masters(), ["m2:1", "m3:1", "m1:1"]);
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
