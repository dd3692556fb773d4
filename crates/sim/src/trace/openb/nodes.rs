//! The node lists.

use std::collections::HashSet;

use crate::trace::problem::FieldProblem;
use crate::trace::table::{Fields, Flow, Header, TableSpec, read_table};
use crate::trace::{Input, Table, TraceError};

use super::GPU_MILLI;

/// All 1,523 nodes.
pub const ALL_NODES_FILE: &str = "openb_node_list_all_node.csv";

/// The 1,213 nodes with GPUs, on which the published figures were made. Names differ from those
/// of the other list.
pub const GPU_NODES_FILE: &str = "openb_node_list_gpu_node.csv";

/// Most GPUs that one node can have; far above the 8 of the trace, so that sums cannot overflow.
const MAX_GPUS: u32 = 1024;

/// One node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    pub name: String,
    pub cpu_milli: u64,
    pub memory_mib: u64,
    pub gpus: u32,
    /// Model of all its GPUs; none without GPUs.
    pub model: Option<String>,
}

const SPEC: TableSpec = TableSpec {
    columns: &["sn", "cpu_milli", "memory_mib", "gpu", "model"],
    header: Header::Names { required: 5 },
    has_remarks: false,
};

/// Reads a node list; a name that occurs twice is a problem.
pub fn read_nodes(input: Input) -> Result<Table<Node>, TraceError> {
    let mut rows = Vec::new();
    let mut known = HashSet::new();
    let report = read_table(input, &SPEC, |fields| {
        let node = parse(fields)?;
        if !known.insert(node.name.clone()) {
            return Err(fields.problem(0, "a name that no earlier row has"));
        }
        rows.push(node);
        Ok(Flow::Continue(()))
    })?;
    Ok(Table { rows, report })
}

/// GPU shares of all nodes together.
pub fn gpu_capacity_milli(nodes: &[Node]) -> u64 {
    nodes.iter().map(|node| u64::from(node.gpus) * u64::from(GPU_MILLI)).sum()
}

fn parse(fields: &Fields<'_>) -> Result<Node, FieldProblem> {
    let gpus = fields.whole_up_to(3, MAX_GPUS)?;
    let model = fields.text(4).map(str::to_owned);
    match (gpus, &model) {
        (0, Some(_)) => return Err(fields.problem(4, "nothing, for the node has no GPU")),
        (1.., None) => return Err(fields.problem(4, "a GPU model, for the node has GPUs")),
        _ => {}
    }
    Ok(Node {
        name: fields.required_text(0)?.to_owned(),
        cpu_milli: fields.whole(1)?,
        memory_mib: fields.whole(2)?,
        gpus,
        model,
    })
}
