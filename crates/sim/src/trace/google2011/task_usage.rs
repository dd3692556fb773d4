//! `task_usage`: what tasks used, averaged over up to five minutes.

use crate::trace::decimal::Rounding;
use crate::trace::problem::FieldProblem;
use crate::trace::table::{FLAG, Fields, Flow, Header, TableSpec, read_table};
use crate::trace::{Input, ReadReport, TraceError};

use super::task_events::parse_key;
use super::{MachineId, TaskKey};

/// One row. All measures are in micro-units of what they count, rounded up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TaskUsage {
    pub start_us: u64,
    pub end_us: u64,
    pub task: TaskKey,
    pub machine: MachineId,
    /// Mean CPU use, as a fraction of the largest machine.
    pub cpu_rate_micro: Option<u64>,
    /// Memory the task could not do without.
    pub canonical_memory_micro: Option<u64>,
    /// Memory the machine set aside for it.
    pub assigned_memory_micro: Option<u64>,
    pub unmapped_page_cache_micro: Option<u64>,
    pub total_page_cache_micro: Option<u64>,
    pub max_memory_micro: Option<u64>,
    /// Disk seconds per second.
    pub disk_io_time_micro: Option<u64>,
    pub local_disk_space_micro: Option<u64>,
    pub max_cpu_rate_micro: Option<u64>,
    pub max_disk_io_time_micro: Option<u64>,
    pub cycles_per_instruction_micro: Option<u64>,
    pub memory_accesses_per_instruction_micro: Option<u64>,
    /// Share of the expected samples that were taken.
    pub sample_portion_micro: Option<u64>,
    /// Whether maxima come from the whole container and not from a sum over parts.
    pub is_whole_container: Option<bool>,
    /// CPU use in one second chosen at random.
    pub sampled_cpu_micro: Option<u64>,
}

const SPEC: TableSpec = TableSpec {
    columns: &[
        "start time",
        "end time",
        "job ID",
        "task index",
        "machine ID",
        "CPU rate",
        "canonical memory usage",
        "assigned memory usage",
        "unmapped page cache",
        "total page cache",
        "maximum memory usage",
        "disk I/O time",
        "local disk space usage",
        "maximum CPU rate",
        "maximum disk IO time",
        "cycles per instruction",
        "memory accesses per instruction",
        "sample portion",
        "aggregation type",
        "sampled CPU usage",
    ],
    header: Header::None,
    has_remarks: false,
};

/// Passes every row to `each` until it breaks off.
pub fn read(
    input: Input,
    mut each: impl FnMut(TaskUsage) -> Flow,
) -> Result<ReadReport, TraceError> {
    read_table(input, &SPEC, |fields| Ok(each(parse(fields)?)))
}

fn parse(fields: &Fields<'_>) -> Result<TaskUsage, FieldProblem> {
    let start_us = fields.whole(0)?;
    let end_us = fields.whole(1)?;
    if end_us < start_us {
        return Err(fields.problem(1, format!("a time from the start time {start_us} on")));
    }
    let measure = |column| fields.optional_micro(column, Rounding::Up);
    Ok(TaskUsage {
        start_us,
        end_us,
        task: parse_key(fields, 2)?,
        machine: MachineId(fields.whole(4)?),
        cpu_rate_micro: measure(5)?,
        canonical_memory_micro: measure(6)?,
        assigned_memory_micro: measure(7)?,
        unmapped_page_cache_micro: measure(8)?,
        total_page_cache_micro: measure(9)?,
        max_memory_micro: measure(10)?,
        disk_io_time_micro: measure(11)?,
        local_disk_space_micro: measure(12)?,
        max_cpu_rate_micro: measure(13)?,
        max_disk_io_time_micro: measure(14)?,
        cycles_per_instruction_micro: measure(15)?,
        memory_accesses_per_instruction_micro: measure(16)?,
        sample_portion_micro: measure(17)?,
        is_whole_container: fields.optional_choice(18, FLAG)?,
        sampled_cpu_micro: measure(19)?,
    })
}
