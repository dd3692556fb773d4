//! What constraints see of a machine (B4): its attributes, its labels as texts, and under the names
//! `machine`, `rack` and `power` which machine it is and what it fails with.
//!
//! There is one way to ask, so that a job need not know whether an operator wrote a property down
//! as a label or as an attribute. Where both exist under one name, the attribute is meant; the
//! three names of places cannot be taken by either as long as the place itself is known. Rejected:
//! fields of their own in constraints (`label`, `rack`), which would be as many kinds of
//! constraints with the same operators.

use crate::constraint::{AttributeValue, Attributes, Constraint};
use crate::isolation::HOST_VOLUME_PREFIX;
use crate::machine::MachineSpec;
use crate::name::Token;
use std::borrow::Cow;

/// The name of the machine.
pub const MACHINE: &str = "machine";
/// Its rack, where one is known.
pub const RACK: &str = "rack";
/// Its power domain, where one is known.
pub const POWER: &str = "power";

impl MachineSpec {
    /// What constraints see under this name.
    #[must_use]
    pub fn attribute(&self, name: &Token) -> Option<Cow<'_, AttributeValue>> {
        let place = match name.as_str() {
            MACHINE => Some(self.name.to_string()),
            RACK => self.rack.as_ref().map(ToString::to_string),
            POWER => self.power.as_ref().map(ToString::to_string),
            _ => None,
        };
        let text = |text: String| Cow::Owned(AttributeValue::Text(text));
        place
            .map(text)
            .or_else(|| self.attributes.get(name).map(Cow::Borrowed))
            .or_else(|| self.label(name).map(|label| text(label.to_owned())))
    }

    /// Labels never stand for folders: who may write a label need not be who lends folders.
    fn label(&self, name: &Token) -> Option<&str> {
        let label = self.labels.get(name)?;
        (!name.as_str().starts_with(HOST_VOLUME_PREFIX)).then_some(label)
    }

    /// Everything that constraints see, apart from the machine's name: machines that differ in
    /// nothing else are alike to all constraints that do not name one.
    #[must_use]
    pub fn shared_attributes(&self) -> Attributes {
        let places = [RACK, POWER].into_iter().filter_map(|name| Token::new(name).ok());
        let names = self.labels.keys().chain(self.attributes.keys()).cloned().chain(places);
        let names = names.filter(|name| name.as_str() != MACHINE);
        names
            .filter_map(|name| {
                let value = self.attribute(&name)?.into_owned();
                Some((name, value))
            })
            .collect()
    }
}

impl Constraint {
    /// Whether it holds on the machine.
    #[must_use]
    pub fn holds_on(&self, machine: &MachineSpec) -> bool {
        self.holds(machine.attribute(&self.attribute).as_deref())
    }

    /// Whether it tells machines apart by their names.
    #[must_use]
    pub fn names_machine(&self) -> bool {
        self.attribute.as_str() == MACHINE
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::constraint::{Operator, Strength};
    use crate::machine::PortRange;
    use crate::name::Name;
    use crate::resource::Resources;

    fn token(text: &str) -> Token {
        Token::new(text).unwrap()
    }

    fn text(text: &str) -> AttributeValue {
        AttributeValue::Text(text.to_owned())
    }

    fn machine() -> MachineSpec {
        let attributes = [("disks", AttributeValue::Integer(2)), ("zone", text("attribute"))];
        let labels = [("zone", "label"), ("team", "search"), ("volume./srv", "writable")];
        let own_name = [("machine", text("other")), ("rack", text("other"))];
        let attributes = attributes.into_iter().chain(own_name);
        MachineSpec {
            name: Name::new("m-7").unwrap(),
            capacity: Resources::ZERO,
            attributes: attributes.map(|(name, value)| (token(name), value)).collect(),
            labels: labels.map(|(name, value)| (token(name), value.to_owned())).into(),
            rack: Some(token("r1")),
            power: None,
            devices: Vec::new(),
            named: Vec::new(),
            ports: PortRange::default(),
            address: None,
        }
    }

    #[test]
    fn places_come_before_attributes_and_attributes_before_labels() {
        let machine = machine();
        let seen = |name: &str| machine.attribute(&token(name)).map(|value| value.to_string());
        let shown = ["machine", "rack", "power", "disks", "zone", "team", "volume./srv", "none"];
        let want = [Some("m-7"), Some("r1"), None, Some("2"), Some("attribute"), Some("search")];
        let want = want.into_iter().chain([None, None]).map(|value| value.map(str::to_owned));
        assert_eq!(shown.map(seen).to_vec(), want.collect::<Vec<_>>());
        let shared = machine.shared_attributes();
        let names: Vec<&str> = shared.keys().map(Token::as_str).collect();
        assert_eq!(names, ["disks", "rack", "team", "zone"]);
        assert!(
            shared.iter().all(|(name, value)| machine.attribute(name).as_deref() == Some(value))
        );
    }

    #[test]
    fn constraints_hold_on_places_and_labels() {
        let check = |attribute: &str, operator: Operator, want: bool| {
            let constraint =
                Constraint { attribute: token(attribute), operator, strength: Strength::Hard };
            assert_eq!(constraint.holds_on(&machine()), want, "{constraint}");
        };
        check("machine", Operator::In(vec![text("m-6"), text("m-7")]), true);
        check("machine", Operator::NotEqual(text("m-7")), false);
        check("rack", Operator::Equal(text("r1")), true);
        check("power", Operator::Absent, true);
        check("team", Operator::Matches("s.*".into()), true);
        check("team", Operator::NotIn(vec![text("search")]), false);
    }
}
