//! `cell logs --follow`: many tasks at once, each to its end, and those that are added to the jobs
//! meanwhile.

use super::printer::{LineStyle, Printer};
use super::{LogOptions, MAX_FOLLOWED, TaskList, output_failure};
use crate::connection::Cell;
use crate::failure::Failure;
use cellwright_api::client::{Client, ClientError, Watch};
use cellwright_api::output::{OutputPart, OutputPiece, OutputQuery};
use cellwright_cell::name::JobKey;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::interval;

/// Chunks of output queued for printing.
const QUEUED_PIECES: usize = 16;
/// The interval at which a pending task is checked for a placement, and a job for more tasks.
const POLL_INTERVAL: Duration = Duration::from_secs(1);

pub(super) async fn follow(
    options: &LogOptions,
    cell: &Cell,
    list: &TaskList,
    line_style: LineStyle,
) -> Result<(), Failure> {
    let (sender, mut events) = mpsc::channel(QUEUED_PIECES);
    let mut followed = Followed::default();
    for (job, index) in &list.tasks {
        followed.add(options, cell, (job, *index), line_style, &sender).await?;
    }
    let mut ticks = interval(POLL_INTERVAL);
    while followed.open > 0 {
        tokio::select! {
            // The sender of this function keeps it open.
            Some((at, log_event)) = events.recv() => followed.handle(at, log_event)?,
            _ = ticks.tick() => {
                for task in followed.added(cell, &list.whole).await {
                    // The lines of one task alone have no name in front; now there are several.
                    let named = LineStyle { named: true, ..line_style };
                    followed.name_all()?;
                    followed.add(options, cell, (&task.0, task.1), named, &sender).await?;
                }
            }
        }
    }
    Ok(())
}

/// The tasks that are followed.
#[derive(Default)]
struct Followed {
    tasks: Vec<(JobKey, u32)>,
    printers: Vec<Printer>,
    /// Ended when this is dropped.
    followers: JoinSet<()>,
    /// How many have not ended.
    open: usize,
    /// Whether the user was told that there are more than can be followed.
    full: bool,
}

impl Followed {
    async fn add(
        &mut self,
        options: &LogOptions,
        cell: &Cell,
        (job, index): (&JobKey, u32),
        line_style: LineStyle,
        events: &mpsc::Sender<(usize, LogEvent)>,
    ) -> Result<(), Failure> {
        let query = options.query(cell, job, index).await?;
        let follower = TaskFollower { task_position: self.tasks.len(), events: events.clone() };
        let following = follower.follow(cell.client.clone(), job.clone(), index, query);
        self.followers.spawn(following);
        self.printers.push(Printer::new(job, index, line_style));
        self.tasks.push((job.clone(), index));
        self.open += 1;
        Ok(())
    }

    fn name_all(&mut self) -> Result<(), Failure> {
        self.printers.iter_mut().try_for_each(Printer::name_lines)
    }

    /// Tasks that the jobs have by now and had not before.
    async fn added(&mut self, cell: &Cell, jobs: &[JobKey]) -> Vec<(JobKey, u32)> {
        let mut added = Vec::new();
        for job in jobs {
            // A job that is gone has no more tasks, and its followers say how they ended.
            let Ok(view) = cell.client.job(job).await else { continue };
            let known = self.tasks.iter().filter(|(key, _)| key == job).map(|(_, index)| *index);
            let next = known.max().map_or(0, |last| last.saturating_add(1));
            added.extend((next..view.value.item.index_end()).map(|index| (job.clone(), index)));
        }
        let room = (MAX_FOLLOWED as usize).saturating_sub(self.open);
        if added.len() > room && !std::mem::replace(&mut self.full, true) {
            crate::output::note!("{MAX_FOLLOWED} tasks are followed; those added are not");
        }
        added.truncate(room);
        added
    }

    fn handle(&mut self, at: usize, log_event: LogEvent) -> Result<(), Failure> {
        let Some(printer) = self.printers.get_mut(at) else { return Ok(()) };
        match log_event {
            LogEvent::Text { attempt, parts } => {
                printer.set_attempt(attempt)?;
                return parts.iter().try_for_each(|part| printer.push(part));
            }
            LogEvent::MachineSilent(why) => {
                crate::output::note!("{}: {why}", printer.name);
                return Ok(());
            }
            LogEvent::NotPlaced => {
                crate::output::note!("{} waits for a place", printer.name);
                return Ok(());
            }
            LogEvent::NeverRan => {
                crate::output::note!("{} ended without having run", printer.name)
            }
            LogEvent::End => printer.finish()?,
            LogEvent::Failed(error) => match self.tasks.as_slice() {
                [(job, _)] => return Err(output_failure(job, error)),
                _ => crate::output::note!("{}: {error}", printer.name),
            },
        }
        // The others are a task's last.
        self.open = self.open.saturating_sub(1);
        Ok(())
    }
}

/// An event of one task's log.
enum LogEvent {
    Text {
        attempt: u32,
        parts: Vec<OutputPart>,
    },
    MachineSilent(String),
    /// The task has not been placed yet.
    NotPlaced,
    NeverRan,
    End,
    Failed(ClientError),
}

/// Follows the output of one task and sends its events.
struct TaskFollower {
    /// The position of this task among those that are followed.
    task_position: usize,
    events: mpsc::Sender<(usize, LogEvent)>,
}

impl TaskFollower {
    async fn follow(self, client: Client, job: JobKey, index: u32, query: OutputQuery) {
        // An attempt named by the user has already been started.
        if query.attempt.is_none() {
            let log_event = match self.wait_until_placed(&client, &job, index).await {
                Ok(true) => None,
                Ok(false) => Some(LogEvent::NeverRan),
                Err(error) => Some(LogEvent::Failed(error)),
            };
            if let Some(log_event) = log_event {
                drop(self.events.send((self.task_position, log_event)).await);
                return;
            }
        }
        forward_events(client.watch_output(&job, index, &query), self.task_position, self.events)
            .await;
    }

    /// Waits until the task has been placed; returns false if it ended without a placement.
    async fn wait_until_placed(
        &self,
        client: &Client,
        job: &JobKey,
        index: u32,
    ) -> Result<bool, ClientError> {
        let mut is_announced = false;
        loop {
            let task = client.task(job, index).await?.value.item;
            if task.attempt > 0 || task.state.is_dead() {
                return Ok(task.attempt > 0);
            }
            if !is_announced {
                is_announced = true;
                drop(self.events.send((self.task_position, LogEvent::NotPlaced)).await);
            }
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    }
}

async fn forward_events(
    mut watch: Watch<OutputPiece>,
    at: usize,
    follower: mpsc::Sender<(usize, LogEvent)>,
) {
    loop {
        let log_event = match watch.next().await {
            Ok(event) => match (event.kind.as_str(), event.data) {
                ("output", Some(piece)) => {
                    LogEvent::Text { attempt: piece.attempt, parts: piece.parts }
                }
                ("silent", _) => LogEvent::MachineSilent("its machine does not answer".into()),
                ("end", _) => LogEvent::End,
                _ => continue,
            },
            Err(error) => LogEvent::Failed(error),
        };
        let last = matches!(log_event, LogEvent::End | LogEvent::Failed(_));
        if follower.send((at, log_event)).await.is_err() || last {
            return;
        }
    }
}
