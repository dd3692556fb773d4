//! GPU packing on the Alibaba trace: every pod list, ten orders of arrival, 130 % arrived load.

use crate::report::Report;
use crate::trace::folder;
use cellwright_sched::Options;
use cellwright_sched::score::packing::PackingModel;
use cellwright_sim::experiment::arrivals::{ArrivalOptions, arrivals};
use cellwright_sim::experiment::progress::NoProgress;
use std::io;

const SEED: u64 = 42;

pub fn main() -> io::Result<()> {
    let mut report = Report::new(
        "openb",
        "Unallocated GPU on the 1,213 GPU nodes of the Alibaba trace at 130 % arrived load, mean \
         of ten orders of arrival, against the best published policy (FGD). Pods arrive one at a \
         time; one that does not fit is dropped; nobody moves.",
        SEED,
    );
    for (name, model) in [("hybrid", PackingModel::Hybrid), ("best fit", PackingModel::BestFit)] {
        let options = ArrivalOptions {
            folder: folder().join("openb"),
            pods: "all".into(),
            load_permille: 1300,
            seed: SEED,
            seeds: 10,
            scheduler: Options { model, ..Options::exact() },
            threads: 2,
        };
        let mut product = 1.0f64;
        let mut lists = 0;
        for result in arrivals(&options, &NoProgress).map_err(io::Error::other)? {
            let list = result.pods.trim_start_matches("openb_pod_list_").to_owned();
            let work = format!("{list}, {name}: allocated");
            report.row(&work, result.gpu_allocated_percent_mean, "%", "");
            let Some(ratio) = result.unallocated_vs_fgd else { continue };
            let target = if model == PackingModel::Hybrid { "≤ 1, aim 0.9" } else { "" };
            report.row(&format!("{list}, {name}: unallocated / FGD"), ratio, "x", target);
            product *= ratio;
            lists += 1;
        }
        let mean = product.powf(1.0 / f64::from(lists.max(1)));
        report.row(&format!("{name}: geometric mean of all lists"), mean, "x FGD", "");
    }
    report.save()
}
