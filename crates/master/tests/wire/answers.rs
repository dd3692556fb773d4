//! What parts are answered. Values are small and all different, so that two fields changing places
//! shows.

use crate::questions::{amount, log_id, vote};
use crate::{Samples, variants};
use cellwright_cell::desired::Action;
use cellwright_identity::enroll::{AuthorityAnswer, JoinReply, RenewAnswer};
use cellwright_identity::task_identity::TaskIdentityAnswer;
use cellwright_master::peers::PeerAnswer;
use cellwright_messages::{AgentOrders, LeaseAnswer, LogAnswer, PackageHolder, ProposalAnswer};
use cellwright_store::RaftAnswer;
use serde_json::{Value, json};

pub fn take_all(samples: &mut Samples) {
    agent(samples);
    scheduler(samples);
    identities(samples);
    replicas(samples);
    raft(samples);
}

fn work() -> Value {
    let health = json!({ "probe": { "tcp": { "port": 1 } }, "interval": 2, "timeout": 3 });
    json!({
        "command": ["a"], "env": { "b": "c" }, "limits": amount(), "reservation": amount(),
        "ports": [5], "devices": [{ "device": 6, "milli": 7 }],
        "packages": [{ "name": "p", "digest": "ab", "bytes": 8 }], "notice": 9,
        "priority": 10, "appclass": "batch", "alloc": 11,
        "waits_for": [{ "task": 12, "attempt": 13 }], "delay": 14, "health": health,
        "max_run": 15, "files": { "d": "e" }, "user": "f",
        "logs": { "file_bytes": 16, "files": 17, "rate": 18 }, "isolation": {},
        "secrets": { "g": "h" },
        "metrics": { "source": { "file": "i" }, "series": [series()] },
    })
}

/// A number that tasks tell.
fn series() -> Value {
    json!({ "name": "queue", "kind": "rate", "labels": { "j": "k" } })
}

fn agent(samples: &mut Samples) {
    let actions = [
        json!({ "run": work() }),
        json!({ "stop": { "notice": 1, "cause": "drained" } }),
        json!({ "hold": { "limits": amount(), "devices": [], "waits_for": [] } }),
        json!("keep"),
    ];
    assert_eq!(actions.len(), variants::<Action>());
    let task = |(at, action)| {
        json!({
            "task": 10 + at, "attempt": 20 + at, "log_saver_run": 30 + at, "name": "u/j/0",
            "action": action, "lease": 19, "resizes": 40 + at,
        })
    };
    let tasks: Vec<Value> = actions.iter().enumerate().map(task).collect();
    let orders = json!({
        "epoch": { "log_epoch": 20, "index": 21 }, "tasks": tasks, "orders_digest": 22, "poll": 23,
        "last_contact_age": 24, "redirect": "h", "is_revoked": true, "incarnation": 25,
        "usage_recorded": { "book": 26, "up_to": 27 }, "time": 28,
    });
    samples.one::<AgentOrders>("sample", orders);
    let holder = json!({ "machine": "m1", "address": "h:1" });
    samples.one::<Vec<PackageHolder>>("sample", json!([holder]));
    samples.one::<bool>("sample", json!(true));
}

fn scheduler(samples: &mut Samples) {
    let record = json!({ "index": 1, "previous": 2, "term": 3, "entry": [4, 5] });
    samples.each::<LogAnswer>(vec![
        ("Records", json!([record])),
        ("Snapshot", json!({ "index": 6, "term": 7, "state": [8, 9] })),
    ]);
    let verdicts = json!([{ "Ok": "unchanged" }, { "Err": { "no_such_user": "ada" } }]);
    samples.one::<ProposalAnswer>("sample", json!({ "index": 1, "verdicts": verdicts }));
    let lease = json!({ "granted": true, "holder": "s1", "length": 2 });
    samples.one::<LeaseAnswer>("sample", lease);
}

fn identities(samples: &mut Samples) {
    let print: Vec<u8> = (0..16).collect();
    samples.each::<JoinReply>(vec![
        ("Certified", json!({ "cell": "aa", "certificate": "c", "authority": "a" })),
        ("Waiting", json!({ "cell": "aa", "key": print, "until": 1 })),
    ]);
    samples.one::<AuthorityAnswer>("sample", json!({ "authority_key": "k" }));
    samples.one::<RenewAnswer>("sample", json!({ "certificate": "c" }));
    let task = json!({ "certificate": "c", "authority": "a" });
    samples.one::<TaskIdentityAnswer>("sample", task);
    samples.one::<()>("taken-in", Value::Null);
}

fn replicas(samples: &mut Samples) {
    let row = json!({
        "time": 1, "millis": 2, "user": "u", "job": "j", "task_index": 3, "attempt": 4,
        "machine": "m", "band": "b", "samples": 5, "average": amount(), "peak": amount(),
        "reserved": amount(), "limit": amount(), "cpu_micros": 16, "labels": "{}",
    });
    let written = json!({ "cursor": { "log_id": 6, "up_to": 7 }, "rows": [row], "more": true });
    let used = json!({ "task": 8, "attempt": 9, "used": amount() });
    let told = json!({ "task": 8, "attempt": 9, "told": [[series(), 26]], "refused": 27 });
    let refused = json!({
        "machine": "m1", "reason": "r", "next": "n", "lasted": 10, "age": 11,
    });
    let noticed = json!([
        { "MostMachinesSilent": { "silent": 20, "up": 21 } },
        { "DownRateLimited": { "waiting": 22 } },
        { "MachineSilent": { "machine": 23, "silent": 24 } },
        { "ClockSkew": { "source": "Log", "seconds": -25 } },
        { "ClockSkew": { "source": { "Replica": 26 }, "seconds": 27 } },
        { "ClockSkew": { "source": { "Machine": 28 }, "seconds": 29 } },
        { "ClockSkew": { "source": { "Scheduler": "s" }, "seconds": 30 } },
    ]);
    let alarms = json!({
        "leads": true, "noticed": noticed, "disks": { "31": { "free": 32, "reserve": 33 } },
        "damage": ["d"], "leaderless_seconds": 34,
    });
    samples.each::<PeerAnswer>(vec![
        ("Raft", json!({ "DiskSpace": { "free": 12, "reserve": 13 } })),
        ("WrongLog", json!("why")),
        ("Forwarded", json!(true)),
        ("Usage", json!([{ "machine": 14, "age": 15, "tasks": [used], "numbers": [told] }])),
        ("PastUsage", json!({ "written": written, "unwritten": [] })),
        ("Records", json!({ "records": [[16, 17, [18]]], "upto": 19 })),
        ("RejectedPolls", json!([refused])),
        ("Alarms", alarms),
    ]);
}

fn raft(samples: &mut Samples) {
    let mismatch = json!({
        "expect": { "id": "s", "offset": 1 }, "got": { "id": "t", "offset": 2 },
    });
    let answers = [
        ("Append", json!("Conflict")),
        ("Vote", json!({ "vote": vote(), "vote_granted": true, "last_log_id": log_id() })),
        ("Snapshot", json!({ "vote": vote() })),
        ("SnapshotMismatch", json!({ "SnapshotMismatch": mismatch })),
        ("Rejected", json!({ "why": "w" })),
        ("PreVote", json!({ "granted": true })),
        ("VerifyVoter", json!({ "is_voter": true })),
        ("DiskSpace", json!({ "free": 3, "reserve": 4 })),
        ("TimeoutNow", Value::Null),
        ("ReadIndex", json!({ "index": 5 })),
    ];
    assert_eq!(answers.len(), variants::<RaftAnswer>());
    for (variant, inside) in answers {
        let answer = match inside {
            Value::Null => variant.into(),
            inside => json!({ variant: inside }),
        };
        samples.one::<PeerAnswer>(&format!("Raft.{variant}"), json!({ "Raft": answer }));
    }
    for (label, append) in [
        ("Success", json!("Success")),
        ("PartialSuccess", json!({ "PartialSuccess": log_id() })),
        ("HigherVote", json!({ "HigherVote": vote() })),
    ] {
        let json = json!({ "Raft": { "Append": append } });
        samples.one::<PeerAnswer>(&format!("Raft.Append.{label}"), json);
    }
}
