//! What the masters say: of the number of this life, and their orders.

use super::Agent;
use crate::boot;
use crate::orders::Taken;
use cellwright_api::internal::AgentOrders;
use cellwright_api::life::Told;

impl Agent {
    /// Whether the answer is for this life as it is now.
    fn hear_life(&mut self, newest: u64) -> bool {
        let told = self.life.number.hear(newest);
        match told {
            Told::Same => return true,
            Told::Granted | Told::Raised => {
                if let Err(error) = boot::remember(&self.folders.life(), &self.life) {
                    tracing::error!(%error, "the number of this life cannot be written");
                }
            }
            // Said once; tasks end as the orders say.
            Told::Outlived { newest } if self.outlived != newest => {
                self.outlived = newest;
                let own = self.life.number.incarnation;
                tracing::error!(
                    own,
                    newest,
                    "another agent speaks for this machine since, so nothing runs here: stop that \
                     one, or remove the data of this one and start it again"
                );
            }
            Told::Outlived { .. } => {}
        }
        if told == Told::Raised {
            let incarnation = self.life.number.incarnation;
            tracing::info!(incarnation, "the masters know an earlier life of this machine");
            self.news.notify_one();
        }
        told != Told::Raised
    }

    pub(super) fn on_answer(&mut self, answer: AgentOrders, sent: u64) {
        // Nothing of an answer to another life's number is for this one.
        if !self.hear_life(answer.incarnation) {
            return;
        }
        if let Some(ago) = answer.heard_ago {
            // Never later than when the leader heard: the poll arrived after it was sent.
            let heard = sent.saturating_sub(ago.0);
            self.heard = Some(self.heard.map_or(heard, |before| before.max(heard)));
        }
        if self.orders.take(answer) == Taken::New {
            self.write_orders();
            self.refresh();
        }
        self.settle();
    }
}
