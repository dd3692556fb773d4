//! Devices (X1): things a machine has one by one, such as GPUs, each divisible into 1,000 shares.
//! Shares are accounted per device: half a GPU free on each of two cards is not one free card.

use crate::name::Token;
use serde::{Deserialize, Serialize};

/// Shares in one whole device.
pub const WHOLE: u16 = 1000;
/// Most devices one machine can have.
pub const MAX_DEVICES: usize = 64;

/// One device of a machine. Its position in the machine's list is its identity there.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Device {
    /// What kind of thing: `gpu`.
    pub kind: Token,
    /// Which model: `a100`.
    pub model: Token,
}

/// What a task asks for: `count` distinct devices of `kind`, `milli` shares of each, of one of
/// `models` (any model when empty).
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct DeviceRequest {
    pub kind: Token,
    pub models: Vec<Token>,
    pub count: u8,
    pub milli: u16,
}

impl DeviceRequest {
    #[must_use]
    pub fn accepts(&self, device: &Device) -> bool {
        self.kind == device.kind && (self.models.is_empty() || self.models.contains(&device.model))
    }
}

/// Shares of one device held by a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct DeviceGrant {
    /// Position in the machine's device list.
    pub device: u8,
    pub milli: u16,
}
