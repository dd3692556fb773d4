//! The cgroups of this machine's tasks: one for each task, inside that of its alloc where it has
//! one, all below a base cgroup of this agent.
//!
//! Cgroups need root. An agent without them reports why and runs tasks all the same: then the
//! shim's list of processes alone tells which processes belong to a task.

use crate::calibration::CpuFactor;
use crate::config::ProcessLimits;
use cellwright_cell::desired::RunSpec;
use cellwright_cell::id::Attempt;
use cellwright_cell::priority::AppClass;
use cellwright_cell::resource::Resources;
use cellwright_isolate::Error;
use cellwright_isolate::cgroup::{Controller, Group, GroupPath, Layout, Limits, Tree, cpu_weight};
use std::collections::BTreeSet;
use std::path::Path;
use std::time::Duration;
use xxhash_rust::xxh3::xxh3_64;

/// How many times more CPU weight latency-sensitive work has than batch of the same size.
const BATCH_WEIGHT_DIVISOR: u64 = 10;
/// For orphans that are killed at the start; only a hung kernel uses it up.
const KILL_TIMEOUT: Duration = Duration::from_secs(10);

/// The cgroups of one agent, or why there are none; what processes are bounded by, and how limits
/// of CPU become those of this machine. Weights stay as they are: they are shares, and all tasks
/// here are converted alike.
#[derive(Clone, Debug)]
pub struct TaskCgroups(Result<Tree, String>, Ceilings, CpuFactor);

/// Most processes and threads: of all tasks together, and of one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Ceilings {
    all: u64,
    task: u64,
}

impl TaskCgroups {
    /// Agents with different folders never share a cgroup, so several can run on one machine. The
    /// limit `processes` holds for all tasks together, on the base cgroup.
    #[must_use]
    pub fn open(data_dir: &Path, processes: ProcessLimits, cpu: CpuFactor) -> TaskCgroups {
        let (all, task) = processes.ceilings(kernel_max_pids());
        let ceilings = Ceilings { all, task };
        TaskCgroups(open(data_dir, ceilings).map_err(|error| error.to_string()), ceilings, cpu)
    }

    #[cfg(test)]
    pub(crate) fn disabled() -> TaskCgroups {
        TaskCgroups(Err("a test".into()), Ceilings { all: 1, task: 1 }, CpuFactor::default())
    }

    #[must_use]
    pub fn unavailable_reason(&self) -> Option<&str> {
        self.0.as_ref().err().map(String::as_str)
    }

    /// The cgroup that a task of this attempt has, inside that of its alloc.
    #[must_use]
    pub fn task_group(&self, attempt: Attempt, alloc: Option<Attempt>) -> Option<Group> {
        let outer = match alloc {
            Some(alloc) => self.alloc_group(alloc)?.child(&format!("task-{attempt}")),
            None => self.0.as_ref().ok()?.group(&format!("task-{attempt}")),
        };
        outer.ok()
    }

    /// The cgroup of this path, which a launch names.
    #[must_use]
    pub fn at(&self, path: &str) -> Option<Group> {
        Some(self.0.as_ref().ok()?.at(GroupPath::new(path).ok()?))
    }

    #[must_use]
    pub fn alloc_group(&self, attempt: Attempt) -> Option<Group> {
        self.0.as_ref().ok()?.group(&format!("alloc-{attempt}")).ok()
    }

    /// Creates the cgroup of a task and sets its limits. Returns the controllers that this machine
    /// lacks for them.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn make_task(&self, group: &Group, work: &RunSpec) -> Result<Vec<Controller>, Error> {
        let RunSpec { limits, isolation, appclass, .. } = work;
        let weight = task_cpu_weight(*appclass, limits.cpu);
        make(
            group,
            &Limits {
                cpu_weight: Some(weight),
                cpu_cap: (!isolation.slack_cpu).then(|| self.2.to_machine(limits.cpu).max(1)),
                memory_limit: (!isolation.slack_ram).then_some(limits.ram),
                // A job can ask for less than the machine's operator allows, and not for more.
                pids_max: Some(u64::from(isolation.processes).min(self.1.task)),
                ..Limits::default()
            },
        )
    }

    /// Removes the base cgroup when it is empty.
    pub fn close(&self) {
        let Ok(tree) = &self.0 else { return };
        if tree.names().is_ok_and(|names| names.is_empty()) {
            // A process may just have joined; then it stays.
            let _ = tree.base().remove();
        }
    }

    /// Kills and removes the cgroups of attempts that have no folder any more.
    pub fn sweep(&self, kept: &BTreeSet<Attempt>) {
        let Ok(tree) = &self.0 else { return };
        let kept_names: BTreeSet<String> = kept
            .iter()
            .flat_map(|kept| [format!("task-{kept}"), format!("alloc-{kept}")])
            .collect();
        for name in tree.names().unwrap_or_default() {
            let swept = tree.group(&name).and_then(|group| {
                if kept_names.contains(&name) {
                    Ok(())
                } else {
                    group.kill(KILL_TIMEOUT).and_then(|()| group.remove())
                }
            });
            if let Err(error) = swept {
                tracing::error!(%error, "a group that nobody wants stays");
            }
        }
    }
}

/// The name of the base cgroup of the agent with this folder.
#[must_use]
pub fn base_name(data_dir: &Path) -> String {
    format!("cellwright-{:016x}", xxh3_64(data_dir.to_string_lossy().as_bytes()))
}

fn open(data_dir: &Path, ceilings: Ceilings) -> Result<Tree, Error> {
    let tree = Tree::new(Layout::detect()?, GroupPath::new(&base_name(data_dir))?);
    tree.base().create()?;
    let most = Limits { pids_max: Some(ceilings.all), ..Limits::default() };
    for missing in tree.base().apply(&most)? {
        tracing::warn!(%missing, "processes of tasks have no ceiling");
    }
    Ok(tree)
}

/// Processes and threads that the kernel allows.
fn kernel_max_pids() -> u64 {
    let read = |name: &str| {
        let text = std::fs::read_to_string(format!("/proc/sys/kernel/{name}")).ok()?;
        text.trim().parse::<u64>().ok()
    };
    let limits = ["pid_max", "threads-max"].into_iter().filter_map(read);
    // The least default of any kernel.
    limits.min().unwrap_or(32_768)
}

/// The CPU weight of a task with so many milli-cores.
#[must_use]
pub fn task_cpu_weight(class: AppClass, cpu: u64) -> u64 {
    match class {
        AppClass::LatencySensitive => cpu_weight(cpu),
        AppClass::Batch => (cpu_weight(cpu) / BATCH_WEIGHT_DIVISOR).max(1),
    }
}

/// Creates the cgroup of an alloc: its tasks together get no more memory than it has.
///
/// # Errors
/// When the kernel refuses.
pub fn make_alloc(group: &Group, limits: Resources) -> Result<Vec<Controller>, Error> {
    make(
        group,
        &Limits {
            cpu_weight: Some(cpu_weight(limits.cpu)),
            memory_limit: Some(limits.ram),
            ..Limits::default()
        },
    )
}

fn make(group: &Group, limits: &Limits) -> Result<Vec<Controller>, Error> {
    group.create()?;
    group.apply(limits)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample_orders::run;
    use crate::state_dir::scratch::Scratch;
    use cellwright_cell::desired::Action;
    use cellwright_cell::id::TaskId;
    use std::io::{Read, Write};
    use std::process::{Child, Command, Stdio};

    /// A shell in `group` that forks until it cannot, and prints that.
    fn bomb(group: &Group) -> Child {
        let script = "read go; (while :; do sleep 1000 & done) 2> /dev/null; echo full; read end";
        let mut command = Command::new("sh");
        let mut child = command
            .args(["-c", script])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        group.add(child.id()).unwrap();
        child.stdin.as_mut().unwrap().write_all(b"go\n").unwrap();
        let mut output = [0u8; 5];
        child.stdout.as_mut().unwrap().read_exact(&mut output).unwrap();
        assert_eq!(&output, b"full\n");
        child
    }

    /// Fork bombs are ended however a test ends.
    struct Bombs(TaskCgroups, Vec<Child>);

    impl Drop for Bombs {
        fn drop(&mut self) {
            self.0.sweep(&BTreeSet::new());
            self.0.close();
            for bomb in &mut self.1 {
                let _ = bomb.kill();
                let _ = bomb.wait();
            }
        }
    }

    #[test]
    fn whatever_jobs_ask_for_one_task_and_all_together_have_a_ceiling_of_processes() {
        let scratch = Scratch::new();
        let processes = ProcessLimits { all: Some(12), task: Some(8) };
        let groups = TaskCgroups::open(&scratch.path(""), processes, CpuFactor::default());
        if let Some(why) = groups.unavailable_reason() {
            assert!(!rustix::process::geteuid().is_root(), "{why}");
            return println!("skipped: {why}");
        }
        let Action::Run(mut work) = run() else { panic!("it runs") };
        work.isolation.processes = 100_000;
        work.isolation.slack_ram = true;
        let mut threads = Vec::new();
        let mut bombs = Bombs(groups.clone(), Vec::new());
        for task in [1, 2] {
            let group = groups.task_group(Attempt::new(TaskId(task), 1), None).unwrap();
            let missing = groups.make_task(&group, &work).unwrap();
            if missing.contains(&Controller::Pids) {
                return println!("skipped: no controller of processes");
            }
            bombs.1.push(bomb(&group));
            threads.push(group.usage().unwrap().threads.unwrap());
        }
        assert!(threads[0] <= 8 && threads[0] >= 6, "{threads:?}");
        assert!(threads[0] + threads[1] <= 12 && threads[1] <= 6, "{threads:?}");
    }

    #[test]
    fn ceilings_are_the_operators_or_a_part_of_what_the_kernel_has() {
        let of = |all, task| ProcessLimits { all, task }.ceilings(32_768);
        assert_eq!(of(None, None), (16_384, 4096));
        assert_eq!(of(Some(100), None), (100, 25));
        assert_eq!(of(Some(100), Some(1000)), (100, 100));
        assert_eq!(of(Some(1), None), (1, 1));
        assert!(kernel_max_pids() > 300);
    }
}
