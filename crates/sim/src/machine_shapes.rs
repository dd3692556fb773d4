//! The shapes of virtual machines: capacity, failure domains, attributes and devices, the same for
//! all or assigned in turn, so that constraints and spreads have something to choose from.

use cellwright_cell::constraint::AttributeValue;
use cellwright_cell::device::Device;
use cellwright_cell::machine::MachineSpec;
use cellwright_cell::name::{InvalidName, Name, Token};
use cellwright_cell::resource::Resources;

#[derive(Clone, Debug, Default)]
pub struct MachineShape {
    pub capacity: Resources,
    /// Machines are spread over so many racks; 0: none is named.
    pub racks: u32,
    /// Racks are spread over so many power domains; 0: none is named.
    pub power_domains: u32,
    /// Each attribute with the values that machines get in turn.
    pub attributes: Vec<(Token, Vec<AttributeValue>)>,
    /// Each label likewise.
    pub labels: Vec<(Token, Vec<String>)>,
    /// The devices of every machine.
    pub devices: Vec<Device>,
}

impl MachineShape {
    /// The machine with this number.
    ///
    /// # Errors
    /// When the name is not valid.
    pub fn spec(&self, prefix: &str, number: u32) -> Result<MachineSpec, InvalidName> {
        let rack = number.checked_rem(self.racks);
        // Without racks, each machine has a power feed of its own.
        let power = rack.unwrap_or(number).checked_rem(self.power_domains);
        let domain = |kind: &str, at: Option<u32>| {
            at.map(|at| Token::new(&format!("{kind}-{at}"))).transpose()
        };
        let turn = |values: &Vec<AttributeValue>| {
            values.get(number as usize % values.len().max(1)).cloned()
        };
        let attributes = self.attributes.iter();
        Ok(MachineSpec {
            name: Name::new(&format!("{prefix}-{number}"))?,
            capacity: self.capacity,
            attributes: attributes
                .filter_map(|(name, values)| Some((name.clone(), turn(values)?)))
                .collect(),
            labels: self
                .labels
                .iter()
                .filter_map(|(name, values)| {
                    Some((name.clone(), values.get(number as usize % values.len().max(1))?.clone()))
                })
                .collect(),
            rack: domain("rack", rack)?,
            power: domain("power", power)?,
            devices: self.devices.clone(),
            named: Vec::new(),
            ports: Default::default(),
            address: None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn racks_power_and_attributes_are_dealt_out_in_turn() {
        let values = ["x86", "arm"].map(|text| AttributeValue::Text(text.into())).to_vec();
        let shape = MachineShape {
            racks: 4,
            power_domains: 2,
            attributes: vec![(Token::new("arch").unwrap(), values)],
            ..MachineShape::default()
        };
        let render = |shape: &MachineShape, number| {
            let spec = shape.spec("m", number).unwrap();
            let text = |token: Option<Token>| token.map_or("none".into(), |t| t.to_string());
            let attributes = format!("{:?}", spec.attributes.values().collect::<Vec<_>>());
            (text(spec.rack), text(spec.power), attributes)
        };
        let is = |a: &str, b: &str, c: &str| (a.to_owned(), b.to_owned(), c.to_owned());
        assert_eq!(render(&shape, 1), is("rack-1", "power-1", "[Text(\"arm\")]"));
        assert_eq!(render(&shape, 6), is("rack-2", "power-0", "[Text(\"x86\")]"));
        assert_eq!(render(&MachineShape::default(), 6), is("none", "none", "[]"));
        assert!(shape.spec("no name", 0).is_err());
    }
}
