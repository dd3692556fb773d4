//! Periodic jobs in the tests of the kernel (`tests/kernel`, of which this is a module): samples
//! for the pinned bytes, random commands, and their words in transcripts.

use crate::build;
use crate::draw::Draw;
use crate::generate::user_name;
use crate::options::{Options, seconds};
use crate::samples;
use crate::specs;
use crate::tokens_and_blobs::{expect, parse_key};
use crate::wire::{Pins, every_variant, one};
use cellwright_cell::command;
use cellwright_cell::cron::schedule::Schedule;
use cellwright_cell::cron::{
    Command, Cron, CronChange, CronSpec, Event, MissedRuns, Overlap, due_slots,
};
use cellwright_cell::id::{CronId, JobId};
use cellwright_cell::name::{JobKey, Name};
use cellwright_cell::state::State;
use cellwright_cell::time::Time;

pub fn commands() -> Vec<Command> {
    let cron = build::job_key("ada", "web");
    vec![
        Command::Set { owner: build::name("ada"), spec: Box::new(spec()), expect: Some(2) },
        Command::Remove { cron: cron.clone(), expect: None },
        Command::Fire { cron: cron.clone(), slot: Time(60_000) },
        Command::Run { cron },
    ]
}

/// One event of each change.
pub fn events() -> Vec<Event> {
    let (slot, job) = (Time(60_000), JobId(4));
    let changes = [
        CronChange::Added,
        CronChange::Updated { version: 2 },
        CronChange::Removed,
        CronChange::Fired { slot, job },
        CronChange::Skipped { slot },
        CronChange::Rejected { slot },
        CronChange::RunByHand { job },
    ];
    changes.map(|change| Event { cron: CronId(1), change }).to_vec()
}

fn spec() -> CronSpec {
    CronSpec {
        name: build::name("web"),
        schedule: Schedule::new("*/5 3 1-7 * mon").expect("a schedule"),
        job: samples::job_spec(),
        missed: MissedRuns::RunAll { max: 5 },
        overlap: Overlap::Replace,
        paused: true,
        keep_runs: 7,
    }
}

pub fn pin(pins: &mut Pins) {
    every_variant(pins, "CronCommand", &commands());
    let changes: Vec<CronChange> = events().into_iter().map(|event| event.change).collect();
    every_variant(pins, "CronChange", &changes);
    one(pins, "CronSpec", &spec());
    let missed = [MissedRuns::Skip, MissedRuns::RunOnce, MissedRuns::RunAll { max: 5 }];
    every_variant(pins, "MissedRuns", &missed);
    every_variant(pins, "Overlap", &[Overlap::Allow, Overlap::Skip, Overlap::Replace]);
}

pub fn owner(command: &Command) -> Option<Name> {
    match command {
        Command::Set { owner, .. } => Some(owner.clone()),
        Command::Remove { cron, .. } | Command::Run { cron } => Some(cron.user.clone()),
        Command::Fire { .. } => None,
    }
}

pub fn random(state: &State, draw: &mut Draw) -> command::Command {
    let command = match draw.below(12) {
        0..4 => set(draw),
        4 => Command::Remove { cron: key(draw), expect: expect(draw) },
        5 => Command::Run { cron: key(draw) },
        _ => fire(state, draw),
    };
    command.into()
}

fn key(draw: &mut Draw) -> JobKey {
    build::job_key(&user_name(draw), &format!("c{}", draw.below(2)))
}

fn set(draw: &mut Draw) -> Command {
    let JobKey { user, job } = key(draw);
    let schedules = ["* * * * *", "*/7 * * * *", "0 */2 * * *", "30 3 29 2 *"];
    let missed = [MissedRuns::Skip, MissedRuns::RunOnce, MissedRuns::RunAll { max: 3 }];
    let overlaps = [Overlap::Allow, Overlap::Skip, Overlap::Replace];
    let schedule = Schedule::new(draw.pick(&schedules).unwrap_or(&"* * * * *"));
    let spec = CronSpec {
        schedule: schedule.expect("schedules in tests are valid"),
        job: specs::job(if draw.one_in(12) { "other" } else { job.as_str() }, draw),
        name: job,
        missed: *draw.pick(&missed).unwrap_or(&MissedRuns::Skip),
        overlap: *draw.pick(&overlaps).unwrap_or(&Overlap::Allow),
        paused: draw.one_in(8),
        keep_runs: draw.below(4) as u32,
    };
    Command::Set { owner: user, spec: Box::new(spec), expect: expect(draw) }
}

/// Mostly a slot that a controller would fire.
fn fire(state: &State, draw: &mut Draw) -> Command {
    let all: Vec<&Cron> = state.crons().iter().map(|(_, cron)| cron).collect();
    let Some(cron) = draw.pick(&all).filter(|_| !draw.one_in(20)) else {
        return Command::Fire { cron: key(draw), slot: Time(draw.below(90) * 60_000) };
    };
    let owner = state.users().get(cron.user).map(|user| user.name.clone());
    let user = owner.unwrap_or_else(|| build::name("u0"));
    let slot = match draw.below(8) {
        0 => cron.last_slot,
        1 => cron.spec.schedule.next_after(state.now()),
        2 => Time(state.now().0 - state.now().0 % 60_000),
        3 => cron.spec.schedule.next_after(cron.last_slot),
        _ => due_slots(cron, state.now()).first().copied().unwrap_or(cron.last_slot),
    };
    Command::Fire { cron: JobKey { user, job: cron.spec.name.clone() }, slot }
}

/// Parses commands of transcripts. A schedule is one word, with `_` for its spaces.
pub fn parse_command(verb: &str, rest: &[&str]) -> Result<Option<command::Command>, String> {
    let command = match (verb, rest) {
        ("cron", [key, schedule, options @ ..]) => parse_set(key, schedule, options)?,
        ("remove-cron", [key]) => Command::Remove { cron: parse_key(key)?, expect: None },
        ("run-cron", [key]) => Command::Run { cron: parse_key(key)? },
        ("fire", [key, slot]) => {
            let slot = Time::ZERO.plus(seconds(slot)?);
            Command::Fire { cron: parse_key(key)?, slot }
        }
        _ => return Ok(None),
    };
    Ok(Some(command.into()))
}

fn parse_set(key: &str, schedule: &str, options: &[&str]) -> Result<Command, String> {
    let JobKey { user, job } = parse_key(key)?;
    let schedule = Schedule::new(&schedule.replace('_', " ")).map_err(|bad| bad.to_string())?;
    let mut options = Options::new(options)?;
    let missed = match options.text("missed") {
        None | Some("skip") => MissedRuns::Skip,
        Some("once") => MissedRuns::RunOnce,
        Some(max) => MissedRuns::RunAll { max: max.parse().map_err(|_| "missed=".to_owned())? },
    };
    let overlap = match options.text("overlap") {
        None | Some("allow") => Overlap::Allow,
        Some("skip") => Overlap::Skip,
        Some("replace") => Overlap::Replace,
        Some(other) => return Err(format!("there is no overlap {other:?}")),
    };
    let paused = options.text("paused").is_some();
    let keep_runs = options.number("keep-runs")?.map_or(3, |count| count as u32);
    let expect = options.number("expect")?.map(|version| version as u32);
    let spec = build::job(job.as_str(), 200, 1, build::room(1, 1, 0));
    let (name, job) = (job, options.job(spec)?);
    let spec = CronSpec { name, schedule, job, missed, overlap, paused, keep_runs };
    Ok(Command::Set { owner: user, spec: Box::new(spec), expect })
}
