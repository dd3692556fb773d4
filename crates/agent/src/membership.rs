//! Whether callers of this agent are still members of the cell. A certificate is valid for a day
//! wherever it is copied to; only masters know that its holder was removed since. They are asked
//! once for each caller, and again soon after: a removed part is rejected within seconds, by every
//! agent.
//!
//! An agent about which no master answers is rejected: it can fetch from the masters when they are
//! back. A replica is rejected when a master says that it was removed, and not for lack of an
//! answer: when masters cannot be asked it may be the only one that is left.
//!
//! Rejected: a list of removed parts with every poll. It grows with the cell, and most agents are
//! dialled by few.

use cellwright_api::client::Client;
use cellwright_cell::credential::PartKind;
use cellwright_cell::name::Name;
use cellwright_messages::MembershipCheckRequest;
use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;
use tokio::time::Instant;

/// How long an answer is cached: of members, and of others.
const MEMBER_TTL: Duration = Duration::from_secs(5);
const NON_MEMBER_TTL: Duration = Duration::from_secs(1);
/// Most cached answers; with more, all are asked for anew.
const MAX_CACHED: usize = 1024;

pub struct MembershipCache {
    client: Client,
    own: Name,
    answers: Mutex<BTreeMap<(PartKind, Name), (Instant, bool)>>,
}

impl MembershipCache {
    /// A cache for the agent of machine `own`, which asks its masters.
    #[must_use]
    pub fn new(client: Client, own: Name) -> MembershipCache {
        MembershipCache { client, own, answers: Mutex::default() }
    }

    /// Whether requests of this part may be answered.
    pub async fn is_member(&self, part: PartKind, name: &Name) -> bool {
        let key = (part, name.clone());
        if let Some(cached) = self.cached(&key) {
            return cached;
        }
        let (machine, name) = (self.own.clone(), name.clone());
        let answer = self.client.is_member(&MembershipCheckRequest { machine, part, name }).await;
        let is_member = match answer {
            Ok(is_member) => is_member,
            Err(error) => {
                tracing::debug!(%part, name = %key.1, %error, "no master says who this is");
                part == PartKind::Replica
            }
        };
        let mut all = self.answers.lock().unwrap_or_else(PoisonError::into_inner);
        if all.len() >= MAX_CACHED {
            all.clear();
        }
        all.insert(
            key,
            (Instant::now() + if is_member { MEMBER_TTL } else { NON_MEMBER_TTL }, is_member),
        );
        is_member
    }

    fn cached(&self, key: &(PartKind, Name)) -> Option<bool> {
        let all = self.answers.lock().unwrap_or_else(PoisonError::into_inner);
        all.get(key).filter(|(until, _)| Instant::now() < *until).map(|(_, is_member)| *is_member)
    }
}
