//! Rollouts in the tests of the kernel (`tests/kernel`, of which this is a module): samples for the
//! pinned bytes, random commands, and their words in transcripts.

use crate::build;
use crate::draw::Draw;
use crate::generate::some_job;
use crate::samples;
use crate::tokens_and_blobs::{expect, parse_key};
use crate::wire::{Pins, every_variant, one};
use cellwright_cell::Actor;
use cellwright_cell::command;
use cellwright_cell::id::JobId;
use cellwright_cell::name::Name;
use cellwright_cell::rollout::{
    Command, Event, JobVersion, RolledBack, RolloutChange, VersionOrigin,
};
use cellwright_cell::state::State;
use cellwright_cell::time::Time;
use std::sync::Arc;

pub fn commands() -> Vec<Command> {
    let job = build::job_key("ada", "web");
    vec![
        Command::Revert { job: job.clone(), version: 3, expect: Some(5) },
        Command::Promote { job: job.clone(), expect: None },
        Command::Finish { job, expect: Some(2) },
    ]
}

/// One event of each change.
pub fn events() -> Vec<Event> {
    let changes = [RolloutChange::Promoted, RolloutChange::Finishing, RolloutChange::Dropped];
    changes.map(|change| Event { job: JobId(2), version: 4, change }).to_vec()
}

pub fn pin(pins: &mut Pins) {
    every_variant(pins, "RolloutCommand", &commands());
    let changes: Vec<RolloutChange> = events().into_iter().map(|event| event.change).collect();
    every_variant(pins, "RolloutChange", &changes);
    let origins = [
        VersionOrigin::Submitted,
        VersionOrigin::Updated { from: 2 },
        VersionOrigin::Resized { from: 3 },
        VersionOrigin::Reverted { from: 4, to: 2 },
    ];
    every_variant(pins, "VersionOrigin", &origins);
    let row = JobVersion {
        job: JobId(2),
        version: 5,
        at: Time(7000),
        by: Actor::User(build::name("ada")),
        origin: VersionOrigin::Updated { from: 4 },
        changed: vec!["task.env".to_owned()],
        spec: Some(Arc::new(samples::job_spec())),
        rolled_back: Some(RolledBack { at: Time(8000), failures: 3, retried: false }),
    };
    one(pins, "JobVersion", &row);
}

pub fn owner(command: &Command) -> Option<Name> {
    let (Command::Revert { job, .. } | Command::Promote { job, .. } | Command::Finish { job, .. }) =
        command;
    Some(job.user.clone())
}

pub fn random(state: &State, draw: &mut Draw) -> command::Command {
    let job = some_job(state, draw);
    let version = 1 + draw.below(4) as u32;
    let expect = expect(draw);
    let command = match draw.below(4) {
        0 | 1 => Command::Revert { job, version, expect },
        2 => Command::Promote { job, expect },
        _ => Command::Finish { job, expect },
    };
    command.into()
}

/// Parses commands of transcripts.
pub fn parse_command(verb: &str, rest: &[&str]) -> Result<Option<command::Command>, String> {
    let expect = None;
    let command = match (verb, rest) {
        ("revert", [job, version]) => {
            let version = version.parse().map_err(|_| "a version".to_owned())?;
            Command::Revert { job: parse_key(job)?, version, expect }
        }
        ("promote", [job]) => Command::Promote { job: parse_key(job)?, expect },
        ("finish", [job]) => Command::Finish { job: parse_key(job)?, expect },
        _ => return Ok(None),
    };
    Ok(Some(command.into()))
}
