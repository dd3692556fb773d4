//! The other replicas as keepers of blobs, over the door of the cell's own parts.

use crate::blobs::{BlobPeers, BlobStore, Digest};
use bytes::Bytes;
use cellwright_api::client::Client;
use cellwright_api::client::parts::BLOB_PATH;
use cellwright_store::Replica;
use futures::future::BoxFuture;
use std::sync::Arc;
use std::time::Duration;

/// What giving or fetching one blob may take.
const LIMIT: Duration = Duration::from_secs(300);

pub struct HttpBlobPeers {
    /// Shows this replica's certificate.
    pub client: Client,
    pub replica: Arc<Replica>,
    pub store: Arc<BlobStore>,
}

impl HttpBlobPeers {
    fn address(&self, peer: &str) -> Result<String, String> {
        let members = self.replica.status().members;
        let found = members.into_values().find(|member| member.peer.name == peer);
        found.map(|member| member.peer.address).ok_or_else(|| format!("{peer} is no member"))
    }
}

impl BlobPeers for HttpBlobPeers {
    fn voters(&self) -> Vec<String> {
        let status = self.replica.status();
        let others = status.members.iter().filter(|(id, member)| **id != status.id && member.voter);
        others.map(|(_, member)| member.peer.name.clone()).collect()
    }

    fn push(&self, peer: String, digest: Digest) -> BoxFuture<'_, Result<(), String>> {
        Box::pin(async move {
            let address = self.address(&peer)?;
            let content = Bytes::from(self.store.read(digest).map_err(|e| e.to_string())?);
            let path = format!("{BLOB_PATH}/{digest}");
            let given = self.client.put_bytes_at(&address, &path, content, LIMIT).await;
            given.map_err(|e| e.to_string())
        })
    }

    fn fetch(&self, peer: String, digest: Digest) -> BoxFuture<'_, Result<Vec<u8>, String>> {
        Box::pin(async move {
            let address = self.address(&peer)?;
            let path = format!("{BLOB_PATH}/{digest}");
            let content = self.client.bytes_at(&address, &path, LIMIT).await;
            content.map(Vec::from).map_err(|e| e.to_string())
        })
    }
}
