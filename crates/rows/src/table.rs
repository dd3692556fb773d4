//! Copy-on-write tables with an incremental hash.
//!
//! A clone costs two reference counts; readers, snapshots and the scheduler keep theirs while the
//! owner writes on, which copies one chunk for each slot range it touches. The hash of a table is
//! the wrapping sum of its rows' hashes, so a change costs the touched rows and nothing else; sums
//! commute, so the order of changes does not matter, only the rows do.
//!
//! Rejected: a persistent tree (pointer-chasing on every read of the hot path), and hashing whole
//! chunks (64 rows re-encoded for one changed).

use serde::Serialize;
use std::marker::PhantomData;
use std::sync::Arc;
use xxhash_rust::xxh3::xxh3_64;

/// An id that names a row.
pub trait Key: Copy {
    fn from_slot(slot: usize) -> Self;
    fn slot(self) -> usize;
}

const CHUNK: usize = 64;
/// Values in the list of hashes that are not hashes.
const VACANT: u64 = 0;
const DIRTY: u64 = 1;

#[derive(Clone, Debug)]
struct Chunk<V> {
    rows: Vec<Option<V>>,
    hashes: [u64; CHUNK],
}

#[derive(Debug)]
pub struct Table<K, V> {
    chunks: Arc<Vec<Arc<Chunk<V>>>>,
    slots: usize,
    live: usize,
    dirty: Vec<u32>,
    sum: u64,
    key: PhantomData<fn() -> K>,
}

impl<K, V> Clone for Table<K, V> {
    fn clone(&self) -> Self {
        Table {
            chunks: self.chunks.clone(),
            slots: self.slots,
            live: self.live,
            dirty: self.dirty.clone(),
            sum: self.sum,
            key: PhantomData,
        }
    }
}

impl<K, V> Default for Table<K, V> {
    fn default() -> Self {
        Table {
            chunks: Arc::default(),
            slots: 0,
            live: 0,
            dirty: Vec::new(),
            sum: 0,
            key: PhantomData,
        }
    }
}

/// Mixes a row's hash with its slot, so that equal rows in different slots hash differently.
fn positioned_hash(slot: usize, hash: u64) -> u64 {
    let mixed = hash ^ (slot as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed ^ (mixed >> 29)).wrapping_mul(0xbf58_476d_1ce4_e5b9)
}

impl<K: Key, V: Clone> Table<K, V> {
    #[inline]
    pub fn get(&self, key: K) -> Option<&V> {
        let slot = key.slot();
        self.chunks.get(slot / CHUNK)?.rows.get(slot % CHUNK)?.as_ref()
    }

    /// The row for writing; marks it for re-hashing.
    #[inline]
    pub fn get_mut(&mut self, key: K) -> Option<&mut V> {
        let slot = key.slot();
        let chunk = Arc::make_mut(&mut self.chunks).get_mut(slot / CHUNK)?;
        let at = slot % CHUNK;
        chunk.rows.get(at)?.as_ref()?;
        let chunk = Arc::make_mut(chunk);
        if chunk.hashes[at] != DIRTY {
            self.sum = self.sum.wrapping_sub(positioned_hash(slot, chunk.hashes[at]));
            chunk.hashes[at] = DIRTY;
            self.dirty.push(slot as u32);
        }
        chunk.rows[at].as_mut()
    }

    /// The key that the next [`Table::push`] will return.
    pub fn next_key(&self) -> K {
        K::from_slot(self.slots)
    }

    /// Whether `more` rows can still get an id.
    pub fn has_room_for(&self, more: usize) -> bool {
        self.slots.saturating_add(more) <= u32::MAX as usize
    }

    pub fn push(&mut self, value: V) -> K {
        let slot = self.slots;
        let chunks = Arc::make_mut(&mut self.chunks);
        if slot.is_multiple_of(CHUNK) {
            let rows = Vec::with_capacity(CHUNK);
            chunks.push(Arc::new(Chunk { rows, hashes: [VACANT; CHUNK] }));
        }
        let chunk = Arc::make_mut(&mut chunks[slot / CHUNK]);
        chunk.rows.push(Some(value));
        chunk.hashes[slot % CHUNK] = DIRTY;
        self.dirty.push(slot as u32);
        self.slots += 1;
        self.live += 1;
        K::from_slot(slot)
    }

    /// Appends a slot without a row, so that ids of removed rows survive a save and load.
    pub fn push_vacant(&mut self) {
        let slot = self.slots;
        let chunks = Arc::make_mut(&mut self.chunks);
        if slot.is_multiple_of(CHUNK) {
            let rows = Vec::with_capacity(CHUNK);
            chunks.push(Arc::new(Chunk { rows, hashes: [VACANT; CHUNK] }));
        }
        Arc::make_mut(&mut chunks[slot / CHUNK]).rows.push(None);
        self.slots += 1;
    }

    /// Puts a row into a vacant slot below [`Table::slots`]; returns false if the slot is not
    /// vacant.
    pub fn refill(&mut self, key: K, value: V) -> bool {
        let slot = key.slot();
        if slot >= self.slots || self.get(key).is_some() {
            return false;
        }
        let chunk = Arc::make_mut(&mut Arc::make_mut(&mut self.chunks)[slot / CHUNK]);
        chunk.rows[slot % CHUNK] = Some(value);
        if chunk.hashes[slot % CHUNK] != DIRTY {
            chunk.hashes[slot % CHUNK] = DIRTY;
            self.dirty.push(slot as u32);
        }
        self.live += 1;
        true
    }

    pub fn remove(&mut self, key: K) -> Option<V> {
        self.get_mut(key)?;
        let slot = key.slot();
        let chunk = Arc::make_mut(&mut Arc::make_mut(&mut self.chunks)[slot / CHUNK]);
        self.live -= 1;
        chunk.rows[slot % CHUNK].take()
    }

    pub fn iter(&self) -> impl Iterator<Item = (K, &V)> {
        self.chunks.iter().enumerate().flat_map(|(c, chunk)| {
            chunk.rows.iter().enumerate().filter_map(move |(i, row)| {
                row.as_ref().map(|row| (K::from_slot(c * CHUNK + i), row))
            })
        })
    }

    /// Number of rows in use.
    pub fn len(&self) -> usize {
        self.live
    }

    pub fn is_empty(&self) -> bool {
        self.live == 0
    }

    /// Number of chunks not shared with an older clone, that is, copied or made by writes since.
    pub fn copied_since(&self, older: &Self) -> usize {
        let same = |(at, chunk): &(usize, &Arc<Chunk<V>>)| {
            older.chunks.get(*at).is_some_and(|old| Arc::ptr_eq(old, chunk))
        };
        self.chunks.iter().enumerate().filter(|found| !same(found)).count()
    }

    /// Number of slots ever made, in use or vacant.
    pub fn slots(&self) -> usize {
        self.slots
    }
}

impl<K: Key, V: Clone + Serialize> Table<K, V> {
    /// Hash over all rows and their slots. Costs the rows touched since the last call.
    pub fn hash(&mut self, scratch: &mut Vec<u8>) -> u64 {
        if self.dirty.is_empty() {
            return self.sum;
        }
        let chunks = Arc::make_mut(&mut self.chunks);
        for slot in self.dirty.drain(..) {
            let slot = slot as usize;
            let chunk = Arc::make_mut(&mut chunks[slot / CHUNK]);
            let Some(row) = &chunk.rows[slot % CHUNK] else {
                // Vacant slots add nothing to the sum.
                chunk.hashes[slot % CHUNK] = VACANT;
                continue;
            };
            let hash = row_hash(row, scratch);
            chunk.hashes[slot % CHUNK] = hash;
            self.sum = self.sum.wrapping_add(positioned_hash(slot, hash));
        }
        self.sum
    }
}

fn row_hash<V: Serialize>(row: &V, scratch: &mut Vec<u8>) -> u64 {
    scratch.clear();
    let mut bytes = std::mem::take(scratch);
    // Encoding into memory fails only for types postcard does not support; the wire tests exclude
    // those.
    bytes = postcard::to_extend(row, bytes).unwrap_or_default();
    let hash = xxh3_64(&bytes).max(DIRTY + 1);
    *scratch = bytes;
    hash
}
