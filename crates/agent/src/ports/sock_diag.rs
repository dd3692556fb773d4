//! The listening TCP sockets of this machine's network, as the kernel answers over netlink
//! (`sock_diag(7)`).
//!
//! `/proc/net/tcp` lists every connection after the listening sockets, and to do so the kernel
//! walks a table with hundreds of thousands of places, full or empty: on a machine at rest that was
//! a quarter of all that the agent cost. Here the kernel is asked for one state only.

use rustix::net::netlink::{SOCK_DIAG, SocketAddrNetlink};
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, sendto, socket_with,
};
use std::collections::BTreeMap;
use std::io::{Error, ErrorKind, Result};
use std::os::fd::OwnedFd;
use std::time::Duration;

/// `nlmsghdr`: length, type, flags, sequence, port.
const HEADER_BYTES: usize = 16;
/// `inet_diag_req_v2`: family, protocol, extensions, padding, states, and a socket to look for.
const REQUEST_BYTES: usize = 56;
/// `inet_diag_msg`.
const ANSWER_BYTES: usize = 72;
/// Where in an `inet_diag_msg` the local port and the inode number are.
const PORT_AT: usize = 4;
const INODE_AT: usize = 68;

const SOCK_DIAG_BY_FAMILY: u16 = 20;
const REQUEST_AND_DUMP: u16 = 0x301;
const DONE: u16 = 3;
const ERROR: u16 = 2;
const PROTOCOL_TCP: u8 = 6;
const STATE_LISTEN: u32 = 1 << 10;

/// The kernel answers at once; this is for one that never does.
const PATIENCE: Duration = Duration::from_secs(1);
/// The kernel fills at most this much at a time.
const BUFFER_BYTES: usize = 32 << 10;

/// By inode number, the port.
///
/// # Errors
/// When this kernel has no such interface, or does not answer.
pub fn listening_sockets() -> Result<BTreeMap<u64, u16>> {
    let socket = socket_with(
        AddressFamily::NETLINK,
        SocketType::DGRAM,
        SocketFlags::CLOEXEC,
        Some(SOCK_DIAG),
    )?;
    set_socket_timeout(&socket, Timeout::Recv, Some(PATIENCE))?;
    let mut found = BTreeMap::new();
    for family in [AddressFamily::INET, AddressFamily::INET6] {
        dump(&socket, family, &mut found)?;
    }
    Ok(found)
}

fn dump(socket: &OwnedFd, family: AddressFamily, found: &mut BTreeMap<u64, u16>) -> Result<()> {
    let kernel = SocketAddrNetlink::new(0, 0);
    sendto(socket, &request(family), SendFlags::empty(), &kernel)?;
    let mut buffer = vec![0; BUFFER_BYTES];
    loop {
        let (read, _) = recv(socket, buffer.as_mut_slice(), RecvFlags::empty())?;
        if read_messages(&buffer[..read], found)? {
            return Ok(());
        }
    }
}

fn request(family: AddressFamily) -> Vec<u8> {
    let length = HEADER_BYTES + REQUEST_BYTES;
    let mut bytes = Vec::with_capacity(length);
    bytes.extend((length as u32).to_ne_bytes());
    bytes.extend(SOCK_DIAG_BY_FAMILY.to_ne_bytes());
    bytes.extend(REQUEST_AND_DUMP.to_ne_bytes());
    bytes.extend([0; 8]);
    bytes.extend([family.as_raw() as u8, PROTOCOL_TCP, 0, 0]);
    bytes.extend(STATE_LISTEN.to_ne_bytes());
    bytes.resize(length, 0);
    bytes
}

/// Reads the messages of one datagram; true when the kernel has no more.
fn read_messages(mut bytes: &[u8], found: &mut BTreeMap<u64, u16>) -> Result<bool> {
    let odd = || Error::new(ErrorKind::InvalidData, "a netlink message of an odd length");
    while !bytes.is_empty() {
        let header = bytes.first_chunk::<HEADER_BYTES>().ok_or_else(odd)?;
        let length = u32::from_ne_bytes([header[0], header[1], header[2], header[3]]) as usize;
        let kind = u16::from_ne_bytes([header[4], header[5]]);
        let body = bytes.get(HEADER_BYTES..length).ok_or_else(odd)?;
        match kind {
            DONE => return Ok(true),
            ERROR => return Err(error_of(body)),
            SOCK_DIAG_BY_FAMILY => {
                let socket = body.first_chunk::<ANSWER_BYTES>().ok_or_else(odd)?;
                let port = u16::from_be_bytes([socket[PORT_AT], socket[PORT_AT + 1]]);
                let inode = u32::from_ne_bytes([
                    socket[INODE_AT],
                    socket[INODE_AT + 1],
                    socket[INODE_AT + 2],
                    socket[INODE_AT + 3],
                ]);
                found.insert(u64::from(inode), port);
            }
            _ => {}
        }
        // Messages begin at multiples of four.
        bytes = bytes.get(length.next_multiple_of(4)..).unwrap_or_default();
    }
    Ok(false)
}

fn error_of(body: &[u8]) -> Error {
    match body.first_chunk::<4>() {
        Some(code) => Error::from_raw_os_error(i32::from_ne_bytes(*code).saturating_neg()),
        None => Error::new(ErrorKind::InvalidData, "a netlink error without a number"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{TcpListener, TcpStream};

    #[test]
    fn what_listens_is_found_and_what_is_connected_is_not() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let six = TcpListener::bind("[::1]:0");
        let at = listener.local_addr().unwrap();
        let connected = TcpStream::connect(at).unwrap();
        let found: Vec<u16> = listening_sockets().unwrap().into_values().collect();
        assert!(found.contains(&at.port()), "{found:?}");
        assert!(!found.contains(&connected.local_addr().unwrap().port()), "{found:?}");
        if let Ok(six) = six {
            assert!(found.contains(&six.local_addr().unwrap().port()), "{found:?}");
        }
    }

    #[test]
    fn a_datagram_is_read_to_its_end_and_an_odd_one_is_an_error() {
        let message = |kind: u16, body: &[u8]| {
            let mut bytes = ((HEADER_BYTES + body.len()) as u32).to_ne_bytes().to_vec();
            bytes.extend(kind.to_ne_bytes());
            bytes.extend([0; 10]);
            bytes.extend(body);
            bytes
        };
        let mut socket = [0; ANSWER_BYTES];
        socket[PORT_AT..PORT_AT + 2].copy_from_slice(&8080u16.to_be_bytes());
        socket[INODE_AT..].copy_from_slice(&4242u32.to_ne_bytes());
        let mut bytes = message(SOCK_DIAG_BY_FAMILY, &socket);
        let mut found = BTreeMap::new();
        assert!(!read_messages(&bytes, &mut found).unwrap());
        assert_eq!(found, BTreeMap::from([(4242, 8080)]));
        bytes.extend(message(DONE, &[0; 4]));
        assert!(read_messages(&bytes, &mut found).unwrap());
        for cut in 1..HEADER_BYTES + ANSWER_BYTES {
            let read = read_messages(&bytes[..cut], &mut BTreeMap::new());
            assert_eq!(read.unwrap_err().kind(), ErrorKind::InvalidData, "{cut}");
        }
        let error = message(ERROR, &(-2i32).to_ne_bytes());
        let read = read_messages(&error, &mut BTreeMap::new());
        assert_eq!(read.unwrap_err().kind(), ErrorKind::NotFound);
        // A length below that of a header goes on for ever in a careless reader.
        assert!(read_messages(&[0; HEADER_BYTES], &mut BTreeMap::new()).is_err());
    }
}
