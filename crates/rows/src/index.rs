//! A copy-on-write map in shards by the hash of the key: a clone costs one reference count; the
//! first write after a clone copies one shard and the list of shards, not the whole map. Keys are
//! in order inside a shard alone; `in_order` merges the shards.

use serde::Serialize;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::sync::Arc;
use xxhash_rust::xxh3::xxh3_64;

const SHARDS: usize = 64;

#[derive(Clone, Debug)]
pub struct Index<K: Ord, V> {
    shards: Arc<Vec<Arc<BTreeMap<K, V>>>>,
}

impl<K: Ord, V> Default for Index<K, V> {
    fn default() -> Self {
        Index { shards: Arc::new((0..SHARDS).map(|_| Arc::default()).collect()) }
    }
}

impl<K: Ord + Clone + Serialize, V: Clone> Index<K, V> {
    fn shard(key: &K) -> usize {
        let mut buffer = [0u8; 192];
        let hash = match postcard::to_slice(key, &mut buffer) {
            Ok(bytes) => xxh3_64(bytes),
            // Keys longer than the buffer share a shard: slower, never wrong.
            Err(_) => 0,
        };
        (hash % SHARDS as u64) as usize
    }

    pub fn get(&self, key: &K) -> Option<&V> {
        self.shards[Self::shard(key)].get(key)
    }

    pub fn get_mut(&mut self, key: &K) -> Option<&mut V> {
        let shard = Self::shard(key);
        self.shards[shard].get(key)?;
        Arc::make_mut(&mut Arc::make_mut(&mut self.shards)[shard]).get_mut(key)
    }

    pub fn insert(&mut self, key: K, value: V) -> Option<V> {
        let shard = Self::shard(&key);
        Arc::make_mut(&mut Arc::make_mut(&mut self.shards)[shard]).insert(key, value)
    }

    pub fn remove(&mut self, key: &K) -> Option<V> {
        let shard = Self::shard(key);
        self.shards[shard].get(key)?;
        Arc::make_mut(&mut Arc::make_mut(&mut self.shards)[shard]).remove(key)
    }

    /// All entries, ordered inside each shard. The order is the same on every machine.
    pub fn iter(&self) -> impl Iterator<Item = (&K, &V)> {
        self.shards.iter().flat_map(|shard| shard.iter())
    }

    /// All entries in the order of their keys. Taking the first few costs those few, and one entry
    /// of each shard.
    pub fn in_order(&self) -> impl Iterator<Item = (&K, &V)> {
        let mut rest: Vec<_> = self.shards.iter().map(|shard| shard.iter()).collect();
        let mut heads: Vec<Option<(&K, &V)>> = rest.iter_mut().map(Iterator::next).collect();
        let keys = heads.iter().enumerate();
        let keys = keys.filter_map(|(shard, head)| head.map(|(key, _)| Reverse((key, shard))));
        let mut next: BinaryHeap<Reverse<(&K, usize)>> = keys.collect();
        std::iter::from_fn(move || {
            let Reverse((_, shard)) = next.pop()?;
            let found = std::mem::replace(&mut heads[shard], rest[shard].next());
            next.extend(heads[shard].map(|(key, _)| Reverse((key, shard))));
            found
        })
    }

    /// Number of shards not shared with an older clone, that is, copied by writes since.
    pub fn copied_since(&self, older: &Self) -> usize {
        let shards = self.shards.iter().zip(older.shards.iter());
        shards.filter(|(shard, old)| !Arc::ptr_eq(shard, old)).count()
    }

    pub fn len(&self) -> usize {
        self.shards.iter().map(|s| s.len()).sum()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_come_in_the_order_of_their_keys() {
        let mut index = Index::default();
        for key in (0..1000u32).rev() {
            index.insert(key * 3 % 1000, key);
        }
        let keys: Vec<u32> = index.in_order().map(|(key, _)| *key).collect();
        assert!(keys.iter().copied().eq(0..1000));
        assert_eq!(Index::<u32, u32>::default().in_order().next(), None);
    }

    #[test]
    fn a_write_after_a_clone_copies_one_shard() {
        let mut index = Index::default();
        for key in 0..1000u32 {
            index.insert(key, key);
        }
        let older = index.clone();
        index.insert(7, 8);
        assert_eq!((index.copied_since(&older), older.get(&7)), (1, Some(&7)));
    }
}
