//! Reading the archive: lists of what is in there, and single objects. What anybody reads of it is
//! in the audit log, as reading the output of a task is.

use super::call::Call;
use super::{Api, ApiResult, reply};
use crate::archiver::Archive;
use crate::archiver::restore::{RestoreError, RestoreRequest};
use axum::body::Body;
use axum::http::{HeaderValue, Response, header};
use cellwright_api::error::{ApiError, Code};
use cellwright_api::types::{
    ARCHIVED_JOB_FORMAT, ArchiveStatus, ArchivedDay, ArchivedJob, ArchivedJobRow, ArchivedLogRow,
    Page, RestoreHistory, RestoredHistory,
};
use cellwright_archive::names::{DayObject, HISTORY, JOBS, JobObject, LogObject};
use cellwright_archive::{ObjectInfo, StoreError, decompress};
use cellwright_cell::name::{JobKey, Name};
use cellwright_cell::quota::Capability;
use cellwright_cell::time::{Span, Time};
use cellwright_master::handle::Caller;
use cellwright_master::history::HistoryService;
use cellwright_messages::Unavailable;
use cellwright_store::DiskSpace;
use serde::{Deserialize, Serialize};

/// Longest archived job that is read.
const MAX_JOB_BYTES: u64 = 256 << 20;
/// How long days of history are there again, and at most.
const DEFAULT_KEEP: Span = Span::seconds(86_400);
const MAX_KEEP: Span = Span::seconds(30 * 86_400);
/// Objects of a page of the store.
const PAGE: usize = 1000;

fn store_error(error: StoreError) -> ApiError {
    let message = error.to_string();
    match error {
        StoreError::Damaged { .. } => ApiError::new(Code::Internal, message)
            .hint("the object does not read: restore the store from its own backup"),
        _ => ApiError::new(Code::ArchiveAway, message),
    }
}

fn restore_error(error: RestoreError) -> ApiError {
    match error {
        RestoreError::Store(error) => store_error(error),
        RestoreError::History(error) => ApiError::new(Code::Internal, error.to_string()),
        RestoreError::TooMany { .. } => ApiError::new(Code::TooLarge, error.to_string()),
    }
}

fn is_day(text: &str) -> bool {
    let is_digit = |(at, byte): (usize, u8)| match at {
        4 | 7 => byte == b'-',
        _ => byte.is_ascii_digit(),
    };
    text.len() == 10 && text.bytes().enumerate().all(is_digit)
}

impl Api {
    fn archive(&self) -> Result<&Archive, ApiError> {
        let none = || ApiError::new(Code::NoArchive, "this cell has no archive");
        self.services.archive().ok_or_else(none)
    }

    /// Writes to the audit log who reads which object.
    fn audit_archive(&self, call: &Call, command: &str, object: &str, result: &ApiResult) {
        let verdict = result.as_ref().err().map_or("done", |error| error.code.as_str());
        self.write_audit(call, command, object, verdict);
    }

    /// The leader writes the archive, and answers for certain; others know where it is.
    pub(super) async fn get_archive(&self, call: Call) -> ApiResult {
        let (view, consistent) = call.view(self).await?;
        let status = self.services.archive().map_or_else(ArchiveStatus::default, Archive::status);
        reply::one(&call, view.index, consistent, status)
    }

    pub(super) async fn list_archived_jobs(&self, call: Call) -> ApiResult {
        let archive = self.archive()?;
        let user = self.listed_user(&call)?;
        let prefix = user.map_or(JOBS.to_owned(), |user| format!("{JOBS}{user}/"));
        let row = |object: &ObjectInfo| {
            let JobObject { job, submitted, ended } = JobObject::parse(&object.name)?;
            Some(ArchivedJobRow {
                user: job.user,
                name: job.job,
                submitted_at: submitted,
                ended_at: ended,
                bytes: object.bytes,
            })
        };
        self.page(&call, archive, &prefix, row).await
    }

    /// Whose jobs are listed: the caller's own, but for those who may read the specs of all.
    fn listed_user(&self, call: &Call) -> Result<Option<Name>, ApiError> {
        let asked = call.query("user").map(Name::new).transpose();
        let asked = asked.map_err(|bad| ApiError::parameter("user", &bad.value, &bad.allowed))?;
        let caller = call.caller()?;
        let Caller::User(own) = caller else {
            self.check_capability(caller, Capability::ReadSpecs)?;
            return Ok(asked);
        };
        let may_read_all = self.check_capability(caller, Capability::ReadSpecs);
        match asked {
            Some(user) if user != *own => may_read_all.map(|()| Some(user)),
            Some(user) => Ok(Some(user)),
            None if may_read_all.is_ok() => Ok(None),
            None => Ok(Some(own.clone())),
        }
    }

    pub(super) async fn get_archived_job(&self, call: Call) -> ApiResult {
        let key = call.job()?;
        let result = self.archived_job(&call, &key).await;
        self.audit_archive(&call, "read_archived_job", &key.to_string(), &result);
        result
    }

    async fn archived_job(&self, call: &Call, key: &JobKey) -> ApiResult {
        let archive = self.archive()?;
        let submitted = submitted(call)?;
        let objects = all(archive, &JobObject::prefix(key)).await?;
        let jobs = objects.iter().filter_map(|object| JobObject::parse(&object.name));
        // One whose tasks were started again has ended more than once: its last end counts.
        let found = jobs.filter(|job| submitted.is_none_or(|at| job.submitted == at)).max();
        let found = found.ok_or_else(|| not_archived(&format!("job {key}")))?;
        let name = found.name();
        let content = archive.store().get(&name).await.map_err(store_error)?;
        let content = content.ok_or_else(|| not_archived(&format!("job {key}")))?;
        let read = move || {
            let text = decompress(&name, &content, MAX_JOB_BYTES).map_err(store_error)?;
            parse_job(&name, &text)
        };
        let job = self.run_blocking(move |_| read()).await?;
        Ok(reply::json(call, self.handle.read().index, &job))
    }

    pub(super) async fn list_archived_logs(&self, call: Call) -> ApiResult {
        let archive = self.archive()?;
        let prefix = LogObject::prefix_of_name(&call.job()?);
        let row = |object: &ObjectInfo| {
            let LogObject { job, submitted, index, attempt } = LogObject::parse(&object.name)?;
            let task = format!("{job}/{index}");
            Some(ArchivedLogRow { task, attempt, submitted_at: submitted, bytes: object.bytes })
        };
        self.page(&call, archive, &prefix, row).await
    }

    pub(super) async fn get_archived_log(&self, call: Call) -> ApiResult {
        let (key, index) = (call.job()?, call.number("index")?);
        let task = format!("{key}/{index}");
        let result = self.archived_log(&call, &key, index).await;
        self.audit_archive(&call, "read_archived_log", &task, &result);
        result
    }

    async fn archived_log(&self, call: &Call, key: &JobKey, index: u64) -> ApiResult {
        let archive = self.archive()?;
        let submitted = submitted(call)?;
        let attempt: Option<u32> = call.query("attempt").and_then(|text| text.parse().ok());
        let prefix = match submitted {
            Some(at) => LogObject::prefix(key, at),
            None => LogObject::prefix_of_name(key),
        };
        let objects = all(archive, &prefix).await?;
        let logs = objects.iter().filter_map(|object| LogObject::parse(&object.name));
        let of_task = logs.filter(|log| u64::from(log.index) == index);
        // Of the last job of that name, the last attempt.
        let found = of_task.filter(|log| attempt.is_none_or(|number| log.attempt == number)).max();
        let missing = || not_archived(&format!("output of {key}/{index}"));
        let name = found.ok_or_else(missing)?.name();
        let content = archive.store().get(&name).await.map_err(store_error)?.ok_or_else(missing)?;
        let mut response = Response::new(Body::from(content));
        let gzip = HeaderValue::from_static("application/gzip");
        response.headers_mut().insert(header::CONTENT_TYPE, gzip);
        Ok(response)
    }

    pub(super) async fn list_archived_days(&self, call: Call) -> ApiResult {
        let archive = self.archive()?;
        let row = |object: &ObjectInfo| {
            let DayObject { table, part } = DayObject::parse(&object.name)?;
            Some(ArchivedDay { table, day: part, bytes: object.bytes })
        };
        self.page(&call, archive, HISTORY, row).await
    }

    pub(super) async fn restore_history(&self, mut call: Call) -> ApiResult {
        let request: RestoreHistory = call.json(self).await?;
        let days = format!("{} to {}", request.from, request.to);
        let result = self.restored_history(&call, request).await;
        self.audit_archive(&call, "restore_history", &days, &result);
        result
    }

    async fn restored_history(&self, call: &Call, request: RestoreHistory) -> ApiResult {
        let archive = self.archive()?;
        for (field, day) in [("from", &request.from), ("to", &request.to)] {
            if !is_day(day) {
                return Err(ApiError::field(field, day, "a day, such as 2026-11-19"));
            }
        }
        let keep = request.keep.unwrap_or(DEFAULT_KEEP);
        if keep == Span::ZERO || keep > MAX_KEEP {
            let allowed = format!("1 to {} milliseconds", MAX_KEEP.0);
            return Err(ApiError::field("keep", &keep.0.to_string(), &allowed));
        }
        let now = self.handle.log_time();
        let (from, to, until) = (request.from, request.to, now.plus(keep));
        let wanted = RestoreRequest { from, to, until };
        let days = archive.days_between(&wanted).await.map_err(restore_error)?;
        if days.is_empty() {
            return Err(not_archived("history of these days")
                .hint("list which there are: cell archive ls history"));
        }
        let room = self.handle.replica().disk_space();
        if room.is_low() {
            let DiskSpace { free, reserve } = room;
            return Err(Unavailable::DiskFull { free, reserve }.into());
        }
        let folder = self.services.history().map(HistoryService::folder);
        let folder = folder.ok_or_else(|| not_archived("history"))?;
        archive.restore_days(&wanted, &folder, now).await.map_err(restore_error)?;
        let answer = RestoredHistory {
            files: u32::try_from(days.len()).unwrap_or(u32::MAX),
            bytes: days.iter().map(|(_, bytes)| bytes).sum(),
            from: wanted.from,
            to: wanted.to,
            until,
        };
        Ok(reply::json(call, self.handle.read().index, &answer))
    }

    /// A page of the objects below a prefix.
    async fn page<T: Serialize>(
        &self,
        call: &Call,
        archive: &Archive,
        prefix: &str,
        row: impl Fn(&ObjectInfo) -> Option<T>,
    ) -> ApiResult {
        let after = call.query("after").unwrap_or_default();
        let allowed = "the `next` of a page of this list";
        if !after.is_empty() && !after.starts_with(prefix) {
            return Err(ApiError::parameter("after", after, allowed));
        }
        let limit = call.limit();
        // One more than requested shows whether there is a next page.
        let found = archive.store().list(prefix, after, limit + 1).await.map_err(store_error)?;
        let shown = &found[..found.len().min(limit)];
        let more = found.len() > limit;
        let next = shown.last().filter(|_| more).map(|object| object.name.clone());
        let items: Vec<T> = shown.iter().filter_map(row).collect();
        let index = self.handle.read().index;
        Ok(reply::json(call, index, &Page { items, next, index, consistent: false }))
    }
}

fn submitted(call: &Call) -> Result<Option<Time>, ApiError> {
    let Some(text) = call.query("submitted") else { return Ok(None) };
    let time = text.parse().map(Time);
    time.map(Some).map_err(|_| ApiError::parameter("submitted", text, "milliseconds since 1970"))
}

fn not_archived(what: &str) -> ApiError {
    ApiError::new(Code::NotArchived, format!("no {what} is in the archive"))
}

/// All objects below a prefix; of one job, so there are not many.
async fn all(archive: &Archive, prefix: &str) -> Result<Vec<ObjectInfo>, ApiError> {
    let (mut objects, mut after) = (Vec::new(), String::new());
    loop {
        let page = archive.store().list(prefix, &after, PAGE).await.map_err(store_error)?;
        let Some(last) = page.last() else { return Ok(objects) };
        after.clone_from(&last.name);
        objects.extend(page);
    }
}

/// Reads an archived job, and refuses one of a newer form before anything else of it is read.
fn parse_job(name: &str, text: &[u8]) -> Result<ArchivedJob, ApiError> {
    #[derive(Deserialize)]
    struct Head {
        format: u32,
    }
    let damaged = |why: serde_json::Error| {
        store_error(StoreError::Damaged { name: name.to_owned(), why: why.to_string() })
    };
    let Head { format } = serde_json::from_slice(text).map_err(damaged)?;
    if format > ARCHIVED_JOB_FORMAT {
        let message = format!("{name} is of format {format}; allowed: up to {ARCHIVED_JOB_FORMAT}");
        return Err(ApiError::new(Code::Internal, message)
            .hint("a newer master wrote it: upgrade this one"));
    }
    serde_json::from_slice(text).map_err(damaged)
}
