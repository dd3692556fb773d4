//! Rebuilding any past state, how far back that goes, and what the log contains.

use crate::support::{Cell, TempFolder, hash};
use cellwright_cell::command::{Actor, Command, Entry, Request};
use cellwright_cell::name::Name;
use cellwright_cell::state::State;
use cellwright_cell::time::Time;
use cellwright_master::checkpoint::{self, Checkpoints, ReplayTarget};
use cellwright_master::log_replay::{
    LogReplayError, LogReplayer, ReplayBase, ReplayedContent, ReplayedEntry,
};
use cellwright_master::replicated_state::View;
use cellwright_store::StoreConfig;
use std::path::Path;

fn entries(past: &LogReplayer, from: u64, to: u64) -> Vec<ReplayedEntry> {
    let mut found = Vec::new();
    let all: Result<(), LogReplayError> = past.entries(from, to, |placed| {
        found.push(placed);
        Ok(())
    });
    all.unwrap();
    found
}

/// The numbers of accepted and rejected requests, where they are known.
fn verdicts(placed: &ReplayedEntry) -> Option<(usize, usize)> {
    let ReplayedContent::Requests { verdicts: Some(verdicts), .. } = &placed.content else {
        return None;
    };
    let rejected = verdicts.iter().filter(|verdict| verdict.is_err()).count();
    Some((verdicts.len() - rejected, rejected))
}

#[tokio::test]
async fn any_index_and_any_time_can_be_had_again_while_the_replica_runs() {
    let folder = TempFolder::new();
    let mut cell = Cell::start(&folder.0, StoreConfig::default()).await;
    for _ in 0..20 {
        cell.add().await;
    }
    let past = LogReplayer::open(&folder.0, None).unwrap();
    for (number, (index, expected)) in (1..).zip(&cell.after) {
        let by_index = past.state_at(Some(ReplayTarget::Index(*index))).unwrap();
        assert_eq!((by_index.view.index, hash(&by_index.view)), (*index, *expected));
        assert_eq!((by_index.base, by_index.entries), (ReplayBase::Beginning, number));
        for late in [0, 9] {
            let by_time =
                past.state_at(Some(ReplayTarget::Time(Time(number * 10 + late)))).unwrap();
            assert_eq!(hash(&by_time.view), *expected);
        }
    }
    // A single voter has committed everything it has.
    assert_eq!(past.committed_end(), past.next());
    let end = past.state_at(None).unwrap();
    assert_eq!(hash(&end.view), hash(&cell.view()));
    let beyond = past.state_at(Some(ReplayTarget::Index(past.next()))).err().unwrap();
    assert!(matches!(beyond, LogReplayError::BeyondEnd { .. }), "{beyond}");
    let all = entries(&past, 0, u64::MAX);
    assert!(
        matches!(&all[0].content, ReplayedContent::Members(members) if members[0].1.name == "m1")
    );
    let verdict_counts: Vec<_> = all.iter().filter_map(verdicts).collect();
    assert_eq!(verdict_counts, vec![(1, 1); 20]);
    cell.replica.shutdown().await;
}

/// Small enough for the log to be purged.
fn small_log_config() -> StoreConfig {
    StoreConfig {
        segment_bytes: 600,
        snapshot_entries: 1000,
        keep_entries: 4,
        ..StoreConfig::default()
    }
}

/// A cell whose log has lost its first entries, with a checkpoint of entry 5.
async fn cell_with_purged_log(dir: &Path) -> Cell {
    let mut cell = Cell::start(dir, small_log_config()).await;
    for number in 1..=30 {
        cell.add().await;
        if number == 5 {
            Checkpoints::in_data(dir, 9).save(&cell.view()).unwrap();
        }
        if number == 20 {
            let covered = cell.replica.snapshot_now().await.unwrap();
            let purged = covered - 4;
            let mut watch = cell.replica.watch();
            watch.wait_for(|status| status.purged >= Some(purged)).await.unwrap();
        }
    }
    cell
}

#[tokio::test]
async fn what_the_log_no_longer_reaches_is_refused_with_how_far_it_does() {
    let folder = TempFolder::new();
    let cell = cell_with_purged_log(&folder.0).await;
    cell.replica.shutdown().await;
    let past = LogReplayer::open(&folder.0, None).unwrap();
    let (entry_20, view_at_20) = cell.after[19];
    assert!(past.first() > 0 && past.first() < entry_20);
    // Replayed from the log's own snapshot.
    let base = past.state_at(Some(ReplayTarget::Index(entry_20))).unwrap();
    assert_eq!((hash(&base.view), base.base), (view_at_20, ReplayBase::Snapshot(entry_20)));
    let later = past.state_at(Some(ReplayTarget::Time(Time(275)))).unwrap();
    assert_eq!((hash(&later.view), later.entries), (cell.after[26].1, 7));
    // Before that snapshot: exactly what was saved and nothing after.
    let saved = past.state_at(Some(ReplayTarget::Index(cell.after[4].0))).unwrap();
    assert_eq!((hash(&saved.view), saved.entries), (cell.after[4].1, 0));
    assert_eq!(
        hash(&past.state_at(Some(ReplayTarget::Time(Time(50)))).unwrap().view),
        cell.after[4].1
    );
    let between = [
        ReplayTarget::Index(cell.after[6].0),
        ReplayTarget::Time(Time(75)),
        ReplayTarget::Index(0),
    ];
    for target in between {
        let error = past.state_at(Some(target)).err().unwrap();
        let LogReplayError::BeforeStart { first, reach, .. } = error else { panic!("{error}") };
        assert_eq!((first, reach), (past.first(), Some((entry_20, Time(200)))));
    }
    // Entries before the snapshot are listed, without a state to compute verdicts from.
    let all = entries(&past, 0, u64::MAX);
    assert_eq!(all[0].index, past.first());
    let with_verdict = all.iter().filter(|placed| verdicts(placed).is_some());
    assert!(with_verdict.clone().all(|placed| placed.index > entry_20));
    assert_eq!(with_verdict.count(), 10);
}

#[tokio::test]
async fn an_older_checkpoint_reaches_further_back_and_one_of_another_past_is_refused() {
    let folder = TempFolder::new();
    let cell = cell_with_purged_log(&folder.0).await;
    cell.replica.shutdown().await;
    let first = LogReplayer::open(&folder.0, None).unwrap().first();
    // A state from just before the first entry of the log, kept elsewhere.
    let position = cell.after.iter().rposition(|(index, _)| *index < first).unwrap();
    let mut before = LogReplayer::open(&folder.0, None).unwrap().state_at(None).unwrap().view;
    before.state = State::default();
    let elsewhere = folder.0.join("elsewhere.ckpt");
    for number in 1..=position as u64 + 1 {
        let name = Name::new(&format!("u{number}")).unwrap();
        let request = Request { by: Actor::Operator, id: None, command: Command::AddUser { name } };
        let entry = Entry { now: Time(number * 10), requests: vec![request] };
        before.state.apply(&entry, &mut Vec::new());
    }
    before.index = cell.after[position].0;
    checkpoint::write(&before, &elsewhere).unwrap();
    let past = LogReplayer::open(&folder.0, Some(&elsewhere)).unwrap();
    let (index, expected) = cell.after[position + 1];
    let replayed = past.state_at(Some(ReplayTarget::Index(index))).unwrap();
    assert_eq!(replayed.base, ReplayBase::Checkpoint(elsewhere.clone()));
    assert_eq!(hash(&replayed.view), expected);
    // The same index with another term is of another cell, or of a replaced entry.
    let other = View { index, term: 99, ..before };
    checkpoint::write(&other, &elsewhere).unwrap();
    let refused = LogReplayer::open(&folder.0, Some(&elsewhere)).err().unwrap();
    assert!(
        matches!(refused, LogReplayError::OtherHistory { found: 99, here: 1, .. }),
        "{refused}"
    );
}

#[tokio::test]
async fn looking_changes_nothing_not_even_a_torn_tail() {
    let folder = TempFolder::new();
    let mut cell = Cell::start(&folder.0, StoreConfig::default()).await;
    for _ in 0..3 {
        cell.add().await;
    }
    cell.replica.shutdown().await;
    let segment = folder.0.join("log/0000000000000001");
    let mut bytes = std::fs::read(&segment).unwrap();
    bytes.extend_from_slice(b"half a record");
    std::fs::write(&segment, &bytes).unwrap();
    let past = LogReplayer::open(&folder.0, None).unwrap();
    assert_eq!(past.torn_tail().map(|tail| tail.bytes), Some(13));
    assert_eq!(hash(&past.state_at(None).unwrap().view), cell.after[2].1);
    assert_eq!(std::fs::read(&segment).unwrap(), bytes);
    let nothing = LogReplayer::open(&folder.0.join("nothing"), None).err().unwrap();
    assert!(nothing.to_string().contains("there is no log in it"), "{nothing}");
}
