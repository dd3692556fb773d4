//! The trace readers against the published data sets, and against input meant to break them.
//!
//! The data sets are not part of the repository. Tests that need them look in the folder named by
//! `CELL_TRACES` (by default `../shared/traces` beside the repository) and print a message when
//! they skip.

use std::collections::{BTreeMap, HashSet};
use std::io::Write;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use cellwright_sim::trace::decimal::{Rounding, parse_micro};
use cellwright_sim::trace::google2011::{
    self, EventKind, FIRST_PRODUCTION_PRIORITY, JobId, MachineEventKind, MissingInfo, Snapshot,
    TRACE_START_US, TaskKey, TaskRow, TaskState, TraceTable, find_files,
};
use cellwright_sim::trace::openb::{self, Pod};
use cellwright_sim::trace::{
    Input, ReadReport, TraceError, TraceSource, example, swf, total_problems,
};
use proptest::prelude::*;

const GO_ON: ControlFlow<()> = ControlFlow::Continue(());

/// The folder of one data set, or `None` with a message when it is not there.
fn traces(set: &str) -> Option<PathBuf> {
    let root = match std::env::var_os("CELL_TRACES") {
        Some(root) => PathBuf::from(root),
        None => Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/traces"),
    };
    let folder = root.join(set);
    if folder.is_dir() {
        return Some(folder);
    }
    println!("skipped: no trace folder {}; set CELL_TRACES to have this test", folder.display());
    None
}

fn assert_clean(report: &ReadReport) {
    assert!(report.is_clean(), "{:#?}", report.problems);
    assert!(report.end_reached);
}

mod google {
    use super::*;

    fn only_file(folder: &Path, table: TraceTable) -> PathBuf {
        let mut files = find_files(folder, table).expect("the table");
        assert_eq!(files.len(), 1, "{files:?}");
        files.remove(0)
    }

    #[test]
    fn machine_events_are_37780_of_12583_machines() {
        let Some(folder) = traces("google2011") else {
            return;
        };
        let file = only_file(&folder, TraceTable::MachineEvents);
        let mut machines = HashSet::new();
        let mut kinds = [0_u64; 3];
        let mut without_capacity = 0;
        let report = google2011::machine_events::read(Input::open(&file).unwrap(), |event| {
            machines.insert(event.machine);
            kinds[match event.kind {
                MachineEventKind::Add => 0,
                MachineEventKind::Remove => 1,
                MachineEventKind::Update => 2,
            }] += 1;
            without_capacity +=
                u64::from(event.cpu_micro.is_none() || event.memory_micro.is_none());
            GO_ON
        })
        .unwrap();
        assert_clean(&report);
        assert_eq!((report.rows, machines.len()), (37_780, 12_583));
        assert_eq!((kinds, without_capacity), ([21_443, 8_957, 7_380], 32));
    }

    #[test]
    fn task_events_are_450146_up_to_5611_seconds() {
        let Some(folder) = traces("google2011") else {
            return;
        };
        let file = only_file(&folder, TraceTable::TaskEvents);
        let mut kinds: BTreeMap<String, u64> = BTreeMap::new();
        let (mut missing, mut last_us) = (0, 0);
        let report = google2011::task_events::read(Input::open(&file).unwrap(), |event| {
            *kinds.entry(format!("{:?}", event.kind)).or_default() += 1;
            missing += u64::from(event.missing_info == Some(MissingInfo::ExistsButNoCreation));
            assert!(event.time_us >= last_us, "sorted by time");
            last_us = event.time_us;
            GO_ON
        })
        .unwrap();
        assert_clean(&report);
        assert_eq!((report.rows, missing, last_us), (450_146, 291, 5_611_086_346));
        let expected = [
            ("Evict", 4_338),
            ("Fail", 581),
            ("Finish", 43_237),
            ("Kill", 10_505),
            ("Schedule", 132_982 + 57_012),
            ("Submit", 144_339 + 57_152),
        ];
        assert!(
            kinds.iter().map(|(kind, count)| (kind.as_str(), *count)).eq(expected),
            "{kinds:?}"
        );
    }

    #[test]
    fn job_events_have_five_parts() {
        let Some(folder) = traces("google2011") else {
            return;
        };
        let mut rows = Vec::new();
        let mut submitted = 0;
        for file in find_files(&folder, TraceTable::JobEvents).unwrap() {
            let report = google2011::job_events::read(Input::open(&file).unwrap(), |event| {
                submitted += u64::from(event.kind == EventKind::Submit);
                GO_ON
            })
            .unwrap();
            assert_clean(&report);
            rows.push(report.rows);
        }
        assert_eq!((rows, submitted), (vec![10_704, 3_099, 3_360, 4_179, 4_095], 9_808));
    }

    /// The sample was cut in the middle of its last row, which is reported and not guessed.
    #[test]
    fn the_machine_attributes_sample_ends_in_a_cut_row() {
        let Some(folder) = traces("google2011") else {
            return;
        };
        let file = folder.join("machine_attributes_sample.csv");
        let mut names = HashSet::new();
        let report = google2011::machine_attributes::read(Input::open(&file).unwrap(), |row| {
            names.insert(row.name.to_owned());
            assert!(!row.deleted);
            GO_ON
        })
        .unwrap();
        assert_eq!((report.rows, report.problems_total), (1_664, 1));
        let problem = &report.problems[0];
        assert_eq!((problem.line, problem.field), (1_665, "attribute deleted"));
        assert!(names.len() > 10, "{}", names.len());
    }

    #[test]
    fn the_task_usage_sample_is_read_with_its_tiny_numbers() {
        let Some(folder) = traces("google2011") else {
            return;
        };
        let file = folder.join("task_usage_sample.csv");
        let mut rows = Vec::new();
        let report = google2011::task_usage::read(Input::open(&file).unwrap(), |row| {
            rows.push(row);
            GO_ON
        })
        .unwrap();
        assert_eq!((report.rows, report.problems_total), (677, 0));
        let first = &rows[0];
        assert_eq!(first.task, TaskKey { job: JobId(3_418_309), index: 0 });
        assert_eq!((first.start_us, first.end_us), (600_000_000, 900_000_000));
        assert_eq!(first.cpu_rate_micro, Some(1_562));
        assert_eq!(first.disk_io_time_micro, Some(3), "2.861e-06, rounded up");
        assert_eq!(first.cycles_per_instruction_micro, Some(2_445_000));
        assert_eq!(first.is_whole_container, Some(true));
    }

    /// The published schema has the table, but the folder has no part of it: the rows are made up
    /// here.
    #[test]
    fn task_constraints_follow_the_schema() {
        let text = "0,12,3,0,attr,value\n0,12,3,3,attr,5\n0,12,3,1,attr,\n0,12,3,4,attr,5\n";
        let input = Input::from_bytes("task_constraints.csv", text.into());
        let mut seen = Vec::new();
        let report = google2011::task_constraints::read(input, |row| {
            seen.push(format!("{:?} {:?}", row.operator, row.value));
            GO_ON
        })
        .unwrap();
        assert_eq!(seen, ["Equal Some(\"value\")", "GreaterThan Some(\"5\")", "NotEqual None"]);
        assert_eq!(
            report.problems[0].to_string(),
            "task_constraints.csv:4: comparison operator \
             is \"4\"; allowed: 0, 1, 2, 3"
        );
    }

    fn production(task: &&TaskRow) -> bool {
        task.priority >= FIRST_PRODUCTION_PRIORITY
    }

    fn running(task: &&TaskRow) -> bool {
        matches!(task.state, TaskState::Running(_))
    }

    #[test]
    fn the_cell_at_trace_start_has_the_published_facts() {
        let Some(folder) = traces("google2011") else {
            return;
        };
        let cell = google2011::read_t0(&folder).unwrap();
        cell.reports.iter().for_each(assert_clean);
        assert_eq!(cell.machines.len(), 12_477);
        assert_eq!((cell.running(), cell.pending(), cell.jobs()), (132_982, 11_357, 3_981));
        // 6,603.25 CPU and 5,862.75 memory; the figures are given with two decimals.
        let (cpu, memory) = cell.capacity_micro();
        assert_eq!((cpu, (memory + 5_000) / 10_000), (6_603_250_000, 586_275));

        let run: Vec<&TaskRow> = cell.tasks.iter().filter(running).collect();
        let percent_x10 = |sum: u64, of: u64| (sum * 1000 + of / 2) / of;
        let sums = |tasks: &mut dyn Iterator<Item = &&TaskRow>| {
            tasks.fold((0, 0), |(c, m), task| (c + task.cpu_micro, m + task.memory_micro))
        };
        let (cpu_run, memory_run) = sums(&mut run.iter());
        assert_eq!(percent_x10(cpu_run, cpu), 1_135);
        assert_eq!(percent_x10(memory_run, memory), 933);
        assert_eq!(run.iter().filter(|task| production(task)).count(), 56_053);
        let (cpu_prod, memory_prod) = sums(&mut run.iter().filter(|task| production(task)));
        assert_eq!(percent_x10(cpu_prod, cpu), 732);
        assert_eq!(percent_x10(memory_prod, memory), 585);
        assert_eq!(run.iter().filter(|task| task.different_machines).count(), 34_632);

        let mut by_job: BTreeMap<JobId, u32> = BTreeMap::new();
        cell.tasks.iter().for_each(|task| *by_job.entry(task.task.job).or_default() += 1);
        assert_eq!(by_job.values().max(), Some(&20_010));
        assert_eq!(cell.running_on_unlisted_machines(), 13);
    }

    fn assert_same(left: &Snapshot, right: &Snapshot) {
        assert_eq!(left.machines, right.machines);
        assert!(left.tasks == right.tasks, "tasks differ");
        assert_eq!(left.machines_without_capacity, right.machines_without_capacity);
        assert_eq!(left.incomplete_tasks, right.incomplete_tasks);
    }

    #[test]
    fn replayed_events_give_the_derived_tables_row_by_row() {
        let Some(folder) = traces("google2011") else {
            return;
        };
        let derived = google2011::read_t0(&folder).unwrap();
        let replayed = google2011::snapshot_at(&folder, 0).unwrap();
        assert_eq!(total_problems(&replayed.reports), 0);
        assert_same(&derived, &replayed);
        assert_same(&derived, &google2011::snapshot_at(&folder, TRACE_START_US).unwrap());
    }

    #[test]
    fn the_cell_can_be_seen_an_hour_in_but_not_beyond_the_events() {
        let Some(folder) = traces("google2011") else {
            return;
        };
        let cell = google2011::snapshot_at(&folder, 3_600_000_000).unwrap();
        assert_eq!(total_problems(&cell.reports), 0);
        assert!(cell.incomplete_tasks.is_empty() && cell.machines_without_capacity.is_empty());
        let seen = (cell.machines.len(), cell.running(), cell.pending(), cell.jobs());
        assert_eq!(seen, (12_475, 134_563, 11_400, 3_980));
        assert_eq!(cell.running_on_unlisted_machines(), 15);
        let error = google2011::snapshot_at(&folder, 5_611_086_347).unwrap_err();
        assert!(matches!(error, TraceError::BeyondTrace { last_us: 5_611_086_346, .. }), "{error}");
    }

    #[test]
    fn a_folder_without_the_tables_says_what_it_looked_for() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
        let error = google2011::read_t0(&folder).unwrap_err().to_string();
        assert!(error.starts_with("no table machines_t0 in "), "{error}");
        let error = google2011::read_t0(Path::new("no-such-folder")).unwrap_err().to_string();
        assert!(error.starts_with("cannot open no-such-folder: "), "{error}");
    }
}

mod gpu {
    use super::*;

    #[test]
    fn node_lists_have_1523_and_1213_nodes_with_6212_gpus() {
        let Some(folder) = traces("openb") else {
            return;
        };
        for (file, count) in [(openb::ALL_NODES_FILE, 1_523), (openb::GPU_NODES_FILE, 1_213)] {
            let nodes = openb::read_nodes(Input::open(&folder.join(file)).unwrap()).unwrap();
            assert_clean(&nodes.report);
            assert_eq!(nodes.rows.len(), count, "{file}");
            assert_eq!(nodes.rows.iter().filter(|node| node.gpus > 0).count(), 1_213);
            assert_eq!(openb::gpu_capacity_milli(&nodes.rows), 6_212_000);
        }
    }

    #[test]
    fn every_pod_list_is_clean_and_has_published_figures() {
        let Some(folder) = traces("openb") else {
            return;
        };
        let file = folder.join(openb::PUBLISHED_FILE);
        let published = openb::read_published(Input::open(&file).unwrap()).unwrap();
        assert_clean(&published.report);
        let mut counts = BTreeMap::new();
        for file in openb::pod_lists(&folder).unwrap() {
            let pods = openb::read_pods(Input::open(&file).unwrap()).unwrap();
            assert_clean(&pods.report);
            let name = file.file_name().unwrap().to_str().unwrap();
            counts.insert(name.trim_end_matches(".csv.gz").to_owned(), pods.rows.len());
        }
        let expected = [
            ("openb_pod_list_cpu050", 7_439),
            ("openb_pod_list_cpu100", 7_853),
            ("openb_pod_list_cpu200", 8_832),
            ("openb_pod_list_default", 8_152),
            ("openb_pod_list_gpushare40", 8_152),
            ("openb_pod_list_gpushare60", 8_152),
            ("openb_pod_list_gpuspec10", 8_152),
            ("openb_pod_list_gpuspec20", 8_152),
            ("openb_pod_list_multigpu20", 8_324),
            ("openb_pod_list_multigpu30", 8_508),
        ];
        assert!(counts.iter().map(|(name, count)| (name.as_str(), *count)).eq(expected));
        assert!(published.rows.iter().map(|row| &row.workload).eq(counts.keys()));
        let default = &published.rows[3];
        assert_eq!((default.random, default.best_fit, default.fgd), (87_470, 93_076, 95_391));
    }

    fn pods(folder: &Path, list: &str) -> Vec<Pod> {
        let file = openb::find_pod_list(folder, list).unwrap();
        openb::read_pods(Input::open(&file).unwrap()).unwrap().rows
    }

    #[test]
    fn pod_lists_are_found_by_any_of_their_names() {
        let Some(folder) = traces("openb") else {
            return;
        };
        for name in ["default", "openb_pod_list_default", "openb_pod_list_default.csv"] {
            assert_eq!(pods(&folder, name).len(), 8_152, "{name}");
        }
        let error = openb::find_pod_list(&folder, "gpu").unwrap_err().to_string();
        assert!(
            error.contains("no pod list \"gpu\" in ") && error.contains("gpuspec20"),
            "{error}"
        );
        let models: HashSet<usize> =
            pods(&folder, "gpuspec20").iter().map(|pod| pod.gpu_models.len()).collect();
        assert!(models.contains(&0) && models.contains(&6), "{models:?}");
    }

    /// One list starts far below 130 %, the other just above it.
    #[test]
    fn the_published_load_is_reached_by_adding_and_by_dropping() {
        let Some(folder) = traces("openb") else {
            return;
        };
        for (list, grows) in [("default", true), ("multigpu30", false)] {
            let pods = pods(&folder, list);
            for seed in 0..10 {
                let arrivals = openb::shuffled_load(&pods, 6_212_000, seed, 1_300).unwrap();
                assert_eq!(arrivals.target_milli, 8_075_600);
                let short = arrivals.target_milli - arrivals.demand_milli;
                assert!(short < 8_000, "{list} seed {seed}: short by {short}");
                assert_eq!(arrivals.order.len() > pods.len(), grows);
            }
        }
    }

    /// Orders behind recorded figures must not change; a change here invalidates those reports.
    #[test]
    fn the_arrivals_of_a_seed_stay_as_they_are() {
        let Some(folder) = traces("openb") else {
            return;
        };
        let pods = pods(&folder, "default");
        let arrivals = openb::shuffled_load(&pods, 6_212_000, 42, 1_300).unwrap();
        let first: Vec<u32> = arrivals.order[..4].iter().map(|index| index.0).collect();
        let last = arrivals.order.last().unwrap().0;
        assert_eq!(
            (first, last, arrivals.order.len()),
            (vec![2_272, 4_407, 8_098, 1_949], 3_213, 10_811)
        );
    }
}

#[test]
fn the_swf_log_has_as_many_jobs_as_its_header_says() {
    let Some(folder) = traces("swf") else { return };
    let file = folder.join("NASA-iPSC-1993-3.1-cln.swf.gz");
    let log = swf::read(Input::open(&file).unwrap()).unwrap();
    assert_clean(&log.report);
    assert_eq!(log.header.max_jobs, Some(18_239));
    assert_eq!(log.header.max_records, Some(18_239));
    assert_eq!((log.jobs.len(), log.report.rows), (18_239, 18_239));
    assert_eq!((log.header.max_procs, log.header.max_nodes), (Some(128), Some(128)));
    assert_eq!(log.header.unix_start_time, Some(749_458_803));
    assert_eq!(log.header.field("Computer"), Some("Intel iPSC/860"));
    let first = &log.jobs[0];
    assert_eq!((first.submit_s, first.run_s, first.allocated_procs), (0, Some(1_451), Some(128)));
    assert_eq!((first.wait_s, first.user, first.status), (None, Some(1), None));
}

mod example_cell {
    use super::*;

    fn bundled() -> example::ExampleCell {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/small-cell");
        example::read_cell(&folder).unwrap()
    }

    #[test]
    fn the_bundled_cell_is_as_its_readme_says() {
        let cell = bundled();
        cell.reports.iter().for_each(assert_clean);
        assert_eq!((cell.machines.len(), cell.jobs.len(), cell.tasks()), (40, 60, 630));
        let count = |of: fn(&example::ExampleMachine) -> &str| {
            cell.machines.iter().map(of).collect::<HashSet<&str>>().len()
        };
        assert_eq!((count(|m| &m.rack), count(|m| &m.power), count(|m| &m.arch)), (5, 3, 2));
        assert_eq!(cell.machines.iter().filter(|machine| machine.gpus > 0).count(), 5);
        let bands: HashSet<u16> = cell.jobs.iter().map(|job| job.priority / 100).collect();
        assert_eq!(bands, HashSet::from([0, 1, 2, 3]));
        assert_eq!(cell.jobs.iter().filter(|job| job.is_gang).count(), 2);
        let shares = |job: &&example::ExampleJob| {
            job.gpus.as_ref().is_some_and(|gpus| gpus.share_milli < 1000)
        };
        assert!(cell.jobs.iter().filter(shares).count() >= 1);
    }

    #[test]
    fn one_job_is_too_large_for_any_machine_and_one_asks_for_what_none_has() {
        let cell = bundled();
        let largest = cell.machines.iter().map(|machine| machine.ram_bytes).max().unwrap();
        let too_large: Vec<&str> = cell
            .jobs
            .iter()
            .filter(|job| job.ram_bytes > largest)
            .map(|job| job.name.as_str())
            .collect();
        assert_eq!(too_large, ["genome-assembly"]);
        let has = |attribute: &str, value: &str| {
            let mut all = cell.machines.iter().flat_map(|machine| machine.all_attributes());
            all.any(|known| known == (attribute, value))
        };
        let is_unknown = |constraint: &example::ExampleConstraint| match &constraint.operator {
            example::ExampleOperator::Equal(value) => !has(&constraint.attribute, value),
            _ => false,
        };
        let unknown: Vec<&str> = cell
            .jobs
            .iter()
            .filter(|job| job.constraints.iter().any(is_unknown))
            .map(|job| job.name.as_str())
            .collect();
        assert_eq!(unknown, ["riscv-port"]);
    }

    fn job_problem(row: &str) -> String {
        let head = "job,user,priority,appclass,tasks,cpu,ram,disk,static_ports,gpus,gpu_share,\
                    constraints,gang,packages";
        let input = Input::from_bytes("jobs.csv", format!("{head}\n{row}\n").into());
        let table = example::read_jobs(input).unwrap();
        assert_eq!((table.rows.len(), table.report.problems_total), (0, 1), "{row}");
        let problem = &table.report.problems[0];
        assert_eq!(problem.line, 2);
        assert!(!problem.allowed.is_empty());
        format!("{} {}", problem.field, problem.value)
    }

    #[test]
    fn each_bad_field_of_a_job_is_named() {
        let check = |row: &str, expected: &str| assert_eq!(job_problem(row), expected);
        check("A,u,1,batch,1,1,1GiB,1GiB,,,,,,", "job A");
        check("a,-u,1,batch,1,1,1GiB,1GiB,,,,,,", "user -u");
        check("a,u,400,batch,1,1,1GiB,1GiB,,,,,,", "priority 400");
        check("a,u,1,fast,1,1,1GiB,1GiB,,,,,,", "appclass fast");
        check("a,u,1,batch,0,1,1GiB,1GiB,,,,,,", "tasks 0");
        check("a,u,1,batch,200001,1,1GiB,1GiB,,,,,,", "tasks 200001");
        check("a,u,1,batch,1,-1,1GiB,1GiB,,,,,,", "cpu -1");
        check("a,u,1,batch,1,1,1G,1GiB,,,,,,", "ram 1G");
        check("a,u,1,batch,1,1,1GiB,,,,,,,", "disk ");
        check("a,u,1,batch,1,1,1GiB,1GiB,80;80,,,,,", "static_ports 80;80");
        check("a,u,1,batch,1,1,1GiB,1GiB,65536,,,,,", "static_ports 65536");
        check("a,u,1,batch,1,1,1GiB,1GiB,,2,0.5,,,", "gpu_share 0.5");
        check("a,u,1,batch,1,1,1GiB,1GiB,,,0.5,,,", "gpu_share 0.5");
        check("a,u,1,batch,1,1,1GiB,1GiB,,1,0,,,", "gpu_share 0");
        check("a,u,1,batch,1,1,1GiB,1GiB,,,,arch is x,,", "constraints arch is x");
        check("a,u,1,batch,1,1,1GiB,1GiB,,,,,maybe,", "gang maybe");
        check("a,u,1,batch,1,1,1GiB,1GiB,,,,,,p", "packages p");
    }

    fn machine_problem(row: &str) -> String {
        let head = "name,arch,rack,power,cpu,ram,disk,disk_rate,gpu_model,gpus,packages,attributes";
        let text = format!("{head}\nm1,x,r,p,1,1GiB,1GiB,,,,,\n{row}\n");
        let table = example::read_machines(Input::from_bytes("machines.csv", text.into())).unwrap();
        assert_eq!((table.rows.len(), table.report.problems_total), (1, 1), "{row}");
        let problem = &table.report.problems[0];
        assert_eq!(problem.line, 3);
        format!("{} {}", problem.field, problem.value)
    }

    #[test]
    fn each_bad_field_of_a_machine_is_named() {
        let check = |row: &str, expected: &str| assert_eq!(machine_problem(row), expected);
        check("m1,x,r,p,1,1GiB,1GiB,,,,,", "name m1");
        check("m2,,r,p,1,1GiB,1GiB,,,,,", "arch ");
        check("m2,x,r,p,0.0001,1GiB,1GiB,,,,,", "cpu 0.0001");
        check("m2,x,r,p,1,1GiB,1025TiB,,,,,", "disk 1025TiB");
        check("m2,x,r,p,1,1GiB,1GiB,5MiB,,,,", "disk_rate 5MiB");
        check("m2,x,r,p,1,1GiB,1GiB,,t4,,,", "gpu_model t4");
        check("m2,x,r,p,1,1GiB,1GiB,,,4,,", "gpu_model ");
        check("m2,x,r,p,1,1GiB,1GiB,,t4,65,,", "gpus 65");
        check("m2,x,r,p,1,1GiB,1GiB,,,,a;a,", "packages a;a");
        check("m2,x,r,p,1,1GiB,1GiB,,,,,arch=y", "attributes arch=y");
        check("m2,x,r,p,1,1GiB,1GiB,,,,,flash", "attributes flash");
    }
}

mod malformed {
    use super::*;

    const GOOD: &str = "0,5,0,P,0.5,0.25\n";

    fn machine_events(name: &str, bytes: Vec<u8>) -> Result<ReadReport, TraceError> {
        google2011::machine_events::read(Input::from_bytes(name, bytes), |_| GO_ON)
    }

    fn packed(text: &str) -> Vec<u8> {
        let mut packer = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        packer.write_all(text.as_bytes()).unwrap();
        packer.finish().unwrap()
    }

    /// Bad text between two good rows: the good ones are used, the bad one is reported.
    fn problem(bad: &[u8]) -> String {
        let mut bytes = GOOD.as_bytes().to_vec();
        bytes.extend(bad);
        bytes.push(b'\n');
        bytes.extend(GOOD.as_bytes());
        let report = machine_events("m.csv", bytes).unwrap();
        assert_eq!((report.rows, report.problems_total), (2, 1));
        report.problems[0].to_string()
    }

    #[test]
    fn bad_rows_are_reported_and_the_rest_is_read() {
        let check = |bad: &[u8], expected: &str| {
            let found = problem(bad);
            assert!(found.starts_with(expected), "{found}");
        };
        check(b"0,5,0,P,NaN,0.25", "m.csv:2: CPUs is \"NaN\"; allowed: a decimal number");
        check(b"0,5,0,P,inf,0.25", "m.csv:2: CPUs is \"inf\"; allowed: a decimal number");
        check(
            b"0,5,0,P,0.5,-0.25",
            "m.csv:2: Memory is \"-0.25\"; allowed: a decimal number from 0",
        );
        check(b"0,5,0,P,1e14,0", "m.csv:2: CPUs is \"1e14\"; allowed: a decimal number from 0 to");
        check(b"99999999999999999999,5,0,P,1,1", "m.csv:2: time is \"99999999999999999999\"");
        check(b"-1,5,0,P,1,1", "m.csv:2: time is \"-1\"; allowed: a whole number from 0");
        check(b"0,,0,P,1,1", "m.csv:2: machine ID is \"\"; allowed: a whole number");
        check(b"0,5,3,P,1,1", "m.csv:2: event type is \"3\"; allowed: 0, 1, 2");
        check(b"0,5,0,P,1", "m.csv:2: row is \"0,5,0,P,1\"; allowed: 6 comma-separated fields");
        check(b"0,5,0,P,1,1,1", "m.csv:2: row is \"0,5,0,P,1,1,1\"; allowed: 6 comma-separated");
        check(b"", "m.csv:2: row is \"\"; allowed: 6 comma-separated fields, not 1");
        check(b"0,5,0,\xff,1,1", "m.csv:2: row is \"0,5,0,\u{fffd},1,1\"; allowed: text in UTF-8");
        check(
            b"0,5,0,\"P\",1,1",
            "m.csv:2: row is \"0,5,0,\\\"P\\\",1,1\"; allowed: fields without",
        );
        let giant = problem(&vec![b'7'; 1 << 20]);
        assert!(giant.ends_with("…\"; allowed: a line of at most 65536 bytes"), "{giant}");
        assert!(giant.len() < 200, "{giant}");
    }

    #[test]
    fn packed_files_are_read_and_broken_ones_are_errors() {
        let whole = packed(&GOOD.repeat(1000));
        assert_eq!(machine_events("m.csv.gz", whole.clone()).unwrap().rows, 1000);
        // Two packed files behind one another are one file, as gzip has it.
        let twice = [whole.clone(), whole.clone()].concat();
        assert_eq!(machine_events("m.csv.gz", twice).unwrap().rows, 2000);

        let cut = whole[..whole.len() / 2].to_vec();
        let error = machine_events("m.csv.gz", cut).unwrap_err().to_string();
        assert!(error.starts_with("cannot read m.csv.gz past line "), "{error}");
        let mut wrong_sum = whole;
        let sum_at = wrong_sum.len() - 8;
        wrong_sum[sum_at] ^= 1;
        let error = machine_events("m.csv.gz", wrong_sum).unwrap_err().to_string();
        assert!(error.starts_with("cannot read m.csv.gz past line 1000: "), "{error}");
        let error = machine_events("m.csv.gz", GOOD.into()).unwrap_err().to_string();
        assert!(error.starts_with("cannot read m.csv.gz past line 0: "), "{error}");
    }

    /// A quarter of a gigabyte without a line end: one problem, and never in memory.
    #[test]
    fn an_endless_line_is_one_problem() {
        let zeros = std::io::Read::take(std::io::repeat(b'0'), 1 << 28);
        let input = Input::from_reader("m.csv", zeros);
        let report = google2011::machine_events::read(input, |_| GO_ON).unwrap();
        assert_eq!((report.rows, report.problems_total), (0, 1));
    }

    #[test]
    fn rows_that_contradict_themselves_or_others_are_reported() {
        let tasks = "job_id,task_index,state,machine_id,user_id,scheduling_class,priority,\
                     cpu_request,memory_request,disk_request,different_machines\n\
                     1,0,R,7,1,3,9,0.1,0.1,0.1,0\n1,0,R,7,1,3,9,0.1,0.1,0.1,0\n\
                     1,1,R,,1,3,9,0.1,0.1,0.1,0\n1,2,P,7,1,3,9,0.1,0.1,0.1,0\n\
                     1,3,P,,1,4,9,0.1,0.1,0.1,0\n1,4,P,,1,3,12,0.1,0.1,0.1,0\n";
        let table = google2011::read_tasks_t0(Input::from_bytes("t.csv", tasks.into())).unwrap();
        assert_eq!(table.rows.len(), 1);
        let fields: Vec<&str> = table.report.problems.iter().map(|p| p.field).collect();
        let expected = ["task_index", "machine_id", "machine_id", "scheduling_class", "priority"];
        assert_eq!(fields, expected);

        let pods = "name,cpu_milli,memory_mib,num_gpu,gpu_milli\n\
                    a,1,1,1,500\na,1,1,1,500\nb,1,1,0,500\nc,1,1,1,0\nd,1,1,2,500\ne,1,1,1,1001\n";
        let table = openb::read_pods(Input::from_bytes("p.csv", pods.into())).unwrap();
        assert_eq!(table.rows.len(), 1);
        let fields: Vec<&str> = table.report.problems.iter().map(|p| p.field).collect();
        assert_eq!(fields, ["name", "gpu_milli", "gpu_milli", "gpu_milli", "gpu_milli"]);

        let nodes = "sn,cpu_milli,memory_mib,gpu,model\na,1,1,1,\nb,1,1,0,T4\nc,1,1,1,T4\n";
        let table = openb::read_nodes(Input::from_bytes("n.csv", nodes.into())).unwrap();
        assert_eq!((table.rows.len(), table.report.problems_total), (1, 2));
    }
}

mod any_bytes {
    use super::*;

    /// Runs every reader on the same bytes: each ends with a report or an error, never with a
    /// panic, and counts no line twice.
    fn read_all(name: &str, bytes: &[u8]) {
        let input = || Input::from_bytes(name, bytes.to_vec());
        let reports = [
            google2011::machine_events::read(input(), |_| GO_ON),
            google2011::task_events::read(input(), |_| GO_ON),
            google2011::job_events::read(input(), |_| GO_ON),
            google2011::machine_attributes::read(input(), |_| GO_ON),
            google2011::task_constraints::read(input(), |_| GO_ON),
            google2011::task_usage::read(input(), |_| GO_ON),
            google2011::read_machines_t0(input()).map(|table| table.report),
            google2011::read_tasks_t0(input()).map(|table| table.report),
            openb::read_nodes(input()).map(|table| table.report),
            openb::read_pods(input()).map(|table| table.report),
            openb::read_published(input()).map(|table| table.report),
            swf::read(input()).map(|log| log.report),
            example::read_machines(input()).map(|table| table.report),
            example::read_jobs(input()).map(|table| table.report),
        ];
        let lines = bytes.iter().filter(|byte| **byte == b'\n').count() as u64 + 1;
        for report in reports.into_iter().flatten() {
            assert!(name.ends_with(".gz") || report.rows + report.problems_total <= lines);
            assert_eq!(report.problems.len() as u64, report.problems_total.min(100));
        }
    }

    /// Lines that look like rows, so that the field parsers are reached too.
    fn likely_lines() -> impl Strategy<Value = Vec<u8>> {
        let headers = [
            "",
            "machine_id,platform,cpus,memory\n",
            "job_id,task_index,state,machine_id,user_id,scheduling_class,priority,cpu_request,\
             memory_request,disk_request,different_machines\n",
            "sn,cpu_milli,memory_mib,gpu,model\n",
            "name,cpu_milli,memory_mib,num_gpu,gpu_milli\n",
            "job,user,priority,appclass,tasks,cpu,ram,disk,constraints,packages\n",
            "name,arch,rack,power,cpu,ram,disk,gpu_model,gpus,attributes\n",
        ];
        let line = "([-+0-9.eEmxPRé=;| ]{0,8}[, ]){3,20}[-0-9a-zGiB/]{0,6}";
        (proptest::sample::select(headers.to_vec()), proptest::collection::vec(line, 0..8))
            .prop_map(|(header, lines)| format!("{header}{}", lines.join("\n")).into_bytes())
    }

    proptest! {
        #[test]
        fn no_reader_panics_on_bytes(bytes in proptest::collection::vec(any::<u8>(), 0..2000)) {
            read_all("x.csv", &bytes);
            read_all("x.csv.gz", &bytes);
        }

        #[test]
        fn no_reader_panics_on_lines_that_look_like_rows(bytes in likely_lines()) {
            read_all("x.csv", &bytes);
        }

        #[test]
        fn source_texts_read_back_or_are_refused(text in "((openb|swf|x):)?\\PC{0,40}") {
            match text.parse::<TraceSource>() {
                Ok(source) => prop_assert_eq!(source.to_string(), text),
                Err(error) => prop_assert!(error.to_string().contains("allowed: google2011:DIR")),
            }
        }

        /// Compared with wide integer arithmetic, for numbers of every size and with every
        /// exponent.
        #[test]
        fn decimals_are_exact(digits in 0_u64..10_000_000_000, point in 0_u32..12, e in -8_i32..8) {
            let whole = digits / 10_u64.pow(point);
            let fraction = digits % 10_u64.pow(point);
            let text = match point {
                0 => format!("{digits}e{e}"),
                _ => format!("{whole}.{fraction:0width$}e{e}", width = point as usize),
            };
            // digits * 10^(6 + e - point), floor and ceiling.
            let shift = 6 + e - point as i32;
            let digits = u128::from(digits);
            let (down, up) = if shift >= 0 {
                let exact = digits * 10_u128.pow(shift as u32);
                (exact, exact)
            } else {
                let divisor = 10_u128.pow(shift.unsigned_abs());
                (digits / divisor, digits.div_ceil(divisor))
            };
            let expected = |value: u128| u64::try_from(value).ok();
            prop_assert_eq!(parse_micro(&text, Rounding::Down).ok(), expected(down), "{}", text);
            prop_assert_eq!(parse_micro(&text, Rounding::Up).ok(), expected(up), "{}", text);
        }
    }
}
