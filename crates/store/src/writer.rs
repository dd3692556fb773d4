//! The one task that writes the log, with group commit.
//!
//! It takes everything that is queued, writes it in one batch and flushes once; what arrives during
//! the flush makes up the next batch. Under load the batches grow by themselves, so there is no
//! timer that decides how long to wait for more.
//!
//! A failed flush ends the replica: what the kernel did with the pages is unknown, and a retry can
//! succeed without having written them. A failed *write* for lack of space is different: nothing
//! has been promised, so the batch is cut off again and retried until there is space. The replica
//! answers no call meanwhile, which makes the others elect a leader that can write.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use cellwright_supervise::failpoint;
use openraft::storage::LogFlushed;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::Instant;

use crate::config::FatalHook;
use crate::disk::{Disk, DiskHandle};
use crate::log::{RecordLocation, Shared};
use crate::raft::{LogId, TypeConfig};
use crate::record::{
    DIR, HardState, Owner, Record, RecordPosition, SEGMENT_HEADER_LEN, SegmentHeader, VERSION,
    segment_path,
};
use crate::recovery::{Segment, end_install};

/// Operations taken from the queue at once.
const MAX_OPS_PER_BATCH: usize = 4096;
/// A batch is flushed when it has grown to this size, so that its first callers are answered.
const MAX_FLUSH_BYTES: usize = 8 << 20;
const DISK_FULL_RETRY: Duration = Duration::from_millis(200);

/// Who is notified when an operation is durable.
pub(crate) enum Completion {
    Ignored,
    Waiter(oneshot::Sender<()>),
    Flushed(LogFlushed<TypeConfig>),
}

impl Completion {
    fn notify(self) {
        match self {
            Completion::Ignored => {}
            // The waiter may have given up; the operation it asked for is done all the same.
            Completion::Waiter(waiter) => {
                let _gave_up = waiter.send(());
            }
            Completion::Flushed(callback) => callback.log_io_completed(Ok(())),
        }
    }
}

pub(crate) enum WriteOp {
    Append { ticket: u64, records: Vec<Record>, done: Completion },
    State { ticket: u64, done: Completion },
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
struct PendingFlush {
    records: Vec<(u64, Record)>,
    done: Vec<Completion>,
    ticket: u64,
    bytes: usize,
    includes_state: bool,
}

/// Why the writer cannot go on.
enum WriterExit {
    /// The disk was taken away: a shutdown.
    Closed,
    Fatal(String),
}

impl Writer {
    pub(crate) async fn run(mut self, mut queue: mpsc::UnboundedReceiver<WriteOp>) {
        let mut ops = Vec::new();
        while queue.recv_many(&mut ops, MAX_OPS_PER_BATCH).await > 0 {
            failpoint("writer");
            match self.process(&mut ops).await {
                Ok(None) => {}
                Ok(Some(done)) => {
                    let _gave_up = done.send(());
                    return;
                }
                Err(WriterExit::Closed) => return,
                Err(WriterExit::Fatal(why)) => return (self.on_fatal)(&why),
            }
        }
    }

    async fn process(
        &mut self,
        ops: &mut Vec<WriteOp>,
    ) -> Result<Option<oneshot::Sender<()>>, WriterExit> {
        let mut pending = PendingFlush::default();
        for op in ops.drain(..) {
            match op {
                WriteOp::Append { ticket, records, done } => {
                    pending.bytes += records.iter().map(Record::encoded_len).sum::<usize>();
                    pending.records.extend(records.into_iter().map(|record| (ticket, record)));
                    pending.done.push(done);
                    pending.ticket = ticket;
                }
                WriteOp::State { ticket, done } => {
                    pending.includes_state = true;
                    pending.done.push(done);
                    pending.ticket = ticket;
                }
                WriteOp::Purge { ticket, upto } => {
                    self.flush(std::mem::take(&mut pending)).await?;
                    self.purge(upto).await?;
                    pending.ticket = ticket;
                    pending.includes_state = true;
                    self.flush(std::mem::take(&mut pending)).await?;
                    self.remove_purged_segments().await?;
                }
                WriteOp::Stop { done } => {
                    self.flush(pending).await?;
                    return Ok(Some(done));
                }
            }
            if pending.bytes >= MAX_FLUSH_BYTES {
                self.flush(std::mem::take(&mut pending)).await?;
            }
        }
        self.flush(pending).await?;
        Ok(None)
    }

    /// Openraft purges the log while the snapshot that replaces it is still being installed. The
    /// purge becomes real only with the snapshot; until then nothing after it may become durable,
    /// or a crash would leave a hole.
    async fn purge(&mut self, upto: LogId) -> Result<(), WriterExit> {
        // The snapshot cannot come once the disk is gone, and the core, which owns the other end
        // of `covered`, ends only after this writer has answered it.
        tokio::select! {
            biased;
            reached = self.covered.wait_for(|covered| *covered > upto.index) => {
                reached.map(|_| ()).map_err(|_| WriterExit::Closed)?;
            }
            () = self.disk.wait_closed() => return Err(WriterExit::Closed),
        }
        self.purged = self.purged.max(Some(upto));
        self.next_index = self.next_index.max(upto.index + 1);
        Ok(())
    }

    fn state(&self, committed_too: bool) -> HardState {
        let mut memory = self.shared.memory();
        if committed_too {
            memory.is_committed_dirty = false;
        }
        HardState { purged: self.purged, ..memory.hard_state.clone() }
    }

    fn state_record(&self) -> Result<Record, WriterExit> {
        let state = self.state(true);
        Record::state(&state)
            .map_err(|e| WriterExit::Fatal(format!("cannot encode the state: {e}")))
    }

    async fn flush(&mut self, mut pending: PendingFlush) -> Result<(), WriterExit> {
        if pending.ticket == 0 {
            return Ok(());
        }
        if pending.includes_state || self.shared.memory().is_committed_dirty {
            let ticket = pending.ticket;
            pending.records.push((ticket, self.state_record()?));
        }
        let new_segment = if self.current().len >= self.segment_bytes {
            Some(self.begin_segment()?)
        } else {
            None
        };
        let (bytes, locations) = self.encode(&pending.records);
        let sequence = self.current().sequence;
        let written = SegmentWrite {
            sequence,
            previous_len: self.current().len,
            bytes: Arc::new(bytes),
            new_segment,
        };
        self.shared.set_flush_started(Some(Instant::now()));
        self.write(&written).await?;
        self.shared.set_flush_started(None);
        let next_index = self.next_index;
        if let Some(current) = self.segments.last_mut() {
            current.len += written.bytes.len() as u64;
            current.next_index = next_index;
        }
        {
            let mut memory = self.shared.memory();
            for (index, ticket, location) in locations {
                memory.note_written(index, ticket, location);
            }
            memory.evict(self.cache_bytes);
        }
        self.durable.send_replace(pending.ticket);
        pending.done.into_iter().for_each(Completion::notify);
        Ok(())
    }

    fn current(&self) -> &Segment {
        // Opening the log makes the first segment if there is none.
        self.segments.last().expect("the log has a segment to write to")
    }

    /// Starts a new segment; returns its first bytes.
    fn begin_segment(&mut self) -> Result<Arc<Vec<u8>>, WriterExit> {
        let sequence = self.current().sequence + 1;
        self.batch += 1;
        let state = self.state(false);
        let bytes = segment_start(self.owner, sequence, self.next_index, &state, self.batch);
        let bytes =
            bytes.map_err(|e| WriterExit::Fatal(format!("cannot encode the state: {e}")))?;
        let len = bytes.len() as u64;
        self.segments.push(Segment { sequence, len, next_index: self.next_index });
        Ok(Arc::new(bytes))
    }

    fn encode(&mut self, records: &[(u64, Record)]) -> (Vec<u8>, Vec<(u64, u64, RecordLocation)>) {
        self.batch += 1;
        let Segment { sequence, len: start, .. } = *self.current();
        let mut bytes = Vec::with_capacity(records.iter().map(|(_, r)| r.encoded_len()).sum());
        let mut locations = Vec::with_capacity(records.len());
        for (nth, (ticket, record)) in records.iter().enumerate() {
            let position = RecordPosition { sequence, offset: start + bytes.len() as u64 };
            record.encode(&mut bytes, position, self.batch, nth + 1 == records.len());
            if record.kind.is_entry() {
                locations.push((
                    record.index,
                    *ticket,
                    RecordLocation { position, len: record.encoded_len() },
                ));
                self.next_index = record.index + 1;
            } else if record.kind == crate::record::RecordKind::Truncate {
                self.next_index = record.index;
            }
        }
        (bytes, locations)
    }

    async fn write(&self, written: &SegmentWrite) -> Result<(), WriterExit> {
        loop {
            let job = written.clone();
            let outcome = match self.disk.run(move |disk| job.execute(disk)).await {
                Ok(outcome) => outcome,
                Err(e) => Err(WriteFailure::Write(e)),
            };
            match outcome {
                Ok(()) => return Ok(()),
                Err(_) if self.disk.is_closed() => return Err(WriterExit::Closed),
                Err(WriteFailure::Full) => {
                    tracing::warn!("the log's disk is full; waiting for room");
                    tokio::time::sleep(DISK_FULL_RETRY).await;
                }
                Err(WriteFailure::Write(e)) => {
                    return Err(WriterExit::Fatal(format!("writing the log failed: {e}")));
                }
                Err(WriteFailure::Sync(e)) => {
                    return Err(WriterExit::Fatal(format!(
                        "flushing the log failed: {e}. What is on the disk is unknown; this \
                         replica must be started again and not retry"
                    )));
                }
            }
        }
    }

    async fn remove_purged_segments(&mut self) -> Result<(), WriterExit> {
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
            // Oldest first: after a crash the remaining segments still have no gap.
            paths.iter().try_for_each(|path| disk.remove(path))?;
            disk.sync_dir(DIR)
        });
        match removed.await.and_then(|removed| removed) {
            Ok(()) => Ok(()),
            Err(_) if self.disk.is_closed() => Err(WriterExit::Closed),
            Err(e) => Err(WriterExit::Fatal(format!("removing old log segments failed: {e}"))),
        }
    }
}

/// One write and its flush, for the disk to carry out.
#[derive(Clone)]
struct SegmentWrite {
    sequence: u64,
    /// Length of the segment before this write.
    previous_len: u64,
    bytes: Arc<Vec<u8>>,
    new_segment: Option<Arc<Vec<u8>>>,
}

enum WriteFailure {
    Full,
    Write(io::Error),
    Sync(io::Error),
}

impl SegmentWrite {
    fn execute(&self, disk: &dyn Disk) -> Result<(), WriteFailure> {
        let path = segment_path(self.sequence);
        if let Some(bytes) = &self.new_segment {
            disk.write_atomic(&path, bytes).map_err(classify_error)?;
        }
        if let Err(e) = disk.append(&path, &self.bytes).map_err(classify_error) {
            if matches!(e, WriteFailure::Full) {
                disk.truncate(&path, self.previous_len).map_err(WriteFailure::Write)?;
            }
            return Err(e);
        }
        disk.sync(&path).map_err(WriteFailure::Sync)
    }
}

fn classify_error(e: io::Error) -> WriteFailure {
    match e.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => WriteFailure::Full,
        _ => WriteFailure::Write(e),
    }
}

/// A segment's header and the state record that allows all older segments to be removed.
pub(crate) fn segment_start(
    owner: Owner,
    sequence: u64,
    first_index: u64,
    state: &HardState,
    batch: u64,
) -> Result<Vec<u8>, postcard::Error> {
    let mut bytes = SegmentHeader { version: VERSION, sequence, first_index, owner }.encode();
    let position = RecordPosition { sequence, offset: SEGMENT_HEADER_LEN as u64 };
    Record::state(state)?.encode(&mut bytes, position, batch, true);
    Ok(bytes)
}
