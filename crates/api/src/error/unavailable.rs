//! Why there is no verdict, as callers read it.

use super::{ApiError, Code};
use cellwright_cell::time::Span;
use cellwright_messages::Unavailable;

/// How long to wait when nothing better is known.
const DEFAULT_RETRY_AFTER: Span = Span(200);

impl From<Unavailable> for ApiError {
    fn from(unavailable: Unavailable) -> ApiError {
        let message = unavailable.to_string();
        match unavailable {
            Unavailable::NotLeader { leader: Some(leader) } => {
                ApiError::new(Code::NotLeader, message).with("leader", leader)
            }
            Unavailable::NotLeader { leader: None } => {
                ApiError::new(Code::NoLeader, message).with_retry_after(DEFAULT_RETRY_AFTER)
            }
            Unavailable::NoQuorum => {
                ApiError::new(Code::NoQuorum, message).with_retry_after(DEFAULT_RETRY_AFTER)
            }
            Unavailable::Overloaded { retry_after, .. } => {
                ApiError::new(Code::Overloaded, message).with_retry_after(retry_after)
            }
            Unavailable::TooLarge { bytes, limit } => {
                ApiError::new(Code::TooLarge, message).with("bytes", bytes).with("limit", limit)
            }
            Unavailable::DiskFull { free, reserve } => {
                ApiError::new(Code::DiskFull, message).with("free", free).with("reserve", reserve)
            }
            Unavailable::NotYet { .. } => ApiError::new(Code::WrongState, message),
            Unavailable::Unknown { .. } => {
                ApiError::new(Code::TimedOut, message).with_retry_after(DEFAULT_RETRY_AFTER)
            }
            Unavailable::ShuttingDown => ApiError::new(Code::ShuttingDown, message),
        }
    }
}
