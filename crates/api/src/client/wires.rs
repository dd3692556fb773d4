//! Messages between parts, in a version that the masters read: what each of them speaks is learned
//! from its answers, refusals included. Where several may answer, the version is one that all of
//! them read that have been heard.

use super::{Answer, Call, Client, ClientError};
use crate::error::Code;
use crate::wire::{MOST_TRIES, Spoken, WireMessage, WireRange, WireVersion, pack, unpack};
use bytes::Bytes;
use hyper::Method;
use hyper::header::{CONTENT_TYPE, HeaderMap, HeaderValue};
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

pub(super) struct Wires {
    own: WireRange,
    /// By address.
    heard: Mutex<BTreeMap<String, WireRange>>,
}

impl Wires {
    pub fn new(own: WireRange) -> Wires {
        Wires { own, heard: Mutex::default() }
    }

    fn heard(&self) -> MutexGuard<'_, BTreeMap<String, WireRange>> {
        self.heard.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn learn(&self, address: &str, headers: &HeaderMap) {
        let Some(range) = WireRange::of(headers) else { return };
        let mut heard = self.heard();
        if heard.get(address) != Some(&range) {
            heard.insert(address.to_owned(), range);
        }
    }

    /// What to write to whichever of these answers.
    fn to_write(&self, addresses: &[String]) -> WireVersion {
        let heard = self.heard();
        let common = addresses.iter().filter_map(|address| self.own.common(*heard.get(address)?));
        common.min().unwrap_or(self.own.to_write(None))
    }
}

impl Client {
    /// Sends a message and reads the answer. It is written again when it was refused for a version
    /// that it need not have.
    pub(super) async fn converse<Q, R, F>(
        &self,
        at: Option<&str>,
        path: &str,
        request: &Q,
        exchange: impl Fn(Call) -> F,
    ) -> Result<R, ClientError>
    where
        Q: WireMessage,
        R: WireMessage,
        F: Future<Output = Result<Answer, ClientError>>,
    {
        let wires = &self.shared.wires;
        let version = || match at {
            Some(address) => wires.to_write(&[super::connection::bare_address(address).to_owned()]),
            None => wires.to_write(&self.masters()),
        };
        let (mut written, mut tried) = (version(), 0);
        loop {
            tried += 1;
            let answered = exchange(self.internal(path, request, written)?).await;
            let next = version();
            match answered {
                Err(error) if error.code() == Some(Code::OtherWire) => {
                    if next == written || tried == MOST_TRIES {
                        return Err(error);
                    }
                    written = next;
                }
                answered => return read(wires.own, &answered?),
            }
        }
    }

    fn internal<Q: WireMessage>(
        &self,
        path: &str,
        request: &Q,
        version: WireVersion,
    ) -> Result<Call, ClientError> {
        let body = pack(version, request).map_err(|e| ClientError::InvalidConfig(e.to_string()))?;
        let mut call = self.call(Method::POST, path, Bytes::from(body), false);
        let binary = HeaderValue::from_static("application/postcard");
        call.headers.insert(CONTENT_TYPE, binary);
        Spoken { version, range: self.shared.wires.own }.write(&mut call.headers);
        // Polls hang on purpose; the deadline alone bounds them.
        call.attempt_timeout = call.deadline;
        Ok(call)
    }
}

fn read<R: WireMessage>(own: WireRange, answer: &Answer) -> Result<R, ClientError> {
    let Some(spoken) = Spoken::of(&answer.headers) else {
        return Err(ClientError::BadReply("it names no wire version".into()));
    };
    unpack(own, spoken.version, &answer.body).map_err(|e| ClientError::BadReply(e.to_string()))
}
