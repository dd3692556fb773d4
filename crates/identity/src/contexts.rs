//! The client's contexts file: for each cell its masters, its certificate authority, and the user's
//! credentials there.
//!
//! One file holds several cells, so that `cell --context` switches between them without setting
//! anything else; it is written with mode 0600 because it holds tokens. Rejected: environment
//! variables for addresses and tokens. They leak into every child and every crash report.

use crate::private_files::write_private;
use crate::secret::Secret;
use crate::tls::{self, CertificateResolver, TlsError, Trust};
use rustls::ClientConfig;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// Why the contexts file cannot be used.
/// Of the form of the file. A field more raises it, for an older build knows no other fields.
const VERSION: u32 = 1;

fn first_version() -> u32 {
    1
}

/// The part of the file that every version has.
#[derive(Deserialize)]
struct Versioned {
    #[serde(default = "first_version")]
    version: u32,
}

#[derive(Debug, thiserror::Error)]
pub enum ContextError {
    #[error("{path}: {why}")]
    Io { path: PathBuf, why: io::Error },
    #[error("{path}: {why}")]
    Text { path: PathBuf, why: String },
    #[error("{path} is of version {found}; allowed: 1 to {VERSION}; run the newer build")]
    TooNew { path: PathBuf, found: u32 },
    #[error("{path} can be read by others (mode {mode:o}) and holds tokens: chmod 600 it")]
    Exposed { path: PathBuf, mode: u32 },
    #[error("{path} is no plain file of this account (it is of account {owner}, this is {own})")]
    Foreign { path: PathBuf, owner: u32, own: u32 },
    #[error("there is no context {name:?}; known: {known}")]
    Unknown { name: String, known: String },
    #[error("no context is current; known: {known}. Choose one with `cell context use NAME`")]
    NoneCurrent { known: String },
    #[error("context {name:?}: {why}")]
    Incomplete { name: String, why: &'static str },
    #[error("context {name:?}: {why}")]
    Tls { name: String, why: TlsError },
}

/// The whole file.
#[derive(Clone, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Contexts {
    /// Of the file's form. Absent in one that was written by hand: the first.
    #[serde(default = "first_version")]
    version: u32,
    /// The context used when none is named.
    pub current: Option<String>,
    #[serde(default)]
    pub contexts: BTreeMap<String, Context>,
}

/// One cell as one user reaches it.
#[derive(Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Context {
    /// `host:port` of the masters, in any order.
    pub masters: Vec<String>,
    /// The authority's certificate, PEM. Without it the connection is plain text, which only a
    /// master started with `--dev` on loopback accepts.
    pub authority: Option<String>,
    /// `<id>.<secret>`, sent as a bearer token.
    pub token: Option<Secret>,
    /// A client certificate with its authority (PEM) instead of a token, and its key.
    pub certificate: Option<String>,
    pub key: Option<Secret>,
    /// Folders that job files for this cell may import from, searched in this order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub libraries: Vec<PathBuf>,
}

impl Context {
    /// The TLS configuration of the context; `None` for a plain connection to a `--dev` master.
    ///
    /// # Errors
    /// When a certificate or key does not parse, or one is given without the other.
    pub fn tls(&self, name: &str) -> Result<Option<ClientConfig>, ContextError> {
        let incomplete = |why| ContextError::Incomplete { name: name.to_owned(), why };
        let failed = |why| ContextError::Tls { name: name.to_owned(), why };
        let resolver = match (&self.certificate, &self.key) {
            (Some(certificate), Some(key)) => {
                Some(CertificateResolver::new(certificate, key).map_err(failed)?)
            }
            (None, None) => None,
            _ => return Err(incomplete("certificate and key belong together; one is missing")),
        };
        let Some(authority) = &self.authority else {
            if self.token.is_some() || resolver.is_some() {
                return Err(incomplete(
                    "a token or certificate without authority would be told \
                                       to anyone who answers",
                ));
            }
            return Ok(None);
        };
        tls::client_config(&Trust::Authority(authority.clone()), resolver).map(Some).map_err(failed)
    }
}

impl Contexts {
    /// Loads the file. A file that does not exist is an empty list.
    ///
    /// # Errors
    /// When it cannot be read, others can read it, or it has unknown fields.
    pub fn load(path: &Path) -> Result<Contexts, ContextError> {
        let io = |why| ContextError::Io { path: path.to_owned(), why };
        let mut file = match File::open(path) {
            Ok(file) => file,
            Err(why) if why.kind() == io::ErrorKind::NotFound => return Ok(Contexts::default()),
            Err(why) => return Err(io(why)),
        };
        let mode = file.metadata().map_err(io)?.permissions().mode() & 0o777;
        if mode & 0o077 != 0 {
            return Err(ContextError::Exposed { path: path.to_owned(), mode });
        }
        let mut text = String::new();
        io::Read::read_to_string(&mut file, &mut text).map_err(io)?;
        let bad = |why: toml::de::Error| {
            // The full rendering quotes the offending line, which may hold a token.
            ContextError::Text { path: path.to_owned(), why: why.message().to_owned() }
        };
        let Versioned { version: found } = toml::from_str(&text).map_err(bad)?;
        if found > VERSION {
            return Err(ContextError::TooNew { path: path.to_owned(), found });
        }
        toml::from_str(&text).map_err(bad)
    }

    /// Replaces the file atomically, readable by its owner alone.
    ///
    /// # Errors
    /// When the directory or file cannot be written.
    pub fn save(&self, path: &Path) -> Result<(), ContextError> {
        let io = |why| ContextError::Io { path: path.to_owned(), why };
        let text = toml::to_string_pretty(&Contexts { version: VERSION, ..self.clone() })
            .map_err(|why| ContextError::Text { path: path.to_owned(), why: why.to_string() })?;
        if let Some(folder) = path.parent() {
            std::fs::create_dir_all(folder).map_err(io)?;
        }
        let fresh = path.with_extension(format!("new-{}", std::process::id()));
        // A leftover file is from a process with our pid that was killed: in a container pids
        // repeat.
        match std::fs::remove_file(&fresh) {
            Err(why) if why.kind() != io::ErrorKind::NotFound => return Err(io(why)),
            _ => {}
        }
        write_private(&fresh, text.as_bytes()).map_err(io)?;
        if let Err(why) = std::fs::rename(&fresh, path) {
            // The rename's error says more than one of the cleanup.
            drop(std::fs::remove_file(&fresh));
            return Err(io(why));
        }
        // The old certificate may be useless by the time the power comes back.
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
        let folder = File::open(folder.unwrap_or(Path::new(".")));
        folder.and_then(|folder| folder.sync_all()).map_err(io)
    }

    /// The context of this name, or the current one.
    ///
    /// # Errors
    /// When there is no such context; lists the known ones.
    pub fn pick(&self, name: Option<&str>) -> Result<(&str, &Context), ContextError> {
        let known = || {
            let names: Vec<&str> = self.contexts.keys().map(String::as_str).collect();
            if names.is_empty() { "none".to_owned() } else { names.join(", ") }
        };
        let name = name
            .or(self.current.as_deref())
            .ok_or_else(|| ContextError::NoneCurrent { known: known() })?;
        let unknown = || ContextError::Unknown { name: name.to_owned(), known: known() };
        let (name, context) = self.contexts.get_key_value(name).ok_or_else(unknown)?;
        Ok((name, context))
    }

    /// The name of a context with one of these masters.
    #[must_use]
    pub fn with_master(&self, addresses: &[String]) -> Option<&str> {
        let knows = |context: &Context| context.masters.iter().any(|m| addresses.contains(m));
        self.contexts.iter().find(|(_, context)| knows(context)).map(|(name, _)| name.as_str())
    }

    /// Adds or replaces a context; the first one becomes current.
    pub fn put(&mut self, name: &str, context: Context) {
        self.contexts.insert(name.to_owned(), context);
        self.current.get_or_insert_with(|| name.to_owned());
    }
}

/// Path of the file: below `$XDG_CONFIG_HOME`, else below `~/.config`. The caller reads the two
/// variables.
#[must_use]
pub fn default_path(config_home: Option<&Path>, home: Option<&Path>) -> Option<PathBuf> {
    let folder = match config_home.filter(|folder| folder.is_absolute()) {
        Some(folder) => folder.to_owned(),
        None => home?.join(".config"),
    };
    Some(folder.join("cellwright/contexts.toml"))
}

/// The text of a file with a secret, limited to `max_bytes`: it must be a regular file of this
/// account that nobody else can read.
///
/// # Errors
/// When it is anything else, or cannot be read.
pub fn read_private(path: &Path, max_bytes: u64) -> Result<Secret, ContextError> {
    let io = |why| ContextError::Io { path: path.to_owned(), why };
    // Without this, opening a named pipe would block.
    let flags = rustix::fs::OFlags::NONBLOCK.bits().cast_signed();
    let mut file = OpenOptions::new().read(true).custom_flags(flags).open(path).map_err(io)?;
    let found = file.metadata().map_err(io)?;
    let own = rustix::process::geteuid().as_raw();
    if !found.is_file() || found.uid() != own {
        return Err(ContextError::Foreign { path: path.to_owned(), owner: found.uid(), own });
    }
    let mode = found.permissions().mode() & 0o777;
    if mode & 0o077 != 0 {
        return Err(ContextError::Exposed { path: path.to_owned(), mode });
    }
    let mut text = String::new();
    io::Read::read_to_string(&mut io::Read::take(&mut file, max_bytes), &mut text).map_err(io)?;
    Ok(Secret::new(text))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU64, Ordering};

    struct Folder(PathBuf);

    impl Folder {
        fn new() -> Folder {
            static COUNT: AtomicU64 = AtomicU64::new(0);
            let number = COUNT.fetch_add(1, Ordering::Relaxed);
            let name = format!("cellwright-context-{}-{number}", std::process::id());
            let path = std::env::temp_dir().join(name);
            std::fs::create_dir_all(&path).unwrap();
            Folder(path)
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            drop(std::fs::remove_dir_all(&self.0));
        }
    }

    fn context(token: &str) -> Context {
        Context {
            masters: vec!["10.0.0.1:7070".into()],
            authority: Some("pem".into()),
            token: Some(Secret::new(token.into())),
            certificate: None,
            key: None,
            libraries: vec!["/srv/jobs".into()],
        }
    }

    #[test]
    fn several_cells_survive_the_file_and_one_is_current() {
        let folder = Folder::new();
        let path = folder.0.join("sub/contexts.toml");
        let mut contexts = Contexts::load(&path).unwrap();
        contexts.put("aa", context("1.x"));
        contexts.put("bb", context("2.y"));
        contexts.save(&path).unwrap();
        contexts.save(&path).unwrap();
        let back = Contexts::load(&path).unwrap();
        let (name, picked) = back.pick(None).unwrap();
        assert_eq!((name, picked.token.as_ref().unwrap().expose()), ("aa", "1.x"));
        assert_eq!(back.pick(Some("bb")).unwrap().1.token.as_ref().unwrap().expose(), "2.y");
        let Err(error) = back.pick(Some("cc")) else { panic!("found cc") };
        assert_eq!(error.to_string(), "there is no context \"cc\"; known: aa, bb");
        let mode = std::fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
    }

    #[test]
    fn what_a_failed_try_left_does_not_stop_the_next() {
        let folder = Folder::new();
        let path = folder.0.join("contexts.toml");
        let fresh = folder.0.join(format!("contexts.new-{}", std::process::id()));
        std::fs::write(&fresh, "half a key").unwrap();
        let mut contexts = Contexts::default();
        contexts.put("aa", context("1.x"));
        contexts.save(&path).unwrap();
        assert!(!fresh.exists() && Contexts::load(&path).is_ok());
        let blocked = folder.0.join("blocked.toml");
        std::fs::create_dir_all(blocked.join("full")).unwrap();
        assert!(contexts.save(&blocked).is_err());
        assert_eq!(std::fs::read_dir(&folder.0).unwrap().count(), 2);
    }

    #[test]
    fn a_file_others_can_read_is_refused() {
        let folder = Folder::new();
        let path = folder.0.join("contexts.toml");
        Contexts::default().save(&path).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o644)).unwrap();
        assert!(matches!(Contexts::load(&path), Err(ContextError::Exposed { mode: 0o644, .. })));
    }

    #[test]
    fn a_secret_is_read_from_a_private_file_alone() {
        let folder = Folder::new();
        let path = folder.0.join("token");
        write_private(&path, b"a token\n").unwrap();
        assert_eq!(read_private(&path, 4).unwrap().expose(), "a to");
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o640)).unwrap();
        assert!(matches!(read_private(&path, 9), Err(ContextError::Exposed { mode: 0o640, .. })));
        assert!(matches!(read_private(&folder.0, 9), Err(ContextError::Foreign { .. })));
        if rustix::process::geteuid().is_root() {
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
            std::os::unix::fs::chown(&path, Some(65_534), None).unwrap();
            assert!(matches!(read_private(&path, 9), Err(ContextError::Foreign { .. })));
        }
    }

    #[test]
    fn an_unknown_key_is_named_and_no_token_is_repeated() {
        let folder = Folder::new();
        let path = folder.0.join("contexts.toml");
        let text = "[contexts.aa]\nmasters = []\ntokn = \"17.verysecret\"\n";
        write_private(&path, text.as_bytes()).unwrap();
        let Err(error) = Contexts::load(&path) else { panic!("accepted") };
        let error = error.to_string();
        assert!(error.contains("tokn") && !error.contains("verysecret"), "{error}");
    }

    #[test]
    fn a_file_says_its_version_and_a_newer_one_is_refused_by_name() {
        let folder = Folder::new();
        let path = folder.0.join("contexts.toml");
        let mut contexts = Contexts::default();
        contexts.put("aa", context("1.x"));
        contexts.save(&path).unwrap();
        let text = std::fs::read_to_string(&path).unwrap();
        assert!(text.starts_with("version = 1\n"), "{text}");
        let newer = text.replace("version = 1", "version = 2\nnewer = \"field\"");
        std::fs::remove_file(&path).unwrap();
        write_private(&path, newer.as_bytes()).unwrap();
        let Err(error) = Contexts::load(&path) else { panic!("accepted") };
        let expected =
            format!("{} is of version 2; allowed: 1 to 1; run the newer build", path.display());
        assert_eq!(error.to_string(), expected);
        // Written by hand.
        std::fs::remove_file(&path).unwrap();
        write_private(&path, text.replace("version = 1\n", "").as_bytes()).unwrap();
        assert!(Contexts::load(&path).unwrap().pick(None).is_ok());
    }

    #[test]
    fn a_token_is_never_sent_in_the_clear() {
        let mut open = context("1.x");
        open.authority = None;
        assert!(matches!(open.tls("aa"), Err(ContextError::Incomplete { .. })));
        open.token = None;
        assert!(open.tls("aa").unwrap().is_none());
        open.certificate = Some("pem".into());
        assert!(matches!(open.tls("aa"), Err(ContextError::Incomplete { .. })));
    }

    #[test]
    fn the_file_is_below_the_configuration_folder() {
        let check = |config: Option<&str>, home: Option<&str>, expected: Option<&str>| {
            let found = default_path(config.map(Path::new), home.map(Path::new));
            assert_eq!(found.as_deref(), expected.map(Path::new));
        };
        check(Some("/c"), Some("/h"), Some("/c/cellwright/contexts.toml"));
        check(Some("relative"), Some("/h"), Some("/h/.config/cellwright/contexts.toml"));
        check(None, Some("/h"), Some("/h/.config/cellwright/contexts.toml"));
        check(None, None, None);
    }
}
