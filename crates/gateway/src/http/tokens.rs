//! Tokens: made here, so that a secret is generated once, returned once, and stored in the log only
//! as a hash.

use super::call::Call;
use super::{Api, ApiResult, reply, view};
use crate::access::listener::CallerProof;
use cellwright_api::error::{ApiError, Code};
use cellwright_api::routes::Operation;
use cellwright_api::types::{AddJoinToken, AddUserToken, Joiner, NewToken};
use cellwright_cell::command::Command;
use cellwright_cell::credential::{SecretHash, TokenKind};
use cellwright_cell::name::Name;
use cellwright_cell::time::Span;
use cellwright_identity::enroll::{JoinKind, JoinToken};
use cellwright_identity::secret::Secret;
use cellwright_master::replicated_state::View;

/// A token before it is committed.
struct UncommittedToken {
    id: Name,
    secret: Secret,
}

impl UncommittedToken {
    fn new() -> Result<UncommittedToken, ApiError> {
        let broken = |why: String| ApiError::new(Code::Internal, why);
        let secret = Secret::random().map_err(|e| broken(e.to_string()))?;
        let id_source = Secret::random().map_err(|e| broken(e.to_string()))?;
        // Twelve digits distinguish the tokens of one cell; a collision is rejected and can be
        // retried.
        let id = format!("t{}", id_source.expose().get(..12).unwrap_or_default());
        let id = Name::new(&id).map_err(|e| broken(e.to_string()))?;
        Ok(UncommittedToken { id, secret })
    }
}

impl Api {
    pub(super) async fn list_tokens(&self, call: Call) -> ApiResult {
        let of_user = call.route.operation == Operation::ListUserTokens;
        let (view, consistent) = call.view(self).await?;
        if of_user {
            let name = call.name("user")?;
            if view.state.user_named(&name).is_none() {
                return Err(cellwright_cell::reason::Rejection::NoSuchUser(name).into());
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

    pub(super) async fn add_user_token(&self, mut call: Call) -> ApiResult {
        let AddUserToken { valid_for } = call.json(self).await?;
        let user = call.name("user")?;
        let token = UncommittedToken::new()?;
        let text = Secret::new(format!("{}.{}", token.id, token.secret.expose()));
        self.add_token(call, token, TokenKind::UserToken { user }, valid_for, &text).await
    }

    pub(super) async fn add_join_token(&self, mut call: Call) -> ApiResult {
        let AddJoinToken { joiner, name, valid_for } = call.json(self).await?;
        let Some(fingerprint) = self.config.authority.clone() else {
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
        let token = UncommittedToken::new()?;
        let (id, secret) = (token.id.to_string(), token.secret.clone());
        let text = JoinToken { kind: join, name, id, secret, fingerprint }.text();
        self.add_token(call, token, kind, valid_for, &text).await
    }

    async fn add_token(
        &self,
        call: Call,
        UncommittedToken { id, secret }: UncommittedToken,
        kind: TokenKind,
        valid_for: Span,
        text: &Secret,
    ) -> ApiResult {
        let secret_hash = SecretHash(secret.hash());
        let parent = call.proof.as_ref().and_then(CallerProof::token);
        let command = Command::AddToken { id: id.clone(), kind, secret_hash, valid_for, parent };
        let (index, _) = self.commit(&call, command).await?;
        let token = text.expose().to_owned();
        // By the time of the entry that made it, which this replica has applied, as it was the
        // leader. The row is removed already where the token's lifetime was shorter than that took.
        let expiry_of = |view: &View| {
            let row = view.state.token_named(&id).and_then(|row| view.state.tokens().get(row));
            row.map(|row| row.expires)
        };
        let expires = self.handle.replicated().with(expiry_of);
        let expires = expires.unwrap_or_else(|| self.handle.log_time());
        Ok(reply::json(&call, index, &NewToken { id, token, expires, index }))
    }

    pub(super) async fn revoke_token(&self, call: Call) -> ApiResult {
        let id = call.name("token")?;
        self.change(&call, Command::RevokeToken { id }).await
    }
}
