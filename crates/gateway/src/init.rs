//! Installing a master: `cell master init` for the first replica of a cell, `cell master join` for
//! the others. Both write a data directory with keys and a configuration file, and start nothing.
//!
//! The first administrator must exist before anyone can be authorised. `init` therefore writes the
//! requests that create them, with the hash of their token, to a file, and the master proposes
//! these itself once, when it has bootstrapped an empty cell. The token goes into the context file
//! of the user who ran `init` and nowhere else.

use crate::config::{Config, ConfigError};
use cellwright_cell::command::{Actor, Command, Entry, Request};
use cellwright_cell::credential::{KeyFingerprint, SecretHash, TokenKind};
use cellwright_cell::encode::{self, LoadError};
use cellwright_cell::name::Name;
use cellwright_cell::quota::Capability;
use cellwright_cell::time::{Span, Time};
use cellwright_identity::authority::{Authority, AuthorityError, Credentials};
use cellwright_identity::contexts::{Context, ContextError, Contexts};
use cellwright_identity::enroll::{
    CERTIFICATE_LIFETIME, EnrollError, JoinAnswer, JoinRequest, JoinToken, NewKey,
    own_key_fingerprint,
};
use cellwright_identity::files::{FilesError, IdentityFiles};
use cellwright_identity::private_files::write_private;
use cellwright_identity::secret::{NoRandomness, Secret};
use cellwright_identity::spiffe::Part;
use cellwright_identity::tls::{self, CertificateResolver, TlsError, Trust};
use rustls::ClientConfig;
use std::io;
use std::path::{Path, PathBuf};

const FIRST_REQUESTS: &str = "first-requests";
/// Lifetime of the first administrator's token.
const FIRST_TOKEN_LIFE: Span = Span::seconds(365 * 24 * 3600);

#[derive(Debug, thiserror::Error)]
pub enum InitError {
    #[error("{path} is there already, and nothing of it is overwritten; remove it to start over")]
    Exists { path: PathBuf },
    #[error("{path}: {why}")]
    Io { path: PathBuf, why: io::Error },
    #[error(transparent)]
    Config(#[from] ConfigError),
    #[error(transparent)]
    Files(#[from] FilesError),
    #[error(transparent)]
    Authority(#[from] AuthorityError),
    #[error(transparent)]
    Enroll(#[from] EnrollError),
    #[error(transparent)]
    Tls(#[from] TlsError),
    #[error(transparent)]
    Context(#[from] ContextError),
    #[error(transparent)]
    NoRandomness(#[from] NoRandomness),
    #[error("{path}: {why}")]
    FirstRequests { path: PathBuf, why: LoadError },
    #[error("the token is for {found}; to join as a replica it must be for master/<name>")]
    NotAReplica { found: Part },
}

/// The directories and addresses of a replica.
#[derive(Clone, Debug)]
pub struct ReplicaLocation {
    pub data_dir: PathBuf,
    /// The configuration file to write.
    pub config: PathBuf,
    pub listen: String,
    pub advertise: String,
}

/// The result of `init`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Initialised {
    pub config: PathBuf,
    pub contexts: PathBuf,
    /// Name of the context of the first administrator.
    pub context: String,
    /// The authority's fingerprint, by which agents and replicas recognise the cell.
    pub fingerprint: String,
    /// Commands to run next.
    pub next: Vec<String>,
}

/// Creates the first replica of a new cell, and its first administrator.
///
/// # Errors
/// When a file exists already or cannot be written. No existing file is changed.
pub fn init(
    cell: &Name,
    name: &Name,
    location: &ReplicaLocation,
    administrator: &Name,
    contexts: &Path,
    now: Time,
) -> Result<Initialised, InitError> {
    let files = IdentityFiles::in_data_dir(&location.data_dir);
    location.check_vacant()?;
    let (text, config) = replica_config(cell, name, 1, location)?;
    let mut contexts_file = Contexts::load(contexts)?;
    files.create()?;
    let authority = Authority::create(cell, now)?;
    files.save_authority(authority.certificate_pem(), authority.key_pem())?;
    let part = Part::Master(name.clone());
    files.save_credentials(&authority.issue_credentials(
        &part,
        &config.hosts(),
        now,
        CERTIFICATE_LIFETIME,
    )?)?;
    let (requests, token) = first_administrator(administrator)?;
    let first_requests_path = location.data_dir.join(FIRST_REQUESTS);
    let entry = encode::save_entry(&Entry { now, requests });
    write_private(&first_requests_path, &entry)
        .map_err(|why| InitError::Io { path: first_requests_path, why })?;
    contexts_file.put(
        cell.as_str(),
        Context {
            masters: vec![location.advertise.clone()],
            authority: Some(authority.certificate_pem().to_owned()),
            token: Some(token),
            certificate: None,
            key: None,
            libraries: Vec::new(),
        },
    );
    contexts_file.save(contexts)?;
    write_config(location, &text)?;
    Ok(Initialised {
        config: location.config.clone(),
        contexts: contexts.to_owned(),
        context: cell.to_string(),
        fingerprint: authority.fingerprint(),
        next: vec![
            format!("cell master start --config {}", location.config.display()),
            format!("cell --context {cell} master status"),
            format!("cell --context {cell} token create --agent MACHINE"),
        ],
    })
}

impl ReplicaLocation {
    /// To be called before anything is spent on it, such as a single-use token.
    ///
    /// # Errors
    /// When a file exists already.
    pub fn check_vacant(&self) -> Result<(), InitError> {
        if self.config.exists() {
            return Err(InitError::Exists { path: self.config.clone() });
        }
        let files = IdentityFiles::in_data_dir(&self.data_dir);
        if files.has_authority() || self.data_dir.join("log").exists() {
            return Err(InitError::Exists { path: self.data_dir.clone() });
        }
        Ok(())
    }
}

fn replica_config(
    cell: &Name,
    name: &Name,
    id: u64,
    location: &ReplicaLocation,
) -> Result<(String, Config), ConfigError> {
    let text = Config::default_file(&[
        ("cell", cell.to_string()),
        ("name", name.to_string()),
        ("id", id.to_string()),
        ("data_dir", location.data_dir.display().to_string()),
        ("listen", location.listen.clone()),
        ("advertise", location.advertise.clone()),
    ])?;
    let config = Config::parse(&text)?;
    Ok((text, config))
}

/// Written last, so that a configuration file means that everything else exists.
fn write_config(location: &ReplicaLocation, text: &str) -> Result<(), InitError> {
    let io = |why| InitError::Io { path: location.config.clone(), why };
    if let Some(folder) = location.config.parent().filter(|folder| !folder.as_os_str().is_empty()) {
        std::fs::create_dir_all(folder).map_err(io)?;
    }
    std::fs::write(&location.config, text).map_err(io)
}

/// A user with all capabilities, and their token as text.
fn first_administrator(name: &Name) -> Result<(Vec<Request>, Secret), InitError> {
    let secret = Secret::random()?;
    let id = token_id()?;
    let commands = [
        Command::AddUser { name: name.clone() },
        Command::SetCapabilities {
            user: name.clone(),
            capabilities: Capability::ALL.into_iter().collect(),
            expect: None,
        },
        Command::AddToken {
            id: id.clone(),
            kind: TokenKind::UserToken { user: name.clone() },
            secret_hash: SecretHash(secret.hash()),
            valid_for: FIRST_TOKEN_LIFE,
            parent: None,
        },
    ];
    let request = |command| Request { by: Actor::Operator, id: None, command };
    let token = Secret::new(format!("{id}.{}", secret.expose()));
    Ok((commands.map(request).into(), token))
}

/// A new id for a token: it is not secret, it only must not repeat.
///
/// # Errors
/// When the system has no randomness.
pub fn token_id() -> Result<Name, NoRandomness> {
    let random = Secret::random()?;
    // Sixteen hexadecimal digits are always a valid name.
    Name::new(&format!("t{}", &random.expose()[..16])).map_err(|_| NoRandomness)
}

/// The first requests to propose in a new cell; `None` once [`forget_first_requests`] was called.
///
/// # Errors
/// When the file cannot be read.
pub fn first_requests(data_dir: &Path) -> Result<Option<Vec<Request>>, InitError> {
    let path = data_dir.join(FIRST_REQUESTS);
    let bytes = match std::fs::read(&path) {
        Err(why) if why.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(why) => return Err(InitError::Io { path, why }),
        Ok(bytes) => bytes,
    };
    match encode::load_entry(&bytes) {
        Ok(entry) => Ok(Some(entry.requests)),
        Err(why) => Err(InitError::FirstRequests { path, why }),
    }
}

/// To be called when they have been committed.
///
/// # Errors
/// When the file cannot be removed.
pub fn forget_first_requests(data_dir: &Path) -> Result<(), InitError> {
    let path = data_dir.join(FIRST_REQUESTS);
    match std::fs::remove_file(&path) {
        Err(why) if why.kind() != io::ErrorKind::NotFound => Err(InitError::Io { path, why }),
        _ => Ok(()),
    }
}

/// A replica about to join: what to send to `/internal/join`, and how to verify the server.
pub struct Joining {
    pub request: JoinRequest,
    pub trust: Trust,
    key: Secret,
    name: Name,
}

/// What the cell gives to a replica that an operator has confirmed.
pub struct Admitted {
    pub answer: JoinAnswer,
    pub authority_key: Secret,
}

impl Joining {
    /// # Errors
    /// When the token is not one for a replica, or a host is not valid.
    pub fn prepare(token: &JoinToken, hosts: &[String]) -> Result<Joining, InitError> {
        Joining::with_key(token, token.generate_key(hosts)?)
    }

    /// As [`Joining::prepare`], with an existing key.
    ///
    /// # Errors
    /// When the token is not one for a replica.
    pub fn with_key(token: &JoinToken, new_key: NewKey) -> Result<Joining, InitError> {
        let part = token.part();
        if !matches!(part, Part::Master(_)) {
            return Err(InitError::NotAReplica { found: part });
        }
        let NewKey { key, signing_request } = new_key;
        let request = JoinRequest { token: token.text(), signing_request };
        let trust = Trust::Fingerprint(token.fingerprint.clone());
        Ok(Joining { request, trust, key, name: token.name.clone() })
    }

    /// The fingerprint that the replica prints, for an operator to confirm.
    ///
    /// # Errors
    /// When the key is not valid.
    pub fn key_print(&self) -> Result<KeyFingerprint, InitError> {
        Ok(own_key_fingerprint(&self.key)?)
    }

    /// The TLS configuration with which the replica presents the certificate it was given.
    ///
    /// # Errors
    /// When the certificate is not for its key.
    pub fn tls(&self, answer: &JoinAnswer) -> Result<ClientConfig, InitError> {
        let resolver = CertificateResolver::new(&answer.certificate, &self.key)?;
        Ok(tls::client_config(&self.trust, Some(resolver))?)
    }

    /// Writes keys and configuration of the new replica. `id` is its number in the log.
    ///
    /// # Errors
    /// When a file exists already, or the answer is not one for a replica.
    pub fn complete(
        self,
        admitted: Admitted,
        id: u64,
        location: &ReplicaLocation,
    ) -> Result<(), InitError> {
        let Admitted { answer, authority_key } = admitted;
        let files = IdentityFiles::in_data_dir(&location.data_dir);
        location.check_vacant()?;
        let (text, _) = replica_config(&answer.cell, &self.name, id, location)?;
        let authority = Authority::from_pem(answer.authority, authority_key)?;
        files.create()?;
        files.save_authority(authority.certificate_pem(), authority.key_pem())?;
        files.save_credentials(&Credentials { certificate: answer.certificate, key: self.key })?;
        write_config(location, &text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::access::caller::{PresentedCredentials, authenticate};
    use crate::access::join::Admission;
    use cellwright_cell::state::State;
    use cellwright_identity::enroll::{JoinKind, JoinReply};
    use cellwright_master::handle::Caller;
    use cellwright_master::testing::TempFolder;

    fn name(text: &str) -> Name {
        Name::new(text).unwrap()
    }

    const NOW: Time = Time(1_900_000_000_000);

    fn location(folder: &TempFolder, name: &str) -> ReplicaLocation {
        ReplicaLocation {
            data_dir: folder.0.join(name),
            config: folder.0.join(format!("{name}.toml")),
            listen: "0.0.0.0:7070".into(),
            advertise: format!("{name}.example:7070"),
        }
    }

    fn new_cell(folder: &TempFolder) -> Initialised {
        let contexts = folder.0.join("contexts.toml");
        init(&name("aa"), &name("m1"), &location(folder, "m1"), &name("ann"), &contexts, NOW)
            .unwrap()
    }

    /// The state after the master has proposed the first requests that `init` wrote.
    fn started(folder: &TempFolder) -> State {
        let requests = first_requests(&folder.0.join("m1")).unwrap().unwrap();
        let mut state = State::default();
        let verdicts = state.apply(&Entry { now: NOW, requests }, &mut Vec::new());
        assert!(verdicts.iter().all(Result::is_ok), "{verdicts:?}");
        state
    }

    #[test]
    fn the_first_administrator_can_come_in_with_the_context_that_was_written() {
        let folder = TempFolder::new();
        let initialised = new_cell(&folder);
        let config = Config::load(&initialised.config).unwrap();
        assert_eq!((config.cell, config.name, config.id), (name("aa"), name("m1"), 1));
        let state = started(&folder);
        let contexts = Contexts::load(&initialised.contexts).unwrap();
        let (context, cell) = contexts.pick(None).unwrap();
        assert!(cell.tls(context).unwrap().is_some());
        assert_eq!((context, &cell.masters[..]), ("aa", &["m1.example:7070".to_owned()][..]));
        let header = format!("Bearer {}", cell.token.as_ref().unwrap().expose());
        let authorization = Some(header.as_bytes());
        let evidence = PresentedCredentials { holder: None, authorization, dev_token: None };
        assert_eq!(authenticate(evidence, &name("aa"), &state, NOW), Ok(Caller::User(name("ann"))));
        let user = state.users().get(state.user_named(&name("ann")).unwrap()).unwrap();
        assert_eq!(user.capabilities.len(), Capability::ALL.len());
        forget_first_requests(&folder.0.join("m1")).unwrap();
        assert!(first_requests(&folder.0.join("m1")).unwrap().is_none());
    }

    #[test]
    fn a_cell_is_initialised_once() {
        let folder = TempFolder::new();
        let initialised = new_cell(&folder);
        let key = folder.0.join("m1/identity/authority.key");
        let before = std::fs::read(&key).unwrap();
        let again = |location: &ReplicaLocation| {
            init(&name("aa"), &name("m1"), location, &name("eve"), &initialised.contexts, NOW)
        };
        let mut second_location = location(&folder, "m1");
        assert!(matches!(again(&second_location), Err(InitError::Exists { .. })));
        second_location.config = folder.0.join("elsewhere.toml");
        assert!(matches!(again(&second_location), Err(InitError::Exists { .. })));
        assert_eq!(std::fs::read(&key).unwrap(), before);
        assert!(!second_location.config.exists());
    }

    #[test]
    fn a_second_replica_joins_with_a_token_and_can_sign() {
        let folder = TempFolder::new();
        new_cell(&folder);
        let mut state = started(&folder);
        let authority = IdentityFiles::in_data_dir(&folder.0.join("m1")).load_authority().unwrap();
        let secret = Secret::new("s".into());
        let id = token_id().unwrap();
        let command = Command::AddToken {
            id: id.clone(),
            kind: TokenKind::JoinReplica { name: name("m2") },
            secret_hash: SecretHash(secret.hash()),
            valid_for: Span::seconds(900),
            parent: None,
        };
        let mut apply = |command: Command| {
            let requests = vec![Request { by: Actor::Operator, id: None, command }];
            state.apply(&Entry { now: NOW, requests }, &mut Vec::new()).remove(0)
        };
        assert!(apply(command).is_ok());
        let token = JoinToken {
            kind: JoinKind::Replica,
            name: name("m2"),
            id: id.to_string(),
            secret,
            fingerprint: authority.fingerprint(),
        };
        let hosts = ["m2.example".to_owned()];
        let joining = Joining::prepare(&token, &hosts).unwrap();
        assert_eq!(joining.trust, Trust::Fingerprint(authority.fingerprint()));
        let from = "10.0.0.2";
        let admission = Admission::check(&joining.request, from, &state, NOW).unwrap();
        let mut apply = |command: Command| {
            let requests = vec![Request::from_default_sender(command, &state)];
            state.apply(&Entry { now: NOW, requests }, &mut Vec::new()).remove(0)
        };
        apply(admission.command.unwrap()).unwrap();
        let key = joining.key_print().unwrap();
        apply(Command::ConfirmReplica { name: name("m2"), key }).unwrap();
        let admission = Admission::check(&joining.request, from, &state, NOW).unwrap();
        let JoinReply::Certified(answer) = admission.answer(None, &authority, NOW).unwrap() else {
            panic!("it is confirmed");
        };
        assert!(joining.tls(&answer).is_ok());
        let authority_key = authority.key_pem().clone();
        let admitted = Admitted { answer, authority_key };
        joining.complete(admitted, 2, &location(&folder, "m2")).unwrap();
        let config = Config::load(&folder.0.join("m2.toml")).unwrap();
        assert_eq!((config.name, config.id), (name("m2"), 2));
        let files = IdentityFiles::in_data_dir(&folder.0.join("m2"));
        assert_eq!(files.load_authority().unwrap().fingerprint(), authority.fingerprint());
        let holder = files.load_credentials().unwrap().unwrap().holder().unwrap();
        assert_eq!(holder.identity.part, Part::Master(name("m2")));
    }

    #[test]
    fn an_agents_token_makes_no_replica() {
        let token = JoinToken {
            kind: JoinKind::Agent,
            name: name("n7"),
            id: "t1".into(),
            secret: Secret::new("s".into()),
            fingerprint: "0".repeat(64),
        };
        let rejected = Joining::prepare(&token, &[]);
        assert!(matches!(rejected, Err(InitError::NotAReplica { .. })));
    }
}
