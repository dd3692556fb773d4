//! Rate limit of the audit log: how much of it one user may fill.
//!
//! The log is trimmed by size, oldest first. So a user with enough requests could push out of it
//! what that user, or another, did before. Every user has an allowance of bytes, which is refilled
//! over the time that the log reaches back. Within it every request has a line of its own. Beyond
//! it the first few of each kind in a minute have one, and the rest is a number: a thousand resizes
//! hide no token that was made between them.
//!
//! The time is log time, so all replicas write the same lines. A replica that was restarted has
//! full allowances again; it may write more than the others, and never less.
//!
//! Rejected: a number of lines a minute for each user. A release that submits a thousand jobs would
//! be counted, and a user with a year of patience would not.

use super::AuditLine;
use cellwright_cell::time::{Span, Time};
use std::collections::BTreeMap;

/// Lines of one kind in a minute that a user still has after using up its allowance.
const MIN_LINES_PER_KIND: u64 = 8;
const MINUTE: u64 = 60_000;
/// The bytes of a line besides its texts.
const LINE_BYTES: u64 = 16;
/// The verdict of lines that summarise many requests.
const COUNTED_VERDICT: &str = "counted";
/// The callers that have an allowance: users, and the parts that run where tasks may break out. The
/// cell's other parts are few, and unauthenticated callers are counted elsewhere.
const LIMITED_PREFIXES: [&str; 3] = ["user:", "agent:", "task:"];

/// Allowances of all users.
pub(super) struct Allowances {
    per_user: u64,
    /// The time in which an empty allowance becomes full again.
    refill: Span,
    current_minute: u64,
    buckets: BTreeMap<String, TokenBucket>,
}

struct TokenBucket {
    tokens: u64,
    refilled_at: Time,
    /// Requests beyond the allowance in this minute, by kind.
    suppressed: BTreeMap<String, u64>,
}

impl Allowances {
    pub fn new(per_user: u64, refill: Span) -> Allowances {
        Allowances { per_user, refill, current_minute: 0, buckets: BTreeMap::new() }
    }

    /// The lines to write: those of `lines` within the allowance, and summaries of earlier ones.
    pub fn admit(&mut self, now: Time, lines: Vec<AuditLine>) -> Vec<AuditLine> {
        let mut written = self.take_summaries(now);
        for line in lines {
            written.extend(self.admit_line(now, line));
        }
        written
    }

    /// The summaries of the minute before, once it is over; full allowances are dropped.
    fn take_summaries(&mut self, now: Time) -> Vec<AuditLine> {
        let mut sums = Vec::new();
        if now.0 / MINUTE == self.current_minute {
            return sums;
        }
        self.current_minute = now.0 / MINUTE;
        for (caller, account) in &mut self.buckets {
            for (command, count) in std::mem::take(&mut account.suppressed) {
                if count > MIN_LINES_PER_KIND {
                    let object = format!("{} in one minute", count - MIN_LINES_PER_KIND);
                    sums.push(AuditLine::new(caller, &command, &object, COUNTED_VERDICT));
                }
            }
            account.refill(now, self.per_user, self.refill);
        }
        let most = self.per_user;
        self.buckets.retain(|_, account| account.tokens < most);
        sums
    }

    fn admit_line(&mut self, now: Time, line: AuditLine) -> Option<AuditLine> {
        if !LIMITED_PREFIXES.iter().any(|kind| line.caller.starts_with(kind)) {
            return Some(line);
        }
        let (per_user, refill) = (self.per_user, self.refill);
        let new =
            || TokenBucket { tokens: per_user, refilled_at: now, suppressed: BTreeMap::new() };
        let account = self.buckets.entry(line.caller.clone()).or_insert_with(new);
        account.refill(now, per_user, refill);
        let bytes = bytes_of(&line);
        if let Some(left) = account.tokens.checked_sub(bytes) {
            account.tokens = left;
            return Some(line);
        }
        let count = account.suppressed.entry(line.command.clone()).or_default();
        *count = count.saturating_add(1);
        match (*count).checked_sub(MIN_LINES_PER_KIND) {
            None | Some(0) => Some(line),
            // Written at once: the number itself may be lost with this process.
            Some(1) => Some(AuditLine {
                object: "from here on".into(),
                verdict: COUNTED_VERDICT.into(),
                ..line
            }),
            Some(_) => None,
        }
    }
}

impl TokenBucket {
    fn refill(&mut self, now: Time, most: u64, over: Span) {
        let elapsed = u128::from(now.since(self.refilled_at).0);
        let more = u128::from(most) * elapsed / u128::from(over.0.max(1));
        // Fractions of a byte are not lost: the refill time stays where it was.
        if more == 0 {
            return;
        }
        let more = u64::try_from(more).unwrap_or(u64::MAX);
        (self.tokens, self.refilled_at) = (self.tokens.saturating_add(more).min(most), now);
    }
}

fn bytes_of(line: &AuditLine) -> u64 {
    let AuditLine { caller, command, object, verdict } = line;
    let texts = [caller, command, object, verdict].map(|text| text.len() as u64);
    texts.iter().sum::<u64>() + LINE_BYTES
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(caller: &str, command: &str, object: &str) -> AuditLine {
        AuditLine::new(caller, command, object, "done")
    }

    fn rows(lines: Vec<AuditLine>) -> Vec<String> {
        let text = |line: AuditLine| {
            format!("{} {} {} {}", line.caller, line.command, line.object, line.verdict)
        };
        lines.into_iter().map(text).collect()
    }

    #[test]
    fn whoever_floods_fills_its_own_allowance_and_what_is_rare_stands_there_all_the_same() {
        let flood = || line("user:ann", "resize_job", "ann/web");
        let per_user = 100 * bytes_of(&flood());
        let mut all = Allowances::new(per_user, Span::seconds(86_400));
        let mut written = 0;
        for second in 0..600 {
            let lines: Vec<AuditLine> = (0..100).map(|_| flood()).collect();
            written += all.admit(Time(second * 1000), lines).len();
        }
        // The allowance, the refill of ten minutes, and for each minute a few lines and two
        // summaries.
        assert!((100..=101 + 11 * 10).contains(&written), "{written} lines of 60000 requests");
        let now = Time(600_500);
        let rare = line("user:ann", "add_token", "t1 for user/ann");
        let of_others = line("user:ben", "stop_job", "ben/db");
        let of_the_cell = line("system", "use_join_token", "t2");
        let lines = vec![flood(), rare, of_others, of_the_cell];
        let admitted = rows(all.admit(now, lines));
        let expected = [
            "user:ann resize_job 5992 in one minute counted",
            "user:ann resize_job ann/web done",
            "user:ann add_token t1 for user/ann done",
            "user:ben stop_job ben/db done",
            "system use_join_token t2 done",
        ];
        assert_eq!(admitted, expected);
    }

    #[test]
    fn an_allowance_comes_back_with_time_and_nobody_is_remembered_for_nothing() {
        let next_line = || line("user:ann", "stop_job", "ann/web");
        let per_user = 10 * bytes_of(&next_line());
        let mut all = Allowances::new(per_user, Span::seconds(1000));
        let many = |count: usize| (0..count).map(|_| next_line()).collect::<Vec<_>>();
        assert_eq!(all.admit(Time(0), many(10)).len(), 10);
        let beyond = rows(all.admit(Time(1), many(20)));
        assert_eq!(beyond.len(), MIN_LINES_PER_KIND as usize + 1);
        assert_eq!(beyond.last().unwrap(), "user:ann stop_job from here on counted");
        // Half of the time refills half of the allowance; after a summary.
        let later = rows(all.admit(Time(500_001), many(6)));
        assert_eq!(later[0], "user:ann stop_job 12 in one minute counted");
        assert_eq!(all.buckets["user:ann"].suppressed["stop_job"], 1);
        assert_eq!(all.admit(Time(2_000_000), Vec::new()), []);
        assert!(all.buckets.is_empty());
    }
}
