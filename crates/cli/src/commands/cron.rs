//! `cell cron`: periodic jobs; how they stand, paused and taken away. They are set by `cell run`.

use super::target::{Typed, typed};
use super::{Success, pages};
use crate::args::{OutputArgs, WatchArgs};
use crate::failure::Failure;
use crate::output::{Output, aside, print_json, say};
use crate::reach::{Cell, Reach};
use crate::server::ask;
use crate::{clock, format, table};
use cellwright_api::client::Change;
use cellwright_api::types::{Changed, CronView};
use cellwright_cell::name::JobKey;
use cellwright_cell::time::Span;
use clap::{Args, Subcommand};
use hyper::Method;

/// Crons: ls, pause, resume, rm
#[derive(Debug, Subcommand)]
pub enum Cron {
    /// List the crons with their next run
    Ls(LsArgs),
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
            Cron::Pause(args) => paused(&cell, &ask(args.cron.cron(&cell))?, true)?,
            Cron::Resume(args) => paused(&cell, &ask(args.cron.cron(&cell))?, false)?,
            Cron::Rm(args) => {
                let key = ask(args.cron.cron(&cell))?;
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

fn paused(cell: &Cell, key: &JobKey, pause: bool) -> Result<(), Failure> {
    let done: Changed = ask(async {
        let view = cell.client.cron(key).await?.value.item;
        let mut spec = view.spec;
        if !spec.job.task.secrets.is_empty() {
            return Err(Failure::Work {
                message: format!("cron {key} has secrets, which are never shown"),
                next: "set `paused` in its file: cell run FILE".into(),
            });
        }
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
