//! Holds: the resources of a task on machines, as a short list, with the machine where it runs
//! first.
//!
//! A task runs on one machine. While a move of it is prepared it may hold room on another machine
//! as well, a reservation on the target: counted there like any task, so that nobody else gets it,
//! but nothing of the task runs there. The role of a hold follows from its position in the list, so
//! a task with two running holds cannot be represented; see
//! `docs/decisions/0028-a-task-holds-a-list-of-places.md`.

use crate::bounds::MAX_HOLDS;
use crate::device::DeviceGrant;
use crate::id::{MachineId, TaskId};
use crate::task::Grant;
use serde::de::Error;
use serde::ser::SerializeSeq;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::sync::Arc;

/// Room of one task on one machine. The amount is not stored here: each hold is charged the task's
/// limits and its logged reservation, so that one estimate applies to all of them.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Hold {
    pub machine: MachineId,
    /// The alloc it is in. Invariant: `Some` exactly when the task's job has an alloc set.
    pub alloc: Option<TaskId>,
    pub grant: Option<Arc<Grant>>,
}

impl Hold {
    #[must_use]
    pub fn ports(&self) -> &[u16] {
        self.grant.as_ref().map_or(&[], |grant| &grant.ports)
    }

    #[must_use]
    pub fn devices(&self) -> &[DeviceGrant] {
        self.grant.as_ref().map_or(&[], |grant| &grant.devices)
    }
}

/// The role of a hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum HoldRole {
    /// The task runs there, is about to, or is stopping.
    Primary,
    /// Room is reserved there and nothing runs: a reservation on the target of a move.
    Reserved,
}

/// At most [`MAX_HOLDS`] holds on different machines, the primary one first. Encoded as a list. The
/// second is behind a pointer: nearly no task has one, and rows are many.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Holds {
    primary: Option<Hold>,
    /// Invariant: `None` without a primary.
    reserved: Option<Box<Hold>>,
}

impl Holds {
    /// A single hold, where the task runs.
    #[must_use]
    pub fn primary_only(primary: Hold) -> Holds {
        Holds { primary: Some(primary), reserved: None }
    }

    #[must_use]
    pub fn primary(&self) -> Option<&Hold> {
        self.primary.as_ref()
    }

    pub(crate) fn primary_mut(&mut self) -> Option<&mut Hold> {
        self.primary.as_mut()
    }

    /// The reservation on another machine.
    #[must_use]
    pub fn reserved(&self) -> Option<&Hold> {
        self.reserved.as_deref()
    }

    /// All holds with their roles, the primary one first.
    pub fn iter(&self) -> impl Iterator<Item = (HoldRole, &Hold)> {
        let primary = self.primary.iter().map(|hold| (HoldRole::Primary, hold));
        primary.chain(self.reserved.as_deref().map(|hold| (HoldRole::Reserved, hold)))
    }

    /// The hold on a machine, if there is one.
    #[must_use]
    pub fn on(&self, machine: MachineId) -> Option<(HoldRole, &Hold)> {
        self.iter().find(|(_, hold)| hold.machine == machine)
    }

    #[must_use]
    pub fn len(&self) -> usize {
        usize::from(self.primary.is_some()) + usize::from(self.reserved.is_some())
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.primary.is_none()
    }

    /// Adds a reservation beside the primary hold. Does nothing without a primary hold.
    pub(crate) fn reserve(&mut self, hold: Hold) {
        if self.primary.is_some() {
            self.reserved = Some(Box::new(hold));
        }
    }

    /// Removes the reservation and returns the machine it was on.
    pub(crate) fn release_reserved(&mut self) -> Option<MachineId> {
        self.reserved.take().map(|hold| hold.machine)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0} holds; allowed: at most {MAX_HOLDS}")]
pub struct TooManyHolds(pub usize);

impl TryFrom<Vec<Hold>> for Holds {
    type Error = TooManyHolds;

    fn try_from(list: Vec<Hold>) -> Result<Holds, TooManyHolds> {
        if list.len() > MAX_HOLDS {
            return Err(TooManyHolds(list.len()));
        }
        let mut list = list.into_iter();
        Ok(Holds { primary: list.next(), reserved: list.next().map(Box::new) })
    }
}

impl Serialize for Holds {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut list = serializer.serialize_seq(Some(self.len()))?;
        self.iter().try_for_each(|(_, hold)| list.serialize_element(hold))?;
        list.end()
    }
}

impl<'de> Deserialize<'de> for Holds {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Holds, D::Error> {
        Holds::try_from(Vec::deserialize(deserializer)?).map_err(D::Error::custom)
    }
}

#[cfg(feature = "schema")]
impl schemars::JsonSchema for Holds {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Holds".into()
    }

    fn json_schema(generator: &mut schemars::SchemaGenerator) -> schemars::Schema {
        let items = generator.subschema_for::<Hold>();
        schemars::json_schema!({ "type": "array", "items": items, "maxItems": MAX_HOLDS })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hold(machine: u32) -> Hold {
        Hold { machine: MachineId(machine), alloc: None, grant: None }
    }

    #[test]
    fn holds_are_written_as_a_list_and_no_longer_one_is_read() {
        let mut holds = Holds::default();
        assert_eq!(serde_json::to_string(&holds).unwrap(), "[]");
        holds.reserve(hold(7));
        assert!(holds.is_empty(), "a reservation is beside a primary hold");
        holds = Holds::primary_only(hold(1));
        holds.reserve(hold(2));
        let text = serde_json::to_string(&holds).unwrap();
        assert_eq!(serde_json::from_str::<Holds>(&text).unwrap(), holds);
        let bytes = postcard::to_stdvec(&holds).unwrap();
        assert_eq!(postcard::from_bytes::<Holds>(&bytes).unwrap(), holds);
        let three = serde_json::to_string(&[hold(1), hold(2), hold(3)]).unwrap();
        let why = serde_json::from_str::<Holds>(&three).unwrap_err().to_string();
        assert!(why.starts_with("3 holds; allowed: at most 2"), "{why}");
    }

    #[test]
    fn the_first_is_the_primary_one() {
        let mut holds = Holds::primary_only(hold(1));
        holds.reserve(hold(2));
        let roles: Vec<(HoldRole, u32)> = holds.iter().map(|(r, h)| (r, h.machine.0)).collect();
        assert_eq!(roles, [(HoldRole::Primary, 1), (HoldRole::Reserved, 2)]);
        assert_eq!(holds.on(MachineId(2)).map(|(role, _)| role), Some(HoldRole::Reserved));
        assert_eq!(holds.on(MachineId(3)), None);
        assert_eq!(holds.release_reserved(), Some(MachineId(2)));
        assert_eq!((holds.len(), holds.release_reserved()), (1, None));
    }
}
