//! Packages: larger than the memory they may take, on a majority before they are acknowledged, and
//! never served with other content.

use crate::support::{Cell, CellOptions, digest_of, within};
use axum::body::Body;
use bytes::Bytes;
use cellwright_api::client::content::Download;
use cellwright_api::types::Changed;
use cellwright_cell::blob::{BlobLimits, MIN_CHARGED_BYTES};
use cellwright_cell::name::Name;
use cellwright_gateway::http::ApiConfig;
use cellwright_identity::secret::hex;
use cellwright_master::blob_syncer::BlobSyncer;
use cellwright_master::blobs::Digest;
use cellwright_master::handle::Caller;
use futures::stream;
use ring::digest::{Context, SHA256};
use serde_json::{Value, json};
use std::convert::Infallible;
use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

const NONE: Value = Value::Null;
const MIB: usize = 1 << 20;

/// Chunks of a package that differ from each other.
fn pieces(count: usize) -> impl Iterator<Item = Bytes> {
    (0..count).map(|n| Bytes::from(vec![(n % 251) as u8; MIB]))
}

fn digest_of_pieces(count: usize) -> String {
    let mut hash = Context::new(&SHA256);
    pieces(count).for_each(|piece| hash.update(&piece));
    hex(hash.finish().as_ref())
}

/// Digest and length of the content.
async fn read_to_end(mut content: Download) -> (String, u64) {
    let (mut hash, mut bytes) = (Context::new(&SHA256), 0);
    while let Some(piece) = within(content.next()).await.unwrap() {
        hash.update(&piece);
        bytes += piece.len() as u64;
    }
    (hex(hash.finish().as_ref()), bytes)
}

/// The most memory this process has held since the last reset, in bytes.
fn peak_memory() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.trim().trim_end_matches(" kB").trim().parse::<u64>().unwrap() * 1024
}

fn reset_peak_memory() {
    std::fs::write("/proc/self/clear_refs", "5").unwrap();
}

async fn large() -> Cell {
    Cell::start_with_options(CellOptions { blob_limit: 1 << 30, ..CellOptions::default() }).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_package_of_many_megabytes_passes_through_little_memory() {
    const COUNT: usize = 120;
    let cell = large().await;
    let path = format!("/v1/blobs/{}", digest_of_pieces(COUNT));
    reset_peak_memory();
    let before = peak_memory();
    let body = Body::from_stream(stream::iter(pieces(COUNT).map(Ok::<_, Infallible>)));
    let put = format!("PUT {path}");
    let got = cell.send(Some(&Caller::Operator), &put, &[], body).await;
    assert_eq!(got.status, 200, "{}", got.text);
    let content = cell.client(None).download(&path).await.unwrap();
    assert_eq!(content.length(), Some((COUNT * MIB) as u64));
    let (digest, bytes) = read_to_end(content).await;
    assert_eq!((format!("/v1/blobs/{digest}"), bytes), (path, (COUNT * MIB) as u64));
    let grown = peak_memory().saturating_sub(before) as usize;
    assert!(grown < COUNT * MIB / 2, "{grown} bytes more than before");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_file_is_sent_to_the_leader_whoever_is_asked() {
    let blob_limit = 8 * MIB as u64;
    let cell = Cell::start_with_options(CellOptions { blob_limit, ..CellOptions::default() }).await;
    let plan = CellOptions { id: 2, begins_cell: false, blob_limit, ..CellOptions::default() };
    let second = Cell::start_with_options(plan).await;
    let member = json!({ "id": 2, "name": "m2", "address": second.address });
    cell.must("POST /v1/masters", member).await;
    let folder = crate::support::Folder::new();
    let file = folder.0.join("package");
    let mut writing = std::fs::File::create(&file).unwrap();
    pieces(7).for_each(|piece| writing.write_all(&piece).unwrap());
    let path = format!("/v1/blobs/{}", digest_of_pieces(7));
    let (client, sent) = (second.client(None), Arc::new(AtomicU64::new(5)));
    let done = within(client.put_file::<Changed>(&path, &file, &sent)).await.unwrap();
    assert!(done.value.changed);
    assert_eq!(sent.load(Ordering::Relaxed), 7 * MIB as u64, "whoever watches sees all of it");
    let digest = Digest::parse(&digest_of_pieces(7)).unwrap();
    assert!(cell.blobs.has(digest) && second.blobs.has(digest), "on a majority of two");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_lost_or_damaged_on_one_replica_comes_from_another() {
    let cell = Cell::start().await;
    let second = Cell::start_with_options(CellOptions {
        id: 2,
        begins_cell: false,
        ..CellOptions::default()
    })
    .await;
    let member = json!({ "id": 2, "name": "m2", "address": second.address });
    cell.must("POST /v1/masters", member).await;
    let content = pieces(1).next().unwrap();
    let digest = Digest::parse(&digest_of(&content)).unwrap();
    let path = format!("/v1/blobs/{digest}");
    let anyone = Caller::Operator;
    let put = format!("PUT {path}");
    let got = cell.send(Some(&anyone), &put, &[], Body::from(content.clone())).await;
    assert_eq!(got.status, 200, "{}", got.text);
    cell.blobs.remove(digest).unwrap();
    let client = cell.client(None);
    let whole = (digest.to_string(), MIB as u64);
    assert_eq!(read_to_end(client.download(&path).await.unwrap()).await, whole);
    assert!(cell.blobs.has(digest), "and is kept");
    let mut other = content.to_vec();
    other[7] ^= 1;
    std::fs::write(cell.blobs.path(digest), other).unwrap();
    let mut broken = client.download(&path).await.unwrap();
    let error = loop {
        match within(broken.next()).await {
            Ok(Some(_)) => {}
            Ok(None) => panic!("damaged content was given out whole"),
            Err(error) => break error,
        }
    };
    assert!(error.to_string().contains("broke off"), "{error}");
    assert_eq!(read_to_end(client.download(&path).await.unwrap()).await, whole, "the good copy");
}

fn keeper(cell: &Cell) -> BlobSyncer {
    BlobSyncer::new(cell.handle().clone(), cell.blobs.clone(), cell.blob_peers.clone())
}

async fn applied(cell: &Cell, index: u64) {
    let mut changed = cell.handle().watch_applied();
    within(changed.wait_for(|at| *at >= index)).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replica_that_joins_gets_what_was_there_and_lets_go_of_what_was_removed() {
    let cell = Cell::start().await;
    let mut digests = Vec::new();
    for content in pieces(2) {
        let digest = Digest::parse(&digest_of(&content)).unwrap();
        let put = format!("PUT /v1/blobs/{digest}");
        let got = cell.send(Some(&Caller::Operator), &put, &[], Body::from(content)).await;
        assert_eq!(got.status, 200, "{}", got.text);
        digests.push(digest);
    }
    let second = Cell::start_with_options(CellOptions {
        id: 2,
        begins_cell: false,
        ..CellOptions::default()
    })
    .await;
    let member = json!({ "id": 2, "name": "m2", "address": second.address });
    cell.must("POST /v1/masters", member).await;
    applied(&second, cell.handle().read().index).await;
    // A replica that does not have it yet fetches it from another and serves it.
    let path = format!("/v1/blobs/{}", digests[0]);
    let read = read_to_end(second.client(None).download(&path).await.unwrap()).await;
    assert_eq!(read, (digests[0].to_string(), MIB as u64));
    assert!(!second.blobs.has(digests[1]));
    let mut keepers = [keeper(&cell), keeper(&second)];
    assert_eq!(keepers[1].fetch_missing().await.unwrap(), 1);
    assert!(digests.iter().all(|digest| second.blobs.has(*digest)));
    assert_eq!(keepers[1].fetch_missing().await.unwrap(), 0, "all there");
    let removed = cell.must(&format!("DELETE /v1/blobs/{}", digests[0]), NONE).await;
    applied(&second, removed.body["index"].as_u64().unwrap()).await;
    for (keeper, store) in keepers.iter_mut().zip([&cell.blobs, &second.blobs]) {
        let mut gone = 0;
        for _ in 0..3 {
            gone += keeper.remove_unknown().await.unwrap();
        }
        assert_eq!(gone, 1);
        assert!(!store.has(digests[0]) && store.has(digests[1]));
    }
    assert_eq!(keepers[1].fetch_missing().await.unwrap(), 0, "nor does it come back");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn too_much_is_refused_with_the_limit_announced_or_not() {
    let cell =
        Cell::start_with_options(CellOptions { blob_limit: MIB as u64, ..CellOptions::default() })
            .await;
    let put = format!("PUT /v1/blobs/{}", digest_of_pieces(3));
    let whole: Vec<u8> = pieces(3).flatten().collect();
    let chunked = Body::from_stream(stream::iter(pieces(3).map(Ok::<_, Infallible>)));
    for body in [Body::from(whole), chunked] {
        let got = cell.send(Some(&Caller::Operator), &put, &[], body).await;
        assert_eq!((got.status, got.code()), (413, "too-large"), "{}", got.text);
        assert_eq!(got.body["details"]["limit"], MIB);
    }
    let listed = cell.must("GET /v1/blobs", NONE).await;
    assert_eq!(listed.body["items"], json!([]));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn agents_fetch_packages_in_parts_from_a_replica_that_first_has_to_get_them() {
    let cell = Cell::start().await;
    let second = Cell::start_with_options(CellOptions {
        id: 2,
        begins_cell: false,
        ..CellOptions::default()
    })
    .await;
    let member = json!({ "id": 2, "name": "m2", "address": second.address });
    cell.must("POST /v1/masters", member).await;
    let content = pieces(1).next().unwrap();
    let digest = Digest::parse(&digest_of(&content)).unwrap();
    let put = format!("PUT /v1/blobs/{digest}");
    let got = cell.send(Some(&Caller::Operator), &put, &[], Body::from(content.clone())).await;
    assert_eq!(got.status, 200, "{}", got.text);
    second.blobs.remove(digest).unwrap();
    let agent = Caller::Agent(cellwright_cell::name::Name::new("m1").unwrap());
    let (address, limit) = (second.address.clone(), std::time::Duration::from_secs(60));
    let ask = async |caller: &Caller, query: &str| {
        let path = format!("/internal/packages/{digest}?{query}");
        within(second.client(Some(caller)).bytes_at(&address, &path, limit)).await
    };
    let part = ask(&agent, "from=1000&length=24").await.unwrap();
    assert_eq!(part, content[1000..1024]);
    assert!(second.blobs.has(digest), "fetched and kept");
    for (query, code) in [
        (format!("from={MIB}&length=1"), "bad-parameter"),
        ("from=0&length=99999999".to_owned(), "bad-parameter"),
        ("from=0".to_owned(), "bad-parameter"),
        ("from=0&length=1&x=1".to_owned(), "bad-parameter"),
    ] {
        let error = ask(&agent, &query).await.unwrap_err();
        assert_eq!(error.code().unwrap().as_str(), code, "{query}: {error}");
    }
    let user = Caller::User(cellwright_cell::name::Name::new("u").unwrap());
    let error = ask(&user, "from=0&length=1").await.unwrap_err();
    assert_eq!(error.code().unwrap().as_str(), "not-allowed", "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn packages_have_a_quota_that_is_looked_at_before_the_bytes_come() {
    let package_limits =
        BlobLimits { per_user: 3 * MIN_CHARGED_BYTES, in_all: 4 * MIN_CHARGED_BYTES };
    let cell = Cell::start_with(ApiConfig { package_limits, ..ApiConfig::default() }).await;
    let user = |text: &str| Caller::User(Name::new(text).unwrap());
    for name in ["ann", "bob"] {
        cell.must("POST /v1/users", json!({ "name": name })).await;
    }
    let content = |byte: u8, pieces: u64| vec![byte; (pieces * MIN_CHARGED_BYTES) as usize];
    let put = async |by: &str, content: Vec<u8>| {
        let put = format!("PUT /v1/blobs/{}", digest_of(&content));
        cell.send(Some(&user(by)), &put, &[], Body::from(content)).await
    };
    assert_eq!(put("ann", content(1, 2)).await.status, 200);
    let over = put("ann", content(2, 2)).await;
    assert_eq!(over.code(), "quota-exceeded", "{}", over.text);
    let message = over.body["message"].as_str().unwrap();
    let figures = "packages of ann take 131072 bytes; 131072 more would exceed the quota of 196608";
    assert_eq!(message, figures);
    assert_eq!(over.body["details"]["limit"], 196_608, "{}", over.text);
    // Without a length the limit is checked while the bytes arrive, and none of them are kept.
    let endless = Body::from_stream(stream::iter(pieces(2).map(Ok::<_, Infallible>)));
    let path = format!("PUT /v1/blobs/{}", digest_of_pieces(2));
    let over = cell.send(Some(&user("ann")), &path, &[], endless).await;
    assert_eq!(over.code(), "quota-exceeded", "{}", over.text);
    let over = put("bob", content(3, 3)).await;
    assert!(over.text.contains("packages of the cell take 131072 bytes"), "{}", over.text);
    // Known content may be uploaded again, but with no more bytes than it has.
    assert_eq!(put("ann", content(1, 2)).await.status, 200);
    let path = format!("PUT /v1/blobs/{}", digest_of(&content(1, 2)));
    let longer = Body::from_stream(stream::iter(pieces(4).map(Ok::<_, Infallible>)));
    let over = cell.send(Some(&user("ann")), &path, &[], longer).await;
    let limit_shown = (over.status, &over.body["details"]["limit"]);
    assert_eq!(limit_shown, (413, &131_072.into()), "{}", over.text);
    // Removed content does not count.
    let gone = format!("DELETE /v1/blobs/{}", digest_of(&content(1, 2)));
    let got = cell.send(Some(&user("ann")), &gone, &[], Body::empty()).await;
    assert_eq!(got.status, 200, "{}", got.text);
    assert_eq!(put("ann", content(2, 3)).await.status, 200);
}
