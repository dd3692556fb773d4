//! Batches: many changes in one call, with one entry of the log, one fsync, and a verdict for each.

use super::admission_limits::FieldErrors;
use super::call::Call;
use super::{Api, ApiResult, reply, user_of};
use cellwright_api::error::ApiError;
use cellwright_api::types::{Batch, BatchAnswer, Changed, ItemVerdict, MAX_BATCH};
use cellwright_cell::command::RequestId;
use cellwright_cell::replay_windows::WINDOW_SIZE;
use xxhash_rust::xxh3::xxh3_64;

impl Api {
    pub(super) async fn batch(&self, mut call: Call) -> ApiResult {
        let Batch { items } = call.json(self).await?;
        if items.is_empty() || items.len() > MAX_BATCH {
            let value = format!("{} items", items.len());
            return Err(ApiError::field("items", &value, &format!("1 to {MAX_BATCH}")));
        }
        let caller = call.caller()?;
        let mut verdicts: Vec<Option<ItemVerdict>> = vec![None; items.len()];
        let mut requests = Vec::with_capacity(items.len());
        let mut positions = Vec::with_capacity(items.len());
        for (at, item) in items.into_iter().enumerate() {
            let command = item
                .into_command(user_of(caller))
                .and_then(|command| self.check_limits(&command).map(|()| command));
            match command {
                Ok(command) => {
                    let warnings = self.warnings(&command);
                    let id = call.idempotency_key()?.map(|key| item_id(key, at));
                    positions.push((at, FieldErrors::of(&command), warnings));
                    requests.push((id, command));
                }
                Err(error) => verdicts[at] = Some(ItemVerdict::Rejected(error)),
            }
        }
        let index = if requests.is_empty() {
            self.handle.read().index
        } else {
            let done = self.handle.submit_many(caller, requests).await?;
            for ((at, errors, warnings), verdict) in positions.into_iter().zip(done.verdicts) {
                verdicts[at] = Some(match verdict {
                    Ok(done_item) => ItemVerdict::Done(Changed {
                        warnings,
                        ..Changed::new(done.index, &done_item)
                    }),
                    Err(rejection) => ItemVerdict::Rejected(errors.attach_to(rejection.into())),
                });
            }
            done.index
        };
        let lost = || {
            let message = "the entry carried no verdict for this item";
            ItemVerdict::Rejected(ApiError::new(cellwright_api::error::Code::Internal, message))
        };
        let verdicts = verdicts.into_iter().map(|v| v.unwrap_or_else(lost)).collect();
        Ok(reply::json(&call, index, &BatchAnswer { index, verdicts }))
    }
}

/// Items of one batch are requests of synthetic clients, few enough each to stay in its window.
fn item_id(key: &str, at: usize) -> RequestId {
    let client = xxh3_64(format!("{key}\0{}", at / WINDOW_SIZE).as_bytes());
    RequestId { client, sequence: (at % WINDOW_SIZE) as u64 }
}
