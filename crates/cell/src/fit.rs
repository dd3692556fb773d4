//! The feasibility check, the only definition of "fits" (B30): whether a task can be placed on a
//! machine, or into an alloc on it, in the present state. `apply` rechecks every placement with it;
//! the scheduler's dense arrays are tested against it.
//!
//! The rule for room (B40): latency-sensitive prod is counted by limits, so that it never depends
//! on reclaimed resources; everything together is counted by logged reservations. An alloc is to
//! its inner tasks what a machine is to the rest.

use crate::constraint::Constraint;
use crate::device::{Device, DeviceGrant, DeviceRequest};
use crate::id::{MachineId, TaskId};
use crate::isolation::{HostVolume, Volume};
use crate::load::MachineLoad;
use crate::machine::{Machine, MachineStatus};
use crate::named::UNBOUNDED;
use crate::reason::InfeasibleReason;
use crate::resource::Resources;
use crate::spec::{Domain, JobKind, JobSpec};
use crate::state::State;
use crate::task::Task;

/// A task that is to be placed.
#[derive(Clone, Copy, Debug)]
pub struct Candidate<'a> {
    pub task: &'a Task,
    pub spec: &'a JobSpec,
}

impl<'a> Candidate<'a> {
    /// The task as it would be placed: with the version that new placements use.
    #[must_use]
    pub fn of(state: &'a State, task: TaskId) -> Option<Candidate<'a>> {
        let task = state.tasks().get(task)?;
        let spec = state.jobs().get(task.job)?.spec();
        Some(Candidate { task, spec })
    }

    #[must_use]
    pub fn limits(&self) -> Resources {
        self.task.counted_limits(self.spec.limits_of(self.task.index))
    }
}

/// The first reason, in precedence order, why the candidate does not fit on `machine` (in `alloc`,
/// for jobs inside an alloc set). `None`: it fits.
#[must_use]
pub fn infeasible_reason(
    state: &State,
    candidate: &Candidate<'_>,
    machine: MachineId,
    alloc: Option<TaskId>,
) -> Option<InfeasibleReason> {
    let Some(row) = state.machines().get(machine) else {
        return Some(InfeasibleReason::MachineDown);
    };
    let Some(load) = state.machine_load(machine) else {
        return Some(InfeasibleReason::MachineDown);
    };
    None.or_else(|| other_machine(state, candidate, machine))
        .or_else(|| status(row))
        .or_else(|| constraints(candidate.spec, row))
        .or_else(|| missing_host_volume(candidate.spec, row).map(InfeasibleReason::Volume))
        .or_else(|| crashed_here(state, candidate.task, machine))
        .or_else(|| alloc_member(state, candidate, machine, alloc))
        .or_else(|| spread(state, candidate, machine, row))
        .or_else(|| static_ports(candidate.spec, load))
        .or_else(|| dynamic_ports(candidate.spec, row, load))
        .or_else(|| choose_devices(&row.spec.devices, load, &candidate.spec.task.devices).err())
        .or_else(|| named(state, candidate.spec, machine, load))
        .or_else(|| at_task_limit(state, load))
        .or_else(|| resource_reason(state, candidate, row, load, alloc))
        .or_else(|| under_pressure(candidate.spec, row))
}

/// Each task of a daemon has its own machine; none is known of a spec that belongs to no job.
fn other_machine(
    state: &State,
    candidate: &Candidate<'_>,
    machine: MachineId,
) -> Option<InfeasibleReason> {
    let job = state.jobs().get(candidate.task.job)?;
    let own = job.is_daemon().then(|| job.machine_for(candidate.task.index))?;
    (own != Some(machine)).then_some(InfeasibleReason::OtherMachine)
}

/// A draining machine takes no new tasks, not into its allocs either: a task that went back into
/// one could hold up the drain for ever.
fn status(row: &Machine) -> Option<InfeasibleReason> {
    if row.status != MachineStatus::Up {
        return Some(InfeasibleReason::MachineDown);
    }
    row.draining.then_some(InfeasibleReason::MachineDraining)
}

/// Room that production does not reserve is not available while the machine cannot serve
/// production.
fn under_pressure(spec: &JobSpec, row: &Machine) -> Option<InfeasibleReason> {
    (row.accepts_only_prod() && !spec.priority.is_prod())
        .then_some(InfeasibleReason::ResourcePressure)
}

fn constraints(spec: &JobSpec, row: &Machine) -> Option<InfeasibleReason> {
    let fails = |c: &Constraint| c.is_hard() && !c.holds_on(&row.spec);
    let position = spec.constraints.iter().position(fails)? as u32;
    Some(InfeasibleReason::Constraint { position })
}

/// The first volume of the job that the machine does not offer.
pub(crate) fn missing_host_volume(spec: &JobSpec, row: &Machine) -> Option<HostVolume> {
    let mut host_volumes = spec.task.isolation.volumes.iter().map(Volume::host_volume);
    host_volumes.find(|volume| !volume.is_granted(&row.spec.attributes))
}

fn crashed_here(state: &State, task: &Task, machine: MachineId) -> Option<InfeasibleReason> {
    task.avoids(machine, state.now()).then_some(InfeasibleReason::CrashedHere)
}

fn alloc_member(
    state: &State,
    candidate: &Candidate<'_>,
    machine: MachineId,
    alloc: Option<TaskId>,
) -> Option<InfeasibleReason> {
    match (&candidate.spec.alloc_set, alloc) {
        (None, None) => None,
        (Some(set), Some(alloc)) => {
            let Some(row) = state.tasks().get(alloc) else {
                return Some(InfeasibleReason::NoAllocHere);
            };
            // The set's name may have passed to a job of tasks.
            let is_alloc = state.spec_of(row).is_some_and(|spec| spec.kind == JobKind::AllocSet);
            let member = is_alloc
                && state.job_named(set) == Some(row.job)
                && row.machine() == Some(machine)
                && row.state.holds_resources()
                && candidate.spec.may_enter(state, candidate.task.index, alloc);
            (!member).then_some(InfeasibleReason::NoAllocHere)
        }
        _ => Some(InfeasibleReason::NoAllocHere),
    }
}

fn spread(
    state: &State,
    candidate: &Candidate<'_>,
    machine: MachineId,
    row: &Machine,
) -> Option<InfeasibleReason> {
    let load = state.job_load(candidate.task.job)?;
    candidate.spec.spread.iter().find_map(|s| {
        let domain_known = match s.domain {
            Domain::Machine | Domain::Cell => true,
            Domain::Rack => row.spec.rack.is_some(),
            Domain::Power => row.spec.power.is_some(),
        };
        let full = domain_known && load.in_domain(s.domain, machine, row) >= s.limit;
        full.then_some(InfeasibleReason::Spread { domain: s.domain, limit: s.limit })
    })
}

fn static_ports(spec: &JobSpec, load: &MachineLoad) -> Option<InfeasibleReason> {
    spec.task.static_ports.iter().find_map(|port| {
        let holder = load.port_holder(*port)?;
        Some(InfeasibleReason::StaticPort { port: *port, holder: Some(holder) })
    })
}

fn dynamic_ports(spec: &JobSpec, row: &Machine, load: &MachineLoad) -> Option<InfeasibleReason> {
    let requested = u32::from(spec.task.ports);
    if requested == 0 {
        return None;
    }
    let range = row.spec.ports;
    let own = spec.task.static_ports.iter().filter(|p| range.contains(**p)).count();
    let used = load.ports.iter().filter(|(p, _)| range.contains(*p)).count();
    let available = range.count().saturating_sub((own + used) as u32);
    (requested > available).then_some(InfeasibleReason::DynamicPorts { requested, available })
}

/// Static ports, then the lowest free ones of the machine's range.
#[must_use]
pub fn choose_ports(spec: &JobSpec, row: &Machine, load: &MachineLoad) -> Vec<u16> {
    let mut ports = spec.task.static_ports.clone();
    let wanted = ports.len() + usize::from(spec.task.ports);
    let range = row.spec.ports;
    let mut free = (range.first..=range.last).filter(|p| load.port_holder(*p).is_none());
    while ports.len() < wanted {
        match free.next() {
            Some(port) if !spec.task.static_ports.contains(&port) => ports.push(port),
            Some(_) => {}
            None => break,
        }
    }
    ports
}

/// Whether `ports` satisfy the spec and are free on the machine.
#[must_use]
pub fn ports_granted(spec: &JobSpec, row: &Machine, load: &MachineLoad, ports: &[u16]) -> bool {
    let fixed = spec.task.static_ports.len();
    let wanted = fixed + usize::from(spec.task.ports);
    let distinct = (1..ports.len()).all(|i| !ports[..i].contains(&ports[i]));
    ports.len() == wanted
        && distinct
        && ports[..fixed] == spec.task.static_ports[..]
        && ports[fixed..].iter().all(|p| row.spec.ports.contains(*p))
        && ports.iter().all(|p| load.port_holder(*p).is_none())
}

/// Chooses devices for all requests: for each, the fullest ones that still have the shares, so that
/// whole devices stay whole. If that leaves a later request unsatisfied, other combinations are
/// searched.
///
/// # Errors
/// The first request that cannot be met when each takes the fullest devices.
pub fn choose_devices(
    devices: &[Device],
    load: &MachineLoad,
    requests: &[DeviceRequest],
) -> Result<Vec<DeviceGrant>, InfeasibleReason> {
    if requests.is_empty() {
        return Ok(Vec::new());
    }
    let free: Vec<u16> = (0..devices.len()).map(|i| load.device_free(i)).collect();
    let greedy = choose_greedily(devices, free.clone(), requests);
    match greedy {
        Err(infeasible) if requests.len() > 1 => {
            DeviceSearch::run(devices, free, requests).ok_or(infeasible)
        }
        decided => decided,
    }
}

fn choose_greedily(
    devices: &[Device],
    mut free: Vec<u16>,
    requests: &[DeviceRequest],
) -> Result<Vec<DeviceGrant>, InfeasibleReason> {
    let mut grants = Vec::new();
    for request in requests {
        let mut fitting: Vec<usize> = (0..devices.len())
            .filter(|i| request.accepts(&devices[*i]) && free[*i] >= request.milli)
            .collect();
        let (requested, available) = (u32::from(request.count), fitting.len() as u32);
        if requested > available {
            let kind = request.kind.clone();
            return Err(InfeasibleReason::Device {
                kind,
                requested,
                milli: request.milli,
                available,
            });
        }
        fitting.sort_by_key(|i| (free[*i], *i));
        for i in fitting.into_iter().take(requested as usize) {
            free[i] -= request.milli;
            grants.push(DeviceGrant { device: i as u8, milli: request.milli });
        }
    }
    Ok(grants)
}

/// Devices tried before a search gives up: requests that need more count as not fitting.
const DEVICE_SEARCH_STEPS: u32 = 20_000;

/// A search for devices that meet all requests at once, one device at a time with backtracking.
struct DeviceSearch<'a> {
    devices: &'a [Device],
    requests: &'a [DeviceRequest],
    /// The request that each step serves, those with the fewest choices first.
    units: Vec<usize>,
    free: Vec<u16>,
    /// Chosen devices by request, in rising order.
    chosen: Vec<Vec<usize>>,
    steps: u32,
}

impl<'a> DeviceSearch<'a> {
    fn run(
        devices: &'a [Device],
        free: Vec<u16>,
        requests: &'a [DeviceRequest],
    ) -> Option<Vec<DeviceGrant>> {
        let slack = |request: &DeviceRequest| {
            let meets = |at: &usize| request.accepts(&devices[*at]) && free[*at] >= request.milli;
            let fitting = (0..devices.len()).filter(meets).count();
            fitting.checked_sub(usize::from(request.count))
        };
        let slacks: Option<Vec<usize>> = requests.iter().map(slack).collect();
        let slacks = slacks?;
        let mut order: Vec<usize> = (0..requests.len()).collect();
        order.sort_by_key(|at| (slacks[*at], *at));
        let many = |at: usize| std::iter::repeat_n(at, usize::from(requests[at].count));
        let units = order.into_iter().flat_map(many).collect();
        let chosen = vec![Vec::new(); requests.len()];
        let steps = DEVICE_SEARCH_STEPS;
        let mut search = DeviceSearch { devices, requests, units, free, chosen, steps };
        search.search_from(0).then(|| search.grants())
    }

    /// Serves the units from `unit` on; returns false, with nothing taken, if that is impossible.
    fn search_from(&mut self, unit: usize) -> bool {
        let Some(index) = self.units.get(unit).copied() else { return true };
        let request = &self.requests[index];
        let first = self.chosen[index].last().map_or(0, |last| last + 1);
        for at in first..self.devices.len() {
            if self.steps == 0 {
                return false;
            }
            self.steps -= 1;
            let same = |other: usize| {
                self.devices[other] == self.devices[at] && self.free[other] == self.free[at]
            };
            // A device that failed for an equal unit fails for this one.
            let tried = (first..at).any(same);
            if tried || !request.accepts(&self.devices[at]) || self.free[at] < request.milli {
                continue;
            }
            self.free[at] -= request.milli;
            self.chosen[index].push(at);
            if self.search_from(unit + 1) {
                return true;
            }
            self.chosen[index].pop();
            self.free[at] += request.milli;
        }
        false
    }

    fn grants(&self) -> Vec<DeviceGrant> {
        let served = self.requests.iter().zip(&self.chosen);
        let grant = |(request, devices): (&DeviceRequest, &Vec<usize>)| {
            let milli = request.milli;
            let grant = move |at: &usize| DeviceGrant { device: *at as u8, milli };
            devices.iter().map(grant).collect::<Vec<_>>()
        };
        served.flat_map(grant).collect()
    }
}

/// Whether `grants` meet the requests in order, each with distinct devices, within what is free.
#[must_use]
pub fn devices_granted(
    devices: &[Device],
    load: &MachineLoad,
    requests: &[DeviceRequest],
    grants: &[DeviceGrant],
) -> bool {
    let wanted: usize = requests.iter().map(|r| usize::from(r.count)).sum();
    if grants.len() != wanted {
        return false;
    }
    let mut free: Vec<u16> = (0..devices.len()).map(|i| load.device_free(i)).collect();
    let mut rest = grants;
    for request in requests {
        let (mine, others) = rest.split_at(usize::from(request.count));
        rest = others;
        for (i, grant) in mine.iter().enumerate() {
            let at = usize::from(grant.device);
            let meets = devices.get(at).is_some_and(|d| request.accepts(d))
                && grant.milli == request.milli
                && free[at] >= grant.milli
                && !mine[..i].iter().any(|g| g.device == grant.device);
            if !meets {
                return false;
            }
            free[at] -= grant.milli;
        }
    }
    true
}

fn named(
    state: &State,
    spec: &JobSpec,
    machine: MachineId,
    load: &MachineLoad,
) -> Option<InfeasibleReason> {
    spec.named_demand().iter().find_map(|request| {
        let capacity = state.named_capacity(machine, &request.name);
        if capacity == UNBOUNDED {
            return None;
        }
        let available = capacity.saturating_sub(load.named_used(&request.name));
        let short = request.amount > available || capacity == 0;
        let (name, requested) = (request.name.clone(), request.amount);
        short.then_some(InfeasibleReason::Named { name, requested, available })
    })
}

/// Counts tasks, not what they ask for: a task that asks for nothing costs the agent as much.
fn at_task_limit(state: &State, load: &MachineLoad) -> Option<InfeasibleReason> {
    let most = state.bounds().machine_tasks;
    (load.holder_count() >= most).then_some(InfeasibleReason::MachineFull { most })
}

fn resource_reason(
    state: &State,
    candidate: &Candidate<'_>,
    row: &Machine,
    load: &MachineLoad,
    alloc: Option<TaskId>,
) -> Option<InfeasibleReason> {
    let (capacity, prod_limits, reserved) = held_sums(state, row, load, alloc);
    resource_reason_from_sums(candidate, capacity, prod_limits, reserved)
}

/// Capacity, held limits of what is packed by them, and held reservations of the machine, or of an
/// alloc on it.
pub(crate) fn held_sums(
    state: &State,
    row: &Machine,
    load: &MachineLoad,
    alloc: Option<TaskId>,
) -> (Resources, Resources, Resources) {
    let Some(alloc) = alloc else {
        return (row.spec.capacity, load.prod_limits, load.reserved);
    };
    let limits = |task: &Task| Some(state.spec_of(task)?.limits_of(task.index));
    let capacity = state.tasks().get(alloc).and_then(limits).unwrap_or_default();
    let held = state.alloc_load(alloc);
    let (prod, all) = held.map_or(Default::default(), |l| (l.prod_limits, l.reserved));
    (capacity, prod, all)
}

/// Checks the two sums of the module's rule, dimension by dimension.
fn resource_reason_from_sums(
    candidate: &Candidate<'_>,
    capacity: Resources,
    prod_limits: Resources,
    reserved: Resources,
) -> Option<InfeasibleReason> {
    let by_reservation = candidate.task.reservation.first_excess(capacity.minus(reserved));
    let by_limits = if candidate.spec.is_packed_by_limits() {
        candidate.limits().first_excess(capacity.minus(prod_limits))
    } else {
        None
    };
    let first = match (by_reservation, by_limits) {
        (Some(a), Some(b)) if b.dimension < a.dimension => Some(b),
        (Some(a), _) => Some(a),
        (None, b) => b,
    };
    first.map(InfeasibleReason::Resource)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::MAX_DEVICES;
    use crate::name::Token;

    /// Requests like `any`, `a100` or `2*any:500` on whole devices of these models.
    fn check(models: &[&str], texts: &[&str], want: Option<&[u8]>) {
        let token = |text: &str| Token::new(text).unwrap();
        let device = |model: &&str| Device { kind: token("gpu"), model: token(model) };
        let devices: Vec<Device> = models.iter().map(device).collect();
        let request = |text: &&str| {
            let (count, rest) = text.split_once('*').unwrap_or(("1", text));
            let (model, milli) = rest.split_once(':').unwrap_or((rest, "1000"));
            DeviceRequest {
                kind: token("gpu"),
                models: if model == "any" { vec![] } else { vec![token(model)] },
                count: count.parse().unwrap(),
                milli: milli.parse().unwrap(),
            }
        };
        let requests: Vec<DeviceRequest> = texts.iter().map(request).collect();
        let load = MachineLoad::default();
        let chosen = choose_devices(&devices, &load, &requests).ok();
        if let Some(grants) = &chosen {
            assert!(devices_granted(&devices, &load, &requests, grants), "{texts:?}: {grants:?}");
        }
        let chosen: Option<Vec<u8>> = chosen.map(|g| g.iter().map(|g| g.device).collect());
        assert_eq!(chosen.as_deref(), want, "{texts:?} on {models:?}");
    }

    #[test]
    fn a_request_without_choice_is_not_left_without_a_device() {
        check(&["a100", "t4"], &["any", "a100"], Some(&[1, 0]));
        check(&["a100", "t4"], &["a100", "any"], Some(&[0, 1]));
        check(&["a100", "t4", "t4"], &["2*any", "a100"], Some(&[1, 2, 0]));
        check(&["a100", "t4"], &["2*any:500", "any:500", "a100:500"], Some(&[0, 1, 1, 0]));
        check(&["a100", "t4"], &["any", "a100", "t4"], None);
        check(&["t4", "t4"], &["any", "a100"], None);
        check(&["t4"], &["2*any"], None);
    }

    #[test]
    fn a_search_among_many_like_devices_ends() {
        let models = ["a100"; MAX_DEVICES];
        check(&models, &["40*any:600", "25*any:600"], None);
        check(&models, &["40*any:600", "30*any:500", "64*any:400", "24*any:100"], None);
    }
}
