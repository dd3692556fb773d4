//! A copy-on-write ordered map in shards: cloning is one reference count, the first write after a
//! clone copies one shard and the list of shards, not the whole map.

use serde::Serialize;
use std::collections::BTreeMap;
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

    pub fn len(&self) -> usize {
        self.shards.iter().map(|s| s.len()).sum()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}
