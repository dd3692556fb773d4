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
use cellwright_cell::name::JobKey;
use cellwright_cell::time::Span;
use clap::{Args, Subcommand};
use hyper::Method;

/// Crons: ls, run, pause, resume, rm
#[derive(Debug, Subcommand)]
pub enum Cron {
    /// List the crons with their next run
    Ls(LsArgs),
    /// Start one run now, which counts among the others; it overlaps as they may
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

/// Has the cell submit a run at once.
fn run_now(cell: &Cell, key: &JobKey) -> Result<(), Failure> {
    let (changed, last) = block_on(async {
        let done = cell.client.run_cron(key, &ChangeOptions::default()).await;
        let done = done.map_err(|error| Failure::from_change(error, "cell cron ls"))?;
        let last = cell.client.cron(key).await?.value.item.last_job;
        Ok((done.value.changed, last))
    })?;
    let run = last.unwrap_or_else(|| key.clone());
    let said = if changed { "runs now" } else { "has begun to run this second" };
    print_prose(&format!("cron {key} {said}, as job {run}\nnext: cell status {run}\n"))
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
