//! Questions to one registry about one image, with whatever the registry wants to see first.
//!
//! A registry answers the first question with a challenge. What answers it is kept for the next
//! ones, and asked for anew when the registry does not take it any more: tokens last minutes,
//! downloads may last longer. Only the registry's own challenges count, not those of servers it
//! redirects to, and its credentials go to its own domain alone.

use super::challenge::{self, Challenge, is_related};
use super::credentials::Login;
use super::error::{Credentials, RegistryError, Why, shown};
use super::line::{Address, Answer, Fault, Line};
use super::reference::Reference;
use bytes::Bytes;
use cellwright_api::client::encode_query;
use hyper::StatusCode;
use hyper::header::{ACCEPT, HeaderMap, HeaderValue, RETRY_AFTER};
use serde::Deserialize;
use std::time::Duration;
use tokio::sync::Mutex;

const MAX_TOKEN: usize = 256 << 10;
const MAX_REFUSAL: usize = 16 << 10;
/// Challenges answered for one question: one for the first, one for a token that has run out.
const MOST_CHALLENGES: usize = 2;
/// Attempts at a question whose answer is short.
const MOST_ATTEMPTS: u32 = 4;
/// A registry that wants us to wait longer has no time for us.
const LONGEST_WAIT: Duration = Duration::from_secs(30);

pub(super) struct Session {
    pub(super) reference: Reference,
    line: Line,
    registry: Address,
    login: Option<Login>,
    /// What the registry took last.
    authorization: Mutex<Option<HeaderValue>>,
}

#[derive(Deserialize)]
struct Granted {
    token: Option<String>,
    access_token: Option<String>,
}

#[derive(Deserialize)]
struct Refusals {
    #[serde(default)]
    errors: Vec<Refusal>,
}

#[derive(Deserialize)]
struct Refusal {
    #[serde(default)]
    code: String,
    #[serde(default)]
    message: String,
}

impl Session {
    pub(super) fn new(
        reference: Reference,
        line: Line,
        registry: Address,
        login: Option<Login>,
    ) -> Session {
        Session { reference, line, registry, login, authorization: Mutex::default() }
    }

    /// That something about the image failed.
    pub(super) fn failed(&self, asked: &str, why: Why) -> RegistryError {
        RegistryError { reference: self.reference.to_string(), asked: asked.to_owned(), why }
    }

    pub(super) fn backoff(&self, attempt: u32) -> Duration {
        self.line.times.backoff * 2u32.pow(attempt.min(5))
    }

    /// A short answer, whole. Asked again when the registry is busy or the connection breaks.
    pub(super) async fn whole(
        &self,
        asked: &str,
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
                Err(Fault::Final(why)) => return Err(self.failed(asked, why)),
                Err(Fault::Later(detail)) => Why::Busy(detail),
                Err(Fault::Broke(last)) => Why::BrokeOff { attempts, last },
            };
            if attempts >= MOST_ATTEMPTS {
                return Err(self.failed(asked, why));
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
    ) -> Result<(HeaderMap, Bytes), Fault> {
        let mut answer = self.get(path, headers).await?;
        if answer.status != StatusCode::OK {
            return Err(self.refused(answer).await);
        }
        let content = answer.whole(most).await?;
        Ok((answer.headers, content))
    }

    /// An answer of any kind, once the registry's challenge is met.
    pub(super) async fn get(&self, path: &str, headers: &HeaderMap) -> Result<Answer, Fault> {
        let address = self.registry.with_path(path);
        let mut shown_last = self.authorization.lock().await.clone();
        for _ in 0..MOST_CHALLENGES {
            let answer = self.line.get(&address, headers, shown_last.as_ref()).await?;
            if answer.status != StatusCode::UNAUTHORIZED || !answer.is_own {
                return Ok(answer);
            }
            let mut kept = self.authorization.lock().await;
            // Another download may have met the challenge meanwhile.
            if *kept == shown_last {
                match self.meet(&answer.headers, shown_last.as_ref()).await? {
                    Some(authorization) => *kept = Some(authorization),
                    None => return Ok(answer),
                }
            }
            shown_last = kept.clone();
        }
        self.line.get(&address, headers, shown_last.as_ref()).await
    }

    /// What meets the challenge; none if there is nothing else to show.
    async fn meet(
        &self,
        headers: &HeaderMap,
        refused: Option<&HeaderValue>,
    ) -> Result<Option<HeaderValue>, Fault> {
        let challenge = challenge::of(headers);
        let challenge = challenge.map_err(|detail| Fault::Final(self.denied(detail)))?;
        let next = match challenge {
            Challenge::Basic => match &self.login {
                Some(login) => self.basic(login, &self.registry)?,
                None => return Ok(None),
            },
            Challenge::Bearer { realm, service, scope } => {
                self.token(&realm, service, scope).await?
            }
        };
        Ok(Some(next).filter(|next| Some(next) != refused))
    }

    /// Passwords cross no network in the clear, whatever was allowed for images.
    fn basic(&self, login: &Login, to: &Address) -> Result<HeaderValue, Fault> {
        if !to.tls && !to.is_loopback() {
            return Err(Fault::Final(Why::PlainCredentials { host: to.authority() }));
        }
        sensitive(&login.basic()).map_err(|detail| Fault::Final(self.denied(detail)))
    }

    async fn token(
        &self,
        realm: &Address,
        service: Option<String>,
        scope: Option<String>,
    ) -> Result<HeaderValue, Fault> {
        let scope = scope.unwrap_or_else(|| format!("repository:{}:pull", self.reference.name()));
        let query = encode_query(&[("service", service), ("scope", Some(scope))]);
        let address = realm.with_query(&query);
        let login = match self.login_for(realm) {
            Some(login) => Some(self.basic(login, realm)?),
            None => None,
        };
        let mut answer = self.line.get(&address, &HeaderMap::new(), login.as_ref()).await?;
        if answer.status != StatusCode::OK {
            let credentials = match (&self.login, &login) {
                (Some(_), None) => Credentials::Withheld,
                (Some(_), Some(_)) => Credentials::Shown,
                (None, _) => Credentials::None,
            };
            let who = realm.authority();
            return Err(match self.refused(answer).await {
                Fault::Final(why) => {
                    let detail = format!("{who} gives no token: {why}");
                    Fault::Final(Why::Denied { detail, credentials })
                }
                passing => passing,
            });
        }
        let content = answer.whole(MAX_TOKEN).await?;
        let granted: Result<Granted, _> = serde_json::from_slice(&content);
        let token = granted.ok().and_then(|granted| granted.token.or(granted.access_token));
        let Some(token) = token.filter(|token| !token.is_empty()) else {
            let why = format!("{} granted access without a token", realm.authority());
            return Err(Fault::Final(Why::Untrue(why)));
        };
        sensitive(&format!("Bearer {token}")).map_err(|detail| Fault::Final(self.denied(detail)))
    }

    fn login_for(&self, realm: &Address) -> Option<&Login> {
        self.login.as_ref().filter(|_| is_related(&self.registry.host, &realm.host))
    }

    fn denied(&self, detail: String) -> Why {
        let credentials = if self.login.is_some() { Credentials::Shown } else { Credentials::None };
        Why::Denied { detail, credentials }
    }

    /// What an answer other than the hoped-for says.
    pub(super) async fn refused(&self, mut answer: Answer) -> Fault {
        let status = answer.status;
        let wait = answer.headers.get(RETRY_AFTER).and_then(|v| v.to_str().ok()?.parse().ok());
        let wait = wait.map(Duration::from_secs);
        // A refusal that cannot be read is one all the same.
        let text = answer.whole(MAX_REFUSAL).await.unwrap_or_default();
        let detail = match serde_json::from_slice::<Refusals>(&text) {
            Ok(Refusals { errors }) if !errors.is_empty() => {
                shown(&format!("{}: {}", errors[0].code, errors[0].message))
            }
            _ => shown(status.canonical_reason().unwrap_or("no reason given")),
        };
        let detail = format!("{} {detail}", status.as_u16());
        Fault::Final(match status.as_u16() {
            401 | 403 => match self.withheld(&answer) {
                true => Why::Denied { detail, credentials: Credentials::Withheld },
                false => self.denied(detail),
            },
            404 => Why::Missing(detail),
            429 if wait.is_some_and(|wait| wait > LONGEST_WAIT) => Why::Busy(detail),
            429 | 500 | 502 | 503 | 504 => return Fault::Later(detail),
            status => Why::Answered { status, detail },
        })
    }

    /// Whether there are credentials that were kept from whoever gives out tokens.
    fn withheld(&self, answer: &Answer) -> bool {
        match challenge::of(&answer.headers) {
            Ok(Challenge::Bearer { realm, .. }) => {
                self.login.is_some() && self.login_for(&realm).is_none()
            }
            _ => false,
        }
    }
}

fn sensitive(text: &str) -> Result<HeaderValue, String> {
    let value = HeaderValue::from_str(text);
    let mut value = value.map_err(|_| "the token cannot travel in a header".to_owned())?;
    value.set_sensitive(true);
    Ok(value)
}
