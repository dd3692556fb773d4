//! Inputs that fuzzing has kept, through the same code again: what was found once stays mended, and
//! the targets compile. `fuzz/README.md` says how to look for more.

#[path = "../../fuzz/targets/checkpoint.rs"]
mod checkpoint;
#[path = "../../fuzz/targets/dns.rs"]
mod dns;
#[path = "../../fuzz/targets/entry.rs"]
mod entry;
#[path = "../../fuzz/targets/frame.rs"]
mod frame;
#[path = "../../fuzz/targets/oci.rs"]
mod oci;
#[path = "../../fuzz/targets/package.rs"]
mod package;
#[path = "../../fuzz/targets/peer.rs"]
mod peer;
#[path = "../../fuzz/targets/records.rs"]
mod records;
#[path = "../../fuzz/targets/report.rs"]
mod report;
#[path = "../../fuzz/targets/seal.rs"]
mod seal;
#[path = "../../fuzz/targets/state.rs"]
mod state;

use cellwright_cell::command::{Actor, Command, Entry, Request};
use cellwright_cell::encode::text::{self, RowFilter};
use cellwright_cell::encode::{HEADER, Rows, save, save_entry};
use cellwright_cell::name::Name;
use cellwright_cell::time::Time;
use cellwright_master::peers::{PeerAnswer, PeerCall, RecordLog, RecordRange};
use cellwright_messages::AgentReport;
use cellwright_store::frame::{FilePosition, Frame};
use cellwright_store::{RaftAnswer, RaftCall};
use serde::Serialize;
use serde_json::json;
use std::fs;
use std::path::{Path, PathBuf};

/// Whether the bytes are what the parser is for; a finding is a panic.
type Run = fn(&[u8]) -> bool;

const TARGETS: [(&str, Run); 10] = [
    ("checkpoint", checkpoint::run),
    ("dns", dns::run),
    ("entry", entry::run),
    ("frame", frame::run),
    ("oci", oci::run),
    ("package", package::run),
    ("peer", peer::run),
    ("records", records::run),
    ("report", report::run),
    ("state", state::run),
];

/// What the inputs of one target may take: they are in everybody's copy of the sources.
const MOST_BYTES: usize = 200_000;

fn fuzz() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../fuzz")
}

fn files(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).unwrap_or_else(|why| panic!("{}: {why}", folder.display()));
    let mut paths: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
    paths.sort();
    paths
}

fn packed(message: &impl Serialize) -> Vec<u8> {
    postcard::to_stdvec(message).expect("a message")
}

fn report() -> Vec<u8> {
    let amount = json!({ "cpu": 1, "ram": 2, "disk": 3, "disk_rate": 4 });
    let report = json!({
        "machine": "m1", "incarnation": 5, "number": 6,
        "taken": { "log_epoch": 7, "index": 8 }, "hang": true, "orders_digest": 9,
        "spec": { "name": "m1", "capacity": amount },
        "tasks": [{ "task": 10, "attempt": 11, "log_saver_run": 12,
            "state": { "running": { "healthy": true } } }],
        "packages": [{ "name": "p", "digest": "ab", "bytes": 13 }],
        "usage": [{ "task": 10, "attempt": 11, "used": amount }],
        "resource_pressure": [{ "dimension": "cpu", "lasted": 14, "requested": 15 }],
        "wall": 16,
    });
    packed(&serde_json::from_value::<AgentReport>(report).expect("a report"))
}

fn entry() -> Vec<u8> {
    let name = Name::new("ada").expect("a name");
    let spec = json!({ "name": "web", "count": 2, "priority": 0,
        "task": { "limits": { "cpu": 1, "ram": 1 }, "command": ["serve"] } });
    let spec = serde_json::from_value(spec).expect("a job");
    let commands =
        [Command::AddUser { name: name.clone() }, Command::SubmitJob { owner: name, spec }];
    let request = |command| Request { by: Actor::Operator, id: None, command };
    let entry = Entry { now: Time(1000), requests: commands.map(request).to_vec() };
    save_entry(&entry)[HEADER..].to_vec()
}

fn records() -> Vec<u8> {
    let mut file = Vec::new();
    for (number, payload) in [(1, &b"what happened"[..]), (2, b"what happened then"), (3, b"")] {
        let place = FilePosition {
            offset: records::POSITION.offset + file.len() as u64,
            ..records::POSITION
        };
        let frame = Frame { is_seal: payload.is_empty(), number, time_millis: 9, payload };
        file.extend(frame.encode(place).expect("it is short"));
    }
    file
}

/// Sound inputs of formats that may change from build to build, for a fuzzer to begin with.
fn valid_inputs() -> Vec<(&'static str, Vec<u8>)> {
    let raft = |call| PeerCall::Raft { log_epoch: 3, from: 2, call };
    let reported = RecordRange { records: vec![(3, 4, vec![1, 2, 3])], upto: Some(9) };
    let mut all = vec![
        ("state", save(&dns::running())[HEADER..].to_vec()),
        ("entry", entry()),
        ("report", report()),
        ("records", records()),
        ("peer", packed(&PeerAnswer::WrongLog("restored".into()))),
        ("peer", packed(&PeerAnswer::Records(reported))),
        ("peer", packed(&PeerAnswer::Raft(RaftAnswer::Rejected { why: "no room".into() }))),
    ];
    let calls = [
        PeerCall::Usage,
        PeerCall::Records { log: RecordLog::Audit, after: 3, until: 900 },
        raft(RaftCall::DiskSpace),
        raft(RaftCall::VerifyVoter { id: 3, name: Some("m3".into()) }),
    ];
    all.extend(calls.iter().map(|call| ("peer", packed(call))));
    let place = text::LogPosition { index: 12, term: 1 };
    let written = text::write(place, &Rows::of(&dns::running()), &RowFilter::default());
    all.push(("checkpoint", written.into_bytes()));
    all
}

/// Writes them anew where `UPDATE_CORPORA` is set; what fuzzing has found stays.
fn write_sound_ones() {
    if std::env::var_os("UPDATE_CORPORA").is_none() {
        return;
    }
    for (number, (target, input)) in valid_inputs().into_iter().enumerate() {
        let folder = fuzz().join("corpus").join(target);
        fs::create_dir_all(&folder).expect("a folder");
        fs::write(folder.join(format!("sound-{number}")), input).expect("an input");
    }
}

#[test]
fn every_kept_input_is_refused_or_sound() {
    write_sound_ones();
    for (target, run) in TARGETS {
        let (mut bytes, mut accepted) = (0, 0);
        for path in files(&fuzz().join("corpus").join(target)) {
            let input = fs::read(&path).expect("an input");
            bytes += input.len();
            let tried = std::panic::catch_unwind(|| run(&input));
            let accept = tried.unwrap_or_else(|_| panic!("{} panics", path.display()));
            accepted += usize::from(accept);
        }
        // Where all is refused at the door, what is behind it is not looked at.
        assert!(accepted > 0, "no input of {target} is sound; UPDATE_CORPORA=1 writes some");
        assert!(bytes <= MOST_BYTES, "inputs of {target}: {bytes} bytes, allowed: {MOST_BYTES}");
    }
}

/// A sequence of numbers that looks random and is the same each time.
struct Draw(u64);

impl Draw {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    fn below(&mut self, end: usize) -> usize {
        (self.next() % end.max(1) as u64) as usize
    }
}

/// One to four changes, each at any place.
fn mutated(input: &[u8], draw: &mut Draw) -> Vec<u8> {
    let mut bytes = input.to_vec();
    for _ in 0..=draw.below(4) {
        let at = draw.below(bytes.len());
        let until = (at + 1 + draw.below(16)).min(bytes.len());
        match draw.below(7) {
            0 => bytes.truncate(at),
            1 => bytes.insert(at, draw.next() as u8),
            2 => drop(bytes.drain(at..until)),
            // A length beyond all measure.
            3 => bytes[at..until].fill(0xff),
            4 => bytes.extend_from_within(at..until),
            5 => bytes[at..until].iter_mut().for_each(|byte| *byte = draw.next() as u8),
            _ => bytes[at..until].iter_mut().take(1).for_each(|byte| *byte ^= 1 << draw.below(8)),
        }
    }
    bytes
}

/// What a fuzzer does, without its eyes: the same mutations each time, `CELL_FUZZ` times as many
/// where that is set.
#[test]
fn mutations_of_kept_inputs_are_refused_or_sound() {
    const EACH: usize = 2000;
    let more = std::env::var("CELL_FUZZ").ok().and_then(|text| text.parse().ok());
    for (target, run) in TARGETS {
        let kept = files(&fuzz().join("corpus").join(target));
        let kept: Vec<Vec<u8>> = kept.iter().map(|path| fs::read(path).expect("it")).collect();
        for seed in 0..EACH * more.unwrap_or(1) {
            let input = mutated(&kept[seed % kept.len()], &mut Draw(seed as u64));
            let tried = std::panic::catch_unwind(|| run(&input));
            assert!(tried.is_ok(), "{target}, mutation {seed} is answered with a panic: {input:?}");
        }
    }
}

#[test]
fn every_target_is_compiled_here_and_fuzzed_there() {
    let stem = |path: &PathBuf| path.file_stem().expect("a name").to_string_lossy().into_owned();
    let mut here: Vec<String> = TARGETS.iter().map(|(name, _)| (*name).to_owned()).collect();
    let there: Vec<String> = files(&fuzz().join("fuzz_targets")).iter().map(stem).collect();
    assert_eq!(here, there);
    let manifest = fs::read_to_string(fuzz().join("Cargo.toml")).expect("its manifest");
    let names = manifest.lines().filter_map(|line| line.strip_prefix("path = \"fuzz_targets/"));
    let mut built: Vec<String> = names.map(|name| name.replace(".rs\"", "")).collect();
    built.sort();
    assert_eq!(here, built);
    // What they share is no target.
    here.push("seal".to_owned());
    here.sort();
    let tried: Vec<String> = files(&fuzz().join("targets")).iter().map(stem).collect();
    assert_eq!(here, tried);
}
