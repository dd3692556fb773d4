//! Ports as a page writes them, and the free ones that stand for them in a walk: two walks at once,
//! or somebody's own cell on port 7070, are in nobody's way.

use std::collections::BTreeMap;
use std::net::{TcpListener, UdpSocket};
use std::sync::atomic::{AtomicU32, Ordering};

/// What a page writes before a port.
const BEFORE: [&str; 2] = ["127.0.0.1:", "-p "];

#[derive(Debug, Default)]
pub struct Ports(BTreeMap<u16, u16>);

impl Ports {
    /// The port that stands for `written` is known already.
    pub fn assign(&mut self, written: u16, real: u16) {
        self.0.insert(written, real);
    }

    /// The text with free ports in the place of those that are written there.
    pub fn substitute(&mut self, text: &str) -> String {
        let mut out = String::new();
        let mut rest = text;
        while let Some(at) = next_port(rest) {
            let digits = rest[at..].bytes().take_while(u8::is_ascii_digit).count();
            out.push_str(&rest[..at]);
            match rest[at..at + digits].parse() {
                // Port 0 asks for any; what is no port is left as it is.
                Ok(0) | Err(_) => out.push_str(&rest[at..at + digits]),
                Ok(written) => {
                    let real = *self.0.entry(written).or_insert_with(free_port);
                    out.push_str(&real.to_string());
                }
            }
            rest = &rest[at + digits..];
        }
        out.push_str(rest);
        out
    }
}

/// Where the next port begins.
fn next_port(text: &str) -> Option<usize> {
    let behind = |before: &&str| {
        let found = text.match_indices(*before).map(|(at, _)| at + before.len());
        found.into_iter().find(|at| text[*at..].starts_with(|c: char| c.is_ascii_digit()))
    };
    BEFORE.iter().filter_map(behind).min()
}

/// Free for both protocols: DNS is asked over either. Neither one that the system gives to whoever
/// connects, and which somebody may have before the page comes to it, nor one of a task's.
fn free_port() -> u16 {
    const FIRST: u16 = 10_000;
    const MANY: u32 = 10_000;
    static NEXT: AtomicU32 = AtomicU32::new(0);
    // Two processes start at different places.
    let own = std::process::id().wrapping_mul(97);
    for _ in 0..MANY {
        let nth = own.wrapping_add(NEXT.fetch_add(1, Ordering::Relaxed)) % MANY;
        let port = FIRST + u16::try_from(nth).expect("less than many");
        let is_free = TcpListener::bind(("127.0.0.1", port)).is_ok()
            && UdpSocket::bind(("127.0.0.1", port)).is_ok();
        if is_free {
            return port;
        }
    }
    panic!("no port is free for TCP and UDP");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_is_replaced_by_the_same_free_one_everywhere() {
        let mut ports = Ports::default();
        ports.assign(7070, 4321);
        let text =
            "curl 127.0.0.1:7070/v1; dig @127.0.0.1 -p 5353; kill -p x; 127.0.0.1:0 10.0.0.1:9";
        let real = ports.substitute(text);
        let free = ports.0[&5353];
        let expected = format!(
            "curl 127.0.0.1:4321/v1; dig @127.0.0.1 -p {free}; kill -p x; 127.0.0.1:0 10.0.0.1:9"
        );
        assert_eq!(real, expected);
        assert_eq!(
            ports.substitute("listen = \"127.0.0.1:5353\""),
            format!("listen = \"127.0.0.1:{free}\"")
        );
    }
}
