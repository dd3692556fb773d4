//! The newest orders that this agent has accepted. They are on disk before they are carried out, so
//! that a restarted agent knows its orders and their version, and a deposed leader cannot make it
//! go back to older ones.

use cellwright_cell::desired::DesiredTask;
use cellwright_messages::{AgentOrders, Epoch};
use serde::{Deserialize, Serialize};

/// A digest that no orders have: the masters respond to it with all of them.
const NO_ORDERS_DIGEST: u64 = u64::MAX;

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Orders {
    pub epoch: Epoch,
    pub digest: u64,
    /// Nothing until some were accepted: an agent without orders kills no task.
    pub tasks: Option<Vec<DesiredTask>>,
}

impl Default for Orders {
    fn default() -> Orders {
        Orders { epoch: Epoch::default(), digest: NO_ORDERS_DIGEST, tasks: None }
    }
}

/// What a response meant for the orders.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OrdersUpdate {
    /// Older than the current orders.
    Stale,
    /// The same tasks as before.
    Unchanged,
    /// Other tasks than before: store them, then carry them out.
    Changed,
}

impl Orders {
    pub fn update(&mut self, answer: AgentOrders) -> OrdersUpdate {
        if answer.epoch < self.epoch {
            return OrdersUpdate::Stale;
        }
        self.epoch = answer.epoch;
        let Some(tasks) = answer.tasks else { return OrdersUpdate::Unchanged };
        self.digest = answer.orders_digest;
        self.tasks = Some(tasks);
        OrdersUpdate::Changed
    }

    #[must_use]
    pub fn list(&self) -> &[DesiredTask] {
        self.tasks.as_deref().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cellwright_cell::time::{Span, Time};

    fn answer(epoch: u64, index: u64, tasks: Option<Vec<DesiredTask>>) -> AgentOrders {
        AgentOrders {
            epoch: Epoch { log_epoch: epoch, index },
            tasks,
            orders_digest: index,
            poll: Span::seconds(5),
            last_contact_age: None,
            redirect: None,
            is_revoked: false,
            incarnation: 0,
            usage_recorded: None,
            time: Time::ZERO,
        }
    }

    #[test]
    fn only_newer_orders_are_taken() {
        let mut orders = Orders::default();
        assert_eq!(orders.update(answer(0, 0, None)), OrdersUpdate::Unchanged);
        assert_eq!((orders.tasks.as_ref(), orders.digest), (None, NO_ORDERS_DIGEST));
        assert_eq!(orders.update(answer(2, 7, Some(Vec::new()))), OrdersUpdate::Changed);
        assert_eq!((orders.tasks.as_ref(), orders.digest), (Some(&Vec::new()), 7));
        assert_eq!(orders.update(answer(1, 99, Some(Vec::new()))), OrdersUpdate::Stale);
        assert_eq!(orders.update(answer(2, 6, None)), OrdersUpdate::Stale);
        assert_eq!(orders.update(answer(2, 9, None)), OrdersUpdate::Unchanged);
        assert_eq!((orders.epoch, orders.digest), (Epoch { log_epoch: 2, index: 9 }, 7));
    }
}
