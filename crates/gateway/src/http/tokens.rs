//! Tokens: made here, so that a secret is drawn once, shown once, and known to the log by its hash
//! alone.

use super::call::Call;
use super::{Answered, Api, reply, view};
use crate::access::listener::Proof;
use cellwright_api::error::{ApiError, Code};
use cellwright_api::routes::Operation;
use cellwright_api::types::{AddJoinToken, AddUserToken, Joiner, NewToken};
use cellwright_cell::command::Command;
use cellwright_cell::credential::{SecretHash, TokenKind};
use cellwright_cell::name::Name;
use cellwright_cell::time::Span;
use cellwright_identity::enroll::{JoinKind, JoinToken};
use cellwright_identity::secret::Secret;
use cellwright_master::replicated::View;

/// A token before it is committed.
struct Drawn {
    id: Name,
    secret: Secret,
}

impl Drawn {
    fn new() -> Result<Drawn, ApiError> {
        let broken = |why: String| ApiError::new(Code::Internal, why);
        let secret = Secret::random().map_err(|e| broken(e.to_string()))?;
        let other = Secret::random().map_err(|e| broken(e.to_string()))?;
        // Twelve digits tell tokens of one cell apart; a clash is refused and can be tried again.
        let id = format!("t{}", other.expose().get(..12).unwrap_or_default());
        let id = Name::new(&id).map_err(|e| broken(e.to_string()))?;
        Ok(Drawn { id, secret })
    }
}

impl Api {
    pub(super) async fn list_tokens(&self, call: Call) -> Answered {
        let of_user = call.route.operation == Operation::ListUserTokens;
        let (view, consistent) = call.view(self).await?;
        if of_user {
            let name = call.name("user")?;
            if view.state.user_named(&name).is_none() {
                return Err(cellwright_cell::reason::Refusal::NoSuchUser(name).into());
            }
        }
        let mine = |kind: &TokenKind| match kind {
            TokenKind::UserToken { user } => user.as_str() == call.text("user"),
            _ => false,
        };
        let rows = view.state.tokens().iter().filter(|(_, row)| !of_user || mine(&row.kind));
        let rows = rows.map(|(id, row)| (u64::from(id.0), row));
        let page = call.page('k', (view.index, consistent), rows, |row| Some(view::token(row)))?;
        reply::page(&call, &page)
    }

    pub(super) async fn add_user_token(&self, mut call: Call) -> Answered {
        let AddUserToken { valid_for } = call.json(self).await?;
        let user = call.name("user")?;
        let drawn = Drawn::new()?;
        let text = Secret::new(format!("{}.{}", drawn.id, drawn.secret.expose()));
        self.add_token(call, drawn, TokenKind::UserToken { user }, valid_for, &text).await
    }

    pub(super) async fn add_join_token(&self, mut call: Call) -> Answered {
        let AddJoinToken { joiner, name, valid_for } = call.json(self).await?;
        let Some(fingerprint) = self.settings.authority.clone() else {
            let message = "a --dev master has no certificates, so nobody can join it";
            return Err(ApiError::new(Code::WrongState, message).hint("start one without --dev"));
        };
        let (kind, join) = match joiner {
            Joiner::Agent => (TokenKind::JoinAgent { machine: name.clone() }, JoinKind::Agent),
            Joiner::Replica => (TokenKind::JoinReplica { name: name.clone() }, JoinKind::Replica),
            Joiner::Scheduler => {
                (TokenKind::JoinScheduler { name: name.clone() }, JoinKind::Scheduler)
            }
        };
        let drawn = Drawn::new()?;
        let (id, secret) = (drawn.id.to_string(), drawn.secret.clone());
        let text = JoinToken { kind: join, name, id, secret, fingerprint }.text();
        self.add_token(call, drawn, kind, valid_for, &text).await
    }

    async fn add_token(
        &self,
        call: Call,
        Drawn { id, secret }: Drawn,
        kind: TokenKind,
        valid_for: Span,
        text: &Secret,
    ) -> Answered {
        let secret_hash = SecretHash(secret.hash());
        let parent = call.proof.as_ref().and_then(Proof::token);
        let command = Command::AddToken { id: id.clone(), kind, secret_hash, valid_for, parent };
        let (index, _) = self.commit(&call, command).await?;
        let token = text.expose().to_owned();
        // By the time of the entry that made it, which this replica has applied: it led then. The
        // row is gone already where the life was shorter than that took.
        let made = |view: &View| {
            let row = view.state.token_named(&id).and_then(|row| view.state.tokens().get(row));
            row.map(|row| row.expires)
        };
        let expires = self.handle.replicated().with(made);
        let expires = expires.unwrap_or_else(|| self.handle.log_time());
        Ok(reply::json(&call, index, &NewToken { id, token, expires, index }))
    }

    pub(super) async fn revoke_token(&self, call: Call) -> Answered {
        let id = call.name("token")?;
        self.change(&call, Command::RevokeToken { id }).await
    }
}
