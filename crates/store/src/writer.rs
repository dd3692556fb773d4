//! The one task that writes the log.
//!
//! It takes everything that is queued, writes it in one piece and flushes once; what arrives during
//! the flush makes up the next piece. Under load the pieces grow by themselves, so no timer decides
//! how long to wait for company.
//!
//! A failed flush ends the replica: what the kernel did with the pages is unknown, and trying again
//! can succeed without having written them. A failed *write* for want of space is different:
//! nothing has been promised, so the piece is cut off again and retried until there is room. The
//! replica answers nobody meanwhile, which makes the others elect a leader that can write.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use cellwright_supervise::plant;
use openraft::storage::LogFlushed;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::Instant;

use crate::disk::{Disk, DiskHandle};
use crate::log::{Place, Shared};
use crate::raft::{LogId, TypeConfig};
use crate::record::{
    DIR, HEADER_LEN, HardState, Owner, Record, SegmentHeader, Spot, VERSION, segment_path,
};
use crate::recover::{Segment, end_install};
use crate::settings::FatalHook;

/// Operations taken from the queue at once.
const AT_ONCE: usize = 4096;
/// A piece is flushed when it has grown to this, so that its beginning is answered.
const PIECE_BYTES: usize = 8 << 20;
const FULL_RETRY: Duration = Duration::from_millis(200);

/// Whom to tell that an operation is durable.
pub(crate) enum Done {
    Nobody,
    Waiter(oneshot::Sender<()>),
    Flushed(LogFlushed<TypeConfig>),
}

impl Done {
    fn tell(self) {
        match self {
            Done::Nobody => {}
            // The waiter may have given up; what it asked for is done all the same.
            Done::Waiter(waiter) => {
                let _gave_up = waiter.send(());
            }
            Done::Flushed(callback) => callback.log_io_completed(Ok(())),
        }
    }
}

pub(crate) enum Op {
    Append { ticket: u64, records: Vec<Record>, done: Done },
    State { ticket: u64, done: Done },
    Purge { ticket: u64, upto: LogId },
    Stop { done: oneshot::Sender<()> },
}

pub(crate) struct Writer {
    pub(crate) shared: Arc<Shared>,
    pub(crate) disk: DiskHandle,
    pub(crate) owner: Owner,
    /// Oldest first; the last one is written to.
    pub(crate) segments: Vec<Segment>,
    pub(crate) purged: Option<LogId>,
    /// Number of the last batch.
    pub(crate) batch: u64,
    pub(crate) next_index: u64,
    pub(crate) durable: watch::Sender<u64>,
    /// Index after the last one that a durable snapshot covers.
    pub(crate) covered: watch::Receiver<u64>,
    pub(crate) segment_bytes: u64,
    pub(crate) cache_bytes: usize,
    pub(crate) on_fatal: FatalHook,
}

/// What is queued for one flush.
#[derive(Default)]
struct Piece {
    records: Vec<(u64, Record)>,
    done: Vec<Done>,
    ticket: u64,
    bytes: usize,
    wants_state: bool,
}

/// Why the writer cannot go on.
enum Stop {
    /// The disk was taken away: a shutdown.
    Closed,
    Fatal(String),
}

impl Writer {
    pub(crate) async fn run(mut self, mut queue: mpsc::UnboundedReceiver<Op>) {
        let mut ops = Vec::new();
        while queue.recv_many(&mut ops, AT_ONCE).await > 0 {
            plant("writer");
            match self.process(&mut ops).await {
                Ok(None) => {}
                Ok(Some(done)) => {
                    let _gave_up = done.send(());
                    return;
                }
                Err(Stop::Closed) => return,
                Err(Stop::Fatal(why)) => return (self.on_fatal)(&why),
            }
        }
    }

    async fn process(&mut self, ops: &mut Vec<Op>) -> Result<Option<oneshot::Sender<()>>, Stop> {
        let mut piece = Piece::default();
        for op in ops.drain(..) {
            match op {
                Op::Append { ticket, records, done } => {
                    piece.bytes += records.iter().map(Record::encoded_len).sum::<usize>();
                    piece.records.extend(records.into_iter().map(|record| (ticket, record)));
                    piece.done.push(done);
                    piece.ticket = ticket;
                }
                Op::State { ticket, done } => {
                    piece.wants_state = true;
                    piece.done.push(done);
                    piece.ticket = ticket;
                }
                Op::Purge { ticket, upto } => {
                    self.flush(std::mem::take(&mut piece)).await?;
                    self.purge(upto).await?;
                    piece.ticket = ticket;
                    piece.wants_state = true;
                    self.flush(std::mem::take(&mut piece)).await?;
                    self.remove_old().await?;
                }
                Op::Stop { done } => {
                    self.flush(piece).await?;
                    return Ok(Some(done));
                }
            }
            if piece.bytes >= PIECE_BYTES {
                self.flush(std::mem::take(&mut piece)).await?;
            }
        }
        self.flush(piece).await?;
        Ok(None)
    }

    /// Openraft purges the log while the snapshot that replaces it is still being installed. The
    /// purge becomes real only with the snapshot; until then nothing after it may become durable,
    /// or a crash would leave a hole.
    async fn purge(&mut self, upto: LogId) -> Result<(), Stop> {
        // The snapshot cannot come once the disk is gone, and the core, which owns the other end
        // of `covered`, ends only after this writer has answered it.
        tokio::select! {
            biased;
            reached = self.covered.wait_for(|covered| *covered > upto.index) => {
                reached.map(|_| ()).map_err(|_| Stop::Closed)?;
            }
            () = self.disk.closed() => return Err(Stop::Closed),
        }
        self.purged = self.purged.max(Some(upto));
        self.next_index = self.next_index.max(upto.index + 1);
        Ok(())
    }

    fn state(&self, committed_too: bool) -> HardState {
        let mut memory = self.shared.memory();
        if committed_too {
            memory.committed_moved = false;
        }
        HardState { purged: self.purged, ..memory.hard.clone() }
    }

    fn state_record(&self) -> Result<Record, Stop> {
        let state = self.state(true);
        Record::state(&state).map_err(|e| Stop::Fatal(format!("cannot encode the state: {e}")))
    }

    async fn flush(&mut self, mut piece: Piece) -> Result<(), Stop> {
        if piece.ticket == 0 {
            return Ok(());
        }
        if piece.wants_state || self.shared.memory().committed_moved {
            let ticket = piece.ticket;
            piece.records.push((ticket, self.state_record()?));
        }
        let begin =
            if self.current().len >= self.segment_bytes { Some(self.begin()?) } else { None };
        let (bytes, places) = self.encode(&piece.records);
        let sequence = self.current().sequence;
        let written = Written { sequence, kept: self.current().len, bytes: Arc::new(bytes), begin };
        self.shared.set_flushing(Some(Instant::now()));
        self.write(&written).await?;
        self.shared.set_flushing(None);
        let next_index = self.next_index;
        if let Some(current) = self.segments.last_mut() {
            current.len += written.bytes.len() as u64;
            current.next_index = next_index;
        }
        {
            let mut memory = self.shared.memory();
            for (index, ticket, place) in places {
                memory.written(index, ticket, place);
            }
            memory.evict(self.cache_bytes);
        }
        self.durable.send_replace(piece.ticket);
        piece.done.into_iter().for_each(Done::tell);
        Ok(())
    }

    fn current(&self) -> &Segment {
        // Opening the log makes the first segment if there is none.
        self.segments.last().expect("the log has a segment to write to")
    }

    /// Starts a new segment; returns the bytes it starts with.
    fn begin(&mut self) -> Result<Arc<Vec<u8>>, Stop> {
        let sequence = self.current().sequence + 1;
        self.batch += 1;
        let state = self.state(false);
        let bytes = first_bytes(self.owner, sequence, self.next_index, &state, self.batch);
        let bytes = bytes.map_err(|e| Stop::Fatal(format!("cannot encode the state: {e}")))?;
        let len = bytes.len() as u64;
        self.segments.push(Segment { sequence, len, next_index: self.next_index });
        Ok(Arc::new(bytes))
    }

    fn encode(&mut self, records: &[(u64, Record)]) -> (Vec<u8>, Vec<(u64, u64, Place)>) {
        self.batch += 1;
        let Segment { sequence, len: start, .. } = *self.current();
        let mut bytes = Vec::with_capacity(records.iter().map(|(_, r)| r.encoded_len()).sum());
        let mut places = Vec::with_capacity(records.len());
        for (nth, (ticket, record)) in records.iter().enumerate() {
            let spot = Spot { sequence, offset: start + bytes.len() as u64 };
            record.encode(&mut bytes, spot, self.batch, nth + 1 == records.len());
            if record.kind.is_entry() {
                places.push((record.index, *ticket, Place { spot, len: record.encoded_len() }));
                self.next_index = record.index + 1;
            } else if record.kind == crate::record::Kind::Truncate {
                self.next_index = record.index;
            }
        }
        (bytes, places)
    }

    async fn write(&self, written: &Written) -> Result<(), Stop> {
        loop {
            let job = written.clone();
            let outcome = match self.disk.run(move |disk| job.carry_out(disk)).await {
                Ok(outcome) => outcome,
                Err(e) => Err(Failure::Write(e)),
            };
            match outcome {
                Ok(()) => return Ok(()),
                Err(_) if self.disk.is_closed() => return Err(Stop::Closed),
                Err(Failure::Full) => {
                    tracing::warn!("the log's disk is full; waiting for room");
                    tokio::time::sleep(FULL_RETRY).await;
                }
                Err(Failure::Write(e)) => {
                    return Err(Stop::Fatal(format!("writing the log failed: {e}")));
                }
                Err(Failure::Sync(e)) => {
                    return Err(Stop::Fatal(format!(
                        "flushing the log failed: {e}. What is on the disk is unknown; this \
                         replica must be started again and not retry"
                    )));
                }
            }
        }
    }

    async fn remove_old(&mut self) -> Result<(), Stop> {
        let kept_from = crate::raft::next_index(self.purged.as_ref());
        let last = self.segments.len() - 1;
        let old = self.segments[..last].iter().take_while(|old| old.next_index <= kept_from);
        let paths: Vec<String> = old.map(|old| segment_path(old.sequence)).collect();
        self.segments.drain(..paths.len());
        let next = self.next_index;
        let removed = self.disk.run(move |disk| {
            end_install(disk, next)?;
            if paths.is_empty() {
                return Ok(());
            }
            // Oldest first: after a crash the rest is still without a gap.
            paths.iter().try_for_each(|path| disk.remove(path))?;
            disk.sync_dir(DIR)
        });
        match removed.await.and_then(|removed| removed) {
            Ok(()) => Ok(()),
            Err(_) if self.disk.is_closed() => Err(Stop::Closed),
            Err(e) => Err(Stop::Fatal(format!("removing old log segments failed: {e}"))),
        }
    }
}

/// One write and its flush, as the disk is to carry it out.
#[derive(Clone)]
struct Written {
    sequence: u64,
    /// Length of the segment before this write.
    kept: u64,
    bytes: Arc<Vec<u8>>,
    begin: Option<Arc<Vec<u8>>>,
}

enum Failure {
    Full,
    Write(io::Error),
    Sync(io::Error),
}

impl Written {
    fn carry_out(&self, disk: &dyn Disk) -> Result<(), Failure> {
        let path = segment_path(self.sequence);
        if let Some(bytes) = &self.begin {
            disk.write_new(&path, bytes).map_err(full_or)?;
        }
        if let Err(e) = disk.append(&path, &self.bytes).map_err(full_or) {
            if matches!(e, Failure::Full) {
                disk.truncate(&path, self.kept).map_err(Failure::Write)?;
            }
            return Err(e);
        }
        disk.sync(&path).map_err(Failure::Sync)
    }
}

fn full_or(e: io::Error) -> Failure {
    match e.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => Failure::Full,
        _ => Failure::Write(e),
    }
}

/// A segment's header and the state record that lets all older segments go.
pub(crate) fn first_bytes(
    owner: Owner,
    sequence: u64,
    first_index: u64,
    state: &HardState,
    batch: u64,
) -> Result<Vec<u8>, postcard::Error> {
    let mut bytes = SegmentHeader { version: VERSION, sequence, first_index, owner }.encode();
    let spot = Spot { sequence, offset: HEADER_LEN as u64 };
    Record::state(state)?.encode(&mut bytes, spot, batch, true);
    Ok(bytes)
}
