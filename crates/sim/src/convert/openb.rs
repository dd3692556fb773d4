//! The Alibaba GPU cell of 2023: nodes with GPUs of one model each; pods that request CPU, memory,
//! and shares of one GPU or several whole ones.

use super::{ConvertError, plain_job, plain_machine};
use crate::trace::openb::{
    GPU_NODES_FILE, Node, Pod, find_pod_list, gpu_capacity_milli, read_nodes, read_pods,
};
use crate::trace::{Input, ReadReport};
use crate::workload::WorkloadMachine;
use cellwright_cell::device::{Device, DeviceRequest};
use cellwright_cell::name::{Name, Token};
use cellwright_cell::priority::Priority;
use cellwright_cell::resource::Resources;
use cellwright_cell::spec::JobSpec;
use std::path::Path;

const MIB: u64 = 1 << 20;

/// The 1,213 nodes with GPUs and one list of pods, each as the job of one task it would be.
#[derive(Clone, Debug)]
pub struct OpenbCell {
    pub machines: Vec<WorkloadMachine>,
    pub pods: Vec<Pod>,
    /// By position in `pods`.
    pub jobs: Vec<JobSpec>,
    pub gpu_capacity_milli: u64,
    pub reports: Vec<ReadReport>,
}

/// Reads nodes and the pod list called `pods` (`default`, `openb_pod_list_cpu050`, a file name).
///
/// # Errors
/// When a file cannot be read at all; unusable rows are counted in the reports.
pub fn openb_cell(folder: &Path, pods: &str) -> Result<OpenbCell, ConvertError> {
    let nodes = read_nodes(Input::open(&folder.join(GPU_NODES_FILE))?)?;
    let pods = read_pods(Input::open(&find_pod_list(folder, pods)?)?)?;
    let machines = nodes.rows.iter().map(machine).collect::<Result<_, _>>()?;
    let jobs = pods.rows.iter().map(job).collect::<Result<_, _>>()?;
    Ok(OpenbCell {
        machines,
        jobs,
        gpu_capacity_milli: gpu_capacity_milli(&nodes.rows),
        pods: pods.rows,
        reports: vec![nodes.report, pods.report],
    })
}

fn token(field: &'static str, of: &str, text: &str) -> Result<Token, ConvertError> {
    Token::new(text).map_err(|_| ConvertError::Field {
        field,
        of: of.into(),
        value: text.into(),
        allowed: "1 to 128 printable characters without spaces",
    })
}

fn machine(node: &Node) -> Result<WorkloadMachine, ConvertError> {
    let capacity = Resources::new(node.cpu_milli, node.memory_mib.saturating_mul(MIB), 0, 0);
    let mut machine = plain_machine(Name::new(&node.name)?, capacity);
    if let Some(model) = &node.model {
        let (kind, model) = (Token::new("gpu")?, token("model", &node.name, model)?);
        machine.spec.devices = vec![Device { kind, model }; node.gpus as usize];
    }
    Ok(machine)
}

fn job(pod: &Pod) -> Result<JobSpec, ConvertError> {
    let limits = Resources::new(pod.cpu_milli, pod.memory_mib.saturating_mul(MIB), 0, 0);
    // One priority for all: the protocol has arrivals only and no preemption. It is not a prod
    // priority, because more arrives than there is, and the cell sells no prod quota beyond that.
    let mut spec = plain_job(Name::new(&pod.name)?, 1, Priority(100), limits);
    if pod.gpus > 0 {
        let models = pod
            .gpu_models
            .iter()
            .map(|m| token("gpu_spec", &pod.name, m))
            .collect::<Result<_, _>>()?;
        let count = u8::try_from(pod.gpus).map_err(|_| ConvertError::Field {
            field: "num_gpu",
            of: pod.name.clone(),
            value: pod.gpus.to_string(),
            allowed: "0 to 255",
        })?;
        let (kind, milli) = (Token::new("gpu")?, pod.gpu_milli as u16);
        spec.task.devices = vec![DeviceRequest { kind, models, count, milli }];
    }
    Ok(spec)
}
