//! Registries that are friendly, weak or hostile, on loopback.

mod server;

use super::*;
use crate::oci;
use crate::oci::zstd::tests::{bomb, packed};
use crate::testing::{Folder, list_names, write_tree};
use rustls::version::{TLS12, TLS13};
use server::{BlobResponse, FakeProxy, Server, Store, tar_of};
use std::sync::Mutex;
use std::time::Duration;

fn fast_config(server: &Server) -> (Reference, PullConfig) {
    let reference = format!("docker://{}/team/app:v1", server.address).parse().unwrap();
    let times = Timeouts {
        connect: Duration::from_secs(20),
        answer: Duration::from_secs(20),
        idle: Duration::from_secs(20),
        backoff: Duration::from_millis(1),
    };
    let limits = Limits { entries: 1000, bytes: 8 << 20, disk: 16 << 20 };
    let platform = Some("linux/amd64".into());
    (reference, PullConfig { platform, timeouts: times, limits, ..PullConfig::default() })
}

async fn fetch_image(
    server: &Server,
    settings: &PullConfig,
) -> (Folder, Result<Fetched, RegistryError>) {
    let folder = Folder::new();
    let (reference, _) = fast_config(server);
    let fetched = fetch(&reference, &folder.path("layout"), settings, &()).await;
    (folder, fetched)
}

/// Pulling the image fails with an error of these parts.
async fn check_rejected(store: Store, parts: &[&str]) {
    let server = Server::start(store).await;
    let (_, settings) = fast_config(&server);
    let (_folder, fetched) = fetch_image(&server, &settings).await;
    let error = fetched.unwrap_err();
    let text = format!("{error}; next: {}", error.next());
    let reference = format!("docker://{}/team/app:v1: ", server.address);
    assert!(text.starts_with(&reference), "{text}");
    for part in parts {
        assert!(text.contains(part), "{part:?} is not in {text:?}");
    }
}

#[tokio::test]
async fn the_image_of_the_platform_is_fetched_and_becomes_a_package() {
    for docker in [false, true] {
        let server = Server::start(Store::image(docker)).await;
        let (reference, settings) = fast_config(&server);
        let (folder, fetched) = fetch_image(&server, &settings).await;
        let fetched = fetched.unwrap();
        assert_eq!(fetched.layers, 2);
        let top = server.store().manifest_digest("v1");
        assert_eq!(fetched.pinned.to_string(), reference.with_digest(top).to_string());
        let (layout, package) = (folder.path("layout"), folder.path("package"));
        let platform = settings.platform.as_deref();
        let imported = oci::import(&layout, &package, platform, settings.limits).unwrap();
        assert_eq!((imported.layers, imported.command.as_slice()), (2, &["/run".to_owned()][..]));
        assert_eq!(imported.built.entries, 2, "one file of each layer");
        assert!(!server.requests().iter().any(|request| request.contains(&server.store().arm)));
        // By digest it is the same, whatever the tag refers to meanwhile.
        let by_digest = fetch(&fetched.pinned, &folder.path("again"), &settings, &()).await;
        assert_eq!(by_digest.unwrap(), fetched);
    }
}

#[tokio::test]
async fn another_platform_is_asked_for_or_named() {
    let server = Server::start(Store::image(false)).await;
    let (_, settings) = fast_config(&server);
    let arm = PullConfig { platform: Some("linux/arm64".into()), ..settings.clone() };
    fetch_image(&server, &arm).await.1.unwrap();
    let none = PullConfig { platform: Some("plan9/mips".into()), ..settings };
    let error = fetch_image(&server, &none).await.1.unwrap_err().to_string();
    assert!(error.contains("nothing for plan9/mips"), "{error}");
    assert!(error.contains("one of linux/amd64, linux/arm64/v8"), "{error}");
}

#[tokio::test]
async fn a_broken_download_goes_on_where_it_stopped() {
    let mut store = Store::image(false);
    let large = store.large.clone();
    store.breaks.insert(large.clone(), vec![300_000, 700_000]);
    let server = Server::start(store).await;
    let (_, settings) = fast_config(&server);
    let (folder, fetched) = fetch_image(&server, &settings).await;
    fetched.unwrap();
    let ranges: Vec<String> =
        server.requests().into_iter().filter(|request| request.contains(&large)).collect();
    let from = |request: &String| request.split_once("bytes=").map(|(_, range)| range.to_owned());
    let from: Vec<Option<String>> = ranges.iter().map(from).collect();
    // How much of a broken response arrives depends on the network.
    assert!(from.len() == 3 && from[0].is_none(), "{from:?}");
    assert!(from[1..].iter().all(Option::is_some), "{from:?}");
    let blobs = list_names(&folder.path("layout/blobs/sha256"));
    assert!(blobs.contains(&large), "{blobs:?}");
}

#[tokio::test]
async fn a_server_that_cannot_go_on_gives_it_once_more() {
    #[derive(Default)]
    struct Counted(Mutex<(u64, u64)>);
    impl Progress for Counted {
        fn started(&self, _: usize, bytes: u64) {
            self.0.lock().unwrap().0 = bytes;
        }
        fn received(&self, bytes: u64) {
            self.0.lock().unwrap().1 += bytes;
        }
        fn discarded(&self, bytes: u64) {
            self.0.lock().unwrap().1 -= bytes;
        }
    }
    let mut store = Store::image(false);
    store.breaks.insert(store.large.clone(), vec![300_000]);
    store.ignores_ranges = true;
    let server = Server::start(store).await;
    let (reference, settings) = fast_config(&server);
    let (folder, counted) = (Folder::new(), Counted::default());
    fetch(&reference, &folder.path("layout"), &settings, &counted).await.unwrap();
    let (announced, came) = *counted.0.lock().unwrap();
    assert_eq!(announced, came, "what came twice counts once");
}

#[tokio::test]
async fn what_is_not_what_was_promised_is_refused() {
    let with = |change: &dyn Fn(&mut Store)| {
        let mut store = Store::image(false);
        change(&mut store);
        store
    };
    let large = Store::image(false).large;
    let blob =
        |given: BlobResponse| with(&|store| drop(store.blobs.insert(large.clone(), given.clone())));
    let good = Store::image(false).content(&large);
    let mut other = good.clone();
    other[5] ^= 1;
    check_rejected(blob(BlobResponse::Whole(other)), &["layer sha256:", "digest is", "next: "])
        .await;
    let short = good[..good.len() - 1].to_vec();
    check_rejected(blob(BlobResponse::Whole(short.clone())), &["announces", "manifest leaves"])
        .await;
    check_rejected(blob(BlobResponse::Unannounced(short)), &["broke off", "it ended after"]).await;
    check_rejected(blob(BlobResponse::Endless), &["more comes than the"]).await;
    check_rejected(blob(BlobResponse::Error(404)), &["no such thing", "404"]).await;
    check_rejected(blob(BlobResponse::Error(503)), &["no time: 503"]).await;
    check_rejected(with(&|store| store.manifest_bytes(5 << 20)), &["manifest v1", "more than"])
        .await;
    check_rejected(with(&|store| store.lies_about_digest = true), &["manifest v1", "digest is"])
        .await;
    check_rejected(with(&|store| store.tags.clear()), &["manifest v1", "MANIFEST_UNKNOWN"]).await;
}

#[tokio::test]
async fn manifests_that_can_be_read_two_ways_or_promise_too_much_are_refused() {
    let check = async |change: &dyn Fn(&mut serde_json::Value), parts: &[&str]| {
        let mut store = Store::image(false);
        store.change_manifest(change);
        check_rejected(store, parts).await;
    };
    check(&|m| m["manifests"] = json!([]), &["content is not that of"]).await;
    check(&|m| m["mediaType"] = "application/x".into(), &["calls itself application/x"]).await;
    check(&|m| m["layers"][0]["size"] = (9u64 << 20).into(), &["bytes unpacked", "at most"]).await;
    check(&|m| m["layers"][0]["size"] = u64::MAX.into(), &["bytes unpacked"]).await;
    check(&|m| m["layers"][0]["digest"] = "sha512:12".into(), &["not sha256:"]).await;
    check(&|m| m["layers"][0]["mediaType"] = "a.tar+xz".into(), &["tar+xz", "allowed"]).await;
    check(&|m| m["config"]["size"] = (5 << 20).into(), &["bytes of head"]).await;
    let layer = Store::image(false).manifest()["layers"][0].clone();
    let many: Vec<_> = (0..300).map(|_| layer.clone()).collect();
    check(&|m| m["layers"] = json!(many), &["300 layers; allowed: at most 256"]).await;
    check(&|m| m["schemaVersion"] = 1.into(), &["first format"]).await;
}

#[tokio::test]
async fn redirects_end_and_take_no_credentials_along() {
    let mut store = Store::image(false);
    store.blobs.insert(store.large.clone(), BlobResponse::RedirectLoop);
    check_rejected(store, &["redirects more than 5 times"]).await;
    for (to, part) in [("ftp://x/y", "no web address"), ("http://203.0.113.1/", "plain text")] {
        let mut store = Store::image(false);
        store.blobs.insert(store.large.clone(), BlobResponse::Redirect(to.into()));
        check_rejected(store, &[part]).await;
    }
    // Storage of another owner: another port is another server.
    let storage = Server::start(Store::image(false)).await;
    let mut store = Store::image(false);
    let large = store.large.clone();
    let elsewhere = format!("http://{}/v2/team/app/blobs/sha256:{large}", storage.address);
    store.blobs.insert(large, BlobResponse::Redirect(elsewhere));
    store.basic = Some("Basic dTpw".into());
    let server = Server::start(store).await;
    let (_, settings) = with_login(&server);
    fetch_image(&server, &settings).await.1.unwrap();
    assert!(
        server.authorizations().iter().any(|authorization| authorization == "Basic dTpw"),
        "the registry saw it"
    );
    assert_eq!(storage.authorizations(), [""], "the storage did not");
}

fn with_login(server: &Server) -> (Reference, PullConfig) {
    let (reference, settings) = fast_config(server);
    let folder = Folder::new();
    let text = format!(r#"{{"auths": {{"{}": {{"auth": "dTpw"}}}}}}"#, server.address);
    write_tree(folder.root(), &[("auth.json", &text)]);
    let login = credentials::read(&folder.path("auth.json"), &reference).unwrap();
    assert!(login.is_some());
    (reference, PullConfig { login, ..settings })
}

#[tokio::test]
async fn a_token_is_fetched_with_the_credentials_and_used() {
    let mut store = Store::image(false);
    store.token = Some(("secret-token".into(), None));
    let server = Server::start(store).await;
    let (_, settings) = with_login(&server);
    fetch_image(&server, &settings).await.1.unwrap();
    let requests = server.requests();
    let token = requests
        .iter()
        .find(|request| request.starts_with("/token?"))
        .expect("a token is requested");
    assert!(token.contains("service=registry") && token.contains("scope=repository%3Ateam"));
    assert!(
        server.authorizations().contains(&"Basic dTpw".to_owned()),
        "to the one who gives tokens"
    );
    assert_eq!(
        requests.iter().filter(|request| request.starts_with("/token")).count(),
        1,
        "and kept"
    );
}

#[tokio::test]
async fn a_registry_cannot_have_our_credentials_sent_elsewhere() {
    let other = Server::start(Store::default()).await;
    let mut store = Store::image(false);
    // The same machine under another name is another server.
    let realm = format!("http://localhost:{}/token", other.address.port());
    store.token = Some(("secret-token".into(), Some(realm)));
    let server = Server::start(store).await;
    let (_, settings) = with_login(&server);
    let error = fetch_image(&server, &settings).await.1.unwrap_err();
    assert_eq!(other.authorizations(), [""], "asked for a token, as nobody");
    let is_withheld =
        matches!(error.why, RegistryFailure::Denied { credentials: Credentials::Withheld, .. });
    assert!(is_withheld, "{error}");
}

#[tokio::test]
async fn who_is_denied_is_told_what_to_show() {
    let mut store = Store::image(false);
    store.basic = Some("Basic other".into());
    check_rejected(store, &["access is denied", "--credentials FILE"]).await;
    let mut store = Store::image(false);
    store.basic = Some("Basic other".into());
    let server = Server::start(store).await;
    let (_, settings) = with_login(&server);
    let error = fetch_image(&server, &settings).await.1.unwrap_err();
    let denied = RegistryFailure::Denied { detail: String::new(), credentials: Credentials::Shown };
    assert_eq!(std::mem::discriminant(&error.why), std::mem::discriminant(&denied), "{error}");
    assert!(error.next().contains("may read it"), "{}", error.next());
}

#[tokio::test]
async fn other_hosts_are_not_spoken_to_in_plain_text_and_tls_is_checked() {
    // Nothing is sent: a server that speaks plain HTTP on loopback has no certificate.
    let server = Server::start(Store::image(false)).await;
    let (_, settings) = fast_config(&server);
    let folder = Folder::new();
    let (authority, key) = server::authority();
    write_tree(folder.root(), &[("ca.pem", &authority)]);
    let tls = PullConfig { authority: Some(folder.path("ca.pem")), ..settings.clone() };
    let error = fetch_image(&server, &tls).await.1.unwrap_err();
    assert!(matches!(error.why, RegistryFailure::Untrusted(_)), "{error}");
    assert!(error.next().contains("--ca FILE"), "{}", error.next());
    // Old registries have nothing newer than 1.2.
    let old = Server::start_tls(Store::image(false), &authority, &key, &TLS12).await;
    fetch_image(&old, &tls).await.1.unwrap();
    let secure = Server::start_tls(Store::image(false), &authority, &key, &TLS13).await;
    fetch_image(&secure, &tls).await.1.unwrap();
    let stranger = fetch_image(&secure, &PullConfig { authority: None, ..tls.clone() }).await.1;
    assert!(stranger.is_err());
    let missing = PullConfig { authority: Some(folder.path("none.pem")), ..tls };
    let error = fetch_image(&secure, &missing).await.1.unwrap_err().to_string();
    assert!(error.contains("none.pem"), "{error}");
}

#[tokio::test]
async fn layers_in_zstd_are_unpacked_and_bombs_are_not() {
    let program = packed(&tar_of("run", &[b'a'; 100_000]));
    // A hundred blocks of four bytes each, and a window that no machine has to spare.
    let (much, wide) = (bomb(7, 100), bomb(20, 1));
    for (layer, part) in [(program, None), (much, Some("bytes unpacked")), (wide, Some("indow"))] {
        let mut store = Store::image(false);
        let layer = store.blob("application/vnd.oci.image.layer.v1.tar+zstd", layer);
        store.change_manifest(&|manifest| manifest["layers"] = json!([layer]));
        let server = Server::start(store).await;
        let (_, settings) = fast_config(&server);
        let (folder, fetched) = fetch_image(&server, &settings).await;
        fetched.unwrap();
        let (layout, package) = (folder.path("layout"), folder.path("package"));
        let platform = settings.platform.as_deref();
        let imported = oci::import(&layout, &package, platform, settings.limits);
        match part {
            None => assert_eq!(imported.unwrap().built.entries, 1),
            Some(part) => {
                let error = imported.unwrap_err().to_string();
                assert!(error.contains(part), "{error}");
            }
        }
    }
}

/// The proxy's own name and password, and as it sees them.
const PROXY_LOGIN: (&str, &str) = ("me:word", "Basic bWU6d29yZA==");

/// A registry that only the proxy can resolve, and the configuration to reach it.
fn through_proxy(proxy: &FakeProxy, folder: &Folder, authority: &str) -> (Reference, PullConfig) {
    let reference: Reference = "docker://registry.test/team/app:v1".parse().unwrap();
    let login = r#"{"auths": {"registry.test": {"auth": "dTpw"}}}"#;
    write_tree(folder.root(), &[("auth.json", login), ("ca.pem", authority)]);
    let login = credentials::read(&folder.path("auth.json"), &reference).unwrap();
    let proxies = Proxies::all(&format!("http://{}@{}", PROXY_LOGIN.0, proxy.address), "");
    let times = Timeouts { backoff: Duration::from_millis(1), ..Timeouts::default() };
    let limits = Limits { entries: 1000, bytes: 8 << 20, disk: 16 << 20 };
    let platform = Some("linux/amd64".into());
    let authority = Some(folder.path("ca.pem"));
    let settings = PullConfig {
        platform,
        login,
        authority,
        proxies,
        limits,
        timeouts: times,
        ..PullConfig::default()
    };
    (reference, settings)
}

#[tokio::test]
async fn a_proxy_is_gone_through_and_reads_nothing_of_ours() {
    let (authority, key) = server::authority();
    let folder = Folder::new();
    let mut store = Store::image(false);
    store.basic = Some("Basic dTpw".into());
    let secure = Server::start_tls(store, &authority, &key, &TLS13).await;
    let proxy = FakeProxy::start(secure.address, PROXY_LOGIN.1).await;
    let (reference, settings) = through_proxy(&proxy, &folder, &authority);
    fetch(&reference, &folder.path("layout"), &settings, &()).await.unwrap();
    assert!(
        secure.authorizations().contains(&"Basic dTpw".to_owned()),
        "the registry saw who we are"
    );
    for head in proxy.heads() {
        assert!(head.starts_with("CONNECT registry.test:443 HTTP/1.1\r\n"), "{head}");
        assert!(head.contains(PROXY_LOGIN.1) && !head.contains("dTpw"), "{head}");
    }
    // The error names the proxy that rejected us, and credentials for the registry stay here.
    let strict = FakeProxy::start(secure.address, "Basic other").await;
    let (_, settings) = through_proxy(&strict, &folder, &authority);
    let error = fetch(&reference, &folder.path("again"), &settings, &()).await.unwrap_err();
    let named = format!("the proxy {}: it answers 407", strict.address);
    assert!(error.to_string().contains(&named), "{error}");
}

#[tokio::test]
async fn plain_text_goes_through_a_proxy_without_credentials_alone() {
    let folder = Folder::new();
    let server = Server::start(Store::image(false)).await;
    let proxy = FakeProxy::start(server.address, PROXY_LOGIN.1).await;
    let (reference, settings) = through_proxy(&proxy, &folder, &server::authority().0);
    let plain = PullConfig { insecure_http: true, authority: None, ..settings };
    fetch(&reference, &folder.path("layout"), &plain, &()).await.unwrap();
    let heads = proxy.heads();
    assert!(
        heads[0].starts_with("GET http://registry.test/v2/team/app/manifests/v1 "),
        "{heads:?}"
    );
    // A registry that issues tokens over plain HTTP: they are not sent through the proxy.
    let mut store = Store::image(false);
    store.token = Some(("secret-token".into(), Some("http://registry.test/token".into())));
    let server = Server::start(store).await;
    let proxy = FakeProxy::start(server.address, PROXY_LOGIN.1).await;
    let (_, settings) = through_proxy(&proxy, &folder, &server::authority().0);
    let plain = PullConfig { insecure_http: true, authority: None, login: None, ..settings };
    let error = fetch(&reference, &folder.path("again"), &plain, &()).await.unwrap_err();
    assert!(matches!(error.why, RegistryFailure::PlainCredentials { .. }), "{error}");
    assert!(!proxy.heads().concat().contains("secret-token"));
}

#[tokio::test]
async fn a_proxy_is_for_those_whom_the_environment_names() {
    // No server listens there; loopback does not go through it.
    let server = Server::start(Store::image(false)).await;
    let (_, settings) = fast_config(&server);
    let none = PullConfig { proxies: Proxies::all("http://127.0.0.1:1", ""), ..settings };
    fetch_image(&server, &none).await.1.unwrap();
    let of = |proxy: &str, except: &str, to: &str| {
        Proxies::all(proxy, except).proxy_for(&Address::parse(to).unwrap())
    };
    let to = "https://registry.test/v2/";
    for (except, is_used) in [("", true), ("other.test", true), ("*", false), (".test", false)] {
        assert_eq!(of("p.test:3128", except, to).unwrap().is_some(), is_used, "{except}");
    }
    assert!(of("p.test:3128", "10.0.0.0/8", "https://10.1.2.3/").unwrap().is_none());
    let error = of("socks5://p.test", "", to).unwrap_err().to_string();
    assert!(error.contains("a socks5 one; allowed: http://HOST:PORT"), "{error}");
}
