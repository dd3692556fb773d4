//! Constraint lists against attribute profiles: both are interned, each pair is judged once.
//!
//! A single constraint depends on one attribute, so it is evaluated once per distinct value of that
//! attribute; ten thousand machines with two kernels cost two regular expressions, not ten
//! thousand.

use super::intern::Interner;
use cellwright_cell::constraint::{AttributeValue, Attributes, Constraint, Strength};
use std::collections::BTreeMap;

/// What a profile means for a constraint list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Judgement {
    /// Position of the first hard constraint that fails; `OK` when all hold.
    pub failing: u32,
    /// Sum of the weights of soft constraints that do not hold.
    pub missed: u16,
}

pub(crate) const OK: u32 = u32::MAX;

#[derive(Clone, Debug, Default)]
pub(crate) struct Constraints {
    lists: Interner<Vec<Constraint>>,
    profiles: Interner<Attributes>,
    /// By list, then profile.
    judged: Vec<Vec<Judgement>>,
    /// Results by constraint and value of its attribute.
    memo: BTreeMap<(Constraint, Option<AttributeValue>), bool>,
}

impl Constraints {
    pub fn list(&mut self, list: &Vec<Constraint>) -> u32 {
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
                let constraints = self.lists.items()[list].clone();
                let judgement = self.judge(&constraints, attributes);
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
        self.lists.get(list).map_or(&[], |l| l)
    }

    pub fn attributes(&self, profile: u32) -> Option<&Attributes> {
        self.profiles.get(profile)
    }

    fn judge(&mut self, list: &[Constraint], attributes: &Attributes) -> Judgement {
        let mut result = Judgement { failing: OK, missed: 0 };
        for (position, constraint) in list.iter().enumerate() {
            if self.holds(constraint, attributes) {
                continue;
            }
            match constraint.strength {
                Strength::Hard => result.failing = result.failing.min(position as u32),
                Strength::Soft(weight) => result.missed += u16::from(weight),
            }
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
