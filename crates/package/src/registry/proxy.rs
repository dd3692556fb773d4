//! The proxy between this machine and a registry, from the usual environment variables:
//! `HTTPS_PROXY`, `HTTP_PROXY`, `ALL_PROXY` and `NO_PROXY`, read by the rules that `hyper-util` has
//! from curl.
//!
//! A registry behind TLS is reached through a tunnel (`CONNECT`): the proxy learns its host name
//! and no more. It could read plain HTTP, so credentials for the registry are not sent then; the
//! proxy's own credentials, from its address, are sent to the proxy alone. Loopback is never
//! accessed through a proxy.

use super::error::{RegistryFailure, printable};
use super::http_client::{Address, handshake};
use http_body_util::Empty;
use hyper::header::{HOST, HeaderValue, PROXY_AUTHORIZATION};
use hyper::upgrade::Upgraded;
use hyper::{Request, Uri};
use hyper_util::client::proxy::matcher::Matcher;
use hyper_util::rt::TokioIo;
use std::fmt::Display;
use std::sync::Arc;
use tokio::net::TcpStream;

/// The proxies by target; the default has none.
#[derive(Clone, Debug, Default)]
pub struct Proxies(Option<Arc<Matcher>>);

/// The proxy for one address.
#[derive(Debug)]
pub(super) struct Proxy {
    host: String,
    port: u16,
    /// The proxy's own `Proxy-Authorization`.
    pub(super) authorization: Option<HeaderValue>,
}

impl Proxies {
    #[must_use]
    pub fn from_environment() -> Proxies {
        Proxies(Some(Arc::new(Matcher::from_env())))
    }

    #[cfg(test)]
    pub(super) fn all(proxy: &str, except: &str) -> Proxies {
        let matcher = Matcher::builder().all(proxy).no(except).build();
        Proxies(Some(Arc::new(matcher)))
    }

    /// # Errors
    /// When there is one with a protocol other than HTTP.
    pub(super) fn proxy_for(&self, address: &Address) -> Result<Option<Proxy>, RegistryFailure> {
        let Some(matcher) = self.0.as_ref().filter(|_| !address.is_loopback()) else {
            return Ok(None);
        };
        let uri = address.uri().map_err(|why| RegistryFailure::Untrue(why.to_string()))?;
        let Some(found) = matcher.intercept(&uri) else { return Ok(None) };
        let at = found.uri();
        let (Some("http"), Some(host)) = (at.scheme_str(), at.host()) else {
            let scheme = printable(at.scheme_str().unwrap_or_default());
            let why = format!("the proxy for it is a {scheme} one; allowed: http://HOST:PORT");
            return Err(RegistryFailure::Unreachable(why));
        };
        let host = host.trim_matches(['[', ']']).to_owned();
        let mut authorization = found.basic_auth().cloned();
        if let Some(value) = &mut authorization {
            value.set_sensitive(true);
        }
        Ok(Some(Proxy { host, port: at.port_u16().unwrap_or(80), authorization }))
    }
}

impl Proxy {
    pub(super) fn name(&self) -> String {
        format!("the proxy {}:{}", self.host, self.port)
    }

    fn unreachable(&self, why: &dyn Display) -> RegistryFailure {
        RegistryFailure::Unreachable(format!("{}: {why}", self.name()))
    }

    pub(super) async fn connect(&self) -> Result<TcpStream, RegistryFailure> {
        let stream = TcpStream::connect((self.host.as_str(), self.port)).await;
        let stream = stream.map_err(|why| self.unreachable(&why))?;
        stream.set_nodelay(true).map_err(|why| self.unreachable(&why))?;
        Ok(stream)
    }

    /// A connection to `target`, which is a host and a port, that the proxy forwards unread.
    pub(super) async fn tunnel(&self, target: &str) -> Result<TokioIo<Upgraded>, RegistryFailure> {
        let broke = |why: hyper::Error| self.unreachable(&why);
        let mut sender = handshake(self.connect().await?).await.map_err(broke)?;
        let untrue = |why: &dyn Display| RegistryFailure::Untrue(format!("{target}: {why}"));
        let uri = Uri::builder().authority(target).build().map_err(|why| untrue(&why))?;
        let host = HeaderValue::from_str(target).map_err(|why| untrue(&why))?;
        let mut request = Request::connect(uri).body(Empty::new()).map_err(|why| untrue(&why))?;
        request.headers_mut().insert(HOST, host);
        self.authorize(&mut request);
        let response = sender.send_request(request).await.map_err(broke)?;
        if !response.status().is_success() {
            let rejection = format!("it answers {} for {target}", response.status());
            return Err(self.unreachable(&rejection));
        }
        Ok(TokioIo::new(hyper::upgrade::on(response).await.map_err(broke)?))
    }

    pub(super) fn authorize<B>(&self, request: &mut Request<B>) {
        let own = self.authorization.clone();
        request.headers_mut().extend(own.map(|own| (PROXY_AUTHORIZATION, own)));
    }
}
