//! What a machine must look like to join a cell.

use super::review::field_error;
use super::{AdmissionResult, MAX_ATTRIBUTES, Review};
use crate::constraint::{AttributeValue, MAX_PATTERN};
use crate::device::MAX_DEVICES;
use crate::field::FieldPath;
use crate::machine::MachineSpec;
use crate::resource::MAX_QUANTITY;

/// # Errors
/// [`crate::reason::Refusal::BadField`] for the first field that is out of range.
pub fn check_machine(spec: &MachineSpec) -> AdmissionResult {
    Review::first_error(|review| machine(spec, review))
}

fn machine(spec: &MachineSpec, review: &mut Review) {
    review.resources_within(&"capacity".into(), spec.capacity, MAX_QUANTITY);
    if review.has_allowed_length("attributes", spec.attributes.len(), MAX_ATTRIBUTES) {
        for (name, value) in &spec.attributes {
            if let AttributeValue::Text(text) = value {
                let path = || FieldPath::from("attributes").field(name.as_str());
                review.bytes_at_most(path, "bytes", text.len(), MAX_PATTERN);
            }
        }
    }
    review.labels(&spec.labels);
    review.has_allowed_length("devices", spec.devices.len(), MAX_DEVICES);
    review.named_amounts("named", &spec.named, true);
    if let Some(amount) = spec.named.iter().find(|amount| amount.name.namespace.is_some()) {
        let allowed = "names without a namespace; those with one are ephemeral";
        review.reject(field_error("named.name", &amount.name, allowed));
    }
    if let Some(address) = spec.address.filter(|a| a.is_unspecified() || a.is_multicast()) {
        review.reject(field_error("address", address, "an address of one machine"));
    }
    let (first, last) = (spec.ports.first, spec.ports.last);
    review.ensure(first > 0 && first <= last, || {
        field_error("ports", format!("{first}-{last}"), "1 to 65535, the first not above the last")
    });
}
