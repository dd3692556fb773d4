//! Places for connections: who has how many, and who must leave when there are none left.
//!
//! Whoever has shown who it is has places of its own. Everybody else shares a few, for a short
//! time: a stranger costs a file descriptor and some memory, and there is no end of strangers. When
//! the strangers' places are full the newcomer gets in and the oldest connection of the address
//! that holds most of them goes, so that thousands of connections from a few places keep nobody
//! else out, and a handshake, which takes milliseconds, ends long before its turn to go comes.
//!
//! Rejected: refusing newcomers while it is full. That hands the door to whoever fills it first.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::Notify;

/// Whose connections are counted together.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Guest {
    Address(IpAddr),
    Identity(String),
}

#[derive(Default)]
pub struct Counts(Mutex<BTreeMap<Guest, usize>>);

/// One connection's place; given back when dropped.
pub struct Seat {
    counts: Arc<Counts>,
    guest: Guest,
}

impl Counts {
    /// A place, while the guest has fewer than `limit`.
    pub fn seat(self: &Arc<Self>, guest: Guest, limit: usize) -> Option<Seat> {
        let mut counts = lock(&self.0);
        let count = counts.entry(guest.clone()).or_default();
        if *count >= limit {
            if *count == 0 {
                counts.remove(&guest);
            }
            return None;
        }
        *count += 1;
        Some(Seat { counts: Arc::clone(self), guest })
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        let mut counts = lock(&self.counts.0);
        if let Some(count) = counts.get_mut(&self.guest) {
            *count -= 1;
            if *count == 0 {
                counts.remove(&self.guest);
            }
        }
    }
}

/// Connections of which nobody knows yet who they are.
pub struct Strangers {
    most: usize,
    inside: Mutex<Inside>,
}

#[derive(Default)]
struct Inside {
    next: u64,
    total: usize,
    /// By where they come from and when they came.
    by_source: BTreeMap<IpAddr, BTreeMap<u64, Arc<Notify>>>,
}

/// One of them; leaves when dropped.
pub struct Stranger {
    strangers: Arc<Strangers>,
    source: IpAddr,
    number: u64,
    told: Arc<Notify>,
}

impl Strangers {
    #[must_use]
    pub fn at_most(most: usize) -> Arc<Strangers> {
        Arc::new(Strangers { most: most.max(1), inside: Mutex::default() })
    }

    /// Lets one in, at the cost of another when there are too many.
    pub fn enter(self: &Arc<Self>, address: IpAddr) -> Stranger {
        let (source, told) = (source(address), Arc::new(Notify::new()));
        let mut inside = lock(&self.inside);
        if inside.total >= self.most {
            inside.make_room();
        }
        let number = inside.next;
        inside.next += 1;
        inside.total += 1;
        inside.by_source.entry(source).or_default().insert(number, told.clone());
        drop(inside);
        Stranger { strangers: Arc::clone(self), source, number, told }
    }

    #[cfg(test)]
    fn count(&self) -> usize {
        lock(&self.inside).total
    }
}

impl Inside {
    /// The oldest of the largest crowd goes; of equal crowds, that with the oldest.
    fn make_room(&mut self) {
        let first = |crowd: &BTreeMap<u64, Arc<Notify>>| crowd.keys().next().copied();
        let crowd = self
            .by_source
            .iter()
            .max_by_key(|(_, crowd)| (crowd.len(), std::cmp::Reverse(first(crowd))))
            .and_then(|(source, crowd)| Some((*source, first(crowd)?)));
        if let Some((source, number)) = crowd
            && let Some(told) = self.remove(source, number)
        {
            told.notify_one();
        }
    }

    fn remove(&mut self, source: IpAddr, number: u64) -> Option<Arc<Notify>> {
        let crowd = self.by_source.get_mut(&source)?;
        let told = crowd.remove(&number)?;
        self.total -= 1;
        if crowd.is_empty() {
            self.by_source.remove(&source);
        }
        Some(told)
    }
}

impl Stranger {
    /// Done when its place is given to another.
    pub async fn sent_away(&self) {
        self.told.notified().await;
    }
}

impl Drop for Stranger {
    fn drop(&mut self) {
        lock(&self.strangers.inside).remove(self.source, self.number);
    }
}

/// Who has one address of a network of version 6 usually has the whole.
fn source(address: IpAddr) -> IpAddr {
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

    fn gone(strangers: &[Stranger]) -> Vec<usize> {
        let told = |one: &Stranger| one.sent_away().now_or_never().is_some();
        strangers.iter().enumerate().filter(|(_, one)| told(one)).map(|(at, _)| at).collect()
    }

    #[test]
    fn the_largest_crowd_makes_room_and_its_oldest_goes_first() {
        let strangers = Strangers::at_most(4);
        let modest = strangers.enter(at("192.0.2.1"));
        let crowd: Vec<Stranger> = (0..6).map(|_| strangers.enter(at("192.0.2.9"))).collect();
        assert_eq!(strangers.count(), 4);
        assert_eq!(gone(&crowd), [0, 1, 2]);
        let late = strangers.enter(at("192.0.2.2"));
        assert_eq!(gone(&crowd), [3], "whom the others were told before");
        assert!(gone(&[modest, late]).is_empty());
        drop(crowd);
        assert_eq!(strangers.count(), 0, "also those that went have gone once");
    }

    #[test]
    fn of_equal_crowds_the_oldest_goes() {
        let strangers = Strangers::at_most(2);
        let all: Vec<Stranger> =
            ["192.0.2.9", "192.0.2.1", "192.0.2.2"].map(|a| strangers.enter(at(a))).into();
        assert_eq!(gone(&all), [0]);
    }

    #[test]
    fn one_network_of_version_6_is_one_source() {
        assert_eq!(source(at("2001:db8::1")), source(at("2001:db8::ffff:2")));
        assert_ne!(source(at("2001:db8::1")), source(at("2001:db8:0:1::1")));
        assert_eq!(source(at("::ffff:192.0.2.1")), at("192.0.2.1"));
    }
}
