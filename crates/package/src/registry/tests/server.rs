//! A registry of one image that behaves as a test wants. It implements HTTP by hand, one request a
//! connection: no library would send what a hostile server sends.

use crate::digest::PackageDigest;
use flate2::write::GzEncoder;
use rustls::pki_types::PrivateKeyDer;
use rustls::pki_types::pem::PemObject;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::io::Write;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard};
use tokio::io::{AsyncReadExt, AsyncWriteExt, copy_bidirectional};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;

const OCI: [&str; 5] = [
    "application/vnd.oci.image.index.v1+json",
    "application/vnd.oci.image.manifest.v1+json",
    "application/vnd.oci.image.config.v1+json",
    "application/vnd.oci.image.layer.v1.tar",
    "application/vnd.oci.image.layer.v1.tar+gzip",
];
const DOCKER: [&str; 5] = [
    "application/vnd.docker.distribution.manifest.list.v2+json",
    "application/vnd.docker.distribution.manifest.v2+json",
    "application/vnd.docker.container.image.v1+json",
    "application/vnd.docker.image.rootfs.diff.tar",
    "application/vnd.docker.image.rootfs.diff.tar.gzip",
];
/// The most that a hostile server sends, so that a client that takes it all ends too.
const ENDLESS_BYTES: usize = 64 << 20;

/// The response for a blob.
#[derive(Clone)]
pub enum BlobResponse {
    Whole(Vec<u8>),
    /// Without its length.
    Unannounced(Vec<u8>),
    Endless,
    Error(u16),
    Redirect(String),
    RedirectLoop,
}

#[derive(Default)]
pub struct Store {
    pub tags: BTreeMap<String, String>,
    /// Kind and content by digest.
    manifests: BTreeMap<String, (String, Vec<u8>)>,
    pub blobs: BTreeMap<String, BlobResponse>,
    /// The large layer's digest.
    pub large: String,
    /// Digest of the manifest for the other platform.
    pub arm: String,
    amd: String,
    /// Where successive responses of a blob break off.
    pub breaks: BTreeMap<String, Vec<usize>>,
    pub ignores_ranges: bool,
    pub lies_about_digest: bool,
    /// The `Authorization` that is required.
    pub basic: Option<String>,
    /// The token that is required, and the server that issues it if not this one.
    pub token: Option<(String, Option<String>)>,
    requests: Vec<(String, String)>,
}

pub fn tar_of(name: &str, content: &[u8]) -> Vec<u8> {
    let mut builder = tar::Builder::new(Vec::new());
    let mut header = tar::Header::new_gnu();
    header.set_mode(0o755);
    header.set_size(content.len() as u64);
    builder.append_data(&mut header, name, content).unwrap();
    builder.into_inner().unwrap()
}

/// A megabyte that does not compress.
fn incompressible() -> Vec<u8> {
    let mut state = 88172645463325252u64;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state as u8
    };
    (0..1_000_000).map(|_| next()).collect()
}

impl Store {
    /// An image of two layers for one platform and of one for another.
    pub fn image(docker: bool) -> Store {
        let kinds = if docker { DOCKER } else { OCI };
        let mut store = Store::default();
        let small = store.blob(kinds[3], tar_of("small", b"some bytes"));
        let mut zipped = GzEncoder::new(Vec::new(), flate2::Compression::fast());
        zipped.write_all(&tar_of("run", &incompressible())).unwrap();
        let large = store.blob(kinds[4], zipped.finish().unwrap());
        store.large = digits(&large);
        let amd = store.platform(kinds, "amd64", json!([small, large]));
        let arm = store.platform(kinds, "arm64", json!([small]));
        (store.amd, store.arm) = (digits(&amd), digits(&arm));
        let platform = |mut of: Value, architecture: &str, variant: Value| {
            of["platform"] =
                json!({"os": "linux", "architecture": architecture, "variant": variant});
            of
        };
        let index = json!({"schemaVersion": 2, "mediaType": kinds[0], "manifests": [
            platform(amd, "amd64", Value::Null), platform(arm, "arm64", "v8".into())]});
        let index = store.manifest_of(kinds[0], index.to_string().into_bytes());
        store.tags.insert("v1".into(), digits(&index));
        store
    }

    fn platform(&mut self, kinds: [&str; 5], architecture: &str, layers: Value) -> Value {
        let config = json!({"os": "linux", "architecture": architecture,
            "config": {"Entrypoint": ["/run"]}});
        let config = self.blob(kinds[2], config.to_string().into_bytes());
        let manifest = json!({"schemaVersion": 2, "mediaType": kinds[1], "config": config,
            "layers": layers});
        self.manifest_of(kinds[1], manifest.to_string().into_bytes())
    }

    pub fn blob(&mut self, kind: &str, content: Vec<u8>) -> Value {
        let described = describe(kind, &content);
        self.blobs.insert(digits(&described), BlobResponse::Whole(content));
        described
    }

    fn manifest_of(&mut self, kind: &str, content: Vec<u8>) -> Value {
        let described = describe(kind, &content);
        self.manifests.insert(digits(&described), (kind.to_owned(), content));
        described
    }

    pub fn content(&self, digest: &str) -> Vec<u8> {
        match &self.blobs[digest] {
            BlobResponse::Whole(content) => content.clone(),
            _ => panic!("{digest} is not given whole"),
        }
    }

    pub fn manifest_digest(&self, tag: &str) -> PackageDigest {
        PackageDigest::parse(&self.tags[tag]).unwrap()
    }

    /// The manifest of the usual platform.
    pub fn manifest(&self) -> Value {
        serde_json::from_slice(&self.manifests[&self.amd].1).unwrap()
    }

    /// The tag leads to that manifest, changed.
    pub fn change_manifest(&mut self, change: &dyn Fn(&mut Value)) {
        let kind = self.manifests[&self.amd].0.clone();
        let mut manifest = self.manifest();
        change(&mut manifest);
        let described = self.manifest_of(&kind, manifest.to_string().into_bytes());
        self.tags.insert("v1".into(), digits(&described));
    }

    /// The tag leads to a manifest that is good but for its length.
    pub fn manifest_bytes(&mut self, length: usize) {
        let (kind, mut content) = self.manifests[&self.amd].clone();
        content.resize(length, b' ');
        let described = self.manifest_of(&kind, content);
        self.tags.insert("v1".into(), digits(&described));
    }

    fn answer(&mut self, path: &str, authorization: &str, from: Option<usize>) -> Reply {
        self.requests.push((path.to_owned(), authorization.to_owned()));
        if let Some(reply) = self.challenge(path, authorization) {
            return reply;
        }
        if let Some(version) = path.strip_prefix("/v2/team/app/manifests/") {
            let digest = version.strip_prefix("sha256:").map(ToOwned::to_owned);
            let digest = digest.or_else(|| self.tags.get(version).cloned()).unwrap_or_default();
            let Some((kind, content)) = self.manifests.get(&digest) else {
                return Reply::unknown();
            };
            let stated = if self.lies_about_digest { "0".repeat(64) } else { digest };
            let headers =
                format!("content-type: {kind}\r\ndocker-content-digest: sha256:{stated}\r\n");
            return Reply::new(200, &headers, content.clone());
        }
        match path.strip_prefix("/v2/team/app/blobs/sha256:") {
            Some(digest) => self.serve_blob(digest, path, from),
            None => Reply::unknown(),
        }
    }

    fn challenge(&self, path: &str, authorization: &str) -> Option<Reply> {
        let ask = |what: &str| Reply::new(401, &format!("www-authenticate: {what}\r\n"), vec![]);
        if let Some(wanted) = self.basic.as_ref().filter(|wanted| *wanted != authorization) {
            return Some(ask("Basic realm=\"registry\"")).filter(|_| !wanted.is_empty());
        }
        let (token, realm) = self.token.as_ref()?;
        if path.starts_with("/token?") {
            return Some(Reply::new(200, "", json!({"token": token}).to_string().into()));
        }
        let realm = realm.clone().unwrap_or_else(|| "http://HOST/token".into());
        let bearer = format!(
            "Bearer realm=\"{realm}\",service=\"registry\",scope=\"repository:team/app:pull\""
        );
        (authorization != format!("Bearer {token}")).then(|| ask(&bearer))
    }

    fn serve_blob(&mut self, digest: &str, path: &str, from: Option<usize>) -> Reply {
        let cut = self.breaks.get_mut(digest).filter(|breaks| !breaks.is_empty());
        let cut = cut.map(|breaks| breaks.remove(0));
        let from = from.filter(|_| !self.ignores_ranges);
        match self.blobs.get(digest).cloned() {
            None => Reply::unknown(),
            Some(BlobResponse::Error(status)) => Reply::new(status, "", b"busy or gone".to_vec()),
            Some(BlobResponse::Redirect(to)) => {
                Reply::new(307, &format!("location: {to}\r\n"), vec![])
            }
            Some(BlobResponse::RedirectLoop) => {
                Reply::new(307, &format!("location: {path}\r\n"), vec![])
            }
            Some(BlobResponse::Endless) => {
                Reply { is_endless: true, ..Reply::new(200, "", vec![]) }
            }
            Some(BlobResponse::Whole(content)) => Reply::part(content, from, cut),
            Some(BlobResponse::Unannounced(content)) => {
                Reply { is_announced: false, ..Reply::part(content, from, cut) }
            }
        }
    }
}

fn describe(kind: &str, content: &[u8]) -> Value {
    let digest = format!("sha256:{}", PackageDigest::of(content));
    json!({"mediaType": kind, "digest": digest, "size": content.len()})
}

fn digits(described: &Value) -> String {
    described["digest"].as_str().unwrap().strip_prefix("sha256:").unwrap().to_owned()
}

struct Reply {
    status: u16,
    headers: String,
    body: Vec<u8>,
    /// Bytes of the body after which the connection ends.
    cut: usize,
    is_announced: bool,
    is_endless: bool,
}

impl Reply {
    fn new(status: u16, headers: &str, body: Vec<u8>) -> Reply {
        let (cut, headers) = (body.len(), headers.to_owned());
        Reply { status, headers, body, cut, is_announced: true, is_endless: false }
    }

    fn unknown() -> Reply {
        let errors = json!({"errors": [{"code": "MANIFEST_UNKNOWN", "message": "not here"}]});
        Reply::new(404, "", errors.to_string().into())
    }

    /// From byte `from` on, to byte `cut` of the whole.
    fn part(content: Vec<u8>, from: Option<usize>, cut: Option<usize>) -> Reply {
        let total = content.len();
        let start = from.unwrap_or(0).min(total);
        let ends = cut.unwrap_or(total).max(start) - start;
        let body = content[start..].to_vec();
        let mut reply = match from {
            Some(_) => {
                let last = total.saturating_sub(1);
                let range = format!("content-range: bytes {start}-{last}/{total}\r\n");
                Reply::new(206, &range, body)
            }
            None => Reply::new(200, "", body),
        };
        reply.cut = ends.min(reply.body.len());
        reply
    }

    async fn send(self, stream: &mut TcpStream, host: &str) -> std::io::Result<()> {
        let mut head = format!("HTTP/1.1 {} X\r\nconnection: close\r\n", self.status);
        head.push_str(&self.headers.replace("HOST", host));
        if self.is_announced && !self.is_endless {
            head.push_str(&format!("content-length: {}\r\n", self.body.len()));
        }
        head.push_str("\r\n");
        stream.write_all(head.as_bytes()).await?;
        stream.write_all(&self.body[..self.cut]).await?;
        if self.is_endless {
            let piece = [7; 1 << 16];
            for _ in 0..ENDLESS_BYTES / piece.len() {
                stream.write_all(&piece).await?;
            }
        }
        stream.shutdown().await
    }
}

pub struct Server {
    pub address: SocketAddr,
    store: Arc<Mutex<Store>>,
}

impl Server {
    pub async fn start(store: Store) -> Server {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let store = Arc::new(Mutex::new(store));
        let shared = store.clone();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(serve(stream, shared.clone(), address.to_string()));
            }
        });
        Server { address, store }
    }

    /// The same over TLS.
    pub async fn start_tls(
        store: Store,
        certificate: &str,
        key: &str,
        version: &'static rustls::SupportedProtocolVersion,
    ) -> Server {
        let plain = Server::start(store).await;
        let chain = cellwright_identity::tls::certificates("test", certificate).unwrap();
        let key = PrivateKeyDer::from_pem_slice(key.as_bytes()).unwrap();
        let config =
            rustls::ServerConfig::builder_with_provider(cellwright_identity::tls::provider())
                .with_protocol_versions(&[version])
                .unwrap()
                .with_no_client_auth()
                .with_single_cert(chain, key)
                .unwrap();
        let acceptor = TlsAcceptor::from(Arc::new(config));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (address, behind) = (listener.local_addr().unwrap(), plain.address);
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let acceptor = acceptor.clone();
                tokio::spawn(async move {
                    let mut outer = acceptor.accept(stream).await?;
                    let mut inner = TcpStream::connect(behind).await?;
                    copy_bidirectional(&mut outer, &mut inner).await
                });
            }
        });
        Server { address, ..plain }
    }

    pub fn store(&self) -> MutexGuard<'_, Store> {
        self.store.lock().unwrap()
    }

    /// The paths of all requests, with the range if there was one.
    pub fn requests(&self) -> Vec<String> {
        self.store().requests.iter().map(|(path, _)| path.clone()).collect()
    }

    /// The `Authorization` of every request.
    pub fn authorizations(&self) -> Vec<String> {
        self.store().requests.iter().map(|(_, authorization)| authorization.clone()).collect()
    }
}

async fn serve(
    mut stream: TcpStream,
    store: Arc<Mutex<Store>>,
    host: String,
) -> std::io::Result<()> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await?);
        // Another protocol is answered with an end.
        if head[0] != b'G' || head.len() > 1 << 16 {
            return Ok(());
        }
    }
    let head = String::from_utf8_lossy(&head).into_owned();
    let header = |name: &str| {
        let mut lines = head.lines().filter_map(|line| line.split_once(": "));
        lines.find(|(found, _)| found.eq_ignore_ascii_case(name)).map(|(_, value)| value.to_owned())
    };
    let path = head.split(' ').nth(1).unwrap_or_default().to_owned();
    let range = header("range");
    let from = range
        .as_ref()
        .and_then(|range| range.strip_prefix("bytes=")?.strip_suffix('-')?.parse::<usize>().ok());
    let reply = {
        let mut store = store.lock().unwrap();
        let reply = store.answer(&path, &header("authorization").unwrap_or_default(), from);
        if let (Some(range), Some(last)) = (range, store.requests.last_mut()) {
            last.0.push_str(&format!(" {range}"));
        }
        reply
    };
    reply.send(&mut stream, &host).await
}

/// A self-signed certificate for loopback, and its key.
pub fn authority() -> (String, String) {
    let names = vec!["127.0.0.1".to_owned(), "registry.test".to_owned()];
    let made = rcgen::generate_simple_self_signed(names).unwrap();
    (made.cert.pem(), made.signing_key.serialize_pem())
}

/// A proxy that forwards everything to one server.
pub struct FakeProxy {
    pub address: SocketAddr,
    heads: Arc<Mutex<Vec<String>>>,
}

impl FakeProxy {
    /// It requires `expected_login` as the `Proxy-Authorization`.
    pub async fn start(to: SocketAddr, expected_login: &'static str) -> FakeProxy {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let heads = Arc::new(Mutex::new(Vec::new()));
        let recorded = heads.clone();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(forward(stream, to, expected_login, recorded.clone()));
            }
        });
        FakeProxy { address, heads }
    }

    /// What it read of every connection.
    pub fn heads(&self) -> Vec<String> {
        self.heads.lock().unwrap().clone()
    }
}

async fn forward(
    mut stream: TcpStream,
    to: SocketAddr,
    expected_login: &str,
    heads: Arc<Mutex<Vec<String>>>,
) -> std::io::Result<()> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await?);
    }
    let head = String::from_utf8(head).unwrap();
    heads.lock().unwrap().push(head.clone());
    if !head
        .to_lowercase()
        .contains(&format!("proxy-authorization: {expected_login}").to_lowercase())
    {
        let rejection = b"HTTP/1.1 407 X\r\ncontent-length: 0\r\nconnection: close\r\n\r\n";
        return stream.write_all(rejection).await;
    }
    let mut inner = TcpStream::connect(to).await?;
    if head.starts_with("CONNECT ") {
        stream.write_all(b"HTTP/1.1 200 X\r\n\r\n").await?
    } else {
        inner.write_all(head.replace("http://registry.test", "").as_bytes()).await?
    }
    copy_bidirectional(&mut stream, &mut inner).await.map(drop)
}
