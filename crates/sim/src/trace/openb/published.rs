//! `published_gpu_allocation.csv`: the results of six policies, to compare with.

use crate::trace::decimal::{Rounding, parse_scaled};
use crate::trace::problem::FieldProblem;
use crate::trace::table::{Fields, Flow, Header, TableSpec, read_table};
use crate::trace::{Input, Table, TraceError};

/// The file's name inside the trace folder.
pub const PUBLISHED_FILE: &str = "published_gpu_allocation.csv";

/// Mean share of GPU capacity allocated at 130 % arrived load, in thousandths of a percent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PublishedAllocation {
    /// The pod list, without extension.
    pub workload: String,
    pub random: u32,
    pub dot_product: u32,
    pub gpu_clustering: u32,
    pub gpu_packing: u32,
    pub best_fit: u32,
    pub fgd: u32,
}

const SPEC: TableSpec = TableSpec {
    columns: &[
        "workload",
        "01-Random",
        "02-DotProd",
        "03-GpuClustering",
        "04-GpuPacking",
        "05-BestFit",
        "06-FGD",
    ],
    header: Header::Names { required: 7 },
    has_remarks: false,
};

/// 100 % in thousandths of a percent.
const WHOLE: u64 = 100_000;

/// Reads the table of published figures.
pub fn read_published(input: Input) -> Result<Table<PublishedAllocation>, TraceError> {
    let mut rows = Vec::new();
    let report = read_table(input, &SPEC, |fields| {
        rows.push(PublishedAllocation {
            workload: fields.required_text(0)?.to_owned(),
            random: percent(fields, 1)?,
            dot_product: percent(fields, 2)?,
            gpu_clustering: percent(fields, 3)?,
            gpu_packing: percent(fields, 4)?,
            best_fit: percent(fields, 5)?,
            fgd: percent(fields, 6)?,
        });
        Ok(Flow::Continue(()))
    })?;
    Ok(Table { rows, report })
}

fn percent(fields: &Fields<'_>, column: usize) -> Result<u32, FieldProblem> {
    let value = fields.text(column).and_then(|text| parse_scaled(text, 3, Rounding::Exact).ok());
    value
        .filter(|value| *value <= WHOLE)
        .and_then(|value| u32::try_from(value).ok())
        .ok_or_else(|| fields.problem(column, "a percentage with at most 3 decimals, 0 to 100"))
}
