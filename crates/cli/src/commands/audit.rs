//! `cell audit`: the audit log, who requested what and with which result.

use super::Success;
use crate::args::OutputArgs;
use crate::connection::{Cell, ConnectionArgs};
use crate::failure::Failure;
use crate::format;
use crate::output::{ItemStream, Output, print, print_notice};
use crate::runtime::block_on;
use crate::table;
use cellwright_api::client::PageRequest;
use cellwright_api::types::AuditView;
use cellwright_cell::time::Time;
use clap::Args;

const AFTER_HELP: &str = "\
Examples:
  cell audit
  cell audit --caller ann
  cell audit --object ann/web
  cell audit -o jsonl

Users with the capability manage_users may read it. Each replica keeps what it
was asked itself, and the one that answers says what it has; `cell --context`
and --master choose which.

What users ask for is taken down with their names, and so are sessions
(cell exec) and who was turned away. In an open cell (cell dev, or masters
without identities) nobody has a name: there it is only sessions and changes of
the masters themselves. What happened there all the same: cell events. A cell
that knows its users: cell master init.";

/// Notes on what an audit log of an open cell cannot contain.
const OPEN_CELL_NOTES: [&str; 3] = [
    "this cell is open: whoever has its token is the operator, and no users are told apart",
    "what happened: cell events",
    "a cell with users: cell master init",
];

/// Marks a gap in the audit log.
const GAP: &str = "    lines are missing here: cell master status";

/// Who asked for what, and what became of it, oldest first
#[derive(Debug, Args)]
#[command(after_help = AFTER_HELP)]
pub struct AuditArgs {
    /// Only what this caller asked for
    #[arg(long, value_name = "NAME")]
    caller: Option<String>,

    /// Only about this object, or what begins so
    #[arg(long, value_name = "OBJECT")]
    object: Option<String>,

    /// Only what came after this cursor, as printed with -o json
    #[arg(long, value_name = "CURSOR")]
    after: Option<String>,

    #[command(flatten)]
    output: OutputArgs,
}

impl AuditArgs {
    pub fn run(self, connection: &ConnectionArgs) -> Result<Success, Failure> {
        let cell = connection.cell()?;
        block_on(self.show(&cell))?;
        Ok(Success::Done)
    }

    async fn show(&self, cell: &Cell) -> Result<(), Failure> {
        let is_table = self.output.output == Output::Table;
        let mut items = ItemStream::new(false)?;
        let (mut oldest, mut any_found) = (None, false);
        let mut page =
            PageRequest { limit: Some(1000), after: self.after.clone(), consistent: false };
        loop {
            let part = cell.client.audit(&page).await?.value;
            oldest = oldest.or(part.items.first().map(|line| line.at));
            for line in part.items.iter().filter(|line| self.wants(line)) {
                any_found = true;
                if !is_table {
                    items.add(line)?;
                } else if line.gap_before {
                    print(&format!("{GAP}\n{}", format_line(line)))?;
                } else {
                    print(&format_line(line))?;
                }
            }
            match part.next {
                Some(next) => page.after = Some(next),
                None if is_table => {
                    if !any_found {
                        print_notice(&self.empty_text(oldest));
                    }
                    if cell.open {
                        OPEN_CELL_NOTES.into_iter().for_each(print_notice);
                    }
                    return Ok(());
                }
                None => return items.finish(),
            }
        }
    }

    /// The text for an empty result. `oldest`: when the first line of the audit log was written.
    fn empty_text(&self, oldest: Option<Time>) -> String {
        match (&self.after, oldest) {
            (Some(_), _) => "nothing like that came after this cursor".to_owned(),
            (None, Some(at)) => format!(
                "nothing like that since {}, as far back as this replica's audit reaches",
                format::utc(at)
            ),
            (None, None) => "the audit of the replica that answers is empty".to_owned(),
        }
    }

    fn wants(&self, line: &AuditView) -> bool {
        // The caller is `user:ann`, or the name alone.
        let is_by = |caller: &String| {
            line.caller == *caller || line.caller.split_once(':').is_some_and(|(_, n)| n == caller)
        };
        self.caller.as_ref().is_none_or(is_by)
            && self.object.as_ref().is_none_or(|object| line.object.starts_with(object.as_str()))
    }
}

fn format_line(line: &AuditView) -> String {
    let AuditView { at, caller, command, object, verdict, .. } = line;
    let command = command.replace('_', " ");
    let first = format!("{}  ", format::utc(*at));
    table::wrap_for_terminal(&first, "    ", &format!("{caller}: {command} {object}: {verdict}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_finds_nothing_is_told_how_far_back_was_looked() {
        let output = OutputArgs { output: Output::Table };
        let mut args = AuditArgs { caller: None, object: None, after: None, output };
        let message = args.empty_text(Some(Time(0)));
        assert!(
            message.starts_with("nothing like that since 1970-01-01 00:00:00Z, as far"),
            "{message}"
        );
        assert!(args.empty_text(None).ends_with("is empty"));
        args.after = Some("7".into());
        assert!(args.empty_text(Some(Time(0))).ends_with("after this cursor"));
    }
}
