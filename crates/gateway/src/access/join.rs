//! Joining and renewing: a signing request (CSR) is exchanged for a certificate.
//!
//! The order is the guarantee: the token's use goes through the log first, and only a use that was
//! committed is answered with a certificate. A second request with the same token is rejected by
//! whichever replica leads then.
//!
//! Should the answer be lost on the way, or the outcome be unknown to the joiner (a leader without
//! a majority may commit the use when it has one again), the joiner retries with the same signing
//! request. Its use has the same request number in the log, and gets its first answer again: a
//! certificate for a key that only the joiner has, so a thief with the token and another key is
//! rejected as before.
//!
//! A replica is given more: with its certificate it may have the authority's key, which signs all
//! others. So it waits, its fingerprint in the log, until a user who may manage users has compared
//! that with the one the new replica prints, and retries meanwhile. The authority's key is given
//! only over a connection that presents the certificate of the confirmed key ([`authority_for`]):
//! neither the token nor anything that was sent before is enough.
//!
//! The cell's record of the token decides, not what its text claims: the name in the state, the
//! name in the text and the name in the signing request must be the same.

use super::caller::{ClockTimes, may_renew};
use cellwright_cell::command::{Actor, Command, RequestId, Verdict};
use cellwright_cell::credential::{
    AccessToken, InvalidTokenReason, KeyFingerprint, MAX_ADDRESS, ReplicaJoinRequest, SecretHash,
    TokenKind,
};
use cellwright_cell::id::TaskId;
use cellwright_cell::name::Name;
use cellwright_cell::reason::Rejection;
use cellwright_cell::replay_windows::{WindowLookup, fingerprint};
use cellwright_cell::state::State;
use cellwright_cell::task::TaskState;
use cellwright_cell::time::{Span, Time};
use cellwright_identity::authority::{Authority, AuthorityError, IssueTime, SigningRequest};
use cellwright_identity::enroll::{
    AuthorityAnswer, CERTIFICATE_LIFETIME, CertificateHolder, EnrollError, JoinAnswer, JoinReply,
    JoinRequest, JoinToken, PendingConfirmation, RenewAnswer,
};
use cellwright_identity::secret::sha256;
use cellwright_identity::spiffe::{Identity, Part};
use cellwright_identity::task_identity::{TaskIdentityAnswer, TaskIdentityRequest};

#[derive(Debug, thiserror::Error)]
pub enum JoinError {
    #[error(transparent)]
    Token(#[from] EnrollError),
    #[error("the join token is not known here; it may have expired")]
    Unknown,
    #[error("the join token is not accepted: {0}")]
    InvalidToken(InvalidTokenReason),
    #[error("the signing request: {0}")]
    Request(AuthorityError),
    #[error("the signing request asks for {requested}; the token is for {bound}")]
    NameMismatch { requested: Part, bound: Part },
    #[error("the signing request asks for {requested}; the connection shows {presented}")]
    IdentityMismatch { requested: Identity, presented: Identity },
    #[error("{part} is not part of the cell any more")]
    NotPartOfCell { part: Part },
    #[error("attempt {attempt} of task {} is not placed on {machine}", task.0)]
    NotPlaced { task: TaskId, attempt: u32, machine: Name },
    #[error("no operator has confirmed {part} with key {key} just now")]
    Unconfirmed { part: Part, key: KeyFingerprint },
    #[error("the certificate has expired; join again with a new token")]
    Expired,
    #[error("the join token was refused: {0:?}")]
    Rejected(Rejection),
    #[error("signing: {0}")]
    Signing(AuthorityError),
}

/// A valid request; what is missing is the committed use of its token.
pub struct Admission {
    /// The command to commit before [`Admission::answer`]; `None` for a replica that asks
    /// again.
    pub command: Option<Command>,
    /// The number of the request, the same each time the joiner retries.
    pub id: RequestId,
    part: Part,
    request: SigningRequest,
    /// Of a replica: until when it waits for an operator, and whether it is confirmed.
    until: Time,
    confirmed: bool,
}

impl Admission {
    /// Checks everything that can be checked before the log. `now`: log time.
    ///
    /// # Errors
    /// Why the request is rejected.
    pub fn check(
        request: &JoinRequest,
        address: &str,
        state: &State,
        now: Time,
    ) -> Result<Admission, JoinError> {
        let token = JoinToken::parse(request.token.expose())?;
        let id = Name::new(&token.id).map_err(|_| JoinError::Unknown)?;
        let secret_hash = SecretHash(token.secret.hash());
        let row = state.token_named(&id).and_then(|id| state.tokens().get(id));
        let row = row.ok_or(JoinError::Unknown)?;
        let is_used = match row.verify(&secret_hash, now) {
            Ok(()) => false,
            Err(InvalidTokenReason::Used) => true,
            Err(flaw) => return Err(JoinError::InvalidToken(flaw)),
        };
        let part = match &row.kind {
            TokenKind::JoinAgent { machine } => Part::Agent(machine.clone()),
            TokenKind::JoinReplica { name } => Part::Master(name.clone()),
            TokenKind::JoinScheduler { name } => Part::Scheduler(name.clone()),
            TokenKind::UserToken { .. } | TokenKind::Revocation { .. } => {
                return Err(JoinError::InvalidToken(InvalidTokenReason::NotForJoining));
            }
        };
        let signing =
            SigningRequest::parse(&request.signing_request).map_err(JoinError::Request)?;
        // The cell in the request is not checked: the joiner has yet to learn its name.
        if signing.identity.part != part || token.part() != part {
            return Err(JoinError::NameMismatch { requested: signing.identity.part, bound: part });
        }
        let number = request_number(&id, &request.signing_request);
        let key = signing.key_fingerprint();
        let newcomer = matches!(part, Part::Master(_)).then(|| ReplicaJoinRequest {
            key,
            address: address.chars().take(MAX_ADDRESS).collect(),
        });
        let (until, known) = (row.expires, row.waiting.as_ref());
        let is_again = known.is_some_and(|waiting| waiting.who.key == key);
        let confirmed = is_again && known.is_some_and(|waiting| waiting.confirmed);
        let command = Command::UseJoinToken { id, secret_hash, newcomer };
        // Checked here and not by the log: the holder of a used token could write to the log
        // without end, and push the records of honest joiners out of the window.
        if is_used && !is_again && !has_used(state, number, &command) {
            return Err(JoinError::InvalidToken(InvalidTokenReason::Used));
        }
        let command = Some(command).filter(|_| !is_again);
        Ok(Admission { command, id: number, part, request: signing, until, confirmed })
    }

    /// The answer, once the log has given its verdict on [`Admission::command`], if there is
    /// one.
    ///
    /// # Errors
    /// When the token's use was rejected, or signing fails.
    pub fn answer(
        self,
        used: Option<Verdict>,
        authority: &Authority,
        now: impl Into<IssueTime>,
    ) -> Result<JoinReply, JoinError> {
        used.transpose().map_err(|rejection| match rejection {
            Rejection::BadToken { flaw, .. } => JoinError::InvalidToken(flaw),
            other => JoinError::Rejected(other),
        })?;
        let cell = authority.cell().clone();
        if matches!(self.part, Part::Master(_)) && !self.confirmed {
            let (key, until) = (self.request.key_fingerprint(), self.until);
            return Ok(JoinReply::Waiting(PendingConfirmation { cell, key, until }));
        }
        Ok(JoinReply::Certified(JoinAnswer {
            cell,
            certificate: issue_certificate(authority, &self.request, &self.part, now.into())?,
            authority: authority.certificate_pem().to_owned(),
        }))
    }
}

/// The authority's key, for a replica that an operator has confirmed, and whose connection proves
/// that it has the confirmed key; with the replica's name, for the audit log.
///
/// # Errors
/// Why it is rejected.
pub fn authority_for(
    holder: &CertificateHolder,
    authority: &Authority,
    state: &State,
    now: impl Into<ClockTimes>,
) -> Result<(String, AuthorityAnswer), JoinError> {
    let now = now.into();
    if holder.is_expired(now.wall) {
        return Err(JoinError::Expired);
    }
    let part = &holder.identity.part;
    let unconfirmed = || JoinError::Unconfirmed { part: part.clone(), key: holder.key };
    let Part::Master(name) = part else { return Err(unconfirmed()) };
    let is_this = |row: &AccessToken| {
        let is_bound = matches!(&row.kind, TokenKind::JoinReplica { name: bound } if bound == name);
        let confirmed = row.waiting.as_ref().filter(|waiting| waiting.confirmed);
        is_bound
            && row.expires > now.log
            && confirmed.is_some_and(|found| found.who.key == holder.key)
    };
    let is_confirmed = state.tokens().iter().any(|(_, row)| is_this(row));
    if !is_confirmed || holder.identity.cell != *authority.cell() {
        return Err(unconfirmed());
    }
    let authority_key = authority.key_pem().clone();
    Ok((format!("{name} with key {}", holder.key), AuthorityAnswer { authority_key }))
}

/// Whether this very request used its token.
fn has_used(state: &State, number: RequestId, command: &Command) -> bool {
    // By the replica that led at the time.
    let masters = state.windows().per_actor().map(|(actor, _)| actor);
    let mut masters = masters.filter(|actor| matches!(actor, Actor::Replica(_)));
    let used = |by: &Actor| {
        let window_entry = state.windows().look_up(by, number, fingerprint(command));
        matches!(window_entry, WindowLookup::Answered(Ok(_)))
    };
    masters.any(used)
}

/// Half of a strong hash, so that no other signing request with the same number can be found.
fn request_number(token: &Name, signing_request: &str) -> RequestId {
    let hash = sha256(format!("{token}\0{signing_request}").as_bytes());
    let word_at = |at: usize| {
        hash[at..at + 8].iter().fold(0, |word: u64, byte| (word << 8) | u64::from(*byte))
    };
    RequestId { client: word_at(0), sequence: word_at(8) }
}

/// The next certificate for the holder of a valid one. Any replica can answer: all hold the
/// authority.
///
/// # Errors
/// Why it is rejected.
pub fn renew(
    signing_request: &str,
    holder: &CertificateHolder,
    authority: &Authority,
    state: &State,
    now: impl Into<IssueTime>,
) -> Result<RenewAnswer, JoinError> {
    let issued = now.into();
    if holder.is_expired(issued.wall) {
        return Err(JoinError::Expired);
    }
    let request = SigningRequest::parse(signing_request).map_err(JoinError::Request)?;
    if request.identity != holder.identity || request.identity.cell != *authority.cell() {
        let identity = holder.identity.clone();
        return Err(JoinError::IdentityMismatch {
            requested: request.identity,
            presented: identity,
        });
    }
    let part = &holder.identity.part;
    if !may_renew(part, state) {
        return Err(JoinError::NotPartOfCell { part: part.clone() });
    }
    Ok(RenewAnswer { certificate: issue_certificate(authority, &request, part, issued)? })
}

/// The certificate of a task, for the agent of the machine that it is placed on. Any replica can
/// answer; one that lags behind rejects the request, and the agent retries.
///
/// # Errors
/// Why it is rejected.
pub fn certify_task(
    request: &TaskIdentityRequest,
    holder: &CertificateHolder,
    authority: &Authority,
    state: &State,
    now: impl Into<IssueTime>,
    lifetime: Span,
) -> Result<TaskIdentityAnswer, JoinError> {
    let issued = now.into();
    if holder.is_expired(issued.wall) {
        return Err(JoinError::Expired);
    }
    let machine = match &holder.identity.part {
        Part::Agent(machine) if holder.identity.cell == *authority.cell() => machine,
        part => return Err(JoinError::NotPartOfCell { part: part.clone() }),
    };
    let machine_id = state.machine_named(machine);
    let row = state.tasks().get(request.task).filter(|row| {
        machine_id.is_some() && row.machine() == machine_id && row.attempt == request.attempt
    });
    let lives = row.is_some_and(|row| !matches!(row.state, TaskState::Dead(_)));
    if !lives {
        let (task, machine) = (request.task, machine.clone());
        return Err(JoinError::NotPlaced { task, attempt: request.attempt, machine });
    }
    let name = state.task_name(request.task);
    let certificate = authority.sign_task(&request.signing_request, &name, issued, lifetime);
    Ok(TaskIdentityAnswer {
        certificate: certificate.map_err(JoinError::Request)?,
        authority: authority.certificate_pem().to_owned(),
    })
}

/// Only a master's certificate names hosts: no other part is identified by host name.
fn issue_certificate(
    authority: &Authority,
    request: &SigningRequest,
    part: &Part,
    now: IssueTime,
) -> Result<String, JoinError> {
    let hosts = if matches!(part, Part::Master(_)) { &request.hosts[..] } else { &[] };
    authority.sign(request, part, hosts, now, CERTIFICATE_LIFETIME).map_err(JoinError::Signing)
}
