//! A log in Standard Workload Format as a cell of one-processor nodes: every job is a gang of
//! processors. Such logs contain no usable memory figures, so only processors count.

use super::{ConvertError, plain_job, plain_machine};
use crate::trace::{Input, swf as log};
use crate::workload::{ReservedShare, Workload, WorkloadJob};
use cellwright_cell::name::Name;
use cellwright_cell::priority::Priority;
use cellwright_cell::resource::Resources;
use cellwright_cell::units::pluralize_as;
use std::path::Path;

/// Milli-cores of a node.
const NODE_MILLI_CORES: u64 = 1000;
/// The largest number of nodes that is believed of such a log.
const MAX_NODES: u64 = 1_000_000;

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
    if nodes > MAX_NODES {
        return Err(ConvertError::Field {
            field: "MaxProcs",
            of: file.display().to_string(),
            value: nodes.to_string(),
            allowed: "1 to 1,000,000",
        });
    }
    let mut out = Workload { reports: vec![log.report], ..Workload::default() };
    let (mut unspecified, mut too_large) = (0u64, 0u64);
    for node in 0..nodes {
        let name = Name::new(&format!("n{node}"))?;
        out.machines.push(plain_machine(name, Resources::new(NODE_MILLI_CORES, 0, 0, 0)));
    }
    for job in &log.jobs {
        let specified = job.allocated_procs.or(job.requested_procs).filter(|procs| *procs > 0);
        unspecified += u64::from(specified.is_none());
        let procs = specified.unwrap_or(1);
        too_large += u64::from(procs > nodes);
        let count = procs.min(nodes) as u32;
        let limits = Resources::new(NODE_MILLI_CORES, 0, 0, 0);
        let mut spec =
            plain_job(Name::new(&format!("j{}", job.job.0))?, count, Priority(100), limits);
        spec.gang = count > 1;
        let owner = Name::new(&format!("u{}", job.user.unwrap_or(0)))?;
        out.jobs.push(WorkloadJob { owner, spec, reserved: ReservedShare::ALL });
    }
    if unspecified > 0 {
        let jobs = pluralize_as(unspecified, "job does", "jobs do");
        out.notes.push(format!("{jobs} not say their processors and count as one each"));
    }
    if too_large > 0 {
        let jobs = pluralize_as(too_large, "job asks", "jobs ask");
        out.notes.push(format!("{jobs} for more than all {nodes} processors and get all"));
    }
    out.notes.push("a snapshot without time: all jobs of the log are in the queue at once".into());
    out.notes.push("each processor is a machine of one core; memory is not in the log".into());
    Ok(out)
}
