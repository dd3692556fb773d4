//! What a task has on disk that no folder shows: files without a name that its processes hold open
//! or mapped go on taking space. Descriptors that wait in a socket are in no list of open files,
//! and the kernel says no more of them than how many there are.

use super::Watched;
use crate::ports::open_files;
use std::collections::BTreeMap;
use std::fs::{self, Metadata};
use std::io::{BufRead, BufReader};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// What `stat` calls a block.
const BLOCK: u64 = 512;

/// What was found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Hidden {
    pub bytes: u64,
    /// Descriptors that wait in sockets to be received.
    pub in_flight: u64,
    /// False when there was more than may be looked at.
    pub complete: bool,
}

/// Looks through all processes of the task's group, at `most` open files and mappings: whoever has
/// more hides what is beyond.
pub fn look(task: &Watched, most: usize) -> Hidden {
    let processes = task.group.processes().unwrap_or_default();
    of_processes(&processes, &task.folder, task.limits.disk > 0, most)
}

fn of_processes(processes: &[u32], folder: &Path, sockets: bool, most: usize) -> Hidden {
    let Ok(disk) = fs::metadata(folder).map(|about| about.dev()) else {
        return Hidden { complete: true, ..Hidden::default() };
    };
    let mut held = Held { disk, files: BTreeMap::new(), left: most };
    let mut in_flight = 0u64;
    for pid in processes {
        for file in open_files(*pid) {
            let Some(about) = held.see(&file) else { continue };
            if sockets && is_socket(&about) {
                in_flight = in_flight.saturating_add(waiting(*pid, &file));
            }
        }
        mapped(*pid, &mut held);
    }
    let bytes = held.files.values().sum();
    Hidden { bytes, in_flight, complete: held.left > 0 }
}

/// Files without a name, once each however many hold them.
struct Held {
    disk: u64,
    files: BTreeMap<u64, u64>,
    /// How many more are looked at.
    left: usize,
}

impl Held {
    /// Counts the file behind a link of the kernel's, if it has no name on this disk.
    fn see(&mut self, link: &Path) -> Option<Metadata> {
        self.left = self.left.saturating_sub(1);
        if self.left == 0 {
            return None;
        }
        let about = fs::metadata(link).ok()?;
        if about.is_file() && about.nlink() == 0 && about.dev() == self.disk {
            self.files.insert(about.ino(), about.blocks().saturating_mul(BLOCK));
        }
        Some(about)
    }
}

fn is_socket(about: &Metadata) -> bool {
    std::os::unix::fs::FileTypeExt::is_socket(&about.file_type())
}

/// Descriptors that wait in this socket; none in one of another kind.
fn waiting(pid: u32, file: &Path) -> u64 {
    let Some(number) = file.file_name().and_then(|name| name.to_str()) else { return 0 };
    let text = fs::read_to_string(format!("/proc/{pid}/fdinfo/{number}")).unwrap_or_default();
    let count = text.lines().find_map(|line| line.strip_prefix("scm_fds:"));
    count.and_then(|count| count.trim().parse().ok()).unwrap_or(0)
}

/// Files that a process has mapped and that lost their names.
fn mapped(pid: u32, held: &mut Held) {
    let Ok(list) = fs::File::open(format!("/proc/{pid}/maps")) else { return };
    // A name that is no text ends like others.
    for line in BufReader::new(list).split(b'\n').map_while(Result::ok) {
        if !line.ends_with(b" (deleted)") {
            continue;
        }
        let line = String::from_utf8_lossy(&line);
        let Some(place) = line.split(' ').next() else { continue };
        held.see(Path::new(&format!("/proc/{pid}/map_files/{place}")));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::folder::scratch::Scratch;
    use std::io::Read;
    use std::process::{Child, Command, Stdio};

    /// A process that does what `script` says, in `folder`, and says when it has.
    fn holder(folder: &Path, script: &str) -> Child {
        let perl = format!("$| = 1; {script}; print \"x\"; sleep 1000");
        let mut command = Command::new("perl");
        command.args(["-e", &perl]).current_dir(folder).stdout(Stdio::piped());
        let mut child = command.spawn().expect("perl is there");
        let mut said = [0u8];
        child.stdout.as_mut().unwrap().read_exact(&mut said).unwrap();
        child
    }

    #[test]
    fn files_without_a_name_are_found_open_mapped_and_in_flight() {
        if !cfg!(target_arch = "x86_64") || !rustix::process::geteuid().is_root() {
            return println!("skipped: needs root, and numbers of system calls of x86-64");
        }
        let scratch = Scratch::new();
        let folder = scratch.path("");
        let look = |child: &mut Child| {
            let found = of_processes(&[child.id()], &folder, true, 1000);
            child.kill().unwrap();
            child.wait().unwrap();
            found
        };
        let write = "open($f, '+>', 'big'); print $f 'x' x 1048576; $f->flush(); unlink('big')";
        let mut open = holder(&folder, &format!("use IO::Handle; {write}"));
        let open = look(&mut open);
        assert!(open.bytes >= 1 << 20 && open.complete && open.in_flight == 0, "{open:?}");
        // Shared, read and write; its descriptor is closed.
        let map = "syscall(9, 0, 1048576, 3, 1, fileno($f), 0) > 0 or die; close($f)";
        let mut mapped = holder(&folder, &format!("use IO::Handle; {write}; {map}"));
        let mapped = look(&mut mapped);
        assert!(mapped.bytes >= 1 << 20, "{mapped:?}");
        // A message of one byte with one descriptor, as sendmsg(2) wants it.
        let send = "use Socket; socketpair($a, $b, AF_UNIX, SOCK_STREAM, 0); $d = 'd'; \
            $i = pack('PQ', $d, 1); $c = pack('QiiiI', 20, 1, 1, fileno($f), 0); \
            $m = pack('QLLPQPQiI', 0, 0, 0, $i, 1, $c, 24, 0, 0); \
            syscall(46, fileno($a), $m, 0) == 1 or die $!; close($f)";
        let mut sent = holder(&folder, &format!("use IO::Handle; {write}; {send}"));
        let sent = look(&mut sent);
        assert_eq!((sent.bytes, sent.in_flight), (0, 1), "{sent:?}");
    }
}
