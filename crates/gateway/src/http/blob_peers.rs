//! The other replicas over the internal routes: as stores of blobs, and as candidates that identify
//! themselves before they become members.

use cellwright_api::client::Client;
use cellwright_api::client::content::transfer_timeout;
use cellwright_api::client::internal_calls::BLOB_PATH;
use cellwright_api::types::MasterStatus;
use cellwright_master::blobs::{BlobPeers, BlobStore, Digest, UploadBuffer};
use cellwright_master::level::{ReplicaIdentity, ReplicaProbe};
use cellwright_store::Replica;
use futures::future::BoxFuture;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::timeout;

/// Extra time to send or fetch a blob, beyond that for its bytes: flushing them to disk.
const TRANSFER_TIMEOUT: Duration = Duration::from_secs(60);
/// Timeout for a candidate to identify itself.
const IDENTIFY_TIMEOUT: Duration = Duration::from_secs(3);

pub struct HttpBlobPeers {
    /// The client presents this replica's certificate.
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

    async fn fetch_into(
        &self,
        peer: &str,
        digest: Digest,
        mut intake: UploadBuffer,
    ) -> Result<(), String> {
        let address = self.address(peer)?;
        let path = format!("{BLOB_PATH}/{digest}");
        let download = self.client.download_at(&address, &path, TRANSFER_TIMEOUT).await;
        let mut content = download.map_err(|e| e.to_string())?;
        let limit =
            TRANSFER_TIMEOUT + transfer_timeout(content.length().unwrap_or(self.store.limit()));
        let taking = async {
            while let Some(piece) = content.next().await.map_err(|e| e.to_string())? {
                intake = intake.write(&piece).await.map_err(|e| e.to_string())?;
            }
            intake.finish().await.map(drop).map_err(|e| e.to_string())
        };
        timeout(limit, taking).await.map_err(|_| format!("{address} is too slow"))?
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
            let path = format!("{BLOB_PATH}/{digest}");
            let file = self.store.path(digest);
            let result = self.client.put_file_at(&address, &path, &file, TRANSFER_TIMEOUT).await;
            result.map_err(|e| e.to_string())
        })
    }

    fn fetch(
        &self,
        peer: String,
        digest: Digest,
        intake: UploadBuffer,
    ) -> BoxFuture<'_, Result<(), String>> {
        Box::pin(async move { self.fetch_into(&peer, digest, intake).await })
    }
}

impl ReplicaProbe for HttpBlobPeers {
    fn identify(&self, address: String) -> BoxFuture<'_, Result<ReplicaIdentity, String>> {
        Box::pin(async move {
            let response = self.client.bytes_at(&address, "/v1/masters", IDENTIFY_TIMEOUT).await;
            let bytes = response.map_err(|error| error.to_string())?;
            let status: MasterStatus = serde_json::from_slice(&bytes)
                .map_err(|error| format!("what answers is no master: {error}"))?;
            Ok(ReplicaIdentity { id: status.id, level: status.level })
        })
    }
}
