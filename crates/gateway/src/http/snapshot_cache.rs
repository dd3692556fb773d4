//! The cluster snapshot that queries (`explain`, `plan`) are answered from. To build one reads
//! every machine and task of the cell; a cached snapshot is updated from the events alone, so that
//! a query costs only its own work. It is built at the first query, and dropped when there was no
//! query while more happened than the feed keeps.

use cellwright_master::replicated_state::{ReplicatedState, StateChanges, View};
use cellwright_sched::ClusterSnapshot;
use std::sync::{Mutex, PoisonError};

#[derive(Default)]
pub(super) struct SnapshotCache(Mutex<Option<ClusterSnapshot>>);

impl SnapshotCache {
    /// Runs a query on the cell as it is now, one at a time.
    pub fn query<T>(
        &self,
        cell: &ReplicatedState,
        question: impl FnOnce(&View, &mut ClusterSnapshot) -> T,
    ) -> T {
        // A query that panicked may have left the snapshot half updated: a new one is built then.
        let mut cached = self.0.lock().unwrap_or_else(|poisoned| {
            self.0.clear_poison();
            let mut held = PoisonError::into_inner(poisoned);
            *held = None;
            held
        });
        let (view, changes) = cell.view_and_changes();
        let mut snapshot = match (cached.take(), changes) {
            (Some(mut snapshot), StateChanges::Events(events)) => {
                snapshot.sync(&view.state, &events);
                snapshot
            }
            _ => ClusterSnapshot::from_state(&view.state),
        };
        let answer = question(&view, &mut snapshot);
        *cached = Some(snapshot);
        answer
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cellwright_cell::command::{Actor, Command, Entry, Request};
    use cellwright_cell::encode;
    use cellwright_cell::name::Name;
    use cellwright_cell::time::Time;
    use cellwright_master::config::MasterConfig;
    use cellwright_master::record_logs::RecordLogs;
    use cellwright_master::replicated_state::CellStateMachine;
    use cellwright_master::testing::TempFolder;
    use cellwright_store::StateMachine as _;
    use std::sync::Arc;

    #[test]
    fn the_board_is_that_of_the_state_whatever_happened_between() {
        let folder = TempFolder::new();
        let MasterConfig { events, audit, .. } = MasterConfig::default();
        let records = RecordLogs::open(&folder.disk(), events, audit, Arc::new(|_| {})).unwrap();
        let cell = ReplicatedState::new(records);
        let mut machine = CellStateMachine(cell.clone());
        let cache = SnapshotCache::default();
        let same = |view: &View, snapshot: &mut ClusterSnapshot| {
            snapshot.compare_with(&ClusterSnapshot::from_state(&view.state)).map(|()| view.index)
        };
        assert_eq!(cache.query(&cell, same), Ok(0));
        let mut index = 0;
        let mut apply = |commands: Vec<Command>| {
            index += 1;
            let request = |command| Request { by: Actor::Operator, id: None, command };
            let requests = commands.into_iter().map(request).collect();
            let entry = Entry { now: Time(index), requests };
            machine.apply(index, 1, &encode::save_entry(&entry));
        };
        let add = |name: &str| {
            let spec = serde_json::json!({"name": name, "capacity": {"cpu": 1000, "ram": 1000}});
            Command::AddMachine(serde_json::from_value(spec).unwrap())
        };
        apply(vec![add("m1"), Command::AddUser { name: Name::new("ada").unwrap() }]);
        assert_eq!(cache.query(&cell, same), Ok(1));
        let job = serde_json::json!({"name": "web", "priority": 0, "count": 3,
            "task": {"limits": {"cpu": 10, "ram": 10}, "command": ["true"]}});
        let (owner, spec) = (Name::new("ada").unwrap(), serde_json::from_value(job).unwrap());
        apply(vec![add("m2"), Command::SubmitJob { owner, spec }]);
        apply(vec![add("m3")]);
        assert_eq!(cache.query(&cell, same), Ok(3));
        assert_eq!(cache.query(&cell, |_, snapshot| snapshot.pending().len()), 3);
    }
}
