//! Blobs: content by digest. The bytes are on a majority of the replicas before the digest is in
//! the log.

use super::access::Viewer;
use super::call::Call;
use super::{Api, ApiResult, bodies, reply, view};
use crate::access::request_origin;
use axum::body::Body;
use axum::http::{HeaderValue, Response, header};
use cellwright_api::error::ApiError;
use cellwright_cell::blob::Blob;
use cellwright_cell::command::Command;
use cellwright_cell::name::{JobKey, Token};
use cellwright_cell::reason::Rejection;
use cellwright_cell::spec::JobSpec;
use cellwright_cell::state::State;
use cellwright_master::blobs::{BlobReader, run_blocking};
use cellwright_store::Role;
use futures::stream;
use hyper::body::Body as _;
use std::collections::{BTreeMap, BTreeSet};

/// Limit of the jobs listed as users of a blob.
const MAX_NAMED_JOBS: usize = 10;

/// The jobs that use one blob; the blob itself is only bytes and a digest.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct BlobUsage<'a> {
    pub names: BTreeSet<&'a Token>,
    pub used_by: Vec<String>,
    pub uses: u32,
}

/// The usage by all jobs, by digest.
fn blob_usage(state: &State) -> BTreeMap<&Token, BlobUsage<'_>> {
    let mut all: BTreeMap<&Token, BlobUsage<'_>> = BTreeMap::new();
    for (id, job) in state.jobs().iter() {
        let key = (!job.is_dead()).then(|| state.job_key(id)).flatten();
        add_usage(&mut all, job.specs.values().map(AsRef::as_ref), key.as_ref());
    }
    for (id, cron) in state.crons().iter() {
        add_usage(&mut all, std::iter::once(&cron.spec.job), state.cron_key(id).as_ref());
    }
    all
}

/// Digests in the viewer's own jobs.
fn own_digests<'a>(state: &'a State, viewer: &Viewer) -> BTreeSet<&'a Token> {
    let Viewer::User(name) = viewer else { return BTreeSet::new() };
    let user = state.user_named(name);
    let jobs = state.jobs().iter().filter(|(_, job)| Some(job.user) == user);
    let specs = jobs.flat_map(|(_, job)| job.specs.values().map(AsRef::as_ref));
    let crons = state.crons().iter().filter(|(_, cron)| Some(cron.user) == user);
    let specs = specs.chain(crons.map(|(_, cron)| &cron.spec.job));
    specs.flat_map(|spec: &JobSpec| &spec.task.packages).map(|package| &package.digest).collect()
}

/// Adds the usage by the specs of one job; `user`: the job, if it keeps what it names.
fn add_usage<'a>(
    all: &mut BTreeMap<&'a Token, BlobUsage<'a>>,
    specs: impl Iterator<Item = &'a JobSpec>,
    user: Option<&JobKey>,
) {
    let packages: Vec<_> = specs.flat_map(|spec| &spec.task.packages).collect();
    for package in &packages {
        all.entry(&package.digest).or_default().names.insert(&package.name);
    }
    let digests: BTreeSet<&Token> = packages.iter().map(|package| &package.digest).collect();
    let Some(user) = user else { return };
    for digest in digests {
        let usage = all.entry(digest).or_default();
        usage.uses = usage.uses.saturating_add(1);
        if usage.used_by.len() < MAX_NAMED_JOBS {
            usage.used_by.push(user.to_string());
        }
    }
}

/// Content, streamed as it is read. If it turns out to be damaged, it ends before its announced
/// length.
pub(super) fn content_response(reading: BlobReader) -> Response<Body> {
    let length = reading.length();
    let pieces = stream::try_unfold(reading, async |mut reading: BlobReader| {
        run_blocking(move || Ok(reading.next_chunk()?.map(|piece| (piece, reading)))).await
    });
    let mut response = Response::new(Body::from_stream(pieces));
    let headers = response.headers_mut();
    let binary = HeaderValue::from_static("application/octet-stream");
    headers.insert(header::CONTENT_TYPE, binary);
    headers.insert(header::CONTENT_LENGTH, HeaderValue::from(length));
    response
}

impl Api {
    pub(super) async fn list_blobs(&self, call: Call) -> ApiResult {
        let (view, consistent) = call.view(self).await?;
        let rows = view.state.blobs().iter().map(|(id, row)| (u64::from(id.0), row));
        let local = self.run_blocking(|api| api.services.local_blobs()).await?;
        let is_here = |row: &Blob| local.contains(row.digest.as_str());
        let (usage, nothing) = (blob_usage(&view.state), BlobUsage::default());
        // A caller that knows a digest may use it and read the content, so digests are not listed
        // for everyone.
        let viewer = call.viewer()?;
        let own_digests = own_digests(&view.state, &viewer);
        let rows = rows.filter(|(_, row)| {
            viewer.sees_all_specs(&view.state)
                || row.by.user().is_some_and(|by| viewer.is_user(by))
                || own_digests.contains(&row.digest)
        });
        let blob_view = |row: &Blob| {
            let row_usage = usage.get(&row.digest).unwrap_or(&nothing);
            Some(view::blob(row, is_here(row), row_usage))
        };
        let page = call.page('b', (view.index, consistent), rows, blob_view)?;
        reply::page(&call, &page)
    }

    pub(super) async fn put_blob(&self, mut call: Call) -> ApiResult {
        let digest = call.token("digest")?;
        // Redirected before the bytes are received, not after.
        let status = self.handle.status();
        if status.role != Role::Leader {
            let leader = status.leader_peer().map(|(_, peer)| peer.address);
            return Err(cellwright_messages::Unavailable::NotLeader { leader }.into());
        }
        let content = call.take_body();
        if !content.is_end_stream() {
            request_origin::require_binary(&call.headers)?;
        }
        let limits = self.config.package_limits;
        let state = self.handle.read().state;
        let known_row = state.blob_named(&digest).and_then(|id| state.blobs().get(id));
        let (by, length) = (call.caller()?.clone(), content.size_hint().exact());
        let claim = match known_row.map(|row| row.bytes) {
            None => self.incoming.claim_upload(&state, &by, length, limits)?,
            Some(bytes) => self.incoming.claim_repeat_upload(&by, bytes, limits)?,
        };
        let max_bytes = known_row.map_or(claim.bytes(), |row| row.bytes);
        let content = bodies::with_min_rate(content, self.flow.pace);
        let put = self.services.put_blob(digest.clone(), content, max_bytes).await;
        let bytes = put.map_err(|error| {
            let is_over =
                known_row.is_none() && error.details.get("limit") == Some(&max_bytes.into());
            let exceeded = is_over.then(|| claim.exceeded_rejection(&state, limits)).flatten();
            exceeded.map_or(error, ApiError::from)
        })?;
        let command = Command::AddBlob { digest: digest.clone(), bytes, limits };
        let added = self.change(&call, command).await;
        drop(claim);
        if added.is_err() && self.incoming.is_empty() {
            self.remove_unreferenced(digest).await;
        }
        added
    }

    /// Removes stored content that is not wanted, unless the log references it after all.
    async fn remove_unreferenced(&self, digest: Token) {
        let Ok(view) = self.handle.read_linearizable().await else { return };
        if view.state.blob_named(&digest).is_some() {
            return;
        }
        let removed = self.run_blocking(move |api| api.services.remove_local_blob(&digest)).await;
        if let Err(error) = removed {
            tracing::warn!(%error, "a package that was refused stays until the next sweep");
        }
    }

    pub(super) async fn get_blob(&self, call: Call) -> ApiResult {
        let digest = call.token("digest")?;
        let is_named =
            self.handle.replicated().with(|view| view.state.blob_named(&digest).is_some());
        if !is_named {
            return Err(ApiError::from(Rejection::NoSuchBlob(digest)));
        }
        Ok(content_response(self.services.get_blob(digest).await?))
    }

    pub(super) async fn remove_blob(&self, call: Call) -> ApiResult {
        let digest = call.token("digest")?;
        self.change(&call, Command::RemoveBlob { digest }).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cellwright_cell::spec::PackageRef;
    use cellwright_control::controller::testing::{Cell, job, key, name};

    #[test]
    fn a_blob_is_known_by_what_jobs_call_it_and_by_those_that_need_it() {
        let mut cell = Cell::with_machines(1);
        let digest = Token::new(&"a".repeat(64)).unwrap();
        let mut submit = |named: &str, package: &str| {
            let package = Token::new(package).unwrap();
            let mut spec = job(named, 1);
            spec.task.packages =
                vec![PackageRef { name: package, digest: digest.clone(), bytes: 9 }];
            cell.ok(Command::SubmitJob { owner: name("ubar"), spec: Box::new(spec) });
        };
        for number in 0..MAX_NAMED_JOBS + 2 {
            submit(&format!("web-{number:02}"), "server");
        }
        submit("old", "httpd");
        cell.ok(Command::StopJob { job: key("old"), expect: None });
        let all = blob_usage(&cell.state);
        let found = &all[&digest];
        let names: Vec<&str> = found.names.iter().map(|name| name.as_str()).collect();
        assert_eq!(names, ["httpd", "server"]);
        assert_eq!((found.uses, found.used_by.len()), (12, MAX_NAMED_JOBS));
        assert_eq!(found.used_by[0], "ubar/web-00");
        assert_eq!(all.len(), 1);
    }
}
