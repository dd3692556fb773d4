//! What parts ask. Values are small and all different, so that two fields changing places shows.

use crate::{Samples, variants};
use cellwright_api::types::AddMaster;
use cellwright_cell::observed::ObservedState;
use cellwright_identity::enroll::{AuthorityRequest, JoinRequest, RenewRequest};
use cellwright_identity::task_identity::TaskIdentityRequest;
use cellwright_master::peers::PeerCall;
use cellwright_messages::{
    AgentReport, HoldersRequest, LeaseRequest, LogRequest, MembershipCheckRequest, Proposal,
    StateDifference,
};
use cellwright_store::RaftCall;
use serde_json::{Value, json};

pub fn take_all(samples: &mut Samples) {
    agent(samples);
    scheduler(samples);
    identities(samples);
    samples.each::<PeerCall>(vec![
        ("Raft", json!({ "log_epoch": 3, "from": 2, "call": "DiskSpace" })),
        ("Forward", forward()),
        ("Usage", Value::Null),
        ("PastUsage", json!({ "log_id": 4, "up_to": 5 })),
        ("Records", json!({ "log": "Audit", "after": 6, "until": 7 })),
        ("RejectedPolls", Value::Null),
        ("Alarms", Value::Null),
    ]);
    raft(samples);
}

pub fn amount() -> Value {
    json!({ "cpu": 1, "ram": 2, "disk": 3, "disk_rate": 4 })
}

fn agent(samples: &mut Samples) {
    let states = json!([
        "preparing",
        { "running": { "healthy": true } },
        "finished",
        { "failed": { "code": 3 } },
        "stopped",
        { "left": "overrun" },
    ]);
    let states = states.as_array().expect("a list");
    assert_eq!(states.len(), variants::<ObservedState>());
    let task = |(at, state): (usize, &Value)| {
        let (task, attempt, saver) = (10 + at, 30 + at, 50 + at);
        let in_force = json!({ "resizes": 70 + at, "limits": amount() });
        let limits = if at == 0 { Value::Null } else { in_force };
        json!({
            "task": task, "attempt": attempt, "log_saver_run": saver, "state": state,
            "limits": limits,
        })
    };
    let tasks: Vec<Value> = states.iter().enumerate().map(task).collect();
    let entry = json!({
        "number": 17, "name": "u/j/0", "attempt": 18, "priority": 19, "begun": 20, "millis": 21,
        "samples": 22, "cpu_micros": 23, "cpu_max": 24, "ram_avg": 25, "ram_max": 26,
        "disk_max": 27, "io_bytes": 28, "reserved": amount(), "limit": amount(),
    });
    let report = json!({
        "machine": "m1", "incarnation": 5, "number": 6, "taken": { "log_epoch": 7, "index": 8 },
        "hang": true, "orders_digest": 9, "spec": { "name": "m1", "capacity": amount() },
        "tasks": tasks, "packages": [{ "name": "p", "digest": "ab", "bytes": 13 }],
        "usage": [{ "task": 10, "attempt": 11, "used": amount() }],
        "resource_pressure": [{ "dimension": "cpu", "lasted": 14, "requested": 15 }], "wall": 16,
        "book": { "book": 29, "closed": [entry], "open": [entry] },
        "numbers": [{
            "task": 10, "attempt": 11, "refused": 30,
            "told": [[{ "name": "queue", "kind": "value", "labels": { "a": "b" } }, 31]],
        }],
    });
    samples.one::<AgentReport>("sample", report);
    let holders = json!({ "machine": "m1", "digest": "ab", "task": 3 });
    samples.one::<HoldersRequest>("sample", holders);
    let request = json!({ "machine": "m1", "part": "replica", "name": "r1" });
    samples.one::<MembershipCheckRequest>("sample", request);
}

fn scheduler(samples: &mut Samples) {
    samples.one::<LogRequest>("sample", json!({ "after": 1, "wait": 2 }));
    let command = json!({ "commit_plan": { "made_at": 3, "groups": [] } });
    let request = json!({ "by": { "scheduler": "s1" }, "id": null, "command": command });
    samples.one::<Proposal>("sample", json!({ "requests": [request] }));
    let passes = json!({
        "passes": 1, "placed": 2, "rejected": 3, "preempted": 4, "pending": 5, "micros": 6,
        "longest_micros": 7, "evaluations": 8,
    });
    let lease = json!({ "scheduler": "s1", "scheduler_shard": "gpu", "passes": passes, "wall": 9,
        "level": 1 });
    samples.one::<LeaseRequest>("sample", lease);
}

fn identities(samples: &mut Samples) {
    samples.one::<JoinRequest>("sample", json!({ "token": "t", "signing_request": "r" }));
    samples.one::<AuthorityRequest>("sample", Value::Null);
    samples.one::<RenewRequest>("sample", json!({ "signing_request": "r" }));
    let task = json!({ "task": 1, "attempt": 2, "signing_request": "r" });
    samples.one::<TaskIdentityRequest>("sample", task);
    samples.one::<AddMaster>("sample", json!({ "id": 1, "name": "m1", "address": "h:1" }));
}

/// With one difference of each kind.
fn forward() -> Value {
    let task = json!({ "task": 1, "attempt": 2, "what": "started" });
    let differences = json!([
        { "Up": { "machine": "m1", "incarnation": 3, "spec": null } },
        { "Tasks": { "machine": 4, "incarnation": 5, "number": 6, "reports": [task] } },
        { "Packages": { "machine": 7, "packages": [] } },
        { "Reservations": [] },
        { "LogSavers": { "machine": 8, "ends": [] } },
        { "ResourcePressure": { "machine": 9, "incarnation": 10, "resource_pressure": [] } },
    ]);
    assert_eq!(differences.as_array().map(Vec::len), Some(variants::<StateDifference>()));
    json!({
        "shard": 11, "term": 12, "heard_machines": [13], "differences": differences, "wall": 14,
        "clock_offsets": [[15, -16]],
    })
}

pub fn vote() -> Value {
    json!({ "leader_id": { "term": 3, "node_id": 2 }, "committed": true })
}

pub fn log_id() -> Value {
    json!({ "leader_id": { "term": 3, "node_id": 2 }, "index": 9 })
}

fn raft(samples: &mut Samples) {
    let nodes = json!({ "1": { "name": "m1", "address": "h:1" } });
    let membership = json!({ "configs": [[1]], "nodes": nodes });
    let entry = |payload: Value| json!({ "log_id": log_id(), "payload": payload });
    let append = json!({
        "vote": vote(), "prev_log_id": log_id(), "leader_commit": log_id(),
        "entries": [
            entry("Blank".into()),
            entry(json!({ "Normal": [1, 2, 3] })),
            entry(json!({ "Membership": membership })),
        ],
    });
    let last_membership = json!({ "log_id": log_id(), "membership": membership });
    let meta = json!({
        "last_log_id": log_id(), "last_membership": last_membership, "snapshot_id": "s",
    });
    let snapshot =
        json!({ "vote": vote(), "meta": meta, "offset": 4, "data": [5, 6], "done": true });
    let calls = [
        ("Append", append),
        ("Vote", json!({ "vote": vote(), "last_log_id": log_id() })),
        ("Snapshot", snapshot),
        ("PreVote", json!({ "last_log": log_id() })),
        ("VerifyVoter", json!({ "id": 4, "name": "m4" })),
        ("DiskSpace", Value::Null),
        ("TimeoutNow", Value::Null),
        ("ReadIndex", Value::Null),
    ];
    assert_eq!(calls.len(), variants::<RaftCall>());
    for (variant, inside) in calls {
        let call = match inside {
            Value::Null => variant.into(),
            inside => json!({ variant: inside }),
        };
        let json = json!({ "Raft": { "log_epoch": 7, "from": 8, "call": call } });
        samples.one::<PeerCall>(&format!("Raft.{variant}"), json);
    }
}
