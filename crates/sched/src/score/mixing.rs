//! Mixing of production with other work (B31): where production has a machine to itself, all of it
//! meets a load spike at once, and nothing is there that could be throttled in its favour. So a
//! quarter of each machine's CPU is left to the other kind as long as some other machine has room;
//! when none has, machines are filled up as ever.
//!
//! Only CPU counts, because it is what a spike needs at once and what is taken back without killing
//! anybody. The term is a single step: inside three quarters, and beyond them, packing decides, so
//! tasks still fill one machine after the other and large tasks still find empty ones. It is silent
//! where there is nothing to mix with: in a cell whose demand is nearly all of one kind, and for a
//! task that takes more than three quarters of the machine by itself.
//!
//! What others hold is read from the two sums that packing reads anyway, so a machine costs one
//! subtraction and one comparison more: production is charged to the sum of limits, and what the
//! sum of reservations exceeds it by is held by the rest. That understates the rest where
//! production's unused room is lent out, and there the machine is mixed already.
//!
//! Rejected: a share in sixteenths, which would order all machines before packing sees any of them
//! and strand what packing is there to save; a part of the packing term, which would have to be
//! weighed against room lost.

use crate::class::{Class, SUMS};
use crate::cluster_snapshot::ClusterSnapshot;
use cellwright_cell::resource::{DIMENSIONS, Dimension};

/// What one kind may take of a machine's CPU, in quarters.
const QUARTERS: i64 = 3;

const LIMITS: usize = Dimension::Cpu as usize;
const RESERVATIONS: usize = DIMENSIONS + Dimension::Cpu as usize;

/// Whether a task of `class` would leave less than a quarter of the CPU of machine slot `m` to
/// tasks of the other kind.
#[inline]
pub(crate) fn is_one_sided(snapshot: &ClusterSnapshot, class: &Class, m: usize) -> bool {
    with_room(snapshot, class, m, &snapshot.machines.room[m].free)
}

/// The same with other room than the machine has now: after preemption.
#[inline]
pub(crate) fn with_room(
    snapshot: &ClusterSnapshot,
    class: &Class,
    m: usize,
    free: &[i64; SUMS],
) -> bool {
    // The room of an alloc was taken from the machine when the alloc was placed.
    if !snapshot.demand_mix.has_both_kinds || class.request.alloc_set.is_some() {
        return false;
    }
    let capacity = snapshot.machines.shape_of(m).capacity[LIMITS] as i64;
    let (held, takes) = if class.request.by_limits {
        (capacity - free[LIMITS], class.charge[LIMITS])
    } else {
        ((free[LIMITS] - free[RESERVATIONS]).max(0), class.charge[RESERVATIONS])
    };
    let most = capacity / 4 * QUARTERS;
    takes <= most && held + takes > most
}
