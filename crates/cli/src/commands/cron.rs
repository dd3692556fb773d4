//! `cell cron`: lists periodic jobs, runs them at once, pauses and removes them. They are set by
//! `cell run`.

use super::target::{NameMatch, TargetArg, parse_target};
use super::{Success, pagination};
use crate::args::{OutputArgs, WatchArgs};
use crate::connection::{Cell, ConnectionArgs};
use crate::failure::Failure;
use crate::output::{Output, print_json, print_notice, print_prose};
use crate::runtime::block_on;
use crate::{clock, format, table};
use cellwright_api::client::ChangeOptions;
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
    Run(CronArgs),
    /// No more runs until it is resumed; those of the meantime are not made up for
    Pause(CronArgs),
    /// Runs again at its next slot
    Resume(CronArgs),
    /// Take a cron away; its jobs stay
    Rm(CronArgs),
}

#[derive(Debug, Args)]
pub struct LsArgs {
    #[command(flatten)]
    watch: WatchArgs,

    #[command(flatten)]
    output: OutputArgs,
}

#[derive(Debug, Args)]
pub struct CronArgs {
    /// Its name, as `cell cron ls` shows it
    #[arg(value_name = "CRON", value_parser = parse_target)]
    cron: TargetArg,
}

impl CronArgs {
    fn key(&self, cell: &Cell) -> Result<JobKey, Failure> {
        block_on(self.cron.resolve_cron(cell, NameMatch::Prefix))
    }
}

impl Cron {
    pub fn run(self, connection: &ConnectionArgs) -> Result<Success, Failure> {
        let cell = connection.cell()?;
        match self {
            Cron::Ls(args) => {
                let all =
                    pagination::fetch_all(async |page| Ok(cell.client.crons(page).await?.value));
                let crons: Vec<CronView> = block_on(all)?;
                match args.output.output {
                    Output::Json => print_json(&crons)?,
                    Output::Table if crons.is_empty() => {
                        print_notice("no crons; next: cell init nightly --cron");
                    }
                    Output::Table => print_prose(&render_list(&crons))?,
                }
            }
            Cron::Run(args) => run_now(&cell, &args.key(&cell)?)?,
            Cron::Pause(args) => set_paused(&cell, &args.key(&cell)?, true)?,
            Cron::Resume(args) => set_paused(&cell, &args.key(&cell)?, false)?,
            Cron::Rm(args) => {
                let key = block_on(args.cron.resolve_cron(&cell, NameMatch::Exact))?;
                let path = format!("/v1/crons/{}/{}", key.user, key.job);
                let (none, change) = (None::<&()>, ChangeOptions::default());
                let _: Changed = block_on(async {
                    Ok(cell.client.change(Method::DELETE, &path, none, &change).await?.value)
                })?;
                print_prose(&format!("cron {key} is gone; its jobs stay\n"))?;
            }
        }
        Ok(Success::Done)
    }
}

/// A spec is returned without its secrets, so writing it back would lose them.
fn check_no_secrets(spec: &CronSpec, key: &JobKey, next: &str) -> Result<(), Failure> {
    if spec.job.task.secrets.is_empty() {
        Ok(())
    } else {
        Err(Failure::Operation {
            message: format!("cron {key} has secrets, which are never shown"),
            next: next.to_owned(),
        })
    }
}

/// Submits the cron's job at once, under a name that no scheduled run has: those names end with a
/// minute, this one with a second.
fn run_now(cell: &Cell, key: &JobKey) -> Result<(), Failure> {
    let name = run_name(key, clock::now())?;
    let run = JobKey { user: key.user.clone(), job: name.clone() };
    block_on(async {
        let spec = cell.client.cron(key).await?.value.item.spec;
        check_no_secrets(&spec, key, "run its job from a file: cell run FILE")?;
        let job = JobSpec { name, ..spec.job };
        let submitted = cell.client.submit_job(Some(&key.user), &job).await;
        submitted.map_err(|error| Failure::from_change(error, &format!("cell status {run}")))?;
        Ok(())
    })?;
    print_prose(&format!("cron {key} runs now, as job {run}\nnext: cell status {run}\n"))
}

/// `tick-20261116120507`.
fn run_name(key: &JobKey, now: Time) -> Result<Name, Failure> {
    let stamp: String = format::utc(now).chars().filter(char::is_ascii_digit).collect();
    Name::new(&format!("{}-{stamp}", key.job)).map_err(|bad| Failure::Operation {
        message: bad.to_string(),
        next: "a shorter name for it, in its file: cell run FILE".into(),
    })
}

fn set_paused(cell: &Cell, key: &JobKey, is_paused: bool) -> Result<(), Failure> {
    let done: Changed = block_on(async {
        let view = cell.client.cron(key).await?.value.item;
        let mut spec = view.spec;
        check_no_secrets(&spec, key, "set `paused` in its file: cell run FILE")?;
        spec.paused = is_paused;
        let change = ChangeOptions { expect: Some(view.version), ..ChangeOptions::default() };
        let path = format!("/v1/crons/{}/{}", key.user, key.job);
        Ok(cell.client.change(Method::PUT, &path, Some(&spec), &change).await?.value)
    })?;
    let outcome = match (is_paused, done.changed) {
        (true, true) => "is paused",
        (true, false) => "was paused already",
        (false, true) => "runs again",
        (false, false) => "was not paused",
    };
    print_prose(&format!("cron {key} {outcome}\nnext: cell cron ls\n"))
}

fn render_list(crons: &[CronView]) -> String {
    let now = clock::now();
    let rows: Vec<Vec<String>> = crons
        .iter()
        .map(|cron| {
            let next = match cron.next_slot {
                Some(slot) => {
                    format!("in {}", format::duration(Span(slot.0.saturating_sub(now.0))))
                }
                None if cron.spec.paused => "paused".into(),
                None => "never".into(),
            };
            vec![
                format!("{}/{}", cron.user, cron.name),
                super::enum_words::enum_text(&cron.spec.schedule),
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
        let key = super::super::parse::job_key("dev/tick").unwrap();
        assert_eq!(run_name(&key, Time(0)).unwrap().as_str(), "tick-19700101000000");
        let long = JobKey { job: Name::new(&"a".repeat(60)).unwrap(), ..key };
        assert!(run_name(&long, Time(0)).is_err());
    }
}
