//! Tokens are made, used, revoked and expire. Whoever may manage users may make any; a user may
//! make tokens for themselves; whoever manages machines may let machines in.
//!
//! A token to join as a replica or as a scheduler takes the right to manage users: both hold
//! everything the cell knows, and nobody with a lesser right should be able to make one.

use super::Context;
use crate::command::{Actor, Done, Verdict};
use crate::credential::{
    AccessToken, MAX_JOIN_LIFE, MAX_USER_TOKENS, PartKind, SecretHash, TokenFlaw, TokenKind,
};
use crate::event::{TokenChange, What};
use crate::id::TokenId;
use crate::name::Name;
use crate::quota::Capability;
use crate::reason::{Reason, Refusal};
use crate::time::Time;

impl Context<'_> {
    pub(super) fn add_token(
        &mut self,
        id: &Name,
        kind: &TokenKind,
        secret_hash: SecretHash,
        expires: Time,
    ) -> Verdict {
        self.may_manage_token(kind)?;
        if let TokenKind::Dismissed { .. } = kind {
            let (field, value) = ("kind".to_owned(), "dismissed".to_owned());
            let allowed = "user_token, join_agent, join_replica, join_scheduler".to_owned();
            return Err(Refusal::BadField { field, value, allowed });
        }
        if let TokenKind::UserToken { user } = kind {
            self.user_by_name(user)?;
        }
        if let Some(old) = self.state.token_named(id).and_then(|id| self.state.tokens.get(id)) {
            let same = (&old.kind, old.secret_hash, old.expires) == (kind, secret_hash, expires);
            return match same {
                true => Ok(Done::Unchanged),
                false => Err(Refusal::Exists(format!("another token {id}"))),
            };
        }
        self.check_expiry(kind, expires)?;
        self.room_for_token(kind)?;
        let (id, kind, created) = (id.clone(), kind.clone(), self.now);
        let token = AccessToken { id, kind, secret_hash, created, expires, used: false };
        let token = self.state.insert_token(token);
        self.token_event(token, TokenChange::Added, Reason::Requested);
        Ok(Done::Applied)
    }

    /// What needs which right. Asked before anything is looked up.
    fn may_manage_token(&self, kind: &TokenKind) -> Result<(), Refusal> {
        match (kind, self.by) {
            (TokenKind::UserToken { user }, Actor::User(by)) if user == by => {
                self.user_by_name(by).map(drop)
            }
            (
                TokenKind::JoinAgent { .. } | TokenKind::Dismissed { part: PartKind::Agent, .. },
                _,
            ) if self.require(Capability::ManageMachines).is_ok() => Ok(()),
            _ => self.require(Capability::ManageUsers),
        }
    }

    fn check_expiry(&self, kind: &TokenKind, expires: Time) -> Result<(), Refusal> {
        let joins = !matches!(kind, TokenKind::UserToken { .. });
        let latest = if joins { self.now.plus(MAX_JOIN_LIFE) } else { Time::NEVER };
        if self.now < expires && expires <= latest {
            return Ok(());
        }
        let allowed = match joins {
            true => format!("after {}, now, and at most {}, a day later", self.now.0, latest.0),
            false => format!("after {}, now", self.now.0),
        };
        Err(Refusal::BadField { field: "expires".into(), value: expires.0.to_string(), allowed })
    }

    /// Anybody may make tokens for themselves, so there is an end to it.
    fn room_for_token(&self, kind: &TokenKind) -> Result<(), Refusal> {
        let same = self.state.tokens.iter().filter(|(_, token)| token.kind == *kind).count();
        if same >= MAX_USER_TOKENS || !self.state.tokens.has_room_for(1) {
            let what = format!("tokens of this kind and name; at most {MAX_USER_TOKENS} allowed");
            return Err(Refusal::Full(what));
        }
        Ok(())
    }

    /// Without the right to manage users, what is somebody else's and what does not exist look the
    /// same.
    pub(super) fn revoke_token(&mut self, id: &Name) -> Verdict {
        let token = self.state.token_named(id);
        let found = token.and_then(|token| Some((token, self.state.tokens.get(token)?)));
        let Some((token, row)) = found else {
            self.require(Capability::ManageUsers)?;
            return Err(Refusal::NoSuchToken(id.clone()));
        };
        self.may_manage_token(&row.kind)?;
        self.drop_token(token, TokenChange::Revoked, Reason::Requested);
        Ok(Done::Applied)
    }

    pub(super) fn use_join_token(&mut self, id: &Name, secret: &SecretHash) -> Verdict {
        self.system_only()?;
        let token = self.state.token_named(id);
        let found = token.and_then(|token| Some((token, self.state.tokens.get(token)?)));
        let (token, row) = found.ok_or_else(|| Refusal::NoSuchToken(id.clone()))?;
        let bad = |flaw| Refusal::BadToken { id: id.clone(), flaw };
        row.admits(secret, self.now).map_err(bad)?;
        let Some((part, name)) = row.kind.joiner() else {
            return Err(bad(TokenFlaw::NotForJoining));
        };
        let name = name.clone();
        if let Some(row) = self.state.tokens.get_mut(token) {
            row.used = true;
        }
        self.token_event(token, TokenChange::Used, Reason::Requested);
        self.forget_gone(part, &name);
        Ok(Done::Applied)
    }

    pub(super) fn expire_tokens(&mut self) {
        let now = self.now;
        let tokens = self.state.tokens.iter().filter(|(_, token)| token.expires <= now);
        for token in tokens.map(|(id, _)| id).collect::<Vec<TokenId>>() {
            self.drop_token(token, TokenChange::Expired, Reason::LeaseExpired);
        }
    }

    /// A name that somebody else gets one day must not come with keys.
    pub(super) fn drop_tokens_of(&mut self, name: &Name) {
        let kind = TokenKind::UserToken { user: name.clone() };
        let tokens = self.state.tokens.iter().filter(|(_, token)| token.kind == kind);
        for token in tokens.map(|(id, _)| id).collect::<Vec<TokenId>>() {
            self.drop_token(token, TokenChange::Revoked, Reason::Requested);
        }
    }

    pub(super) fn drop_token(&mut self, token: TokenId, change: TokenChange, reason: Reason) {
        self.state.remove_token(token);
        self.token_event(token, change, reason);
    }

    pub(super) fn token_event(&mut self, token: TokenId, change: TokenChange, reason: Reason) {
        self.emit(What::Token { token, change }, reason);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::apply::fixture::{Cell, name};
    use crate::command::Command;
    use crate::render;
    use std::collections::BTreeSet;

    const SECRET: SecretHash = SecretHash([7; 32]);

    fn add(id: &str, kind: TokenKind, expires: u64) -> Command {
        Command::AddToken { id: name(id), kind, secret_hash: SECRET, expires: Time(expires) }
    }

    fn of(user: &str) -> TokenKind {
        TokenKind::UserToken { user: name(user) }
    }

    fn agent() -> TokenKind {
        TokenKind::JoinAgent { machine: name("m1") }
    }

    fn join(id: &str, secret: SecretHash) -> Command {
        Command::UseJoinToken { id: name(id), secret_hash: secret }
    }

    fn check(holds: &[Capability], by: &str, command: Command, want: &str) {
        let mut cell = Cell::with_machines(0);
        cell.ok(Command::AddUser { name: name("ufoo") });
        cell.ok(add("t1", of("ufoo"), 900));
        cell.ok(add("j1", agent(), 900));
        let capabilities: BTreeSet<Capability> = holds.iter().copied().collect();
        if !holds.is_empty() {
            cell.ok(Command::SetCapabilities { user: name("ubar"), capabilities, expect: None });
        }
        let got = cell.by(by, command);
        assert_eq!(render::verdict(&cell.state, &got), want);
    }

    #[test]
    fn who_may_make_and_revoke_what() {
        let users = [Capability::ManageUsers];
        let machines = [Capability::ManageMachines];
        let lacks = "refused: user ubar lacks the capability manage_users";
        let revoke = |id| Command::RevokeToken { id: name(id) };
        let replica = || TokenKind::JoinReplica { name: name("r2") };
        check(&[], "ubar", add("t2", of("ubar"), 900), "done");
        check(&[], "ubar", add("t2", of("ufoo"), 900), lacks);
        check(&users, "ubar", add("t2", of("ufoo"), 900), "done");
        check(&users, "ubar", add("t2", of("nobody"), 900), "refused: there is no user nobody");
        check(&[], "nobody", add("t2", of("nobody"), 900), "refused: there is no user nobody");
        check(&[], "ubar", add("j2", agent(), 900), lacks);
        check(&machines, "ubar", add("j2", agent(), 900), "done");
        check(&users, "ubar", add("j2", agent(), 900), "done");
        check(&machines, "ubar", add("j2", replica(), 900), lacks);
        check(&users, "ubar", add("j2", replica(), 900), "done");
        check(&[], "ufoo", revoke("t1"), "done");
        check(&[], "ubar", revoke("t1"), lacks);
        check(&[], "ubar", revoke("t9"), lacks);
        check(&users, "ubar", revoke("t9"), "refused: there is no token t9");
        check(&machines, "ubar", revoke("j1"), "done");
        let system = "refused: only the cell's own parts may do this; ubar is a user";
        check(&Capability::ALL, "ubar", join("j1", SECRET), system);
    }

    #[test]
    fn a_join_token_works_once_in_time_with_its_secret() {
        let mut cell = Cell::with_machines(0);
        cell.ok(add("j1", agent(), 500));
        assert_eq!(cell.ok(add("j1", agent(), 500)), Done::Unchanged);
        assert_eq!(cell.refused(add("j1", agent(), 501)), "another token j1 exists already");
        let says = |cell: &mut Cell, id: &str, secret, want: &str| {
            assert_eq!(cell.refused(join(id, secret)), want);
        };
        says(&mut cell, "j9", SECRET, "there is no token j9");
        let wrong = SecretHash([8; 32]);
        says(&mut cell, "j1", wrong, "token j1 lets nobody in: its secret is wrong");
        cell.ok(add("t1", of("ubar"), 900));
        says(&mut cell, "t1", SECRET, "token t1 lets nobody in: it is not for joining");
        assert_eq!(cell.ok(join("j1", SECRET)), Done::Applied);
        assert_eq!(cell.said, ["token j1 for machine m1 used: requested"]);
        says(&mut cell, "j1", SECRET, "token j1 lets nobody in: it was used before");
        says(&mut cell, "j1", wrong, "token j1 lets nobody in: its secret is wrong");
        cell.ok(add("j2", agent(), 500));
        cell.now = 499;
        says(&mut cell, "j2", SECRET, "token j2 lets nobody in: it has expired");
        assert_eq!(cell.ok(Command::Expire), Done::Applied);
        says(&mut cell, "j2", SECRET, "there is no token j2");
        assert_eq!(cell.state.tokens().len(), 1);
    }

    #[test]
    fn lives_are_bounded_and_end_with_the_user() {
        let mut cell = Cell::with_machines(0);
        cell.now = 99;
        let day = MAX_JOIN_LIFE.0;
        let said = cell.refused(add("j1", agent(), 102 + day));
        assert!(said.starts_with("field expires: value 86400102 is not valid; allowed: after 100"));
        cell.ok(add("j1", agent(), 101 + day));
        assert!(cell.refused(add("t1", of("ubar"), 50)).contains("allowed: after 102, now"));
        cell.ok(add("t1", of("ubar"), u64::MAX));
        cell.ok(Command::RemoveUser { name: name("ubar"), expect: None });
        assert_eq!(cell.state.token_named(&name("t1")), None);
        assert_eq!(cell.said[0], "token#1 revoked: requested");
    }

    #[test]
    fn nobody_has_tokens_without_end() {
        let mut cell = Cell::with_machines(0);
        for number in 0..MAX_USER_TOKENS {
            cell.by("ubar", add(&format!("t{number}"), of("ubar"), 900)).unwrap();
        }
        let more = cell.by("ubar", add("more", of("ubar"), 900));
        assert!(matches!(more, Err(Refusal::Full(_))), "{more:?}");
    }
}
