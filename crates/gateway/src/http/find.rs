//! Name resolution. People type what they remember: `web`, `ann/web`, `ann/web/3`, the first
//! letters of a machine. An exact match wins; only where there is none, every name with this prefix
//! is a candidate. A name that several users have refers to the caller's own. `last` is the job
//! that the caller submitted last, unless something has that name.
//!
//! Rejected: lists read by the client, which would carry a whole cell to find one word in it.

use super::call::Call;
use super::{Api, ApiResult, reply, user_of};
use crate::serve::DEV_USER;
use cellwright_api::types::{FoundKind, FoundView, Page};
use cellwright_cell::id::JobId;
use cellwright_cell::job::Job;
use cellwright_cell::name::Name;
use cellwright_cell::spec::JobKind;
use cellwright_cell::state::State;
use cellwright_cell::suggestions::nearest;
use cellwright_master::handle::Caller;
use std::collections::BTreeSet;

/// Limit of listed candidates; with more, the user has to type more letters.
const MAX_CANDIDATES: usize = 50;
/// If nothing has this name: the job that the caller submitted last.
const LAST: &str = "last";

impl Api {
    pub(super) async fn find(&self, call: Call) -> ApiResult {
        let text = call.query("name").unwrap_or_default().to_owned();
        let (view, consistent) = call.view(self).await?;
        let own = match call.caller()? {
            // A caller of a dev master works in this user's name.
            Caller::Operator => DEV_USER,
            caller => user_of(caller).map_or("", Name::as_str),
        };
        let (exact, like) = search(&view.state, &text);
        let mut items = if exact.is_empty() {
            newest(&view.state, &text, own).map_or(like, |found| vec![found])
        } else {
            exact
        };
        if items.is_empty() && call.flag("near") {
            let (view, text) = (view.clone(), text.clone());
            // Every name of the cell is compared with it, which must not block others.
            items.extend(self.run_blocking(move |_| Ok(nearest_name(&view.state, &text))).await?);
        }
        sort_own_first(&mut items, &text, own);
        items.sort_by(|a, b| (a.kind, &a.name).cmp(&(b.kind, &b.name)));
        items.truncate(MAX_CANDIDATES);
        let page = Page { items, next: None, index: view.index, consistent };
        reply::page(&call, &page)
    }
}

/// The closest match for a name that nothing has.
fn nearest_name(state: &State, text: &str) -> Option<FoundView> {
    // The empty prefix matches everything.
    let (_, all) = search(state, "");
    let names = all.iter().flat_map(|found| [Some(&*found.name), own_name(&found.name)]);
    let nearest = nearest(text, names.flatten())?;
    let is_it =
        |found: &&FoundView| found.name == nearest || own_name(&found.name) == Some(nearest);
    all.iter().find(is_it).cloned()
}

/// `web` of `ann/web`.
fn own_name(name: &str) -> Option<&str> {
    name.split_once('/').map(|(_, own)| own)
}

/// Of objects of one kind that differ only by their owner, the caller's comes first.
fn sort_own_first(items: &mut Vec<FoundView>, text: &str, own: &str) {
    let is_own = |found: &FoundView| {
        let rest = found.name.strip_prefix(own).and_then(|rest| rest.strip_prefix('/'));
        rest == Some(text)
    };
    if own.is_empty() {
        return;
    }
    let kinds: Vec<FoundKind> = items.iter().filter(|i| is_own(i)).map(|i| i.kind).collect();
    let tail = format!("/{text}");
    items.retain(|found| {
        is_own(found) || !kinds.contains(&found.kind) || !found.name.ends_with(&tail)
    });
}

/// `last` or `last/3`: the job that a user submitted last, or a task of it. Runs of periodic jobs
/// do not count: they would take the word over every minute.
fn newest(state: &State, text: &str, own: &str) -> Option<FoundView> {
    let (word, index) = match text.split_once('/') {
        Some((word, index)) => (word, Some(index.parse::<usize>().ok()?)),
        None => (text, None),
    };
    let user = state.user_named(&Name::new(own).ok()?).filter(|_| word == LAST)?;
    let runs: BTreeSet<JobId> =
        state.crons().iter().flat_map(|(_, cron)| cron.runs.iter().copied()).collect();
    let mine = state.jobs().iter().filter(|(id, job)| job.user == user && !runs.contains(id));
    let (id, job) = mine.max_by_key(|(id, job)| (job.submitted_at, *id))?;
    let name = state.job_key(id)?;
    match index {
        None => Some(FoundView { kind: kind_of(job), name: name.to_string() }),
        Some(index) if index < job.tasks.len() => {
            Some(FoundView { kind: FoundKind::Task, name: format!("{name}/{index}") })
        }
        Some(_) => None,
    }
}

fn kind_of(job: &Job) -> FoundKind {
    match job.spec().kind {
        JobKind::Tasks | JobKind::Daemon => FoundKind::Job,
        JobKind::AllocSet => FoundKind::AllocSet,
    }
}

/// Exact matches, and prefix matches.
fn search(state: &State, text: &str) -> (Vec<FoundView>, Vec<FoundView>) {
    let mut found = Search { text, exact: Vec::new(), prefixed: Vec::new() };
    for (id, job) in state.jobs().iter() {
        found.job(state, id, job);
    }
    for (_, cron) in state.crons().iter() {
        let owner = state.users().get(cron.user).map(|user| user.name.as_str());
        let (owner, name) = (owner.unwrap_or_default(), cron.spec.name.as_str());
        found.owned(FoundKind::Cron, owner, name);
    }
    for (_, machine) in state.machines().iter() {
        found.plain(FoundKind::Machine, machine.spec.name.as_str());
    }
    for (_, user) in state.users().iter() {
        found.plain(FoundKind::User, user.name.as_str());
    }
    (found.exact, found.prefixed)
}

struct Search<'a> {
    text: &'a str,
    exact: Vec<FoundView>,
    prefixed: Vec<FoundView>,
}

impl Search<'_> {
    fn plain(&mut self, kind: FoundKind, name: &str) {
        let view = || FoundView { kind, name: name.to_owned() };
        match name.strip_prefix(self.text) {
            Some("") => self.exact.push(view()),
            Some(_) => self.prefixed.push(view()),
            None => {}
        }
    }

    /// Matches its own name, or its name behind its owner's.
    fn owned(&mut self, kind: FoundKind, owner: &str, name: &str) {
        let full = format!("{owner}/{name}");
        let view = FoundView { kind, name: full.clone() };
        if self.text == full || self.text == name {
            self.exact.push(view);
        } else if name.starts_with(self.text)
            || (self.text.contains('/') && full.starts_with(self.text))
        {
            self.prefixed.push(view);
        }
    }

    fn job(&mut self, state: &State, id: JobId, job: &Job) {
        let Some(key) = state.job_key(id) else { return };
        // A name belongs to the newest job that had it.
        if state.job_named(&key) != Some(id) {
            return;
        }
        self.owned(kind_of(job), key.user.as_str(), key.job.as_str());
        let Some((of, index)) = self.text.rsplit_once('/') else { return };
        let Ok(index) = index.parse::<usize>() else { return };
        let full = key.to_string();
        if (of == full || of == key.job.as_str()) && index < job.tasks.len() {
            self.exact.push(FoundView { kind: FoundKind::Task, name: format!("{full}/{index}") });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(names: &[&str], text: &str, own: &str, want: &[&str]) {
        let found = |name: &&str| FoundView { kind: FoundKind::Job, name: (*name).to_owned() };
        let mut items: Vec<FoundView> = names.iter().map(found).collect();
        sort_own_first(&mut items, text, own);
        let left: Vec<&str> = items.iter().map(|item| item.name.as_str()).collect();
        assert_eq!(left, want, "{text} for {own:?}");
    }

    #[test]
    fn a_name_that_several_have_is_ones_own() {
        let both = ["ann/web", "bob/web"];
        check(&both, "web", "ann", &["ann/web"]);
        check(&both, "web", "cid", &both);
        check(&both, "web", "", &both);
        check(&["ann/web/0", "bob/web/0"], "web/0", "bob", &["bob/web/0"]);
        // A prefix match of the caller's own is not preferred.
        check(&["ann/web1", "bob/web2"], "web", "ann", &["ann/web1", "bob/web2"]);
        // A machine of that name is still another object.
        check(&["ann/web", "bob/web", "web"], "web", "ann", &["ann/web", "web"]);
        // And so is a periodic job of another user.
        let item = |kind, name: &str| FoundView { kind, name: name.to_owned() };
        let mut items = vec![item(FoundKind::Job, "ann/web"), item(FoundKind::Cron, "bob/web")];
        sort_own_first(&mut items, "web", "ann");
        assert_eq!(items.len(), 2, "{items:?}");
    }
}
