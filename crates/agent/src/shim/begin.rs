//! Starting the program, by way of what stands around it: a plain child, a child that waits until
//! it is in its control group, or a container that the runtime creates and starts. In each case
//! this process is the parent that hears of the end, and the output comes through its pipes.

use super::enter::{ENTER, GO, SAME};
use super::protocol::Launch;
use super::room::Room;
use super::task::Pipes;
use cellwright_isolate::cgroup::Group;
use cellwright_isolate::container::{Bundle, Runc, Runtime, Streams};
use rustix::fs::fchown;
use rustix::process::{Gid, Pid, Resource, Rlimit, Signal, Uid, setrlimit};
use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, Stdio};

/// The running program itself, even when its file has been replaced since.
const OWN_PROGRAM: &str = "/proc/self/exe";
/// The kernel killed what was to become the program.
const TOO_SMALL: &str =
    "killed before it began, as happens when task.limits.ram is too small for any program";
/// Among the last that the kernel kills for want of memory.
const SPARED: &str = "-900";

/// Starts the program.
///
/// # Errors
/// When the system cannot start it; the text is for its owner.
pub fn begin(launch: &Launch, room: &Room) -> io::Result<(Pid, Pipes)> {
    let begun = match (&room.container, &room.group) {
        (Some((runtime, bundle)), _) => contained(launch, runtime, bundle),
        (None, group) => {
            renounce()?;
            group.as_ref().map_or_else(|| plain(launch), |group| grouped(launch, group))
        }
    };
    // After the program, which must not inherit it. Only root may; then the kernel takes whoever
    // used up the memory, and not who knows how that ended.
    let _ = std::fs::write("/proc/self/oom_score_adj", SPARED);
    begun
}

/// What this process and all it starts do without: rights that a program's file would add, and
/// memory left in files by crashes. A container's runtime says so itself.
///
/// # Errors
/// When the kernel refuses.
pub fn renounce() -> io::Result<()> {
    rustix::thread::set_no_new_privs(true)?;
    Ok(setrlimit(Resource::Core, Rlimit { current: Some(0), maximum: Some(0) })?)
}

fn program(launch: &Launch) -> io::Result<(&String, &[String])> {
    let empty = || io::Error::new(io::ErrorKind::InvalidInput, "the command is empty");
    launch.command.split_first().ok_or_else(empty)
}

/// What every child gets. Its environment is for the program alone: a child that is root until it
/// becomes the program would have its own loader do what the job's environment says.
fn dress(command: &mut Command, launch: &Launch) {
    command
        .env_clear()
        .current_dir(&launch.directory)
        .process_group(0)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
}

fn plain(launch: &Launch) -> io::Result<(Pid, Pipes)> {
    let (program, arguments) = program(launch)?;
    let mut command = Command::new(program);
    dress(command.args(arguments), launch);
    command.envs(launch.env.iter().map(|(name, value)| (name, value))).stdin(Stdio::null());
    if let Some((user, group)) = launch.identity {
        command.uid(user).gid(group);
    }
    taken(&mut command.spawn()?)
}

fn grouped(launch: &Launch, group: &Group) -> io::Result<(Pid, Pipes)> {
    let (program, arguments) = program(launch)?;
    let (mut line, other_end) = UnixStream::pair()?;
    let ids = launch.identity.map(|(user, group)| (user.to_string(), group.to_string()));
    let (user, own_group) = ids.unwrap_or_else(|| (SAME.into(), SAME.into()));
    let mut command = Command::new(OWN_PROGRAM);
    command.args(["shim", ENTER, &user, &own_group, program]).args(arguments);
    dress(&mut command, launch);
    command.stdin(OwnedFd::from(other_end));
    let mut child = command.spawn()?;
    // It holds the other end too.
    drop(command);
    let entered = group.add(child.id()).map_err(io::Error::other).and_then(|()| {
        let env = serde_json::to_vec(&launch.env).map_err(io::Error::other)?;
        line.write_all(GO)?;
        line.write_all(&env)?;
        // The end of what it is told; it still answers.
        line.shutdown(Shutdown::Write)?;
        let mut why = String::new();
        // Ends when the program has started, or its process is gone.
        line.read_to_string(&mut why)?;
        if why.is_empty() { Ok(()) } else { Err(io::Error::other(why)) }
    });
    if let Err(why) = entered {
        // It ends by itself when its line is cut; it may be gone already.
        drop(line);
        let ended = child.wait();
        // By nobody but the kernel: nobody else knows of it yet.
        let is_killed = ended.is_ok_and(|status| status.signal() == Some(Signal::KILL.as_raw()));
        return Err(if is_killed { io::Error::other(TOO_SMALL) } else { why });
    }
    taken(&mut child)
}

/// The child's number and output. It is waited for with everything else below this process.
fn taken(child: &mut Child) -> io::Result<(Pid, Pipes)> {
    let missing = || io::Error::other("the program has no output");
    let stdout = child.stdout.take().map(OwnedFd::from).ok_or_else(missing)?;
    let stderr = child.stderr.take().map(OwnedFd::from).ok_or_else(missing)?;
    Ok((number(child.id())?, Pipes { stdout, stderr }))
}

fn number(id: u32) -> io::Result<Pid> {
    let pid = i32::try_from(id).ok().and_then(Pid::from_raw);
    pid.ok_or_else(|| io::Error::other("the program has no number"))
}

/// Between the two calls the first process is in its group and stands still.
fn contained(launch: &Launch, runtime: &Runc, bundle: &Bundle) -> io::Result<(Pid, Pipes)> {
    let (stdout, to_stdout) = io::pipe()?;
    let (stderr, to_stderr) = io::pipe()?;
    if let Some(container) = &launch.container {
        // Programs that open /dev/stdout by its name must own it.
        let (user, group) = container.owner;
        for end in [&to_stdout, &to_stderr] {
            fchown(end, Some(Uid::from_raw(user)), Some(Gid::from_raw(group)))?;
        }
    }
    let streams =
        Streams { stdin: Stdio::null(), stdout: to_stdout.into(), stderr: to_stderr.into() };
    let pid = runtime.create(bundle, streams).map_err(io::Error::other)?;
    runtime.start(bundle).map_err(io::Error::other)?;
    Ok((number(pid)?, Pipes { stdout: stdout.into(), stderr: stderr.into() }))
}
