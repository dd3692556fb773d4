//! The row of a scaled job among the rows of all tables.

use super::Scaling;
use crate::encode::Rows;
use crate::encode::validate::{Checked, at_most};
use crate::scale::{BUCKETS_PER_DAY, HISTORY_DAYS, MAX_NEED, PEAK_DAYS, RECENT_MINUTES, ScaleVeto};
use crate::state::State;
use crate::tables::TableRow;

impl TableRow for Scaling {
    const NOUN: &'static str = "scaling";
    const LABEL_OF_OTHERS: bool = true;

    fn label(&self, rows: &Rows) -> String {
        let job = rows.jobs.get(self.job.slot()).and_then(Option::as_ref);
        job.map_or_else(|| format!("job#{}", self.job.0), |job| job.label(rows))
    }

    fn name(&self, state: &State) -> Option<String> {
        state.job_key(self.job).map(|key| key.to_string())
    }

    fn check(&self, row: &str) -> Checked {
        let memory = &self.memory;
        at_most(row, "minutes", memory.recent.len() as u64, RECENT_MINUTES as u64)?;
        at_most(row, "days", memory.days.len() as u64, HISTORY_DAYS as u64)?;
        at_most(row, "days of peaks", memory.peaks.len() as u64, PEAK_DAYS as u64)?;
        for day in &memory.days {
            at_most(row, "buckets of a day", day.buckets.len() as u64, BUCKETS_PER_DAY as u64)?;
        }
        let needs = memory.recent.iter().map(|point| point.need);
        let needs = needs.chain(memory.days.iter().flat_map(|day| day.buckets.iter().copied()));
        let most = needs.chain(self.measured.iter().map(|last| last.need)).max().unwrap_or(0);
        at_most(row, "need", u64::from(most), u64::from(MAX_NEED))?;
        let vetoes = self.decision.as_ref().map_or(0, |decision| decision.vetoes.len());
        at_most(row, "vetoes", vetoes as u64, ScaleVeto::ALL.len() as u64)
    }
}
