//! Blobs: bytes by digest. The bytes are on a majority of the replicas before the log hears of
//! them.

use super::call::Call;
use super::{Answered, Api, reply, view};
use crate::blobs::{Reading, off_thread};
use crate::identity::provenance;
use axum::body::Body;
use axum::http::{HeaderValue, Response, header};
use cellwright_api::error::ApiError;
use cellwright_cell::blob::Blob;
use cellwright_cell::command::Command;
use cellwright_cell::reason::Refusal;
use cellwright_store::Role;
use futures::stream;
use hyper::body::Body as _;

/// Content as it is read. Should it turn out to be damaged, it ends before its announced length.
pub(super) fn content(reading: Reading) -> Response<Body> {
    let length = reading.length();
    let pieces = stream::try_unfold(reading, async |mut reading: Reading| {
        off_thread(move || Ok(reading.piece()?.map(|piece| (piece, reading)))).await
    });
    let mut response = Response::new(Body::from_stream(pieces));
    let headers = response.headers_mut();
    let binary = HeaderValue::from_static("application/octet-stream");
    headers.insert(header::CONTENT_TYPE, binary);
    headers.insert(header::CONTENT_LENGTH, HeaderValue::from(length));
    response
}

impl Api {
    pub(super) async fn list_blobs(&self, call: Call) -> Answered {
        let (view, consistent) = call.view(self).await?;
        let rows = view.state.blobs().iter().map(|(id, row)| (u64::from(id.0), row));
        let here = self.blocking(|api| api.backstage.blobs_here()).await?;
        let is_here = |row: &Blob| here.contains(row.digest.as_str());
        let shown = |row: &Blob| Some(view::blob(row, is_here(row)));
        let page = call.page('b', (view.index, consistent), rows, shown)?;
        reply::page(&call, &page)
    }

    pub(super) async fn put_blob(&self, mut call: Call) -> Answered {
        let digest = call.token("digest")?;
        // Said before the bytes are taken, not after.
        let status = self.handle.status();
        if status.role != Role::Leader {
            let leader = status.leader_peer().map(|(_, peer)| peer.address);
            return Err(crate::input::Unavailable::NotLeader { leader }.into());
        }
        let content = call.stream();
        if !content.is_end_stream() {
            provenance::binary(&call.headers)?;
        }
        let bytes = self.backstage.put_blob(digest.clone(), content).await?;
        self.change(&call, Command::AddBlob { digest, bytes }).await
    }

    pub(super) async fn get_blob(&self, call: Call) -> Answered {
        let digest = call.token("digest")?;
        let known = self.handle.replicated().with(|view| view.state.blob_named(&digest).is_some());
        if !known {
            return Err(ApiError::from(Refusal::NoSuchBlob(digest)));
        }
        Ok(content(self.backstage.get_blob(digest).await?))
    }

    pub(super) async fn remove_blob(&self, call: Call) -> Answered {
        let digest = call.token("digest")?;
        self.change(&call, Command::RemoveBlob { digest }).await
    }
}
