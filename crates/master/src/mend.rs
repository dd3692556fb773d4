//! Holes in this replica's event and audit logs are filled from the others, and looked for.
//!
//! Every replica takes down the same entries, so what one has lost to damage, or never saw because
//! it went on from a snapshot, another has. Until one answers, the hole is a gap that readers are
//! told of and an alarm. Refusals at the door of this replica are in no other's list: those that
//! are lost stand in the audit log as lost.
//!
//! Old segments are read through in the background, since a disk forgets what nobody reads.

use crate::audit::{AuditLog, Body, Line, decode};
use crate::events::EventLog;
use crate::handle::Handle;
use crate::peers::{PeerAnswer, PeerCall, RecordLog, RecordsTold};
use crate::replicated::Replicated;
use crate::segments::{Filled, Hole, Record, Segments};
use cellwright_cell::time::Time;
use std::cmp::Ordering;
use std::io;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, sleep, timeout};

/// Between two looks at the list of holes.
const LOOK_EVERY: Duration = Duration::from_secs(5);
/// Longest rest between two tries to fill holes that nobody could fill.
const REST_MOST: Duration = Duration::from_secs(120);
/// Between two segments that are read through.
const SCRUB_REST: Duration = Duration::from_secs(2);
/// From one reading of everything to the next.
const SCRUB_EVERY: Duration = Duration::from_secs(24 * 60 * 60);
/// Records are synced at least this often: what is older can be damaged, and never be torn.
const SYNC_EVERY: Duration = Duration::from_secs(60);
/// How long another replica may take to answer.
const PATIENCE: Duration = Duration::from_secs(5);
/// Bytes of one answer.
const TELL_BYTES: usize = 4 << 20;
/// Caller and verdict of the line that stands for lines that nobody has.
const LOST: &str = "lost";

/// Mends what is known to be missing, and syncs, for as long as the replica runs.
pub async fn keep_mending(handle: Handle) {
    let mut synced = Instant::now();
    let mut logs = [RecordLog::Events, RecordLog::Audit].map(|log| (log, Rest::default()));
    loop {
        sleep(LOOK_EVERY).await;
        if synced.elapsed() >= SYNC_EVERY {
            let shared = handle.replicated().clone();
            let sync = move || shared.records.sync(shared.taken_down());
            handle.replicated().records.off_thread(sync).await;
            synced = Instant::now();
        }
        for (log, rest) in &mut logs {
            let list = segments(handle.replicated(), *log);
            if rest.is_over(&list.holes(), Instant::now()) {
                mend(&handle, *log).await;
                rest.begin(list.holes(), Instant::now());
            }
        }
    }
}

/// How long holes are left alone that nobody could fill: asking costs the others a look through
/// their files.
#[derive(Default)]
struct Rest {
    holes: Vec<Hole>,
    length: Duration,
    until: Option<Instant>,
}

impl Rest {
    fn is_over(&self, holes: &[Hole], now: Instant) -> bool {
        let is_news = self.holes != holes || self.until.is_none_or(|until| until <= now);
        !holes.is_empty() && is_news
    }

    fn begin(&mut self, left: Vec<Hole>, now: Instant) {
        let longer = (self.length * 2).clamp(LOOK_EVERY, REST_MOST);
        self.length = if left == self.holes { longer } else { LOOK_EVERY };
        self.until = Some(now + self.length);
        self.holes = left;
    }
}

/// Looks for damage, for as long as the replica runs.
pub async fn keep_scrubbing(handle: Handle) {
    loop {
        sleep(LOOK_EVERY).await;
        scrub(handle.replicated()).await;
        sleep(SCRUB_EVERY).await;
    }
}

async fn scrub(replicated: &Arc<Replicated>) {
    for log in [RecordLog::Events, RecordLog::Audit] {
        let mut from = Some(0);
        while let Some(at) = from {
            let shared = replicated.clone();
            let read = move || segments(&shared, log).scrub(at);
            from = replicated.records.off_thread(read).await.flatten();
            sleep(SCRUB_REST).await;
        }
    }
}

fn segments(replicated: &Replicated, log: RecordLog) -> &Segments {
    match log {
        RecordLog::Events => &replicated.records.events.segments,
        RecordLog::Audit => &replicated.records.audit.segments,
    }
}

/// What is missing on this replica, for people: one text for each hole.
#[must_use]
pub fn alarms(replicated: &Replicated) -> Vec<String> {
    let mut texts = Vec::new();
    for (log, name) in [(RecordLog::Events, "events"), (RecordLog::Audit, "audit lines")] {
        for hole in segments(replicated, log).holes() {
            let Hole { after, until, file, offset, is_damage } = hole;
            texts.push(match is_damage {
                true => format!(
                    "{file} is damaged at byte {offset}: {name} after {after} and before {until} \
                     are missing here until another replica tells them"
                ),
                false => format!(
                    "{name} after {after} and before {until} are missing here until another \
                     replica tells them"
                ),
            });
        }
    }
    texts
}

/// Fills the holes of one log as far as others can tell what belongs there.
async fn mend(handle: &Handle, log: RecordLog) {
    let list = segments(handle.replicated(), log);
    let mut holes = list.holes();
    while let Some(first) = holes.first().cloned() {
        let (group, rest): (Vec<Hole>, Vec<Hole>) =
            holes.into_iter().partition(|hole| list.is_of_one(&first, hole));
        holes = rest;
        let filled = match list.is_between(&first) {
            true => fill_between(handle, log, first.clone()).await,
            false => fill_within(handle, log, &group).await,
        };
        let (file, count) = (&first.file, group.len());
        match filled {
            Ok(true) => tracing::warn!(file, count, "filled from another replica"),
            Ok(false) => {}
            // Others may still be filled.
            Err(error) => tracing::warn!(file, %error, ?log, "a hole was not filled"),
        }
    }
}

/// Holes inside a segment. What is missing is no more than a segment can hold.
async fn fill_within(handle: &Handle, log: RecordLog, group: &[Hole]) -> io::Result<bool> {
    let mut records = Vec::new();
    for hole in group {
        let Some(piece) = fetch(handle, log, hole, u64::MAX).await? else { return Ok(false) };
        records.extend(piece.records);
    }
    let (shared, filled) = (handle.replicated().clone(), group.to_vec());
    let work = move || segments(&shared, log).fill(&filled, &records);
    let done = handle.replicated().records.off_thread(work).await.transpose()?;
    Ok(done == Some(Filled::Done))
}

/// A hole between two segments, which may be of any size: a segment's worth at a time.
async fn fill_between(handle: &Handle, log: RecordLog, mut hole: Hole) -> io::Result<bool> {
    let most = segments(handle.replicated(), log).segment_bytes();
    while hole.after + 1 < hole.until {
        let Some(piece) = fetch(handle, log, &hole, most).await? else { return Ok(false) };
        let (shared, place, last) = (handle.replicated().clone(), hole.clone(), piece.last);
        let work = move || segments(&shared, log).put_between(&place, &piece.records, last);
        match handle.replicated().records.off_thread(work).await.transpose()? {
            Some(Filled::Done) => hole.after = last,
            Some(Filled::Again) | None => return Ok(false),
        }
    }
    Ok(true)
}

/// What belongs at the start of a hole.
struct Piece {
    records: Vec<Record>,
    /// There are no others up to this number.
    last: u64,
}

/// What belongs into a hole, if one of the others can tell all of it, or `most` bytes.
async fn fetch(
    handle: &Handle,
    log: RecordLog,
    hole: &Hole,
    most: u64,
) -> io::Result<Option<Piece>> {
    let end = hole.until.saturating_sub(1);
    if hole.after >= end {
        return Ok(Some(Piece { records: Vec::new(), last: end }));
    }
    if handle.0.links.others().is_empty() {
        return Ok(None);
    }
    match log {
        RecordLog::Events => {
            let told = ask_all(handle, log, (hole.after, hole.until), most).await;
            let piece = |told: Told| {
                let records = told.records.into_iter().map(record).collect();
                Piece { records, last: told.upto }
            };
            Ok(told.map(piece))
        }
        RecordLog::Audit => {
            let shared = handle.replicated().clone();
            let applied = shared.taken_down();
            let ends = hole.clone();
            let look = move || shared.records.audit.sides(&ends, applied);
            let Some(sides) = handle.replicated().records.off_thread(look).await.transpose()?
            else {
                return Ok(None);
            };
            let told = ask_all(handle, log, (sides.after, sides.until), most).await;
            told.map(|told| numbered(hole, &sides, told)).transpose()
        }
    }
}

/// What one of the others has.
struct Told {
    records: Vec<(u64, u64, Vec<u8>)>,
    /// Of these log indexes there are no other records.
    upto: u64,
}

/// The records between two log indexes from the first of the others that has all of them, or so
/// many that they are `most` bytes.
async fn ask_all(
    handle: &Handle,
    log: RecordLog,
    (after, until): (u64, u64),
    most: u64,
) -> Option<Told> {
    for (id, peer) in handle.0.links.others() {
        let (mut at, mut records, mut bytes) = (after, Vec::new(), 0);
        while at + 1 < until && bytes < most {
            let call = PeerCall::Records { log, after: at, until };
            let asked = timeout(PATIENCE, handle.0.peers.call(id, peer.clone(), call));
            let Ok(Ok(PeerAnswer::Records(told))) = asked.await else { break };
            bytes += told.records.iter().map(|(_, _, payload)| payload.len() as u64).sum::<u64>();
            records.extend(told.records);
            match told.upto.filter(|upto| at < *upto && *upto < until) {
                Some(upto) => at = upto,
                None => break,
            }
        }
        if at + 1 >= until || (bytes >= most && at > after) {
            return Some(Told { records, upto: at });
        }
    }
    None
}

/// What another replica asks for.
pub(crate) async fn tell(
    replicated: &Arc<Replicated>,
    log: RecordLog,
    after: u64,
    until: u64,
) -> Option<RecordsTold> {
    let shared = replicated.clone();
    let applied = shared.taken_down();
    let work = move || match log {
        RecordLog::Events => shared.records.events.tell(after, until, applied),
        RecordLog::Audit => shared.records.audit.tell(after, until, applied),
    };
    replicated.records.off_thread(work).await?.ok()
}

fn record((number, at, payload): (u64, u64, Vec<u8>)) -> Record {
    Record { number, at: Time(at), payload }
}

/// Records of another replica's audit log with numbers of this one's. There is a number for each;
/// where there are more numbers than records, what is left were refusals of this replica, and a
/// line says that they are lost. So it does where there are more records than numbers.
fn numbered(hole: &Hole, sides: &Sides, told: Told) -> io::Result<Piece> {
    let (first, end) = (hole.after + 1, hole.until.saturating_sub(1));
    let (room, count) = (end + 1 - first, told.records.len() as u64);
    let is_whole = told.upto + 1 >= sides.until;
    let newest = told.records.last().map_or(sides.at, |(_, at, _)| Time(*at));
    let lost = match count.cmp(&room) {
        Ordering::Less if hole.is_damage && is_whole => {
            Some(("refused_requests", format!("{} of this replica", room - count)))
        }
        // The line takes a number, too.
        Ordering::Greater => {
            Some(("requests", format!("{} for want of numbers", count - room + 1)))
        }
        _ => None,
    };
    let kept = if lost.is_some() { first..end } else { first..end + 1 };
    let mut records: Vec<Record> = kept
        .zip(told.records)
        .map(|(number, (_, at, payload))| record((number, at, payload)))
        .collect();
    if let Some((command, object)) = lost {
        let [caller, command] = ["system", command].map(str::to_owned);
        let line = Line { caller, command, object, verdict: LOST.into() };
        let index = sides.until.saturating_sub(1);
        let body = Body { index, lines: vec![line], apart: true };
        let payload = postcard::to_stdvec(&body).map_err(io::Error::other)?;
        records.push(Record { number: end, at: newest, payload });
    }
    let last = records.last().map_or(end, |record| record.number);
    Ok(Piece { records, last: if is_whole { end } else { last } })
}

/// What stands on both sides of a hole in the audit log.
struct Sides {
    /// Log indexes, exclusive.
    after: u64,
    until: u64,
    /// Time of a neighbour.
    at: Time,
}

impl EventLog {
    /// Records between two log indexes. `applied`: the last entry that was taken down here.
    fn tell(&self, after: u64, until: u64, applied: u64) -> io::Result<RecordsTold> {
        let stretch = self.segments.read_from(after.saturating_add(1), TELL_BYTES)?;
        if stretch.gap || applied + 1 < until {
            return Ok(RecordsTold::default());
        }
        let last = stretch.records.last().map(|record| record.number);
        // Nothing follows the last one but what is not asked for.
        let upto = match last {
            Some(last) if last < until && last < self.segments.last() => last,
            _ => until.saturating_sub(1),
        };
        let asked = stretch.records.into_iter().filter(|record| record.number < until);
        let records = asked.map(|r| (r.number, r.at.0, r.payload)).collect();
        Ok(RecordsTold { records, upto: Some(upto) })
    }
}

impl AuditLog {
    fn sides(&self, hole: &Hole, applied: u64) -> io::Result<Sides> {
        let (before, next) = self.segments.around(hole)?;
        let at = before.as_ref().or(next.as_ref()).map_or(Time(0), |record| record.at);
        let body = |record: Option<Record>| record.map(|r| decode(&r.payload)).transpose();
        let after = body(before)?.map_or(0, |body| body.index);
        // A refusal may come after the record of the entry it names.
        let until = body(next)?.map(|body| body.index + u64::from(body.apart));
        Ok(Sides { after, until: until.unwrap_or(applied + 1).max(after + 1), at })
    }

    /// Records of entries between two log indexes.
    fn tell(&self, after: u64, until: u64, applied: u64) -> io::Result<RecordsTold> {
        let start = self.segments.reaches_back_to().unwrap_or(0);
        let (mut at, mut seen) = (start + 1, if start == 0 { Some(0) } else { None });
        let (mut records, mut bytes) = (Vec::new(), 0);
        loop {
            let stretch = self.segments.read_from(at, TELL_BYTES)?;
            let Some(last) = stretch.records.last().map(|record| record.number) else { break };
            let mut gap = stretch.gap;
            for record in stretch.records {
                let body = decode(&record.payload)?;
                // Something that belongs here may be missing.
                let unsure = gap || seen.is_none();
                gap = false;
                let overlaps = body.index > after.saturating_add(u64::from(!body.apart));
                if unsure && overlaps && seen.is_none_or(|seen| seen + 1 < until) {
                    return Ok(RecordsTold::default());
                }
                seen = Some(body.index);
                if body.apart || body.index <= after || body.index >= until {
                    continue;
                }
                bytes += record.payload.len();
                records.push((body.index, record.at.0, record.payload));
                if bytes >= TELL_BYTES {
                    return Ok(RecordsTold { records, upto: Some(body.index) });
                }
            }
            at = last + 1;
        }
        let knows = applied + 1 >= until && (seen.is_some() || start == 0);
        Ok(RecordsTold { records, upto: knows.then(|| until.saturating_sub(1)) })
    }
}

#[cfg(test)]
mod tests;
