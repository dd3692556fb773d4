//! Selects the master to call, and the next one when that fails. Masters are learned from the
//! answers of masters that proved to be of the cell, and saved for the next client.

use super::{ApiClientConfig, Client, connection, idempotency};
use crate::masters::{KnownMasters, MASTERS_HEADER, MasterList, SavedMasters};
use hyper::StatusCode;
use hyper::header::HeaderMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::time::Instant;

/// Interval between attempts to save what was learned when the disk refuses.
const SAVE_RETRY_INTERVAL: Duration = Duration::from_secs(60);

pub(super) struct MasterSelector(Mutex<SelectorState>);

struct SelectorState {
    known: KnownMasters,
    /// The master that answered last, or a leader that a master named.
    preferred: String,
    /// Index of the known master to try next after a failure. It advances round-robin by itself,
    /// whichever leaders were named in between: masters that were cut off together go on naming one
    /// of themselves as the leader, and a client that restarted after that one would stay among
    /// them.
    next: usize,
    /// As saved in the file.
    saved: SavedMasters,
    /// When saving the file failed.
    save_failed_at: Option<Instant>,
}

impl MasterSelector {
    pub fn new(config: &ApiClientConfig) -> MasterSelector {
        let mut known = KnownMasters::new(config.masters.clone());
        let masters_file = config.masters_file.as_ref().filter(|_| config.tls.is_some());
        let saved = masters_file.map(|file| file.load()).unwrap_or_default();
        saved.masters.as_ref().map(|masters| known.learn(masters));
        let last = saved.last.clone().filter(|last| known.all().contains(last));
        let first = last.or_else(|| config.masters.first().cloned()).unwrap_or_default();
        let next = known.all().iter().position(|address| *address == first).map_or(0, |at| at + 1);
        MasterSelector(Mutex::new(SelectorState {
            known,
            preferred: first,
            next,
            saved,
            save_failed_at: None,
        }))
    }

    fn state(&self) -> MutexGuard<'_, SelectorState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Client {
    /// The master that answered last.
    #[must_use]
    pub fn preferred(&self) -> String {
        self.shared.selector.state().preferred.clone()
    }

    /// Every known master, each once: those learned from the cell, then those configured.
    #[must_use]
    pub fn masters(&self) -> Vec<String> {
        self.shared.selector.state().known.all().to_vec()
    }

    /// Learns the masters that an answer names. Only a successful answer counts, and only from a
    /// server that has proved to be a master of the cell: without TLS none has.
    pub(super) fn learn(&self, status: StatusCode, headers: &HeaderMap) {
        if !status.is_success() || self.shared.config.tls.is_none() {
            return;
        }
        let header_text = headers.get(MASTERS_HEADER).and_then(|value| value.to_str().ok());
        let Some(masters) = header_text.and_then(|text| text.parse::<MasterList>().ok()) else {
            return;
        };
        let mut state = self.shared.selector.state();
        state.known.learn(&masters);
        self.save(&mut state);
    }

    /// Prefers the master that answered, or that is named as the leader.
    pub(super) fn prefer(&self, address: String) {
        let mut state = self.shared.selector.state();
        state.preferred = address;
        self.save(&mut state);
    }

    /// Saves what is not saved yet. Changes are rare, and the file is small.
    fn save(&self, state: &mut SelectorState) {
        let Some(file) = &self.shared.config.masters_file else { return };
        let is_same_preferred = state.saved.last.as_ref() == Some(&state.preferred);
        let learned = state.known.learned();
        let failed_lately =
            state.save_failed_at.is_some_and(|at| at.elapsed() < SAVE_RETRY_INTERVAL);
        if learned.is_none()
            || failed_lately
            || is_same_preferred && state.saved.masters.as_ref() == learned
        {
            return;
        }
        let saved = SavedMasters { masters: learned.cloned(), last: Some(state.preferred.clone()) };
        // If saving fails, the client still knows the masters for as long as it runs.
        match file.save(&saved) {
            Ok(()) => (state.saved, state.save_failed_at) = (saved, None),
            Err(why) => {
                if state.save_failed_at.replace(Instant::now()).is_none() {
                    let path = file.path().display();
                    tracing::warn!(%path, %why, "the masters of the cell cannot be written down");
                }
            }
        }
    }

    /// Leaders are named by masters we trust; only an address that is safe to dial is used.
    pub(super) fn checked_address(&self, leader: &str) -> Option<String> {
        let bare = connection::bare_address(leader);
        let tls = self.shared.config.tls.is_some();
        connection::check_address(bare, tls).ok().map(|()| bare.to_owned())
    }

    /// Where to send a call after a redirect: to the leader named, or on to the next master.
    pub(super) fn redirect_target(&self, leader: &str, address: &str) -> String {
        self.checked_address(leader).unwrap_or_else(|| self.next_master(address))
    }

    /// The next master after this one; the same only if there is no other.
    pub(super) fn next_master(&self, address: &str) -> String {
        let mut state = self.shared.selector.state();
        let count = state.known.all().len();
        for _ in 0..count {
            let at = state.next % count;
            state.next = (at + 1) % count;
            let next = &state.known.all()[at];
            if next != address {
                return next.clone();
            }
        }
        address.to_owned()
    }

    /// Fails over to another master, also for later calls: a master that hangs, or one that names
    /// it as the leader, would cost each of them all of its time, and those that may not be retried
    /// their only attempt.
    pub(super) fn fail_over(&self, first: &str, address: &str) -> String {
        let next = self.next_master(address);
        let mut state = self.shared.selector.state();
        if state.preferred == address || state.preferred == first {
            state.preferred.clone_from(&next);
        }
        next
    }

    /// Between half of the pause and all of it, different for every client, so that many clients do
    /// not return at once.
    #[must_use]
    pub fn jitter(&self, pause: Duration, tried: u32) -> Duration {
        let mixed = idempotency::mix64(self.shared.sequences.client() ^ u64::from(tried));
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

    fn test_config() -> ApiClientConfig {
        let tls = tls::client_config(&Trust::Fingerprint("00".repeat(32)), None).unwrap();
        ApiClientConfig { tls: Some(Arc::new(tls)), ..ApiClientConfig::new(vec!["m1:1".into()]) }
    }

    fn masters_header(text: &str) -> HeaderMap {
        let value = HeaderValue::from_str(text).unwrap();
        HeaderMap::from_iter([(MASTERS_HEADER.parse().unwrap(), value)])
    }

    #[test]
    fn masters_are_learned_from_answers_of_proved_masters_and_from_no_refusal() {
        let client = Client::new(test_config()).unwrap();
        let list = masters_header("0.1.5 m1:1,m2:1");
        for status in [StatusCode::SERVICE_UNAVAILABLE, StatusCode::UNAUTHORIZED] {
            client.learn(status, &list);
        }
        client.learn(StatusCode::OK, &masters_header("0.1.9 not a list"));
        assert_eq!(client.masters(), ["m1:1"]);
        let open =
            ApiClientConfig { tls: None, ..ApiClientConfig::new(vec!["127.0.0.1:1".into()]) };
        let open = Client::new(open).unwrap();
        open.learn(StatusCode::OK, &list);
        assert_eq!(open.masters(), ["127.0.0.1:1"], "nobody has proved anything");
        client.learn(StatusCode::OK, &list);
        assert_eq!(client.masters(), ["m1:1", "m2:1"]);
        assert_eq!(client.next_master("m1:1"), "m2:1");
    }

    #[test]
    fn the_next_client_begins_with_who_answered_last_and_tries_all() {
        let folder: PathBuf =
            std::env::temp_dir().join(format!("cellwright-rota-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let key = KeyPair::generate().unwrap();
        let authority = CertificateParams::default().self_signed(&key).unwrap().pem();
        let file = MastersFile::new(folder.join("masters.toml"), &authority).unwrap();
        let keeping = || ApiClientConfig { masters_file: Some(file.clone()), ..test_config() };
        let client = Client::new(keeping()).unwrap();
        assert_eq!(client.preferred(), "m1:1");
        client.learn(StatusCode::OK, &masters_header("0.1.5 m2:1,m3:1"));
        client.prefer("m3:1".into());
        let next = Client::new(keeping()).unwrap();
        assert_eq!(next.preferred(), "m3:1");
        assert_eq!(next.masters(), ["m2:1", "m3:1", "m1:1"]);
        let mut addresses = vec!["m3:1".to_owned()];
        for _ in 0..2 {
            let other = next.next_master(&addresses[addresses.len() - 1]);
            addresses.push(other);
        }
        assert_eq!(addresses, ["m3:1", "m1:1", "m2:1"]);
        // A list that is older than the saved one changes nothing.
        next.learn(StatusCode::OK, &masters_header("0.1.4 x:1"));
        assert_eq!(next.masters(), ["m2:1", "m3:1", "m1:1"]);
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
