//! Keeps the positions of devices stable from one start of the agent to the next.
//!
//! The cell knows a device by its position in the machine's list, and so does every task that holds
//! one. A card that is added or removed must not move the others: their holders would be counted
//! against a neighbour, and a second task could be granted what the first still has. So the list is
//! stored. A device keeps its position for good; one that is removed leaves a placeholder that no
//! job can ask for, and returns to it; new ones are appended.
//!
//! Rejected: identities in the machine's spec and in every grant, which would make each plan and
//! each row longer for the sake of a machine whose hardware was changed.

use crate::devices::HostDevice;
use crate::machine::MachineDescription;
use crate::record::{self, Durability, RecordError};
use cellwright_cell::device::{Device, MAX_DEVICES, REMOVED_DEVICE};
use cellwright_cell::name::{InvalidName, Token};
use std::path::Path;

/// Puts the machine's devices at their stored positions, and stores the positions of new ones.
///
/// # Errors
/// When the list cannot be read or written.
pub fn assign_positions(
    path: &Path,
    described: &mut MachineDescription,
) -> Result<(), RecordError> {
    let stored = match record::read::<Vec<String>>(path) {
        Ok(stored) => stored.unwrap_or_default(),
        Err(error @ RecordError::Damaged { .. }) => {
            tracing::error!(%error, "devices are numbered anew");
            Vec::new()
        }
        Err(error) => return Err(error),
    };
    let (positions, devices) =
        merge_positions(stored.clone(), std::mem::take(&mut described.devices));
    if positions != stored {
        record::write(path, &positions, Durability::PowerCut)?;
    }
    described.spec.devices = devices.iter().map(|found| found.device.clone()).collect();
    described.devices = devices;
    Ok(())
}

/// Identities by position, and the device at each.
fn merge_positions(
    mut stored: Vec<String>,
    mut found: Vec<HostDevice>,
) -> (Vec<String>, Vec<HostDevice>) {
    for device in &found {
        if stored.contains(&device.identity) {
            continue;
        }
        let is_gap = |identity: &String| !found.iter().any(|other| other.identity == *identity);
        // A machine can report only so many; at that number the oldest placeholder is used again.
        let gap = stored.iter().position(is_gap).filter(|_| stored.len() >= MAX_DEVICES);
        match gap {
            Some(gap) => stored[gap].clone_from(&device.identity),
            None => stored.push(device.identity.clone()),
        }
    }
    let mut all = Vec::new();
    for identity in &stored {
        match found.iter().position(|device| device.identity == *identity) {
            Some(at) => all.push(found.swap_remove(at)),
            None => {
                tracing::warn!(device = identity, "a device is gone; nobody can ask for it");
                all.extend(placeholder_device(identity).ok());
            }
        }
    }
    (stored, all)
}

/// The placeholder of a removed device.
fn placeholder_device(identity: &str) -> Result<HostDevice, InvalidName> {
    let kind = Token::new(REMOVED_DEVICE)?;
    // Its identity, for people, unless a path in it has characters that no model has.
    let model = Token::new(identity).or_else(|_| Token::new("unknown"))?;
    let (id, device) = (model.clone(), Device { kind, model });
    let identity = identity.to_owned();
    Ok(HostDevice { device, id, nodes: Vec::new(), optional_nodes: Vec::new(), identity })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::calibration::Calibration;
    use crate::config::Config;
    use crate::devices::granted;
    use crate::machine::describe;
    use crate::state_dir::scratch::Scratch;
    use cellwright_cell::device::DeviceGrant;

    fn card(id: &str) -> HostDevice {
        let token = |text: &str| Token::new(text).unwrap();
        HostDevice {
            device: Device { kind: token("gpu"), model: token("a100") },
            id: token(id),
            nodes: Vec::new(),
            optional_nodes: Vec::new(),
            identity: format!("gpu:{id}"),
        }
    }

    /// An agent that starts on a machine with these cards: the devices that it reports, by
    /// position.
    fn start(path: &Path, ids: &[&str]) -> (Vec<String>, Vec<HostDevice>) {
        let text = "name = \"m7\"\ndata_dir = \"/\"\nfind_devices = false";
        let mut described =
            describe(&Config::parse(text).unwrap(), Calibration::default()).unwrap();
        described.devices = ids.iter().map(|id| card(id)).collect();
        assign_positions(path, &mut described).unwrap();
        let listed = described.spec.devices.iter();
        let listed = listed.map(|device| format!("{} {}", device.kind, device.model)).collect();
        (listed, described.devices)
    }

    #[test]
    fn a_device_keeps_its_position_whatever_comes_or_goes_beside_it() {
        let scratch = Scratch::new();
        let path = scratch.path("devices");
        let here = "gpu a100".to_owned();
        assert_eq!(start(&path, &["a", "b"]).0, [here.clone(), here.clone()]);
        // One is taken out, and another is put in that the bus lists first.
        let (listed, devices) = start(&path, &["0", "b"]);
        let gap = "(gone) gpu:a".to_owned();
        assert_eq!(listed, [gap, here.clone(), here.clone()]);
        let grant = |device| [DeviceGrant { device, milli: 1000 }];
        let id =
            |device| granted(&devices, &grant(device)).map(|all| all[0].host_device.id.to_string());
        assert_eq!((id(1).unwrap(), id(2).unwrap()), ("b".into(), "0".into()));
        let error = id(0).unwrap_err().to_string();
        assert!(error.contains("device 0 of this machine (gpu:a), which is gone"), "{error}");
        // It returns to its position.
        let (listed, devices) = start(&path, &["0", "a", "b"]);
        assert_eq!(listed, vec![here; 3]);
        let ids: Vec<&str> = devices.iter().map(|device| device.id.as_str()).collect();
        assert_eq!(ids, ["a", "b", "0"]);
        // Without the list they are numbered in the order in which they are detected.
        std::fs::write(&path, "damaged").unwrap();
        assert_eq!(start(&path, &["0", "a"]).1[0].id.as_str(), "0");
    }

    #[test]
    fn gaps_are_used_again_only_when_there_is_no_room_for_more() {
        let cards = |ids: std::ops::Range<usize>| -> Vec<HostDevice> {
            ids.map(|id| card(&id.to_string())).collect()
        };
        let (stored, _) = merge_positions(Vec::new(), cards(0..MAX_DEVICES));
        let (stored, all) = merge_positions(stored, cards(2..MAX_DEVICES + 1));
        assert_eq!((stored.len(), all.len()), (MAX_DEVICES, MAX_DEVICES));
        assert_eq!(all[0].id.as_str(), MAX_DEVICES.to_string());
        assert_eq!(all[1].device.kind.as_str(), REMOVED_DEVICE);
        assert!((2..MAX_DEVICES).all(|at| all[at].id.as_str() == at.to_string()));
    }
}
