//! The identities of this machine's tasks (X9): the agent creates a key for each, has a master
//! certify it, and writes both where only the task can read them. The masters set the certificates'
//! lifetime, usually an hour; they are renewed at half of it, for the same key: a task that reads
//! key and certificate during a renewal has a pair that fits.
//!
//! | file in `$CELL_IDENTITY` | what |
//! |---|---|
//! | `key.pem` | the task's private key, which never leaves the machine |
//! | `certificate.pem` | its certificate and the authority's |
//! | `authority.pem` | by which peers are verified |
//!
//! A task does not wait long for masters: after a moment it starts, and finds its certificate
//! later.

use crate::driver::task_env::{Ids, io};
use crate::driver::{DriverError, StartContext};
use crate::record::{self, open_plain};
use crate::shim::protocol::{LAUNCH, Launch};
use cellwright_api::client::{Client, ClientError};
use cellwright_cell::id::Attempt;
use cellwright_cell::time::Time;
use cellwright_identity::clock::wall;
use cellwright_identity::enroll::{EnrollError, issued_at};
use cellwright_identity::secret::Secret;
use cellwright_identity::task_identity::{
    TASK_IDENTITY_PATH, TaskCertificate, TaskIdentityAnswer, TaskIdentityRequest, new_key,
    signing_request,
};
use std::fs::{self, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, chown};
use std::path::{Path, PathBuf};
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::{sleep, timeout};

const KEY_FILE: &str = "key.pem";
const CERTIFICATE_FILE: &str = "certificate.pem";
const AUTHORITY_FILE: &str = "authority.pem";
/// Most bytes of a file there: a task owns it and may have written anything.
const MAX_FILE_BYTES: u64 = 64 << 10;
/// How long a start waits for masters.
const START_TIMEOUT: Duration = Duration::from_secs(2);
/// Interval between two tries: at first, when no master certifies; and later, whether the last one
/// succeeded or not, where it is no more than a part of the certificate's lifetime.
const RETRY_INTERVAL: Duration = Duration::from_millis(200);
const LATER_RETRY_INTERVAL: Duration = Duration::from_secs(60);
const RENEWALS_PER_LIFETIME: u32 = 20;
/// A certificate is checked at least this often: the timer stands still while the machine sleeps,
/// the certificate does not.
const MAX_CHECK_INTERVAL: Duration = Duration::from_secs(300);

#[derive(Debug, thiserror::Error)]
enum CredentialsError {
    #[error("{0}")]
    Client(#[from] ClientError),
    #[error("{0}")]
    Enroll(#[from] EnrollError),
    #[error("{0}")]
    Io(#[from] std::io::Error),
}

/// The credentials that a task is given at its start.
#[derive(Clone)]
pub struct TaskCredentials {
    key: Secret,
    /// Absent as long as no master answered.
    certified: Option<TaskIdentityAnswer>,
}

/// Has the masters certify tasks, in a cell with identities.
#[derive(Default)]
pub struct TaskCertifier {
    /// Set once the agent is connected to masters that know it.
    client: watch::Sender<Option<Client>>,
}

impl TaskCertifier {
    /// From here on tasks get identities.
    pub fn connect(&self, client: &Client) {
        self.client.send_replace(Some(client.clone()));
    }

    /// For a task that is about to start; nothing in a cell without identities.
    pub async fn issue(&self, attempt: Attempt) -> Option<TaskCredentials> {
        let client = self.client.borrow().clone()?;
        let key =
            new_key().inspect_err(|error| tracing::error!(%error, "no key for a task")).ok()?;
        let certified = timeout(START_TIMEOUT, async {
            loop {
                match certify(&client, attempt, &key).await {
                    Ok(answer) => return answer,
                    // A replica that lags behind does not know of the task yet.
                    Err(error) => tracing::debug!(%attempt, %error, "not certified yet"),
                }
                sleep(RETRY_INTERVAL).await;
            }
        });
        Some(TaskCredentials { certified: certified.await.ok(), key })
    }

    /// Renews the certificate in an attempt's folder until it is dropped.
    pub async fn keep_fresh(&self, attempt: Attempt, folder: &Path) {
        let launch = record::read::<Launch>(&folder.join(LAUNCH)).ok().flatten();
        let dir = launch.as_ref().and_then(|launch| {
            let owner = launch.container.as_ref().map(|at| at.owner).or(launch.run_as);
            Some((launch.identity_dir.clone()?, owner))
        });
        let Some((dir, owner)) = dir else { return std::future::pending().await };
        let mut clients = self.client.subscribe();
        // The sender lives as long as `self`.
        let Ok(client) = clients.wait_for(Option::is_some).await.map(|found| found.clone()) else {
            return std::future::pending().await;
        };
        let Some(client) = client else { return std::future::pending().await };
        loop {
            let left =
                read_certificate(&dir).map(|holder| duration_between(wall(), holder.renew_at()));
            if let Some(left) = left.filter(|left| !left.is_zero()) {
                sleep(left.min(MAX_CHECK_INTERVAL)).await;
                continue;
            }
            if let Err(error) = renew(&client, attempt, &dir, owner).await {
                tracing::warn!(%attempt, %error, "the certificate of a task was not renewed");
            }
            // A new certificate can be due as well, when clocks differ: the pause keeps the agent
            // from asking masters without end.
            sleep(retry_interval(read_certificate(&dir).as_ref())).await;
        }
    }
}

fn duration_between(from: Time, to: Time) -> Duration {
    Duration::from_millis(to.since(from).0)
}

/// The certificate in a folder; none where there is none that can be read.
fn read_certificate(dir: &Path) -> Option<TaskCertificate> {
    TaskCertificate::from_pem(&read(&dir.join(CERTIFICATE_FILE)).ok()?).ok()
}

/// The shortest interval between two attempts to renew, whether the last one succeeded or not.
fn retry_interval(holder: Option<&TaskCertificate>) -> Duration {
    let lifetime =
        holder.map(|holder| duration_between(issued_at(holder.from, holder.until), holder.until));
    lifetime.map_or(LATER_RETRY_INTERVAL, |life| {
        (life / RENEWALS_PER_LIFETIME).clamp(RETRY_INTERVAL, LATER_RETRY_INTERVAL)
    })
}

async fn certify(
    client: &Client,
    attempt: Attempt,
    key: &Secret,
) -> Result<TaskIdentityAnswer, CredentialsError> {
    let (task, signing_request) = (attempt.task, signing_request(key)?);
    let attempt = attempt.number;
    let request = TaskIdentityRequest { task, attempt, signing_request };
    Ok(client.call_internal(TASK_IDENTITY_PATH, &request).await?)
}

async fn renew(
    client: &Client,
    attempt: Attempt,
    dir: &Path,
    owner: Option<Ids>,
) -> Result<(), CredentialsError> {
    // The task may have replaced its key, which harms nobody but itself.
    let key = Secret::new(read(&dir.join(KEY_FILE))?);
    let answer = certify(client, attempt, &key).await?;
    replace(&dir.join(AUTHORITY_FILE), &answer.authority, owner)?;
    Ok(replace(&dir.join(CERTIFICATE_FILE), &answer.certificate, owner)?)
}

fn read(path: &Path) -> std::io::Result<String> {
    let file = open_plain(path, OpenOptions::new().read(true))?;
    let mut text = String::new();
    file.take(MAX_FILE_BYTES).read_to_string(&mut text)?;
    Ok(text)
}

/// The folder belongs to the agent, so that no other account can replace the file.
fn replace(path: &Path, text: &str, owner: Option<Ids>) -> std::io::Result<()> {
    let fresh = path.with_extension("new");
    match fs::remove_file(&fresh) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut options = OpenOptions::new();
    let mut file = options.write(true).create_new(true).mode(0o400).open(&fresh)?;
    file.write_all(text.as_bytes())?;
    if let Some((user, group)) = owner {
        chown(&fresh, Some(user), Some(group))?;
    }
    fs::rename(&fresh, path)
}

/// Creates the folder of a task's identity, at `dir`; nothing in a cell without identities.
///
/// # Errors
/// When the disk refuses.
pub fn write(
    start: &StartContext<'_>,
    dir: PathBuf,
    owner: Option<Ids>,
) -> Result<Option<PathBuf>, DriverError> {
    let Some(credentials) = start.credentials else { return Ok(None) };
    crate::driver::task_env::remove_dir(&dir).map_err(io(&dir))?;
    fs::DirBuilder::new().mode(0o711).create(&dir).map_err(io(&dir))?;
    let certified = credentials.certified.as_ref();
    let files = [
        (KEY_FILE, Some(credentials.key.expose())),
        (CERTIFICATE_FILE, certified.map(|answer| answer.certificate.as_str())),
        (AUTHORITY_FILE, certified.map(|answer| answer.authority.as_str())),
    ];
    for (name, text) in files {
        let path = dir.join(name);
        text.map_or(Ok(()), |text| replace(&path, text, owner)).map_err(io(&path))?;
    }
    Ok(Some(dir))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::state_dir::scratch::Scratch;
    use cellwright_cell::time::Span;
    use cellwright_identity::enroll::NOT_BEFORE_BACKDATE;
    use std::os::unix::fs::{PermissionsExt, symlink};

    #[test]
    fn attempts_to_renew_are_as_far_apart_as_the_life_of_a_certificate_allows() {
        let of = |seconds: u64| TaskCertificate {
            uri: "spiffe://a/b".into(),
            from: Time(1_000_000),
            until: Time(1_000_000).plus(NOT_BEFORE_BACKDATE).plus(Span::seconds(seconds)),
        };
        assert_eq!(retry_interval(None), LATER_RETRY_INTERVAL);
        assert_eq!(retry_interval(Some(&of(3600))), LATER_RETRY_INTERVAL);
        assert_eq!(retry_interval(Some(&of(10))), Duration::from_millis(500));
        assert_eq!(retry_interval(Some(&of(0))), RETRY_INTERVAL);
    }

    #[test]
    fn files_are_replaced_whole_and_traps_are_not_followed() {
        let scratch = Scratch::new();
        let (file, other) = (scratch.path("certificate.pem"), scratch.path("other"));
        fs::write(&other, "other").unwrap();
        replace(&file, "one", None).unwrap();
        let mode = fs::metadata(&file).unwrap().permissions().mode();
        assert_eq!((read(&file).unwrap().as_str(), mode & 0o777), ("one", 0o400));
        symlink(&other, scratch.path("certificate.new")).unwrap();
        replace(&file, "two", None).unwrap();
        assert_eq!(read(&file).unwrap(), "two");
        assert_eq!(fs::read_to_string(&other).unwrap(), "other");
        symlink(&other, scratch.path("key.pem")).unwrap();
        assert!(read(&scratch.path("key.pem")).is_err());
    }
}
