//! The environment that every driver gives a program: its identity, its ports, its writable
//! folders, its files and its secrets.

use super::{DriverError, StartContext};
use crate::credentials;
use crate::shim::protocol::LogSettings;
pub use crate::shim::sandbox::remove_dir;
use cellwright_cell::device::Device;
use cellwright_cell::spec::LogLimits;
use cellwright_identity::secret::Secret;
use rustix::fs::statfs;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, OpenOptions};
use std::io::Write;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};

/// The `PATH` of programs.
const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
/// The kernel's magic number of tmpfs.
const TMPFS: u64 = 0x0102_1994;
/// Where file systems in memory are usually mounted.
const TMPFS_DIRS: [&str; 2] = ["/run", "/dev/shm"];

/// How often the folder around secrets is created anew where other accounts put something in its
/// place.
const MAX_MKDIR_ATTEMPTS: u32 = 16;

/// The suffix of identities' names, which stand beside secrets.
const IDENTITY_SUFFIX: &str = ".identity";

/// User and group, as the machine numbers them.
pub type Ids = (u32, u32);

/// Where a program finds its folders and files, in its own view.
pub struct TaskPaths {
    pub directory: PathBuf,
    pub ports: Option<PathBuf>,
    pub packages: PathBuf,
    pub alloc: Option<PathBuf>,
    pub devices: Option<PathBuf>,
    pub secrets: Option<PathBuf>,
    pub credentials: Option<PathBuf>,
}

/// A job can have fewer logs kept than the machine's operator allows, and not more.
pub fn log_limits(start: &StartContext<'_>) -> LogSettings {
    let most = start.logs;
    start.work.logs.map_or(most, |LogLimits { file_bytes, files, rate }| LogSettings {
        file_bytes: file_bytes.min(most.file_bytes),
        files: files.min(most.files),
        rate: rate.min(most.rate),
    })
}

pub fn io(path: &Path) -> impl FnOnce(std::io::Error) -> DriverError {
    let path = path.to_owned();
    move |why| DriverError::Io { path, why }
}

/// Lets members of `group` pass through the attempt's folder, and other accounts no more: among
/// what it writes there may be a set-user-ID program. The folder of its alloc is closed in the same
/// way, until a task of another group comes.
pub fn restrict_access(start: &StartContext<'_>, group: Option<u32>) -> Result<(), DriverError> {
    let (Some(group), Some(range)) = (group, start.range) else { return Ok(()) };
    make_private(&start.folder, group).map_err(io(&start.folder))?;
    let Some(around) = start.alloc.as_ref().and_then(|shared| shared.parent()) else {
        return Ok(());
    };
    let own = (range.first..range.first + range.count).contains(&group);
    let before = fs::symlink_metadata(around).map_err(io(around))?;
    // The first task finds it as the agent created it.
    let fresh = before.gid() == rustix::process::getegid().as_raw();
    let closed = if own && (fresh || before.gid() == group) {
        make_private(around, group)
    } else {
        let open = fs::Permissions::from_mode(0o711);
        chown(around, None, Some(group)).and_then(|()| fs::set_permissions(around, open))
    };
    closed.map_err(io(around))
}

fn make_private(folder: &Path, group: u32) -> std::io::Result<()> {
    chown(folder, None, Some(group))?;
    fs::set_permissions(folder, fs::Permissions::from_mode(0o710))
}

fn set_owner(path: &Path, owner: Option<Ids>) -> std::io::Result<()> {
    match owner {
        Some((user, group)) => chown(path, Some(user), Some(group)),
        None => Ok(()),
    }
}

/// Nothing of the task runs yet, so no link can have been planted in the folder.
pub fn write_files(start: &StartContext<'_>, owner: Option<Ids>) -> Result<(), DriverError> {
    set_owner(&start.directory, owner).map_err(io(&start.directory))?;
    for (name, text) in &start.work.files {
        let mut folder = start.directory.clone();
        let (parents, last) = name.rsplit_once('/').unwrap_or(("", name));
        for part in parents.split('/').filter(|part| !part.is_empty()) {
            folder.push(part);
            fs::create_dir_all(&folder)
                .and_then(|()| set_owner(&folder, owner))
                .map_err(io(&folder))?;
        }
        let path = folder.join(last);
        write_private(&path, text).and_then(|()| set_owner(&path, owner)).map_err(io(&path))?;
    }
    Ok(())
}

/// For the task's account alone.
fn write_private(path: &Path, text: &str) -> std::io::Result<()> {
    let mut options = OpenOptions::new();
    let mut file = options.write(true).create(true).truncate(true).mode(0o600).open(path)?;
    file.write_all(text.as_bytes())
}

/// Tasks of several users share the folder of an alloc where the agent is root; elsewhere all of
/// them have its account.
pub fn open_alloc(start: &StartContext<'_>) -> Result<(), DriverError> {
    match &start.alloc {
        Some(shared) => {
            let mode = alloc_mode(rustix::process::geteuid().is_root());
            fs::set_permissions(shared, fs::Permissions::from_mode(mode)).map_err(io(shared))
        }
        None => Ok(()),
    }
}

fn alloc_mode(is_root: bool) -> u32 {
    if is_root { 0o1777 } else { 0o700 }
}

/// One port a line, in a file beside the task's folder. Nothing when it has none.
pub fn write_ports(start: &StartContext<'_>) -> Result<Option<PathBuf>, DriverError> {
    if start.work.ports.is_empty() {
        return Ok(None);
    }
    let path = start.folder.join("ports");
    let text: String = start.work.ports.iter().map(|port| format!("{port}\n")).collect();
    fs::write(&path, text).map_err(io(&path))?;
    Ok(Some(path))
}

/// One device a line, in a file beside the task's folder: kind, model, id, thousandths, and its
/// nodes as the task sees them. Nothing when it has none.
pub fn write_devices(
    start: &StartContext<'_>,
    nodes: &[Vec<PathBuf>],
) -> Result<Option<PathBuf>, DriverError> {
    if start.devices.is_empty() {
        return Ok(None);
    }
    let path = start.folder.join("devices");
    let mut text = String::new();
    for (granted, nodes) in start.devices.iter().zip(nodes) {
        let Device { kind, model } = &granted.host_device.device;
        text.push_str(&format!("{kind} {model} {} {}", granted.host_device.id, granted.milli));
        for node in nodes {
            text.push_str(&format!(" {}", node.display()));
        }
        text.push('\n');
    }
    fs::write(&path, text).map_err(io(&path))?;
    Ok(Some(path))
}

/// The task's secrets in a folder of its own, for it alone to read; in memory where the machine has
/// a tmpfs, so that they never reach a disk. Nothing when it has none.
pub fn write_secrets(
    start: &StartContext<'_>,
    owner: Option<Ids>,
) -> Result<Option<PathBuf>, DriverError> {
    if start.work.secrets.is_empty() {
        return Ok(None);
    }
    let folder = secrets_folder(start);
    // First: as long as another account has the path, it may lead anywhere.
    let shared = folder.parent().unwrap_or(&folder);
    create_secrets_root(shared).map_err(io(shared))?;
    remove_dir(&folder).map_err(io(&folder))?;
    fs::DirBuilder::new().mode(0o700).create(&folder).map_err(io(&folder))?;
    set_owner(&folder, owner).map_err(io(&folder))?;
    for (name, value) in &start.work.secrets {
        let path = folder.join(name.as_str());
        let mut options = OpenOptions::new();
        let made = options.write(true).create_new(true).mode(0o400).open(&path);
        made.and_then(|mut file| file.write_all(value.0.as_bytes()))
            .and_then(|()| set_owner(&path, owner))
            .map_err(io(&path))?;
    }
    Ok(Some(folder))
}

/// The folder around the secrets of all tasks: everybody passes through, only the agent lists it or
/// writes there. In a parent that is open to all another account may have created it first: its
/// link or folder is moved out of the way and never followed.
fn create_secrets_root(folder: &Path) -> std::io::Result<()> {
    for _ in 0..MAX_MKDIR_ATTEMPTS {
        match fs::DirBuilder::new().mode(0o711).create(folder) {
            Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => return Err(error),
            _ => {}
        }
        if is_owned_by_agent(folder) {
            // Made just now or by the agent before this one: its umask may have narrowed the mode.
            return fs::set_permissions(folder, fs::Permissions::from_mode(0o711));
        }
        // A random path cannot be taken already.
        let random = Secret::random().map_err(std::io::Error::other)?;
        let away = format!("{}-of-others-{}", folder.display(), random.expose());
        tracing::warn!("{} is somebody else's; moved to {away}", folder.display());
        match fs::rename(folder, &away) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            moved => moved?,
        }
    }
    Err(std::io::Error::other("somebody else puts something in its place again and again"))
}

/// Whether this is a folder of the agent that no other account can write to. A link is none.
fn is_owned_by_agent(folder: &Path) -> bool {
    let own = rustix::process::geteuid().as_raw();
    fs::symlink_metadata(folder)
        .is_ok_and(|found| found.is_dir() && found.uid() == own && found.mode() & 0o022 == 0)
}

fn secrets_folder(start: &StartContext<'_>) -> PathBuf {
    private_path(start, "secrets", "")
}

/// The identity of the task: its key and its certificate. Nothing in a cell without identities.
pub fn write_credentials(
    start: &StartContext<'_>,
    owner: Option<Ids>,
) -> Result<Option<PathBuf>, DriverError> {
    let folder = private_path(start, "identity", IDENTITY_SUFFIX);
    let shared = folder.parent().unwrap_or(&folder);
    if start.credentials.is_some() && shared != start.folder {
        create_secrets_root(shared).map_err(io(shared))?;
    }
    credentials::write(start, folder, owner)
}

/// The path of a task's private files: in memory, under its own name and `ending`, or beside its
/// folder as `name`.
fn private_path(start: &StartContext<'_>, name: &str, ending: &str) -> PathBuf {
    let tasks = start.folder.parent().unwrap_or(&start.folder);
    match tmpfs_secrets_root() {
        Some(shared) => shared.join(format!("{}{}{ending}", agent_prefix(tasks), start.attempt)),
        None => start.folder.join(name),
    }
}

/// The folder around the secrets of all tasks, where the machine has a tmpfs.
fn tmpfs_secrets_root() -> Option<PathBuf> {
    let in_memory = |dir: &&str| {
        let kind = statfs(*dir).map(|about| about.f_type as u64);
        rustix::process::geteuid().is_root() && kind == Ok(TMPFS)
    };
    let dir = TMPFS_DIRS.into_iter().find(in_memory)?;
    Some(Path::new(dir).join("cellwright-secrets"))
}

/// The prefix of names that belong to the agent with this folder of tasks; other agents on the
/// machine have others.
fn agent_prefix(tasks: &Path) -> String {
    let tasks = tasks.to_string_lossy();
    format!("{:016x}-", xxhash_rust::xxh3::xxh3_64(tasks.as_bytes()))
}

/// Removes secrets of attempts other than these: when a start was cut short, no record says where
/// they are.
pub fn sweep_secrets(tasks: &Path, kept: &BTreeSet<String>) {
    let Some(shared) = tmpfs_secrets_root().filter(|shared| is_owned_by_agent(shared)) else {
        return;
    };
    let own = agent_prefix(tasks);
    for entry in fs::read_dir(&shared).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let attempt = name.to_str().and_then(|name| name.strip_prefix(&own));
        let attempt =
            attempt.map(|attempt| attempt.strip_suffix(IDENTITY_SUFFIX).unwrap_or(attempt));
        if attempt.is_some_and(|attempt| !kept.contains(attempt))
            && let Err(error) = remove_dir(&entry.path())
        {
            tracing::error!(%error, "secrets of a task that is gone stay");
        }
    }
}

/// A package's name becomes the name of a folder.
pub fn check_package_name(name: &str) -> Result<(), DriverError> {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    if name.bytes().all(plain) && !name.starts_with('.') {
        return Ok(());
    }
    Err(DriverError::Cannot {
        field: "task.packages.name",
        value: name.to_owned(),
        allowed: "letters, digits, `-`, `_` and `.`, no dot first".into(),
    })
}

/// The cell's variables, overridden by the owner's.
pub fn environment(start: &StartContext<'_>, task_paths: &TaskPaths) -> BTreeMap<String, String> {
    let ports: Vec<String> = start.work.ports.iter().map(ToString::to_string).collect();
    let mut env = BTreeMap::new();
    let mut set = |name: &str, value: &str| env.insert(name.to_owned(), value.to_owned());
    let mut parts = start.name.split('/');
    for name in ["CELL_USER", "CELL_JOB", "CELL_INDEX"] {
        set(name, parts.next().unwrap_or_default());
    }
    let directory = task_paths.directory.display().to_string();
    set("PATH", PATH);
    set("HOME", &directory);
    set("CELL_DIR", &directory);
    set("CELL_MACHINE", start.machine);
    set("CELL_ATTEMPT", &start.attempt.number.to_string());
    if start.attempt.is_log_saver() {
        set("CELL_SAVER_RUN", &start.attempt.log_saver_run.to_string());
    }
    set("CELL_PORTS", &ports.join(","));
    for (number, port) in ports.iter().enumerate() {
        set(&format!("CELL_PORT{number}"), port);
    }
    if !start.devices.is_empty() {
        let ids: Vec<&str> =
            start.devices.iter().map(|granted| granted.host_device.id.as_str()).collect();
        set("CELL_DEVICES", &ids.join(","));
    }
    let packages = (!start.work.packages.is_empty()).then_some(&task_paths.packages);
    let more = [
        ("CELL_PORTS_FILE", task_paths.ports.as_ref()),
        ("CELL_ALLOC_DIR", task_paths.alloc.as_ref()),
        ("CELL_PACKAGES", packages),
        ("CELL_DEVICES_FILE", task_paths.devices.as_ref()),
        ("CELL_SECRETS", task_paths.secrets.as_ref()),
        ("CELL_IDENTITY", task_paths.credentials.as_ref()),
    ];
    for (name, path) in more {
        if let Some(path) = path {
            set(name, &path.display().to_string());
        }
    }
    env.extend(start.work.env.clone());
    env
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_of_the_gone_are_swept_and_those_of_others_are_not() {
        let Some(shared) = tmpfs_secrets_root() else {
            assert!(!rustix::process::geteuid().is_root(), "no file system is in memory");
            return println!("skipped: needs root");
        };
        create_secrets_root(&shared).unwrap();
        let (own, other) =
            (Path::new("/no/such/agent-1/tasks"), Path::new("/no/such/agent-2/tasks"));
        let at =
            |tasks: &Path, attempt: &str| shared.join(format!("{}{attempt}", agent_prefix(tasks)));
        let (kept, gone, foreign) = (at(own, "1-1"), at(own, "2-1"), at(other, "2-1"));
        for folder in [&kept, &gone, &foreign] {
            fs::create_dir_all(folder).unwrap();
            fs::write(folder.join("key"), "secret").unwrap();
        }
        sweep_secrets(own, &BTreeSet::from(["1-1".to_owned()]));
        assert!(kept.exists() && !gone.exists() && foreign.exists());
        for tasks in [own, other] {
            sweep_secrets(tasks, &BTreeSet::new());
        }
        assert!(!kept.exists() && !foreign.exists());
    }

    #[test]
    fn who_was_there_first_keeps_nobody_from_their_secrets() {
        if !rustix::process::geteuid().is_root() {
            return println!("skipped: needs root");
        }
        let scratch = crate::state_dir::scratch::Scratch::new();
        let shared = scratch.path("secrets");
        let occupy = |folder: &Path| {
            fs::create_dir(folder).unwrap();
            fs::write(folder.join("trap"), "").unwrap();
            chown(folder, Some(65_534), None).unwrap();
        };
        occupy(&shared);
        // The path it would be moved to, if that could be guessed.
        for number in 0..MAX_MKDIR_ATTEMPTS {
            let away = format!("{}-of-others-{}-{number}", shared.display(), std::process::id());
            occupy(Path::new(&away));
        }
        create_secrets_root(&shared).unwrap();
        assert!(is_owned_by_agent(&shared) && !shared.join("trap").exists());
    }

    #[test]
    fn an_alloc_is_open_to_other_accounts_only_where_its_tasks_have_some() {
        assert_eq!([true, false].map(alloc_mode), [0o1777, 0o700]);
    }

    #[test]
    fn a_package_leads_nowhere_else() {
        assert!(check_package_name("server-1.2_x").is_ok());
        for bad in ["..", ".git", "a/b", "/etc"] {
            assert!(check_package_name(bad).is_err(), "{bad}");
        }
    }
}
