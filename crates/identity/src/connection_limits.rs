//! Connection limits: how many connections each identity or address may hold, and which one is
//! evicted when there are too many.
//!
//! A caller that has authenticated has its own limit. All unauthenticated connections share a small
//! pool, for a short time: each costs a file descriptor and some memory, and their number has no
//! natural bound. When the pool is full, a new connection is admitted and the oldest connection of
//! the address with the most connections is evicted. So thousands of connections from a few
//! addresses do not lock out anyone else, and a handshake, which takes milliseconds, ends long
//! before its turn to be evicted.
//!
//! Rejected: refusing new connections while the pool is full. Then whoever fills it first locks out
//! everyone else.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::Notify;

/// The key by which connections are counted together.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum LimitKey {
    Address(IpAddr),
    Identity(String),
}

#[derive(Default)]
pub struct ConnectionCounts(Mutex<BTreeMap<LimitKey, usize>>);

/// A permit for one connection; released when dropped.
pub struct ConnectionPermit {
    counts: Arc<ConnectionCounts>,
    key: LimitKey,
}

impl ConnectionCounts {
    /// A permit, while this key holds fewer than `limit`.
    pub fn acquire(self: &Arc<Self>, key: LimitKey, limit: usize) -> Option<ConnectionPermit> {
        let mut counts = lock(&self.0);
        let count = counts.entry(key.clone()).or_default();
        if *count >= limit {
            if *count == 0 {
                counts.remove(&key);
            }
            return None;
        }
        *count += 1;
        Some(ConnectionPermit { counts: Arc::clone(self), key })
    }
}

impl Drop for ConnectionPermit {
    fn drop(&mut self) {
        let mut counts = lock(&self.counts.0);
        if let Some(count) = counts.get_mut(&self.key) {
            *count -= 1;
            if *count == 0 {
                counts.remove(&self.key);
            }
        }
    }
}

/// Connections that have not authenticated yet.
pub struct UnauthenticatedConnections {
    limit: usize,
    table: Mutex<ConnectionTable>,
}

#[derive(Default)]
struct ConnectionTable {
    next_number: u64,
    total: usize,
    /// By source address and order of arrival.
    by_source: BTreeMap<IpAddr, BTreeMap<u64, Arc<Notify>>>,
}

/// One unauthenticated connection; it leaves the pool when dropped.
pub struct UnauthenticatedConnection {
    pool: Arc<UnauthenticatedConnections>,
    source: IpAddr,
    number: u64,
    eviction: Arc<Notify>,
}

impl UnauthenticatedConnections {
    #[must_use]
    pub fn with_limit(limit: usize) -> Arc<UnauthenticatedConnections> {
        Arc::new(UnauthenticatedConnections { limit: limit.max(1), table: Mutex::default() })
    }

    /// Admits a connection and evicts another when there are too many.
    pub fn admit(self: &Arc<Self>, address: IpAddr) -> UnauthenticatedConnection {
        let (source, eviction) = (source_network(address), Arc::new(Notify::new()));
        let mut table = lock(&self.table);
        if table.total >= self.limit {
            table.evict_oldest();
        }
        let number = table.next_number;
        table.next_number += 1;
        table.total += 1;
        table.by_source.entry(source).or_default().insert(number, eviction.clone());
        drop(table);
        UnauthenticatedConnection { pool: Arc::clone(self), source, number, eviction }
    }

    #[cfg(test)]
    fn count(&self) -> usize {
        lock(&self.table).total
    }
}

impl ConnectionTable {
    /// Evicts the oldest connection of the largest group; among equal groups, of the one with the
    /// oldest connection.
    fn evict_oldest(&mut self) {
        let oldest = |group: &BTreeMap<u64, Arc<Notify>>| group.keys().next().copied();
        let victim = self
            .by_source
            .iter()
            .max_by_key(|(_, group)| (group.len(), std::cmp::Reverse(oldest(group))))
            .and_then(|(source, group)| Some((*source, oldest(group)?)));
        if let Some((source, number)) = victim
            && let Some(eviction) = self.remove(source, number)
        {
            eviction.notify_one();
        }
    }

    fn remove(&mut self, source: IpAddr, number: u64) -> Option<Arc<Notify>> {
        let connections = self.by_source.get_mut(&source)?;
        let eviction = connections.remove(&number)?;
        self.total -= 1;
        if connections.is_empty() {
            self.by_source.remove(&source);
        }
        Some(eviction)
    }
}

impl UnauthenticatedConnection {
    /// Completes when this connection is evicted in favour of another.
    pub async fn evicted(&self) {
        self.eviction.notified().await;
    }
}

impl Drop for UnauthenticatedConnection {
    fn drop(&mut self) {
        lock(&self.pool.table).remove(self.source, self.number);
    }
}

/// The /64 network of an IPv6 address: the holder of one address usually has the whole network.
fn source_network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => IpAddr::V6(Ipv6Addr::from_bits(address.to_bits() >> 64 << 64)),
        v4 => v4,
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::FutureExt;

    fn at(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    fn evicted_indices(connections: &[UnauthenticatedConnection]) -> Vec<usize> {
        let is_evicted =
            |connection: &UnauthenticatedConnection| connection.evicted().now_or_never().is_some();
        connections
            .iter()
            .enumerate()
            .filter(|(_, one)| is_evicted(one))
            .map(|(at, _)| at)
            .collect()
    }

    #[test]
    fn the_largest_crowd_makes_room_and_its_oldest_goes_first() {
        let pool = UnauthenticatedConnections::with_limit(4);
        let modest = pool.admit(at("192.0.2.1"));
        let crowd: Vec<UnauthenticatedConnection> =
            (0..6).map(|_| pool.admit(at("192.0.2.9"))).collect();
        assert_eq!(pool.count(), 4);
        assert_eq!(evicted_indices(&crowd), [0, 1, 2]);
        let late = pool.admit(at("192.0.2.2"));
        assert_eq!(evicted_indices(&crowd), [3], "whom the others were told before");
        assert!(evicted_indices(&[modest, late]).is_empty());
        drop(crowd);
        assert_eq!(pool.count(), 0, "also those that went have gone once");
    }

    #[test]
    fn of_equal_crowds_the_oldest_goes() {
        let pool = UnauthenticatedConnections::with_limit(2);
        let all: Vec<UnauthenticatedConnection> =
            ["192.0.2.9", "192.0.2.1", "192.0.2.2"].map(|a| pool.admit(at(a))).into();
        assert_eq!(evicted_indices(&all), [0]);
    }

    #[test]
    fn one_network_of_version_6_is_one_source() {
        assert_eq!(source_network(at("2001:db8::1")), source_network(at("2001:db8::ffff:2")));
        assert_ne!(source_network(at("2001:db8::1")), source_network(at("2001:db8:0:1::1")));
        assert_eq!(source_network(at("::ffff:192.0.2.1")), at("192.0.2.1"));
    }
}
