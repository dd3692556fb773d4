//! The smallest number of machines on which a workload still fits, for one order of machines.
//!
//! Packing is not quite monotone: one machine more can, now and then, make a greedy packer fail. A
//! binary search finds a size where "does not fit" turns into "fits"; the sizes just below it are
//! then tried one by one, and if one of them fits the search goes on from there. Rejected: trying
//! every size from below, which needs hundreds of packings where this needs about fifteen.

/// The result of a search.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SearchResult {
    pub machines: usize,
    /// Packings tried.
    pub probes: u32,
}

/// Sizes tried below the turning point.
const NEIGHBOURS_TRIED: usize = 3;

/// Searches `lowest..=highest`, where `lowest` is a proven lower bound; `None` when `fits` is false
/// at `highest`.
pub fn smallest_fitting(
    lowest: usize,
    highest: usize,
    mut fits: impl FnMut(usize) -> bool,
) -> Option<SearchResult> {
    let mut probes = 0;
    let mut probe = |machines: usize| {
        probes += 1;
        fits(machines)
    };
    if lowest > highest || !probe(highest) {
        return None;
    }
    // Invariant: `fitting` fits; everything below `open` is ruled out or was tried.
    let (mut open, mut fitting) = (lowest, highest);
    while open < fitting {
        let middle = open + (fitting - open) / 2;
        if probe(middle) { fitting = middle } else { open = middle + 1 }
    }
    // The size right below was tried by the binary search.
    let mut step = 2;
    while step <= NEIGHBOURS_TRIED + 1 && fitting >= lowest + step {
        if probe(fitting - step) { (fitting, step) = (fitting - step, 1) } else { step += 1 }
    }
    Some(SearchResult { machines: fitting, probes })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clean_threshold_is_found_with_few_probes() {
        for threshold in [1, 2, 500, 731, 999, 1000] {
            let found = smallest_fitting(1, 1000, |n| n >= threshold).expect("1000 fits");
            assert_eq!(found.machines, threshold);
            assert!(found.probes <= 15, "{found:?}");
        }
    }

    #[test]
    fn a_workload_that_does_not_fit_at_all_is_said_to() {
        assert_eq!(smallest_fitting(1, 1000, |_| false), None);
        assert_eq!(smallest_fitting(1001, 1000, |_| true), None);
    }

    #[test]
    fn sizes_below_the_bound_are_never_tried() {
        let found = smallest_fitting(400, 1000, |n| {
            assert!(n >= 400);
            true
        });
        assert_eq!(found.map(|f| f.machines), Some(400));
    }

    /// A packer that fails at 700 though it fits at 698, as greedy ones do.
    #[test]
    fn a_gap_near_the_turning_point_is_crossed() {
        let fits = |n: usize| n >= 701 || n == 698;
        let found = smallest_fitting(1, 1000, fits).expect("1000 fits");
        assert_eq!(found.machines, 698);
    }
}
