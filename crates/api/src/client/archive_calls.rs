//! Calls about the archive.

use super::{Client, ClientError, PageRequest, Reply, encode_query};
use crate::types::{
    ArchiveStatus, ArchivedDay, ArchivedJob, ArchivedJobRow, ArchivedLogRow, One, Page,
    RestoreHistory, RestoredHistory,
};
use bytes::Bytes;
use cellwright_cell::name::{JobKey, Name};
use cellwright_cell::time::Time;
use std::time::Duration;

/// Days are fetched one after the other.
const RESTORE_TIMEOUT: Duration = Duration::from_secs(600);

/// All of these fail with the cell's error, or when no master answers.
#[allow(clippy::missing_errors_doc)]
impl Client {
    pub async fn archive(&self) -> Result<Reply<One<ArchiveStatus>>, ClientError> {
        // The leader writes it, and knows how it is doing.
        self.get("/v1/archive?consistent=true").await
    }

    /// `user`: only theirs.
    pub async fn archived_jobs(
        &self,
        user: Option<&Name>,
        page: &PageRequest,
    ) -> Result<Reply<Page<ArchivedJobRow>>, ClientError> {
        let user = [("user", user.map(ToString::to_string))];
        let pairs = [&user[..], &page.pairs()[..2]].concat();
        self.get(&format!("/v1/archive/jobs{}", encode_query(&pairs))).await
    }

    /// The job that was submitted then, or else the last one of its name.
    pub async fn archived_job(
        &self,
        job: &JobKey,
        submitted: Option<Time>,
    ) -> Result<Reply<ArchivedJob>, ClientError> {
        let query = encode_query(&[("submitted", submitted.map(|at| at.0.to_string()))]);
        self.get(&format!("/v1/archive/jobs/{}/{}{query}", job.user, job.job)).await
    }

    pub async fn archived_logs(
        &self,
        job: &JobKey,
        page: &PageRequest,
    ) -> Result<Reply<Page<ArchivedLogRow>>, ClientError> {
        let query = encode_query(&page.pairs()[..2]);
        self.get(&format!("/v1/archive/logs/{}/{}{query}", job.user, job.job)).await
    }

    /// The object as it is kept: gzip of lines of JSON.
    pub async fn archived_log(
        &self,
        job: &JobKey,
        index: u32,
        submitted: Option<Time>,
        attempt: Option<u32>,
    ) -> Result<Bytes, ClientError> {
        let query = encode_query(&[
            ("submitted", submitted.map(|at| at.0.to_string())),
            ("attempt", attempt.map(|number| number.to_string())),
        ]);
        self.bytes(&format!("/v1/archive/logs/{}/{}/{index}{query}", job.user, job.job)).await
    }

    /// Has days of history be there again. Asking twice does no harm.
    pub async fn restore_history(
        &self,
        request: &RestoreHistory,
    ) -> Result<Reply<RestoredHistory>, ClientError> {
        self.query_within("/v1/archive/history/restore", request, RESTORE_TIMEOUT).await
    }

    pub async fn archived_days(
        &self,
        page: &PageRequest,
    ) -> Result<Reply<Page<ArchivedDay>>, ClientError> {
        self.get(&format!("/v1/archive/history{}", encode_query(&page.pairs()[..2]))).await
    }
}
