//! Interning: long keys (attribute maps, packages, names, device kinds) become small integers once,
//! so that the hot path compares integers. Never shrinks; the number of distinct keys is bounded by
//! what machines and jobs have ever reported or specified.

use std::collections::BTreeMap;

#[derive(Clone, Debug)]
pub(crate) struct Interner<T> {
    ids: BTreeMap<T, u32>,
    items: Vec<T>,
}

impl<T> Default for Interner<T> {
    fn default() -> Self {
        Interner { ids: BTreeMap::new(), items: Vec::new() }
    }
}

impl<T: Ord + Clone> Interner<T> {
    pub fn intern(&mut self, item: &T) -> u32 {
        if let Some(id) = self.ids.get(item) {
            return *id;
        }
        let id = self.items.len() as u32;
        self.ids.insert(item.clone(), id);
        self.items.push(item.clone());
        id
    }

    pub fn get(&self, id: u32) -> Option<&T> {
        self.items.get(id as usize)
    }

    pub fn len(&self) -> usize {
        self.items.len()
    }

    pub fn items(&self) -> &[T] {
        &self.items
    }
}
