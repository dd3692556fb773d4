//! What jobs demand of machines' attributes, against attribute profiles: both are interned, each
//! pair is judged once. Demands are the job's constraints and the folders that it borrows, which
//! machines tell among their attributes.
//!
//! A single constraint depends on one attribute, so it is evaluated once per distinct value of that
//! attribute; ten thousand machines with two kernels cost two regular expressions, not ten
//! thousand. A folder may be lent by any of those around it, so nothing is kept for single ones.

use super::intern::Interner;
use cellwright_cell::constraint::{AttributeValue, Attributes, Constraint, Strength};
use cellwright_cell::isolation::{Loan, Volume};
use cellwright_cell::spec::JobSpec;
use std::collections::BTreeMap;

/// What a job demands of the attributes of a machine.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Demands {
    /// In the job's order.
    pub constraints: Vec<Constraint>,
    /// In the job's order, each once; their positions come after those of the constraints.
    pub loans: Vec<Loan>,
}

impl Demands {
    /// `None` for a job that demands nothing.
    pub fn of(spec: &JobSpec) -> Option<Demands> {
        let volumes = &spec.task.isolation.volumes;
        if spec.constraints.is_empty() && volumes.is_empty() {
            return None;
        }
        let mut loans: Vec<Loan> = Vec::new();
        for loan in volumes.iter().map(Volume::loan) {
            if !loans.contains(&loan) {
                loans.push(loan);
            }
        }
        Some(Demands { constraints: spec.constraints.clone(), loans })
    }
}

/// What a profile means for demands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Judgement {
    /// Position of the first hard demand that fails; `OK` when all hold.
    pub failing: u32,
    /// Sum of the weights of soft constraints that do not hold.
    pub missed: u16,
}

pub(crate) const OK: u32 = u32::MAX;

#[derive(Clone, Debug, Default)]
pub(crate) struct Constraints {
    lists: Interner<Demands>,
    profiles: Interner<Attributes>,
    /// By list, then profile.
    judged: Vec<Vec<Judgement>>,
    /// Results by constraint and value of its attribute.
    memo: BTreeMap<(Constraint, Option<AttributeValue>), bool>,
}

impl Constraints {
    pub fn list(&mut self, list: &Demands) -> u32 {
        let id = self.lists.intern(list);
        if id as usize == self.judged.len() {
            let profiles = self.profiles.items().to_vec();
            let row = profiles.iter().map(|p| self.judge(list, p)).collect();
            self.judged.push(row);
        }
        id
    }

    pub fn profile(&mut self, attributes: &Attributes) -> u32 {
        let known = self.profiles.len();
        let id = self.profiles.intern(attributes);
        if id as usize == known {
            for list in 0..self.judged.len() {
                let demands = self.lists.items()[list].clone();
                let judgement = self.judge(&demands, attributes);
                self.judged[list].push(judgement);
            }
        }
        id
    }

    #[inline]
    pub fn judgement(&self, list: u32, profile: u32) -> Judgement {
        self.judged[list as usize][profile as usize]
    }

    pub fn constraints(&self, list: u32) -> &[Constraint] {
        self.lists.get(list).map_or(&[], |demands| &demands.constraints)
    }

    pub fn loans(&self, list: u32) -> &[Loan] {
        self.lists.get(list).map_or(&[], |demands| &demands.loans)
    }

    pub fn attributes(&self, profile: u32) -> Option<&Attributes> {
        self.profiles.get(profile)
    }

    fn judge(&mut self, demands: &Demands, attributes: &Attributes) -> Judgement {
        let mut result = Judgement { failing: OK, missed: 0 };
        for (position, constraint) in demands.constraints.iter().enumerate() {
            if self.holds(constraint, attributes) {
                continue;
            }
            match constraint.strength {
                Strength::Hard => result.failing = result.failing.min(position as u32),
                Strength::Soft(weight) => result.missed += u16::from(weight),
            }
        }
        if let Some(at) = demands.loans.iter().position(|loan| !loan.is_granted(attributes)) {
            result.failing = result.failing.min((demands.constraints.len() + at) as u32);
        }
        result
    }

    fn holds(&mut self, constraint: &Constraint, attributes: &Attributes) -> bool {
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
