//! Versions of a job: `cell job history`, `diff` and `revert`.
//!
//! Going back is asked for twice: what it would do first, which is printed, and then exactly that.
//! The second request names the version that the first one saw, so nothing can come in between.

use crate::args::OutputArgs;
use crate::commands::Success;
use crate::commands::plan::render::render_changes;
use crate::commands::target::{TargetArg, parse_target};
use crate::commands::update::closed_message;
use crate::connection::{Cell, ConnectionArgs};
use crate::failure::Failure;
use crate::format;
use crate::output::{Output, print, print_json, print_notice, print_prose};
use crate::runtime::block_on;
use crate::{style, table};
use cellwright_api::client::ChangeOptions;
use cellwright_api::types::{Applied, JobVersions, VersionDiff, VersionView};
use cellwright_cell::command::ApplyOutcome;
use cellwright_cell::name::JobKey;
use clap::Args;

#[derive(Debug, Args)]
pub struct HistoryArgs {
    /// Which
    #[arg(value_name = "JOB", value_parser = parse_target)]
    job: TargetArg,

    #[command(flatten)]
    output: OutputArgs,
}

#[derive(Debug, Args)]
pub struct DiffArgs {
    /// Which
    #[arg(value_name = "JOB", value_parser = parse_target)]
    job: TargetArg,

    /// The older version [default: the one before]
    #[arg(value_name = "V1", value_parser = clap::value_parser!(u32).range(1..))]
    from: Option<u32>,

    /// The newer version [default: the job's]
    #[arg(value_name = "V2", value_parser = clap::value_parser!(u32).range(1..))]
    to: Option<u32>,

    #[command(flatten)]
    output: OutputArgs,
}

/// Go back to an earlier version of a job, by a rolling update
#[derive(Debug, Args)]
pub struct RevertArgs {
    /// Which
    #[arg(value_name = "JOB", value_parser = parse_target)]
    job: TargetArg,

    /// The version whose spec the job is to have again [default: the one before]
    #[arg(value_name = "VERSION", value_parser = clap::value_parser!(u32).range(1..))]
    version: Option<u32>,

    /// Only say what would be done
    #[arg(long)]
    dry_run: bool,

    #[command(flatten)]
    output: OutputArgs,
}

impl HistoryArgs {
    pub fn run(self, connection: &ConnectionArgs) -> Result<Success, Failure> {
        let cell = connection.cell()?;
        let found = block_on(async {
            let key = self.job.resolve(&cell).await?.job;
            Ok::<_, Failure>(cell.client.versions(&key).await?.value.item)
        })?;
        match self.output.output {
            Output::Json => print_json(&found.versions)?,
            Output::Table => print(&render_history(&found))?,
        }
        Ok(Success::Done)
    }
}

fn render_history(found: &JobVersions) -> String {
    let rows: Vec<Vec<String>> = found
        .versions
        .iter()
        .map(|row| {
            let tasks = match row.tasks {
                0 => String::new(),
                some => format::count(some.into()),
            };
            let change = match mark(row) {
                Some(mark) => format!("{}; {mark}", row.change),
                None => row.change.clone(),
            };
            vec![row.version.to_string(), format::utc(row.at), row.by.clone(), tasks, change]
        })
        .collect();
    table::render_with_text_column(&["version", "made", "by", "tasks", "change"], &rows)
}

/// What became of a version.
fn mark(row: &VersionView) -> Option<String> {
    let back = row.rolled_back?;
    let failed = format::pluralize(u64::from(back.failures), "attempt");
    Some(format!("rolled back, {failed} failed"))
}

impl DiffArgs {
    pub fn run(self, connection: &ConnectionArgs) -> Result<Success, Failure> {
        let cell = connection.cell()?;
        let diff = block_on(async {
            let key = self.job.resolve(&cell).await?.job;
            Ok::<_, Failure>(cell.client.diff_versions(&key, self.to, self.from).await?.value.item)
        })?;
        match self.output.output {
            Output::Json => print_json(&diff)?,
            Output::Table => print(&render_diff(&diff))?,
        }
        Ok(Success::Done)
    }
}

fn render_diff(diff: &VersionDiff) -> String {
    let VersionDiff { user, name, from, to, changes, redacted, .. } = diff;
    let hidden = if *redacted { ", without what it runs" } else { "" };
    let mut out = format!("{user}/{name}: version {from} -> {to}{hidden}\n");
    if changes.is_empty() {
        out.push_str("  no difference\n");
    } else {
        out.push_str(&render_changes(changes, style::for_stdout()));
    }
    out
}

impl RevertArgs {
    pub fn run(self, connection: &ConnectionArgs) -> Result<Success, Failure> {
        let cell = connection.cell()?;
        let (key, version, planned) = block_on(self.plan(&cell))?;
        let is_table = self.output.output == Output::Table;
        if is_table && !planned.changes.is_empty() {
            print(&render_changes(&planned.changes, style::for_stdout()))?;
        }
        if self.dry_run || planned.became == ApplyOutcome::Unchanged {
            return self.show(&key, &planned);
        }
        let applied = block_on(revert(&cell, &key, version, planned.expect))?;
        if let Some(closed) = applied.closed_update {
            print_notice(&closed_message(&key, closed));
        }
        for warning in &applied.warnings {
            print_notice(&format!("warning: {warning}"));
        }
        self.show(&key, &applied)
    }

    /// What going back to which version would do.
    async fn plan(&self, cell: &Cell) -> Result<(JobKey, u32, Applied), Failure> {
        let key = self.job.resolve(cell).await?.job;
        let version = self.target(cell, &key).await?;
        let change = ChangeOptions::default();
        let planned = cell.client.revert_job(&key, version, true, &change).await?.value;
        Ok((key, version, planned))
    }

    /// The version to go back to.
    async fn target(&self, cell: &Cell, key: &JobKey) -> Result<u32, Failure> {
        match self.version {
            Some(version) => Ok(version),
            None => {
                let found = cell.client.versions(key).await?.value.item;
                version_before(&found.versions).ok_or_else(|| Failure::Operation {
                    message: format!("{key} has no version before its present one"),
                    next: format!("cell job history {key}"),
                })
            }
        }
    }

    fn show(&self, key: &JobKey, applied: &Applied) -> Result<Success, Failure> {
        if self.output.output == Output::Json {
            print_json(applied)?;
            return Ok(Success::Done);
        }
        let version = applied.version;
        let outcome = match (applied.became, self.dry_run) {
            (ApplyOutcome::Unchanged, _) => "has that spec already".to_owned(),
            (_, true) => format!("would be updated to version {version}; nothing was changed"),
            (_, false) => format!("is being updated to version {version}"),
        };
        print_prose(&format!("job {key} {outcome}\nnext: cell update {key}\n"))?;
        Ok(Success::Done)
    }
}

/// Goes back, if the job is as it was seen.
async fn revert(
    cell: &Cell,
    key: &JobKey,
    version: u32,
    expect: Option<u32>,
) -> Result<Applied, Failure> {
    let change = ChangeOptions { expect, ..ChangeOptions::default() };
    let answer = cell.client.revert_job(key, version, false, &change).await;
    let in_doubt = |error| Failure::from_change(error, &format!("cell status {key}"));
    Ok(answer.map_err(in_doubt)?.value)
}

/// Where the present version came from, or the newest older one that did not fail.
fn version_before(versions: &[VersionView]) -> Option<u32> {
    let current = versions.iter().find(|row| row.current)?;
    let usable = |row: &&VersionView| row.version < current.version && row.rolled_back.is_none();
    let from = current.origin.previous();
    let older = || versions.iter().filter(usable).map(|row| row.version);
    from.filter(|from| older().any(|version| version == *from)).or_else(|| older().max())
}

#[cfg(test)]
mod tests {
    use super::*;
    use cellwright_cell::rollout::{RolledBack, VersionOrigin};
    use cellwright_cell::time::Time;

    fn row(version: u32, origin: VersionOrigin, current: bool) -> VersionView {
        VersionView {
            version,
            at: Time(0),
            by: "user:dev".into(),
            change: "task.env".into(),
            origin,
            current,
            tasks: if current { 3 } else { 0 },
            rolled_back: None,
        }
    }

    #[test]
    fn one_goes_back_to_where_the_present_version_came_from() {
        let first = row(1, VersionOrigin::Submitted, false);
        let second = row(2, VersionOrigin::Updated { from: 1 }, false);
        let third = row(3, VersionOrigin::Updated { from: 1 }, true);
        assert_eq!(version_before(&[first.clone(), second.clone(), third.clone()]), Some(1));
        assert_eq!(version_before(&[second.clone(), third.clone()]), Some(2), "1 was dropped");
        let back = Some(RolledBack { at: Time(0), failures: 1, retried: false });
        let failed = VersionView { rolled_back: back, ..second };
        assert_eq!(version_before(&[failed, third]), None, "it failed");
        assert_eq!(version_before(&[VersionView { current: true, ..first }]), None);
    }

    #[test]
    fn history_says_what_became_of_each_version() {
        let back = Some(RolledBack { at: Time(0), failures: 2, retried: false });
        let failed = row(2, VersionOrigin::Updated { from: 1 }, false);
        let name = |text: &str| cellwright_cell::name::Name::new(text).unwrap();
        let found = JobVersions {
            user: name("dev"),
            name: name("web"),
            versions: vec![
                row(1, VersionOrigin::Submitted, true),
                VersionView { rolled_back: back, ..failed },
            ],
        };
        let text = render_history(&found);
        assert!(text.contains("1970-01-01 00:00:00Z"), "{text}");
        let words = text.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(words.contains("task.env; rolled back, 2 attempts failed"), "{text}");
    }
}
