//! Admission checks of a machine's spec.

use super::review::bad;
use super::{AdmissionResult, MAX_ATTRIBUTES, Review};
use crate::constraint::{AttributeValue, MAX_PATTERN};
use crate::device::MAX_DEVICES;
use crate::field::FieldPath;
use crate::machine::MachineSpec;
use crate::reason::{Allowed, Quality};
use crate::resource::MAX_QUANTITY;

/// # Errors
/// [`crate::reason::Rejection::BadField`] for the first field that is out of range.
pub fn check_machine(spec: &MachineSpec) -> AdmissionResult {
    Review::first_error(|review| machine(spec, review))
}

fn machine(spec: &MachineSpec, review: &mut Review) {
    review.resources_within("capacity", spec.capacity, MAX_QUANTITY);
    if review.has_allowed_length("attributes", spec.attributes.len(), MAX_ATTRIBUTES) {
        for (name, value) in &spec.attributes {
            if let AttributeValue::Text(text) = value {
                let path = || FieldPath::from("attributes").field(name.as_str());
                review.bytes_at_most(path, Quality::Bytes, text.len(), MAX_PATTERN);
            }
        }
    }
    review.labels(&spec.labels);
    review.has_allowed_length("devices", spec.devices.len(), MAX_DEVICES);
    review.named_amounts("named", &spec.named, true);
    if let Some(amount) = spec.named.iter().find(|amount| amount.name.namespace.is_some()) {
        review.reject(bad("named.name", &amount.name, Allowed::NoNamespace));
    }
    if let Some(address) = spec.address.filter(|a| a.is_unspecified() || a.is_multicast()) {
        review.reject(bad("address", address, Allowed::AddressOfOneMachine));
    }
    let (first, last) = (spec.ports.first, spec.ports.last);
    review.ensure(first > 0 && first <= last, || {
        bad("ports", format!("{first}-{last}"), Allowed::PortsOfMachine)
    });
}
