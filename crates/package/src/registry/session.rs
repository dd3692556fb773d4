//! Authenticated requests to one registry about one image.
//!
//! A registry answers the first request with a challenge. The resulting authorization is kept for
//! the next requests, and requested anew when the registry rejects it: tokens last minutes,
//! downloads may last longer. Only the registry's own challenges are answered, not those of servers
//! it redirects to, and its credentials are sent to its own domain alone.

use super::challenge::{self, Challenge, is_related};
use super::credentials::Login;
use super::error::{Credentials, RegistryError, RegistryFailure, printable};
use super::http_client::{Address, Answer, HttpClient, RequestFault};
use super::reference::Reference;
use bytes::Bytes;
use cellwright_api::client::encode_query;
use hyper::StatusCode;
use hyper::header::{ACCEPT, HeaderMap, HeaderValue, RETRY_AFTER};
use serde::Deserialize;
use std::time::Duration;
use tokio::sync::Mutex;

const MAX_TOKEN: usize = 256 << 10;
const MAX_ERROR_BODY: usize = 16 << 10;
/// Challenges answered for one request: one for the first, one for a token that has expired.
const MAX_CHALLENGES: usize = 2;
/// Attempts of a request whose response is short.
const MAX_ATTEMPTS: u32 = 4;
/// A registry that asks for a longer wait is treated as overloaded.
const MAX_RETRY_AFTER: Duration = Duration::from_secs(30);

pub(super) struct Session {
    pub(super) reference: Reference,
    http_client: HttpClient,
    registry: Address,
    login: Option<Login>,
    /// The authorization that the registry accepted last.
    authorization: Mutex<Option<HeaderValue>>,
}

#[derive(Deserialize)]
struct TokenResponse {
    token: Option<String>,
    access_token: Option<String>,
}

#[derive(Deserialize)]
struct ErrorBody {
    #[serde(default)]
    errors: Vec<ErrorEntry>,
}

#[derive(Deserialize)]
struct ErrorEntry {
    #[serde(default)]
    code: String,
    #[serde(default)]
    message: String,
}

impl Session {
    pub(super) fn new(
        reference: Reference,
        http_client: HttpClient,
        registry: Address,
        login: Option<Login>,
    ) -> Session {
        Session { reference, http_client, registry, login, authorization: Mutex::default() }
    }

    /// An error about a part of the image.
    pub(super) fn error_for(&self, label: &str, why: RegistryFailure) -> RegistryError {
        RegistryError { reference: self.reference.to_string(), requested: label.to_owned(), why }
    }

    pub(super) fn backoff(&self, attempt: u32) -> Duration {
        self.http_client.times.backoff * 2u32.pow(attempt.min(5))
    }

    /// A short response, whole. Retried when the registry is overloaded or the connection breaks.
    pub(super) async fn whole(
        &self,
        label: &str,
        path: &str,
        accept: Option<&'static str>,
        most: usize,
    ) -> Result<(HeaderMap, Bytes), RegistryError> {
        let mut headers = HeaderMap::new();
        if let Some(accept) = accept {
            headers.insert(ACCEPT, HeaderValue::from_static(accept));
        }
        let mut attempts = 1;
        loop {
            let why = match self.attempt(path, &headers, most).await {
                Ok(found) => return Ok(found),
                Err(RequestFault::Final(why)) => return Err(self.error_for(label, why)),
                Err(RequestFault::Retryable(detail)) => RegistryFailure::Busy(detail),
                Err(RequestFault::ConnectionLost(last)) => {
                    RegistryFailure::BrokeOff { attempts, last }
                }
            };
            if attempts >= MAX_ATTEMPTS {
                return Err(self.error_for(label, why));
            }
            tokio::time::sleep(self.backoff(attempts - 1)).await;
            attempts += 1;
        }
    }

    async fn attempt(
        &self,
        path: &str,
        headers: &HeaderMap,
        most: usize,
    ) -> Result<(HeaderMap, Bytes), RequestFault> {
        let mut answer = self.get(path, headers).await?;
        if answer.status != StatusCode::OK {
            return Err(self.fault_from(answer).await);
        }
        let content = answer.whole(most).await?;
        Ok((answer.headers, content))
    }

    /// A response of any kind, once the registry's challenge is answered.
    pub(super) async fn get(
        &self,
        path: &str,
        headers: &HeaderMap,
    ) -> Result<Answer, RequestFault> {
        let address = self.registry.with_path(path);
        let mut last_sent = self.authorization.lock().await.clone();
        for _ in 0..MAX_CHALLENGES {
            let answer = self.http_client.get(&address, headers, last_sent.as_ref()).await?;
            if answer.status != StatusCode::UNAUTHORIZED || !answer.is_from_registry {
                return Ok(answer);
            }
            let mut kept = self.authorization.lock().await;
            // Another download may have answered the challenge meanwhile.
            if *kept == last_sent {
                match self.answer_challenge(&answer.headers, last_sent.as_ref()).await? {
                    Some(authorization) => *kept = Some(authorization),
                    None => return Ok(answer),
                }
            }
            last_sent = kept.clone();
        }
        self.http_client.get(&address, headers, last_sent.as_ref()).await
    }

    /// The authorization that answers the challenge; none if there are no more credentials to try.
    async fn answer_challenge(
        &self,
        headers: &HeaderMap,
        rejected: Option<&HeaderValue>,
    ) -> Result<Option<HeaderValue>, RequestFault> {
        let challenge = challenge::parse_challenge(headers);
        let challenge =
            challenge.map_err(|detail| RequestFault::Final(self.denied_error(detail)))?;
        let next = match challenge {
            Challenge::Basic => match &self.login {
                Some(login) => self.basic(login, &self.registry)?,
                None => return Ok(None),
            },
            Challenge::Bearer { realm, service, scope } => {
                self.token(&realm, service, scope).await?
            }
        };
        Ok(Some(next).filter(|next| Some(next) != rejected))
    }

    /// Passwords are never sent in plain text over a network, whatever was allowed for images.
    fn basic(&self, login: &Login, to: &Address) -> Result<HeaderValue, RequestFault> {
        if !to.tls && !to.is_loopback() {
            return Err(RequestFault::Final(RegistryFailure::PlainCredentials {
                host: to.authority(),
            }));
        }
        sensitive_header(&login.basic())
            .map_err(|detail| RequestFault::Final(self.denied_error(detail)))
    }

    async fn token(
        &self,
        realm: &Address,
        service: Option<String>,
        scope: Option<String>,
    ) -> Result<HeaderValue, RequestFault> {
        let scope = scope.unwrap_or_else(|| format!("repository:{}:pull", self.reference.name()));
        let query = encode_query(&[("service", service), ("scope", Some(scope))]);
        let address = realm.with_query(&query);
        let login = match self.login_for(realm) {
            Some(login) => Some(self.basic(login, realm)?),
            None => None,
        };
        let mut answer = self.http_client.get(&address, &HeaderMap::new(), login.as_ref()).await?;
        if answer.status != StatusCode::OK {
            let credentials = match (&self.login, &login) {
                (Some(_), None) => Credentials::Withheld,
                (Some(_), Some(_)) => Credentials::Shown,
                (None, _) => Credentials::None,
            };
            let server = realm.authority();
            return Err(match self.fault_from(answer).await {
                RequestFault::Final(why) => {
                    let detail = format!("{server} gives no token: {why}");
                    RequestFault::Final(RegistryFailure::Denied { detail, credentials })
                }
                passing => passing,
            });
        }
        let content = answer.whole(MAX_TOKEN).await?;
        let granted: Result<TokenResponse, _> = serde_json::from_slice(&content);
        let token = granted.ok().and_then(|granted| granted.token.or(granted.access_token));
        let Some(token) = token.filter(|token| !token.is_empty()) else {
            let why = format!("{} granted access without a token", realm.authority());
            return Err(RequestFault::Final(RegistryFailure::Untrue(why)));
        };
        sensitive_header(&format!("Bearer {token}"))
            .map_err(|detail| RequestFault::Final(self.denied_error(detail)))
    }

    fn login_for(&self, realm: &Address) -> Option<&Login> {
        self.login.as_ref().filter(|_| is_related(&self.registry.host, &realm.host))
    }

    fn denied_error(&self, detail: String) -> RegistryFailure {
        let credentials = if self.login.is_some() { Credentials::Shown } else { Credentials::None };
        RegistryFailure::Denied { detail, credentials }
    }

    /// The error in a response other than the expected one.
    pub(super) async fn fault_from(&self, mut answer: Answer) -> RequestFault {
        let status = answer.status;
        let wait = answer.headers.get(RETRY_AFTER).and_then(|v| v.to_str().ok()?.parse().ok());
        let wait = wait.map(Duration::from_secs);
        // An error response that cannot be read is one all the same.
        let text = answer.whole(MAX_ERROR_BODY).await.unwrap_or_default();
        let detail = match serde_json::from_slice::<ErrorBody>(&text) {
            Ok(ErrorBody { errors }) if !errors.is_empty() => {
                printable(&format!("{}: {}", errors[0].code, errors[0].message))
            }
            _ => printable(status.canonical_reason().unwrap_or("no reason given")),
        };
        let detail = format!("{} {detail}", status.as_u16());
        RequestFault::Final(match status.as_u16() {
            401 | 403 => {
                if self.are_credentials_withheld(&answer) {
                    RegistryFailure::Denied { detail, credentials: Credentials::Withheld }
                } else {
                    self.denied_error(detail)
                }
            }
            404 => RegistryFailure::Missing(detail),
            429 if wait.is_some_and(|wait| wait > MAX_RETRY_AFTER) => RegistryFailure::Busy(detail),
            429 | 500 | 502 | 503 | 504 => return RequestFault::Retryable(detail),
            status => RegistryFailure::Answered { status, detail },
        })
    }

    /// Whether there are credentials that were withheld from the authorization server.
    fn are_credentials_withheld(&self, answer: &Answer) -> bool {
        match challenge::parse_challenge(&answer.headers) {
            Ok(Challenge::Bearer { realm, .. }) => {
                self.login.is_some() && self.login_for(&realm).is_none()
            }
            _ => false,
        }
    }
}

fn sensitive_header(text: &str) -> Result<HeaderValue, String> {
    let value = HeaderValue::from_str(text);
    let mut value = value.map_err(|_| "the token cannot travel in a header".to_owned())?;
    value.set_sensitive(true);
    Ok(value)
}
