//! A log in Standard Workload Format as a cell of one-processor nodes: every job is a gang of
//! processors. Such logs say nothing of memory, so only processors count.

use super::{ConvertError, plain_job, plain_machine};
use crate::trace::{Input, swf as log};
use crate::workload::{ReservedShare, Workload, WorkloadJob};
use cellwright_cell::name::Name;
use cellwright_cell::priority::Priority;
use cellwright_cell::resource::Resources;
use std::path::Path;

/// Milli-cores of a node.
const NODE: u64 = 1000;

/// Reads a log and turns its jobs into gangs.
///
/// # Errors
/// When the file cannot be read at all, or does not say how many processors there are.
pub fn swf(file: &Path) -> Result<Workload, ConvertError> {
    let log = log::read(Input::open(file)?)?;
    let nodes = log.header.max_procs.or(log.header.max_nodes).ok_or(ConvertError::Field {
        field: "MaxProcs",
        of: file.display().to_string(),
        value: "absent".into(),
        allowed: "a header that states it",
    })?;
    let mut out = Workload { reports: vec![log.report], ..Workload::default() };
    for node in 0..nodes.min(1_000_000) {
        let name = Name::new(&format!("n{node}"))?;
        out.machines.push(plain_machine(name, Resources::new(NODE, 0, 0, 0)));
    }
    for job in &log.jobs {
        let procs = job.allocated_procs.or(job.requested_procs).unwrap_or(1).max(1);
        let count = u32::try_from(procs.min(nodes)).unwrap_or(u32::MAX);
        let limits = Resources::new(NODE, 0, 0, 0);
        let mut spec =
            plain_job(Name::new(&format!("j{}", job.job.0))?, count, Priority(100), limits);
        spec.gang = count > 1;
        let owner = Name::new(&format!("u{}", job.user.unwrap_or(0)))?;
        out.jobs.push(WorkloadJob { owner, spec, reserved: ReservedShare::ALL });
    }
    out.notes.push("a snapshot without time: all jobs of the log are in the queue at once".into());
    out.notes.push("each processor is a machine of one core; memory is not in the log".into());
    Ok(out)
}
