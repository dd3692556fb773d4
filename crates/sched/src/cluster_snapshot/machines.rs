//! Machines as structure of arrays, by machine slot. A slot without a machine is `Gone` and fails
//! the first predicate.

use super::intern::Interner;
use super::{ClusterSnapshot, MachineInfo};
use crate::class::SUMS;
use cellwright_cell::device::{Device, WHOLE_DEVICE};
use cellwright_cell::id::{MachineId, TaskId};
use cellwright_cell::machine::PortRange;
use cellwright_cell::name::Token;
use cellwright_cell::named::ResourceName;
use cellwright_cell::resource::{DIMENSIONS, Dimension};

/// Free amounts of every sum: by limits, then by reservations. Negative where over-committed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(align(64))]
pub(crate) struct Room {
    pub free: [i64; SUMS],
}

impl Room {
    pub fn of(capacity: [u64; DIMENSIONS]) -> Room {
        Room { free: std::array::from_fn(|i| capacity[i % DIMENSIONS] as i64) }
    }

    /// Whether every sum has room for `need`; all sums are compared, so that nothing branches.
    #[inline]
    pub fn fits(&self, need: &[i64; SUMS]) -> bool {
        self.free.iter().zip(need).fold(true, |fits, (free, need)| fits & (free >= need))
    }

    #[inline]
    pub fn take(&mut self, amounts: &[i64; SUMS]) {
        self.free.iter_mut().zip(amounts).for_each(|(free, amount)| *free -= amount);
    }

    #[inline]
    pub fn give(&mut self, amounts: &[i64; SUMS]) {
        self.free.iter_mut().zip(amounts).for_each(|(free, amount)| *free += amount);
    }
}

/// Whether anything may be placed there, in the order of the predicates.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum SchedulableStatus {
    Gone,
    Down,
    Draining,
    /// Accepts production tasks only.
    UnderPressure,
    Ready,
}

/// Capacities, interned: a cell has a handful of machine types.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct MachineShape {
    pub capacity: [u64; DIMENSIONS],
    /// 2^62 / capacity: turns an amount into a fraction by one multiplication.
    pub inverse: [u64; DIMENSIONS],
}

/// Fractions have this many bits.
pub(crate) const FRACTION_BITS: u32 = 20;

impl MachineShape {
    pub fn new(capacity: [u64; DIMENSIONS]) -> MachineShape {
        let inverse = capacity.map(|c| (1u64 << 62).checked_div(c).unwrap_or(0));
        MachineShape { capacity, inverse }
    }

    /// `amount` as a fraction of the capacity in 2^-20; an amount below zero counts as none.
    #[inline]
    pub fn fraction(&self, dimension: usize, amount: i64) -> u32 {
        let amount = amount.max(0) as u64;
        (amount.wrapping_mul(self.inverse[dimension]) >> (62 - FRACTION_BITS)) as u32
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DeviceSlot {
    pub kind: u32,
    /// Milli-shares in use; more than a whole one after an involuntary change.
    pub used: u16,
}

impl DeviceSlot {
    #[inline]
    pub fn free(self) -> u16 {
        WHOLE_DEVICE.saturating_sub(self.used)
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Ports {
    pub range: PortRange,
    /// In use and by which task, sorted.
    pub used: Vec<(u16, TaskId)>,
    /// How many of `used` lie in the range.
    pub used_in_range: u32,
}

/// Capacity and usage of a named resource on one machine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct NamedResourceUsage {
    pub capacity: u64,
    pub used: u64,
}

/// Position of disk space among the sums by reservation.
pub(crate) const RESERVED_DISK: usize = DIMENSIONS + Dimension::Disk as usize;

/// No rack or power domain known.
pub(crate) const NO_DOMAIN: u32 = u32::MAX;

#[derive(Clone, Debug, Default)]
pub(crate) struct Machines {
    pub room: Vec<Room>,
    pub status: Vec<SchedulableStatus>,
    /// Whether it is under pressure, whatever its status.
    pub under_pressure: Vec<bool>,
    pub shape: Vec<u32>,
    pub profile: Vec<u32>,
    pub rack: Vec<u32>,
    pub power: Vec<u32>,
    pub retained_disk: Vec<u64>,
    pub ports: Vec<Ports>,
    pub devices: Vec<Vec<DeviceSlot>>,
    /// By interned name, sorted; names with neither capacity nor usage are absent.
    pub named: Vec<Vec<(u32, NamedResourceUsage)>>,
    /// Interned packages, sorted.
    pub packages: Vec<Vec<u32>>,
    pub holders: Vec<Vec<TaskId>>,
    /// Number of tasks that hold something there, those inside allocs included.
    pub task_counts: Vec<u32>,
    /// Room if all tasks of a band and below were gone, for the three bands that can be preempted:
    /// a bound that rules out most machines at the cost of one cache line.
    pub room_without_band: [Vec<Room>; BANDS_BELOW_TOP],
    /// Lowest priority of a holder; `NO_HOLDER` when there is none.
    pub lowest_priority: Vec<u16>,
    pub shapes: Vec<MachineShape>,
    pub shape_ids: Interner<[u64; DIMENSIONS]>,
    pub domains: Interner<Token>,
    pub device_kinds: Interner<Device>,
    pub count: usize,
}

pub(crate) const NO_HOLDER: u16 = u16::MAX;

/// Bands that can be preempted.
pub(crate) const BANDS_BELOW_TOP: usize = 3;

impl Machines {
    pub fn len(&self) -> usize {
        self.room.len()
    }

    #[inline]
    pub fn exists(&self, machine: usize) -> bool {
        self.status.get(machine).is_some_and(|s| *s != SchedulableStatus::Gone)
    }

    #[inline]
    pub fn shape_of(&self, machine: usize) -> &MachineShape {
        &self.shapes[self.shape[machine] as usize]
    }

    pub fn named_usage(&self, machine: usize, name: u32) -> NamedResourceUsage {
        let list = &self.named[machine];
        list.binary_search_by_key(&name, |n| n.0)
            .map_or(NamedResourceUsage::default(), |at| list[at].1)
    }

    pub fn named_usage_mut(&mut self, machine: usize, name: u32) -> &mut NamedResourceUsage {
        let list = &mut self.named[machine];
        let at = match list.binary_search_by_key(&name, |n| n.0) {
            Ok(at) => at,
            Err(at) => {
                list.insert(at, (name, NamedResourceUsage::default()));
                at
            }
        };
        &mut list[at].1
    }

    fn grow(&mut self, slots: usize) {
        if slots <= self.len() {
            return;
        }
        // Slots without a machine have the shape of nothing.
        self.intern_shape([0; DIMENSIONS]);
        let no_ports =
            Ports { range: PortRange { first: 1, last: 0 }, used: Vec::new(), used_in_range: 0 };
        self.room.resize(slots, Room::default());
        self.status.resize(slots, SchedulableStatus::Gone);
        self.under_pressure.resize(slots, false);
        self.shape.resize(slots, 0);
        self.profile.resize(slots, 0);
        self.rack.resize(slots, NO_DOMAIN);
        self.power.resize(slots, NO_DOMAIN);
        self.retained_disk.resize(slots, 0);
        self.ports.resize(slots, no_ports);
        self.devices.resize(slots, Vec::new());
        self.named.resize(slots, Vec::new());
        self.packages.resize(slots, Vec::new());
        self.holders.resize(slots, Vec::new());
        self.task_counts.resize(slots, 0);
        self.room_without_band.iter_mut().for_each(|rooms| rooms.resize(slots, Room::default()));
        self.lowest_priority.resize(slots, NO_HOLDER);
    }

    fn intern_shape(&mut self, capacity: [u64; DIMENSIONS]) -> u32 {
        let id = self.shape_ids.intern(&capacity);
        if id as usize == self.shapes.len() {
            self.shapes.push(MachineShape::new(capacity));
        }
        id
    }

    fn intern_domain(&mut self, domain: &Option<Token>) -> u32 {
        domain.as_ref().map_or(NO_DOMAIN, |d| self.domains.intern(d))
    }
}

/// Writing machines.
impl ClusterSnapshot {
    /// Adds a machine or updates a changed one; tasks placed there stay charged.
    pub fn put_machine(&mut self, id: MachineId, info: &MachineInfo<'_>) {
        let m = id.slot();
        self.machines.grow(m + 1);
        let holders = self.remove_all_from_sums(m);
        if !self.machines.exists(m) {
            self.machines.count += 1;
        }
        self.machines.status[m] = match info {
            MachineInfo { up: false, .. } => SchedulableStatus::Down,
            MachineInfo { draining: true, .. } => SchedulableStatus::Draining,
            MachineInfo { under_pressure: true, .. } => SchedulableStatus::UnderPressure,
            _ => SchedulableStatus::Ready,
        };
        self.machines.under_pressure[m] = info.under_pressure;
        let spec = info.spec;
        self.machines.shape[m] = self.machines.intern_shape(spec.capacity.to_array());
        self.machines.room[m] = Room::of(spec.capacity.to_array());
        self.machines.room[m].free[RESERVED_DISK] -= info.retained_disk as i64;
        let empty = Room::of(spec.capacity.to_array());
        self.machines.room_without_band.iter_mut().for_each(|rooms| rooms[m] = empty);
        self.machines.retained_disk[m] = info.retained_disk;
        self.machines.profile[m] = self.constraints.put_machine(m, spec);
        self.machines.rack[m] = self.machines.intern_domain(&spec.rack);
        self.machines.power[m] = self.machines.intern_domain(&spec.power);
        self.machines.ports[m] = Ports { range: spec.ports, used: Vec::new(), used_in_range: 0 };
        self.machines.devices[m] = spec
            .devices
            .iter()
            .map(|d| DeviceSlot { kind: self.machines.device_kinds.intern(d), used: 0 })
            .collect();
        self.machines.named[m].clear();
        for amount in spec.named_capacities().iter().chain(info.ephemeral) {
            let name = self.resource_names.intern(&amount.name);
            self.machines.named_usage_mut(m, name).capacity = amount.amount;
        }
        let mut packages: Vec<u32> =
            info.packages.iter().map(|p| self.packages.intern(p)).collect();
        packages.sort_unstable();
        self.machines.packages[m] = packages;
        for task in holders {
            self.add_to_sums(task);
        }
        for task in self.reserved_on(id) {
            self.update_reserved_sums(task, true);
        }
        self.change_log.push(id.0);
    }

    /// What the machine has of one named resource.
    pub fn put_capacity(&mut self, id: MachineId, name: &ResourceName, capacity: u64) {
        let (m, name) = (id.slot(), self.resource_names.intern(name));
        if !self.machines.exists(m) {
            return;
        }
        let room = self.machines.named_usage_mut(m, name);
        room.capacity = capacity;
        if room.capacity == 0 && room.used == 0 {
            self.machines.named[m].retain(|(known, _)| *known != name);
        }
        self.change_log.push(id.0);
    }

    /// Removes a machine; tasks still there are removed with it.
    pub fn remove_machine(&mut self, id: MachineId) {
        let m = id.slot();
        if !self.machines.exists(m) {
            return;
        }
        for task in self.machines.holders[m].clone() {
            self.drop_task(task);
        }
        for task in self.reserved_on(id) {
            self.unreserve(task);
        }
        self.machines.status[m] = SchedulableStatus::Gone;
        self.machines.room[m] = Room::default();
        self.machines.count -= 1;
        self.change_log.push(id.0);
    }
}
