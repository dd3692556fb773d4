//! Events, the audit log and checkpoints, part by part.

use super::backstage::{Cursor, EventRecord, Stretch};
use super::call::Call;
use super::{Answered, Api, reply};
use cellwright_api::error::{ApiError, Code};
use cellwright_api::types::{AuditView, EventPage, EventView, Page};
use cellwright_cell::quota::Capability;
use cellwright_control::input::Unavailable;
use cellwright_store::Room;
use cellwright_supervise::note_handler_panic;

/// An event as readers get it.
pub(super) fn shown(record: EventRecord) -> EventView {
    EventView {
        cursor: record.cursor.to_string(),
        index: record.cursor.index,
        at: record.at,
        object: record.object,
        text: record.text,
        by: record.by.to_string(),
        reason_code: record.what.reason_code(&record.reason).into(),
        what: record.what,
        reason: record.reason,
    }
}

impl Api {
    /// Runs work that may wait for a disk where waiting does no harm.
    pub(super) async fn blocking<T: Send + 'static>(
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
        most: usize,
    ) -> Result<Stretch<EventRecord>, ApiError> {
        self.blocking(move |api| api.backstage.events(after, most)).await
    }

    pub(super) async fn list_events(&self, call: Call) -> Answered {
        let after = call.query("after").map(|text| Cursor::parse("after", text)).transpose()?;
        let start = after.unwrap_or(Cursor::START);
        let found = self.events_after(start, call.limit()).await?;
        let is_forgotten = found.oldest.is_none_or(|oldest| start.index < oldest);
        if found.gap && after.is_some() && is_forgotten {
            return Err(gone(start, found.oldest));
        }
        let gap = found.gap && !is_forgotten;
        let last = found.items.last().map_or(start, |record| record.cursor);
        let index = self.handle.replicated().with(|view| view.index);
        let page = EventPage {
            items: found.items.into_iter().map(shown).collect(),
            next: last.to_string(),
            oldest: found.oldest,
            gap,
            index,
        };
        Ok(reply::json(&call, index, &page))
    }

    pub(super) async fn list_audit(&self, call: Call) -> Answered {
        let after = call.query("after").map(|text| Cursor::parse("after", text)).transpose()?;
        let (start, limit) = (after.unwrap_or(Cursor::START), call.limit());
        // One more than asked tells whether there is a next page.
        let found = self.blocking(move |api| api.backstage.audit(start, limit + 1)).await?;
        let more = found.items.len() > limit;
        let items: Vec<AuditView> = found.items.into_iter().take(limit).collect();
        let next = items.last().filter(|_| more).map(|item| item.cursor.clone());
        let index = self.handle.replicated().with(|view| view.index);
        Ok(reply::json(&call, index, &Page { items, next, index, consistent: false }))
    }

    pub(super) async fn list_checkpoints(&self, call: Call) -> Answered {
        let mut items = self.blocking(|api| api.backstage.checkpoints()).await?;
        // The folders of a master are the business of those who run it.
        if self.holds(call.caller()?, Capability::ManageMachines).is_err() {
            items.iter_mut().for_each(|item| item.path.clear());
        }
        let index = self.handle.replicated().with(|view| view.index);
        Ok(reply::json(&call, index, &Page { items, next: None, index, consistent: false }))
    }

    pub(super) async fn save_checkpoint(&self, call: Call) -> Answered {
        let room = self.handle.replica().room();
        if room.is_getting_short() {
            let Room { free, reserve } = room;
            return Err(Unavailable::DiskFull { free, reserve }.into());
        }
        let view = self.handle.read();
        let index = view.index;
        let item = self.blocking(move |api| api.backstage.save_checkpoint(&view)).await?;
        reply::one(&call, index, false, item)
    }
}

fn gone(after: Cursor, oldest: Option<u64>) -> ApiError {
    let kept = oldest.map_or("nothing is kept".to_owned(), |i| format!("the oldest is of {i}"));
    let message = format!("events after {after} are no longer kept; {kept}");
    ApiError::new(Code::Gone, message).with("oldest", oldest)
}
