//! A package that is being fetched: a file, and which chunks of it have arrived. Those can be
//! served to others already, so that a package spreads while it arrives.

use super::source::SourceError;
use crate::error::{PackageError, at};
use crate::head::Head;
use bytes::Bytes;
use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError};

pub(super) struct Partial {
    pub(super) path: PathBuf,
    file: File,
    state: Mutex<PartialState>,
}

/// Which head a chunk was verified with. Writes of an earlier round may come late, when their fetch
/// has started over with another head.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Round(u64);

#[derive(Default)]
struct PartialState {
    round: Round,
    head: Option<Head>,
    chunks: Vec<bool>,
}

impl Partial {
    pub(super) fn create(path: PathBuf, bytes: u64) -> Result<Partial, PackageError> {
        let options = OpenOptions::new().read(true).write(true).create_new(true).open(&path);
        let file = options.map_err(at(&path))?;
        file.set_len(bytes).map_err(at(&path))?;
        Ok(Partial { path, file, state: Mutex::default() })
    }

    /// Starts over with this head, which has been read from `start`.
    pub(super) fn start_round(&self, head: &Head, start: &[u8]) -> Result<Round, PackageError> {
        let end = usize::try_from(head.body_start).unwrap_or(usize::MAX).min(start.len());
        let mut state = self.lock();
        self.file.write_all_at(&start[..end], 0).map_err(at(&self.path))?;
        let round = Round(state.round.0 + 1);
        let chunks = vec![false; head.chunks.len()];
        *state = PartialState { round, head: Some(head.clone()), chunks };
        Ok(round)
    }

    /// Writes a chunk that was verified with the head of `round`; nothing happens when that round
    /// is over.
    pub(super) fn write_chunk(
        &self,
        head: &Head,
        round: Round,
        chunk: u32,
        bytes: &[u8],
    ) -> Result<(), PackageError> {
        let (from, _) = head.range_of(chunk);
        // Held while writing: a new round must not begin between the check and the write.
        let mut state = self.lock();
        if state.round != round {
            return Ok(());
        }
        self.file.write_all_at(bytes, from).map_err(at(&self.path))?;
        if let Some(here) = state.chunks.get_mut(chunk as usize) {
            *here = true;
        }
        Ok(())
    }

    pub(super) fn sync(&self) -> Result<(), PackageError> {
        self.file.sync_all().map_err(at(&self.path))
    }

    pub(super) fn reader(&self) -> Result<File, PackageError> {
        File::open(&self.path).map_err(at(&self.path))
    }

    /// Bytes of the range; all of it or nothing.
    pub(super) fn read(&self, from: u64, length: u32) -> Result<Bytes, SourceError> {
        let end = from.saturating_add(u64::from(length));
        {
            let state = self.lock();
            let head = state.head.as_ref().ok_or(SourceError::Lacks)?;
            if end > head.total() {
                return Err(SourceError::Lacks);
            }
            let size = u64::from(head.chunk_bytes);
            let first = from.saturating_sub(head.body_start) / size;
            let last = end.saturating_sub(head.body_start).div_ceil(size);
            let here = |chunk| usize::try_from(chunk).ok().and_then(|c| state.chunks.get(c));
            if !(first..last).all(|chunk| here(chunk) == Some(&true)) {
                return Err(SourceError::Lacks);
            }
        }
        let mut bytes = vec![0; length as usize];
        let read = self.file.read_exact_at(&mut bytes, from);
        read.map_err(|why| SourceError::Failed(why.to_string()))?;
        Ok(bytes.into())
    }

    /// Removes the file, unless it was moved to its final path.
    pub(super) fn discard(&self) {
        // Should it stay, the next start removes it.
        let _left_behind = fs::remove_file(&self.path);
    }

    fn lock(&self) -> MutexGuard<'_, PartialState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
