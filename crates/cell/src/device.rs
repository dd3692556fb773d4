//! Devices (X1): individual units of a machine, such as GPUs, each divisible into 1,000 shares.
//! Shares are counted for each device: half a GPU free on each of two cards is not one free card.

use crate::name::Token;
use serde::{Deserialize, Serialize};

/// Shares in one whole device.
pub const WHOLE_DEVICE: u16 = 1000;
/// Most devices one machine can have.
pub const MAX_DEVICES: usize = 64;
/// The kind of a device that was removed and keeps its position in its machine's list. It cannot be
/// requested or granted.
pub const REMOVED_DEVICE: &str = "(gone)";

/// One device of a machine. Its position in the machine's list is its identity there.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Device {
    /// The kind of device: `gpu`.
    pub kind: Token,
    /// The model: `a100`.
    pub model: Token,
}

impl Device {
    /// Whether the device was removed and only its position is left.
    #[must_use]
    pub fn is_removed(&self) -> bool {
        self.kind.as_str() == REMOVED_DEVICE
    }
}

/// What a task asks for: `count` distinct devices of `kind`, `milli` shares of each, of one of
/// `models` (any model when empty).
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct DeviceRequest {
    pub kind: Token,
    /// Left out: any.
    #[serde(default)]
    pub models: Vec<Token>,
    /// Left out: 1.
    #[serde(default = "one_device")]
    #[cfg_attr(feature = "schema", schemars(range(min = 1, max = MAX_DEVICES)))]
    pub count: u8,
    /// Left out: 1000, whole devices.
    #[serde(default = "whole_device")]
    #[cfg_attr(feature = "schema", schemars(range(min = 1, max = WHOLE_DEVICE)))]
    pub milli: u16,
}

fn one_device() -> u8 {
    1
}

fn whole_device() -> u16 {
    WHOLE_DEVICE
}

impl DeviceRequest {
    #[must_use]
    pub fn accepts(&self, device: &Device) -> bool {
        self.kind == device.kind && (self.models.is_empty() || self.models.contains(&device.model))
    }
}

/// Whether every granted device exists and satisfies its request. Grants are in the order of the
/// requests, each with as many devices as its count.
#[must_use]
pub fn grants_match_requests(
    devices: &[Device],
    requests: &[DeviceRequest],
    grants: &[DeviceGrant],
) -> bool {
    let units = requests.iter().flat_map(|r| std::iter::repeat_n(r, usize::from(r.count)));
    let fits = |(grant, request): (&DeviceGrant, &DeviceRequest)| {
        devices.get(usize::from(grant.device)).is_some_and(|device| request.accepts(device))
    };
    grants.iter().zip(units).all(fits)
}

/// Shares of one device held by a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct DeviceGrant {
    /// Position in the machine's device list.
    pub device: u8,
    pub milli: u16,
}
