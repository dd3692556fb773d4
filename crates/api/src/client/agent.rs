//! Client of agents: masters dial them for the output of tasks and for exec sessions, and agents
//! dial each other for packages. An agent is identified by its machine's name in its certificate,
//! not by a host name: the address comes from the agent itself, and is not trusted.

use super::connection::{self, Sender};
use super::outcome::{NextStep, classify};
use super::session::{SessionStream, complete_upgrade, request_upgrade};
use super::{Call, ClientError, Received};
use bytes::Bytes;
use cellwright_cell::name::Name;
use cellwright_identity::dev_token;
use cellwright_identity::secret::Secret;
use cellwright_identity::spiffe::{Identity, Part};
use cellwright_identity::tls::{self, CertificateResolver};
use http_body_util::{BodyExt, Limited};
use hyper::Method;
use hyper::header::AUTHORIZATION;
use rustls::pki_types::ServerName;
use serde::de::DeserializeOwned;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;

/// Timeout for connecting to an agent.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Largest answer of an agent to a request without a byte limit of its own: a chunk of output.
const MAX_ANSWER: usize = 16 << 20;
/// Largest error body, whatever was requested.
const MAX_ERROR_BODY: usize = 64 << 10;

/// Dials agents, and knows how to verify them.
#[derive(Clone)]
pub struct AgentDialler {
    /// Absent: plain text, to loopback addresses only.
    credentials: Option<Credentials>,
    /// Masters of a dev cell, whose token is sent to its agents.
    masters: Vec<String>,
}

#[derive(Clone)]
struct Credentials {
    cell: Name,
    authority: String,
    resolver: Arc<CertificateResolver>,
}

impl fmt::Debug for AgentDialler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let cell = self.credentials.as_ref().map(|own| own.cell.as_str());
        write!(f, "AgentDialler({})", cell.unwrap_or("in the clear"))
    }
}

impl AgentDialler {
    /// For a dev cell on one machine, used by its masters.
    #[must_use]
    pub fn plain(masters: Vec<String>) -> AgentDialler {
        AgentDialler { credentials: None, masters }
    }

    /// With the certificate of a part of `cell`; `authority` is the cell's, as PEM.
    #[must_use]
    pub fn with_certificate(
        cell: Name,
        authority: String,
        resolver: Arc<CertificateResolver>,
    ) -> AgentDialler {
        AgentDialler {
            credentials: Some(Credentials { cell, authority, resolver }),
            masters: Vec::new(),
        }
    }

    /// # Errors
    /// When nothing answers there, or something that is not the agent of `machine`.
    pub async fn dial(
        &self,
        machine: &Name,
        address: &str,
    ) -> Result<AgentConnection, ClientError> {
        connection::check_address(address, self.credentials.is_some())
            .map_err(ClientError::InvalidConfig)?;
        let dialled = timeout(CONNECT_TIMEOUT, self.connect(machine, address)).await;
        let dialled = dialled.unwrap_or_else(|_| Err("connecting took too long".to_owned()));
        let sender = dialled.map_err(|why| {
            let last = format!("the agent of {machine} at {address}: {why}");
            ClientError::Unreachable { tried: 1, last }
        })?;
        let token = Some(&self.masters).filter(|_| self.credentials.is_none());
        let token = token.and_then(|masters| dev_token::token_for(masters));
        Ok(AgentConnection { sender, address: address.to_owned(), token })
    }

    async fn connect(&self, machine: &Name, address: &str) -> Result<Sender, String> {
        let stream = TcpStream::connect(address).await.map_err(|e| e.to_string())?;
        stream.set_nodelay(true).map_err(|e| e.to_string())?;
        let Some(Credentials { cell, authority, resolver }) = &self.credentials else {
            return connection::handshake(stream).await.map_err(|e| e.to_string());
        };
        let host = stream.peer_addr().map_err(|e| e.to_string())?.ip();
        let part = Identity { cell: cell.clone(), part: Part::Agent(machine.clone()) };
        let config = tls::client_config_for_part(authority, part, resolver.clone());
        let connector = TlsConnector::from(Arc::new(config.map_err(|e| e.to_string())?));
        let name = ServerName::from(host);
        let stream = connector.connect(name, stream).await.map_err(|e| e.to_string())?;
        connection::handshake(stream).await.map_err(|e| e.to_string())
    }
}

/// A connection to one agent, for one request at a time.
pub struct AgentConnection {
    sender: Sender,
    address: String,
    /// The token of a dev cell.
    token: Option<Secret>,
}

impl AgentConnection {
    /// Reads no more than `max_bytes`: a longer answer is cut off.
    ///
    /// # Errors
    /// The agent's error, or that it did not answer within `limit`.
    pub async fn get_bytes(
        &mut self,
        path: &str,
        limit: Duration,
        max_bytes: usize,
    ) -> Result<Bytes, ClientError> {
        let result = timeout(limit, self.exchange(path, max_bytes)).await;
        let address = &self.address;
        let late = || ClientError::Unknown(format!("{address} did not answer in time"));
        result.unwrap_or_else(|_| Err(late()))
    }

    /// # Errors
    /// As [`AgentConnection::get_bytes`], or when the answer does not parse.
    pub async fn get<T: DeserializeOwned>(
        &mut self,
        path: &str,
        limit: Duration,
    ) -> Result<T, ClientError> {
        let bytes = self.get_bytes(path, limit, MAX_ANSWER).await?;
        serde_json::from_slice(&bytes).map_err(|error| ClientError::BadReply(error.to_string()))
    }

    /// Upgrades the whole connection, if the agent agrees within `limit`.
    ///
    /// # Errors
    /// The agent's error, or that it did not answer.
    pub async fn session(self, path: &str, limit: Duration) -> Result<SessionStream, ClientError> {
        let mut call = plain_call(Method::POST, path, self.token.as_ref());
        request_upgrade(&mut call);
        let result = timeout(limit, complete_upgrade(self.sender, &self.address, &call)).await;
        let late = || ClientError::Unknown(format!("{} did not answer in time", self.address));
        result.unwrap_or_else(|_| Err(late()))
    }

    async fn exchange(&mut self, path: &str, max_bytes: usize) -> Result<Bytes, ClientError> {
        let address = &self.address;
        let broke = |why: &dyn std::fmt::Display| ClientError::Unknown(format!("{address}: {why}"));
        let call = plain_call(Method::GET, path, self.token.as_ref());
        let request = connection::request(address, &call).map_err(ClientError::InvalidConfig)?;
        self.sender.ready().await.map_err(|error| broke(&error))?;
        let response = self.sender.send_request(request).await.map_err(|error| broke(&error))?;
        let (parts, body) = response.into_parts();
        let most = if parts.status.is_success() { max_bytes } else { MAX_ERROR_BODY };
        let collected = Limited::new(body, most).collect().await;
        let body = collected.map_err(|error| broke(&error))?.to_bytes();
        let received = Received { status: parts.status, headers: parts.headers, body, open: None };
        match classify(&received, false) {
            NextStep::Done => Ok(received.body),
            NextStep::Fail(error) | NextStep::Redirect(_, error) | NextStep::Later(_, error) => {
                Err(error)
            }
        }
    }
}

fn plain_call(method: Method, path: &str, token: Option<&Secret>) -> Call {
    let authorization = token.and_then(super::bearer);
    Call {
        method,
        path: path.to_owned(),
        headers: authorization.map(|value| (AUTHORIZATION, value)).into_iter().collect(),
        body: super::content::Payload::Whole(Bytes::new()),
        streamed: false,
        repeatable: false,
        attempt_timeout: Duration::ZERO,
        deadline: Duration::ZERO,
        max_bytes: None,
    }
}
