//! Explanations as the API returns them: sentences for people, the same as data for programs.

use super::health;
use crate::http::view::{at_max_down, failed_dependency};
use cellwright_api::types::{
    CandidateView, CounterfactualView, ExplanationView, FailingView, HappenedView, HereView,
    NearestView, ReasonView, StoppingTaskView, TaskCounts, WaitingGroup,
};
use cellwright_cell::disruption;
use cellwright_cell::event::{Event, EventKind, TaskChange};
use cellwright_cell::explanation::{Counterfactual, Explanation, NearestMachine, ReasonCount};
use cellwright_cell::id::{JobId, TaskId};
use cellwright_cell::job::Job;
use cellwright_cell::notice;
use cellwright_cell::reason::Reason;
use cellwright_cell::state::State;
use cellwright_cell::task::{ExitClass, NoticeOutcome, StopCause, Task, TaskOutcome, TaskState};
use cellwright_cell::time::{Span, Time};
use cellwright_cell::units::{pluralize, times_text};
use cellwright_cell::words;
use cellwright_cell::words::quantity::{Natural, span};
use cellwright_master::usage::UsageSnapshot;
use cellwright_sched::explain::placement_ranking::{PlacementRanking, RankedMachine};
use serde_json::Value;
use std::cmp::Reverse;

/// The known past of a task.
#[derive(Clone, Debug, Default)]
pub(in crate::http) struct TaskHistory {
    events: Vec<HappenedView>,
    /// The last end of an attempt.
    end: Option<HappenedView>,
    from: Option<u64>,
}

impl TaskHistory {
    /// Rows are reused: events from before the job was submitted belong to another job.
    pub fn new(state: &State, job: JobId, events: Vec<Event>, from: Option<u64>) -> TaskHistory {
        let since = state.jobs().get(job).map_or(Time::ZERO, |row| row.submitted_at);
        let mut history = TaskHistory { from, ..TaskHistory::default() };
        let (mut warned, mut cause) = (None, None);
        for event in events.iter().filter(|event| event.at >= since) {
            let EventKind::Task { attempt, change, .. } = &event.kind else { continue };
            let view = event_view(state, event, *attempt);
            match change {
                TaskChange::Left { notice, .. } => warned = Some((*attempt, *notice)),
                TaskChange::Stopping { .. } => cause = Some((*attempt, event.reason.clone())),
                change if is_end(*change) => {
                    let about = warned.filter(|(of, _)| of == attempt);
                    // That its machine reported the end is not the reason why it was stopped.
                    let seen = event.reason == Reason::AgentReport;
                    let why = cause.take().filter(|(of, _)| of == attempt && seen);
                    let end = why.map(|(_, reason)| Event { reason, ..event.clone() });
                    let end = end.map_or(view.clone(), |end| event_view(state, &end, *attempt));
                    history.end = Some(with_notice(end, about.map(|(_, notice)| notice)));
                }
                _ => {}
            }
            history.events.push(view);
        }
        history
    }
}

/// An event of a task, without the task's name.
fn event_view(state: &State, event: &Event, attempt: u32) -> HappenedView {
    let text = words::event_text(state, event).happened;
    HappenedView { at: event.at, attempt, reason: event.reason_code().to_owned(), text }
}

fn with_notice(mut end: HappenedView, notice: Option<NoticeOutcome>) -> HappenedView {
    if let Some(notice) = notice {
        end.text = format!("{} ({})", end.text, notice.describe());
    }
    end
}

fn is_end(change: TaskChange) -> bool {
    use TaskChange as C;
    matches!(
        change,
        C::Evicted { .. }
            | C::Completed { .. }
            | C::Failed { .. }
            | C::Lost { .. }
            | C::Restarted { .. }
            | C::Finished
            | C::GaveUp { .. }
            | C::Killed
            | C::NeverRan
    )
}

/// What applies to a task in any state; `None` for a row that was removed.
pub(super) fn base_view(
    state: &State,
    id: TaskId,
    history: TaskHistory,
    now: Time,
) -> Option<ExplanationView> {
    let row = state.tasks().get(id)?;
    let spec = state.spec_of(row)?;
    let job = state.jobs().get(row.job)?;
    let waits = (row.state == TaskState::Pending && row.not_before > now).then_some(row.not_before);
    let next_try_in = waits.map(|time| time.since(now));
    let failing = row.failures_in_row > 0 && !row.state.is_dead();
    Some(ExplanationView {
        task: state.task_name(id),
        state: row.state,
        priority: spec.priority,
        text: String::new(),
        machines_total: 0,
        reasons: Vec::new(),
        counterfactual: None,
        alternatives: Vec::new(),
        nearest: None,
        when_empty: 0,
        victims: Vec::new(),
        victims_allowed: false,
        position: None,
        waiting: 0,
        higher_priority: 0,
        not_before: waits,
        next_try_in,
        waits_for: dependencies(state, job),
        stopping: stopping(state, row),
        failing: failing.then(|| FailingView {
            failures_in_row: row.failures_in_row,
            last: history.end.as_ref().map(|end| end.text.clone()),
            next_try_in,
        }),
        here: None,
        last_end: history.end,
        history: history.events,
        history_from: history.from,
        obstacles: Vec::new(),
        eta: None,
        easier: None,
    })
}

/// Adds the explanation of a task that waits for a machine.
pub(super) fn add_waiting(view: &mut ExplanationView, explanation: &Explanation) {
    add_explanation(view, explanation);
    view.text = match &view.failing {
        // The time of its next attempt is in the text already.
        Some(failing) => {
            let explanation = Explanation { queue_position: None, ..explanation.clone() };
            let placement = words::explanation::render_when_tried(&explanation, &Natural);
            format!("{}\n{placement}", failing_text(failing))
        }
        None => words::explanation::render(explanation, &Natural),
    };
    if let (None, Some(end)) = (&view.failing, &view.last_end) {
        view.text.push_str(&format!("\nLast: {}.", end.text));
    }
}

/// Adds the counts of reasons and what follows from them.
pub(in crate::http) fn add_explanation(view: &mut ExplanationView, explanation: &Explanation) {
    let victims = explanation.victims.as_ref();
    let queue_position = explanation.queue_position.as_ref();
    view.machines_total = explanation.machines_total;
    view.reasons = explanation.reasons.iter().map(reason_view).collect();
    view.counterfactual = explanation.counterfactual.as_ref().map(counterfactual_view);
    view.alternatives = explanation.alternatives.iter().map(counterfactual_view).collect();
    view.nearest = explanation.nearest.as_ref().map(nearest_view);
    view.when_empty = explanation.when_empty;
    view.victims = victims
        .map(|v| v.tasks.iter().map(|victim| victim.task.name.clone()).collect())
        .unwrap_or_default();
    view.victims_allowed = victims.is_some_and(|v| v.allowed);
    view.position = queue_position.and_then(|s| s.position);
    view.waiting = queue_position.map_or(0, |s| s.waiting);
    view.higher_priority = queue_position.map_or(0, |s| s.higher_priority);
}

/// The explanation of a hypothetical task.
pub(in crate::http) fn hypothetical_view(
    name: String,
    explanation: &Explanation,
) -> ExplanationView {
    let mut view = ExplanationView {
        task: name,
        state: TaskState::Pending,
        priority: explanation.priority,
        text: words::explanation::render(explanation, &Natural),
        machines_total: 0,
        reasons: Vec::new(),
        counterfactual: None,
        alternatives: Vec::new(),
        nearest: None,
        when_empty: 0,
        victims: Vec::new(),
        victims_allowed: false,
        position: None,
        waiting: 0,
        higher_priority: 0,
        not_before: None,
        next_try_in: None,
        waits_for: Vec::new(),
        stopping: Vec::new(),
        failing: None,
        here: None,
        last_end: None,
        history: Vec::new(),
        history_from: None,
        obstacles: Vec::new(),
        eta: None,
        easier: None,
    };
    add_explanation(&mut view, explanation);
    view
}

fn reason_view(reason: &ReasonCount) -> ReasonView {
    // The detail is an enum: its variant name repeats the code.
    let detail = match serde_json::to_value(&reason.detail) {
        Ok(Value::Object(fields)) => fields.into_iter().next().map_or(Value::Null, |(_, v)| v),
        _ => Value::Null,
    };
    ReasonView {
        code: reason.code.into(),
        machines: reason.machines,
        detail,
        about: words::explanation::reason_alone(reason, &Natural),
        text: words::explanation::reason(reason, &Natural),
    }
}

fn nearest_view(nearest: &NearestMachine) -> NearestView {
    let obstacle = |obstacle: &ReasonCount| {
        let text = words::explanation::obstacle(obstacle, &Natural);
        ReasonView { text, ..reason_view(obstacle) }
    };
    NearestView {
        machine: nearest.machine.name.clone(),
        alloc: nearest.alloc.as_ref().map(|alloc| alloc.name.clone()),
        obstacles: nearest.obstacles.iter().map(obstacle).collect(),
    }
}

fn counterfactual_view(change: &Counterfactual) -> CounterfactualView {
    CounterfactualView {
        text: words::explanation::change(change, &Natural),
        change: serde_json::to_value(&change.change).unwrap_or_default(),
        permille: change.permille,
        machines: change.machines,
        machine: change.machine.name.clone(),
    }
}

fn failing_text(failing: &FailingView) -> String {
    let times = times_in_a_row(failing.failures_in_row);
    let last = failing.last.as_ref().map(|last| format!(" Last: {last}."));
    let next = match failing.next_try_in {
        Some(wait) => format!(" Next try in {}.", span(wait)),
        None => " It is tried again at the next chance.".to_owned(),
    };
    format!("failing: it failed {times}.{}{next}", last.unwrap_or_default())
}

/// `once`, `twice in a row`.
fn times_in_a_row(failures: u32) -> String {
    let row = if failures == 1 { "" } else { " in a row" };
    format!("{}{row}", times_text(u64::from(failures)))
}

/// Adds the explanation of a task on a machine.
pub(super) fn add_placement(
    view: &mut ExplanationView,
    state: &State,
    id: TaskId,
    placement: Option<PlacementRanking>,
    usage: &UsageSnapshot,
    now: Time,
) {
    let Some(row) = state.tasks().get(id) else { return };
    let machine = row.machine().and_then(|id| state.machines().get(id));
    let machine = machine.map_or_else(|| "a machine".to_owned(), |row| row.spec.name.to_string());
    let headline = match row.state {
        TaskState::Assigned => health::starting_text(state, usage, id, &machine, now),
        TaskState::Running if !row.healthy => {
            format!("running on {machine}, but it fails its health check.")
        }
        TaskState::Running => format!("running on {machine}."),
        TaskState::Stopping(cause) => format!("stopping on {machine}: {}.", stop_cause_text(cause)),
        _ => String::new(),
    };
    let mut lines = vec![headline];
    lines.extend(waits_for_room(&view.stopping, now.max(state.now())));
    lines.extend(waits_to_leave(state, id, row, now.max(state.now())));
    lines.extend(waits_for_update(state, id, row));
    lines.extend(waits_for_restart(state, id, row));
    lines.extend(view.failing.as_ref().map(|failing| {
        let last = failing.last.as_ref().map(|last| format!(" Last: {last}."));
        let times = times_in_a_row(failing.failures_in_row);
        format!("It failed {times} before.{}", last.unwrap_or_default())
    }));
    if let (None, Some(end)) = (&view.failing, &view.last_end) {
        lines.push(format!("Before that: {}.", end.text));
    }
    if let Some(placement) = placement {
        let total = state.machines().iter().count();
        lines.push(here_text(&placement, total));
        view.machines_total = u32::try_from(total).unwrap_or(u32::MAX);
        view.here = Some(HereView {
            machine,
            fitting: placement.fitting,
            candidates: placement.candidates.iter().map(candidate_view).collect(),
        });
    } else if row.alloc().is_some() {
        lines.push("It runs inside an alloc of its set, which decides where.".into());
    }
    view.text = lines.join("\n");
}

/// The tasks that have to leave before this one can start, the last to go first.
fn stopping(state: &State, row: &Task) -> Vec<StoppingTaskView> {
    let waits = row.grant().filter(|_| row.state == TaskState::Assigned);
    let victims = waits.map_or(&[][..], |grant| &grant.waits_for).iter().filter_map(|victim| {
        let here = state.tasks().get(victim.task)?;
        let is_here = here.attempt == victim.attempt && here.machine() == row.machine();
        let killed_at = notice::killed_at(state, victim.task).filter(|_| is_here)?;
        Some(StoppingTaskView { task: state.task_name(victim.task), killed_at })
    });
    let mut victims: Vec<StoppingTaskView> = victims.collect();
    victims.sort_by_key(|stopping| (Reverse(stopping.killed_at), stopping.task.clone()));
    victims
}

/// Whose end a task waits for, and how long that takes at most.
fn waits_for_room(stopping: &[StoppingTaskView], now: Time) -> Option<String> {
    let last = stopping.first()?;
    let more = match stopping.len() - 1 {
        0 => String::new(),
        more => format!(" and {} more", pluralize(more as u64, "task")),
    };
    let until = match last.killed_at.since(now) {
        Span::ZERO => "its notice is over, and it is being killed".to_owned(),
        left => format!("it has its notice, and is killed in {} at the latest", span(left)),
    };
    Some(format!("It waits for {}{more} to leave: {until}.", last.task))
}

/// Why a task is still on a draining machine, if a limit of its job is the reason.
fn waits_to_leave(state: &State, id: TaskId, row: &Task, now: Time) -> Option<String> {
    let machine = row.machine().and_then(|machine| state.machines().get(machine));
    let machine = machine.filter(|machine| machine.draining)?;
    if let Some(by) = machine.drain_by.filter(|_| row.state.holds_resources()) {
        let left = span(by.since(now));
        return Some(format!("Its machine drains: it leaves in {left} at the latest."));
    }
    let Some((job, turn)) = disruption::blocking_job(state, id, now) else {
        return Some(format!("Its machine drains; {}.", waits_for_max_down(state, id)?));
    };
    let limit = format!("the disruption limit of {}", state.job_key(job)?);
    Some(match turn {
        Time::NEVER => format!("Its machine drains; {limit} lets fewer leave at once."),
        at => format!("Its machine drains; it waits for {limit}, next in {}.", span(at.since(now))),
    })
}

/// Why a task still runs the spec from before its job's update.
fn waits_for_update(state: &State, id: TaskId, row: &Task) -> Option<String> {
    let job = state.jobs().get(row.job)?;
    let update = job.update.as_ref().filter(|_| row.version != job.version)?;
    if row.state != TaskState::Running {
        return None;
    }
    let (from, to) = (row.version, job.version);
    if update.waits_for_promotion(row.index) {
        return Some(format!(
            "It stays at version {from}: canaries try version {to}, and it has not been promoted."
        ));
    }
    if update.skipped.contains(&row.index) {
        let limit = job.spec().max_update_disruptions.unwrap_or(update.disruptions);
        return Some(format!(
            "It stays at version {from}: the update to {to} has disrupted as many as it may, \
             {limit} (`max_update_disruptions`)."
        ));
    }
    Some(match waits_for_max_down(state, id) {
        Some(waits) => {
            format!("It is still at version {from}, and to be updated to {to}; {waits}.")
        }
        None => format!("It is still at version {from}; the update to {to} has yet to reach it."),
    })
}

/// Why a task that is to be restarted still runs.
fn waits_for_restart(state: &State, id: TaskId, row: &Task) -> Option<String> {
    row.restart_due.then(|| match waits_for_max_down(state, id) {
        Some(waits) => format!("It is to be restarted; {waits}."),
        None => "It is to be restarted, when its turn comes.".to_owned(),
    })
}

/// The sentence that no more tasks of a job may be down, if that is so.
fn waits_for_max_down(state: &State, id: TaskId) -> Option<String> {
    let job = at_max_down(state, id)?;
    let key = state.job_key(job)?;
    if state.jobs().get(job)?.spec().max_down == Some(0) {
        return Some(format!("max_down of {key} is 0, so it is left alone"));
    }
    let down = state.job_load(job)?.down();
    let are = if down == 1 { "is" } else { "are" };
    Some(format!("it waits for max_down of {key}: {down} {are} down"))
}

fn stop_cause_text(cause: StopCause) -> &'static str {
    match cause {
        StopCause::Preempted => "a task of higher priority took its place",
        StopCause::Drained => "its machine is drained",
        StopCause::OverCommitted => "its machine holds more than it has",
        StopCause::AllocMoved => "its alloc stops or moves away",
        StopCause::RestartInPlace => "it starts again here with a new spec",
        StopCause::Restart => "it starts again here, as its owner asked",
        StopCause::UpdateMoves => "its new spec needs another place",
        StopCause::Unhealthy => "it failed its health check and starts again here",
        StopCause::Killed => "its owner stopped it",
        StopCause::Rebalanced => "it is better off elsewhere",
        StopCause::GangBroken => "its gang lost a task and waits as a whole",
        StopCause::ResourcePressure => "its machine stays short although others are held back",
    }
}

fn here_text(placement: &PlacementRanking, total: usize) -> String {
    let own = placement.candidates.iter().find(|candidate| candidate.here);
    let others = placement.fitting.saturating_sub(u32::from(own.is_some()));
    let best = placement.candidates.iter().find(|candidate| !candidate.here);
    match (own, best) {
        (Some(_), None) if total == 1 => "The cell has no other machine.".to_owned(),
        (Some(_), None) => format!("Of {total} machines no other would take it now."),
        (Some(own), Some(best)) => format!(
            "{others} more of {total} machines would take it now. Its own is number {} by score; \
             the best other is {}, {}.",
            own.rank,
            best.machine.name,
            compare_scores(own, best)
        ),
        (None, _) => {
            let others = pluralize(u64::from(others), "machine");
            format!("Where it is it would not be placed now; {others} would take it.")
        }
    }
}

/// The first term in which two scores differ decides.
fn compare_scores(own: &RankedMachine, other: &RankedMachine) -> String {
    let (a, b) = (own.terms, other.terms);
    let terms = [
        ("preferences kept", u64::from(a.preference), u64::from(b.preference)),
        ("spread of the job", u64::from(a.spread), u64::from(b.spread)),
        ("packages to fetch", u64::from(a.locality), u64::from(b.locality)),
        ("devices left whole", u64::from(a.devices), u64::from(b.devices)),
        ("the mix of priorities", u64::from(a.one_sided), u64::from(b.one_sided)),
        ("how well the rest packs", u64::from(a.packing), u64::from(b.packing)),
    ];
    match terms.into_iter().find(|(_, own, other)| own != other) {
        Some((term, own, other)) if own < other => format!("worse by {term}"),
        Some((term, ..)) => format!("better by {term}"),
        None => "as good".to_owned(),
    }
}

fn candidate_view(candidate: &RankedMachine) -> CandidateView {
    CandidateView {
        machine: candidate.machine.name.clone(),
        rank: candidate.rank,
        here: candidate.here,
        score: serde_json::to_value(candidate.terms).unwrap_or_default(),
    }
}

/// The jobs that have to end before this one starts.
fn dependencies(state: &State, job: &Job) -> Vec<String> {
    let keys = job.waits_for.iter().filter_map(|on| state.job_key(*on));
    keys.map(|key| key.to_string()).collect()
}

/// `a, b and c`.
fn join_with_and(words: &[String]) -> String {
    match words {
        [first @ .., last] if !first.is_empty() => format!("{} and {last}", first.join(", ")),
        _ => words.concat(),
    }
}

/// Adds the explanation of a task that is neither in the queue nor on a machine.
pub(super) fn add_inactive(view: &mut ExplanationView, state: &State, row: &Task, now: Time) {
    let ended = match row.state {
        TaskState::Deferred => {
            view.text = match &view.waits_for[..] {
                [] => "deferred: it starts when another job has ended.".to_owned(),
                [job] => format!("deferred: it starts when {job} has ended."),
                several => {
                    format!("deferred: it starts when {} have ended.", join_with_and(several))
                }
            };
            return;
        }
        TaskState::Dead(TaskOutcome::Finished) => "finished: it ended with success.".to_owned(),
        TaskState::Dead(TaskOutcome::Killed) => {
            "stopped: its owner stopped it, or shrank the job.".to_owned()
        }
        TaskState::Dead(TaskOutcome::DependencyFailed) => match failed_dependency(state, row) {
            Some(job) => format!("never ran: {job}, which it needed, did not succeed."),
            None => "never ran: a job it needed did not succeed.".to_owned(),
        },
        TaskState::Dead(TaskOutcome::Failed(exit)) => permanent_failure_text(state, row, exit),
        _ => String::new(),
    };
    let last = view.last_end.as_ref().map(|end| format!("\nLast: {}.", end.text));
    // Log time does not advance while nothing happens.
    let ago = now.since(row.changed_at);
    let ago =
        if ago == Span::ZERO { String::new() } else { format!(" That was {} ago.", span(ago)) };
    view.text = format!("{ended}{ago}{}", last.unwrap_or_default());
}

/// The sentence for a task that failed for good: by the rule that its exit matched, or because it
/// failed too often.
fn permanent_failure_text(state: &State, row: &Task, exit: ExitClass) -> String {
    match (exit, row.last_end.as_ref().map(|end| &end.why)) {
        (_, Some(Reason::NotRetried { exit, forgiven })) => {
            let rule = words::not_retried(*exit, *forgiven);
            format!("failed for good; {rule} (`restart.retry` of the job).")
        }
        (ExitClass::Lost | ExitClass::Evicted, _) => {
            "failed for good: it lost its place, and `restart.retry` of its job says that this is \
             not tried again."
                .to_owned()
        }
        _ => {
            let how = words::ended(state, exit);
            format!("failed for good: {how}, and its job allows no more failures.")
        }
    }
}

/// The explanations of a job, one after the other.
pub(super) fn job_text(
    tasks: &TaskCounts,
    groups: &[WaitingGroup],
    left_out: usize,
    is_well: bool,
) -> String {
    let counted = [
        (tasks.running, "running"),
        (tasks.pending, "pending"),
        (tasks.assigned, "starting"),
        (tasks.deferred, "deferred"),
        (tasks.stopping, "stopping"),
        (tasks.finished, "finished"),
        (tasks.failed, "failed"),
        (tasks.killed, "stopped"),
    ];
    let some = counted.iter().filter(|(count, _)| *count > 0);
    let some: Vec<String> = some.map(|(count, word)| format!("{count} {word}")).collect();
    let mut text = if some.is_empty() { "no tasks".to_owned() } else { some.join(", ") };
    text.push('.');
    if groups.is_empty() && is_well {
        text.push_str(" Nothing keeps its tasks from running.");
    }
    for group in groups {
        let indices: Vec<String> = group.tasks.iter().take(6).map(ToString::to_string).collect();
        let more = if group.count as usize > indices.len() { ", ..." } else { "" };
        let noun = if group.count == 1 { "task" } else { "tasks" };
        let indices = indices.join(", ");
        text.push_str(&format!("\n\n{} {noun} ({indices}{more})\n{}", group.count, group.why.text));
    }
    if left_out > 0 {
        text.push_str(&format!("\n\nand {left_out} more kinds of tasks that wait or fail"));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use cellwright_cell::command::Command;
    use cellwright_cell::disruption::DisruptionLimit;
    use cellwright_cell::spec::JobSpec;
    use cellwright_control::controller::testing::{Cell, job, name};

    #[test]
    fn a_task_that_waits_for_room_names_who_is_in_the_way_and_until_when() {
        let stopping = |task: &str, at| StoppingTaskView { task: task.into(), killed_at: Time(at) };
        let one = [stopping("ann/low/0", 110_000)];
        let want = "It waits for ann/low/0 to leave: it has its notice, and is killed in 1 min \
                    at the latest.";
        assert_eq!(waits_for_room(&one, Time(50_000)).unwrap(), want);
        let over = "It waits for ann/low/0 and 1 task more to leave: its notice is over, and it is \
                    being killed.";
        let two = [stopping("ann/low/0", 110_000), stopping("ann/low/1", 9)];
        assert_eq!(waits_for_room(&two, Time(110_000)).unwrap(), over);
        assert_eq!(waits_for_room(&[], Time(0)), None);
    }

    #[test]
    fn a_task_that_may_not_leave_yet_says_whose_limit_it_waits_for() {
        let mut cell = Cell::with_machines(2);
        let disruptions = Some(DisruptionLimit { most: 1, within: Span::seconds(600) });
        cell.submit(&JobSpec { disruptions, ..job("jfoo", 2) });
        cell.place_and_start();
        cell.ok(Command::StartDrain { name: name("m0"), expect: None });
        cell.control();
        let told_at = cell.now;
        cell.place_and_start();
        let text = |cell: &Cell, index: usize| {
            let (id, now) = (cell.task_id("jfoo", index), Time(told_at + 60_000));
            let mut view = base_view(&cell.state, id, TaskHistory::default(), now).unwrap();
            add_placement(&mut view, &cell.state, id, None, &UsageSnapshot::default(), now);
            view.text
        };
        let waits = "Its machine drains; it waits for the disruption limit of ubar/jfoo, next in";
        assert!(text(&cell, 1).contains(waits), "{}", text(&cell, 1));
        assert!(text(&cell, 1).contains("9 min"), "{}", text(&cell, 1));
        assert!(!text(&cell, 0).contains("waits"), "it left: {}", text(&cell, 0));
        cell.ok(Command::StopDrain { name: name("m0"), expect: None });
        assert!(!text(&cell, 1).contains("waits"), "{}", text(&cell, 1));
    }

    fn text_of(cell: &Cell, job: &str, index: usize) -> String {
        let (id, now) = (cell.task_id(job, index), Time(cell.now));
        let mut view = base_view(&cell.state, id, TaskHistory::default(), now).unwrap();
        add_placement(&mut view, &cell.state, id, None, &UsageSnapshot::default(), now);
        view.text
    }

    #[test]
    fn a_task_that_max_down_keeps_on_a_machine_that_drains_says_so() {
        let mut cell = Cell::with_machines(2);
        cell.submit(&JobSpec { max_down: Some(1), ..job("jfoo", 3) });
        cell.submit(&JobSpec { max_down: Some(0), ..job("jbar", 1) });
        cell.place_and_start();
        assert!(!text_of(&cell, "jbar", 0).contains("max_down"));
        cell.ok(Command::StartDrain { name: name("m0"), expect: None });
        let never = "Its machine drains; max_down of ubar/jbar is 0, so it is left alone.";
        assert!(text_of(&cell, "jbar", 0).contains(never), "{}", text_of(&cell, "jbar", 0));
        assert!(!text_of(&cell, "jfoo", 2).contains("waits"), "{}", text_of(&cell, "jfoo", 2));
        cell.control();
        let waits = "Its machine drains; it waits for max_down of ubar/jfoo: 1 is down.";
        assert!(text_of(&cell, "jfoo", 2).contains(waits), "{}", text_of(&cell, "jfoo", 2));
    }

    #[test]
    fn a_task_that_an_update_has_not_reached_says_what_it_waits_for() {
        let mut cell = Cell::with_machines(1);
        let mut spec = JobSpec { max_down: Some(1), ..job("jfoo", 3) };
        spec.max_update_disruptions = Some(2);
        cell.submit(&spec);
        cell.place_and_start();
        assert!(!text_of(&cell, "jfoo", 2).contains("version"), "{}", text_of(&cell, "jfoo", 2));
        spec.task.command = vec!["another".into()];
        cell.ok(Command::UpdateJob { owner: name("ubar"), spec: Box::new(spec), expect: None });
        let to_come = "It is still at version 1; the update to 2 has yet to reach it.";
        assert!(text_of(&cell, "jfoo", 2).contains(to_come), "{}", text_of(&cell, "jfoo", 2));
        cell.control();
        let waits =
            "still at version 1, and to be updated to 2; it waits for max_down of ubar/jfoo";
        assert!(text_of(&cell, "jfoo", 2).contains(waits), "{}", text_of(&cell, "jfoo", 2));
        cell.place_and_start();
        cell.control();
        cell.place_and_start();
        cell.control();
        let skipped = "It stays at version 1: the update to 2 has disrupted as many as it may, 2";
        assert!(text_of(&cell, "jfoo", 2).contains(skipped), "{}", text_of(&cell, "jfoo", 2));
        assert!(!text_of(&cell, "jfoo", 0).contains("version"), "{}", text_of(&cell, "jfoo", 0));
    }
}
