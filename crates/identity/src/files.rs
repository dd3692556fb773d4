//! Keys and certificates of this replica on disk: `identity/` in the data directory.
//!
//! Keys are files of mode 0600 and are refused when others could read them: a key that was readable
//! for a while must be considered known. Each file is replaced atomically, the key before the
//! certificate, so that a crash between the two leaves a pair that does not match, which the start
//! repairs by signing anew: this replica holds the authority.

use crate::authority::{Authority, AuthorityError, Credentials};
use crate::private_files::write_private;
use crate::secret::Secret;
use crate::tls::CertificateResolver;
use std::fs::File;
use std::io;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};

const AUTHORITY_FILE: &str = "authority.pem";
const AUTHORITY_KEY_FILE: &str = "authority.key";
const NODE_CERTIFICATE_FILE: &str = "node.pem";
const NODE_KEY_FILE: &str = "node.key";

#[derive(Debug, thiserror::Error)]
pub enum FilesError {
    #[error("{path}: {why}")]
    Io { path: PathBuf, why: io::Error },
    #[error(
        "{path} can be read by others (mode {mode:o}); allowed: 600. Take the key for known: \
         make a new one, or chmod 600 it if you are sure"
    )]
    Exposed { path: PathBuf, mode: u32 },
    #[error(transparent)]
    Authority(#[from] AuthorityError),
}

/// The directory of this replica's keys.
pub struct IdentityFiles(PathBuf);

impl IdentityFiles {
    #[must_use]
    pub fn in_data_dir(data: &Path) -> IdentityFiles {
        IdentityFiles(data.join("identity"))
    }

    /// # Errors
    /// When the directory cannot be made.
    pub fn create(&self) -> Result<(), FilesError> {
        let made = std::fs::DirBuilder::new().recursive(true).mode(0o700).create(&self.0);
        made.map_err(|why| FilesError::Io { path: self.0.clone(), why })
    }

    #[must_use]
    pub fn has_authority(&self) -> bool {
        self.0.join(AUTHORITY_KEY_FILE).exists()
    }

    /// # Errors
    /// When a file is missing, readable by others, or does not hold what it should.
    pub fn load_authority(&self) -> Result<Authority, FilesError> {
        let certificate = self.read(AUTHORITY_FILE)?;
        let key = self.read_private(AUTHORITY_KEY_FILE)?;
        Ok(Authority::from_pem(certificate, key)?)
    }

    /// # Errors
    /// When a file cannot be written.
    pub fn save_authority(&self, certificate: &str, key: &Secret) -> Result<(), FilesError> {
        self.replace(AUTHORITY_KEY_FILE, key.expose())?;
        self.replace(AUTHORITY_FILE, certificate)
    }

    /// This replica's own certificate and key; `None` if there is none, or the two do not belong
    /// together.
    ///
    /// # Errors
    /// When a file cannot be read or others can read the key.
    pub fn load_credentials(&self) -> Result<Option<Credentials>, FilesError> {
        if !self.0.join(NODE_CERTIFICATE_FILE).exists() || !self.0.join(NODE_KEY_FILE).exists() {
            return Ok(None);
        }
        let credentials = Credentials {
            certificate: self.read(NODE_CERTIFICATE_FILE)?,
            key: self.read_private(NODE_KEY_FILE)?,
        };
        let matches = CertificateResolver::new(&credentials.certificate, &credentials.key).is_ok();
        Ok(matches.then_some(credentials))
    }

    /// # Errors
    /// When a file cannot be written.
    pub fn save_credentials(&self, credentials: &Credentials) -> Result<(), FilesError> {
        self.replace(NODE_KEY_FILE, credentials.key.expose())?;
        self.replace(NODE_CERTIFICATE_FILE, &credentials.certificate)
    }

    fn read(&self, name: &str) -> Result<String, FilesError> {
        let path = self.0.join(name);
        std::fs::read_to_string(&path).map_err(|why| FilesError::Io { path, why })
    }

    fn read_private(&self, name: &str) -> Result<Secret, FilesError> {
        let path = self.0.join(name);
        let io = |why| FilesError::Io { path: path.clone(), why };
        let mut file = File::open(&path).map_err(io)?;
        let mode = file.metadata().map_err(io)?.permissions().mode() & 0o777;
        if mode & 0o077 != 0 {
            return Err(FilesError::Exposed { path, mode });
        }
        let mut text = String::new();
        io::Read::read_to_string(&mut file, &mut text).map_err(io)?;
        Ok(Secret::new(text))
    }

    fn replace(&self, name: &str, text: &str) -> Result<(), FilesError> {
        let path = self.0.join(name);
        let io = |why| FilesError::Io { path: path.clone(), why };
        let fresh = self.0.join(format!("{name}.new"));
        match std::fs::remove_file(&fresh) {
            Err(why) if why.kind() != io::ErrorKind::NotFound => return Err(io(why)),
            _ => {}
        }
        write_private(&fresh, text.as_bytes()).map_err(io)?;
        std::fs::rename(&fresh, &path).map_err(io)?;
        File::open(&self.0).and_then(|folder| folder.sync_all()).map_err(io)
    }
}
