//! One request to a store, on a connection of its own: they are few, and far between.

use super::sign::Signed;
use crate::store::StoreError;
use bytes::Bytes;
use cellwright_identity::public_tls;
use cellwright_supervise::spawn_request;
use http_body_util::{BodyExt, Full, Limited};
use hyper::client::conn::http1;
use hyper::header::{CONTENT_LENGTH, HeaderMap, HeaderName, HeaderValue};
use hyper::{Method, Request, Uri};
use hyper_util::rt::TokioIo;
use rustls::pki_types::ServerName;
use std::path::Path;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// Of a request with its body, and of an answer with its own.
const EXCHANGE_TIMEOUT: Duration = Duration::from_secs(120);
/// Longest answer.
const MAX_ANSWER_BYTES: usize = 256 << 20;

/// The server of a store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Endpoint {
    tls: bool,
    /// Without brackets.
    host: String,
    port: u16,
}

pub(super) struct Answer {
    pub status: u16,
    pub body: Bytes,
    headers: HeaderMap,
}

impl Answer {
    pub fn is_success(&self) -> bool {
        (200..300).contains(&self.status)
    }

    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name)?.to_str().ok()
    }
}

impl Endpoint {
    pub fn parse(text: &str) -> Result<Endpoint, StoreError> {
        let read = || {
            let uri: Uri = text.parse().ok()?;
            let tls = match uri.scheme_str()? {
                "https" => true,
                "http" => false,
                _ => return None,
            };
            let authority = uri.authority()?;
            let plain = matches!(uri.path(), "" | "/") && uri.query().is_none();
            let host = authority.host().trim_matches(['[', ']']).to_owned();
            let port = authority.port_u16().unwrap_or(if tls { 443 } else { 80 });
            (plain && !authority.as_str().contains('@')).then_some(Endpoint { tls, host, port })
        };
        read().ok_or_else(|| {
            let allowed = "https://HOST[:PORT], or http:// on a network of your own";
            StoreError::Config(format!("archive.s3.endpoint is {text:?}; allowed: {allowed}"))
        })
    }

    /// As the `Host` header has it.
    pub fn authority(&self) -> String {
        let host =
            if self.host.contains(':') { format!("[{}]", self.host) } else { self.host.clone() };
        let usual = if self.tls { 443 } else { 80 };
        if self.port == usual { host } else { format!("{host}:{}", self.port) }
    }

    fn unreachable(&self, why: &dyn std::fmt::Display) -> StoreError {
        StoreError::Unreachable(format!("{}: {why}", self.authority()))
    }

    pub async fn send(
        &self,
        method: Method,
        signed: &Signed,
        content: Bytes,
        authority: Option<&Path>,
    ) -> Result<Answer, StoreError> {
        let mut request = Request::new(Full::new(content.clone()));
        *request.method_mut() = method;
        *request.uri_mut() = signed.target.parse().map_err(|why| self.unreachable(&why))?;
        let headers = request.headers_mut();
        for (name, value) in &signed.headers {
            let name = HeaderName::try_from(name).map_err(|why| self.unreachable(&why))?;
            let mut value = HeaderValue::try_from(value).map_err(|why| self.unreachable(&why))?;
            value.set_sensitive(name == hyper::header::AUTHORIZATION);
            headers.insert(name, value);
        }
        headers.insert(CONTENT_LENGTH, HeaderValue::from(content.len()));
        let stream = timeout(CONNECT_TIMEOUT, TcpStream::connect((self.host.as_str(), self.port)));
        let stream = stream.await.map_err(|_| self.late("no connection", CONNECT_TIMEOUT))?;
        let stream = stream.map_err(|why| self.unreachable(&why))?;
        if !self.tls {
            return self.exchange(stream, request).await;
        }
        let config =
            public_tls::client_config(authority.map(|path| ("archive.s3.authority", path)))
                .map_err(StoreError::Config)?;
        let name = ServerName::try_from(self.host.clone()).map_err(|why| self.unreachable(&why))?;
        let secured = timeout(CONNECT_TIMEOUT, TlsConnector::from(config).connect(name, stream));
        let secured = secured.await.map_err(|_| self.late("no handshake", CONNECT_TIMEOUT))?;
        self.exchange(secured.map_err(|why| self.unreachable(&why))?, request).await
    }

    fn late(&self, what: &str, limit: Duration) -> StoreError {
        self.unreachable(&format!("{what} within {} s", limit.as_secs()))
    }

    async fn exchange<S>(
        &self,
        stream: S,
        request: Request<Full<Bytes>>,
    ) -> Result<Answer, StoreError>
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let work = async {
            let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
            // Ends when the sender is dropped; its errors reach the exchange.
            spawn_request("a connection to the archive", async move {
                drop(connection.await);
            });
            let response = sender.send_request(request).await?;
            let (parts, body) = response.into_parts();
            Ok::<_, hyper::Error>((parts, Limited::new(body, MAX_ANSWER_BYTES).collect().await))
        };
        let done = timeout(EXCHANGE_TIMEOUT, work).await;
        let done = done.map_err(|_| self.late("no answer", EXCHANGE_TIMEOUT))?;
        let (parts, body) = done.map_err(|why| self.unreachable(&why))?;
        let body = body.map_err(|why| self.unreachable(&why))?.to_bytes();
        Ok(Answer { status: parts.status.as_u16(), body, headers: parts.headers })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_endpoint_is_a_server_and_no_more() {
        let authority = |text: &str| Endpoint::parse(text).map(|found| found.authority());
        for (text, expected) in [
            ("https://s3.example", "s3.example"),
            ("https://s3.example:443/", "s3.example"),
            ("http://127.0.0.1:9000", "127.0.0.1:9000"),
            ("http://[::1]:9000", "[::1]:9000"),
        ] {
            assert_eq!(authority(text).unwrap(), expected);
        }
        for bad in ["s3.example", "ftp://a", "https://a/b", "https://u@a", "https://a/?x", ""] {
            let error = authority(bad).unwrap_err().to_string();
            assert!(error.starts_with("archive.s3.endpoint is "), "{error}");
        }
    }
}
