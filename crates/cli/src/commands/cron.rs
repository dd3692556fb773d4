//! `cell cron`: periodic jobs; how they stand, run at once, paused and taken away. They are set by
//! `cell run`.

use super::target::{Accepted, Typed, typed};
use super::{Success, pages};
use crate::args::{OutputArgs, WatchArgs};
use crate::failure::Failure;
use crate::output::{Output, aside, print_json, say};
use crate::reach::{Cell, Reach};
use crate::server::ask;
use crate::{clock, format, table};
use cellwright_api::client::Change;
use cellwright_api::types::{Changed, CronView};
use cellwright_cell::cron::CronSpec;
use cellwright_cell::name::{JobKey, Name};
use cellwright_cell::spec::JobSpec;
use cellwright_cell::time::{Span, Time};
use clap::{Args, Subcommand};
use hyper::Method;

/// Crons: ls, run, pause, resume, rm
#[derive(Debug, Subcommand)]
pub enum Cron {
    /// List the crons with their next run
    Ls(LsArgs),
    /// Start one run now, beside those of the schedule and whatever else runs
    Run(OneArgs),
    /// No more runs until it is resumed; those of the meantime are not made up for
    Pause(OneArgs),
    /// Runs again at its next slot
    Resume(OneArgs),
    /// Take a cron away; its jobs stay
    Rm(OneArgs),
}

#[derive(Debug, Args)]
pub struct LsArgs {
    #[command(flatten)]
    watch: WatchArgs,

    #[command(flatten)]
    output: OutputArgs,
}

#[derive(Debug, Args)]
pub struct OneArgs {
    /// Its name, as `cell cron ls` shows it
    #[arg(value_name = "CRON", value_parser = typed)]
    cron: Typed,
}

impl OneArgs {
    fn key(&self, cell: &Cell) -> Result<JobKey, Failure> {
        ask(self.cron.cron(cell, Accepted::Beginnings))
    }
}

impl Cron {
    pub fn run(self, reach: &Reach) -> Result<Success, Failure> {
        let cell = reach.cell()?;
        match self {
            Cron::Ls(args) => {
                let all = pages::all(async |page| Ok(cell.client.crons(page).await?.value));
                let crons: Vec<CronView> = ask(all)?;
                match args.output.output {
                    Output::Json => print_json(&crons)?,
                    Output::Table if crons.is_empty() => {
                        aside("no crons; next: cell init nightly --cron");
                    }
                    Output::Table => say(&list(&crons))?,
                }
            }
            Cron::Run(args) => run_now(&cell, &args.key(&cell)?)?,
            Cron::Pause(args) => paused(&cell, &args.key(&cell)?, true)?,
            Cron::Resume(args) => paused(&cell, &args.key(&cell)?, false)?,
            Cron::Rm(args) => {
                let key = ask(args.cron.cron(&cell, Accepted::Whole))?;
                let path = format!("/v1/crons/{}/{}", key.user, key.job);
                let (none, change) = (None::<&()>, Change::default());
                let _: Changed = ask(async {
                    Ok(cell.client.change(Method::DELETE, &path, none, &change).await?.value)
                })?;
                say(&format!("cron {key} is gone; its jobs stay\n"))?;
            }
        }
        Ok(Success::Done)
    }
}

/// Whoever has read a spec with secrets would write it back without them.
fn has_no_secrets(spec: &CronSpec, key: &JobKey, next: &str) -> Result<(), Failure> {
    match spec.job.task.secrets.is_empty() {
        true => Ok(()),
        false => Err(Failure::Work {
            message: format!("cron {key} has secrets, which are never shown"),
            next: next.to_owned(),
        }),
    }
}

/// Submits its job under a name that no slot has: those end with a minute, this with a second.
fn run_now(cell: &Cell, key: &JobKey) -> Result<(), Failure> {
    let name = name_of_run(key, clock::now())?;
    let run = JobKey { user: key.user.clone(), job: name.clone() };
    ask(async {
        let spec = cell.client.cron(key).await?.value.item.spec;
        has_no_secrets(&spec, key, "run its job from a file: cell run FILE")?;
        let job = JobSpec { name, ..spec.job };
        let submitted = cell.client.submit_job(Some(&key.user), &job).await;
        submitted.map_err(|error| Failure::of_change(error, &format!("cell status {run}")))?;
        Ok(())
    })?;
    say(&format!("cron {key} runs now, as job {run}\nnext: cell status {run}\n"))
}

/// `tick-20261116120507`.
fn name_of_run(key: &JobKey, now: Time) -> Result<Name, Failure> {
    let stamp: String = format::utc(now).chars().filter(char::is_ascii_digit).collect();
    Name::new(&format!("{}-{stamp}", key.job)).map_err(|bad| Failure::Work {
        message: bad.to_string(),
        next: "a shorter name for it, in its file: cell run FILE".into(),
    })
}

fn paused(cell: &Cell, key: &JobKey, pause: bool) -> Result<(), Failure> {
    let done: Changed = ask(async {
        let view = cell.client.cron(key).await?.value.item;
        let mut spec = view.spec;
        has_no_secrets(&spec, key, "set `paused` in its file: cell run FILE")?;
        spec.paused = pause;
        let change = Change { expect: Some(view.version), ..Change::default() };
        let path = format!("/v1/crons/{}/{}", key.user, key.job);
        Ok(cell.client.change(Method::PUT, &path, Some(&spec), &change).await?.value)
    })?;
    let what = match (pause, done.changed) {
        (true, true) => "is paused",
        (true, false) => "was paused already",
        (false, true) => "runs again",
        (false, false) => "was not paused",
    };
    say(&format!("cron {key} {what}\nnext: cell cron ls\n"))
}

fn list(crons: &[CronView]) -> String {
    let now = clock::now();
    let rows: Vec<Vec<String>> = crons
        .iter()
        .map(|cron| {
            let next = match cron.next_slot {
                Some(slot) => format!("in {}", format::span(Span(slot.0.saturating_sub(now.0)))),
                None if cron.spec.paused => "paused".into(),
                None => "never".into(),
            };
            vec![
                format!("{}/{}", cron.user, cron.name),
                super::words::word(&cron.spec.schedule),
                next,
                cron.last_job.as_ref().map_or("-".into(), ToString::to_string),
            ]
        })
        .collect();
    table::render(&["cron", "schedule", "next run", "last run"], &rows)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_of_now_is_named_by_its_second() {
        let key = super::super::parse::job("dev/tick").unwrap();
        assert_eq!(name_of_run(&key, Time(0)).unwrap().as_str(), "tick-19700101000000");
        let long = JobKey { job: Name::new(&"a".repeat(60)).unwrap(), ..key };
        assert!(name_of_run(&long, Time(0)).is_err());
    }
}
