//! Access to a dev master (`cell dev`) for one account only: a request carries a token that is
//! stored in a file which only that account, and root, can read. `cell` finds it by the master's
//! address, so that users of the same account need not type or even know it.
//!
//! | file | what |
//! |---|---|
//! | `DATA/dev-token` | the token, the same for as long as the data directory exists |
//! | `/run/user/UID/cellwright/ADDRESS` | the same, while the master runs |
//! | `/tmp/cellwright-UID/ADDRESS` | instead, where an account has no directory there |
//!
//! The published file is locked by its master and is ignored without the lock: so the token is not
//! sent to another account that listens at the address of a master that has stopped. Both
//! directories are cleaned by the system (at the last logout, or of old files), so the master
//! rewrites its file, and clients look in both.

use crate::private_files::write_private;
use crate::secret::{NoRandomness, Secret};
use rustix::fs::{FlockOperation, Mode, OFlags, flock, open};
use rustix::process::geteuid;
use std::fs::{DirBuilder, File};
use std::io::{self, Read};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

/// The token's file in the data directory.
pub const TOKEN_FILE: &str = "dev-token";
/// The id part of a dev token, before the dot: no user token id begins so.
pub const TOKEN_ID: &str = "dev";
/// The state of a listening socket in the kernel's TCP tables.
const TCP_LISTEN_STATE: &str = "0A";
/// More than the length of a token.
const MAX_TOKEN_BYTES: u64 = 256;

/// Why a dev token is not available.
#[derive(Debug, thiserror::Error)]
pub enum DevTokenError {
    #[error("{path}: {why}")]
    Io { path: PathBuf, why: io::Error },
    #[error("{path} is of account {owner}, not of this one ({own}): have it removed")]
    Foreign { path: PathBuf, owner: u32, own: u32 },
    #[error(transparent)]
    NoRandomness(#[from] NoRandomness),
}

/// The token of a cell, published where its own account finds it, until this is dropped.
pub struct PublishedToken {
    address: SocketAddr,
    token: Secret,
    file: Mutex<PublishedFile>,
}

struct PublishedFile {
    path: PathBuf,
    /// The locked file.
    file: File,
}

impl PublishedToken {
    /// Publishes the token in the data directory for the master that listens at `address`.
    ///
    /// # Errors
    /// When a file cannot be written, or the directory belongs to another account.
    pub fn publish(data_dir: &Path, address: SocketAddr) -> Result<PublishedToken, DevTokenError> {
        let token = load_or_create_token(&data_dir.join(TOKEN_FILE))?;
        let file = Mutex::new(PublishedFile::write(address, &token)?);
        Ok(PublishedToken { address, token, file })
    }

    #[must_use]
    pub fn token(&self) -> &Secret {
        &self.token
    }

    /// Writes the file again where it was removed.
    ///
    /// # Errors
    /// As [`PublishedToken::publish`].
    pub fn ensure_published(&self) -> Result<(), DevTokenError> {
        let mut file = self.file.lock().unwrap_or_else(PoisonError::into_inner);
        if !file.is_in_place() {
            *file = PublishedFile::write(self.address, &self.token)?;
        }
        Ok(())
    }
}

impl PublishedFile {
    fn write(address: SocketAddr, token: &Secret) -> Result<PublishedFile, DevTokenError> {
        let own = geteuid().as_raw();
        let folder = runtime_dir(own);
        create_runtime_dir(&folder, own)?;
        let path = folder.join(address.to_string());
        let fresh = folder.join(format!("{address}.new-{}", std::process::id()));
        let io = |why| DevTokenError::Io { path: fresh.clone(), why };
        // A leftover of a process with our pid that was killed.
        match std::fs::remove_file(&fresh) {
            Err(why) if why.kind() != io::ErrorKind::NotFound => return Err(io(why)),
            _ => {}
        }
        write_private(&fresh, token.expose().as_bytes()).map_err(io)?;
        let file = File::open(&fresh).map_err(io)?;
        flock(&file, FlockOperation::NonBlockingLockExclusive).map_err(|why| io(why.into()))?;
        // It is locked before it can be found.
        std::fs::rename(&fresh, &path).map_err(io)?;
        Ok(PublishedFile { path, file })
    }

    fn is_in_place(&self) -> bool {
        let own = self.file.metadata().map(|found| (found.dev(), found.ino())).ok();
        let on_disk = std::fs::metadata(&self.path).map(|found| (found.dev(), found.ino())).ok();
        own.is_some() && own == on_disk
    }
}

impl Drop for PublishedFile {
    fn drop(&mut self) {
        // Another master may listen there by now; its file stays.
        if self.is_in_place() {
            // A file left behind is worth nothing: no process locks it.
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// The token of the dev master at one of these addresses, if that master belongs to this account,
/// or if root asks.
#[must_use]
pub fn token_for(masters: &[String]) -> Option<Secret> {
    masters.iter().find_map(|master| find_token(master)).map(|(_, token)| token)
}

/// The same for one address, with the address that the token is for. The listener at another
/// address of the same host name may be another account: `localhost` is two addresses.
#[must_use]
pub fn find_token(master: &str) -> Option<(SocketAddr, Secret)> {
    let own = geteuid();
    addresses(master).into_iter().find_map(|address| {
        let token = published_token(own.as_raw(), address);
        let token = token.or_else(|| {
            let publishers = if own.is_root() { publishers(address) } else { Vec::new() };
            // The kernel's table has a line for each connection of the machine, and this is asked
            // for each new one: it is not read unless somebody's file says that it matters.
            let uid = publishers.first().and_then(|_| listening_uid(address))?;
            publishers.contains(&uid).then(|| published_token(uid, address))?
        });
        token.map(|token| (address, token))
    })
}

/// The accounts that have a token file for this address, whether it counts or not.
fn publishers(address: SocketAddr) -> Vec<u32> {
    let uids = |folder: &str, prefix: &str| {
        let names = std::fs::read_dir(folder).into_iter().flatten().flatten();
        let uid = |name: &str| name.strip_prefix(prefix)?.parse::<u32>().ok();
        names.filter_map(|entry| uid(entry.file_name().to_str()?)).collect::<Vec<u32>>()
    };
    let mut found = uids("/run/user", "");
    found.extend(uids("/tmp", "cellwright-"));
    found.retain(|uid| {
        let folders = runtime_dirs(*uid);
        folders.iter().any(|folder| folder.join(address.to_string()).symlink_metadata().is_ok())
    });
    found
}

fn addresses(master: &str) -> Vec<SocketAddr> {
    if let Ok(address) = master.parse() {
        return vec![address];
    }
    let port = master.strip_prefix("localhost:").and_then(|port| port.parse::<u16>().ok());
    let loopback = |port| {
        let loopbacks = [IpAddr::from(Ipv4Addr::LOCALHOST), Ipv6Addr::LOCALHOST.into()];
        loopbacks.map(|ip| SocketAddr::new(ip, port)).to_vec()
    };
    port.map(loopback).unwrap_or_default()
}

/// Directories in which an account may publish the tokens of running masters.
fn runtime_dirs(uid: u32) -> [PathBuf; 2] {
    let run = PathBuf::from(format!("/run/user/{uid}/cellwright"));
    [run, PathBuf::from(format!("/tmp/cellwright-{uid}"))]
}

/// The directory in use now.
fn runtime_dir(uid: u32) -> PathBuf {
    let [run, tmp] = runtime_dirs(uid);
    let is_own = |at: &Path| {
        std::fs::symlink_metadata(at).is_ok_and(|found| found.is_dir() && found.uid() == uid)
    };
    if run.parent().is_some_and(is_own) { run } else { tmp }
}

/// Makes the directory safely: in a shared parent another account may have made it first.
fn create_runtime_dir(path: &Path, own: u32) -> Result<(), DevTokenError> {
    let io = |why| DevTokenError::Io { path: path.to_owned(), why };
    match DirBuilder::new().mode(0o700).create(path) {
        Err(why) if why.kind() != io::ErrorKind::AlreadyExists => return Err(io(why)),
        _ => {}
    }
    let found = std::fs::symlink_metadata(path).map_err(io)?;
    if !found.is_dir() || found.uid() != own || found.mode() & 0o077 != 0 {
        return Err(DevTokenError::Foreign { path: path.to_owned(), owner: found.uid(), own });
    }
    Ok(())
}

/// The token in the data directory, made if there is none.
fn load_or_create_token(path: &Path) -> Result<Secret, DevTokenError> {
    let io = |why| DevTokenError::Io { path: path.to_owned(), why };
    if let Some(token) = read_token(path, geteuid().as_raw()).map_err(io)? {
        return Ok(token);
    }
    let token = Secret::new(format!("{TOKEN_ID}.{}", Secret::random()?.expose()));
    // A token that others could read is no longer secret.
    match std::fs::remove_file(path) {
        Err(why) if why.kind() != io::ErrorKind::NotFound => return Err(io(why)),
        _ => {}
    }
    write_private(path, token.expose().as_bytes()).map_err(io)?;
    Ok(token)
}

fn open_token_file(path: &Path) -> io::Result<File> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
    Ok(File::from(open(path, flags, Mode::empty())?))
}

/// The content of a file that only `owner` can read; `None` if it does not exist or is not such a
/// file.
fn read_token(path: &Path, owner: u32) -> io::Result<Option<Secret>> {
    let file = match open_token_file(path) {
        Ok(file) => file,
        Err(why) if why.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(why) => return Err(why),
    };
    read_token_from(&file, owner)
}

fn read_token_from(file: &File, owner: u32) -> io::Result<Option<Secret>> {
    let found = file.metadata()?;
    if !found.is_file() || found.uid() != owner || found.mode() & 0o077 != 0 {
        return Ok(None);
    }
    let mut text = String::new();
    file.take(MAX_TOKEN_BYTES).read_to_string(&mut text)?;
    let token = text.trim().to_owned();
    let is_whole = token.strip_prefix(TOKEN_ID).is_some_and(|rest| rest.len() > 32);
    Ok(is_whole.then(|| Secret::new(token)))
}

/// The token of a running master.
fn published_token(uid: u32, address: SocketAddr) -> Option<Secret> {
    let in_folder = |folder: &PathBuf| published_token_at(&folder.join(address.to_string()), uid);
    runtime_dirs(uid).iter().find_map(in_folder)
}

fn published_token_at(path: &Path, uid: u32) -> Option<Secret> {
    let file = open_token_file(path).ok()?;
    // A reader that gets the lock has found a file that a killed master left behind.
    let lock = flock(&file, FlockOperation::NonBlockingLockShared);
    if lock != Err(rustix::io::Errno::WOULDBLOCK) {
        return None;
    }
    read_token_from(&file, uid).ok().flatten()
}

/// The account (uid) that listens at an address of this machine.
fn listening_uid(address: SocketAddr) -> Option<u32> {
    let (file, local_address) = match address {
        SocketAddr::V4(v4) => {
            let bits = u32::from_ne_bytes(v4.ip().octets());
            ("/proc/net/tcp", format!("{bits:08X}:{:04X}", v4.port()))
        }
        SocketAddr::V6(v6) => {
            let words = v6.ip().octets();
            let word = |four: &[u8]| u32::from_ne_bytes([four[0], four[1], four[2], four[3]]);
            let text: String = words.chunks(4).map(|four| format!("{:08X}", word(four))).collect();
            ("/proc/net/tcp6", format!("{text}:{:04X}", v6.port()))
        }
    };
    let table = std::fs::read_to_string(file).ok()?;
    table.lines().skip(1).find_map(|line| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let is_listener = *fields.get(1)? == local_address && *fields.get(3)? == TCP_LISTEN_STATE;
        fields.get(7).filter(|_| is_listener)?.parse().ok()
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;
    use std::os::unix::fs::PermissionsExt;

    fn scratch(name: &str) -> PathBuf {
        let path = std::env::temp_dir().join(format!("cellwright-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        path
    }

    #[test]
    fn a_token_is_found_by_address_while_its_master_runs() {
        let data = scratch("dev-found");
        let socket = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = socket.local_addr().unwrap();
        let at = [address.to_string()];
        assert!(token_for(&at).is_none());
        let published = PublishedToken::publish(&data, address).unwrap();
        let token = published.token().expose().to_owned();
        assert_eq!(token_for(&at).unwrap().expose(), token);
        let named = [format!("localhost:{}", address.port())];
        assert_eq!(token_for(&named).unwrap().expose(), token);
        assert_eq!(find_token(&named[0]).unwrap().0, address, "that and no other is dialled");
        let file = published.file.lock().unwrap().path.clone();
        assert_eq!(std::fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(listening_uid(address), Some(geteuid().as_raw()));
        assert_eq!(publishers(address), [geteuid().as_raw()]);
        // A cleaner of old files may remove it.
        std::fs::remove_file(&file).unwrap();
        assert!(token_for(&at).is_none());
        published.ensure_published().unwrap();
        assert_eq!(token_for(&at).unwrap().expose(), token);
        // As if the master had been killed: the file exists and is not locked.
        std::fs::copy(&file, data.join("copy")).unwrap();
        drop(published);
        assert!(!file.exists());
        std::fs::rename(data.join("copy"), &file).unwrap();
        assert!(token_for(&at).is_none(), "whoever listens there now is told nothing");
        std::fs::remove_file(&file).unwrap();
        let again = PublishedToken::publish(&data, address).unwrap();
        assert_eq!(again.token().expose(), token, "the same for the same cell");
        drop(again);
        std::fs::remove_dir_all(&data).unwrap();
    }

    #[test]
    fn a_token_that_others_could_read_is_replaced() {
        let data = scratch("dev-replaced");
        let file = data.join(TOKEN_FILE);
        let first = load_or_create_token(&file).unwrap().expose().to_owned();
        assert_eq!(load_or_create_token(&file).unwrap().expose(), first);
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o644)).unwrap();
        let second = load_or_create_token(&file).unwrap();
        assert_ne!(second.expose(), first);
        assert_eq!(std::fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
        std::fs::remove_dir_all(&data).unwrap();
    }
}
