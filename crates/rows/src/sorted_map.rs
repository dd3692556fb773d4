//! A copy-on-write ordered map in small pieces: a clone costs one reference count, and a write
//! after it copies one piece and the list of pieces, however many entries there are.
//!
//! [`crate::index::Index`] is for names that are looked up one by one; this map is for data that is
//! walked in order: the machines of a resource, leases by their end. Rejected: a `BTreeMap` behind
//! a reference count, which the first write after a clone copies whole.

use std::sync::Arc;

/// Most entries of a piece; a piece that grows beyond is cut in half.
const MAX_PIECE: usize = 64;

type Piece<K, V> = Arc<Vec<(K, V)>>;

#[derive(Clone, Debug)]
pub struct SortedMap<K, V> {
    /// Invariant: no piece is empty; keys grow within each piece and from piece to piece.
    pieces: Arc<Vec<Piece<K, V>>>,
    len: usize,
}

impl<K, V> Default for SortedMap<K, V> {
    fn default() -> Self {
        SortedMap { pieces: Arc::default(), len: 0 }
    }
}

impl<K: Ord + Clone, V: Clone> SortedMap<K, V> {
    /// The piece that contains the key, or would contain it.
    fn piece_of(&self, key: &K) -> usize {
        self.pieces.partition_point(|piece| piece[0].0 <= *key).saturating_sub(1)
    }

    fn locate(&self, key: &K) -> Option<(usize, Result<usize, usize>)> {
        let at = self.piece_of(key);
        let piece = self.pieces.get(at)?;
        Some((at, piece.binary_search_by(|(known, _)| known.cmp(key))))
    }

    pub fn get(&self, key: &K) -> Option<&V> {
        let (at, position) = self.locate(key)?;
        position.ok().map(|inside| &self.pieces[at][inside].1)
    }

    pub fn get_mut(&mut self, key: &K) -> Option<&mut V> {
        let (at, Ok(inside)) = self.locate(key)? else { return None };
        let piece = Arc::make_mut(&mut Arc::make_mut(&mut self.pieces)[at]);
        Some(&mut piece[inside].1)
    }

    /// The smallest key.
    pub fn first(&self) -> Option<&K> {
        self.pieces.first().map(|piece| &piece[0].0)
    }

    pub fn contains(&self, key: &K) -> bool {
        self.get(key).is_some()
    }

    pub fn insert(&mut self, key: K, value: V) -> Option<V> {
        let position = self.locate(&key);
        let pieces = Arc::make_mut(&mut self.pieces);
        let Some((at, position)) = position else {
            pieces.push(Arc::new(vec![(key, value)]));
            self.len = 1;
            return None;
        };
        let piece = Arc::make_mut(&mut pieces[at]);
        let inside = match position {
            Ok(inside) => return Some(std::mem::replace(&mut piece[inside].1, value)),
            Err(inside) => inside,
        };
        piece.insert(inside, (key, value));
        self.len += 1;
        if piece.len() > MAX_PIECE {
            let upper = piece.split_off(MAX_PIECE / 2);
            pieces.insert(at + 1, Arc::new(upper));
        }
        None
    }

    pub fn remove(&mut self, key: &K) -> Option<V> {
        let (at, Ok(inside)) = self.locate(key)? else { return None };
        let pieces = Arc::make_mut(&mut self.pieces);
        let (_, value) = Arc::make_mut(&mut pieces[at]).remove(inside);
        self.len -= 1;
        if pieces[at].is_empty() {
            pieces.remove(at);
        } else if pieces
            .get(at + 1)
            .is_some_and(|next| next.len() + pieces[at].len() < MAX_PIECE / 2)
        {
            // Otherwise a map that was once large would stay a long list of tiny pieces.
            let next = pieces.remove(at + 1);
            Arc::make_mut(&mut pieces[at]).extend(next.iter().cloned());
        }
        Some(value)
    }

    /// Iterates in the order of the keys.
    pub fn iter(&self) -> impl Iterator<Item = (&K, &V)> {
        self.pieces.iter().flat_map(|piece| piece.iter().map(|(key, value)| (key, value)))
    }

    pub fn len(&self) -> usize {
        self.len
    }

    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Number of pieces not shared with an older clone, that is, copied or made by writes since.
    pub fn copied_since(&self, older: &Self) -> usize {
        let is_in = |piece: &Arc<_>| older.pieces.iter().any(|old| Arc::ptr_eq(old, piece));
        self.pieces.iter().filter(|piece| !is_in(piece)).count()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    /// Applies the same thousands of writes to both maps, first growing and then shrinking them.
    #[test]
    fn it_holds_what_an_ordinary_map_holds() {
        let (mut sorted, mut plain) = (SortedMap::default(), BTreeMap::new());
        let mut seed = 7u64;
        for step in 0..6000u64 {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let key = (seed >> 33) % 700;
            let grows = (seed >> 20) % 10 < if step < 3000 { 7 } else { 2 };
            if grows {
                assert_eq!(sorted.insert(key, step), plain.insert(key, step))
            } else {
                assert_eq!(sorted.remove(&key), plain.remove(&key))
            }
            assert_eq!(sorted.len(), plain.len());
            assert_eq!(sorted.get(&key), plain.get(&key));
        }
        assert!(sorted.iter().eq(plain.iter()));
        assert!(sorted.pieces.iter().all(|piece| (1..=MAX_PIECE).contains(&piece.len())));
        plain.into_keys().for_each(|key| assert!(sorted.remove(&key).is_some()));
        assert!(sorted.is_empty() && sorted.pieces.is_empty());
    }

    #[test]
    fn a_write_after_a_clone_copies_one_piece() {
        let mut map = SortedMap::default();
        for key in 0..10_000u32 {
            map.insert(key * 2, ());
        }
        let older = map.clone();
        map.insert(10_001, ());
        assert_eq!(older.len() + 1, map.len());
        assert!((1..=2).contains(&map.copied_since(&older)), "{}", map.copied_since(&older));
        assert!(!older.contains(&10_001) && map.contains(&10_001));
    }
}
