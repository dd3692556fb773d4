//! Checks whether a program exists where the task runs, before anything is started, with the rules
//! of the kernel: in the task's own root, along its own `PATH`, from its own folder. Whether this
//! user may execute it is left to the kernel: access control lists and security modules have a say
//! in it.
//!
//! Rejected: parsing the runtime's error message. It is not made for people, differs from version
//! to version and comes on the same stream as the command's own output. What a lookup cannot tell
//! is left to the start.

use crate::shim::sandbox::open_group;
use cellwright_api::exec::Frame;
use rustix::fs::{FileType, Mode, OFlags, ResolveFlags, fstat, open, openat2};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

/// The program to look up, and where.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProgramLookup {
    /// As the user typed it.
    pub program: String,
    /// `USER/JOB/INDEX`, for error messages.
    pub task: String,
    /// The task's `PATH`.
    pub path: Option<String>,
    /// The command's working directory, as the task sees it.
    pub directory: PathBuf,
    /// A process whose root is the task's. Absent: the machine's own root.
    pub root_of: Option<u32>,
    /// The cgroup that this process is in: its pid may be reused.
    pub group: Option<String>,
}

/// Why a program cannot be run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LookupFailure {
    Absent,
    NotExecutable,
}

impl LookupFailure {
    /// The exit code of shells.
    fn code(self) -> i32 {
        match self {
            LookupFailure::Absent => 127,
            LookupFailure::NotExecutable => 126,
        }
    }
}

impl ProgramLookup {
    /// Why it cannot be run. Nothing where it can, and where a lookup cannot tell.
    #[must_use]
    pub fn check(&self) -> Option<LookupFailure> {
        let root = match self.root_of {
            Some(process) => format!("/proc/{process}/root"),
            None => "/".to_owned(),
        };
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root: OwnedFd = open(&root, flags, Mode::empty()).ok()?;
        // After it was opened: a process that is there now was there before.
        self.is_its_root().then(|| self.check_below(&root)).flatten()
    }

    /// Whether the process whose root was opened is the task's.
    fn is_its_root(&self) -> bool {
        let Some(process) = self.root_of else { return true };
        let members =
            self.group.as_deref().map(|path| open_group(path).and_then(|all| all.processes()));
        matches!(members, Some(Ok(all)) if all.contains(&process))
    }

    fn check_below(&self, root: &OwnedFd) -> Option<LookupFailure> {
        let below = |folder: &str| self.directory.join(folder).join(&self.program);
        if self.program.contains('/') {
            return check_executable(root, &below("")).err();
        }
        let mut found = LookupFailure::Absent;
        for folder in self.path.as_ref()?.split(':') {
            match check_executable(root, &below(folder)) {
                Ok(()) => return None,
                Err(LookupFailure::NotExecutable) => found = LookupFailure::NotExecutable,
                Err(LookupFailure::Absent) => {}
            }
        }
        Some(found)
    }

    /// The error message, for a terminal or not, and the exit code of the session.
    #[must_use]
    pub fn error_frames(&self, failure: LookupFailure, terminal: bool) -> [Frame; 2] {
        let ProgramLookup { program, task, .. } = self;
        let job = task.rsplit_once('/').map_or(task.as_str(), |(job, _)| job);
        let text = match failure {
            LookupFailure::Absent => format!(
                "error: no program {program:?} in the task {task}\n\
                 next: see what it runs and has: cell describe {job}\n"
            ),
            LookupFailure::NotExecutable => format!(
                "error: {program:?} in the task {task} is not executable\n\
                 next: name a program, or what it is for: cell exec {task} -- sh {program}\n"
            ),
        };
        // A terminal at the other end is in raw mode.
        let text = if terminal { text.replace('\n', "\r\n") } else { text };
        let frame_kind = if terminal { Frame::Data } else { Frame::Stderr };
        [frame_kind(text.into()), Frame::Exit(failure.code())]
    }
}

/// Links are followed within the root, as they are for the task.
fn check_executable(root: &OwnedFd, path: &Path) -> Result<(), LookupFailure> {
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    match openat2(root, path, flags, Mode::empty(), ResolveFlags::IN_ROOT) {
        Ok(file) if !can_run(&file) => Err(LookupFailure::NotExecutable),
        Err(Errno::NOENT | Errno::NOTDIR) => Err(LookupFailure::Absent),
        // What cannot be checked is left to the kernel.
        Ok(_) | Err(_) => Ok(()),
    }
}

/// Whether any account may execute it. An access control list that lets an account shows in the
/// bits of the group.
fn can_run(file: &OwnedFd) -> bool {
    let Ok(about) = fstat(file) else { return true };
    FileType::from_raw_mode(about.st_mode).is_file() && about.st_mode & 0o111 != 0
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::state_dir::scratch::Scratch;
    use std::fs;
    use std::os::unix::fs::{PermissionsExt, symlink};

    fn lookup(program: &str) -> ProgramLookup {
        ProgramLookup {
            program: program.into(),
            task: "ann/web/0".into(),
            path: Some("/usr/bin:/bin".into()),
            directory: "/work".into(),
            root_of: None,
            group: None,
        }
    }

    /// A root with programs in it, and links that lead out of it unless they are resolved within.
    fn root(scratch: &Scratch) -> OwnedFd {
        let root = scratch.path("root");
        for folder in ["usr/bin", "work", "work/folder"] {
            fs::create_dir_all(root.join(folder)).unwrap();
        }
        for (name, mode) in
            [("usr/bin/serve", 0o755), ("usr/bin/data", 0o644), ("work/own", 0o700), ("top", 0o755)]
        {
            fs::write(root.join(name), "#!/bin/sh\n").unwrap();
            fs::set_permissions(root.join(name), fs::Permissions::from_mode(mode)).unwrap();
        }
        symlink("usr/bin", root.join("bin")).unwrap();
        symlink("/top", root.join("work/absolute")).unwrap();
        symlink("/etc/passwd", root.join("work/outside")).unwrap();
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        open(&root, flags, Mode::empty()).unwrap()
    }

    #[test]
    fn a_program_is_looked_for_as_the_task_would_find_it() {
        let scratch = Scratch::new();
        let root = root(&scratch);
        let (absent, not_executable) =
            (Some(LookupFailure::Absent), Some(LookupFailure::NotExecutable));
        for (program, failure) in [
            ("serve", None),
            ("sh", absent),
            ("data", not_executable),
            ("/bin/serve", None),
            ("/bin/sh", absent),
            ("./own", None),
            ("own", absent),
            ("../top", None),
            ("../../../top", None),
            ("./absolute", None),
            ("./outside", absent),
            ("./folder", not_executable),
            ("./own/below", absent),
        ] {
            assert_eq!(lookup(program).check_below(&root), failure, "{program}");
        }
        // Without a `PATH` the lookup cannot tell.
        let lost = ProgramLookup { path: None, ..lookup("sh") };
        assert_eq!(lost.check_below(&root), None);
        // The machine's own root has what machines have.
        assert_eq!((lookup("sh").check(), lookup("no-such-program").check()), (None, absent));
    }

    #[test]
    fn who_may_run_what_somebody_may_is_for_the_kernel_to_say() {
        let scratch = Scratch::new();
        let root = root(&scratch);
        let own = scratch.path("root/work/own");
        // An access control list that lets one account execute it shows as the group's.
        for (mode, failure) in [
            (0o610, None),
            (0o601, None),
            (0o700, None),
            (0o666, Some(LookupFailure::NotExecutable)),
        ] {
            fs::set_permissions(&own, fs::Permissions::from_mode(mode)).unwrap();
            assert_eq!(lookup("./own").check_below(&root), failure, "{mode:o}");
        }
    }

    #[test]
    fn nothing_is_told_by_the_root_of_a_stranger() {
        let absent = lookup("no-such-program");
        assert_eq!(absent.check(), Some(LookupFailure::Absent));
        for group in [None, Some("/cell-no-such-group".to_owned())] {
            let root_of = Some(std::process::id());
            let stranger = ProgramLookup { root_of, group, ..absent.clone() };
            assert_eq!(stranger.check(), None, "{stranger:?}");
        }
    }

    #[test]
    fn what_is_said_ends_with_the_code_that_shells_give() {
        let [frame, end] = lookup("sh").error_frames(LookupFailure::Absent, false);
        let Frame::Stderr(text) = frame else { panic!("{frame:?}") };
        assert!(text.starts_with(b"error: no program \"sh\" in the task ann/web/0\nnext: "));
        assert_eq!(end, Frame::Exit(127));
        let [frame, end] = lookup("./data").error_frames(LookupFailure::NotExecutable, true);
        let Frame::Data(text) = frame else { panic!("{frame:?}") };
        assert!(text.starts_with(b"error: \"./data\" in the task ann/web/0 is not executable\r\n"));
        assert_eq!(end, Frame::Exit(126));
    }
}
