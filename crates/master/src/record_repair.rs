//! Repairs and scrubs the record logs: holes in this replica's event and audit logs are filled from
//! its peers.
//!
//! Every replica records the same entries, so records that one has lost to damage, or never saw
//! because it continued from a snapshot, exist on another. Until one answers, the hole is a gap
//! that readers see and an alarm. Rejections at the listener of this replica are in no other's log:
//! lost ones are listed in the audit log as lost.
//!
//! Old segments are read through in the background, because a disk may lose data that is never
//! read.

use crate::audit::{AuditBody, AuditLine, AuditLog, decode, encode};
use crate::events::EventLog;
use crate::handle::MasterHandle;
use crate::peers::{PeerAnswer, PeerCall, RecordLog, RecordRange};
use crate::replicated_state::ReplicatedState;
use crate::segments::{FillResult, Hole, Record, Segments};
use cellwright_cell::time::Time;
use std::cmp::Ordering;
use std::io;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, sleep, timeout};

/// Time between two checks of the list of holes.
const CHECK_INTERVAL: Duration = Duration::from_secs(5);
/// Longest backoff between two attempts to fill holes that no replica could fill.
const MAX_BACKOFF: Duration = Duration::from_secs(120);
/// Pause between two segments that are read through.
const SCRUB_PAUSE: Duration = Duration::from_secs(2);
/// Time from one full scrub to the next.
const SCRUB_INTERVAL: Duration = Duration::from_secs(24 * 60 * 60);
/// Records are synced at least this often: older ones can be damaged, but never torn.
const SYNC_INTERVAL: Duration = Duration::from_secs(60);
/// How long another replica may take to answer.
const CALL_TIMEOUT: Duration = Duration::from_secs(5);
/// Maximum bytes of one answer.
const MAX_ANSWER_BYTES: usize = 4 << 20;
/// Caller and verdict of the line that stands for lines that no replica has.
const LOST: &str = "lost";

/// Repairs what is known to be missing, and syncs, for as long as the replica runs.
pub async fn repair_periodically(handle: MasterHandle) {
    let mut synced = Instant::now();
    let mut logs = [RecordLog::Events, RecordLog::Audit].map(|log| (log, RepairBackoff::default()));
    loop {
        sleep(CHECK_INTERVAL).await;
        if synced.elapsed() >= SYNC_INTERVAL {
            let shared = handle.replicated().clone();
            let sync = move || shared.records.sync(shared.last_recorded());
            handle.replicated().records.run_blocking(sync).await;
            synced = Instant::now();
        }
        for (log, rest) in &mut logs {
            let list = segments(handle.replicated(), *log);
            if rest.is_over(&list.holes(), Instant::now()) {
                repair_log(&handle, *log).await;
                rest.start(list.holes(), Instant::now());
            }
        }
    }
}

/// How long holes that no replica could fill are left alone: each request costs the others a search
/// through their files.
#[derive(Default)]
struct RepairBackoff {
    holes: Vec<Hole>,
    delay: Duration,
    until: Option<Instant>,
}

impl RepairBackoff {
    fn is_over(&self, holes: &[Hole], now: Instant) -> bool {
        let is_news = self.holes != holes || self.until.is_none_or(|until| until <= now);
        !holes.is_empty() && is_news
    }

    fn start(&mut self, left: Vec<Hole>, now: Instant) {
        let longer = (self.delay * 2).clamp(CHECK_INTERVAL, MAX_BACKOFF);
        self.delay = if left == self.holes { longer } else { CHECK_INTERVAL };
        self.until = Some(now + self.delay);
        self.holes = left;
    }
}

/// Scrubs for damage, for as long as the replica runs.
pub async fn scrub_periodically(handle: MasterHandle) {
    loop {
        sleep(CHECK_INTERVAL).await;
        scrub(handle.replicated()).await;
        sleep(SCRUB_INTERVAL).await;
    }
}

async fn scrub(replicated: &Arc<ReplicatedState>) {
    for log in [RecordLog::Events, RecordLog::Audit] {
        let mut from = Some(0);
        while let Some(at) = from {
            let shared = replicated.clone();
            let read = move || segments(&shared, log).scrub(at);
            from = replicated.records.run_blocking(read).await.flatten();
            sleep(SCRUB_PAUSE).await;
        }
    }
}

fn segments(replicated: &ReplicatedState, log: RecordLog) -> &Segments {
    match log {
        RecordLog::Events => &replicated.records.events.segments,
        RecordLog::Audit => &replicated.records.audit.segments,
    }
}

/// What is missing on this replica, for people: one text for each hole.
#[must_use]
pub fn hole_alarms(replicated: &ReplicatedState) -> Vec<String> {
    let mut texts = Vec::new();
    for (log, name) in [(RecordLog::Events, "events"), (RecordLog::Audit, "audit lines")] {
        for hole in segments(replicated, log).holes() {
            let Hole { after, until, file, offset, is_damage } = hole;
            texts.push(if is_damage {
                format!(
                    "{file} is damaged at byte {offset}: {name} after {after} and before {until} \
                     are missing here until another replica tells them"
                )
            } else {
                format!(
                    "{name} after {after} and before {until} are missing here until another \
                     replica tells them"
                )
            });
        }
    }
    texts
}

/// Fills the holes of one log as far as the peers have the records.
async fn repair_log(handle: &MasterHandle, log: RecordLog) {
    let list = segments(handle.replicated(), log);
    let mut holes = list.holes();
    while let Some(first) = holes.first().cloned() {
        let (group, rest): (Vec<Hole>, Vec<Hole>) =
            holes.into_iter().partition(|hole| list.is_same_segment(&first, hole));
        holes = rest;
        let filled = if list.is_between(&first) {
            fill_between(handle, log, first.clone()).await
        } else {
            fill_within(handle, log, &group).await
        };
        let (file, count) = (&first.file, group.len());
        match filled {
            Ok(true) => tracing::warn!(file, count, "filled from another replica"),
            Ok(false) => {}
            // Other holes may still be filled.
            Err(error) => tracing::warn!(file, %error, ?log, "a hole was not filled"),
        }
    }
}

/// Holes inside a segment. What is missing is no more than a segment can hold.
async fn fill_within(handle: &MasterHandle, log: RecordLog, group: &[Hole]) -> io::Result<bool> {
    let mut records = Vec::new();
    for hole in group {
        let Some(to_fill) = fetch_fill(handle, log, hole, u64::MAX).await? else {
            return Ok(false);
        };
        records.extend(to_fill.records);
    }
    let (shared, filled) = (handle.replicated().clone(), group.to_vec());
    let work = move || segments(&shared, log).fill_inside(&filled, &records);
    let done = handle.replicated().records.run_blocking(work).await.transpose()?;
    Ok(done == Some(FillResult::Done))
}

/// A hole between two segments, which may be of any size: a segment's worth at a time.
async fn fill_between(handle: &MasterHandle, log: RecordLog, mut hole: Hole) -> io::Result<bool> {
    let most = segments(handle.replicated(), log).segment_bytes();
    while hole.after + 1 < hole.until {
        let Some(to_fill) = fetch_fill(handle, log, &hole, most).await? else { return Ok(false) };
        let (shared, target, last) = (handle.replicated().clone(), hole.clone(), to_fill.last);
        let work = move || segments(&shared, log).fill_between(&target, &to_fill.records, last);
        match handle.replicated().records.run_blocking(work).await.transpose()? {
            Some(FillResult::Done) => hole.after = last,
            Some(FillResult::Retry) | None => return Ok(false),
        }
    }
    Ok(true)
}

/// The records at the start of a hole.
struct FillRecords {
    records: Vec<Record>,
    /// There are no other records up to this number.
    last: u64,
}

/// The records of a hole, if a peer has all of them, or `most` bytes.
async fn fetch_fill(
    handle: &MasterHandle,
    log: RecordLog,
    hole: &Hole,
    most: u64,
) -> io::Result<Option<FillRecords>> {
    let end = hole.until.saturating_sub(1);
    if hole.after >= end {
        return Ok(Some(FillRecords { records: Vec::new(), last: end }));
    }
    if handle.0.links.others().is_empty() {
        return Ok(None);
    }
    match log {
        RecordLog::Events => {
            let received = fetch_records(handle, log, (hole.after, hole.until), most).await;
            let fill_from = |received: PeerRecords| {
                let records = received.records.into_iter().map(record).collect();
                FillRecords { records, last: received.upto }
            };
            Ok(received.map(fill_from))
        }
        RecordLog::Audit => {
            let shared = handle.replicated().clone();
            let applied = shared.last_recorded();
            let ends = hole.clone();
            let read_neighbours = move || shared.records.audit.hole_neighbours(&ends, applied);
            let Some(neighbours) =
                handle.replicated().records.run_blocking(read_neighbours).await.transpose()?
            else {
                return Ok(None);
            };
            let received =
                fetch_records(handle, log, (neighbours.after, neighbours.until), most).await;
            received.map(|records| assign_numbers(hole, &neighbours, records)).transpose()
        }
    }
}

/// The records that a peer has.
struct PeerRecords {
    records: Vec<(u64, u64, Vec<u8>)>,
    /// There are no other records up to this log index.
    upto: u64,
}

/// The records between two log indexes from the first peer that has all of them, or so many that
/// they are `most` bytes.
async fn fetch_records(
    handle: &MasterHandle,
    log: RecordLog,
    (after, until): (u64, u64),
    most: u64,
) -> Option<PeerRecords> {
    for (id, peer) in handle.0.links.others() {
        let (mut at, mut records, mut bytes) = (after, Vec::new(), 0);
        while at + 1 < until && bytes < most {
            let call = PeerCall::Records { log, after: at, until };
            let request = timeout(CALL_TIMEOUT, handle.0.peers.call(id, peer.clone(), call));
            let Ok(Ok(PeerAnswer::Records(received))) = request.await else { break };
            bytes +=
                received.records.iter().map(|(_, _, payload)| payload.len() as u64).sum::<u64>();
            records.extend(received.records);
            match received.upto.filter(|upto| at < *upto && *upto < until) {
                Some(upto) => at = upto,
                None => break,
            }
        }
        if at + 1 >= until || (bytes >= most && at > after) {
            return Some(PeerRecords { records, upto: at });
        }
    }
    None
}

/// Answers another replica's request for records.
pub(crate) async fn records_between(
    replicated: &Arc<ReplicatedState>,
    log: RecordLog,
    after: u64,
    until: u64,
) -> Option<RecordRange> {
    let shared = replicated.clone();
    let applied = shared.last_recorded();
    let work = move || match log {
        RecordLog::Events => shared.records.events.records_between(after, until, applied),
        RecordLog::Audit => shared.records.audit.records_between(after, until, applied),
    };
    replicated.records.run_blocking(work).await?.ok()
}

fn record((number, at, payload): (u64, u64, Vec<u8>)) -> Record {
    Record { number, at: Time(at), payload }
}

/// Assigns this replica's numbers to records of another replica's audit log, one to each. Where
/// there are more numbers than records, the rest were rejections of this replica, and a line says
/// that they are lost. Where there are more records than numbers, a line says so, too.
fn assign_numbers(
    hole: &Hole,
    neighbours: &HoleNeighbours,
    received: PeerRecords,
) -> io::Result<FillRecords> {
    let (first, end) = (hole.after + 1, hole.until.saturating_sub(1));
    let (numbers_left, count) = (end + 1 - first, received.records.len() as u64);
    let is_whole = received.upto + 1 >= neighbours.until;
    let newest = received.records.last().map_or(neighbours.at, |(_, at, _)| Time(*at));
    let lost = match count.cmp(&numbers_left) {
        Ordering::Less if hole.is_damage && is_whole => {
            Some(("refused_requests", format!("{} of this replica", numbers_left - count)))
        }
        // The line takes a number, too.
        Ordering::Greater => {
            Some(("requests", format!("{} for want of numbers", count - numbers_left + 1)))
        }
        _ => None,
    };
    let numbers = if lost.is_some() { first..end } else { first..end + 1 };
    let mut records: Vec<Record> = numbers
        .zip(received.records)
        .map(|(number, (_, at, payload))| record((number, at, payload)))
        .collect();
    if let Some((command, object)) = lost {
        let [caller, command] = ["system", command].map(str::to_owned);
        let line = AuditLine { caller, command, object, verdict: LOST.into() };
        let index = neighbours.until.saturating_sub(1);
        let body = AuditBody { index, lines: vec![line], is_local: true };
        let payload = encode(&body)?;
        records.push(Record { number: end, at: newest, payload });
    }
    let last = records.last().map_or(end, |record| record.number);
    Ok(FillRecords { records, last: if is_whole { end } else { last } })
}

/// The records on both sides of a hole in the audit log.
struct HoleNeighbours {
    /// Log indexes, exclusive.
    after: u64,
    until: u64,
    /// Time of a neighbour.
    at: Time,
}

impl EventLog {
    /// Records between two log indexes. `applied`: the last entry that was recorded here.
    fn records_between(&self, after: u64, until: u64, applied: u64) -> io::Result<RecordRange> {
        let batch = self.segments.read_from(after.saturating_add(1), MAX_ANSWER_BYTES)?;
        if batch.has_gap || applied + 1 < until {
            return Ok(RecordRange::default());
        }
        let last = batch.records.last().map(|record| record.number);
        // After the last one there are only records that were not requested.
        let upto = match last {
            Some(last) if last < until && last < self.segments.last() => last,
            _ => until.saturating_sub(1),
        };
        let requested = batch.records.into_iter().filter(|record| record.number < until);
        let records = requested.map(|r| (r.number, r.at.0, r.payload)).collect();
        Ok(RecordRange { records, upto: Some(upto) })
    }
}

impl AuditLog {
    fn hole_neighbours(&self, hole: &Hole, applied: u64) -> io::Result<HoleNeighbours> {
        let (before, next) = self.segments.neighbours(hole)?;
        let at = before.as_ref().or(next.as_ref()).map_or(Time(0), |record| record.at);
        let body = |record: Option<Record>| record.as_ref().map(decode).transpose();
        let after = body(before)?.map_or(0, |body| body.index);
        // A rejection may come after the record of the entry it names.
        let until = body(next)?.map(|body| body.index + u64::from(body.is_local));
        Ok(HoleNeighbours { after, until: until.unwrap_or(applied + 1).max(after + 1), at })
    }

    /// Records of entries between two log indexes.
    fn records_between(&self, after: u64, until: u64, applied: u64) -> io::Result<RecordRange> {
        let start = self.segments.reaches_back_to().unwrap_or(0);
        let (mut at, mut seen) = (start + 1, if start == 0 { Some(0) } else { None });
        let (mut records, mut bytes) = (Vec::new(), 0);
        loop {
            let batch = self.segments.read_from(at, MAX_ANSWER_BYTES)?;
            let Some(last) = batch.records.last().map(|record| record.number) else { break };
            let mut gap = batch.has_gap;
            for record in batch.records {
                let body = decode(&record)?;
                // A record that belongs here may be missing.
                let unsure = gap || seen.is_none();
                gap = false;
                let overlaps = body.index > after.saturating_add(u64::from(!body.is_local));
                if unsure && overlaps && seen.is_none_or(|seen| seen + 1 < until) {
                    return Ok(RecordRange::default());
                }
                seen = Some(body.index);
                if body.is_local || body.index <= after || body.index >= until {
                    continue;
                }
                bytes += record.payload.len();
                records.push((body.index, record.at.0, record.payload));
                if bytes >= MAX_ANSWER_BYTES {
                    return Ok(RecordRange { records, upto: Some(body.index) });
                }
            }
            at = last + 1;
        }
        let knows = applied + 1 >= until && (seen.is_some() || start == 0);
        Ok(RecordRange { records, upto: knows.then(|| until.saturating_sub(1)) })
    }
}

#[cfg(test)]
mod tests;
