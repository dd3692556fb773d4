//! Transfer statistics: which source served how much, kept for every package that arrives, and
//! summed since the start, so that an operator sees whether machines help each other or the masters
//! serve it all.
//!
//! Rejected: reports of this to the masters with every poll. It is requested once in a while, and
//! then of one machine, which has it.

use super::source::{Source, SourceError};
use cellwright_api::types::PackageSource;
use std::time::Duration;

/// How a package was fetched.
#[derive(Clone, Debug)]
pub(super) struct Arrival {
    pub(super) from: Vec<PackageSource>,
    pub(super) took: Duration,
}

/// Bytes received since the start, whether they were used or not.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Totals {
    pub(super) masters: u64,
    pub(super) machines: u64,
}

impl Totals {
    pub(super) fn of(from: &[PackageSource]) -> Totals {
        let sum = |of_masters: bool| -> u64 {
            from.iter().filter(|one| one.is_master == of_masters).map(|one| one.bytes).sum()
        };
        Totals { masters: sum(true), machines: sum(false) }
    }

    pub(super) fn add(&mut self, more: Totals) {
        self.masters += more.masters;
        self.machines += more.machines;
    }
}

/// The contribution of one source to an arrival; `None` for one that served nothing at all.
pub(super) fn contribution(
    source: &dyn Source,
    bytes: u64,
    failure: Option<&SourceError>,
) -> Option<PackageSource> {
    let is_wrong = failure == Some(&SourceError::Wrong);
    let name = source.machine().unwrap_or_else(|| source.name()).to_owned();
    (bytes > 0 || is_wrong).then(|| PackageSource {
        name,
        is_master: source.is_trusted(),
        bytes,
        is_wrong,
    })
}
