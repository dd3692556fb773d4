//! Clients at work: each writes a register of its own and reads those of the others, through every
//! fault, and the ledger keeps count. A register is a user's quota in the batch band, whose CPU is
//! the value.

use crate::TIMEOUT;
use crate::hosts::Host;
use crate::ledger::{Ledger, Seen};
use crate::replicas::{Replicas, master};
use cellwright_api::client::{ChangeOptions, Client, ClientError};
use cellwright_api::types::{AddUser, Changed, One, UserView};
use cellwright_cell::name::Name;
use cellwright_cell::priority::Band;
use cellwright_cell::quota::Quota;
use cellwright_cell::resource::Resources;
use cellwright_cell::time::Time;
use hyper::Method;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};

pub struct Load {
    ledger: Arc<Ledger>,
    stop: Arc<AtomicBool>,
    workers: JoinSet<()>,
    /// For reads from one replica and nobody else.
    prober: Client,
}

fn path(key: usize) -> String {
    format!("/v1/users/writer-{key}")
}

/// What a quota says as a register.
#[must_use]
pub fn seen(answer: &One<UserView>) -> Seen {
    let batch = answer.item.quota.iter().find(|view| view.band == Band::Batch);
    let value = batch.and_then(|view| view.quota).map_or(0, |quota| quota.amount.cpu);
    Seen { value, version: u64::from(answer.item.version), index: answer.index }
}

/// Makes the user whose quota is the register of `key`.
///
/// # Errors
/// What the cell answered.
pub async fn add_register(client: &Client, key: usize) -> Result<Seen, ClientError> {
    let name = Name::new(&format!("writer-{key}")).expect("a name");
    let body = AddUser { name };
    let change = ChangeOptions::default();
    client.change::<_, Changed>(Method::POST, "/v1/users", Some(&body), &change).await?;
    let answer = client.get(&format!("{}?consistent=true", path(key))).await?;
    Ok(seen(&answer.value))
}

/// One write, under a key of its own so that it counts once however often it is sent. The log index
/// it stands at.
///
/// # Errors
/// What the cell answered, or that it did not.
pub async fn write(client: &Client, key: usize, value: u64) -> Result<u64, ClientError> {
    let amount = Resources { cpu: value, ..Resources::ZERO };
    let quota = Quota { amount, from: Time(0), until: Time::NEVER };
    let change = ChangeOptions { expect: None, key: Some(format!("{:x}-{value}", key + 1)) };
    let path = format!("{}/quota/batch", path(key));
    let done = client.change::<_, Changed>(Method::PUT, &path, Some(&quota), &change).await?;
    Ok(done.value.index)
}

/// A linearizable read.
///
/// # Errors
/// What the cell answered, or that it did not.
pub async fn read(client: &Client, key: usize) -> Result<Seen, ClientError> {
    let answer = client.get(&format!("{}?consistent=true", path(key))).await?;
    Ok(seen(&answer.value))
}

impl Load {
    /// `count` clients begin to write and read.
    pub async fn start(replicas: &Replicas, count: usize) -> Load {
        let admin = replicas.client();
        let mut bases = Vec::new();
        for key in 0..count {
            bases.push(add_register(&admin, key).await.expect("a user is added").version);
        }
        let ledger = Arc::new(Ledger::new(&bases));
        let stop = Arc::new(AtomicBool::new(false));
        let mut workers = JoinSet::new();
        for key in 0..count {
            let (ledger, stop) = (ledger.clone(), stop.clone());
            workers.spawn(work(replicas.client(), ledger, stop, key, count));
        }
        Load { ledger, stop, workers, prober: replicas.client() }
    }

    #[must_use]
    pub fn ledger(&self) -> &Ledger {
        &self.ledger
    }

    /// Waits for so many more acknowledged writes.
    pub async fn wait_for_writes(&self, replicas: &Replicas, more: u64) {
        let mut acknowledged = self.ledger.acknowledged();
        let wanted = *acknowledged.borrow() + more;
        let reached = acknowledged.wait_for(|count| *count >= wanted);
        if timeout(TIMEOUT, reached).await.is_err() {
            panic!("writes are not acknowledged any more\n{}", replicas.output());
        }
    }

    /// A read that claims to be linearizable, from one replica and nobody else. Whether it was
    /// answered; the answer is in the ledger.
    pub async fn probe(&self, host: Host, limit: Duration) -> bool {
        let began = self.ledger.read_begins(0);
        let path = format!("{}?consistent=true", path(0));
        let answer = self.prober.bytes_at(&master(host), &path, limit).await;
        let answer = answer.ok().and_then(|bytes| serde_json::from_slice(&bytes).ok());
        match answer {
            Some(answer) => {
                self.ledger.read_ends(0, began, seen(&answer));
                true
            }
            None => false,
        }
    }

    /// Stops the clients when each has its last write acknowledged, and waits for a whole cell in
    /// which every replica holds every register as it was acknowledged.
    pub async fn stop_and_check(mut self, replicas: &Replicas) -> Arc<Ledger> {
        self.stop.store(true, Ordering::Relaxed);
        while let Some(worker) = self.workers.join_next().await {
            worker.expect("a client ends");
        }
        replicas.wait_until_healed(self.ledger.floor()).await;
        for host in replicas.hosts.all() {
            for (key, value) in self.ledger.last_values().into_iter().enumerate() {
                let bytes = self.prober.bytes_at(&master(host), &path(key), TIMEOUT).await;
                let answer = serde_json::from_slice(&bytes.expect("it answers")).expect("a user");
                let found = seen(&answer).value;
                assert_eq!(found, value, "register {key} on host {host}");
            }
        }
        assert_eq!(self.ledger.violations(), Vec::<String>::new());
        self.ledger
    }
}

async fn work(
    client: Client,
    ledger: Arc<Ledger>,
    stop: Arc<AtomicBool>,
    key: usize,
    count: usize,
) {
    for value in 1.. {
        let began = ledger.write_begins(key, value);
        let deadline = Instant::now() + TIMEOUT;
        let index = loop {
            match write(&client, key, value).await {
                Ok(index) => break index,
                Err(error) => assert!(Instant::now() < deadline, "key {key}, {value}: {error}"),
            }
        };
        ledger.write_acknowledged(key, value, index, began);
        if stop.load(Ordering::Relaxed) {
            return;
        }
        let other = (key + value as usize) % count;
        let began = ledger.read_begins(other);
        // A read that failed promised nothing.
        if let Ok(found) = read(&client, other).await {
            ledger.read_ends(other, began, found);
        }
    }
}
