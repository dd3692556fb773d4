//! Events, the audit log and checkpoints, page by page.

use super::call::Call;
use super::replica_services::{Cursor, EventRecord, FeedPage};
use super::{Api, ApiResult, reply};
use cellwright_api::error::{ApiError, Code};
use cellwright_api::types::{AuditView, EventPage, EventView, Page};
use cellwright_cell::quota::Capability;
use cellwright_messages::Unavailable;
use cellwright_store::DiskSpace;
use cellwright_supervise::note_handler_panic;

/// An event as the API returns it.
pub(super) fn event_view(record: EventRecord) -> EventView {
    EventView {
        cursor: record.cursor.to_string(),
        index: record.cursor.index,
        at: record.at,
        object: record.object,
        text: record.text,
        happened: record.happened,
        machine: record.machine,
        actor: record.actor.to_string(),
        reason_code: record.kind.reason_code(&record.reason).into(),
        kind: record.kind,
        reason: record.reason,
    }
}

impl Api {
    /// Runs work that may block on a disk on a blocking thread.
    pub(super) async fn run_blocking<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Api) -> Result<T, ApiError> + Send + 'static,
    ) -> Result<T, ApiError> {
        let api = self.clone();
        let done = tokio::task::spawn_blocking(move || work(&api)).await;
        done.unwrap_or_else(|error| {
            if error.is_panic() {
                note_handler_panic();
            }
            Err(ApiError::new(Code::Internal, "the work was not finished"))
        })
    }

    pub(super) async fn events_after(
        &self,
        after: Cursor,
        limit: usize,
    ) -> Result<FeedPage<EventRecord>, ApiError> {
        self.run_blocking(move |api| api.services.events(after, limit)).await
    }

    pub(super) async fn list_events(&self, call: Call) -> ApiResult {
        let after = call.query("after").map(|text| Cursor::parse("after", text)).transpose()?;
        let start = after.unwrap_or(Cursor::START);
        let found = self.events_after(start, call.limit()).await?;
        let is_forgotten = found.oldest.is_none_or(|oldest| start.index < oldest);
        if found.gap && after.is_some() && is_forgotten {
            return Err(events_gone_error(start, found.oldest));
        }
        let gap = found.gap && !is_forgotten;
        let last = found.items.last().map_or(start, |record| record.cursor);
        let index = self.handle.replicated().with(|view| view.index);
        let page = EventPage {
            items: found.items.into_iter().map(event_view).collect(),
            next: last.to_string(),
            oldest: found.oldest,
            gap,
            index,
        };
        Ok(reply::json(&call, index, &page))
    }

    pub(super) async fn list_audit(&self, call: Call) -> ApiResult {
        let after = call.query("after").map(|text| Cursor::parse("after", text)).transpose()?;
        let (start, limit) = (after.unwrap_or(Cursor::START), call.limit());
        // One more than requested shows whether there is a next page.
        let found = self.run_blocking(move |api| api.services.audit(start, limit + 1)).await?;
        let more = found.items.len() > limit;
        let items: Vec<AuditView> = found.items.into_iter().take(limit).collect();
        let next = items.last().filter(|_| more).map(|item| item.cursor.clone());
        let index = self.handle.replicated().with(|view| view.index);
        Ok(reply::json(&call, index, &Page { items, next, index, consistent: false }))
    }

    pub(super) async fn list_checkpoints(&self, call: Call) -> ApiResult {
        let mut items = self.run_blocking(|api| api.services.checkpoints()).await?;
        // The paths on a master's machine are only for those who manage machines.
        if self.check_capability(call.caller()?, Capability::ManageMachines).is_err() {
            items.iter_mut().for_each(|item| item.path.clear());
        }
        let index = self.handle.replicated().with(|view| view.index);
        Ok(reply::json(&call, index, &Page { items, next: None, index, consistent: false }))
    }

    pub(super) async fn save_checkpoint(&self, call: Call) -> ApiResult {
        let room = self.handle.replica().disk_space();
        if room.is_low() {
            let DiskSpace { free, reserve } = room;
            return Err(Unavailable::DiskFull { free, reserve }.into());
        }
        let view = self.handle.read();
        let index = view.index;
        let item = self.run_blocking(move |api| api.services.save_checkpoint(&view)).await?;
        reply::one(&call, index, false, item)
    }
}

fn events_gone_error(after: Cursor, oldest: Option<u64>) -> ApiError {
    let oldest_text =
        oldest.map_or("nothing is kept".to_owned(), |i| format!("the oldest is of {i}"));
    let message = format!("events after {after} are no longer kept; {oldest_text}");
    ApiError::new(Code::Gone, message).with("oldest", oldest)
}
