//! The status of a user, and of a cron.

use crate::commands::enum_words::enum_text;
use crate::commands::quota;
use crate::output::is_wide;
use crate::{format, table};
use cellwright_api::types::{CronView, QuotaView, UserView};
use cellwright_cell::time::{Span, Time};

pub fn user(user: &UserView) -> String {
    let capabilities: Vec<String> = user.capabilities.iter().map(enum_text).collect();
    let may = if capabilities.is_empty() {
        "submit jobs".to_owned()
    } else {
        format!("submit jobs; {}", capabilities.join(", "))
    };
    let mut out = format!(
        "user {}: {}\n{}",
        user.name,
        format::pluralize(u64::from(user.live_jobs), "live job"),
        table::wrap("may ", "  ", &may)
    );
    if user.quota.is_empty() {
        out.push_str(&format!(
            "no quota: only jobs of priority 0\nnext: cell quota set {} batch --cpu 2 --ram 4GiB\n",
            user.name
        ));
        return out;
    }
    let dimensions = quota::table_dimensions(is_wide());
    let row = |view: &QuotaView| {
        let mut band = enum_text(&view.band);
        if view.exceeded {
            band.push_str(" (exceeded)");
        }
        [vec![band], quota::used_and_granted(view, dimensions)].concat()
    };
    let rows: Vec<Vec<String>> = user.quota.iter().map(row).collect();
    let columns = quota::amount_columns(dimensions);
    let columns: Vec<&str> =
        ["quota"].into_iter().chain(columns.iter().map(String::as_str)).collect();
    out.push('\n');
    out.push_str(&table::render(&columns, &rows));
    out
}

pub fn cron(cron: &CronView, now: Time) -> String {
    let next = match cron.next_slot {
        Some(slot) => {
            let wait = format::duration(Span(slot.0.saturating_sub(now.0)));
            format!("next run in {wait}, at {}", format::utc(slot))
        }
        None if cron.spec.paused => "paused".into(),
        None => "never runs again".into(),
    };
    let last = match &cron.last_job {
        Some(job) => format!("last run {job}\nnext: cell status {job}\n"),
        None => "never ran yet\n".into(),
    };
    let schedule = enum_text(&cron.spec.schedule);
    format!("cron {}/{}: {schedule}; {next}\n{last}", cron.user, cron.name)
}
