//! Revocation of parts of the cell: a machine that was removed, a replica, a scheduler. Its
//! certificate stays valid for the rest of its day wherever it is copied to, so the state records
//! that it must not be accepted; joining again with a new token ends that.
//!
//! Rejected: a list of all parts that are accepted. Then a cell whose agents joined before there
//! was a list would lose them all at the upgrade.

use super::Context;
use crate::command::{Done, Verdict};
use crate::credential::{AccessToken, PartKind, REVOCATION_RETENTION, SecretHash, TokenKind};
use crate::event::TokenChange;
use crate::id::TokenId;
use crate::machine::MachineSpec;
use crate::name::Name;
use crate::reason::{Conflict, Reason, Rejection};
use crate::state::revocation_id;

impl Context<'_> {
    pub(super) fn revoke_part(&mut self, part: PartKind, name: &Name) -> Verdict {
        if part == PartKind::Agent && self.state.machine_named(name).is_some() {
            return Err(Rejection::WrongState(Conflict::MachineInCell(name.clone())));
        }
        if self.state.is_revoked(part, name) {
            return Ok(Done::Unchanged);
        }
        self.add_revocation(part, name);
        Ok(Done::Applied)
    }

    /// Adds a machine that its own agent registers. An agent that was revoked is rejected.
    pub(super) fn register_machine(&mut self, spec: &MachineSpec) -> Verdict {
        if self.state.is_revoked(PartKind::Agent, &spec.name) {
            return Err(Rejection::WrongState(Conflict::MachineRevoked(spec.name.clone())));
        }
        self.add_machine(spec)
    }

    /// From now on the part is not accepted, and tokens with which it could join are dropped.
    pub(super) fn add_revocation(&mut self, part: PartKind, name: &Name) {
        let Some(id) = revocation_id(part, name) else { return };
        let tokens = self.state.tokens.iter().filter(|(_, token)| {
            let opens = token.kind.joining_part() == Some((part, name)) && !token.used;
            // Two names with one hash: the one revoked last is remembered.
            opens || token.id == id
        });
        for token in tokens.map(|(id, _)| id).collect::<Vec<TokenId>>() {
            self.drop_token(token, TokenChange::Revoked, Reason::Requested);
        }
        let token = self.state.insert_token(AccessToken {
            id,
            kind: TokenKind::Revocation { part, name: name.clone() },
            // No known secret has this hash, and its kind would authenticate nothing.
            secret_hash: SecretHash([0; 32]),
            created: self.now,
            expires: self.now.plus(REVOCATION_RETENTION),
            used: false,
            parent: None,
            waiting: None,
        });
        self.token_event(token, TokenChange::Added, Reason::Requested);
    }

    /// The part joined again, or an authorized user ended the revocation.
    pub(super) fn lift_revocation(&mut self, part: PartKind, name: &Name) {
        if let Some(token) = self.state.revocation(part, name) {
            self.drop_token(token, TokenChange::Revoked, Reason::Requested);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::apply::fixture::{Cell, machine, name};
    use crate::command::Command;
    use crate::quota::Capability;
    use crate::time::Span;
    use std::collections::BTreeSet;

    const SECRET: SecretHash = SecretHash([7; 32]);

    fn remove() -> Command {
        Command::RemoveMachine { name: name("m1"), expect: None }
    }

    fn token(id: &str, kind: TokenKind) -> Command {
        let (secret_hash, valid_for) = (SECRET, Span(100_000));
        Command::AddToken { id: name(id), kind, secret_hash, valid_for, parent: None }
    }

    fn agent() -> TokenKind {
        TokenKind::JoinAgent { machine: name("m1") }
    }

    fn join(id: &str) -> Command {
        Command::UseJoinToken { id: name(id), secret_hash: SECRET, newcomer: None }
    }

    fn is_revoked(cell: &Cell) -> bool {
        cell.state.is_revoked(PartKind::Agent, &name("m1"))
    }

    #[test]
    fn a_machine_that_was_removed_does_not_add_itself_again() {
        let mut cell = Cell::with_machines(1);
        let register = || Command::RegisterMachine(machine("m1", 100));
        cell.ok(token("old", agent()));
        cell.ok(remove());
        assert!(is_revoked(&cell));
        assert!(cell.rejection_text(register()).contains("machine m1 was removed"));
        assert_eq!(
            cell.rejection_text(join("old")),
            "there is no token old",
            "its keys went with it"
        );
        assert_eq!(cell.ok(Command::RegisterMachine(machine("m2", 100))), Done::Applied);
        cell.ok(token("new", agent()));
        assert!(
            cell.rejection_text(register()).contains("was removed"),
            "a token alone changes nothing"
        );
        cell.ok(join("new"));
        assert_eq!(cell.ok(register()), Done::Applied);
    }

    #[test]
    fn an_operator_who_adds_the_machine_means_it() {
        let mut cell = Cell::with_machines(1);
        cell.ok(remove());
        cell.ok(Command::AddMachine(machine("m1", 100)));
        assert!(!is_revoked(&cell));
    }

    #[test]
    fn a_revocation_is_forgotten_when_no_certificate_can_be_left() {
        let mut cell = Cell::with_machines(1);
        cell.ok(remove());
        cell.now += REVOCATION_RETENTION.0 - 10;
        cell.ok(Command::Expire);
        assert!(is_revoked(&cell));
        cell.now += 20;
        cell.ok(Command::Expire);
        assert!(!is_revoked(&cell));
    }

    #[test]
    fn who_may_send_whom_away() {
        let mut cell = Cell::with_machines(1);
        let revoke = |part| Command::RevokePart { part, name: name("x1") };
        let machines = BTreeSet::from([Capability::ManageMachines]);
        let set =
            Command::SetCapabilities { user: name("ubar"), capabilities: machines, expect: None };
        cell.ok(set);
        assert_eq!(cell.send_as("ubar", revoke(PartKind::Agent)), Ok(Done::Applied));
        assert_eq!(cell.send_as("ubar", revoke(PartKind::Agent)), Ok(Done::Unchanged));
        for part in [PartKind::Replica, PartKind::Scheduler] {
            assert!(matches!(
                cell.send_as("ubar", revoke(part)),
                Err(Rejection::NotAllowed { .. })
            ));
            cell.ok(revoke(part));
            assert!(cell.state.is_revoked(part, &name("x1")));
        }
        let present = Command::RevokePart { part: PartKind::Agent, name: name("m1") };
        assert!(cell.rejection_text(present).contains("remove it instead"));
        let made = cell.rejection_text(token(
            "t",
            TokenKind::Revocation { part: PartKind::Agent, name: name("m1") },
        ));
        assert!(made.contains("kind"), "{made}");
    }
}
