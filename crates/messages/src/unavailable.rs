//! Why a master gives no verdict on a request.

use cellwright_cell::time::Span;

/// Why there is no verdict. The request may be sent again, under the same request id.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unavailable {
    #[error("this replica does not lead{}", leader.as_ref().map_or_else(
        || ", and no leader is known".to_owned(), |at| format!("; the leader is at {at}")))]
    NotLeader { leader: Option<String> },
    #[error("no majority of the replicas answers")]
    NoQuorum,
    #[error("too many requests of {who} are waiting; retry in {} ms", retry_after.0)]
    Overloaded { who: String, retry_after: Span },
    #[error("the request has {bytes} bytes; at most {limit} are allowed")]
    TooLarge { bytes: usize, limit: usize },
    #[error(
        "the disk of the log has {free} bytes free and keeps {reserve} in reserve; \
         writes are refused until space is freed"
    )]
    DiskFull { free: u64, reserve: u64 },
    #[error("{why}; upgrade the cell's other masters and schedulers first")]
    NotYet { why: String },
    #[error("the outcome is not known: {why}; send it again with the same request id")]
    Unknown { why: String },
    #[error("the master is shutting down")]
    ShuttingDown,
}
