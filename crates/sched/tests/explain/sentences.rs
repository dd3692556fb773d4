//! Explanations as sentences: cells built by hand, one reason to be pending each.

use crate::support::specs::{self, token};
use cellwright_cell::constraint::{AttributeValue, Constraint, Operator, Strength};
use cellwright_cell::device::{Device, DeviceRequest, WHOLE_DEVICE};
use cellwright_cell::explanation::{Explanation, FITS, Obstacle};
use cellwright_cell::id::{JobId, MachineId, TaskId, UserId};
use cellwright_cell::isolation::{HOST_VOLUME_READ_ONLY, Volume, host_volume_attribute};
use cellwright_cell::machine::{MachineSpec, PortRange};
use cellwright_cell::name::Name;
use cellwright_cell::resource::Resources;
use cellwright_cell::spec::{Domain, JobSpec, SpreadLimit};
use cellwright_cell::time::Time;
use cellwright_cell::words::{self, quantity::Natural};
use cellwright_sched::cluster_snapshot::{
    JobInfo, MachineInfo, PendingTaskInfo, PlacedTaskInfo, TaskPhase,
};
use cellwright_sched::executor::Sequential;
use cellwright_sched::explain::Explainer;
use cellwright_sched::explain::names::{NameResolver, SnapshotNames};
use cellwright_sched::explain::queue_position::QueuePositions;
use cellwright_sched::queue::QueueOrder;
use cellwright_sched::{ClusterSnapshot, Options};
use std::collections::BTreeMap;
use std::sync::Arc;

const GIB: u64 = 1 << 30;

/// A cell built by hand: machines by name and capacity, jobs by their difference from the plain
/// one.
struct SmallCluster {
    snapshot: ClusterSnapshot,
    machines: Vec<MachineSpec>,
    jobs: Vec<Arc<JobSpec>>,
    tasks: u32,
}

impl SmallCluster {
    fn new() -> SmallCluster {
        SmallCluster { snapshot: ClusterSnapshot::new(), machines: vec![], jobs: vec![], tasks: 0 }
    }

    fn add_machine(
        &mut self,
        name: &str,
        cores: u64,
        gib: u64,
        more: impl FnOnce(&mut MachineSpec),
    ) {
        let id = MachineId(self.machines.len() as u32);
        let mut spec = MachineSpec {
            name: Name::new(name).unwrap(),
            capacity: Resources::new(cores * 1000, gib * GIB, 100 * GIB, 0),
            attributes: BTreeMap::new(),
            labels: BTreeMap::new(),
            rack: None,
            power: None,
            devices: vec![],
            named: vec![],
            ports: PortRange { first: 20_000, last: 20_009 },
            address: None,
        };
        more(&mut spec);
        self.machines.push(spec);
        self.put_machine(id, true, false, false);
    }

    fn put_machine(&mut self, id: MachineId, up: bool, draining: bool, short: bool) {
        let info = MachineInfo {
            spec: &self.machines[id.slot()],
            up,
            draining,
            under_pressure: short,
            retained_disk: 0,
            ephemeral: &[],
            packages: &[],
        };
        self.snapshot.put_machine(id, &info);
    }

    fn job(&mut self, name: &str, priority: u16, more: impl FnOnce(&mut JobSpec)) -> JobId {
        let mut spec = specs::plain(name, 1, priority, Resources::new(1000, GIB, 0, 0));
        more(&mut spec);
        let id = JobId(self.jobs.len() as u32);
        let spec = Arc::new(spec);
        let info = JobInfo {
            user: UserId(0),
            spec: &spec,
            version: 1,
            alloc_set: None,
            machines: &Arc::default(),
            budget: spec.max_down,
            in_transition: 0,
        };
        self.snapshot.put_job(id, &info);
        self.jobs.push(spec);
        id
    }

    fn wait(&mut self, job: JobId, not_before: u64) -> TaskId {
        let task = TaskId(self.tasks);
        let info = PendingTaskInfo {
            job,
            index: self.tasks,
            attempt: 0,
            not_before: Time(not_before),
            reservation: None,
            avoid: &[],
        };
        self.snapshot.put_pending(task, &info);
        self.tasks += 1;
        task
    }

    fn hold(&mut self, job: JobId, machine: u32) -> TaskId {
        let task = TaskId(self.tasks);
        let spec = self.jobs[job.slot()].clone();
        let info = PlacedTaskInfo {
            job,
            index: self.tasks,
            attempt: 1,
            spec: &spec,
            version: 1,
            limits: spec.limits_of(self.tasks),
            phase: TaskPhase::Running,
            machine: MachineId(machine),
            alloc: None,
            reservation: spec.task.limits,
            ports: &spec.task.static_ports,
            devices: &[],
        };
        self.snapshot.put_placed(task, &info);
        self.tasks += 1;
        task
    }

    fn explain(&self, task: TaskId) -> Explanation {
        let positions = QueuePositions::new(&self.snapshot, QueueOrder::Fair, Time(100), 0);
        Explainer::new(&self.snapshot, self, &Sequential).task(task, &positions).unwrap()
    }

    fn text(&self, task: TaskId) -> String {
        words::explanation::render(&self.explain(task), &Natural)
    }
}

impl NameResolver for SmallCluster {
    fn machine(&self, id: MachineId) -> String {
        self.machines[id.slot()].name.to_string()
    }
    fn task(&self, id: TaskId) -> String {
        format!("ada/{}", SnapshotNames(&self.snapshot).task(id))
    }
}

#[test]
fn a_shortage_reads_like_a_sentence() {
    let mut cell = SmallCluster::new();
    cell.add_machine("m1", 8, 16, |_| {});
    cell.add_machine("m2", 8, 16, |_| {});
    cell.add_machine("m3", 2, 64, |_| {});
    let web = cell.job("web", 200, |spec| spec.task.limits = Resources::new(2000, 13 * GIB, 0, 0));
    cell.hold(web, 0);
    let db = cell.job("db", 210, |spec| spec.task.limits = Resources::new(2000, 14 * GIB, 0, 0));
    cell.hold(db, 1);
    let new = cell.job("new", 220, |spec| spec.task.limits = Resources::new(4000, 4 * GIB, 0, 0));
    let task = cell.wait(new, 0);
    let want = "\
pending: needs 4 cores cpu and 4 GiB ram; no machine of 3 has both free.
2 lack ram (most free: 3 GiB on m1), 1 lacks cpu (most free: 2 cores on m3).
Would fit if ram <= 3 GiB (on m1). Or if cpu <= 2 cores (on m3).
The cell is only full: 2 machines could take it when empty.
Room would need ada/web/0 (priority 200) on m1 evicted, which is not allowed: production never \
 preempts production.
Number 1 of 1 in the queue, 0 of higher priority.";
    assert_eq!(cell.text(task), want);
}

#[test]
fn everything_that_the_nearest_machine_lacks_is_named() {
    let mut cell = SmallCluster::new();
    let flash = |spec: &mut MachineSpec| {
        spec.attributes.insert(token("flash"), AttributeValue::Integer(1));
    };
    // The first is nearest by what it lacks, and is down; the second lacks less than the third.
    cell.add_machine("m1", 8, 16, flash);
    cell.put_machine(MachineId(0), false, false, false);
    cell.add_machine("m2", 2, 3, |_| {});
    cell.add_machine("m3", 1, 1, |_| {});
    cell.add_machine("m4", 1, 1, |_| {});
    let web = cell.job("web", 200, |spec| spec.task.static_ports = vec![8080]);
    cell.hold(web, 3);
    let new = cell.job("new", 100, |spec| {
        spec.task.limits = Resources::new(4000, 4 * GIB, 0, 0);
        spec.task.static_ports = vec![8080];
        let (attribute, operator) = (token("flash"), Operator::Exists);
        spec.constraints = vec![Constraint { attribute, operator, strength: Strength::Hard }];
    });
    let task = cell.wait(new, 0);
    let explanation = cell.explain(task);
    let nearest = explanation.nearest.clone().unwrap();
    let codes: Vec<&str> = nearest.obstacles.iter().map(|obstacle| obstacle.code).collect();
    assert_eq!(nearest.machine.name, "m2");
    assert_eq!(codes, ["constraint", "resource", "resource"]);
    assert!(nearest.obstacles.iter().all(|obstacle| obstacle.machines == 1));
    let counted: u32 = explanation.reasons.iter().map(|reason| reason.machines).sum();
    assert_eq!((counted, explanation.machines_total), (4, 4));
    let line = "Nearest is m2: it fails the constraint flash exists, it lacks cpu (most free: 2 \
                cores) and it lacks ram (most free: 3 GiB).";
    let text = cell.text(task);
    assert!(text.lines().any(|said| said == line), "{text}");
    // One thing alone is among the reasons already, and where it fits there is nothing to say.
    let small = cell.job("small", 100, |spec| spec.task.limits = Resources::new(4000, GIB, 0, 0));
    let task = cell.wait(small, 0);
    assert_eq!(cell.explain(task).nearest.map(|nearest| nearest.obstacles.len()), Some(1));
    assert!(!cell.text(task).contains("Nearest is"));
    let fits = cell.job("fits", 100, |_| {});
    let task = cell.wait(fits, 0);
    assert_eq!(cell.explain(task).nearest, None);
}

#[test]
fn a_machine_that_is_short_itself_says_so_to_all_but_production() {
    let mut cell = SmallCluster::new();
    cell.add_machine("m1", 8, 16, |_| {});
    cell.add_machine("m2", 1, 16, |_| {});
    cell.put_machine(MachineId(0), true, false, true);
    let ask = |spec: &mut JobSpec| spec.task.limits = Resources::new(2000, GIB, 0, 0);
    let batch = cell.job("batch", 100, ask);
    let task = cell.wait(batch, 0);
    let want = "\
pending: needs 2 cores cpu; the only machine it may run on lacks it.
1 lacks cpu (most free: 1 core on m2), 1 is short itself, open to production only.
Would fit if cpu <= 1 core (on m2).
A machine that is short takes it when that has passed.
Number 1 of 1 in the queue, 0 of higher priority.";
    assert_eq!(cell.text(task), want);
    let web = cell.job("web", 200, ask);
    let task = cell.wait(web, 0);
    assert_eq!(cell.explain(task).fitting(), 1);
}

#[test]
fn a_port_clash_names_the_port_and_its_holders() {
    let mut cell = SmallCluster::new();
    cell.add_machine("m1", 8, 16, |_| {});
    cell.add_machine("m2", 8, 16, |_| {});
    let web = cell.job("web", 200, |spec| spec.task.static_ports = vec![8080]);
    cell.hold(web, 0);
    cell.hold(web, 1);
    let new = cell.job("new", 100, |spec| spec.task.static_ports = vec![8080]);
    let task = cell.wait(new, 0);
    let want = "\
pending: no machine of 2 can take it.
on 2 port 8080 is taken (by ada/web/0 on m1 and ada/web/1 on m2).
Would fit if it did not insist on port 8080 (on 2 machines, such as m1).
The cell is only full: 2 machines could take it when empty.
Room would need ada/web/0 (priority 200) on m1 evicted, which is not allowed: equal or higher \
 priority is never evicted.
Number 1 of 1 in the queue, 0 of higher priority.";
    assert_eq!(cell.text(task), want);
}

#[test]
fn a_constraint_is_quoted_and_can_be_dropped() {
    let mut cell = SmallCluster::new();
    let flash = |spec: &mut MachineSpec| {
        spec.attributes.insert(token("flash"), AttributeValue::Integer(1));
    };
    cell.add_machine("m1", 8, 16, |_| {});
    cell.add_machine("m2", 1, 16, flash);
    let new = cell.job("new", 100, |spec| {
        spec.task.limits = Resources::new(2000, GIB, 0, 0);
        let (attribute, operator) = (token("flash"), Operator::Exists);
        spec.constraints = vec![Constraint { attribute, operator, strength: Strength::Hard }];
    });
    let task = cell.wait(new, 0);
    let want = "\
pending: needs 2 cores cpu; the only machine it may run on lacks it.
1 fails the constraint flash exists, 1 lacks cpu (most free: 1 core on m2).
Would fit if cpu <= 1 core (on m2). Or if the constraint flash exists were dropped (on m1).
As asked, no machine could take it even when empty: waiting will not help.
Number 1 of 1 in the queue, 0 of higher priority.";
    assert_eq!(cell.text(task), want);
}

/// Waiting for the end of a drain, or for a machine to come back, is not hopeless.
#[test]
fn a_machine_that_drains_or_is_down_is_worth_waiting_for() {
    let hopeless = "As asked, no machine could take it even when empty: waiting will not help.";
    let waits = "It waits for machines that drain or are down: 1 machine could take it once open \
                 and empty.";
    let check = |up: bool, draining: bool, full: bool, kind: i64, want: &str| {
        let mut cell = SmallCluster::new();
        cell.add_machine("m1", 8, 16, |spec| {
            spec.attributes.insert(token("kind"), AttributeValue::Integer(kind));
        });
        cell.add_machine("m2", 1, 16, |_| {});
        let all = cell.job("all", 100, |spec| spec.task.limits.cpu = 8000);
        if full {
            cell.hold(all, 0);
        }
        cell.put_machine(MachineId(0), up, draining, false);
        let new = cell.job("new", 100, |spec| {
            spec.task.limits.cpu = 2000;
            let operator = Operator::NotEqual(AttributeValue::Integer(7));
            let attribute = token("kind");
            spec.constraints = vec![Constraint { attribute, operator, strength: Strength::Hard }];
        });
        let task = cell.wait(new, 0);
        let text = cell.text(task);
        assert!(text.contains(want), "up {up}, draining {draining}, full {full}: {text}");
    };
    check(true, true, false, 1, waits);
    check(true, true, true, 1, waits);
    check(false, false, false, 1, waits);
    check(true, true, false, 7, hopeless);
    check(true, false, true, 1, "The cell is only full");
}

#[test]
fn two_limits_together_and_limits_beyond_the_largest_machine() {
    let mut cell = SmallCluster::new();
    cell.add_machine("m1", 8, 16, |_| {});
    let new = cell.job("new", 100, |spec| {
        spec.task.limits = Resources::new(10_000, 32 * GIB, 0, 0);
    });
    let task = cell.wait(new, 0);
    let want = "\
pending: needs 10 cores cpu; no machine of 1 has it free.
1 lacks cpu (most free: 8 cores on m1).
Nearest is m1: it lacks cpu (most free: 8 cores) and it lacks ram (most free: 16 GiB).
No single change of the request would make it fit; cpu <= 8 cores and ram <= 16 GiB (on m1) \
 together would.
No machine is large enough even when empty: asked 10 cores cpu, the largest has 8 cores and 32 \
 GiB ram, the largest has 16 GiB.
Number 1 of 1 in the queue, 0 of higher priority.";
    assert_eq!(cell.text(task), want);
}

#[test]
fn a_task_in_back_off_fits_and_says_until_when_it_waits() {
    let mut cell = SmallCluster::new();
    cell.add_machine("m1", 8, 16, |_| {});
    let new = cell.job("new", 100, |_| {});
    let task = cell.wait(new, 5000);
    let want = "\
pending: fits on the only machine as it is now.
Next try in 5 s (back-off or lease).";
    assert_eq!(cell.text(task), want);
}

#[test]
fn a_spent_budget_protects_a_victim() {
    let check = |priority, obstacle: Option<Obstacle>| {
        let mut cell = SmallCluster::new();
        cell.add_machine("m1", 1, 16, |_| {});
        let low = cell.job("low", 50, |spec| spec.max_down = Some(0));
        cell.hold(low, 0);
        let new = cell.job("new", priority, |_| {});
        let task = cell.wait(new, 0);
        let victims = cell.explain(task).victims.unwrap();
        assert_eq!(victims.allowed, obstacle.is_none());
        assert_eq!(victims.tasks[0].obstacle, obstacle);
    };
    check(99, Some(Obstacle::Budget { left: 0 }));
    check(100, None);
}

#[test]
fn the_place_in_the_queue_follows_priority_and_turns() {
    let mut cell = SmallCluster::new();
    cell.add_machine("m1", 1, 1, |_| {});
    let low = cell.job("low", 50, |_| {});
    let high = cell.job("high", 250, |_| {});
    let first_low = cell.wait(low, 0);
    let second_low = cell.wait(low, 0);
    let only_high = cell.wait(high, 0);
    let check = |task, position, higher_priority| {
        let place = cell.explain(task).queue_position.unwrap();
        assert_eq!((place.position, place.waiting), (Some(position), 3));
        assert_eq!(place.higher_priority, higher_priority);
    };
    check(only_high, 1, 0);
    check(first_low, 2, 1);
    check(second_low, 3, 1);
}

#[test]
fn a_shortage_of_devices_makes_the_headline() {
    let mut cell = SmallCluster::new();
    let gpus = |model: &'static str, count: usize| {
        move |spec: &mut MachineSpec| {
            spec.devices = vec![Device { kind: token("gpu"), model: token(model) }; count];
        }
    };
    cell.add_machine("m1", 8, 16, gpus("t4", 1));
    cell.add_machine("m2", 8, 16, gpus("t4", 1));
    cell.add_machine("m3", 1, 16, gpus("t4", 2));
    let new = cell.job("new", 100, |spec| {
        let (kind, models) = (token("gpu"), vec![token("a100"), token("t4")]);
        spec.task.limits = Resources::new(2000, GIB, 0, 0);
        spec.task.devices = vec![DeviceRequest { kind, models, count: 2, milli: WHOLE_DEVICE }];
    });
    let task = cell.wait(new, 0);
    let text = cell.text(task);
    let want = "\
pending: needs 2 gpu (a100 or t4) and 2 cores cpu; no machine of 3 has both free.
2 lack gpu (a100 or t4) (asked 2, at best 1 on m1), 1 lacks cpu (most free: 1 core on m3).
";
    assert!(text.starts_with(want), "{text}");
}

/// Tasks of its own job keep it away from machines that are far from full.
#[test]
fn machines_kept_apart_by_spread_are_told_from_full_ones() {
    let mut cell = SmallCluster::new();
    let rack = |spec: &mut MachineSpec| spec.rack = Some(token("r1"));
    cell.add_machine("m1", 8, 16, rack);
    cell.add_machine("m2", 8, 16, rack);
    let apart = |domain: Domain| {
        move |spec: &mut JobSpec| spec.spread = vec![SpreadLimit { domain, limit: 1 }]
    };
    let web = cell.job("web", 100, apart(Domain::Machine));
    cell.hold(web, 0);
    cell.hold(web, 1);
    let task = cell.wait(web, 0);
    let found = cell.explain(task);
    assert_eq!((found.when_empty, found.kept_apart), (2, 2));
    let line = "Tasks of its own job are in the way: 2 machines could take it when empty.";
    assert!(cell.text(task).contains(line), "{}", cell.text(task));
    // A sibling elsewhere in the rack rules out an empty machine too.
    let db = cell.job("db", 100, apart(Domain::Rack));
    cell.hold(db, 0);
    let task = cell.wait(db, 0);
    let found = cell.explain(task);
    assert_eq!((found.when_empty, found.kept_apart), (1, 1));
    // Full machines are counted beside those kept apart.
    let big = cell.job("big", 200, |spec| {
        spec.task.limits = Resources::new(7000, GIB, 0, 0);
    });
    cell.hold(big, 1);
    let two = cell.job("two", 100, |spec| {
        apart(Domain::Machine)(spec);
        spec.task.limits = Resources::new(2000, GIB, 0, 0);
    });
    cell.hold(two, 0);
    let task = cell.wait(two, 0);
    let found = cell.explain(task);
    assert_eq!((found.when_empty, found.kept_apart), (2, 1));
    let text = cell.text(task);
    assert!(text.contains("1 machine could take it when empty, 1 more without tasks of its"));
}

#[test]
fn the_machines_a_task_could_be_on_are_told_best_first_and_nothing_changes() {
    use cellwright_sched::explain::placement_ranking::rank_placements;
    let mut cell = SmallCluster::new();
    for name in ["m1", "m2", "m3", "m4"] {
        cell.add_machine(name, 8, 16, |_| {});
    }
    let web = cell.job("web", 100, |spec| spec.task.limits = Resources::new(5000, GIB, 0, 0));
    let (task, _) = (cell.hold(web, 0), cell.hold(web, 1));
    let before = cell.snapshot.clone();
    let names = SnapshotNames(&before);
    let ranking = rank_placements(&mut cell.snapshot, task, &names, Options::exact(), 0).unwrap();
    assert!(cell.snapshot.compare_with(&before).is_ok());
    // Its own place counts as free; the other task's machine has no room for a second.
    assert_eq!(ranking.fitting, 3);
    let own: Vec<u32> =
        ranking.candidates.iter().filter(|c| c.here).map(|c| c.machine.id.0).collect();
    assert_eq!(own, [0]);
    let ranks: Vec<u32> = ranking.candidates.iter().map(|c| c.rank).collect();
    assert_eq!(ranks, [1, 2, 3]);
    let waits = cell.wait(web, 0);
    assert_eq!(rank_placements(&mut cell.snapshot, waits, &names, Options::exact(), 0), None);
}

#[test]
fn a_folder_that_nobody_lends_is_named_and_so_is_doing_without_it() {
    let mut cell = SmallCluster::new();
    let grants = |how: &'static str| {
        move |spec: &mut MachineSpec| {
            let how = AttributeValue::Text(how.into());
            spec.attributes.insert(host_volume_attribute("/srv").unwrap(), how);
        }
    };
    cell.add_machine("m1", 4, 8, |_| ());
    cell.add_machine("m2", 4, 8, grants(HOST_VOLUME_READ_ONLY));
    let with_volume = |writable| {
        move |spec: &mut JobSpec| {
            let (source, target) = ("/srv/data".into(), "/data".into());
            spec.task.isolation.volumes = vec![Volume { source, target, writable }];
        }
    };
    let (writer, reader) =
        (cell.job("writer", 100, with_volume(true)), cell.job("reader", 100, with_volume(false)));
    let (writer, reader) = (cell.wait(writer, 0), cell.wait(reader, 0));
    let codes = |task| -> Vec<(&str, u32)> {
        cell.explain(task).reasons.iter().map(|reason| (reason.code, reason.machines)).collect()
    };
    assert_eq!(codes(writer), [("volume", 2)]);
    assert_eq!(codes(reader), [("volume", 1), (FITS, 1)]);
    assert_eq!(
        cell.text(writer),
        "pending: no machine of 2 can take it.\n\
         2 do not lend volume /srv/data for writing.\n\
         Would fit if it did without volume /srv/data for writing (on 2 machines, such as m1).\n\
         As asked, no machine could take it even when empty: waiting will not help.\n\
         Number 1 of 2 in the queue, 0 of higher priority."
    );
    // Machines that do not grant the volume come before full ones, and count once.
    let large = cell.job("large", 100, |spec| {
        with_volume(false)(spec);
        spec.task.limits = Resources::new(9000, GIB, 0, 0);
    });
    let large = cell.wait(large, 0);
    let counts: BTreeMap<&str, u32> =
        cell.explain(large).reasons.iter().map(|r| (r.code, r.machines)).collect();
    assert_eq!(counts, BTreeMap::from([("volume", 1), ("resource", 1)]));
}
