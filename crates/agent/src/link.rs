//! The link to the masters: one hanging poll at a time, news sent in separate reports, and a switch
//! to another master when one does not answer or names another. No failure here affects a task.
//!
//! The list of masters is learned from their answers, so that none of those it was configured with
//! has to stay. The master that a machine's polls belong to may be dead and still be named by the
//! others: a master that did not answer is not dialled again on their word for a while.
//!
//! Reports and orders carry the full state, so each costs as much as the machine holds, at both
//! ends. Where tasks are many and short, one report for each of their changes would be most of the
//! work; so the more tasks there are, the more changes go into one report. Rejected: deltas instead
//! of full states, which save bytes but make messages depend on each other.

use crate::boot;
use cellwright_api::client::{Client, ClientError};
use cellwright_api::error::Code;
use cellwright_api::masters::MasterRotation;
use cellwright_cell::time::Span;
use cellwright_messages::{AgentOrders, AgentReport};
use cellwright_supervise::failpoint;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::{Notify, mpsc, oneshot};
use tokio::time::{Instant, sleep, sleep_until};

/// How long the first poll may hang; later the master sets it.
const INITIAL_HANG: Span = Span::seconds(5);
/// First and longest backoff when no master answers.
const BACKOFF_MIN: Duration = Duration::from_millis(100);
const BACKOFF_MAX: Duration = Duration::from_secs(2);
/// News within this window is sent in one report.
const BATCH_WINDOW: Duration = Duration::from_millis(2);
/// Rest after a report, for each task in it: several times what processing it costs.
const REST_PER_TASK: Duration = Duration::from_micros(40);
/// Tokio's timer would make shorter ones this long.
const MIN_REST: Duration = Duration::from_millis(1);
/// The longest rest, however many tasks there are: service discovery has two seconds to learn of an
/// end.
const MAX_REST: Duration = Duration::from_millis(200);
/// How long reports are kept below the size limit that a master returned before a full one is tried
/// again.
const SIZE_LIMIT_TTL: Duration = Duration::from_secs(600);

/// What the link asks of the loop and passes to it.
pub enum LinkMessage {
    /// A request for the full state, now.
    Report { hang: bool, to: oneshot::Sender<AgentReport> },
    /// The answer to a report that was sent at `sent`.
    Answer { orders: Box<AgentOrders>, sent: u64 },
}

pub struct Link {
    pub client: Client,
    pub to_agent: mpsc::UnboundedSender<LinkMessage>,
    /// Notified when there is news to report.
    pub news: Arc<Notify>,
    pub pacer: ReportPacer,
    pub size_limit: ReportSizeLimit,
}

/// The size limit of a report, once a master has returned one, and when it did. It expires after a
/// while: the operator may have raised it.
#[derive(Default)]
pub struct ReportSizeLimit(Mutex<Option<(usize, Instant)>>);

impl ReportSizeLimit {
    fn last(&self) -> MutexGuard<'_, Option<(usize, Instant)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn bytes(&self) -> Option<usize> {
        let last = *self.last();
        last.filter(|(_, learned)| learned.elapsed() < SIZE_LIMIT_TTL).map(|(limit, _)| limit)
    }

    /// Learns the limit from an error; returns it, if it is new.
    fn learn_from_error(&self, error: &ClientError) -> Option<usize> {
        let rejection = error.api().filter(|refused| refused.code == Code::TooLarge)?;
        let limit = rejection.details.get("limit")?.as_u64()?;
        self.set(usize::try_from(limit).ok()?)
    }

    fn set(&self, limit: usize) -> Option<usize> {
        let before = self.bytes();
        *self.last() = Some((limit, Instant::now()));
        (before != Some(limit)).then_some(limit)
    }
}

/// Paces reports by their size: when the last report left, and how many tasks were in it.
#[derive(Default)]
pub struct ReportPacer(Mutex<Option<(Instant, usize)>>);

impl ReportPacer {
    fn last(&self) -> MutexGuard<'_, Option<(Instant, usize)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// When the rest after the last report is over.
    fn ready_at(&self) -> Option<Instant> {
        self.last().map(|(left, tasks)| left + rest_after(tasks))
    }

    /// Waits for that, also if another report leaves meanwhile.
    async fn wait_until_ready(&self) {
        while let Some(ready_at) = self.ready_at().filter(|rested| *rested > Instant::now()) {
            sleep_until(ready_at).await;
        }
    }

    /// A report is about to leave; it is taken to have as many tasks as the last.
    fn mark_sent(&self) {
        let mut last = self.last();
        *last = Some((Instant::now(), last.map_or(0, |(_, tasks)| tasks)));
    }

    fn record_task_count(&self, tasks: usize) {
        if let Some(last) = self.last().as_mut() {
            last.1 = tasks;
        }
    }
}

fn rest_after(tasks: usize) -> Duration {
    let rest = REST_PER_TASK.saturating_mul(u32::try_from(tasks).unwrap_or(u32::MAX)).min(MAX_REST);
    if rest < MIN_REST { Duration::ZERO } else { rest }
}

impl Link {
    /// Polls until it is dropped.
    pub async fn run(self) {
        let mut round = MasterRotation::from(self.client.preferred());
        let (mut hang, mut pause) = (INITIAL_HANG, BACKOFF_MIN);
        // Each kind of failure is logged once, however many masters and tries it takes.
        let (mut reported_errors, mut revoked) = (Vec::new(), false);
        // A master that is new to the agent is first asked for an answer at once, which names all
        // masters: it may itself be shutting down, and be gone before a hanging poll ends.
        let mut asks_at_once = false;
        loop {
            failpoint("link");
            let master = round.master().to_owned();
            let polled = if asks_at_once {
                self.send_report(&master, None).await
            } else {
                self.poll(&master, hang).await
            };
            match polled {
                Ok(Some(answered)) => {
                    asks_at_once = false;
                    if !reported_errors.is_empty() {
                        reported_errors.clear();
                        tracing::info!(%master, "a master answers again");
                    }
                    if answered.is_revoked != revoked {
                        revoked = answered.is_revoked;
                        log_revoked(revoked);
                    }
                    (hang, pause) = (answered.hang, BACKOFF_MIN);
                    round.on_answer(answered.redirect, Instant::now());
                }
                Ok(None) => return,
                Err(error) => {
                    if !reported_errors.contains(&error.code()) {
                        reported_errors.push(error.code());
                        log_failure(&master, &error);
                    }
                    asks_at_once = true;
                    round.on_failure(&self.client.masters(), Instant::now());
                    sleep(self.client.jitter(pause, round.tries())).await;
                    pause = (pause * 2).min(BACKOFF_MAX);
                }
            }
        }
    }

    /// One hanging poll, and reports of news meanwhile. Nothing when the loop has ended.
    async fn poll(&self, master: &str, hang: Span) -> Result<Option<PollResult>, ClientError> {
        let hanging = async {
            self.pacer.wait_until_ready().await;
            self.send_report(master, Some(hang)).await
        };
        tokio::pin!(hanging);
        let mut next = Instant::now();
        loop {
            let news = async {
                self.news.notified().await;
                // The first news is sent at once; more that comes soon after is batched.
                sleep_until(next).await;
                self.pacer.wait_until_ready().await;
            };
            tokio::select! {
                biased;
                // Pending news is in the next poll.
                answered = &mut hanging => return answered,
                () = news => {
                    next = Instant::now() + BATCH_WINDOW;
                    // A lost report costs nothing: the next poll repeats it.
                    let _ = self.send_report(master, None).await;
                }
            }
        }
    }

    async fn send_report(
        &self,
        master: &str,
        hang: Option<Span>,
    ) -> Result<Option<PollResult>, ClientError> {
        self.pacer.mark_sent();
        let (to, report) = oneshot::channel();
        if self.to_agent.send(LinkMessage::Report { hang: hang.is_some(), to }).is_err() {
            return Ok(None);
        }
        let Ok(mut report) = report.await else { return Ok(None) };
        if let Some(most) = self.size_limit.bytes() {
            report.shrink(most);
        }
        let hang = hang.unwrap_or(Span::ZERO);
        self.pacer.record_task_count(report.tasks.len());
        let mut sent = boot::now();
        let mut orders = self.client.poll(master, &report, hang).await;
        if let Err(error) = &orders
            && let Some(most) = self.size_limit.learn_from_error(error)
        {
            // What is optional is left out, and the same master is asked again.
            report.shrink(most);
            sent = boot::now();
            orders = self.client.poll(master, &report, hang).await;
        }
        let orders = orders?;
        let (hang, redirect) = (orders.poll, orders.redirect.clone());
        let result = PollResult { hang, redirect, is_revoked: orders.is_revoked };
        let orders = Box::new(orders);
        let delivered = self.to_agent.send(LinkMessage::Answer { orders, sent });
        Ok(delivered.is_ok().then_some(result))
    }
}

/// What the next poll needs of the last one's answer.
struct PollResult {
    /// How long the next one may hang.
    hang: Span,
    /// Another master to dial.
    redirect: Option<String>,
    is_revoked: bool,
}

fn log_failure(master: &str, error: &ClientError) {
    match error.api() {
        Some(rejection) => {
            let next = &rejection.hint;
            tracing::warn!(master, %error, next, "refused; tasks go on");
        }
        None => tracing::warn!(master, %error, "no answer; tasks go on"),
    }
}

/// Logged at each change, for a person who wonders why a machine is idle.
fn log_revoked(is_revoked: bool) {
    if is_revoked {
        tracing::warn!(
            "this machine was removed from the cell: its tasks end and it gets no more. To have it \
             back: cell token create --agent MACHINE, cell agent join, and start the agent \
             again"
        )
    } else {
        tracing::info!("this machine is part of the cell again")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn what_masters_took_is_forgotten_after_a_while() {
        let most = ReportSizeLimit::default();
        assert_eq!((most.bytes(), most.set(1000)), (None, Some(1000)));
        assert_eq!((most.bytes(), most.set(1000)), (Some(1000), None), "known");
        assert_eq!(most.set(500), Some(500));
        sleep(SIZE_LIMIT_TTL).await;
        assert_eq!((most.bytes(), most.set(500)), (None, Some(500)));
    }

    #[test]
    fn the_more_is_told_the_longer_is_the_rest_and_never_too_long() {
        // Where tasks are few, their first reports are not delayed.
        assert_eq!([0, 10, 24].map(rest_after), [Duration::ZERO; 3]);
        assert!(rest_after(25) < BATCH_WINDOW);
        assert_eq!(rest_after(1000), Duration::from_millis(40));
        assert_eq!(rest_after(usize::MAX), MAX_REST);
    }
}
