//! Allocates a block of ports of this computer to the tasks of a `cell dev`. Several can run on one
//! computer, as can tests; each takes a block of ports that no other has, and reuses its block at
//! the next start if it is still free.
//!
//! A block is claimed by keeping its last port, of UDP on loopback, bound for as long as the cell
//! runs: the kernel lets only one process bind it, whoever owns the process, and releases it when
//! the process ends. Rejected: lock files in a folder that all users share, which outlive their
//! process and can be created by anybody; probing the ports themselves, which are free until a task
//! listens.

use crate::failure::Failure;
use cellwright_cell::machine::PortRange;
use std::net::{Ipv4Addr, UdpSocket};
use std::path::Path;
use std::{fs, io};

/// The number of ports in a block; the last one is the claim.
const BLOCK_SIZE: u16 = 240;
/// The areas that blocks are taken from: the usual range first, then the one below it.
const PORT_AREAS: [PortRange; 2] =
    [PortRange { first: 20_000, last: 31_999 }, PortRange { first: 10_000, last: 19_999 }];

/// A block that is claimed until it is dropped.
#[derive(Debug)]
pub struct PortBlock {
    pub range: PortRange,
    _claim: UdpSocket,
}

impl PortBlock {
    /// Claims the block recorded in `file`, or else any free one, and records it.
    ///
    /// # Errors
    /// If no block is free or the file cannot be used.
    pub fn take(file: &Path) -> Result<PortBlock, Failure> {
        PortBlock::take_at(Ipv4Addr::LOCALHOST, file)
    }

    /// The same among the claims at one loopback address.
    fn take_at(host: Ipv4Addr, file: &Path) -> Result<PortBlock, Failure> {
        let write = |source| Failure::Write { what: file.display().to_string(), source };
        let saved_start = match fs::read_to_string(file) {
            Ok(text) => text.trim().parse().ok(),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => return Err(write(error)),
        };
        let known = saved_start.filter(|first| block_starts().any(|other| other == *first));
        let mut firsts = known.into_iter().chain(block_starts());
        let block = firsts.find_map(|first| claim_block(host, first)).ok_or_else(|| {
            let message = format!("all {} blocks of ports are taken", block_starts().count());
            Failure::Operation { message, next: "stop another `cell dev` of this computer".into() }
        })?;
        if saved_start != Some(block.range.first) {
            fs::write(file, format!("{}\n", block.range.first)).map_err(write)?;
        }
        Ok(block)
    }
}

/// The first ports of all blocks.
fn block_starts() -> impl Iterator<Item = u16> {
    let of_area = |area: PortRange| {
        let blocks = area.count() / u32::from(BLOCK_SIZE);
        (area.first..).step_by(usize::from(BLOCK_SIZE)).take(blocks as usize)
    };
    PORT_AREAS.into_iter().flat_map(of_area)
}

/// Claims a block; returns `None` if another process has it.
fn claim_block(host: Ipv4Addr, first: u16) -> Option<PortBlock> {
    let last = first + BLOCK_SIZE - 1;
    let claim = UdpSocket::bind((host, last)).ok()?;
    Some(PortBlock { range: PortRange { first, last: last - 1 }, _claim: claim })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_lie_beside_each_other_and_within_their_areas() {
        let firsts: Vec<u16> = block_starts().collect();
        assert_eq!((firsts.len(), firsts[0], firsts[49], firsts[50]), (91, 20_000, 31_760, 10_000));
        let within =
            |first: &u16| PORT_AREAS.iter().any(|area| area.contains(first + BLOCK_SIZE - 1));
        assert!(firsts.iter().all(within), "{firsts:?}");
    }

    #[test]
    fn a_block_is_one_cells_alone_and_its_own_again() {
        let folder = std::env::temp_dir().join(format!("cell-dev-ports-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let (one, other) = (folder.join("one"), folder.join("other"));
        // No other process on this computer claims blocks at this address, which is derived from
        // the process id.
        let host = Ipv4Addr::from(0x7f80_0000 | (std::process::id() & 0x007f_ffff));
        let take = |file: &Path| PortBlock::take_at(host, file);
        let first = take(&one).unwrap();
        let second = take(&other).unwrap();
        assert_ne!(first.range, second.range);
        let range = second.range;
        // The first block of all may be free by now; the recorded one is preferred.
        drop((first, second));
        let again = take(&other).unwrap();
        assert_eq!(again.range, range);
        // A recorded block that another process has claimed is not waited for.
        fs::write(&one, format!("{}\n", range.first)).unwrap();
        let other_block = take(&one).unwrap();
        assert_ne!(other_block.range, range);
        assert_eq!(fs::read_to_string(&one).unwrap(), format!("{}\n", other_block.range.first));
        fs::write(&one, "not a port").unwrap();
        assert!(take(&one).is_ok());
        fs::remove_dir_all(folder).unwrap();
    }
}
