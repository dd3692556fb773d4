//! Readers of public workload traces and of the bundled example cell.
//!
//! A trace is a file that others wrote, often years ago, so every reader here treats it as hostile:
//! it streams (plain or gzip, by extension), keeps at most one bounded line in memory, never
//! panics, and turns each row it cannot use into a [`RowProblem`] with the line number, the field,
//! the value and what would have been allowed. Bad rows are counted in a [`ReadReport`]; none is
//! dropped silently and none stops the rest of the file from being read. Only what makes the
//! remaining rows meaningless (no file, broken compression, a wrong header) is a [`TraceError`].
//!
//! Rows are plain values in the trace's own terms. Turning them into machines, jobs and tasks of
//! the cell is left to the experiments, because each of them reads the same row differently (at
//! limits, at reservations, production only). The rejected alternative, readers that build the
//! cell's types, would have tied every modelling choice to the parser.
//!
//! | source | reader |
//! |---|---|
//! | Google cluster data 2011-2 | [`google2011`] |
//! | Alibaba GPU trace 2023 | [`openb`] |
//! | Standard Workload Format logs | [`swf`] |
//! | the bundled example cell | [`example`] |
//! | rates of requests | [`rates`] |

pub mod decimal;
pub mod example;
pub mod google2011;
pub mod lines;
pub mod openb;
mod problem;
pub mod rates;
mod source;
pub mod stable_rng;
pub mod swf;
mod table;

pub use lines::Input;
pub use problem::{ReadReport, RowProblem, TraceError, total_problems};
pub use source::{TraceSource, TraceSourceError};
pub use table::Flow;

/// All usable rows of one file, in file order, and what was wrong with the others.
#[derive(Clone, Debug)]
pub struct Table<T> {
    pub rows: Vec<T>,
    pub report: ReadReport,
}
