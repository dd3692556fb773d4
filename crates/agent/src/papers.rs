//! The identities of this machine's tasks (X9): the agent makes a key for each, has a master
//! certify it, and puts both where the task alone can read them. Certificates live as long as the
//! masters say, usually an hour, and are renewed at half of it, for the same key: whoever reads key
//! and certificate while they change has a pair that fits.
//!
//! | file in `$CELL_IDENTITY` | what |
//! |---|---|
//! | `key.pem` | the task's private key, which never leaves the machine |
//! | `certificate.pem` | its certificate and the authority's |
//! | `authority.pem` | by which others are known |
//!
//! A task is not kept waiting for masters: after a moment it starts, and finds its certificate
//! later.

use crate::driver::told::{Ids, io};
use crate::driver::{DriverError, Start};
use crate::record::{self, open_plain};
use crate::shim::protocol::{LAUNCH, Launch};
use cellwright_api::client::{Client, ClientError};
use cellwright_api::internal::PROTOCOL;
use cellwright_cell::id::Attempt;
use cellwright_cell::time::Time;
use cellwright_identity::clock::wall;
use cellwright_identity::enroll::{EnrollError, issued};
use cellwright_identity::secret::Secret;
use cellwright_identity::task_identity::{
    TASK_IDENTITY_PATH, TaskHolder, TaskIdentityAnswer, TaskIdentityRequest, new_key,
    signing_request,
};
use std::fs::{self, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, chown};
use std::path::{Path, PathBuf};
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::{sleep, timeout};

const KEY: &str = "key.pem";
const CERTIFICATE: &str = "certificate.pem";
const AUTHORITY: &str = "authority.pem";
/// Most bytes of a file there: a task owns it and may have written anything.
const MOST_BYTES: u64 = 64 << 10;
/// How long a start waits for masters.
const AT_START: Duration = Duration::from_secs(2);
/// Between two tries: at first, when no master certifies; and later, whatever became of the one
/// before, where it is no more than a part of the certificate's life.
const RETRY: Duration = Duration::from_millis(200);
const RETRY_LATER: Duration = Duration::from_secs(60);
const RETRIES_IN_A_LIFE: u32 = 20;
/// A certificate is looked at this often at least: the timer under it stands still while the
/// machine sleeps, the certificate does not.
const LOOK: Duration = Duration::from_secs(300);

#[derive(Debug, thiserror::Error)]
enum PapersError {
    #[error("{0}")]
    Client(#[from] ClientError),
    #[error("{0}")]
    Enroll(#[from] EnrollError),
    #[error("{0}")]
    Io(#[from] std::io::Error),
}

/// What a task is given of its identity at its start.
#[derive(Clone)]
pub struct Papers {
    key: Secret,
    /// Absent while no master answered.
    certified: Option<TaskIdentityAnswer>,
}

/// Has tasks certified, in a cell with identities.
#[derive(Default)]
pub struct Registrar {
    /// Known once the agent has a line to masters that know it.
    client: watch::Sender<Option<Client>>,
}

impl Registrar {
    /// From here on tasks get identities.
    pub fn reach(&self, client: &Client) {
        self.client.send_replace(Some(client.clone()));
    }

    /// For a task that is about to start; nothing in a cell without identities.
    pub async fn papers(&self, attempt: Attempt) -> Option<Papers> {
        let client = self.client.borrow().clone()?;
        let key =
            new_key().inspect_err(|error| tracing::error!(%error, "no key for a task")).ok()?;
        let certified = timeout(AT_START, async {
            loop {
                match certify(&client, attempt, &key).await {
                    Ok(answer) => return answer,
                    // A replica that lags behind does not know of the task yet.
                    Err(error) => tracing::debug!(%attempt, %error, "not certified yet"),
                }
                sleep(RETRY).await;
            }
        });
        Some(Papers { certified: certified.await.ok(), key })
    }

    /// Renews the certificate in an attempt's folder for as long as it is let.
    pub async fn keep_fresh(&self, attempt: Attempt, folder: &Path) {
        let launch = record::read::<Launch>(&folder.join(LAUNCH)).ok().flatten();
        let place = launch.as_ref().and_then(|launch| {
            let owner = launch.container.as_ref().map(|at| at.owner).or(launch.identity);
            Some((launch.papers.clone()?, owner))
        });
        let Some((place, owner)) = place else { return std::future::pending().await };
        let mut known = self.client.subscribe();
        // The sender lives as long as this does.
        let Ok(client) = known.wait_for(Option::is_some).await.map(|known| known.clone()) else {
            return std::future::pending().await;
        };
        let Some(client) = client else { return std::future::pending().await };
        loop {
            let left = holder(&place).map(|holder| span(wall(), holder.renew_at()));
            if let Some(left) = left.filter(|left| !left.is_zero()) {
                sleep(left.min(LOOK)).await;
                continue;
            }
            if let Err(error) = renew(&client, attempt, &place, owner).await {
                tracing::warn!(%attempt, %error, "the certificate of a task was not renewed");
            }
            // A new one can be due as well, when clocks differ: masters are not asked without end.
            sleep(pause(holder(&place).as_ref())).await;
        }
    }
}

fn span(from: Time, to: Time) -> Duration {
    Duration::from_millis(to.since(from).0)
}

/// Whom the certificate in a folder is of; none where there is none that can be read.
fn holder(place: &Path) -> Option<TaskHolder> {
    TaskHolder::of_pem(&read(&place.join(CERTIFICATE)).ok()?).ok()
}

/// Between two renewals, whatever became of the first.
fn pause(holder: Option<&TaskHolder>) -> Duration {
    let life = holder.map(|holder| span(issued(holder.from, holder.until), holder.until));
    life.map_or(RETRY_LATER, |life| (life / RETRIES_IN_A_LIFE).clamp(RETRY, RETRY_LATER))
}

async fn certify(
    client: &Client,
    attempt: Attempt,
    key: &Secret,
) -> Result<TaskIdentityAnswer, PapersError> {
    let (task, signing_request) = (attempt.task, signing_request(key)?);
    let attempt = attempt.number;
    let request = TaskIdentityRequest { protocol: PROTOCOL, task, attempt, signing_request };
    Ok(client.call_internal(TASK_IDENTITY_PATH, &request).await?)
}

async fn renew(
    client: &Client,
    attempt: Attempt,
    place: &Path,
    owner: Option<Ids>,
) -> Result<(), PapersError> {
    // Whatever key lies there now is the task's own doing, and harms nobody but itself.
    let key = Secret::new(read(&place.join(KEY))?);
    let answer = certify(client, attempt, &key).await?;
    replace(&place.join(AUTHORITY), &answer.authority, owner)?;
    Ok(replace(&place.join(CERTIFICATE), &answer.certificate, owner)?)
}

fn read(path: &Path) -> std::io::Result<String> {
    let file = open_plain(path, OpenOptions::new().read(true))?;
    let mut text = String::new();
    file.take(MOST_BYTES).read_to_string(&mut text)?;
    Ok(text)
}

/// The folder is the agent's, so that nobody else puts anything in its place.
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

/// Lays out the folder of a task's identity, at `place`; nothing in a cell without identities.
///
/// # Errors
/// When the disk refuses.
pub fn write(
    start: &Start<'_>,
    place: PathBuf,
    owner: Option<Ids>,
) -> Result<Option<PathBuf>, DriverError> {
    let Some(papers) = start.papers else { return Ok(None) };
    crate::driver::told::remove(&place).map_err(io(&place))?;
    fs::DirBuilder::new().mode(0o711).create(&place).map_err(io(&place))?;
    let certified = papers.certified.as_ref();
    let files = [
        (KEY, Some(papers.key.expose())),
        (CERTIFICATE, certified.map(|answer| answer.certificate.as_str())),
        (AUTHORITY, certified.map(|answer| answer.authority.as_str())),
    ];
    for (name, text) in files {
        let path = place.join(name);
        text.map_or(Ok(()), |text| replace(&path, text, owner)).map_err(io(&path))?;
    }
    Ok(Some(place))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::folder::scratch::Scratch;
    use cellwright_cell::time::Span;
    use cellwright_identity::enroll::BACKDATED;
    use std::os::unix::fs::{PermissionsExt, symlink};

    #[test]
    fn renewals_are_as_far_apart_as_the_life_of_a_certificate_allows() {
        let of = |seconds: u64| TaskHolder {
            uri: "spiffe://a/b".into(),
            from: Time(1_000_000),
            until: Time(1_000_000).plus(BACKDATED).plus(Span::seconds(seconds)),
        };
        assert_eq!(pause(None), RETRY_LATER);
        assert_eq!(pause(Some(&of(3600))), RETRY_LATER);
        assert_eq!(pause(Some(&of(10))), Duration::from_millis(500));
        assert_eq!(pause(Some(&of(0))), RETRY);
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
