//! Which device is which, from one start of the agent to the next.
//!
//! The cell knows a device by its position in the machine's list, and so does every task that holds
//! one. A card that is added or taken out must not move the others: their holders would be counted
//! against a neighbour, and a second task could be given what the first still has. So the list is
//! written down. A device keeps its position for good; one that is gone leaves a gap that nobody
//! can ask for, and comes back to it; new ones go to the end.
//!
//! Rejected: identities in the machine's spec and in every grant, which would make each plan and
//! each row longer for the sake of a machine that somebody opened.

use crate::devices::Held;
use crate::machine::Described;
use crate::record::{self, Keep, RecordError};
use cellwright_cell::device::{Device, GONE, MAX_DEVICES};
use cellwright_cell::name::{BadName, Token};
use std::path::Path;

/// Puts the machine's devices where they were, and writes down where the new ones are.
///
/// # Errors
/// When the list cannot be read or written.
pub fn settle(path: &Path, described: &mut Described) -> Result<(), RecordError> {
    let known = match record::read::<Vec<String>>(path) {
        Ok(known) => known.unwrap_or_default(),
        Err(error @ RecordError::Damaged { .. }) => {
            tracing::error!(%error, "devices are numbered anew");
            Vec::new()
        }
        Err(error) => return Err(error),
    };
    let (positions, devices) = arrange(known.clone(), std::mem::take(&mut described.devices));
    if positions != known {
        record::write(path, &positions, Keep::PowerCut)?;
    }
    described.spec.devices = devices.iter().map(|held| held.device.clone()).collect();
    described.devices = devices;
    Ok(())
}

/// Identities by position, and what is at each.
fn arrange(mut known: Vec<String>, mut found: Vec<Held>) -> (Vec<String>, Vec<Held>) {
    for held in &found {
        if known.contains(&held.identity) {
            continue;
        }
        let is_gap = |identity: &String| !found.iter().any(|other| other.identity == *identity);
        // A machine can tell of so many; then the gap that is longest there is used again.
        let gap = known.iter().position(is_gap).filter(|_| known.len() >= MAX_DEVICES);
        match gap {
            Some(gap) => known[gap].clone_from(&held.identity),
            None => known.push(held.identity.clone()),
        }
    }
    let mut all = Vec::new();
    for identity in &known {
        match found.iter().position(|held| held.identity == *identity) {
            Some(at) => all.push(found.swap_remove(at)),
            None => {
                tracing::warn!(device = identity, "a device is gone; nobody can ask for it");
                all.extend(gone(identity).ok());
            }
        }
    }
    (known, all)
}

/// What keeps the place of a device.
fn gone(identity: &str) -> Result<Held, BadName> {
    let kind = Token::new(GONE)?;
    // Its identity, for people, unless a path in it has characters that no model has.
    let model = Token::new(identity).or_else(|_| Token::new("unknown"))?;
    let (id, device) = (model.clone(), Device { kind, model });
    let identity = identity.to_owned();
    Ok(Held { device, id, nodes: Vec::new(), if_there: Vec::new(), identity })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;
    use crate::devices::granted;
    use crate::folder::scratch::Scratch;
    use crate::machine::describe;
    use cellwright_cell::device::DeviceGrant;

    fn card(id: &str) -> Held {
        let token = |text: &str| Token::new(text).unwrap();
        Held {
            device: Device { kind: token("gpu"), model: token("a100") },
            id: token(id),
            nodes: Vec::new(),
            if_there: Vec::new(),
            identity: format!("gpu:{id}"),
        }
    }

    /// An agent that starts on a machine with these cards: what it tells of them, by position.
    fn start(path: &Path, ids: &[&str]) -> (Vec<String>, Vec<Held>) {
        let text = "name = \"m7\"\ndata_dir = \"/\"\nfind_devices = false";
        let mut described = describe(&Config::parse(text).unwrap()).unwrap();
        described.devices = ids.iter().map(|id| card(id)).collect();
        settle(path, &mut described).unwrap();
        let told = described.spec.devices.iter();
        let told = told.map(|device| format!("{} {}", device.kind, device.model)).collect();
        (told, described.devices)
    }

    #[test]
    fn a_device_keeps_its_position_whatever_comes_or_goes_beside_it() {
        let scratch = Scratch::new();
        let path = scratch.path("devices");
        let here = "gpu a100".to_owned();
        assert_eq!(start(&path, &["a", "b"]).0, [here.clone(), here.clone()]);
        // One is taken out, and another is put in that the bus lists first.
        let (told, devices) = start(&path, &["0", "b"]);
        let gap = "(gone) gpu:a".to_owned();
        assert_eq!(told, [gap, here.clone(), here.clone()]);
        let grant = |device| [DeviceGrant { device, milli: 1000 }];
        let id = |device| granted(&devices, &grant(device)).map(|all| all[0].held.id.to_string());
        assert_eq!((id(1).unwrap(), id(2).unwrap()), ("b".into(), "0".into()));
        let error = id(0).unwrap_err().to_string();
        assert!(error.contains("device 0 of this machine (gpu:a), which is gone"), "{error}");
        // It comes back to its place.
        let (told, devices) = start(&path, &["0", "a", "b"]);
        assert_eq!(told, vec![here; 3]);
        let ids: Vec<&str> = devices.iter().map(|held| held.id.as_str()).collect();
        assert_eq!(ids, ["a", "b", "0"]);
        // Without the list they are numbered as they are found.
        std::fs::write(&path, "damaged").unwrap();
        assert_eq!(start(&path, &["0", "a"]).1[0].id.as_str(), "0");
    }

    #[test]
    fn gaps_are_used_again_only_when_there_is_no_room_for_more() {
        let cards = |ids: std::ops::Range<usize>| -> Vec<Held> {
            ids.map(|id| card(&id.to_string())).collect()
        };
        let (known, _) = arrange(Vec::new(), cards(0..MAX_DEVICES));
        let (known, all) = arrange(known, cards(2..MAX_DEVICES + 1));
        assert_eq!((known.len(), all.len()), (MAX_DEVICES, MAX_DEVICES));
        assert_eq!(all[0].id.as_str(), MAX_DEVICES.to_string());
        assert_eq!(all[1].device.kind.as_str(), GONE);
        assert!((2..MAX_DEVICES).all(|at| all[at].id.as_str() == at.to_string()));
    }
}
