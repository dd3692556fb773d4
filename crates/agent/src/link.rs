//! The line to the masters: one hanging poll at a time, news sent apart from it, and another master
//! when one does not answer or says so. Whatever fails here touches no task.

use crate::boot;
use cellwright_api::client::{Client, ClientError};
use cellwright_api::internal::{AgentOrders, AgentReport};
use cellwright_cell::time::Span;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Notify, mpsc, oneshot};
use tokio::time::{Instant, sleep, sleep_until};

/// How long the first poll may hang; later the master says.
const FIRST_HANG: Span = Span::seconds(5);
/// First and longest pause when no master answers.
const PAUSE: Duration = Duration::from_millis(100);
const PAUSE_MAX: Duration = Duration::from_secs(2);
/// News that come together travel together.
const GATHER: Duration = Duration::from_millis(2);

/// What the link asks of the loop and tells it.
pub enum Line {
    /// The full state, now.
    Report { hang: bool, to: oneshot::Sender<AgentReport> },
    /// The answer to a report that was sent then.
    Answer { orders: Box<AgentOrders>, sent: u64 },
}

pub struct Link {
    pub client: Client,
    /// `host:port` of the masters.
    pub masters: Vec<String>,
    pub line: mpsc::UnboundedSender<Line>,
    /// Rung when there is something to tell.
    pub news: Arc<Notify>,
}

impl Link {
    /// Polls for as long as the agent runs.
    pub async fn run(self) {
        let Some(mut master) = self.masters.first().cloned() else { return };
        let (mut tries, mut hang, mut pause, mut silent) = (0, FIRST_HANG, PAUSE, false);
        let mut dismissed = false;
        loop {
            match self.poll(&master, hang).await {
                Ok(Some(answered)) => {
                    if std::mem::take(&mut silent) {
                        tracing::info!(%master, "a master answers again");
                    }
                    if answered.is_dismissed != dismissed {
                        dismissed = answered.is_dismissed;
                        say_dismissed(dismissed);
                    }
                    (hang, pause) = (answered.hang, PAUSE);
                    master = answered.redial.unwrap_or(master);
                }
                Ok(None) => return,
                Err(error) => {
                    if !std::mem::replace(&mut silent, true) {
                        tracing::warn!(%master, %error, "no answer; tasks go on");
                    }
                    tries += 1;
                    if let Some(other) = self.masters.get(tries % self.masters.len()) {
                        master.clone_from(other);
                    }
                    sleep(pause).await;
                    pause = (pause * 2).min(PAUSE_MAX);
                }
            }
        }
    }

    /// One hanging poll, and news in between. Nothing when the loop has ended.
    async fn poll(&self, master: &str, hang: Span) -> Result<Option<Answered>, ClientError> {
        let hanging = self.ask(master, Some(hang));
        tokio::pin!(hanging);
        let mut next = Instant::now();
        loop {
            tokio::select! {
                biased;
                answered = &mut hanging => return answered,
                () = self.news.notified() => {
                    // The first word goes at once; more that come soon after gather.
                    sleep_until(next).await;
                    next = Instant::now() + GATHER;
                    // A lost message costs nothing: the next poll says it again.
                    let _ = self.ask(master, None).await;
                }
            }
        }
    }

    async fn ask(&self, master: &str, hang: Option<Span>) -> Result<Option<Answered>, ClientError> {
        let (to, report) = oneshot::channel();
        if self.line.send(Line::Report { hang: hang.is_some(), to }).is_err() {
            return Ok(None);
        }
        let Ok(report) = report.await else { return Ok(None) };
        let sent = boot::now();
        let orders = self.client.poll(master, &report, hang.unwrap_or(Span::ZERO)).await?;
        let (hang, redial) = (orders.poll, orders.redial.clone());
        let answered = Answered { hang, redial, is_dismissed: orders.is_dismissed };
        let orders = Box::new(orders);
        let told = self.line.send(Line::Answer { orders, sent });
        Ok(told.is_ok().then_some(answered))
    }
}

/// What the next poll needs of the answer to one.
struct Answered {
    /// How long the next one may hang.
    hang: Span,
    /// Another master to dial.
    redial: Option<String>,
    is_dismissed: bool,
}

/// Once each time it changes, for whoever wonders why a machine stands idle.
fn say_dismissed(is_dismissed: bool) {
    match is_dismissed {
        true => tracing::warn!(
            "this machine was removed from the cell: its tasks end and it gets no more. To have it \
             back: cell token create --agent MACHINE, cell agent join TOKEN, and start the agent \
             again"
        ),
        false => tracing::info!("this machine is part of the cell again"),
    }
}
