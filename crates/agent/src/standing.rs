//! Whether those who dial this agent are still parts of the cell. A certificate is good for a day
//! wherever it is copied to; that its holder was sent away since, only masters know. They are asked
//! once for each caller, and again soon after: what was sent away is refused within seconds, by
//! every agent.
//!
//! An agent of whom no master says anything is refused: it can fetch from the masters when they are
//! back. A replica is refused when a master says so, and not for lack of an answer: when masters
//! cannot be asked it may be the only one that is left.
//!
//! Rejected: a list of who was sent away with every poll. It grows with the cell, and most agents
//! are dialled by few.

use cellwright_api::client::Client;
use cellwright_api::client::parts::StandingRequest;
use cellwright_cell::credential::PartKind;
use cellwright_cell::name::Name;
use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;
use tokio::time::Instant;

/// How long an answer is believed.
const GOOD: Duration = Duration::from_secs(5);
const BAD: Duration = Duration::from_secs(1);
/// Answers kept at once; with more, all are asked for anew.
const MOST: usize = 1024;

pub struct Standing {
    client: Client,
    own: Name,
    known: Mutex<BTreeMap<(PartKind, Name), (Instant, bool)>>,
}

impl Standing {
    /// As the agent of `own` asks its masters.
    #[must_use]
    pub fn new(client: Client, own: Name) -> Standing {
        Standing { client, own, known: Mutex::default() }
    }

    /// Whether the part may be listened to.
    pub async fn of(&self, part: PartKind, name: &Name) -> bool {
        let key = (part, name.clone());
        if let Some(known) = self.remembered(&key) {
            return known;
        }
        let (machine, name) = (self.own.clone(), name.clone());
        let asked = self.client.stands(&StandingRequest { machine, part, name }).await;
        let stands = match asked {
            Ok(stands) => stands,
            Err(error) => {
                tracing::debug!(%part, name = %key.1, %error, "no master says who this is");
                part == PartKind::Replica
            }
        };
        let mut all = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if all.len() >= MOST {
            all.clear();
        }
        all.insert(key, (Instant::now() + if stands { GOOD } else { BAD }, stands));
        stands
    }

    fn remembered(&self, key: &(PartKind, Name)) -> Option<bool> {
        let all = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        all.get(key).filter(|(until, _)| Instant::now() < *until).map(|(_, stands)| *stands)
    }
}
