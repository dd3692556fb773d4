//! What the masters say: of the number of this life, and their orders.

use super::Agent;
use crate::boot;
use cellwright_agent_core::orders::Taken;
use cellwright_api::internal::AgentOrders;
use cellwright_api::life::Told;

impl Agent {
    /// What a word about the number of this life has changed is written down and said.
    fn note_life(&mut self, told: Told) {
        self.life.number = self.core.life;
        match told {
            Told::Same => {}
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
    }

    pub(super) fn on_answer(&mut self, answer: AgentOrders, sent: u64) {
        let heard = self.core.hear(answer, sent);
        self.note_life(heard.life);
        if heard.taken == Taken::New {
            self.write_orders();
            heard.other_checks.into_iter().for_each(|attempt| self.watch_health(attempt));
        }
        if heard.life != Told::Raised {
            self.settle();
        }
    }
}
