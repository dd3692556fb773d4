//! Whole cores that latency-sensitive tasks reserve (B38), counted like any other named resource.
//!
//! A machine has as many to give away as it has cores, less one, which stays for tasks without
//! reservations: that is what its agent keeps to
//! (`crates/agent-core/src/resource_control/cores.rs`). Agents say the number, because only they
//! know which CPUs are threads of one core; for machines of which nothing is said it follows from
//! the capacity. Counted by limits of CPU alone they would be promised twice: tasks below
//! production are placed by reservations, which say nothing of cores.
//!
//! Rejected: a dimension of [`Resources`](crate::resource::Resources), which every task would carry
//! for the few that ask; a predicate of its own, which would repeat what named resources have:
//! explanations, preemption, what would have to change.

use crate::machine::MachineSpec;
use crate::name::Token;
use crate::named::{NamedAmount, ResourceName};
use crate::spec::JobSpec;
use std::borrow::Cow;

/// What they are called in explanations and among the named resources of a machine.
pub const WHOLE_CORES: &str = "whole-cores";

/// Thousandths in a core.
const MILLI: u64 = 1000;

fn whole_cores(amount: u64) -> Option<NamedAmount> {
    let name = ResourceName { namespace: None, name: Token::new(WHOLE_CORES).ok()? };
    Some(NamedAmount { name, amount })
}

fn is_whole_cores(name: &ResourceName) -> bool {
    name.namespace.is_none() && name.name.as_str() == WHOLE_CORES
}

/// The list with one more entry at its place, unless the name is there.
fn with_entry(list: &[NamedAmount], entry: Option<NamedAmount>) -> Cow<'_, [NamedAmount]> {
    let Some(entry) = entry else { return Cow::Borrowed(list) };
    match list.binary_search_by(|held| held.name.cmp(&entry.name)) {
        Ok(_) => Cow::Borrowed(list),
        Err(at) => {
            let mut list = list.to_vec();
            list.insert(at, entry);
            Cow::Owned(list)
        }
    }
}

impl JobSpec {
    /// What each task asks for by name, whole cores included; sorted.
    #[must_use]
    pub fn named_demand(&self) -> Cow<'_, [NamedAmount]> {
        let cores = u64::from(self.task.isolation.whole_cores);
        let entry = (cores > 0).then(|| whole_cores(cores)).flatten();
        with_entry(&self.task.named, entry)
    }
}

impl MachineSpec {
    /// What it has by name, whole cores included; sorted.
    #[must_use]
    pub fn named_capacities(&self) -> Cow<'_, [NamedAmount]> {
        with_entry(&self.named, whole_cores(self.default_whole_cores()))
    }

    /// Capacity of a named resource as configured, zero when unknown. Including ephemeral
    /// resources: [`crate::state::State::named_capacity`].
    #[must_use]
    pub(crate) fn configured_capacity(&self, name: &ResourceName) -> u64 {
        let list = &self.named;
        match list.binary_search_by(|held| held.name.cmp(name)) {
            Ok(at) => list[at].amount,
            Err(_) if is_whole_cores(name) => self.default_whole_cores(),
            Err(_) => 0,
        }
    }

    /// Cores that tasks may reserve whole on it.
    #[must_use]
    pub fn whole_cores(&self) -> u64 {
        let said = self.named.iter().find(|held| is_whole_cores(&held.name));
        said.map_or_else(|| self.default_whole_cores(), |held| held.amount)
    }

    fn default_whole_cores(&self) -> u64 {
        (self.capacity.cpu / MILLI).saturating_sub(1)
    }

    /// Says how many cores there are, unless the operator has said how many may be reserved.
    pub fn set_cores(&mut self, cores: usize) {
        let entry = whole_cores((cores as u64).saturating_sub(1));
        if let Cow::Owned(list) = with_entry(&self.named, entry) {
            self.named = list;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::apply::fixture::{job, machine};

    fn texts(list: &[NamedAmount]) -> Vec<String> {
        list.iter().map(|held| format!("{} {}", held.name, held.amount)).collect()
    }

    #[test]
    fn one_core_always_stays_and_the_operator_has_the_last_word() {
        let mut spec = machine("m1", 4);
        spec.capacity.cpu = 4999;
        assert_eq!(texts(&spec.named_capacities()), ["whole-cores 3"]);
        spec.capacity.cpu = 500;
        assert_eq!(texts(&spec.named_capacities()), ["whole-cores 0"]);
        spec.set_cores(2);
        assert_eq!(texts(&spec.named_capacities()), ["whole-cores 1"]);
        spec.set_cores(8);
        assert_eq!(texts(&spec.named_capacities()), ["whole-cores 1"], "said already");
        let name = spec.named[0].name.clone();
        assert_eq!((spec.configured_capacity(&name), spec.whole_cores()), (1, 1));
    }

    #[test]
    fn a_job_asks_for_them_beside_what_else_it_names() {
        let mut spec = job("jfoo", 1, 200);
        assert!(spec.named_demand().is_empty());
        spec.task.isolation.whole_cores = 2;
        for name in ["licence", "zeta"] {
            let name = ResourceName { namespace: None, name: Token::new(name).unwrap() };
            spec.task.named.push(NamedAmount { name, amount: 1 });
        }
        assert_eq!(texts(&spec.named_demand()), ["licence 1", "whole-cores 2", "zeta 1"]);
    }
}
