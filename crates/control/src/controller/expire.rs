//! Asking for expiry when something is due: a lease of an ephemeral resource, disk kept for a log
//! saver, a quota whose span began or ended, a token. One command lets all of it expire, so finding
//! one thing is enough, and the search goes through the tables a piece at a time.
//!
//! Rejected: a list of all deadlines. It would have to follow every command that moves one, to be
//! right to the millisecond where a second does.

use super::sweep::Cursor;
use super::{Controller, Draft, Look};
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
    /// When expiry was last asked for, or this controller began.
    asked: Option<Time>,
}

impl Controller for Expire {
    fn name(&self) -> ControllerName {
        ControllerName::Expire
    }

    fn step(&mut self, look: &Look<'_>, draft: &mut Draft<'_>) {
        let asked = *self.asked.get_or_insert(look.now);
        let overdue = look.now.since(asked) >= look.settings.expire_every;
        if (something_due(look, self) || overdue) && draft.takes(&Command::Expire) {
            self.asked = Some(look.now);
            draft.push(Command::Expire);
        }
    }
}

fn something_due(look: &Look<'_>, memory: &mut Expire) -> bool {
    let Look { state, now, settings } = *look;
    let (mut machines, _) = memory.machines.advance(state.machines(), settings.rows);
    let (mut resources, _) = memory.resources.advance(state.resources(), settings.rows);
    let (mut users, _) = memory.users.advance(state.users(), settings.rows);
    let (mut tokens, _) = memory.tokens.advance(state.tokens(), settings.rows);
    machines.any(|(_, row)| row.retained.iter().any(|kept| kept.until <= now))
        || resources.any(|(_, row)| row.lease_until <= now)
        || users.any(|(id, row)| quota_changes(look, id, row))
        || tokens.any(|(_, row)| row.expires <= now)
}

/// Whether time has made a quota suffice, or made it no longer suffice.
fn quota_changes(look: &Look<'_>, id: UserId, user: &User) -> bool {
    let charged = look.state.user_load(id).map(|load| &load.charged);
    user.quota.keys().any(|band| {
        let charged = charged.and_then(|bands| bands.get(band)).copied().unwrap_or_default();
        let exceeded = !charged.within(user.granted(*band, look.now));
        exceeded != user.exceeded.contains(band)
    })
}
