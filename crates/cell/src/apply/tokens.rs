//! Tokens are made, used, revoked and expire. A user that may manage users may make any; a user may
//! make tokens for itself; a user that may manage machines may make join tokens for machines.
//!
//! A token to join as a replica or as a scheduler takes the right to manage users: both hold
//! everything the cell knows, and a user with a lesser right must not be able to make one.

use super::Context;
use crate::bounds::BoundKind;
use crate::command::{Actor, Done, Verdict};
use crate::credential::{
    AccessToken, InvalidTokenReason, KeyFingerprint, MAX_ADDRESS, MAX_JOIN_TOKEN_LIFETIME,
    PartKind, PendingReplica, ReplicaJoinRequest, SecretHash, TokenKind,
};
use crate::event::{EventKind, TokenChange};
use crate::id::TokenId;
use crate::name::Name;
use crate::quota::Capability;
use crate::reason::{Allowed, Conflict, Given, Object, Reason, Rejection, Storage};
use crate::time::{Span, Time};
use std::collections::BTreeSet;

impl Context<'_> {
    pub(super) fn add_token(
        &mut self,
        id: &Name,
        kind: &TokenKind,
        secret_hash: SecretHash,
        valid_for: Span,
        parent: Option<&Name>,
    ) -> Verdict {
        if let TokenKind::Revocation { .. } = kind {
            let value = Given::text("revocation");
            return Err(Rejection::bad_field("kind", value, Allowed::TokenKind));
        }
        if let TokenKind::UserToken { user } = kind {
            self.user_by_name(user)?;
        }
        let latest = self.parent_expiry(parent)?;
        if let Some(old) = self.state.token_named(id).and_then(|id| self.state.tokens.get(id)) {
            let expires = old.created.plus(valid_for).min(latest);
            let same = (&old.kind, old.secret_hash, old.expires) == (kind, secret_hash, expires)
                && old.parent.as_ref() == parent;
            return if same {
                Ok(Done::Unchanged)
            } else {
                Err(Rejection::Exists(Object::Token(id.clone())))
            };
        }
        check_lifetime(kind, valid_for)?;
        self.check_token_limit(kind)?;
        let token = self.state.insert_token(AccessToken {
            id: id.clone(),
            kind: kind.clone(),
            secret_hash,
            created: self.now,
            expires: self.now.plus(valid_for).min(latest),
            used: false,
            parent: parent.cloned(),
            waiting: None,
        });
        self.token_event(token, TokenChange::Added, Reason::Requested);
        Ok(Done::Applied)
    }

    /// Expiry of the parent token, which must be valid and the maker's own.
    fn parent_expiry(&self, parent: Option<&Name>) -> Result<Time, Rejection> {
        let Some(id) = parent else { return Ok(Time::NEVER) };
        let row = self.state.token_named(id).and_then(|token| self.state.tokens.get(token));
        let row = row.ok_or_else(|| Rejection::NoSuchToken(id.clone()))?;
        if row.expires <= self.now {
            return Err(Rejection::BadToken { id: id.clone(), flaw: InvalidTokenReason::Expired });
        }
        match (&row.kind, self.by) {
            (TokenKind::UserToken { user }, Actor::User(by)) if user == by => Ok(row.expires),
            _ => Err(Rejection::NoSuchToken(id.clone())),
        }
    }

    /// Every user may make tokens for itself, so their number is bounded.
    fn check_token_limit(&self, kind: &TokenKind) -> Result<(), Rejection> {
        let same = self.state.tokens.iter().filter(|(_, token)| token.kind == *kind).count();
        let most = self.state.bounds.tokens;
        match kind {
            TokenKind::UserToken { user } => {
                Self::check_one_more_for(user, BoundKind::Tokens, same, most)?;
            }
            _ if same as u64 >= most => {
                return Err(Rejection::Full(Storage::TokensAlike { most }));
            }
            _ => {}
        }
        if self.state.tokens.has_room_for(1) {
            Ok(())
        } else {
            Err(Rejection::Full(Storage::Tokens))
        }
    }

    pub(super) fn revoke_token(&mut self, id: &Name) -> Verdict {
        let token = self.state.token_named(id);
        let Some(token) = token else { return Err(Rejection::NoSuchToken(id.clone())) };
        self.drop_token(token, TokenChange::Revoked, Reason::Requested);
        Ok(Done::Applied)
    }

    pub(super) fn use_join_token(
        &mut self,
        id: &Name,
        secret: &SecretHash,
        newcomer: Option<&ReplicaJoinRequest>,
    ) -> Verdict {
        let token = self.state.token_named(id);
        let found = token.and_then(|token| Some((token, self.state.tokens.get(token)?)));
        let (token, row) = found.ok_or_else(|| Rejection::NoSuchToken(id.clone()))?;
        let bad = |flaw| Rejection::BadToken { id: id.clone(), flaw };
        row.verify(secret, self.now).map_err(bad)?;
        let Some((part, name)) = row.kind.joining_part() else {
            return Err(bad(InvalidTokenReason::NotForJoining));
        };
        let has_valid_request = newcomer.is_some_and(|who| who.address.len() <= MAX_ADDRESS);
        if has_valid_request != (part == PartKind::Replica) {
            return Err(bad(InvalidTokenReason::WrongNewcomer));
        }
        let (name, since) = (name.clone(), self.now);
        if let Some(row) = self.state.tokens.get_mut(token) {
            row.used = true;
            row.waiting =
                newcomer.cloned().map(|who| PendingReplica { who, since, confirmed: false });
        }
        self.token_event(token, TokenChange::Used, Reason::Requested);
        // A replica has not joined before it is confirmed.
        if part != PartKind::Replica {
            self.lift_revocation(part, &name);
        }
        Ok(Done::Applied)
    }

    /// Lets a waiting replica have the authority's key: a user that may manage users confirms it,
    /// and names the fingerprint that the replica displays. A thief of the token has another key.
    pub(super) fn confirm_replica(&mut self, name: &Name, key: KeyFingerprint) -> Verdict {
        let kind = TokenKind::JoinReplica { name: name.clone() };
        let waiting: Vec<(TokenId, &PendingReplica)> = self
            .state
            .tokens
            .iter()
            .filter(|(_, row)| row.kind == kind && row.expires > self.now)
            .filter_map(|(token, row)| Some((token, row.waiting.as_ref()?)))
            .collect();
        if waiting.is_empty() {
            return Err(Rejection::WrongState(Conflict::NoReplicaWaits(name.clone())));
        }
        let Some((token, found)) = waiting.into_iter().find(|(_, found)| found.who.key == key)
        else {
            let allowed = Allowed::FingerprintOfReplica(name.clone());
            return Err(Rejection::bad_field("fingerprint", Given::text(key), allowed));
        };
        if found.confirmed {
            return Ok(Done::Unchanged);
        }
        if let Some(waiting) = self.state.tokens.get_mut(token).and_then(|row| row.waiting.as_mut())
        {
            waiting.confirmed = true;
        }
        self.token_event(token, TokenChange::Confirmed, Reason::Requested);
        self.lift_revocation(PartKind::Replica, name);
        Ok(Done::Applied)
    }

    pub(super) fn expire_tokens(&mut self) {
        let now = self.now;
        let tokens = self.state.tokens.iter().filter(|(_, token)| token.expires <= now);
        for token in tokens.map(|(id, _)| id).collect::<Vec<TokenId>>() {
            self.drop_token(token, TokenChange::Expired, Reason::LeaseExpired);
        }
    }

    /// Another user that gets the name one day must not get its tokens.
    pub(super) fn drop_tokens_of(&mut self, name: &Name) {
        let kind = TokenKind::UserToken { user: name.clone() };
        let tokens = self.state.tokens.iter().filter(|(_, token)| token.kind == kind);
        for token in tokens.map(|(id, _)| id).collect::<Vec<TokenId>>() {
            self.drop_token(token, TokenChange::Revoked, Reason::Requested);
        }
    }

    /// Drops tokens that the user made, as far as their parents show, and could not make any more.
    /// Access granted by a right ends with the right. Returns how many were dropped, those that
    /// were made with them included.
    pub(super) fn drop_unauthorized_tokens(
        &mut self,
        maker: &Name,
        holds: &BTreeSet<Capability>,
    ) -> usize {
        let before = self.state.tokens.len();
        let own = TokenKind::UserToken { user: maker.clone() };
        let made = |row: &AccessToken| {
            let parent = row.parent.as_ref().and_then(|id| self.state.token_named(id));
            let parent = parent.and_then(|token| self.state.tokens.get(token));
            parent.is_some_and(|parent| parent.kind == own)
        };
        let may = |kind: &TokenKind| match kind {
            _ if *kind == own || holds.contains(&Capability::ManageUsers) => true,
            TokenKind::JoinAgent { .. } => holds.contains(&Capability::ManageMachines),
            _ => false,
        };
        let tokens = self.state.tokens.iter().filter(|(_, row)| made(row) && !may(&row.kind));
        for token in tokens.map(|(id, _)| id).collect::<Vec<TokenId>>() {
            self.drop_token(token, TokenChange::Revoked, Reason::Requested);
        }
        before - self.state.tokens.len()
    }

    /// Drops a token and all tokens that were made with it, recursively: a token ends with its
    /// parent.
    pub(super) fn drop_token(&mut self, token: TokenId, change: TokenChange, reason: Reason) {
        let mut ends = vec![token];
        while let Some(token) = ends.pop() {
            // Of several that end at once, one may have ended with another.
            let Some(id) = self.state.tokens.get(token).map(|row| row.id.clone()) else { continue };
            self.state.remove_token(token);
            self.token_event(token, change, reason.clone());
            let made = self.state.tokens.iter().filter(|(_, row)| row.parent.as_ref() == Some(&id));
            ends.extend(made.map(|(made, _)| made));
        }
    }

    pub(super) fn token_event(&mut self, token: TokenId, change: TokenChange, reason: Reason) {
        self.emit(EventKind::Token { token, change }, reason);
    }
}

/// Checks how long a token may be valid.
fn check_lifetime(kind: &TokenKind, valid_for: Span) -> Result<(), Rejection> {
    let (most, allowed) = match kind {
        TokenKind::UserToken { .. } => (u64::MAX, Allowed::LengthAtLeast(Span(1))),
        _ => (
            MAX_JOIN_TOKEN_LIFETIME.0,
            Allowed::JoinTokenLifetime { most: MAX_JOIN_TOKEN_LIFETIME },
        ),
    };
    if (1..=most).contains(&valid_for.0) {
        return Ok(());
    }
    Err(Rejection::bad_field("valid_for", Given::Length(valid_for), allowed))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::apply::fixture::{Cell, name};
    use crate::command::Command;
    use crate::words;

    const SECRET: SecretHash = SecretHash([7; 32]);

    fn add(id: &str, kind: TokenKind, valid_for: u64) -> Command {
        made_with(None, id, kind, valid_for)
    }

    fn made_with(parent: Option<&str>, id: &str, kind: TokenKind, valid_for: u64) -> Command {
        let (secret_hash, valid_for) = (SECRET, Span(valid_for));
        Command::AddToken { id: name(id), kind, secret_hash, valid_for, parent: parent.map(name) }
    }

    fn of(user: &str) -> TokenKind {
        TokenKind::UserToken { user: name(user) }
    }

    fn agent() -> TokenKind {
        TokenKind::JoinAgent { machine: name("m1") }
    }

    fn join(id: &str, secret: SecretHash) -> Command {
        Command::UseJoinToken { id: name(id), secret_hash: secret, newcomer: None }
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
        let got = cell.send_as(by, command);
        assert_eq!(words::verdict(&cell.state, &got), want);
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
        let system = "refused: use_join_token is not for user:ubar; allowed: masters of the cell";
        check(&Capability::ALL, "ubar", join("j1", SECRET), system);
    }

    #[test]
    fn a_join_token_works_once_in_time_with_its_secret() {
        let mut cell = Cell::with_machines(0);
        cell.ok(add("j1", agent(), 500));
        assert_eq!(cell.ok(add("j1", agent(), 500)), Done::Unchanged);
        assert_eq!(cell.rejection_text(add("j1", agent(), 501)), "another token j1 exists already");
        let says = |cell: &mut Cell, id: &str, secret, want: &str| {
            assert_eq!(cell.rejection_text(join(id, secret)), want);
        };
        says(&mut cell, "j9", SECRET, "there is no token j9");
        let wrong = SecretHash([8; 32]);
        says(&mut cell, "j1", wrong, "token j1 lets nobody in: its secret is wrong");
        cell.ok(add("t1", of("ubar"), 900));
        says(&mut cell, "t1", SECRET, "token t1 lets nobody in: it is not for joining");
        assert_eq!(cell.ok(join("j1", SECRET)), Done::Applied);
        assert_eq!(cell.event_lines, ["token j1 for machine m1 used: requested"]);
        says(&mut cell, "j1", SECRET, "token j1 lets nobody in: it was used before");
        says(&mut cell, "j1", wrong, "token j1 lets nobody in: its secret is wrong");
        cell.ok(add("j2", agent(), 500));
        cell.now += 499;
        says(&mut cell, "j2", SECRET, "token j2 lets nobody in: it has expired");
        assert_eq!(cell.ok(Command::Expire), Done::Applied);
        says(&mut cell, "j2", SECRET, "there is no token j2");
        assert_eq!(cell.state.tokens().len(), 1);
    }

    #[test]
    fn a_replica_waits_until_an_operator_names_its_key() {
        let mut cell = Cell::with_machines(0);
        let replica = TokenKind::JoinReplica { name: name("m2") };
        cell.ok(add("j1", replica.clone(), 500));
        let (own, other) = (KeyFingerprint([1; 16]), KeyFingerprint([2; 16]));
        let ask = |key, address: &str| Command::UseJoinToken {
            id: name("j1"),
            secret_hash: SECRET,
            newcomer: Some(ReplicaJoinRequest { key, address: address.into() }),
        };
        let confirm = |key| Command::ConfirmReplica { name: name("m2"), key };
        assert!(cell.rejection_text(confirm(own)).contains("no replica m2 waits to be confirmed"));
        let wrong = "token j1 lets nobody in: it is for another kind of newcomer";
        assert_eq!(cell.rejection_text(join("j1", SECRET)), wrong);
        assert_eq!(cell.rejection_text(ask(own, &"x".repeat(65))), wrong);
        cell.ok(ask(own, "10.0.0.2"));
        let is_confirmed = |cell: &Cell| {
            let mut rows = cell.state.tokens().iter();
            rows.any(|(_, row)| row.waiting.as_ref().is_some_and(|waiting| waiting.confirmed))
        };
        assert!(!is_confirmed(&cell));
        assert!(cell.rejection_text(ask(other, "10.0.0.3")).contains("it was used before"));
        assert!(cell.rejection_text(confirm(other)).contains("what replica m2 itself shows"));
        let lacks = cell.send_as("ubar", confirm(own));
        assert!(matches!(lacks, Err(Rejection::NotAllowed { .. })), "{lacks:?}");
        assert!(!is_confirmed(&cell));
        assert_eq!(cell.ok(confirm(own)), Done::Applied);
        assert_eq!(cell.event_lines, ["token j1 for replica m2 confirmed: requested"]);
        assert!(is_confirmed(&cell));
        assert_eq!(cell.ok(confirm(own)), Done::Unchanged);
        cell.now += 500;
        assert!(cell.rejection_text(confirm(own)).contains("no replica m2 waits to be confirmed"));
        cell.ok(add("j2", agent(), 500));
        let newcomer = Some(ReplicaJoinRequest { key: own, address: String::new() });
        let agents = Command::UseJoinToken { id: name("j2"), secret_hash: SECRET, newcomer };
        assert!(cell.rejection_text(agents).contains("another kind of newcomer"));
    }

    #[test]
    fn lives_are_bounded_and_end_with_the_user() {
        let mut cell = Cell::with_machines(0);
        let most = MAX_JOIN_TOKEN_LIFETIME.0;
        let message = cell.rejection_text(add("j1", agent(), most + 1));
        let want = "field valid_for: value 900001 ms is not valid; allowed: 1 to 900000 ms, 15 min";
        assert_eq!(message, want);
        cell.ok(add("j1", agent(), most));
        assert!(cell.rejection_text(add("t1", of("ubar"), 0)).contains("allowed: 1 ms or more"));
        cell.ok(add("t1", of("ubar"), u64::MAX));
        cell.ok(Command::RemoveUser { name: name("ubar"), expect: None });
        assert_eq!(cell.state.token_named(&name("t1")), None);
        assert_eq!(cell.event_lines[0], "token#1 revoked: requested");
    }

    #[test]
    fn a_token_ends_with_the_one_it_was_made_with() {
        let mut cell = Cell::with_machines(0);
        cell.ok(Command::AddUser { name: name("ufoo") });
        let capabilities = BTreeSet::from([Capability::ManageUsers]);
        cell.ok(Command::SetCapabilities { user: name("ubar"), capabilities, expect: None });
        cell.ok(add("stolen", of("ubar"), 500));
        let end = cell.state.now().plus(Span(500));
        cell.send_as("ubar", made_with(Some("stolen"), "own", of("ubar"), 90_000)).unwrap();
        cell.send_as("ubar", made_with(Some("own"), "ufoos", of("ufoo"), 90_000)).unwrap();
        cell.send_as("ubar", made_with(Some("own"), "agents", agent(), 90_000)).unwrap();
        cell.ok(add("apart", of("ubar"), 90_000));
        assert!(
            cell.state.tokens().iter().all(|(_, row)| row.expires <= end || row.parent.is_none())
        );
        let foreign = cell.send_as("ufoo", made_with(Some("apart"), "more", of("ufoo"), 10));
        assert_eq!(foreign, Err(Rejection::NoSuchToken(name("apart"))), "not the maker's own");
        let joins = cell.send_as("ubar", made_with(Some("agents"), "more", of("ubar"), 10));
        assert_eq!(joins, Err(Rejection::NoSuchToken(name("agents"))), "not one to come in with");
        cell.ok(Command::RevokeToken { id: name("stolen") });
        let left: Vec<String> =
            cell.state.tokens().iter().map(|(_, row)| row.id.to_string()).collect();
        assert_eq!(left, ["apart"]);
        let late = cell.send_as("ubar", made_with(Some("own"), "more", of("ubar"), 10));
        assert_eq!(
            late,
            Err(Rejection::NoSuchToken(name("own"))),
            "no longer one to make others with"
        );
    }

    #[test]
    fn what_a_user_made_for_others_goes_with_the_user() {
        let mut cell = Cell::with_machines(0);
        cell.ok(Command::AddUser { name: name("ufoo") });
        let capabilities = BTreeSet::from([Capability::ManageUsers]);
        cell.ok(Command::SetCapabilities { user: name("ubar"), capabilities, expect: None });
        cell.ok(add("t1", of("ubar"), 500));
        cell.send_as("ubar", made_with(Some("t1"), "t2", of("ufoo"), 90_000)).unwrap();
        cell.now += 499;
        let late = cell.send_as("ubar", made_with(Some("t1"), "t3", of("ubar"), 10));
        let flaw = InvalidTokenReason::Expired;
        assert_eq!(late, Err(Rejection::BadToken { id: name("t1"), flaw }));
        cell.ok(Command::RemoveUser { name: name("ubar"), expect: None });
        assert_eq!(cell.state.tokens().len(), 0);
    }

    /// `ubar` makes one of each kind with both rights; compares what is left with `holds` alone.
    fn check_left(holds: &[Capability], want: &[&str]) {
        let mut cell = Cell::with_machines(0);
        for user in ["ufoo", "admin"] {
            cell.ok(Command::AddUser { name: name(user) });
        }
        let set = |user: &str, holds: &[Capability]| {
            let capabilities = holds.iter().copied().collect();
            Command::SetCapabilities { user: name(user), capabilities, expect: None }
        };
        let both = [Capability::ManageUsers, Capability::ManageMachines];
        cell.ok(set("ubar", &both));
        cell.ok(set("admin", &both));
        cell.ok(add("t1", of("ubar"), 900));
        cell.ok(add("t2", of("admin"), 900));
        cell.send_as("ubar", made_with(Some("t1"), "own", of("ubar"), 900)).unwrap();
        cell.send_as("ubar", made_with(Some("own"), "admins", of("admin"), 900)).unwrap();
        cell.send_as("ubar", made_with(Some("t1"), "agents", agent(), 900)).unwrap();
        let replica = TokenKind::JoinReplica { name: name("r2") };
        cell.send_as("ubar", made_with(Some("t1"), "replicas", replica, 900)).unwrap();
        let scheduler = TokenKind::JoinScheduler { name: name("s2") };
        cell.send_as("ubar", made_with(Some("t1"), "schedulers", scheduler, 900)).unwrap();
        cell.send_as("admin", made_with(Some("admins"), "hidden", of("ubar"), 900)).unwrap();
        cell.send_as("admin", made_with(Some("t2"), "ufoos", of("ufoo"), 900)).unwrap();
        let done = cell.ok(set("ubar", holds));
        let left: Vec<String> =
            cell.state.tokens().iter().map(|(_, row)| row.id.to_string()).collect();
        assert_eq!(left, want, "with {holds:?}");
        let revoked_count =
            cell.event_lines.iter().filter(|line| line.contains("revoked: requested")).count();
        let gone = 9 - want.len();
        assert_eq!(revoked_count, gone, "{:?}", cell.event_lines);
        let counted = if gone == 0 { Done::Applied } else { Done::Revoked(gone as u32) };
        assert_eq!(done, counted);
    }

    #[test]
    fn a_right_that_is_taken_away_takes_along_what_was_made_by_it() {
        use Capability::{AdministrateJobs, ManageMachines, ManageUsers};
        let all = ["t1", "t2", "own", "admins", "agents", "replicas", "schedulers", "hidden"];
        let all: Vec<&str> = all.into_iter().chain(["ufoos"]).collect();
        check_left(&[ManageUsers], &all);
        check_left(&[ManageUsers, ManageMachines, AdministrateJobs], &all);
        check_left(&[ManageMachines], &["t1", "t2", "own", "agents", "ufoos"]);
        check_left(&[AdministrateJobs], &["t1", "t2", "own", "ufoos"]);
        check_left(&[], &["t1", "t2", "own", "ufoos"]);
    }

    #[test]
    fn nobody_has_tokens_without_end() {
        let mut cell = Cell::with_machines(0);
        for number in 0..crate::bounds::Bounds::default().tokens {
            cell.send_as("ubar", add(&format!("t{number}"), of("ubar"), 900)).unwrap();
        }
        let more = cell.send_as("ubar", add("more", of("ubar"), 900));
        assert!(matches!(more, Err(Rejection::OverBound { .. })), "{more:?}");
    }
}
