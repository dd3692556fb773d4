//! Requirements of jobs on machine attributes, evaluated against attribute profiles: both are
//! interned, each pair is evaluated once. Requirements are the job's constraints and its host
//! volumes, which machines report among their attributes.
//!
//! A single constraint depends on one attribute, so it is evaluated once per distinct value of that
//! attribute; ten thousand machines with two kernels cost two regular expressions, not ten
//! thousand. A host volume may be granted by any of its ancestor directories, so results are not
//! kept for single volumes.
//!
//! The name of a machine is not part of its profile, or every machine would have one of its own.
//! Requirements that name machines are rare; they alone are evaluated machine by machine.

use super::intern::Interner;
use cellwright_cell::constraint::{AttributeValue, Attributes, Constraint, Strength};
use cellwright_cell::isolation::{HostVolume, Volume};
use cellwright_cell::machine::MachineSpec;
use cellwright_cell::spec::JobSpec;
use std::collections::BTreeMap;

/// What a job requires of the attributes of a machine.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct MachineRequirements {
    /// In the job's order.
    pub constraints: Vec<Constraint>,
    /// In the job's order, each once; their positions come after those of the constraints.
    pub host_volumes: Vec<HostVolume>,
}

impl MachineRequirements {
    /// `None` for a job without requirements.
    pub fn of(spec: &JobSpec) -> Option<MachineRequirements> {
        let volumes = &spec.task.isolation.volumes;
        if spec.constraints.is_empty() && volumes.is_empty() {
            return None;
        }
        let mut host_volumes: Vec<HostVolume> = Vec::new();
        for host_volume in volumes.iter().map(Volume::host_volume) {
            if !host_volumes.contains(&host_volume) {
                host_volumes.push(host_volume);
            }
        }
        Some(MachineRequirements { constraints: spec.constraints.clone(), host_volumes })
    }

    fn names_machine(&self) -> bool {
        self.constraints.iter().any(Constraint::names_machine)
    }
}

/// The result of evaluating requirements against one attribute profile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RequirementsResult {
    /// Position of the first hard requirement that fails; `NONE_FAILING` when all hold.
    pub first_failing: u32,
    /// Sum of the weights of soft constraints that do not hold.
    pub missed_weight: u16,
}

pub(crate) const NONE_FAILING: u32 = u32::MAX;

#[derive(Clone, Debug, Default)]
pub(crate) struct ConstraintTable {
    requirements: Interner<MachineRequirements>,
    profiles: Interner<Attributes>,
    /// By requirements, then profile.
    results: Vec<Vec<RequirementsResult>>,
    /// By requirements, then machine slot; empty for requirements that name no machine.
    results_by_machine: Vec<Vec<RequirementsResult>>,
    /// Profile and name, by machine slot.
    machines: Vec<(u32, Option<AttributeValue>)>,
    /// Results by constraint and value of its attribute.
    memo: BTreeMap<(Constraint, Option<AttributeValue>), bool>,
}

impl ConstraintTable {
    pub fn intern_requirements(&mut self, list: &MachineRequirements) -> u32 {
        let id = self.requirements.intern(list);
        if id as usize == self.results.len() {
            let profiles = self.profiles.items().to_vec();
            let row = profiles.iter().map(|p| self.evaluate(list, p, None)).collect();
            self.results.push(row);
            self.results_by_machine.push(Vec::new());
            if list.names_machine() {
                let slots = 0..self.machines.len();
                self.results_by_machine[id as usize] =
                    slots.map(|m| self.evaluate_on(list, m)).collect();
            }
        }
        id
    }

    /// Takes the machine in slot `m` in, or what has changed of it; returns its profile.
    pub fn put_machine(&mut self, m: usize, spec: &MachineSpec) -> u32 {
        let profile = self.intern_profile(&spec.shared_attributes());
        if self.machines.len() <= m {
            self.machines.resize(m + 1, (profile, None));
        }
        self.machines[m] = (profile, Some(AttributeValue::Text(spec.name.to_string())));
        for list in 0..self.results_by_machine.len() {
            if !self.requirements.items()[list].names_machine() {
                continue;
            }
            let requirements = self.requirements.items()[list].clone();
            // Slots in between have no machine yet; they are evaluated when one comes.
            for slot in self.results_by_machine[list].len()..=m {
                let result = self.evaluate_on(&requirements, slot);
                self.results_by_machine[list].push(result);
            }
            self.results_by_machine[list][m] = self.evaluate_on(&requirements, m);
        }
        profile
    }

    fn evaluate_on(&mut self, list: &MachineRequirements, m: usize) -> RequirementsResult {
        let (profile, name) = self.machines[m].clone();
        let attributes = self.profiles.get(profile).cloned().unwrap_or_default();
        self.evaluate(list, &attributes, name.as_ref())
    }

    /// What the constraint meets on the machine in slot `m`.
    pub fn value(&self, constraint: &Constraint, m: usize) -> Option<&AttributeValue> {
        let (profile, name) = self.machines.get(m)?;
        if constraint.names_machine() {
            return name.as_ref();
        }
        self.profiles.get(*profile)?.get(&constraint.attribute)
    }

    /// Whether the requirements tell machines apart by their names.
    pub fn names_machine(&self, list: u32) -> bool {
        self.requirements.get(list).is_some_and(MachineRequirements::names_machine)
    }

    fn intern_profile(&mut self, attributes: &Attributes) -> u32 {
        let known = self.profiles.len();
        let id = self.profiles.intern(attributes);
        if id as usize == known {
            for list in 0..self.results.len() {
                let requirements = self.requirements.items()[list].clone();
                let result = self.evaluate(&requirements, attributes, None);
                self.results[list].push(result);
            }
        }
        id
    }

    /// The result on the machine in slot `m`, which has this profile.
    #[inline]
    pub fn result(&self, list: u32, profile: u32, m: usize) -> RequirementsResult {
        match self.results_by_machine[list as usize].as_slice() {
            [] => self.results[list as usize][profile as usize],
            by_machine => by_machine[m],
        }
    }

    pub fn constraints(&self, list: u32) -> &[Constraint] {
        self.requirements.get(list).map_or(&[], |requirements| &requirements.constraints)
    }

    pub fn host_volumes(&self, list: u32) -> &[HostVolume] {
        self.requirements.get(list).map_or(&[], |requirements| &requirements.host_volumes)
    }

    pub fn attributes(&self, profile: u32) -> Option<&Attributes> {
        self.profiles.get(profile)
    }

    fn evaluate(
        &mut self,
        requirements: &MachineRequirements,
        attributes: &Attributes,
        name: Option<&AttributeValue>,
    ) -> RequirementsResult {
        let mut result = RequirementsResult { first_failing: NONE_FAILING, missed_weight: 0 };
        for (position, constraint) in requirements.constraints.iter().enumerate() {
            let own = attributes.get(&constraint.attribute);
            let value = if constraint.names_machine() { name } else { own };
            if self.is_satisfied(constraint, value) {
                continue;
            }
            match constraint.strength {
                Strength::Hard => result.first_failing = result.first_failing.min(position as u32),
                Strength::Soft(weight) => result.missed_weight += u16::from(weight),
            }
        }
        if let Some(at) = requirements
            .host_volumes
            .iter()
            .position(|host_volume| !host_volume.is_granted(attributes))
        {
            result.first_failing =
                result.first_failing.min((requirements.constraints.len() + at) as u32);
        }
        result
    }

    fn is_satisfied(&mut self, constraint: &Constraint, value: Option<&AttributeValue>) -> bool {
        if constraint.names_machine() {
            return constraint.holds(value);
        }
        let key = (constraint.clone(), value.cloned());
        if let Some(known) = self.memo.get(&key) {
            return *known;
        }
        let holds = constraint.holds(value);
        self.memo.insert(key, holds);
        holds
    }
}
