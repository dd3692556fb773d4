//! The newest orders this agent has taken. They are on disk before they are obeyed, so that an
//! agent that comes back knows what it held to and from when, and a replica left behind by an
//! election cannot make it go back.

use cellwright_api::internal::{AgentOrders, Epoch};
use cellwright_cell::desired::DesiredTask;
use serde::{Deserialize, Serialize};

/// A digest that no orders have: the masters answer it with all of them.
const NONE_HELD: u64 = u64::MAX;

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Orders {
    pub epoch: Epoch,
    pub digest: u64,
    /// Nothing until some were taken: an agent that has no orders kills nobody.
    pub tasks: Option<Vec<DesiredTask>>,
}

impl Default for Orders {
    fn default() -> Orders {
        Orders { epoch: Epoch::default(), digest: NONE_HELD, tasks: None }
    }
}

/// What an answer meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Taken {
    /// Older than what is held.
    Refused,
    /// As before.
    Same,
    /// Other tasks than before: write them down, then obey.
    New,
}

impl Orders {
    pub fn take(&mut self, answer: AgentOrders) -> Taken {
        if answer.epoch < self.epoch {
            return Taken::Refused;
        }
        self.epoch = answer.epoch;
        let Some(tasks) = answer.tasks else { return Taken::Same };
        self.digest = answer.orders_digest;
        self.tasks = Some(tasks);
        Taken::New
    }

    #[must_use]
    pub fn list(&self) -> &[DesiredTask] {
        self.tasks.as_deref().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cellwright_cell::time::Span;

    fn answer(era: u64, index: u64, tasks: Option<Vec<DesiredTask>>) -> AgentOrders {
        AgentOrders {
            epoch: Epoch { era, index },
            tasks,
            orders_digest: index,
            poll: Span::seconds(5),
            heard_ago: None,
            redial: None,
            is_dismissed: false,
            incarnation: 0,
        }
    }

    #[test]
    fn only_newer_orders_are_taken() {
        let mut orders = Orders::default();
        assert_eq!(orders.take(answer(0, 0, None)), Taken::Same);
        assert_eq!((orders.tasks.as_ref(), orders.digest), (None, NONE_HELD));
        assert_eq!(orders.take(answer(2, 7, Some(Vec::new()))), Taken::New);
        assert_eq!((orders.tasks.as_ref(), orders.digest), (Some(&Vec::new()), 7));
        assert_eq!(orders.take(answer(1, 99, Some(Vec::new()))), Taken::Refused);
        assert_eq!(orders.take(answer(2, 6, None)), Taken::Refused);
        assert_eq!(orders.take(answer(2, 9, None)), Taken::Same);
        assert_eq!((orders.epoch, orders.digest), (Epoch { era: 2, index: 9 }, 7));
    }
}
