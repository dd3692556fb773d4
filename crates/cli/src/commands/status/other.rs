//! A user and a cron.

use crate::commands::words::word;
use crate::{format, table};
use cellwright_api::types::{CronView, UserView};
use cellwright_cell::admit::MAX_TOTAL;
use cellwright_cell::time::{Span, Time};
use cellwright_sim::experiment::load::Units;

pub fn user(user: &UserView) -> String {
    let capabilities: Vec<String> = user.capabilities.iter().map(word).collect();
    let may = match capabilities.is_empty() {
        true => "submit jobs".to_owned(),
        false => format!("submit jobs; {}", capabilities.join(", ")),
    };
    let mut out = format!(
        "user {}: {}\n{}",
        user.name,
        format::counted(u64::from(user.live_jobs), "live job"),
        table::wrapped("may ", "  ", &may)
    );
    if user.quota.is_empty() {
        out.push_str(&format!(
            "no quota: only jobs of priority 0\nnext: cell quota set {} batch --cpu 2 --ram 4GiB\n",
            user.name
        ));
        return out;
    }
    let amount = |dimension, amount| match amount {
        // Nobody counts up to there.
        MAX_TOTAL.. => "unbounded".to_owned(),
        _ => format::amount(Units::CoresAndBytes, dimension, amount),
    };
    let rows: Vec<Vec<String>> = user
        .quota
        .iter()
        .map(|quota| {
            let granted = quota.quota.map(|granted| granted.amount).unwrap_or_default();
            let mut band = word(&quota.band);
            if quota.exceeded {
                band.push_str(" (exceeded)");
            }
            vec![
                band,
                amount("cpu", quota.charged.cpu),
                amount("cpu", granted.cpu),
                amount("ram", quota.charged.ram),
                amount("ram", granted.ram),
            ]
        })
        .collect();
    out.push('\n');
    out.push_str(&table::render(&["quota", "cpu used", "cpu", "ram used", "ram"], &rows));
    out
}

pub fn cron(cron: &CronView, now: Time) -> String {
    let next = match cron.next_slot {
        Some(slot) => {
            let wait = format::span(Span(slot.0.saturating_sub(now.0)));
            format!("next run in {wait}, at {}", format::utc(slot))
        }
        None if cron.spec.paused => "paused".into(),
        None => "never runs again".into(),
    };
    let last = match &cron.last_job {
        Some(job) => format!("last run {job}\nnext: cell status {job}\n"),
        None => "never ran yet\n".into(),
    };
    let schedule = word(&cron.spec.schedule);
    format!("cron {}/{}: {schedule}; {next}\n{last}", cron.user, cron.name)
}
