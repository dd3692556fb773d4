//! Rate limit of full DNS answers over UDP, per network and second.
//!
//! The sender's address in a packet can be spoofed: with a victim's address as the sender, a short
//! query causes a long answer to that victim (DNS amplification). So beyond its limit a network is
//! told "retry over TCP" in a packet as short as the query, which is no use to an attacker and
//! little trouble to an honest resolver.
//!
//! Networks share a table of fixed size by a hash of their address. Two that share a bucket share a
//! limit, and lose nothing but a detour over TCP. Rejected: a bucket for each network, which a
//! flood of spoofed senders would fill.

use std::net::IpAddr;
use std::time::Duration;

/// Buckets of the table.
const BUCKETS: usize = 4096;

#[derive(Clone, Copy, Default)]
struct Bucket {
    second: u64,
    count: u32,
}

pub(crate) struct RateLimiter {
    buckets: Vec<Bucket>,
    max_per_second: u32,
}

impl RateLimiter {
    /// Allows `max_per_second` answers a second for each network.
    pub(crate) fn new(max_per_second: u32) -> RateLimiter {
        RateLimiter { buckets: vec![Bucket::default(); BUCKETS], max_per_second }
    }

    /// Whether the network of `client` may have one more answer. `now` never moves backwards.
    pub(crate) fn try_acquire(&mut self, client: IpAddr, now: Duration) -> bool {
        let row = &mut self.buckets[bucket_of(network(client))];
        if row.second != now.as_secs() {
            *row = Bucket { second: now.as_secs(), count: 0 };
        }
        let may = row.count < self.max_per_second;
        row.count = row.count.saturating_add(u32::from(may));
        may
    }
}

/// The part of an address that its holder cannot choose: a /24, and of the longer ones a /56.
fn network(address: IpAddr) -> u64 {
    match address.to_canonical() {
        IpAddr::V4(address) => u64::from(address.to_bits() >> 8),
        IpAddr::V6(address) => (1 << 63) | u64::try_from(address.to_bits() >> 72).unwrap_or(0),
    }
}

/// Fibonacci hashing: the upper bits of a product with 2^64 divided by the golden ratio.
fn bucket_of(network: u64) -> usize {
    let mixed = network.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (64 - BUCKETS.ilog2());
    usize::try_from(mixed).unwrap_or(0)
}

const _: () = assert!(BUCKETS.is_power_of_two());

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_network_has_its_share_of_every_second_and_no_other_network_s() {
        let mut limiter = RateLimiter::new(2);
        let mut take = |address: &str, millis| {
            limiter.try_acquire(address.parse().unwrap(), Duration::from_millis(millis))
        };
        assert!(take("10.0.0.1", 1000) && take("10.0.0.2", 1500));
        assert!(!take("10.0.0.3", 1900), "the same network");
        assert!(!take("::ffff:10.0.0.4", 1900), "the same network in other words");
        assert!(take("10.0.1.1", 1900) && take("2001:db8::1", 1900));
        assert!(take("10.0.0.3", 2000), "another second");
    }
}
