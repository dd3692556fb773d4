//! A network of a container's own begins with a loopback that is down: programs that talk to
//! themselves would find nobody. It is raised from outside, while the first process stands still
//! between `create` and `start`; inside nobody has the right to.
//!
//! Said to the kernel in its own words (netlink), in a thread that enters the network and ends.
//! Rejected: `ip link set lo up` by a hook of the runtime, which takes a program that machines may
//! not have.

use crate::Error;
use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType};
use rustix::net::{recv, send, socket_with};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

/// `RTM_NEWLINK`: change a device, here the first one, which loopback always is.
const CHANGE_DEVICE: u16 = 16;
/// `NLM_F_REQUEST | NLM_F_ACK`.
const ASK_AND_BE_TOLD: u16 = 1 | 4;
/// `NLMSG_ERROR`, which also says that all went well.
const TOLD: u16 = 2;
const LOOPBACK: i32 = 1;
/// `IFF_UP`, as the flag that is set and as the mask of those that change.
const UP: u32 = 1;

/// Raises the loopback of the network that process `pid` is in.
///
/// # Errors
/// When the process is gone, or the kernel refuses.
pub fn raise_loopback(pid: u32) -> Result<(), Error> {
    let path = PathBuf::from(format!("/proc/{pid}/ns/net"));
    let at = path.clone();
    // A thread that has entered another network cannot be used for anything else.
    let raised = std::thread::Builder::new().spawn(move || enter_and_raise(&at));
    let raised = raised.and_then(|thread| {
        thread.join().unwrap_or_else(|_| Err(io::Error::other("it was cut short")))
    });
    raised.map_err(Error::file("raise the loopback of", &path))
}

fn enter_and_raise(network: &Path) -> io::Result<()> {
    let network = File::open(network)?;
    move_into_link_name_space(network.as_fd(), Some(LinkNameSpaceType::Network))?;
    let kind = SocketType::RAW;
    let line = socket_with(AddressFamily::NETLINK, kind, SocketFlags::CLOEXEC, None)?;
    send(&line, &request(), SendFlags::empty())?;
    let mut answer = [0u8; 256];
    let (count, _) = recv(&line, &mut answer[..], RecvFlags::empty())?;
    verdict(&answer[..count])
}

/// The kernel reads numbers as the processor has them.
fn request() -> Vec<u8> {
    let mut body: Vec<u8> = vec![0; 4];
    body.extend(LOOPBACK.to_ne_bytes());
    body.extend(UP.to_ne_bytes());
    body.extend(UP.to_ne_bytes());
    let length = u32::try_from(16 + body.len()).unwrap_or(0);
    let mut whole = length.to_ne_bytes().to_vec();
    whole.extend(CHANGE_DEVICE.to_ne_bytes());
    whole.extend(ASK_AND_BE_TOLD.to_ne_bytes());
    // The number of the question, and who asks: the only one there is.
    whole.extend(1u32.to_ne_bytes());
    whole.extend(0u32.to_ne_bytes());
    whole.extend(body);
    whole
}

fn verdict(answer: &[u8]) -> io::Result<()> {
    let odd = || io::Error::other("the kernel said something else");
    let kind = answer.get(4..6).and_then(|bytes| bytes.try_into().ok()).map(u16::from_ne_bytes);
    let code = answer.get(16..20).and_then(|bytes| bytes.try_into().ok()).map(i32::from_ne_bytes);
    match (kind, code) {
        (Some(TOLD), Some(0)) => Ok(()),
        (Some(TOLD), Some(code)) => Err(Errno::from_raw_os_error(code.saturating_neg()).into()),
        _ => Err(odd()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_kernel_answers_is_heard() {
        let told = |kind: u16, code: i32| {
            let mut answer = vec![0; 20];
            answer[4..6].copy_from_slice(&kind.to_ne_bytes());
            answer[16..20].copy_from_slice(&code.to_ne_bytes());
            verdict(&answer).map_err(|why| why.raw_os_error())
        };
        assert_eq!(told(TOLD, 0), Ok(()));
        assert_eq!(told(TOLD, -1), Err(Some(1)));
        assert_eq!(told(3, 0), Err(None));
        assert!(verdict(&[]).is_err());
        assert_eq!(request().len(), 32);
    }

    #[test]
    fn a_process_that_is_gone_is_named() {
        let error = raise_loopback(0).unwrap_err().to_string();
        assert!(error.contains("/proc/0/ns/net"), "{error}");
    }
}
