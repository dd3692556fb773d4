//! The expiry controller: requests expiry when something is due, such as a lease of an ephemeral
//! resource, disk kept for a log saver, a quota whose span began or ended, or a token. One command
//! expires all of them, so finding one is enough, and the search goes through the tables a piece at
//! a time.
//!
//! Rejected: a list of all deadlines. It would have to follow every command that moves one, to be
//! right to the millisecond where a second does.

use super::sweep::Cursor;
use super::{CommandDraft, Controller, ControllerView};
use cellwright_cell::command::{Command, ControllerName};
use cellwright_cell::id::UserId;
use cellwright_cell::quota::User;
use cellwright_cell::time::Time;

#[derive(Debug, Default)]
pub struct Expire {
    machines: Cursor,
    resources: Cursor,
    users: Cursor,
    tokens: Cursor,
    /// When expiry was last requested, or this controller began.
    last_requested: Option<Time>,
}

impl Controller for Expire {
    fn name(&self) -> ControllerName {
        ControllerName::Expire
    }

    fn step(&mut self, view: &ControllerView<'_>, draft: &mut CommandDraft<'_>) {
        let last_requested = *self.last_requested.get_or_insert(view.now);
        let overdue = view.now.since(last_requested) >= view.settings.expire_every;
        if (is_anything_due(view, self) || overdue) && draft.accepts(&Command::Expire) {
            self.last_requested = Some(view.now);
            draft.push(Command::Expire);
        }
    }
}

fn is_anything_due(view: &ControllerView<'_>, expire: &mut Expire) -> bool {
    let ControllerView { state, now, settings, .. } = *view;
    let (mut machines, _) = expire.machines.advance(state.machines(), settings.rows_per_step);
    let (mut resources, _) = expire.resources.advance(state.resources(), settings.rows_per_step);
    let (mut users, _) = expire.users.advance(state.users(), settings.rows_per_step);
    let (mut tokens, _) = expire.tokens.advance(state.tokens(), settings.rows_per_step);
    machines.any(|(_, row)| row.retained.iter().any(|kept| kept.until <= now))
        || resources.any(|(_, row)| row.lease_until <= now)
        || users.any(|(id, row)| is_quota_changing(view, id, row))
        || tokens.any(|(_, row)| row.expires <= now)
}

/// Whether time has made a quota sufficient, or made it insufficient.
fn is_quota_changing(view: &ControllerView<'_>, id: UserId, user: &User) -> bool {
    let charged = view.state.user_load(id).map(|load| &load.charged);
    user.quota.keys().any(|band| {
        let charged = charged.and_then(|bands| bands.get(band)).copied().unwrap_or_default();
        let exceeded = !charged.within(user.granted(*band, view.now));
        exceeded != user.exceeded.contains(band)
    })
}
