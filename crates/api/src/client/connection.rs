//! Connection pool for masters. HTTP/1.1 with one request at a time on each connection: a slow
//! answer delays no other, and a dead connection costs one retry.
//!
//! Rejected: multiplexing over HTTP/2. It saves sockets that a cell has plenty of, and couples all
//! calls of a part to the fate and the flow control of one connection. Rejected too: an existing
//! pool, see `docs/decisions/0020-own-connection-pool.md`.

use super::content::{Outgoing, Payload};
use super::{Call, ClientError, Received, bearer};
use bytes::Bytes;
use cellwright_identity::dev_token;
use http_body_util::{BodyExt, Limited};
use hyper::body::Incoming;
use hyper::client::conn::http1::{self, SendRequest};
use hyper::header::{AUTHORIZATION, CONTENT_LENGTH, HOST, HeaderValue};
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use rustls::pki_types::ServerName;
use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;

/// Largest answer of a master that is read.
const MAX_ANSWER: usize = 1 << 30;
/// Largest error body of a server whose answers have a limit.
const MAX_ERROR_BODY: usize = 64 << 10;

pub(super) type Sender = SendRequest<Outgoing>;

/// Why there is no answer.
#[derive(Debug)]
pub(crate) struct TransportError {
    /// Whether the other side may have received the request.
    pub sent: bool,
    /// The connection was refused.
    pub refused: bool,
    pub why: String,
}

impl TransportError {
    pub fn before_sending(why: String) -> TransportError {
        TransportError { sent: false, refused: false, why }
    }

    pub fn after_sending(address: &str, why: impl std::fmt::Display) -> TransportError {
        TransportError { sent: true, refused: false, why: format!("{address}: {why}") }
    }

    pub fn into_unreachable(self, tried: u32) -> ClientError {
        ClientError::Unreachable { tried, last: self.why }
    }

    pub fn into_error(self, tried: u32) -> ClientError {
        if self.sent { ClientError::Unknown(self.why) } else { self.into_unreachable(tried) }
    }
}

pub(super) struct ConnectionPool {
    tls: Option<TlsConnector>,
    /// Requests carry the token that a dev master has published for this account. It is looked up
    /// for each connection, since the master may be started after its clients.
    uses_dev_token: bool,
    connect_timeout: Duration,
    max_idle: usize,
    /// By the master's address as it was given.
    idle: Mutex<BTreeMap<String, Vec<Connection>>>,
    /// Whether any master was ever reached.
    connected: AtomicBool,
}

/// An open connection with the token that its master had published when it was dialled.
struct Connection {
    sender: Sender,
    token: Option<HeaderValue>,
}

impl ConnectionPool {
    pub fn new(
        tls: Option<Arc<rustls::ClientConfig>>,
        uses_dev_token: bool,
        connect_timeout: Duration,
        max_idle: usize,
    ) -> ConnectionPool {
        let tls = tls.map(TlsConnector::from);
        let connected = AtomicBool::new(false);
        ConnectionPool {
            tls,
            uses_dev_token,
            connect_timeout,
            max_idle,
            idle: Mutex::default(),
            connected,
        }
    }

    pub fn has_connected(&self) -> bool {
        self.connected.load(Ordering::Relaxed)
    }

    /// Sends the call and reads the whole answer; the body of a streamed one is left to the caller.
    pub async fn exchange(&self, address: &str, call: &Call) -> Result<Received, TransportError> {
        let (response, connection) = self.send(address, call).await?;
        let (parts, body) = response.into_parts();
        let (status, headers) = (parts.status, parts.headers);
        if call.streamed && status.is_success() {
            return Ok(Received { status, headers, body: Bytes::new(), open: Some(body) });
        }
        let limit = match call.max_bytes {
            Some(_) if !status.is_success() => MAX_ERROR_BODY,
            Some(most) => most,
            None => MAX_ANSWER,
        };
        let collected = Limited::new(body, limit).collect().await;
        let body = collected.map_err(|e| TransportError::after_sending(address, e))?.to_bytes();
        // A token that is refused is looked up again with a new connection.
        if status != StatusCode::UNAUTHORIZED {
            self.put_idle(address, connection);
        }
        Ok(Received { status, headers, body, open: None })
    }

    /// Sends the call; the body is read by the caller, on a connection of its own.
    pub async fn open_stream(
        &self,
        address: &str,
        call: &Call,
    ) -> Result<Response<Incoming>, TransportError> {
        Ok(self.send(address, call).await?.0)
    }

    /// The address to dial for a master, and the token. A token that was found goes only to the
    /// very address that it was published for: another listener of the same host name must not see
    /// it.
    pub fn dial_target(&self, master: &str) -> (String, Option<HeaderValue>) {
        match Some(master).filter(|_| self.uses_dev_token).and_then(dev_token::find_token) {
            Some((at, token)) => (at.to_string(), bearer(&token)),
            None => (master.to_owned(), None),
        }
    }

    /// A dev master that starts listens before it publishes its token, and one that is started anew
    /// at an address has another: a request refused for want of the token that is published by now
    /// had no effect and is sent once more, with that.
    async fn send(
        &self,
        master: &str,
        call: &Call,
    ) -> Result<(Response<Incoming>, Connection), TransportError> {
        let (response, connection) = self.send_once(master, call).await?;
        if response.status() == StatusCode::UNAUTHORIZED {
            let published = self.dial_target(master).1;
            if published.is_some() && published != connection.token {
                self.lock().remove(master);
                return self.send_once(master, call).await;
            }
        }
        Ok((response, connection))
    }

    async fn send_once(
        &self,
        master: &str,
        call: &Call,
    ) -> Result<(Response<Incoming>, Connection), TransportError> {
        let mut request = request(master, call).map_err(TransportError::before_sending)?;
        // An idle connection may have been closed meanwhile: then the request comes back unsent.
        while let Some(mut connection) = self.take_idle(master) {
            if connection.sender.ready().await.is_err() {
                continue;
            }
            authorize(&mut request, call, connection.token.as_ref());
            match connection.sender.try_send_request(request).await {
                Ok(response) => return Ok((response, connection)),
                Err(mut error) => match error.take_message() {
                    Some(unsent) => request = unsent,
                    None => return Err(TransportError::after_sending(master, error.error())),
                },
            }
        }
        let (address, token) = self.dial_target(master);
        let mut sender = self.dial_with_timeout(&address).await?;
        authorize(&mut request, call, token.as_ref());
        match sender.try_send_request(request).await {
            Ok(response) => Ok((response, Connection { sender, token })),
            Err(mut error) => {
                let sent = error.take_message().is_none();
                Err(TransportError {
                    sent,
                    ..TransportError::before_sending(format!("{address}: {}", error.error()))
                })
            }
        }
    }

    /// Opens a new connection.
    pub async fn dial_with_timeout(&self, address: &str) -> Result<Sender, TransportError> {
        match timeout(self.connect_timeout, self.dial(address)).await {
            Ok(result) => {
                self.connected.fetch_or(result.is_ok(), Ordering::Relaxed);
                result
            }
            Err(_) => {
                Err(TransportError::before_sending(format!("{address}: connecting took too long")))
            }
        }
    }

    async fn dial(&self, address: &str) -> Result<Sender, TransportError> {
        let say = |what: &str, why: &dyn std::fmt::Display| {
            TransportError::before_sending(format!("{address}: {what}: {why}"))
        };
        let stream = TcpStream::connect(address).await.map_err(|e| {
            let refused = e.kind() == ErrorKind::ConnectionRefused;
            TransportError { refused, ..say("cannot connect", &e) }
        })?;
        stream.set_nodelay(true).map_err(|e| say("cannot set up the socket", &e))?;
        match &self.tls {
            None => handshake(stream).await,
            Some(tls) => {
                let (host, _) = split(address).ok_or_else(|| say("no port", &"host:port"))?;
                let name = ServerName::try_from(host.to_owned())
                    .map_err(|e| say("no host name or address", &e))?;
                let stream =
                    tls.connect(name, stream).await.map_err(|e| say("TLS handshake", &e))?;
                handshake(stream).await
            }
        }
        .map_err(|e| say("HTTP handshake", &e))
    }

    fn take_idle(&self, master: &str) -> Option<Connection> {
        self.lock().get_mut(master)?.pop()
    }

    fn put_idle(&self, master: &str, connection: Connection) {
        if connection.sender.is_closed() {
            return;
        }
        let mut idle = self.lock();
        let list = idle.entry(master.to_owned()).or_default();
        if list.len() < self.max_idle {
            list.push(connection);
        }
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, Vec<Connection>>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Gives the request the token of the connection it is sent on, and of no other that was tried.
fn authorize(request: &mut Request<Outgoing>, call: &Call, token: Option<&HeaderValue>) {
    match token.or_else(|| call.headers.get(AUTHORIZATION)) {
        Some(token) => request.headers_mut().insert(AUTHORIZATION, token.clone()),
        None => request.headers_mut().remove(AUTHORIZATION),
    };
}

pub(super) async fn handshake<S>(stream: S) -> hyper::Result<Sender>
where
    S: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin + Send + 'static,
{
    let (sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
    // Ends when the sender is dropped; its errors reach the call that waits for an answer.
    tokio::spawn(connection.with_upgrades());
    Ok(sender)
}

pub(super) fn request(address: &str, call: &Call) -> Result<Request<Outgoing>, String> {
    let mut request = Request::builder()
        .method(call.method.clone())
        .uri(&call.path)
        .body(call.body.outgoing())
        .map_err(|e| format!("{}: {e}", call.path))?;
    *request.headers_mut() = call.headers.clone();
    let host = HeaderValue::from_str(address).map_err(|e| format!("{address}: {e}"))?;
    request.headers_mut().insert(HOST, host);
    if let Payload::File { bytes, .. } = &call.body {
        request.headers_mut().insert(CONTENT_LENGTH, HeaderValue::from(*bytes));
    }
    Ok(request)
}

/// The address without scheme and trailing slash.
pub(super) fn bare_address(address: &str) -> &str {
    let bare = address.strip_prefix("https://").or_else(|| address.strip_prefix("http://"));
    bare.unwrap_or(address).trim_end_matches('/')
}

/// Host and port; the brackets of an IPv6 address are not part of the host.
pub(super) fn split(address: &str) -> Option<(&str, u16)> {
    let (host, port) = address.rsplit_once(':')?;
    let host = host.strip_prefix('[').and_then(|h| h.strip_suffix(']')).unwrap_or(host);
    (!host.is_empty()).then_some((host, port.parse().ok()?))
}

/// Plain text is for loopback alone: a token must not cross a network in the clear.
pub(super) fn check_address(address: &str, tls: bool) -> Result<(), String> {
    let Some((host, _)) = split(address) else {
        return Err(format!("master {address:?} is not valid; allowed: host:port"));
    };
    let loopback =
        host == "localhost" || host.parse::<IpAddr>().is_ok_and(|address| address.is_loopback());
    if tls || loopback {
        Ok(())
    } else {
        Err(format!("master {address:?} without TLS; allowed: loopback addresses"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hyper::Method;
    use hyper::header::HeaderMap;
    use std::sync::atomic::AtomicUsize;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;

    /// Answers 401 without a token and 200 with one, and counts the connections it accepts.
    async fn serve(listener: TcpListener, accepted: Arc<AtomicUsize>) {
        loop {
            let (stream, _) = listener.accept().await.expect("a connection");
            accepted.fetch_add(1, Ordering::Relaxed);
            tokio::spawn(serve_connection(stream));
        }
    }

    async fn serve_connection(mut stream: TcpStream) {
        let mut seen = Vec::new();
        while stream.read_buf(&mut seen).await.is_ok_and(|bytes| bytes > 0) {
            if !seen.ends_with(b"\r\n\r\n") {
                continue;
            }
            let has_token = seen.windows(21).any(|at| at == b"authorization: Bearer");
            let status = if has_token { "200 OK" } else { "401 Unauthorized" };
            let answer = format!("HTTP/1.1 {status}\r\ncontent-length: 0\r\n\r\n");
            stream.write_all(answer.as_bytes()).await.expect("an answer");
            seen.clear();
        }
    }

    fn get_call() -> Call {
        Call {
            method: Method::GET,
            path: "/".to_owned(),
            headers: HeaderMap::new(),
            body: Payload::Whole(Bytes::new()),
            streamed: false,
            repeatable: true,
            attempt_timeout: Duration::from_secs(10),
            deadline: Duration::from_secs(10),
            max_bytes: None,
        }
    }

    /// Looking for a token costs root a walk through the kernel's table of connections: a machine
    /// of thousands of virtual agents that did so at each poll did nothing else.
    #[tokio::test]
    async fn a_token_is_looked_up_once_for_a_connection_and_again_when_it_is_refused() {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a listener");
        let address = listener.local_addr().expect("an address");
        let accepted = Arc::new(AtomicUsize::new(0));
        tokio::spawn(serve(listener, accepted.clone()));
        let pool = ConnectionPool::new(None, true, Duration::from_secs(10), 4);
        let call = get_call();
        let master = address.to_string();
        let status = async || pool.exchange(&master, &call).await.expect("an answer").status;
        assert_eq!(status().await, 401);
        let data = std::env::temp_dir().join(format!("cellwright-token-{}", std::process::id()));
        std::fs::create_dir_all(&data).expect("a folder");
        let published = dev_token::PublishedToken::publish(&data, address).expect("a token");
        assert_eq!(status().await, 200, "found with the next connection");
        drop(published);
        assert_eq!(status().await, 200, "not looked up again");
        assert_eq!(accepted.load(Ordering::Relaxed), 2);
        std::fs::remove_dir_all(&data).expect("removed");
    }

    /// A client that finds no token, and connects while the master makes one, is not refused.
    #[tokio::test]
    async fn a_token_published_while_a_request_waits_is_used_for_it() {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a listener");
        let address = listener.local_addr().expect("an address");
        let pool = ConnectionPool::new(None, true, Duration::from_secs(10), 4);
        let call = get_call();
        let master = address.to_string();
        let data = std::env::temp_dir().join(format!("cellwright-late-{}", std::process::id()));
        std::fs::create_dir_all(&data).expect("a folder");
        let started = async {
            // The client has connected, so it has looked for a token and found none.
            let (stream, _) = listener.accept().await.expect("a connection");
            let published = dev_token::PublishedToken::publish(&data, address).expect("a token");
            tokio::spawn(serve_connection(stream));
            tokio::spawn(serve(listener, Arc::default()));
            published
        };
        let (received, _published) = tokio::join!(pool.exchange(&master, &call), started);
        assert_eq!(received.expect("an answer").status, 200);
        std::fs::remove_dir_all(&data).expect("removed");
    }

    #[test]
    fn plain_text_stays_on_the_machine() {
        for (address, tls, good) in [
            ("127.0.0.1:7070", false, true),
            ("[::1]:7070", false, true),
            ("localhost:7070", false, true),
            ("10.0.0.1:7070", false, false),
            ("10.0.0.1:7070", true, true),
            ("cell.example:7070", false, false),
            ("cell.example", true, false),
            (":7070", true, false),
            ("a:b", true, false),
        ] {
            assert_eq!(check_address(address, tls).is_ok(), good, "{address} tls {tls}");
        }
        assert_eq!(bare_address("https://m1:7070/"), "m1:7070");
    }
}
