//! The line to the masters: one hanging poll at a time, news sent apart from it, and another master
//! when one does not answer or says so. Whatever fails here touches no task.
//!
//! Which masters there are is learned from their answers, so that none of those it was told of has
//! to live on. The one that a machine's polls belong to may be dead and is named by the others all
//! the same: whoever did not answer is not dialled again at their word for a while.
//!
//! Reports and orders are whole, so each costs what the machine holds, at both ends. Where tasks
//! are many and short, one message for each of their changes would be most of the work; so the more
//! there is to tell, the more changes are told at once. Rejected: differences instead of whole
//! states, which save bytes and lose that no message depends on another.

use crate::boot;
use cellwright_api::client::{Client, ClientError};
use cellwright_api::error::Code;
use cellwright_api::internal::{AgentOrders, AgentReport};
use cellwright_api::masters::Round;
use cellwright_cell::time::Span;
use cellwright_supervise::plant;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
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
/// Of rest after a report, for each task it told of: several times what telling it costs.
const REST: Duration = Duration::from_micros(40);
/// Shorter ones would be made that long by the clock under them.
const LEAST_REST: Duration = Duration::from_millis(1);
/// Nobody waits longer for it, however many there are: naming has two seconds to hear of an end.
const MOST_REST: Duration = Duration::from_millis(200);
/// How long reports are kept as small as a master once said before a whole one is tried again.
const REMEMBERED: Duration = Duration::from_secs(600);

/// What the link asks of the loop and tells it.
pub enum Line {
    /// The full state, now.
    Report { hang: bool, to: oneshot::Sender<AgentReport> },
    /// The answer to a report that was sent then.
    Answer { orders: Box<AgentOrders>, sent: u64 },
}

pub struct Link {
    pub client: Client,
    pub line: mpsc::UnboundedSender<Line>,
    /// Rung when there is something to tell.
    pub news: Arc<Notify>,
    pub pace: Pace,
    pub most: Most,
}

/// What the masters take of one report, once one of them has said so, and when it did. It is
/// forgotten after a while: their operator may have raised it.
#[derive(Default)]
pub struct Most(Mutex<Option<(usize, Instant)>>);

impl Most {
    fn last(&self) -> MutexGuard<'_, Option<(usize, Instant)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn bytes(&self) -> Option<usize> {
        let last = *self.last();
        last.filter(|(_, learned)| learned.elapsed() < REMEMBERED).map(|(limit, _)| limit)
    }

    /// Learns from a refusal; says what, if it was not known.
    fn learn(&self, error: &ClientError) -> Option<usize> {
        let refused = error.api().filter(|refused| refused.code == Code::TooLarge)?;
        let limit = refused.details.get("limit")?.as_u64()?;
        self.note(usize::try_from(limit).ok()?)
    }

    fn note(&self, limit: usize) -> Option<usize> {
        let before = self.bytes();
        *self.last() = Some((limit, Instant::now()));
        (before != Some(limit)).then_some(limit)
    }
}

/// Rests that grow with what is told: when the last report left, and of how many tasks it told.
#[derive(Default)]
pub struct Pace(Mutex<Option<(Instant, usize)>>);

impl Pace {
    fn last(&self) -> MutexGuard<'_, Option<(Instant, usize)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// When the rest after the last report is over.
    fn rested(&self) -> Option<Instant> {
        self.last().map(|(left, tasks)| left + rest(tasks))
    }

    /// Waits for that, also if another report leaves meanwhile.
    async fn rest(&self) {
        while let Some(rested) = self.rested().filter(|rested| *rested > Instant::now()) {
            sleep_until(rested).await;
        }
    }

    /// A report is about to leave; nothing says that it tells of more or fewer than the last.
    fn leaves(&self) {
        let mut last = self.last();
        *last = Some((Instant::now(), last.map_or(0, |(_, tasks)| tasks)));
    }

    fn told(&self, tasks: usize) {
        if let Some(last) = self.last().as_mut() {
            last.1 = tasks;
        }
    }
}

fn rest(tasks: usize) -> Duration {
    let rest = REST.saturating_mul(u32::try_from(tasks).unwrap_or(u32::MAX)).min(MOST_REST);
    if rest < LEAST_REST { Duration::ZERO } else { rest }
}

impl Link {
    /// Polls for as long as the agent runs.
    pub async fn run(self) {
        let mut round = Round::from(self.client.preferred());
        let (mut hang, mut pause) = (FIRST_HANG, PAUSE);
        // Each kind of failure is told once, however many masters and tries it takes.
        let (mut told, mut dismissed) = (Vec::new(), false);
        // A master that is new to the agent is first asked for an answer at once, which names all
        // masters: it may itself be on its way out, and be gone before a hanging poll ends.
        let mut greets = false;
        loop {
            plant("link");
            let master = round.master().to_owned();
            let asked =
                if greets { self.ask(&master, None).await } else { self.poll(&master, hang).await };
            match asked {
                Ok(Some(answered)) => {
                    greets = false;
                    if !told.is_empty() {
                        told.clear();
                        tracing::info!(%master, "a master answers again");
                    }
                    if answered.is_dismissed != dismissed {
                        dismissed = answered.is_dismissed;
                        say_dismissed(dismissed);
                    }
                    (hang, pause) = (answered.hang, PAUSE);
                    round.answered(answered.redial, Instant::now());
                }
                Ok(None) => return,
                Err(error) => {
                    if !told.contains(&error.code()) {
                        told.push(error.code());
                        say_failed(&master, &error);
                    }
                    greets = true;
                    round.failed(&self.client.masters(), Instant::now());
                    sleep(self.client.jitter(pause, round.tries())).await;
                    pause = (pause * 2).min(PAUSE_MAX);
                }
            }
        }
    }

    /// One hanging poll, and news in between. Nothing when the loop has ended.
    async fn poll(&self, master: &str, hang: Span) -> Result<Option<Answered>, ClientError> {
        let hanging = async {
            self.pace.rest().await;
            self.ask(master, Some(hang)).await
        };
        tokio::pin!(hanging);
        let mut next = Instant::now();
        loop {
            let news = async {
                self.news.notified().await;
                // The first word goes at once; more that come soon after gather.
                sleep_until(next).await;
                self.pace.rest().await;
            };
            tokio::select! {
                biased;
                // News that were waiting are in the next poll.
                answered = &mut hanging => return answered,
                () = news => {
                    next = Instant::now() + GATHER;
                    // A lost message costs nothing: the next poll says it again.
                    let _ = self.ask(master, None).await;
                }
            }
        }
    }

    async fn ask(&self, master: &str, hang: Option<Span>) -> Result<Option<Answered>, ClientError> {
        self.pace.leaves();
        let (to, report) = oneshot::channel();
        if self.line.send(Line::Report { hang: hang.is_some(), to }).is_err() {
            return Ok(None);
        }
        let Ok(mut report) = report.await else { return Ok(None) };
        if let Some(most) = self.most.bytes() {
            report.shrink(most);
        }
        let hang = hang.unwrap_or(Span::ZERO);
        self.pace.told(report.tasks.len());
        let mut sent = boot::now();
        let mut orders = self.client.poll(master, &report, hang).await;
        if let Err(error) = &orders
            && let Some(most) = self.most.learn(error)
        {
            // What can wait is left out, and the master was not asked in vain.
            report.shrink(most);
            sent = boot::now();
            orders = self.client.poll(master, &report, hang).await;
        }
        let orders = orders?;
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

fn say_failed(master: &str, error: &ClientError) {
    match error.api() {
        Some(refused) => {
            let next = &refused.hint;
            tracing::warn!(master, %error, next, "refused; tasks go on");
        }
        None => tracing::warn!(master, %error, "no answer; tasks go on"),
    }
}

/// Once each time it changes, for whoever wonders why a machine stands idle.
fn say_dismissed(is_dismissed: bool) {
    match is_dismissed {
        true => tracing::warn!(
            "this machine was removed from the cell: its tasks end and it gets no more. To have it \
             back: cell token create --agent MACHINE, cell agent join, and start the agent \
             again"
        ),
        false => tracing::info!("this machine is part of the cell again"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn what_masters_took_is_forgotten_after_a_while() {
        let most = Most::default();
        assert_eq!((most.bytes(), most.note(1000)), (None, Some(1000)));
        assert_eq!((most.bytes(), most.note(1000)), (Some(1000), None), "known");
        assert_eq!(most.note(500), Some(500));
        sleep(REMEMBERED).await;
        assert_eq!((most.bytes(), most.note(500)), (None, Some(500)));
    }

    #[test]
    fn the_more_is_told_the_longer_is_the_rest_and_never_too_long() {
        // Where tasks are few, their first words are not held up.
        assert_eq!([0, 10, 24].map(rest), [Duration::ZERO; 3]);
        assert!(rest(25) < GATHER);
        assert_eq!(rest(1000), Duration::from_millis(40));
        assert_eq!(rest(usize::MAX), MOST_REST);
    }
}
