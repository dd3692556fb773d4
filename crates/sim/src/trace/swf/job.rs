//! One job line: 18 numbers separated by blanks.

use crate::trace::decimal::{Rounding, parse_scaled, parse_whole};
use crate::trace::problem::FieldProblem;

/// A job, by its number in the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SwfJobId(pub u64);

/// How a job, or a part of a job that was checkpointed, ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SwfStatus {
    Failed,
    Completed,
    /// A part that is continued by a later line.
    PartContinued,
    LastPartCompleted,
    LastPartFailed,
    Cancelled,
}

/// One line; `None` is unknown (-1 in the log).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SwfJob {
    pub job: SwfJobId,
    /// Seconds since the start of the log, as all times.
    pub submit_s: u64,
    pub wait_s: Option<u64>,
    pub run_s: Option<u64>,
    pub allocated_procs: Option<u64>,
    /// Mean CPU time per processor in milliseconds, rounded up.
    pub average_cpu_ms: Option<u64>,
    /// Mean memory per processor in KiB, rounded up.
    pub used_memory_kib: Option<u64>,
    pub requested_procs: Option<u64>,
    pub requested_s: Option<u64>,
    /// Per processor in KiB, rounded up.
    pub requested_memory_kib: Option<u64>,
    pub status: Option<SwfStatus>,
    pub user: Option<u64>,
    pub group: Option<u64>,
    pub executable: Option<u64>,
    pub queue: Option<u64>,
    pub partition: Option<u64>,
    /// The job this one waits for, and how long after its end it was submitted.
    pub preceding_job: Option<SwfJobId>,
    pub think_s: Option<u64>,
}

const COLUMNS: [&str; 18] = [
    "job number",
    "submit time",
    "wait time",
    "run time",
    "allocated processors",
    "average CPU time used",
    "used memory",
    "requested processors",
    "requested time",
    "requested memory",
    "status",
    "user ID",
    "group ID",
    "executable number",
    "queue number",
    "partition number",
    "preceding job number",
    "think time",
];

const ALLOWED: &str = "a number from 0 on, or -1 for unknown";

/// Numbers of one line, in column order.
struct Numbers<'a>([&'a str; 18]);

pub(super) fn parse(text: &str) -> Result<SwfJob, FieldProblem> {
    let numbers = split(text)?;
    Ok(SwfJob {
        job: SwfJobId(numbers.required(0)?),
        submit_s: numbers.required(1)?,
        wait_s: numbers.whole(2)?,
        run_s: numbers.whole(3)?,
        allocated_procs: numbers.whole(4)?,
        average_cpu_ms: numbers.scaled(5, 3)?,
        used_memory_kib: numbers.scaled(6, 0)?,
        requested_procs: numbers.whole(7)?,
        requested_s: numbers.whole(8)?,
        requested_memory_kib: numbers.scaled(9, 0)?,
        status: numbers.status(10)?,
        user: numbers.whole(11)?,
        group: numbers.whole(12)?,
        executable: numbers.whole(13)?,
        queue: numbers.whole(14)?,
        partition: numbers.whole(15)?,
        preceding_job: numbers.whole(16)?.map(SwfJobId),
        think_s: numbers.whole(17)?,
    })
}

fn split(text: &str) -> Result<Numbers<'_>, FieldProblem> {
    let mut cells = [""; 18];
    let mut count = 0;
    for cell in text.split_ascii_whitespace() {
        if let Some(place) = cells.get_mut(count) {
            *place = cell;
        }
        count += 1;
    }
    if count != cells.len() {
        let allowed = format!("18 numbers with blanks between them, not {count}");
        return Err(FieldProblem::new("row", text, allowed));
    }
    Ok(Numbers(cells))
}

impl Numbers<'_> {
    fn problem(&self, column: usize, allowed: &'static str) -> FieldProblem {
        FieldProblem::new(COLUMNS[column], self.0[column], allowed)
    }

    /// A number that every job must have.
    fn required(&self, column: usize) -> Result<u64, FieldProblem> {
        parse_whole(self.0[column]).map_err(|_| self.problem(column, "a whole number from 0 on"))
    }

    fn whole(&self, column: usize) -> Result<Option<u64>, FieldProblem> {
        match self.0[column] {
            "-1" => Ok(None),
            text => parse_whole(text).map(Some).map_err(|_| self.problem(column, ALLOWED)),
        }
    }

    fn scaled(&self, column: usize, decimals: u32) -> Result<Option<u64>, FieldProblem> {
        match self.0[column] {
            "-1" => Ok(None),
            text => parse_scaled(text, decimals, Rounding::Up)
                .map(Some)
                .map_err(|_| self.problem(column, ALLOWED)),
        }
    }

    fn status(&self, column: usize) -> Result<Option<SwfStatus>, FieldProblem> {
        match self.0[column] {
            "-1" => Ok(None),
            "0" => Ok(Some(SwfStatus::Failed)),
            "1" => Ok(Some(SwfStatus::Completed)),
            "2" => Ok(Some(SwfStatus::PartContinued)),
            "3" => Ok(Some(SwfStatus::LastPartCompleted)),
            "4" => Ok(Some(SwfStatus::LastPartFailed)),
            "5" => Ok(Some(SwfStatus::Cancelled)),
            _ => Err(self.problem(column, "0, 1, 2, 3, 4, 5, or -1 for unknown")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_fields_land_in_their_place() {
        let job = parse("7 10 20 30 40 50.25 60 70 80 90 5 11 12 13 14 15 16 17").expect("a job");
        let expected = SwfJob {
            job: SwfJobId(7),
            submit_s: 10,
            wait_s: Some(20),
            run_s: Some(30),
            allocated_procs: Some(40),
            average_cpu_ms: Some(50_250),
            used_memory_kib: Some(60),
            requested_procs: Some(70),
            requested_s: Some(80),
            requested_memory_kib: Some(90),
            status: Some(SwfStatus::Cancelled),
            user: Some(11),
            group: Some(12),
            executable: Some(13),
            queue: Some(14),
            partition: Some(15),
            preceding_job: Some(SwfJobId(16)),
            think_s: Some(17),
        };
        assert_eq!(job, expected);
    }

    #[test]
    fn unknown_is_not_allowed_where_it_makes_no_sense() {
        let rest = "-1 -1 -1 -1 -1 -1 -1 -1 -1 -1 -1 -1 -1 -1 -1 -1";
        assert_eq!(parse(&format!("1 0 {rest}")).expect("a job").status, None);
        let check = |text: &str, field: &str| {
            assert_eq!(parse(text).expect_err(text).field, field);
        };
        check(&format!("-1 0 {rest}"), "job number");
        check(&format!("1 -1 {rest}"), "submit time");
        check(&format!("1 0 -2 {}", &rest[3..]), "wait time");
        check(&format!("1 0 {rest} 5"), "row");
        check("1 0", "row");
    }
}
