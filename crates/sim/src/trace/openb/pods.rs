//! The pod lists, one per variant of the workload.

use std::collections::HashSet;
use std::fs;
use std::path::{Path, PathBuf};

use crate::trace::problem::FieldProblem;
use crate::trace::table::{Fields, Flow, Header, TableSpec, read_table};
use crate::trace::{Input, Table, TraceError};

use super::GPU_MILLI;

/// Most GPUs that one pod can request; far above the 8 of the trace.
const MAX_GPUS: u32 = 1024;

/// The pod's quality-of-service class.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Qos {
    LatencySensitive,
    BestEffort,
    Burstable,
    Guaranteed,
}

/// The phase of the pod when the trace was taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PodPhase {
    Pending,
    Running,
    Succeeded,
    Failed,
}

/// One pod. The last five fields are missing in some variants.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pod {
    pub name: String,
    pub cpu_milli: u64,
    pub memory_mib: u64,
    /// How many GPUs.
    pub gpus: u32,
    /// Shares of each GPU: 1 to 999 of a single one, or 1,000 of each; 0 without GPUs.
    pub gpu_milli: u32,
    /// GPU models allowed, each once; empty for any.
    pub gpu_models: Vec<String>,
    pub qos: Option<Qos>,
    pub phase: Option<PodPhase>,
    /// Seconds.
    pub created_s: Option<u64>,
    pub deleted_s: Option<u64>,
    pub scheduled_s: Option<u64>,
}

impl Pod {
    /// Shares of all its GPUs together.
    pub fn gpu_demand_milli(&self) -> u64 {
        u64::from(self.gpus) * u64::from(self.gpu_milli)
    }
}

const SPEC: TableSpec = TableSpec {
    columns: &[
        "name",
        "cpu_milli",
        "memory_mib",
        "num_gpu",
        "gpu_milli",
        "gpu_spec",
        "qos",
        "pod_phase",
        "creation_time",
        "deletion_time",
        "scheduled_time",
    ],
    header: Header::Names { required: 5 },
    has_remarks: false,
};

const QOS: &[(&str, Qos)] = &[
    ("LS", Qos::LatencySensitive),
    ("BE", Qos::BestEffort),
    ("Burstable", Qos::Burstable),
    ("Guaranteed", Qos::Guaranteed),
];

const PHASES: &[(&str, PodPhase)] = &[
    ("Pending", PodPhase::Pending),
    ("Running", PodPhase::Running),
    ("Succeeded", PodPhase::Succeeded),
    ("Failed", PodPhase::Failed),
];

/// Reads a pod list; a name that occurs twice is a problem.
pub fn read_pods(input: Input) -> Result<Table<Pod>, TraceError> {
    let mut rows = Vec::new();
    let mut known = HashSet::new();
    let report = read_table(input, &SPEC, |fields| {
        let pod = parse(fields)?;
        if !known.insert(pod.name.clone()) {
            return Err(fields.problem(0, "a name that no earlier row has"));
        }
        rows.push(pod);
        Ok(Flow::Continue(()))
    })?;
    Ok(Table { rows, report })
}

fn parse(fields: &Fields<'_>) -> Result<Pod, FieldProblem> {
    let gpus = fields.whole_up_to(3, MAX_GPUS)?;
    Ok(Pod {
        name: fields.required_text(0)?.to_owned(),
        cpu_milli: fields.whole(1)?,
        memory_mib: fields.whole(2)?,
        gpus,
        gpu_milli: parse_gpu_milli(fields, gpus)?,
        gpu_models: parse_models(fields)?,
        qos: fields.optional_choice(6, QOS)?,
        phase: fields.optional_choice(7, PHASES)?,
        created_s: fields.optional_whole(8)?,
        deleted_s: fields.optional_whole(9)?,
        scheduled_s: fields.optional_whole(10)?,
    })
}

/// Shares are of one GPU only; several GPUs are taken whole.
fn parse_gpu_milli(fields: &Fields<'_>, gpus: u32) -> Result<u32, FieldProblem> {
    let milli = fields.whole_up_to(4, GPU_MILLI)?;
    match (gpus, milli) {
        (0, 0) | (1, 1..) | (2.., GPU_MILLI) => Ok(milli),
        (0, _) => Err(fields.problem(4, "0, for num_gpu is 0")),
        (1, _) => Err(fields.problem(4, "a whole number from 1 to 1000, for num_gpu is 1")),
        _ => Err(fields.problem(4, "1000, for several GPUs are taken whole")),
    }
}

/// Models, separated by `|`. The trace repeats some; each is kept once.
fn parse_models(fields: &Fields<'_>) -> Result<Vec<String>, FieldProblem> {
    let mut models: Vec<String> = Vec::new();
    for model in fields.text(5).into_iter().flat_map(|list| list.split('|')) {
        if model.is_empty() {
            return Err(fields.problem(5, "GPU models with | between them, none empty"));
        }
        if !models.iter().any(|known| known == model) {
            models.push(model.to_owned());
        }
    }
    Ok(models)
}

const POD_LIST_PREFIX: &str = "openb_pod_list_";

/// The pod lists of a folder, sorted by name.
pub fn pod_lists(folder: &Path) -> Result<Vec<PathBuf>, TraceError> {
    let failed = |source| TraceError::open(folder, source);
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).map_err(failed)? {
        let path = entry.map_err(failed)?.path();
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        let is_table = name.ends_with(".csv") || name.ends_with(".csv.gz");
        if name.starts_with(POD_LIST_PREFIX) && is_table {
            found.push(path);
        }
    }
    found.sort();
    Ok(found)
}

/// The variant of a pod list: its file name without prefix and extension.
fn stem(path: &Path) -> Option<&str> {
    let name = path.file_name()?.to_str()?;
    name.strip_suffix(".gz").unwrap_or(name).strip_suffix(".csv")
}

/// The pod list that `given` names: a file name with or without extension, or only the variant
/// (`default`, `gpushare40`).
pub fn find_pod_list(folder: &Path, given: &str) -> Result<PathBuf, TraceError> {
    let lists = pod_lists(folder)?;
    let wanted = given.strip_suffix(".gz").unwrap_or(given);
    let wanted = wanted.strip_suffix(".csv").unwrap_or(wanted);
    let is_meant = |path: &&PathBuf| {
        stem(path).is_some_and(|stem| {
            stem == wanted || stem.strip_prefix(POD_LIST_PREFIX) == Some(wanted)
        })
    };
    if let Some(path) = lists.iter().find(is_meant) {
        return Ok(path.clone());
    }
    let variant = |path: &PathBuf| {
        let stem = stem(path)?;
        Some(stem.strip_prefix(POD_LIST_PREFIX).unwrap_or(stem).to_owned())
    };
    let known = lists.iter().filter_map(variant).collect();
    let folder = folder.display().to_string();
    Err(TraceError::UnknownPodList { given: crate::trace::problem::preview(given), folder, known })
}
