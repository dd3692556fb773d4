//! Every reason an event can have, every change and every rejection is reached by a test: what no
//! test reaches has never been seen to work.

use crate::properties::Run;
use crate::world::World;
use crate::{samples, transcripts};
use cellwright_cell::reason::Reason;
use std::collections::{BTreeMap, BTreeSet};

/// Rejections that no run is long enough for: one takes four billion rows or versions, the other a
/// client's whole window of requests, which a test in `properties` fills.
const OUT_OF_REACH: [&str; 2] = ["Rejection.Full", "Rejection.RequestTooOld"];

/// All transcripts, and random runs that are the same each time.
fn worlds() -> impl Iterator<Item = World> {
    let runs = (0..240u64).map(|run| {
        let steps = (0..150).map(|step| run * 1_000_003 + step * 7_919).collect();
        let outcome = Run { opening: run, steps }.run_all();
        outcome.unwrap_or_else(|why| panic!("run {run}: {why}"))
    });
    transcripts::worlds().chain(runs)
}

#[test]
fn every_reason_change_and_refusal_is_reached() {
    let mut reasons = BTreeSet::new();
    let mut seen: BTreeMap<String, u64> = BTreeMap::new();
    for world in worlds() {
        reasons.extend(world.reasons);
        for (name, times) in world.seen {
            *seen.entry(name).or_default() += times;
        }
    }
    println!("{seen:#?}");
    let missing: Vec<&str> =
        Reason::CODES.into_iter().filter(|code| !reasons.contains(code)).collect();
    assert!(missing.is_empty(), "no test reaches these reasons: {missing:?}");
    let unseen = |name: &String| !seen.contains_key(name) && !OUT_OF_REACH.contains(&&**name);
    let missing: Vec<String> = samples::names_of_changes_and_rejections().filter(unseen).collect();
    assert!(missing.is_empty(), "no test reaches these: {missing:?}");
}
