//! The HTTP client for registries: one request, and its redirects.
//!
//! Every request has a connection of its own: an image takes a handful of them, most of which are
//! long downloads. A few redirects are followed; credentials stay with the server they were meant
//! for, since a registry redirects to storage of others.
//!
//! Plain HTTP is for loopback, and by option. A registry elsewhere cannot redirect us to our own
//! loopback either: servers there take callers for local ones. Where a proxy is in between, it
//! resolves the names, and it has to make that check.

use super::error::{RegistryFailure, printable};
use super::proxy::{Proxies, Proxy};
use super::reference::split_host;
use bytes::Bytes;
use http_body_util::{BodyExt, Empty};
use hyper::body::Incoming;
use hyper::client::conn::http1::{self, SendRequest};
use hyper::header::{
    ACCEPT_ENCODING, AUTHORIZATION, HOST, HeaderMap, HeaderValue, LOCATION, USER_AGENT,
};
use hyper::{Request, Response, StatusCode, Uri};
use hyper_util::rt::TokioIo;
use rustls::pki_types::ServerName;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;

/// Real ones redirect once or twice.
const MAX_REDIRECTS: usize = 5;
const MAX_ADDRESS: usize = 16 << 10;

/// Timeouts. None of them depends on the size of an image.
#[derive(Clone, Copy, Debug)]
pub struct Timeouts {
    pub connect: Duration,
    /// Until a response begins.
    pub answer: Duration,
    /// Between two pieces of a response.
    pub idle: Duration,
    /// Before the second attempt; longer before each further one.
    pub backoff: Duration,
}

impl Default for Timeouts {
    fn default() -> Timeouts {
        Timeouts {
            connect: Duration::from_secs(10),
            answer: Duration::from_secs(60),
            idle: Duration::from_secs(30),
            backoff: Duration::from_millis(500),
        }
    }
}

/// The target of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Address {
    pub(super) tls: bool,
    /// In lower case, without brackets.
    pub(super) host: String,
    port: u16,
    path: String,
}

impl Address {
    pub(super) fn new(tls: bool, authority: &str, path: &str) -> Option<Address> {
        let (host, port) = split_host(authority)?;
        let port = port.unwrap_or(if tls { 443 } else { 80 });
        Some(Address { tls, host: host.to_ascii_lowercase(), port, path: path.to_owned() })
    }

    /// An untrusted `http` or `https` address.
    pub(super) fn parse(text: &str) -> Option<Address> {
        let uri: Uri = text.parse().ok().filter(|_| text.len() <= MAX_ADDRESS)?;
        let tls = match uri.scheme_str()? {
            "https" => true,
            "http" => false,
            _ => return None,
        };
        let authority = uri.authority()?.as_str();
        if authority.contains('@') {
            return None;
        }
        let path = uri.path_and_query().map_or("/", |path| path.as_str());
        Address::new(tls, authority, path)
    }

    /// Where a redirect from here leads.
    fn redirect(&self, to: &str) -> Option<Address> {
        let scheme = if self.tls { "https" } else { "http" };
        match to {
            _ if to.len() > MAX_ADDRESS => None,
            _ if to.starts_with("//") => Address::parse(&format!("{scheme}:{to}")),
            _ if to.starts_with('/') => {
                let path: Uri = to.parse().ok()?;
                Some(Address { path: path.path_and_query()?.as_str().to_owned(), ..self.clone() })
            }
            _ => Address::parse(to),
        }
    }

    pub(super) fn with_path(&self, path: &str) -> Address {
        Address { path: path.to_owned(), ..self.clone() }
    }

    /// With `query` added to its query, which begins with a question mark.
    pub(super) fn with_query(&self, query: &str) -> Address {
        let path = match (self.path.contains('?'), query.strip_prefix('?')) {
            (true, Some(more)) => format!("{}&{more}", self.path),
            _ => format!("{}{query}", self.path),
        };
        Address { path, ..self.clone() }
    }

    /// The absolute form, for a proxy.
    pub(super) fn uri(&self) -> Result<Uri, hyper::http::uri::InvalidUri> {
        let scheme = if self.tls { "https" } else { "http" };
        format!("{scheme}://{}{}", self.authority(), self.path).parse()
    }

    /// Host and port, the usual one too.
    fn target(&self) -> String {
        if self.host.contains(':') {
            format!("[{}]:{}", self.host, self.port)
        } else {
            format!("{}:{}", self.host, self.port)
        }
    }

    pub(super) fn is_loopback(&self) -> bool {
        is_loopback(&self.host)
    }

    fn same_server(&self, other: &Address) -> bool {
        (self.tls, &self.host, self.port) == (other.tls, &other.host, other.port)
    }

    pub(super) fn authority(&self) -> String {
        let usual = if self.tls { 443 } else { 80 };
        let host =
            if self.host.contains(':') { format!("[{}]", self.host) } else { self.host.clone() };
        if self.port == usual { host } else { format!("{host}:{}", self.port) }
    }
}

pub(super) fn is_loopback(host: &str) -> bool {
    host.trim_end_matches('.').eq_ignore_ascii_case("localhost")
        || host.parse::<IpAddr>().is_ok_and(is_internal_address)
}

/// Whether an address is this machine itself: connecting to the unspecified address does so too.
fn is_internal_address(address: IpAddr) -> bool {
    let address = address.to_canonical();
    address.is_loopback() || address.is_unspecified()
}

/// Names the target of the redirect.
fn internal_address_error(address: &Address) -> RegistryFailure {
    let server = address.authority();
    RegistryFailure::Untrue(format!(
        "it leads to {server}, which is this machine and not the registry's"
    ))
}

/// Why there is no response.
#[derive(Debug)]
pub(super) enum RequestFault {
    /// The connection broke; another may not.
    ConnectionLost(String),
    /// The server is overloaded, or says so.
    Retryable(String),
    Final(RegistryFailure),
}

/// A response whose body is still arriving.
pub(super) struct Answer {
    pub(super) status: StatusCode,
    pub(super) headers: HeaderMap,
    /// Whether it comes from the requested server, and not from the target of a redirect.
    pub(super) is_from_registry: bool,
    body: Incoming,
    idle: Duration,
    server: String,
}

impl Answer {
    /// The next piece; none at the end.
    pub(super) async fn piece(&mut self) -> Result<Option<Bytes>, RequestFault> {
        loop {
            let broke =
                |why: String| RequestFault::ConnectionLost(format!("{}: {why}", self.server));
            let frame = match timeout(self.idle, self.body.frame()).await {
                Ok(None) => return Ok(None),
                Ok(Some(frame)) => frame.map_err(|why| broke(why.to_string()))?,
                Err(_) => {
                    let seconds = self.idle.as_secs();
                    return Err(broke(format!("nothing came for {seconds} s")));
                }
            };
            if let Ok(data) = frame.into_data() {
                return Ok(Some(data));
            }
        }
    }

    /// All of it, if it is no longer than `most` bytes.
    pub(super) async fn whole(&mut self, most: usize) -> Result<Bytes, RequestFault> {
        let mut all = Vec::new();
        while let Some(piece) = self.piece().await? {
            if all.len() + piece.len() > most {
                let why = format!("{} answers with more than {most} bytes", self.server);
                return Err(RequestFault::Final(RegistryFailure::Untrue(why)));
            }
            all.extend_from_slice(&piece);
        }
        Ok(all.into())
    }
}

/// The configuration of connections.
pub(super) struct HttpClient {
    pub(super) tls: Arc<rustls::ClientConfig>,
    /// Whether hosts beyond loopback may be accessed over plain HTTP.
    pub(super) insecure_http: bool,
    /// The registry's, in lower case: it may be on this machine, under a host name of its own.
    pub(super) host: String,
    /// Whether the registry itself is on this machine.
    pub(super) is_local: bool,
    pub(super) proxies: Proxies,
    pub(super) times: Timeouts,
}

impl HttpClient {
    /// Sends a request and follows redirects. `authorization` is sent to the server at `address`
    /// alone.
    pub(super) async fn get(
        &self,
        address: &Address,
        headers: &HeaderMap,
        authorization: Option<&HeaderValue>,
    ) -> Result<Answer, RequestFault> {
        let mut at = address.clone();
        let mut authorization = authorization;
        let mut is_from_registry = true;
        for _ in 0..=MAX_REDIRECTS {
            self.check(&at).map_err(RequestFault::Final)?;
            let response = self.send_once(&at, headers, authorization).await?;
            if !is_redirect(response.status()) {
                let (parts, body) = response.into_parts();
                let (status, headers) = (parts.status, parts.headers);
                let (idle_timeout, server) = (self.times.idle, at.authority());
                return Ok(Answer {
                    status,
                    headers,
                    is_from_registry,
                    body,
                    idle: idle_timeout,
                    server,
                });
            }
            let to = response.headers().get(LOCATION).and_then(|to| to.to_str().ok());
            let to = to.unwrap_or_default();
            let next = at.redirect(to).ok_or_else(|| {
                let (from, to) = (at.authority(), printable(to));
                RequestFault::Final(RegistryFailure::Untrue(format!(
                    "{from} redirects to {to:?}, no web address"
                )))
            })?;
            if !next.same_server(&at) {
                (authorization, is_from_registry) = (None, false);
            }
            at = next;
        }
        let why = format!("{} redirects more than {MAX_REDIRECTS} times", address.authority());
        Err(RequestFault::Final(RegistryFailure::Untrue(why)))
    }

    fn check(&self, address: &Address) -> Result<(), RegistryFailure> {
        let is_loopback = address.is_loopback();
        if is_loopback && !self.is_local {
            return Err(internal_address_error(address));
        }
        if address.tls || is_loopback || self.insecure_http {
            Ok(())
        } else {
            Err(RegistryFailure::PlainText { host: address.authority() })
        }
    }

    async fn send_once(
        &self,
        address: &Address,
        headers: &HeaderMap,
        authorization: Option<&HeaderValue>,
    ) -> Result<Response<Incoming>, RequestFault> {
        let server = address.authority();
        let timeout_message =
            |what: &str, limit: Duration| format!("{server}: {what} {} s", limit.as_secs());
        let proxy = self.proxies.proxy_for(address).map_err(RequestFault::Final)?;
        let dialled = match timeout(self.times.connect, self.dial(address, proxy.as_ref())).await {
            Ok(dialled) => dialled,
            Err(_) => Err(RegistryFailure::Unreachable(timeout_message(
                "no connection within",
                self.times.connect,
            ))),
        };
        let mut sender = dialled.map_err(RequestFault::Final)?;
        let mut request = Request::get(&address.path).body(Empty::new()).map_err(|why| {
            RequestFault::Final(RegistryFailure::Untrue(format!("{server}: {why}")))
        })?;
        *request.headers_mut() = headers.clone();
        if let Some(proxy) = proxy.filter(|_| !address.tls) {
            add_proxy_headers(&proxy, &mut request, address, authorization)
                .map_err(RequestFault::Final)?;
        }
        let host = HeaderValue::from_str(&server).map_err(|why| {
            RequestFault::Final(RegistryFailure::Untrue(format!("{server}: {why}")))
        })?;
        let own = request.headers_mut();
        own.insert(HOST, host);
        own.insert(USER_AGENT, HeaderValue::from_static("cellwright"));
        // Digests are of the bytes as they are stored.
        own.insert(ACCEPT_ENCODING, HeaderValue::from_static("identity"));
        if let Some(authorization) = authorization {
            own.insert(AUTHORIZATION, authorization.clone());
        }
        match timeout(self.times.answer, sender.send_request(request)).await {
            Ok(answered) => {
                answered.map_err(|why| RequestFault::ConnectionLost(format!("{server}: {why}")))
            }
            Err(_) => Err(RequestFault::ConnectionLost(timeout_message(
                "no answer within",
                self.times.answer,
            ))),
        }
    }

    async fn dial(
        &self,
        address: &Address,
        proxy: Option<&Proxy>,
    ) -> Result<SendRequest<Empty<Bytes>>, RegistryFailure> {
        let broke = |why| RegistryFailure::Unreachable(format!("{}: {why}", address.authority()));
        match (proxy, address.tls) {
            (None, false) => handshake(self.connect(address).await?).await.map_err(broke),
            (Some(proxy), false) => handshake(proxy.connect().await?).await.map_err(broke),
            (None, true) => self.connect_tls(address, self.connect(address).await?).await,
            (Some(proxy), true) => {
                self.connect_tls(address, proxy.tunnel(&address.target()).await?).await
            }
        }
    }

    async fn connect(&self, address: &Address) -> Result<TcpStream, RegistryFailure> {
        let server = address.authority();
        let unreachable =
            |why: &dyn std::fmt::Display| RegistryFailure::Unreachable(format!("{server}: {why}"));
        let stream = TcpStream::connect((address.host.as_str(), address.port)).await;
        let stream = stream.map_err(|why| unreachable(&why))?;
        stream.set_nodelay(true).map_err(|why| unreachable(&why))?;
        // A name can resolve to any address.
        let peer = stream.peer_addr().map_err(|why| unreachable(&why))?;
        if is_internal_address(peer.ip()) && !self.is_local && address.host != self.host {
            return Err(internal_address_error(address));
        }
        Ok(stream)
    }

    async fn connect_tls<S>(
        &self,
        address: &Address,
        stream: S,
    ) -> Result<SendRequest<Empty<Bytes>>, RegistryFailure>
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let server = address.authority();
        let unreachable =
            |why: &dyn std::fmt::Display| RegistryFailure::Unreachable(format!("{server}: {why}"));
        let name = ServerName::try_from(address.host.clone()).map_err(|why| unreachable(&why))?;
        let connector = TlsConnector::from(self.tls.clone());
        let stream = connector.connect(name, stream).await;
        let stream =
            stream.map_err(|why| RegistryFailure::Untrusted(format!("{server}: {why}")))?;
        handshake(stream).await.map_err(|why| unreachable(&why))
    }
}

/// The request as a plain HTTP proxy takes it. The proxy reads all of it, so credentials for the
/// registry are not sent this way.
fn add_proxy_headers(
    proxy: &Proxy,
    request: &mut Request<Empty<Bytes>>,
    address: &Address,
    authorization: Option<&HeaderValue>,
) -> Result<(), RegistryFailure> {
    if authorization.is_some() {
        let host = format!("{} through {}", address.authority(), proxy.name());
        return Err(RegistryFailure::PlainCredentials { host });
    }
    *request.uri_mut() = address.uri().map_err(|why| RegistryFailure::Untrue(why.to_string()))?;
    proxy.authorize(request);
    Ok(())
}

pub(super) async fn handshake<S>(stream: S) -> hyper::Result<SendRequest<Empty<Bytes>>>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let (sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
    // Ends when the sender and the response, or the tunnel it became, are dropped; its errors reach
    // the reader of either.
    tokio::spawn(connection.with_upgrades());
    Ok(sender)
}

fn is_redirect(status: StatusCode) -> bool {
    matches!(status.as_u16(), 301 | 302 | 303 | 307 | 308)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_others_are_read_and_redirects_resolved() {
        let at = Address::parse("https://Registry.example/v2/a?b=c").unwrap();
        assert_eq!((at.tls, at.host.as_str(), at.port), (true, "registry.example", 443));
        for (to, authority, path) in [
            ("/x?y", "registry.example", "/x?y"),
            ("//cdn.example/z", "cdn.example", "/z"),
            ("https://[::1]:5000/q", "[::1]:5000", "/q"),
        ] {
            let to = at.redirect(to).unwrap();
            assert_eq!((to.authority().as_str(), to.path.as_str()), (authority, path));
        }
        for bad in ["", "x", "ftp://a/b", "file:///etc/passwd", "https://u:p@a/b", "http://a:x/"] {
            assert_eq!(at.redirect(bad), None, "{bad}");
        }
        let other_port = Address::parse("https://registry.example:444/").unwrap();
        assert!(!at.same_server(&other_port), "another port is another server");
    }

    #[tokio::test]
    async fn a_registry_elsewhere_cannot_send_us_to_ourselves() {
        let line = |host: &str, is_local| HttpClient {
            tls: cellwright_identity::public_tls::client_config(None).unwrap(),
            insecure_http: true,
            host: host.to_owned(),
            is_local,
            proxies: Proxies::default(),
            times: Timeouts::default(),
        };
        let (far, near) = (line("registry.example", false), line("localhost", true));
        for host in
            ["127.0.0.1", "[::1]", "[::ffff:127.0.0.1]", "0.0.0.0", "LOCALHOST", "localhost."]
        {
            for scheme in ["http", "https"] {
                let to = Address::parse(&format!("{scheme}://{host}:5000/v2/")).unwrap();
                assert!(matches!(far.check(&to), Err(RegistryFailure::Untrue(_))), "{to:?}");
                assert!(near.check(&to).is_ok(), "{to:?}");
            }
        }
        let elsewhere = Address::parse("https://storage.example/a").unwrap();
        assert!(far.check(&elsewhere).is_ok());
        // A host that turns out to be this machine only once it is connected; nothing is sent to
        // it.
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let named = Address::new(false, &format!("127.1:{port}"), "/").unwrap();
        assert!(far.check(&named).is_ok());
        assert!(matches!(far.dial(&named, None).await, Err(RegistryFailure::Untrue(_))));
        assert!(near.dial(&named, None).await.is_ok());
        assert!(
            line("127.1", false).dial(&named, None).await.is_ok(),
            "the one that was asked for"
        );
    }
}
