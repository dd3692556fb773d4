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
use std::io;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, sleep, timeout};

/// Between two looks at the list of holes.
const LOOK_EVERY: Duration = Duration::from_secs(5);
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

/// Looks for damage and mends it, for as long as the replica runs.
pub async fn keep_mending(handle: Handle) {
    let (mut scrubbed, mut synced): (Option<Instant>, Instant) = (None, Instant::now());
    loop {
        sleep(LOOK_EVERY).await;
        if synced.elapsed() >= SYNC_EVERY {
            let shared = handle.replicated().clone();
            let sync = move || shared.records.sync(shared.taken_down());
            handle.replicated().records.off_thread(sync).await;
            synced = Instant::now();
        }
        for log in [RecordLog::Events, RecordLog::Audit] {
            if let Err(error) = mend(&handle, log).await {
                tracing::warn!(%error, ?log, "a hole was not filled");
            }
        }
        if scrubbed.is_none_or(|at| at.elapsed() >= SCRUB_EVERY) {
            scrub(handle.replicated()).await;
            scrubbed = Some(Instant::now());
        }
    }
}

async fn scrub(replicated: &Arc<Replicated>) {
    for log in [RecordLog::Events, RecordLog::Audit] {
        let mut from = Some(0);
        while let Some(at) = from {
            let shared = replicated.clone();
            let read = move || segments(&shared, log).scrub(at);
            match replicated.records.off_thread(read).await {
                Some(Ok(next)) => from = next,
                Some(Err(error)) => {
                    tracing::error!(%error, ?log, "a segment cannot be read");
                    from = Some(at + 1);
                }
                None => return,
            }
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
async fn mend(handle: &Handle, log: RecordLog) -> io::Result<()> {
    let replicated = handle.replicated();
    let list = segments(replicated, log);
    let mut holes = list.holes();
    while let Some(first) = holes.first().cloned() {
        let (group, rest): (Vec<Hole>, Vec<Hole>) =
            holes.into_iter().partition(|hole| list.is_of_one(&first, hole));
        holes = rest;
        let mut records = Vec::new();
        let mut whole = true;
        for hole in &group {
            match fetch(handle, log, hole).await? {
                Some(found) => records.extend(found),
                None => whole = false,
            }
        }
        if !whole {
            continue;
        }
        let (shared, filled) = (replicated.clone(), group.clone());
        let work = move || segments(&shared, log).fill(&filled, &records);
        if let Some(Filled::Done) = replicated.records.off_thread(work).await.transpose()? {
            let (file, holes) = (&group[0].file, group.len());
            tracing::warn!(file, holes, "filled from another replica");
        }
    }
    Ok(())
}

/// What belongs into a hole, if one of the others can tell all of it.
async fn fetch(handle: &Handle, log: RecordLog, hole: &Hole) -> io::Result<Option<Vec<Record>>> {
    if hole.until <= hole.after + 1 {
        return Ok(Some(Vec::new()));
    }
    match log {
        RecordLog::Events => {
            let told = ask_all(handle, log, hole.after, hole.until).await;
            Ok(told.map(|told| told.into_iter().map(record).collect()))
        }
        RecordLog::Audit => {
            let shared = handle.replicated().clone();
            let applied = shared.taken_down();
            let ends = hole.clone();
            let bounds = move || shared.records.audit.indexes_around(&ends, applied);
            let Some(bounds) = handle.replicated().records.off_thread(bounds).await.transpose()?
            else {
                return Ok(None);
            };
            let told = ask_all(handle, log, bounds.0, bounds.1).await;
            told.map(|told| numbered(hole, bounds, told)).transpose()
        }
    }
}

/// The records between two log indexes from the first of the others that has all of them.
async fn ask_all(
    handle: &Handle,
    log: RecordLog,
    after: u64,
    until: u64,
) -> Option<Vec<(u64, u64, Vec<u8>)>> {
    for (id, peer) in handle.0.links.others() {
        let (mut at, mut records) = (after, Vec::new());
        while at + 1 < until {
            let call = PeerCall::Records { log, after: at, until };
            let asked = timeout(PATIENCE, handle.0.peers.call(id, peer.clone(), call));
            let Ok(Ok(PeerAnswer::Records(told))) = asked.await else { break };
            records.extend(told.records);
            match told.upto.filter(|upto| *upto > at) {
                Some(upto) => at = upto,
                None => break,
            }
        }
        if at + 1 >= until {
            return Some(records);
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
/// line says that they are lost.
fn numbered(
    hole: &Hole,
    (_, until): (u64, u64),
    told: Vec<(u64, u64, Vec<u8>)>,
) -> io::Result<Vec<Record>> {
    let room = hole.until - hole.after - 1;
    let count = told.len() as u64;
    let newest = told.last().map_or(0, |(_, at, _)| *at);
    let mut records: Vec<Record> = (hole.after + 1..hole.until)
        .zip(told)
        .map(|(number, (_, at, payload))| record((number, at, payload)))
        .collect();
    if hole.is_damage && room > count {
        let line = Line {
            caller: "system".into(),
            command: "refused_requests".into(),
            object: format!("{} of this replica", room - count),
            verdict: LOST.into(),
        };
        let body = Body { index: until.saturating_sub(1), lines: vec![line], apart: true };
        let payload = postcard::to_stdvec(&body).map_err(io::Error::other)?;
        records.push(Record { number: hole.until - 1, at: Time(newest), payload });
    }
    Ok(records)
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
            _ => until - 1,
        };
        let asked = stretch.records.into_iter().filter(|record| record.number < until);
        let records = asked.map(|r| (r.number, r.at.0, r.payload)).collect();
        Ok(RecordsTold { records, upto: Some(upto) })
    }
}

impl AuditLog {
    /// Log indexes of the records on both sides of a hole.
    fn indexes_around(&self, hole: &Hole, applied: u64) -> io::Result<(u64, u64)> {
        let (mut before, mut at) = (0, self.segments.reaches_back_to().unwrap_or(0) + 1);
        loop {
            let stretch = self.segments.read_from(at, TELL_BYTES)?;
            let Some(last) = stretch.records.last().map(|record| record.number) else {
                return Ok((before, applied + 1));
            };
            for record in stretch.records {
                let body = decode(&record.payload)?;
                if record.number > hole.after {
                    // A refusal may come after the record of the entry it names.
                    let until = body.index + u64::from(body.apart);
                    return Ok((before, until.max(before + 1)));
                }
                before = body.index;
            }
            at = last + 1;
        }
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
                let overlaps = body.index > after + u64::from(!body.apart);
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
        Ok(RecordsTold { records, upto: knows.then(|| until - 1) })
    }
}
