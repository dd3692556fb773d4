//! Starts the program in its sandbox: as a plain child, as a child that waits until it is in its
//! cgroup, or in a container that the runtime creates and starts. In each case this process is the
//! parent that reaps it, and the output comes through its pipes.

use crate::VERB;
use crate::enter::{ENTER, EnterMessage, GO_PREFIX, KEEP_ID};
use crate::protocol::Launch;
use crate::sandbox::Sandbox;
use crate::task::Pipes;
use cellwright_isolate::cgroup::Group;
use cellwright_isolate::container::{Bundle, Runc, Runtime, Streams};
use rustix::fs::fchown;
use rustix::process::{Gid, Pid, Resource, Rlimit, Signal, Uid, setrlimit};
use std::io::{self, PipeWriter, Read, Write};
use std::net::Shutdown;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Command, Stdio};

/// The running program itself, even when its file has been replaced since.
const OWN_PROGRAM: &str = "/proc/self/exe";
/// The kernel killed the process that was about to execute the program.
const RAM_TOO_SMALL: &str =
    "killed before it began, as happens when task.limits.ram is too small for any program";
/// Among the last that the kernel's OOM killer picks.
const SHIM_OOM_SCORE_ADJ: &str = "-900";

/// Starts the program.
///
/// # Errors
/// When the system cannot start it; the text is for its owner.
pub fn spawn_program(launch: &Launch, sandbox: &Sandbox) -> io::Result<(Pid, Pipes)> {
    let spawned = match (&sandbox.container, &sandbox.group) {
        (Some((runtime, bundle)), _) => spawn_in_container(launch, runtime, bundle),
        (None, group) => {
            drop_privileges()?;
            group
                .as_ref()
                .map_or_else(|| spawn_plain(launch), |group| spawn_in_group(launch, group))
        }
    };
    // After the program, which must not inherit it. Only root may; then the OOM killer picks the
    // process that used up the memory, and not the shim that has to record the exit.
    let _ = std::fs::write("/proc/self/oom_score_adj", SHIM_OOM_SCORE_ADJ);
    spawned
}

/// Drops privileges of this process and all its descendants: rights that a program's file would
/// add, and core dumps. A container's runtime sees to the first itself.
///
/// # Errors
/// When the kernel refuses.
pub fn drop_privileges() -> io::Result<()> {
    rustix::thread::set_no_new_privs(true)?;
    disable_core_dumps()
}

/// Crashes of this process and its descendants leave no memory in files.
///
/// # Errors
/// When the kernel refuses.
pub fn disable_core_dumps() -> io::Result<()> {
    Ok(setrlimit(Resource::Core, Rlimit { current: Some(0), maximum: Some(0) })?)
}

/// Descriptors that this process inherited, beside its standard streams, are not passed on: the
/// process that started the agent may have had files open that a task must not get.
pub fn close_inherited_fds() {
    close_fds::set_fds_cloexec(3, &[]);
}

/// A program that waits outside of its cgroup, as a process of ours, until it is released.
pub struct WaitingProgram {
    /// To be started by the process that becomes its parent, and dropped then: it holds an end of
    /// the socket too.
    pub command: Command,
    release_handle: ReleaseHandle,
}

/// Sends it the release message, and receives why it did not begin.
pub struct ReleaseHandle {
    stream: UnixStream,
    env: Vec<(String, String)>,
}

/// Prepares a process that executes `words`, as `identity`, in `directory`, with `env` alone. The
/// environment is passed to the program only: a child that is root until it executes the program
/// would have its own dynamic loader obey the job's environment.
///
/// # Errors
/// When there is no program, or the system has no sockets.
pub fn waiting_program(
    words: &[String],
    directory: &Path,
    identity: Option<(u32, u32)>,
    env: &[(String, String)],
) -> io::Result<WaitingProgram> {
    let (program, arguments) = split_command(words)?;
    let (stream, other_end) = UnixStream::pair()?;
    let ids = identity.map(|(user, group)| (user.to_string(), group.to_string()));
    let (user, group) = ids.unwrap_or_else(|| (KEEP_ID.into(), KEEP_ID.into()));
    let mut command = Command::new(OWN_PROGRAM);
    command.args([VERB, ENTER, &user, &group, program]).args(arguments);
    command.env_clear().current_dir(directory).process_group(0).stdin(OwnedFd::from(other_end));
    Ok(WaitingProgram { command, release_handle: ReleaseHandle { stream, env: env.to_vec() } })
}

impl WaitingProgram {
    /// The command and the handle, which must outlive it.
    #[must_use]
    pub fn into_parts(self) -> (Command, ReleaseHandle) {
        (self.command, self.release_handle)
    }
}

impl ReleaseHandle {
    /// Has the process join the cgroup and execute its program. Where the unified hierarchy only
    /// counts, it is not counted there yet ([`Group::count_members`]).
    ///
    /// # Errors
    /// Why it did not; the process ends by itself then, for its socket is closed.
    pub fn release(mut self, pid: u32, group: &Group) -> io::Result<()> {
        group.add_to_limitless_hierarchies(pid).map_err(io::Error::other)?;
        let message = EnterMessage { entrances: group.join_files(), env: self.env };
        let encoded = serde_json::to_vec(&message).map_err(io::Error::other)?;
        self.stream.write_all(&[GO_PREFIX, &encoded].concat())?;
        // The end of the message; the process can still respond.
        self.stream.shutdown(Shutdown::Write)?;
        let mut why = String::new();
        // Ends when the program has started, or its process is gone.
        self.stream.read_to_string(&mut why)?;
        if why.is_empty() { Ok(()) } else { Err(io::Error::other(why)) }
    }
}

fn split_command(words: &[String]) -> io::Result<(&String, &[String])> {
    let empty = || io::Error::new(io::ErrorKind::InvalidInput, "the command is empty");
    words.split_first().ok_or_else(empty)
}

/// Pipes for a program's output: our ends and the program's. Programs that open /dev/stdout by its
/// name must own it.
fn pipes(owner: Option<(u32, u32)>) -> io::Result<(Pipes, PipeWriter, PipeWriter)> {
    let (stdout, to_stdout) = io::pipe()?;
    let (stderr, to_stderr) = io::pipe()?;
    if let Some((user, group)) = owner {
        for end in [&to_stdout, &to_stderr] {
            fchown(end, Some(Uid::from_raw(user)), Some(Gid::from_raw(group)))?;
        }
    }
    Ok((Pipes { stdout: stdout.into(), stderr: stderr.into() }, to_stdout, to_stderr))
}

fn spawn_plain(launch: &Launch) -> io::Result<(Pid, Pipes)> {
    let (program, arguments) = split_command(&launch.command)?;
    let (pipes, stdout, stderr) = pipes(launch.run_as)?;
    let mut command = Command::new(program);
    command
        .args(arguments)
        .env_clear()
        .envs(launch.env.iter().map(|(name, value)| (name, value)))
        .current_dir(&launch.directory)
        .process_group(0)
        .stdin(Stdio::null())
        .stdout(stdout)
        .stderr(stderr);
    if let Some((user, group)) = launch.run_as {
        command.uid(user).gid(group);
    }
    Ok((to_pid(command.spawn()?.id())?, pipes))
}

fn spawn_in_group(launch: &Launch, group: &Group) -> io::Result<(Pid, Pipes)> {
    let (pipes, stdout, stderr) = pipes(launch.run_as)?;
    let program = waiting_program(&launch.command, &launch.directory, launch.run_as, &launch.env)?;
    let (mut command, release_handle) = program.into_parts();
    let mut child = command.stdout(stdout).stderr(stderr).spawn()?;
    drop(command);
    if let Err(why) = release_handle.release(child.id(), group) {
        // It ends by itself, for its socket is closed; it may be gone already.
        let status = child.wait();
        // Only the kernel can have killed it: no other process knows of it yet.
        let is_killed = status.is_ok_and(|status| status.signal() == Some(Signal::KILL.as_raw()));
        return Err(if is_killed { io::Error::other(RAM_TOO_SMALL) } else { why });
    }
    Ok((to_pid(child.id())?, pipes))
}

fn to_pid(id: u32) -> io::Result<Pid> {
    let pid = i32::try_from(id).ok().and_then(Pid::from_raw);
    pid.ok_or_else(|| io::Error::other("the program has no number"))
}

fn spawn_in_container(
    launch: &Launch,
    runtime: &Runc,
    bundle: &Bundle,
) -> io::Result<(Pid, Pipes)> {
    let owner = launch.container.as_ref().map(|container| container.owner);
    let (pipes, stdout, stderr) = pipes(owner)?;
    disable_core_dumps()?;
    let streams = Streams { stdin: Stdio::null(), stdout: stdout.into(), stderr: stderr.into() };
    let pid = runtime.run(bundle, streams).map_err(io::Error::other)?;
    Ok((to_pid(pid)?, pipes))
}
