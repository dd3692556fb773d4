//! Requirements of jobs on machine attributes, evaluated against attribute profiles: both are
//! interned, each pair is evaluated once. Requirements are the job's constraints and its host
//! volumes, which machines report among their attributes.
//!
//! A single constraint depends on one attribute, so it is evaluated once per distinct value of that
//! attribute; ten thousand machines with two kernels cost two regular expressions, not ten
//! thousand. A host volume may be granted by any of its ancestor directories, so results are not
//! kept for single volumes.

use super::intern::Interner;
use cellwright_cell::constraint::{AttributeValue, Attributes, Constraint, Strength};
use cellwright_cell::isolation::{HostVolume, Volume};
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
    /// Results by constraint and value of its attribute.
    memo: BTreeMap<(Constraint, Option<AttributeValue>), bool>,
}

impl ConstraintTable {
    pub fn intern_requirements(&mut self, list: &MachineRequirements) -> u32 {
        let id = self.requirements.intern(list);
        if id as usize == self.results.len() {
            let profiles = self.profiles.items().to_vec();
            let row = profiles.iter().map(|p| self.evaluate(list, p)).collect();
            self.results.push(row);
        }
        id
    }

    pub fn intern_profile(&mut self, attributes: &Attributes) -> u32 {
        let known = self.profiles.len();
        let id = self.profiles.intern(attributes);
        if id as usize == known {
            for list in 0..self.results.len() {
                let requirements = self.requirements.items()[list].clone();
                let result = self.evaluate(&requirements, attributes);
                self.results[list].push(result);
            }
        }
        id
    }

    #[inline]
    pub fn result(&self, list: u32, profile: u32) -> RequirementsResult {
        self.results[list as usize][profile as usize]
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
    ) -> RequirementsResult {
        let mut result = RequirementsResult { first_failing: NONE_FAILING, missed_weight: 0 };
        for (position, constraint) in requirements.constraints.iter().enumerate() {
            if self.is_satisfied(constraint, attributes) {
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

    fn is_satisfied(&mut self, constraint: &Constraint, attributes: &Attributes) -> bool {
        let value = attributes.get(&constraint.attribute).cloned();
        let key = (constraint.clone(), value);
        if let Some(known) = self.memo.get(&key) {
            return *known;
        }
        let holds = constraint.holds(attributes);
        self.memo.insert(key, holds);
        holds
    }
}
