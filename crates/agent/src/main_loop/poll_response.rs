//! Handles the masters' poll response: the number of this machine's incarnation, and their orders.

use super::Agent;
use crate::boot;
use cellwright_agent_core::incarnation::IncarnationUpdate;
use cellwright_agent_core::orders::OrdersUpdate;
use cellwright_messages::AgentOrders;

impl Agent {
    /// Saves and logs a change of the incarnation number that the masters reported.
    fn note_incarnation(&mut self, change: IncarnationUpdate) {
        self.incarnation.number = self.core.incarnation;
        match change {
            IncarnationUpdate::Unchanged => {}
            IncarnationUpdate::Granted | IncarnationUpdate::Raised => {
                if let Err(error) =
                    boot::save_incarnation(&self.folders.incarnation_file(), &self.incarnation)
                {
                    tracing::error!(%error, "the incarnation cannot be written");
                }
            }
            // Logged once; tasks end as the orders say.
            IncarnationUpdate::Superseded { newest } if self.superseded_by != newest => {
                self.superseded_by = newest;
                let own = self.incarnation.number.incarnation;
                tracing::error!(
                    own,
                    newest,
                    "another agent speaks for this machine since, so nothing runs here: stop that \
                     one, or remove the data of this one and start it again"
                );
            }
            IncarnationUpdate::Superseded { .. } => {}
        }
        if change == IncarnationUpdate::Raised {
            let incarnation = self.incarnation.number.incarnation;
            tracing::info!(incarnation, "the masters know a later incarnation of this machine");
            self.news.notify_one();
        }
    }

    pub(super) fn on_answer(&mut self, answer: AgentOrders, sent: u64) {
        if let Some(mark) = answer.usage_recorded {
            self.ledger.book.confirm(mark);
        }
        self.ledger.correction.observe(cellwright_identity::clock::wall(), answer.time);
        let outcome = self.core.handle_orders(answer, sent);
        self.note_incarnation(outcome.incarnation_change);
        if outcome.orders == OrdersUpdate::Changed {
            self.write_orders();
            outcome
                .changed_health_checks
                .into_iter()
                .for_each(|attempt| self.start_prober(attempt));
            self.read_numbers_as_ordered();
            if !self.core.pending_resizes().is_empty() {
                self.sample_tasks();
            }
        }
        if outcome.incarnation_change != IncarnationUpdate::Raised {
            self.reconcile();
        }
    }
}
