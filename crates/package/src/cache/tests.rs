//! Several caches and sources on one machine. Sources in memory count their requests and can serve
//! wrong bytes, die or hang; the last tests use real sockets.

use super::*;
use crate::build::{Built, build};
use crate::head::CHUNK_BYTES;
use crate::http::{AgentSource, HttpSource, router, router_with};
use crate::testing::{Folder, list_names};
use cellwright_api::client::ApiClientConfig as ClientSettings;
use cellwright_api::client::Client;
use cellwright_api::client::agent::AgentDialler;
use cellwright_cell::name::{Name, Token};
use futures::future::BoxFuture;
use std::fs;
use std::sync::atomic::{AtomicU64, Ordering};
use tokio::sync::Notify;

/// A package of `chunks` chunks and a little.
fn package(folder: &Folder, name: &str, chunks: usize) -> (PackageRef, Bytes) {
    let from = folder.path(&format!("{name}.d"));
    fs::create_dir_all(&from).unwrap();
    let seed = name.bytes().map(usize::from).sum::<usize>();
    let content: Vec<u8> =
        (0..chunks * CHUNK_BYTES as usize).map(|n| ((n / 7 + seed) % 251) as u8).collect();
    fs::write(from.join("content"), content).unwrap();
    fs::write(from.join("name"), name).unwrap();
    let file = folder.path(name);
    let Built { digest, bytes, .. } = build(&from, &file).unwrap();
    let name = Token::new(name).unwrap();
    let reference = PackageRef { name, digest: digest.token().unwrap(), bytes };
    (reference, fs::read(file).unwrap().into())
}

#[derive(Clone, Copy, PartialEq)]
enum Behavior {
    Honest,
    /// Every byte of every chunk is wrong; the head is right.
    Lies,
    /// The head is another package's.
    OtherHead,
    /// Fails after this many answers.
    DiesAfter(u64),
    /// Answers when told to.
    Hangs,
}

struct Fake {
    name: String,
    is_trusted: bool,
    behavior: Behavior,
    content: Bytes,
    requests: AtomicU64,
    resume: Notify,
}

impl Fake {
    fn new(name: &str, is_trusted: bool, behavior: Behavior, content: &Bytes) -> Arc<Fake> {
        let (name, content) = (name.to_owned(), content.clone());
        Arc::new(Fake {
            name,
            is_trusted,
            behavior,
            content,
            requests: AtomicU64::new(0),
            resume: Notify::new(),
        })
    }

    fn request_count(&self) -> u64 {
        self.requests.load(Ordering::SeqCst)
    }
}

impl Source for Fake {
    fn name(&self) -> &str {
        &self.name
    }
    fn is_trusted(&self) -> bool {
        self.is_trusted
    }
    fn read(
        &self,
        _: PackageDigest,
        from: u64,
        length: u32,
    ) -> BoxFuture<'_, Result<Bytes, SourceError>> {
        Box::pin(async move {
            let before = self.requests.fetch_add(1, Ordering::SeqCst);
            if self.behavior == Behavior::Hangs {
                self.resume.notified().await;
            }
            if matches!(self.behavior, Behavior::DiesAfter(after) if before >= after) {
                return Err(SourceError::Failed("away".into()));
            }
            let from = usize::try_from(from).unwrap();
            let mut bytes = self.content[from..from + length as usize].to_vec();
            if self.behavior == Behavior::Lies && from > 0 {
                bytes.iter_mut().for_each(|b| *b = !*b);
            }
            Ok(bytes.into())
        })
    }
}

fn open(folder: &Folder, name: &str, most_bytes: u64) -> Cache {
    let settings =
        CacheConfig { request_timeout: Duration::from_secs(60), ..CacheConfig::new(most_bytes) };
    Cache::open(&folder.path(name), settings).unwrap()
}

fn sources(list: &[&Arc<Fake>]) -> Vec<Arc<dyn Source>> {
    list.iter().map(|fake| Arc::clone(*fake) as Arc<dyn Source>).collect()
}

const PLENTY: u64 = 1 << 30;

#[tokio::test]
async fn a_package_arrives_whole_and_is_here_the_next_time() {
    let folder = Folder::new();
    let (reference, content) = package(&folder, "server", 3);
    let master = Fake::new("master", true, Behavior::Honest, &content);
    let cache = open(&folder, "cache", PLENTY);
    let pinned = cache.obtain(&reference, sources(&[&master])).await.unwrap();
    assert_eq!(fs::read_to_string(pinned.folder().join("name")).unwrap(), "server");
    let requests = master.request_count();
    assert!(requests >= 5, "a head and four chunks: {requests}");
    cache.obtain(&reference, vec![]).await.unwrap();
    assert_eq!(master.request_count(), requests);
    assert_eq!(cache.cached_digests(), [pinned.digest()]);
    let whole = cache.read(pinned.digest(), 0, u32::try_from(content.len()).unwrap()).await;
    assert_eq!(whole.unwrap(), content);
    assert_eq!(list_names(&folder.path("cache/incoming")), Vec::<String>::new());
}

#[tokio::test]
async fn requests_for_one_package_share_one_fetch_even_when_the_first_gives_up() {
    let folder = Folder::new();
    let (reference, content) = package(&folder, "server", 1);
    let master = Fake::new("master", true, Behavior::Hangs, &content);
    let cache = open(&folder, "cache", PLENTY);
    let ask = |reference: PackageRef, from: Vec<Arc<dyn Source>>| {
        let cache = cache.clone();
        tokio::spawn(async move { cache.obtain(&reference, from).await })
    };
    let first = ask(reference.clone(), sources(&[&master]));
    while master.request_count() == 0 {
        tokio::task::yield_now().await;
    }
    let rest: Vec<_> = (0..5).map(|_| ask(reference.clone(), vec![])).collect();
    first.abort();
    assert!(first.await.unwrap_err().is_cancelled());
    let feed = {
        let master = Arc::clone(&master);
        tokio::spawn(async move {
            loop {
                master.resume.notify_one();
                tokio::task::yield_now().await;
            }
        })
    };
    for waiter in rest {
        waiter.await.unwrap().unwrap();
    }
    feed.abort();
    assert_eq!(master.request_count(), 3, "a head and two chunks, once");
}

#[tokio::test]
async fn machines_are_asked_before_masters_and_a_liar_is_caught_and_shunned() {
    let folder = Folder::new();
    let (reference, content) = package(&folder, "server", 12);
    let master = Fake::new("master", true, Behavior::Honest, &content);
    let liar = Fake::new("liar", false, Behavior::Lies, &content);
    let honest: Vec<_> = (0..5)
        .map(|n| Fake::new(&format!("machine{n}"), false, Behavior::Honest, &content))
        .collect();
    let cache = open(&folder, "cache", PLENTY);
    let mut all = vec![&master, &liar];
    all.extend(&honest);
    let pinned = cache.obtain(&reference, sources(&all)).await.unwrap();
    assert_eq!(fs::read_to_string(pinned.folder().join("name")).unwrap(), "server");
    assert_eq!(master.request_count(), 1, "the head");
    assert!((1..=2).contains(&liar.request_count()), "asked until the first wrong byte");
    assert!(honest.iter().all(|machine| machine.request_count() > 0));
    let before = liar.request_count();
    let (other, other_content) = package(&folder, "other", 1);
    let master = Fake::new("master", true, Behavior::Honest, &other_content);
    cache.obtain(&other, sources(&[&master, &liar])).await.unwrap();
    assert_eq!(liar.request_count(), before, "not asked again");
}

#[tokio::test]
async fn sources_that_die_on_the_way_are_replaced() {
    let folder = Folder::new();
    let (reference, content) = package(&folder, "server", 8);
    let master = Fake::new("master", true, Behavior::DiesAfter(1), &content);
    let dying = Fake::new("dying", false, Behavior::DiesAfter(3), &content);
    let last = Fake::new("last", false, Behavior::Honest, &content);
    let cache = open(&folder, "cache", PLENTY);
    cache.obtain(&reference, sources(&[&master, &dying, &last])).await.unwrap();
    let alone = Fake::new("alone", false, Behavior::DiesAfter(4), &content);
    let master = Fake::new("master", true, Behavior::DiesAfter(2), &content);
    let cache = open(&folder, "second", PLENTY);
    let error = cache.obtain(&reference, sources(&[&master, &alone])).await.unwrap_err();
    let text = error.to_string();
    assert!(text.contains("master: away") && text.contains("alone: away"), "{text}");
    assert_eq!(cache.used_bytes(), 0);
    assert_eq!(list_names(&folder.path("second/incoming")), Vec::<String>::new());
    cache.obtain(&reference, sources(&[&last])).await.unwrap();
}

#[tokio::test]
async fn without_a_master_one_machine_at_a_time_is_believed_until_the_end() {
    let folder = Folder::new();
    let (reference, content) = package(&folder, "server", 2);
    let (_, other) = package(&folder, "herver", 2);
    assert_eq!(content.len(), other.len());
    let liar = Fake::new("liar", false, Behavior::OtherHead, &other);
    let honest = Fake::new("honest", false, Behavior::Honest, &content);
    let cache = open(&folder, "cache", PLENTY);
    let pinned = cache.obtain(&reference, sources(&[&liar, &honest])).await.unwrap();
    assert_eq!(fs::read_to_string(pinned.folder().join("name")).unwrap(), "server");
    assert!(liar.request_count() > 0);
    let mistaken = Fake::new("mistaken", true, Behavior::OtherHead, &other);
    let right = Fake::new("right", true, Behavior::Honest, &content);
    let second = open(&folder, "second", PLENTY);
    let from = sources(&[&mistaken, &right]);
    second.obtain(&reference, from).await.unwrap();
    let third = open(&folder, "third", PLENTY);
    third.obtain(&reference, sources(&[&right])).await.unwrap();
    let no_source = cache.obtain(&package(&folder, "x", 1).0, vec![]).await.unwrap_err();
    assert!(no_source.to_string().contains("no source is known"), "{no_source}");
}

#[tokio::test]
async fn a_broken_package_is_not_waited_for_and_its_owner_is_told_why_each_time() {
    let folder = Folder::new();
    let (reference, content) = package(&folder, "server", 1);
    let (_, other) = package(&folder, "herver", 1);
    let headless: Bytes = vec![0; content.len()].into();
    let cache = open(&folder, "cache", PLENTY);
    let broken = [
        (Behavior::Honest, &headless, "not a package"),
        (Behavior::OtherHead, &other, "the content's digest is"),
        (Behavior::Lies, &content, "its chunks are not those that its head names"),
    ];
    for (behavior, content, reason) in broken {
        let master = Fake::new("master", true, behavior, content);
        let away = Fake::new("away", true, Behavior::DiesAfter(0), content);
        for _ in 0..2 {
            let error = cache.obtain(&reference, sources(&[&away, &master])).await.unwrap_err();
            assert!(!error.is_retryable() && error.to_string().contains(reason), "{error}");
        }
        // A machine is not trusted on the package.
        let machine = Fake::new(reason, false, behavior, content);
        let error = cache.obtain(&reference, sources(&[&away, &machine])).await.unwrap_err();
        assert!(error.is_retryable(), "{error}");
    }
    assert!(!cache.status().avoided.contains(&"master".to_owned()), "other packages are fine");
    let right = Fake::new("master", true, Behavior::Honest, &content);
    cache.obtain(&reference, sources(&[&right])).await.unwrap();
}

#[tokio::test]
async fn the_longest_unused_goes_when_room_is_needed_and_nothing_in_use_does() {
    let folder = Folder::new();
    let made: Vec<_> = ["a", "b", "c", "d"].map(|name| package(&folder, name, 1)).into();
    let one = made[0].0.bytes * 2 + 64 * 1024;
    let cache = open(&folder, "cache", one * 2);
    let get = async |at: usize| {
        let (reference, content) = &made[at];
        let master = Fake::new("master", true, Behavior::Honest, content);
        cache.obtain(reference, sources(&[&master])).await
    };
    let digest = |at: usize| PackageDigest::parse(made[at].0.digest.as_str()).unwrap();
    let a = get(0).await.unwrap();
    drop(get(1).await.unwrap());
    drop(a);
    drop(get(2).await.unwrap());
    let mut cached = cache.cached_digests();
    let mut expected = vec![digest(0), digest(2)];
    cached.sort();
    expected.sort();
    assert_eq!(cached, expected, "b was unused longest");
    assert!(cache.used_bytes() <= one * 2);
    let (a, c) = (get(0).await.unwrap(), get(2).await.unwrap());
    let full = get(3).await.unwrap_err();
    assert!(matches!(full, ObtainError::NoRoom { .. }), "{full}");
    assert!(a.folder().join("name").exists() && c.folder().join("name").exists());
    drop(c);
    get(3).await.unwrap();
    assert!(!cache.cached_digests().contains(&digest(2)));
}

#[tokio::test]
async fn a_restart_finds_what_is_whole_and_removes_the_rest() {
    let folder = Folder::new();
    let (one, one_bytes) = package(&folder, "one", 1);
    let (two, two_bytes) = package(&folder, "two", 1);
    let cache = open(&folder, "cache", PLENTY);
    let master = |content| Fake::new("master", true, Behavior::Honest, content);
    let first = cache.obtain(&one, sources(&[&master(&one_bytes)])).await.unwrap();
    let second = cache.obtain(&two, sources(&[&master(&two_bytes)])).await.unwrap();
    let (kept, broken) = (first.digest(), second.digest());
    let taken = cache.used_bytes();
    drop((first, second, cache));
    let root = folder.path("cache");
    fs::write(root.join("incoming/half"), b"half").unwrap();
    fs::create_dir(root.join("folders").join("odd")).unwrap();
    fs::write(root.join("files").join(PackageDigest([7; 32]).to_string()), b"alone").unwrap();
    fs::remove_dir_all(root.join("folders").join(broken.to_string())).unwrap();
    let cache = open(&folder, "cache", PLENTY);
    assert_eq!(cache.cached_digests(), [kept]);
    assert!(cache.used_bytes() < taken && cache.used_bytes() > 0);
    assert_eq!(list_names(&root.join("files")), [kept.to_string()]);
    assert_eq!(list_names(&root.join("folders")), [kept.to_string()]);
    assert_eq!(list_names(&root.join("incoming")), Vec::<String>::new());
    assert!(cache.obtain(&one, vec![]).await.is_ok());
    drop(cache);
    let cache = open(&folder, "cache", 1000);
    let in_use = cache.obtain(&one, vec![]).await.unwrap();
    cache.trim().unwrap();
    assert!(in_use.folder().join("name").exists(), "a task from before runs from it");
    drop(in_use);
    cache.trim().unwrap();
    assert_eq!(cache.cached_digests(), [], "a lower bound holds");
}

#[tokio::test]
async fn what_lies_in_the_way_of_a_package_is_removed() {
    let folder = Folder::new();
    let (reference, content) = package(&folder, "server", 1);
    let cache = open(&folder, "cache", PLENTY);
    let digest = reference.digest.to_string();
    let obstacle = folder.path("cache/folders").join(&digest);
    fs::create_dir_all(obstacle.join("left")).unwrap();
    let master = Fake::new("master", true, Behavior::Honest, &content);
    let pinned = cache.obtain(&reference, sources(&[&master])).await.unwrap();
    assert_eq!(list_names(pinned.folder()), ["content", "name"]);
}

#[tokio::test]
async fn only_the_agent_lists_what_all_tasks_run_from() {
    use std::os::unix::fs::PermissionsExt;
    let folder = Folder::new();
    let _cache = open(&folder, "cache", PLENTY);
    let root = folder.path("cache");
    let mode = |name: &str| fs::metadata(root.join(name)).unwrap().permissions().mode() & 0o7777;
    assert_eq!(["", "folders", "files", "incoming"].map(mode), [0o711, 0o711, 0o700, 0o700]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_machine_that_says_more_than_it_was_asked_for_is_cut_off() {
    let sent = Arc::new(AtomicU64::new(0));
    let counted = Arc::clone(&sent);
    let flood = axum::Router::new().fallback(move || async move {
        let piece = move |at: u64| {
            let (more, counted) = (at < 4096, Arc::clone(&counted));
            async move {
                counted.fetch_add(u64::from(more), Ordering::SeqCst);
                let piece = Ok::<_, std::convert::Infallible>(Bytes::from(vec![0; 1 << 16]));
                more.then_some((piece, at + 1))
            }
        };
        axum::body::Body::from_stream(futures::stream::unfold(0, piece))
    });
    let (address, _server) = serve_at(flood).await;
    let read = machine(&address).read(PackageDigest([7; 32]), 0, 1000).await;
    assert!(matches!(read, Err(SourceError::Failed(_))), "{read:?}");
    let sent = sent.load(Ordering::SeqCst);
    assert!(sent < 4096, "all of a quarter of a gigabyte was taken: {sent}");
}

#[tokio::test]
async fn who_asks_beyond_what_memory_there_is_for_answers_is_sent_elsewhere() {
    let folder = Folder::new();
    let (reference, content) = package(&folder, "server", 1);
    let master = Fake::new("master", true, Behavior::Honest, &content);
    let cache = open(&folder, "cache", PLENTY);
    let digest = cache.obtain(&reference, sources(&[&master])).await.unwrap().digest();
    let patient = Duration::from_secs(60);
    let (narrow, _server) = serve_at(router_with(cache.clone(), 1, patient)).await;
    let peer = machine(&narrow);
    for _ in 0..3 {
        // A leaked permit would be the last.
        assert_eq!(peer.read(digest, 0, 1000).await.unwrap(), content[..1000]);
    }
    let (full, _server) = serve_at(router_with(cache, 0, Duration::ZERO)).await;
    let rejected = machine(&full).read(digest, 0, 1000).await;
    assert!(matches!(&rejected, Err(SourceError::Failed(why)) if why.contains("elsewhere")));
}

#[test]
fn a_chunk_that_comes_after_its_round_changes_nothing() {
    use crate::head::{Head, Parsed};
    let folder = Folder::new();
    let (_, content) = package(&folder, "server", 1);
    let total = content.len() as u64;
    let Parsed::Head(head) = Head::parse(&content, total).unwrap() else { panic!("it is whole") };
    let partial = Partial::create(folder.path("partial"), total).unwrap();
    let first = partial.start_round(&head, &content).unwrap();
    let second = partial.start_round(&head, &content).unwrap();
    let (from, length) = head.range_of(0);
    let bytes = vec![7; length as usize];
    partial.write_chunk(&head, first, 0, &bytes).unwrap();
    assert_eq!(partial.read(from, length), Err(SourceError::Lacks));
    partial.write_chunk(&head, second, 0, &bytes).unwrap();
    assert_eq!(partial.read(from, length).unwrap(), bytes);
}

#[tokio::test]
async fn a_package_of_many_empty_files_is_stopped_at_what_the_cache_holds() {
    let folder = Folder::new();
    let from = folder.path("many");
    fs::create_dir(&from).unwrap();
    (0..200).for_each(|n| fs::write(from.join(n.to_string()), "").unwrap());
    let file = folder.path("many.package");
    let Built { digest, bytes, .. } = build(&from, &file).unwrap();
    let name = Token::new("many").unwrap();
    let reference = PackageRef { name, digest: digest.token().unwrap(), bytes };
    let master = Fake::new("master", true, Behavior::Honest, &fs::read(file).unwrap().into());
    let cache = open(&folder, "cache", bytes * 3);
    let rejected = cache.obtain(&reference, sources(&[&master])).await.unwrap_err().to_string();
    assert!(rejected.contains("bytes on disk"), "{rejected}");
    assert_eq!(list_names(&folder.path("cache/folders")), Vec::<String>::new());
}

#[tokio::test]
async fn damage_on_disk_is_noticed_and_not_passed_on() {
    let folder = Folder::new();
    let (reference, content) = package(&folder, "server", 2);
    let master = Fake::new("master", true, Behavior::Honest, &content);
    let cache = open(&folder, "cache", PLENTY);
    let pinned = cache.obtain(&reference, sources(&[&master])).await.unwrap();
    let digest = pinned.digest();
    let path = folder.path("cache/files").join(digest.to_string());
    let mut bytes = content.to_vec();
    let last = bytes.len() - 1;
    bytes[last] ^= 1;
    fs::write(&path, &bytes).unwrap();
    let head_end = content.len() as u64 - body_bytes(&content);
    let chunk = u64::from(CHUNK_BYTES);
    let fine = cache.read(digest, head_end, CHUNK_BYTES).await.unwrap();
    assert_eq!(fine, content[usize::try_from(head_end).unwrap()..][..CHUNK_BYTES as usize]);
    let tail = u32::try_from(body_bytes(&content) - 2 * chunk).unwrap();
    let bad = cache.read(digest, head_end + 2 * chunk, tail).await;
    assert_eq!(bad, Err(SourceError::Lacks));
    assert_eq!(cache.read(digest, 0, 10).await, Err(SourceError::Lacks), "nothing of it any more");
}

fn body_bytes(content: &Bytes) -> u64 {
    use crate::head::{Head, Parsed};
    match Head::parse(content, content.len() as u64).unwrap() {
        Parsed::Head(head) => head.body_bytes,
        Parsed::Needs(_) => panic!("all of it is there"),
    }
}

/// Serves a cache on loopback.
async fn serve(cache: &Cache) -> (String, tokio::task::JoinHandle<()>) {
    serve_at(router(cache.clone())).await
}

async fn serve_at(service: axum::Router) -> (String, tokio::task::JoinHandle<()>) {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let server = tokio::spawn(async move {
        let _ended = axum::serve(listener, service).await;
    });
    (address, server)
}

fn machine(address: &str) -> Arc<dyn Source> {
    let client = Client::new(ClientSettings::new(vec![address.to_owned()])).unwrap();
    Arc::new(HttpSource::machine(client, address.to_owned(), Duration::from_secs(30)))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn machines_pass_a_package_on_over_http() {
    let folder = Folder::new();
    let (reference, content) = package(&folder, "server", 6);
    let master = Fake::new("master", true, Behavior::DiesAfter(20), &content);
    let first = open(&folder, "first", PLENTY);
    first.obtain(&reference, sources(&[&master])).await.unwrap();
    let (first_address, first_server) = serve(&first).await;
    let second = open(&folder, "second", PLENTY);
    let from = vec![Arc::clone(&master) as Arc<dyn Source>, machine(&first_address)];
    second.obtain(&reference, from).await.unwrap();
    let (second_address, _server) = serve(&second).await;
    first_server.abort();
    let third = open(&folder, "third", PLENTY);
    let from = vec![machine(&first_address), machine(&second_address)];
    let pinned = third.obtain(&reference, from).await.unwrap();
    assert_eq!(fs::read_to_string(pinned.folder().join("name")).unwrap(), "server");
    let absent = package(&folder, "absent", 1).0;
    let error = third.obtain(&absent, vec![machine(&second_address)]).await.unwrap_err();
    assert!(error.to_string().contains("does not have it"), "{error}");
}

/// The agent of a machine, as agents know each other.
fn agent(address: &str) -> Arc<dyn Source> {
    let (dialler, limit) = (AgentDialler::plain(Vec::new()), Duration::from_secs(30));
    let machine = Name::new("m1").unwrap();
    Arc::new(AgentSource::new(dialler, machine, address.to_owned(), limit))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn masters_serve_a_package_about_once_however_many_machines_want_it() {
    let folder = Folder::new();
    let (reference, content) = package(&folder, "server", 20);
    let master = Fake::new("master", true, Behavior::Honest, &content);
    let mut agents: Vec<Arc<dyn Source>> = Vec::new();
    for name in ["first", "second", "third", "fourth"] {
        let cache = open(&folder, name, PLENTY);
        let mut from = agents.clone();
        from.push(Arc::clone(&master) as Arc<dyn Source>);
        cache.obtain(&reference, from).await.unwrap();
        let (address, _server) = serve(&cache).await;
        agents.push(agent(&address));
    }
    // The head for each, and the chunks for the first.
    let first_alone = u64::from(u32::try_from(content.len()).unwrap().div_ceil(CHUNK_BYTES));
    let requests = master.request_count();
    assert!((first_alone..=first_alone + 5).contains(&requests), "{requests} of {first_alone}");
    let absent = package(&folder, "absent", 1).0;
    let digest = PackageDigest::parse(absent.digest.as_str()).unwrap();
    assert_eq!(agents[0].read(digest, 0, 10).await, Err(SourceError::Lacks));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_has_arrived_is_given_on_before_the_rest_has() {
    let folder = Folder::new();
    let (reference, content) = package(&folder, "server", 2);
    let slow = Fake::new("slow", true, Behavior::Hangs, &content);
    let first = open(&folder, "first", PLENTY);
    let asking = {
        let (cache, reference, from) = (first.clone(), reference.clone(), sources(&[&slow]));
        tokio::spawn(async move { cache.obtain(&reference, from).await })
    };
    // The head and one chunk.
    slow.resume.notify_one();
    while slow.request_count() < 3 {
        tokio::task::yield_now().await;
    }
    slow.resume.notify_one();
    let (address, _server) = serve(&first).await;
    let digest = PackageDigest::parse(reference.digest.as_str()).unwrap();
    let peer = machine(&address);
    let head_end = content.len() as u64 - body_bytes(&content);
    let chunk = u64::from(CHUNK_BYTES);
    let served = loop {
        let one = peer.read(digest, head_end, CHUNK_BYTES).await;
        let other = peer.read(digest, head_end + chunk, CHUNK_BYTES).await;
        if let (Ok(bytes), _) | (_, Ok(bytes)) = (one, other) {
            break bytes;
        }
    };
    assert_eq!(served.len(), CHUNK_BYTES as usize);
    assert!(!asking.is_finished());
    asking.abort();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_gave_what_is_told() {
    let folder = Folder::new();
    let (reference, content) = package(&folder, "server", 3);
    let master = Fake::new("master", true, Behavior::Honest, &content);
    let first = open(&folder, "first", PLENTY);
    let pinned = first.obtain(&reference, sources(&[&master])).await.unwrap();
    let status = first.status();
    assert!(status.from_masters >= reference.bytes && status.from_machines == 0, "{status:?}");
    let from = &status.packages[0].from;
    assert_eq!((from.len(), from[0].name.as_str(), from[0].is_master), (1, "master", true));
    assert!(status.packages[0].in_use && status.packages[0].fetched_in.is_some());
    drop(pinned);
    // The task that fetched it pins it too until it ends, right after it answered.
    let unused = async {
        while first.status().packages[0].in_use {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), unused).await.unwrap();
    let (address, _server) = serve(&first).await;
    let liar = Fake::new("liar", false, Behavior::Lies, &content);
    let mut from = sources(&[&liar, &master]);
    from.push(agent(&address));
    let second = open(&folder, "second", PLENTY);
    second.obtain(&reference, from).await.unwrap();
    let status = second.status();
    let by = |name: &str| status.packages[0].from.iter().find(|from| from.name == name).unwrap();
    assert!(by("liar").is_wrong && by("liar").bytes == 0, "{status:?}");
    assert!(by("m1").bytes >= body_bytes(&content) && !by("m1").is_wrong, "{status:?}");
    assert_eq!(by("master").bytes, 1 << 16, "the head and no more");
    assert_eq!(status.avoided, ["liar"]);
    assert!(first.status().to_machines >= body_bytes(&content));
    // Packages that were cached before have no sources.
    drop(second);
    let again = open(&folder, "second", PLENTY).status();
    assert_eq!((again.packages.len(), &again.packages[0].from[..]), (1, &[][..]));
}
