//! Forecast for a waiting task: when it will start (X5), and with what smaller request it would fit
//! on many machines (B17).
//!
//! An estimate is based on known ends of tasks, simulated by the scheduler's own code; where there
//! are none, on how many such tasks were placed *while this one waited*. A cell that was filled in
//! a minute and then never frees anything has placed thousands and will place none, so placements
//! before it waited say nothing. Where neither is known, the forecast says so.

use cellwright_api::types::{EasierView, EtaView, ExplanationView};
use cellwright_cell::explanation::Explanation;
use cellwright_cell::id::{JobId, TaskId};
use cellwright_cell::reason::InfeasibleReason;
use cellwright_cell::resource::{Dimension, Resources};
use cellwright_cell::state::State;
use cellwright_cell::time::{Span, Time};
use cellwright_cell::words::quantity::{Natural, Rounding, Units, span};
use cellwright_master::events::EventLog;
use cellwright_sched::available_shapes::{self, EASY_PERCENT, EasierShape};
use cellwright_sched::eta::{
    EstimateBasis, EstimateQuery, MAX_WORK, NoEstimate, StartEstimate, estimate,
};
use cellwright_sched::explain::names::NameResolver;
use cellwright_sched::{ClusterSnapshot, DEFAULT_SEED, Options};

/// Window in which placements are counted.
const RATE_WINDOW: Span = Span::seconds(30 * 60);
/// Least number of placements for a rate.
const MIN_PLACEMENTS: u32 = 3;

/// Context of the forecasts of one query.
pub(super) struct Forecast<'a> {
    pub state: &'a State,
    pub snapshot: &'a ClusterSnapshot,
    pub events: &'a EventLog,
    pub now: Time,
    /// Whether a scheduler serves the task's shard at all.
    pub served: bool,
}

impl Forecast<'_> {
    /// Adds the smaller request to an explanation: as data always, as text unless the task fits.
    pub fn add_easier(&self, view: &mut ExplanationView, explanation: &Explanation, id: TaskId) {
        let class = self.snapshot.class_of(id);
        let found = class
            .and_then(|class| available_shapes::easier_shape(self.snapshot, class, EASY_PERCENT));
        // A change of one dimension that helps as many machines is nearer and in the text already.
        let helped_machines =
            explanation.counterfactual.as_ref().map_or(0, |change| change.machines);
        view.easier = found
            .filter(|found| found.machines > helped_machines)
            .map(|f| easier_view(explanation, &f));
        if let Some(easier) = view.easier.as_ref().filter(|_| explanation.fitting() == 0) {
            view.text.push('\n');
            view.text.push_str(&easier.text);
        }
    }

    /// Adds the estimated start: as data always, as text where it does not repeat the explanation
    /// of a task that fits, that has to wait for its time or for machines that are closed, or that
    /// never will.
    pub fn add_eta(&self, view: &mut ExplanationView, explanation: &Explanation, id: TaskId) {
        let eta = self.eta(explanation, id);
        let is_news = !matches!(
            eta.basis.as_str(),
            "next-pass" | "not-before" | "never-fits" | "closed" | "no-scheduler"
        );
        if explanation.fitting() == 0 && is_news {
            view.text.push('\n');
            view.text.push_str(&eta.text);
        }
        view.eta = Some(eta);
    }

    fn eta(&self, explanation: &Explanation, id: TaskId) -> EtaView {
        if !self.served {
            return no_eta("no-scheduler", "no scheduler plans it at present");
        }
        let now = self.now.max(self.state.now());
        let allowed = explanation.victims.as_ref().is_some_and(|victims| victims.allowed);
        let fits = explanation.fitting() > 0 || allowed;
        if explanation.when_empty == 0 && !fits {
            return never_fits(explanation);
        }
        let question = EstimateQuery { task: id, now, fits_now: fits, max_work: MAX_WORK };
        match estimate(self.state, self.snapshot, question, Options::default(), DEFAULT_SEED) {
            Ok(start) => self.known_eta(&start, now),
            Err(why) => self.by_rate(explanation, id, now).unwrap_or_else(|| unknown_eta(why, now)),
        }
    }

    fn known_eta(&self, start: &StartEstimate, now: Time) -> EtaView {
        let machine = NameResolver::machine(self.state, start.machine);
        let after: Vec<String> =
            start.freed_by.iter().map(|task| self.state.task_name(*task)).collect();
        let wait = start.at.since(now);
        let sure = "at the latest, unless work comes that goes first";
        let (basis, confidence, text) = match start.basis {
            EstimateBasis::Now => {
                let text = "Expected to start with the next pass: it has a place.".to_owned();
                ("next-pass", "as things are now", text)
            }
            EstimateBasis::NotBefore => {
                let wait = span(wait);
                let text =
                    format!("Expected to start in {wait}, when its back-off or lease is over.");
                ("not-before", "as things are now", text)
            }
            EstimateBasis::Ends => {
                let wait = match wait {
                    Span::ZERO => "now".to_owned(),
                    wait => format!("in {}", span(wait)),
                };
                let reason = match &after[..] {
                    [] => format!("{machine} has room then"),
                    [one] => format!("{one} may run on {machine} no longer"),
                    [one, ..] => format!("{one} and others may run on {machine} no longer"),
                };
                ("known-ends", sure, format!("Expected to start {wait} {sure}: {reason}."))
            }
        };
        EtaView {
            at: Some(start.at),
            starts_in: Some(wait),
            basis: basis.to_owned(),
            confidence: confidence.to_owned(),
            machine: Some(machine),
            after,
            text,
        }
    }

    /// By the rate of placements while the task waited. If the events cannot be read, there is just
    /// no estimate by rate.
    fn by_rate(&self, explanation: &Explanation, id: TaskId, now: Time) -> Option<EtaView> {
        let position = explanation.queue_position?.position?;
        let waits_since = self.state.tasks().get(id)?.changed_at;
        let since = waits_since.max(Time(now.0.saturating_sub(RATE_WINDOW.0)));
        let band = explanation.priority.band();
        let is_like = |job: JobId, index: u32| {
            self.state.jobs().get(job).is_some_and(|row| {
                let limits = row.spec().limits_of(index);
                row.spec().priority.band() == band
                    && limits.cpu >= explanation.limits.cpu
                    && limits.ram >= explanation.limits.ram
            })
        };
        let (placed, from) = match self.events.recent_placements(since, MIN_PLACEMENTS, is_like) {
            Ok(found) => found,
            Err(error) => {
                tracing::warn!(%error, "what was placed lately could not be read");
                return None;
            }
        };
        eta_by_rate(placed, now.since(from), position, now)
    }
}

/// The estimate when `placed` similar tasks were placed in `window`, and this one has queue
/// position `position`.
fn eta_by_rate(placed: u32, window: Span, position: u32, now: Time) -> Option<EtaView> {
    if placed < MIN_PLACEMENTS {
        return None;
    }
    let wait = window.0.saturating_mul(u64::from(position)) / u64::from(placed);
    let wait = Span(wait.max(1000));
    let before = match position - 1 {
        0 => "it is next".to_owned(),
        1 => "1 stands before it".to_owned(),
        many => format!("{many} stand before it"),
    };
    let text = format!(
        "Expected to start in about {}, a rough guess: in the last {} {placed} tasks of its band \
         that ask for as much found a place, and {before}.",
        span(wait),
        span(window)
    );
    Some(EtaView {
        at: Some(now.plus(wait)),
        starts_in: Some(wait),
        basis: "rate".to_owned(),
        confidence: "a rough guess: what went on while it waited may not go on".to_owned(),
        machine: None,
        after: Vec::new(),
        text,
    })
}

/// Why there is no estimate for a task that would fit on no machine even if it were empty. That
/// does not mean it never will: machines that drain, are down or are under resource pressure are
/// not evaluated, and an alloc set may have no alloc yet.
fn never_fits(explanation: &Explanation) -> EtaView {
    let is_for = |infeasible_reason: InfeasibleReason| {
        explanation
            .reasons
            .iter()
            .any(|reason| reason.code == infeasible_reason.code() && reason.machines > 0)
    };
    let awaits_alloc = explanation.too_large.is_empty() && is_for(InfeasibleReason::NoAllocHere);
    if explanation.once_open > 0 || is_for(InfeasibleReason::ResourcePressure) || awaits_alloc {
        no_eta("closed", "the machines that could take it are closed to it now")
    } else {
        no_eta("never-fits", "no machine that is up could take it even when empty")
    }
}

fn unknown_eta(why: NoEstimate, now: Time) -> EtaView {
    match why {
        NoEstimate::NoKnownEnd => no_eta("nothing-ends", "nothing that holds room has a known end"),
        NoEstimate::NoRoomUntil { until } => {
            let until = span(until.since(now));
            let why = format!("all that has a known end has ended in {until}, which is not enough");
            no_eta("not-even-then", &why)
        }
        NoEstimate::HorizonReached { until } if until <= now => {
            no_eta("too-far", "too many wait for the queue to be played forward")
        }
        NoEstimate::HorizonReached { until } => {
            let why = format!("there is no room in the next {}", span(until.since(now)));
            no_eta("too-far", &why)
        }
    }
}

fn no_eta(basis: &str, why: &str) -> EtaView {
    EtaView {
        at: None,
        starts_in: None,
        basis: basis.to_owned(),
        confidence: "none".to_owned(),
        machine: None,
        after: Vec::new(),
        text: format!("No estimate of when it starts: {why}."),
    }
}

fn easier_view(explanation: &Explanation, found: &EasierShape) -> EasierView {
    let EasierShape { limits, machines, eligible: of, permille } = *found;
    let requested: Resources = explanation.limits;
    let lowered =
        [Dimension::Cpu, Dimension::Ram].into_iter().filter(|d| limits.get(*d) < requested.get(*d));
    let lowered: Vec<String> = lowered
        .map(|d| format!("{d} <= {}", Natural.amount(d, limits.get(d), Rounding::Down)))
        .collect();
    let noun = if of == 1 { "machine" } else { "machines" };
    let text = format!("With {} it would fit on {machines} of {of} {noun}.", lowered.join(" and "));
    EasierView { limits, machines, permille, text }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cellwright_cell::explanation::{Detail, ReasonCount, TooLarge};

    /// No machine would accept it even when empty, and all three for this reason.
    fn infeasible(code: &'static str) -> Explanation {
        let reasons = vec![ReasonCount { code, machines: 3, detail: Detail::Nothing }];
        Explanation { machines_total: 3, reasons, ..Explanation::default() }
    }

    #[test]
    fn what_waits_for_machines_to_open_is_not_said_never_to_fit() {
        let basis = |explanation: &Explanation| never_fits(explanation).basis;
        assert_eq!(basis(&infeasible("constraint")), "never-fits");
        assert_eq!(basis(&infeasible("machine-draining")), "never-fits", "too small when open");
        assert_eq!(
            basis(&Explanation { once_open: 2, ..infeasible("machine-draining") }),
            "closed"
        );
        assert_eq!(basis(&infeasible("resource-pressure")), "closed");
        let inside = infeasible("no-alloc-here");
        assert_eq!(basis(&inside), "closed");
        let too_large = vec![TooLarge { dimension: Dimension::Cpu, requested: 2, largest: 1 }];
        assert_eq!(basis(&Explanation { too_large, ..inside }), "never-fits");
    }

    #[test]
    fn a_guess_is_the_pace_of_those_who_were_placed_while_it_waited() {
        let at = |placed, window, position| {
            let found = eta_by_rate(placed, Span::seconds(window), position, Time(5000));
            found.map(|eta| (eta.at, eta.starts_in, eta.basis))
        };
        assert_eq!(at(2, 600, 1), None, "two are no rate");
        let want = |seconds: u64| {
            let wait = Span::seconds(seconds);
            Some((Some(Time(5000).plus(wait)), Some(wait), "rate".to_owned()))
        };
        assert_eq!(at(6, 600, 1), want(100));
        assert_eq!(at(6, 600, 3), want(300));
        assert_eq!(at(600, 60, 1), want(1), "never sooner than a pass");
        let text = eta_by_rate(6, Span::seconds(600), 3, Time(0)).unwrap().text;
        assert!(text.contains("in about 5 min") && text.contains("2 stand before it"), "{text}");
    }

    #[test]
    fn why_there_is_no_estimate_is_a_sentence() {
        let at = |seconds: u64| Time(seconds * 1000);
        let check = |why, basis: &str, expected: &str| {
            let eta = unknown_eta(why, at(100));
            assert_eq!((eta.at, eta.basis.as_str()), (None, basis));
            assert_eq!(eta.text, format!("No estimate of when it starts: {expected}."));
        };
        check(NoEstimate::NoKnownEnd, "nothing-ends", "nothing that holds room has a known end");
        let until = at(160);
        let words = "all that has a known end has ended in 1 min, which is not enough";
        check(NoEstimate::NoRoomUntil { until }, "not-even-then", words);
        check(
            NoEstimate::HorizonReached { until },
            "too-far",
            "there is no room in the next 1 min",
        );
        let words = "too many wait for the queue to be played forward";
        check(NoEstimate::HorizonReached { until: at(100) }, "too-far", words);
    }
}
