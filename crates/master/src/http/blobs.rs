//! Blobs: bytes by digest. The bytes are on a majority of the replicas before the log hears of
//! them.

use super::call::Call;
use super::{Answered, Api, reply, view};
use axum::body::Body;
use axum::http::{HeaderValue, Response, header};
use cellwright_api::error::ApiError;
use cellwright_cell::command::Command;
use cellwright_cell::reason::Refusal;
use cellwright_store::Role;

impl Api {
    pub(super) async fn list_blobs(&self, call: Call) -> Answered {
        let (view, consistent) = call.view(self).await?;
        let rows = view.state.blobs().iter().map(|(id, row)| (u64::from(id.0), row));
        let page = call.page('b', (view.index, consistent), rows, |row| Some(view::blob(row)))?;
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
        let bytes = self.backstage.put_blob(digest.clone(), content).await?;
        self.change(&call, Command::AddBlob { digest, bytes }).await
    }

    pub(super) async fn get_blob(&self, call: Call) -> Answered {
        let digest = call.token("digest")?;
        let known = self.handle.replicated().with(|view| view.state.blob_named(&digest).is_some());
        if !known {
            return Err(ApiError::from(Refusal::NoSuchBlob(digest)));
        }
        let content = self.backstage.get_blob(digest).await?;
        let mut response = Response::new(Body::from(content));
        let binary = HeaderValue::from_static("application/octet-stream");
        response.headers_mut().insert(header::CONTENT_TYPE, binary);
        Ok(response)
    }

    pub(super) async fn remove_blob(&self, call: Call) -> Answered {
        let digest = call.token("digest")?;
        self.change(&call, Command::RemoveBlob { digest }).await
    }
}
