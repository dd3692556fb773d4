//! Renders an explanation as sentences: what is short, how many machines fail for which reason,
//! which changes would help, which tasks are in the way, and when the task is tried again. A
//! sentence is a line, however long: the caller knows the width of its screen.

use super::quantity::{self, Rounding, Units};
use crate::device::WHOLE_DEVICE;
use crate::explanation::{
    Change, Counterfactual, Detail, Explanation, FITS, MachineRef, NearestMachine, Obstacle,
    ReasonCount, Victims,
};
use crate::name::Token;
use crate::resource::Dimension;
use crate::spec::Domain;
use crate::units::{group_digits, pluralize};

/// Reasons listed; the rest is summed up.
const MAX_REASONS: usize = 8;
/// Further changes listed.
const MAX_ALTERNATIVES: usize = 3;
/// Victims named.
const VICTIMS_SHOWN: usize = 5;

/// A paragraph of sentences, a line each.
#[must_use]
pub fn render(explanation: &Explanation, units: &dyn Units) -> String {
    render_after("pending: ", explanation, units)
}

/// The same for a task that fails: it does not wait for lack of a machine, and what machines say
/// comes second.
#[must_use]
pub fn render_when_tried(explanation: &Explanation, units: &dyn Units) -> String {
    render_after("When it is tried: ", explanation, units)
}

fn render_after(start: &str, explanation: &Explanation, units: &dyn Units) -> String {
    let text = Text { units };
    let mut lines = vec![format!("{start}{}", text.headline(explanation))];
    // Without machines there is nothing to say about the request.
    if explanation.machines_total == 0 {
        lines.extend(text.queue(explanation));
        return lines.join("\n");
    }
    let reasons = text.reasons(explanation);
    if !reasons.is_empty() {
        lines.push(reasons);
    }
    lines.extend(explanation.nearest.as_ref().and_then(|nearest| text.nearest(nearest)));
    lines.extend(text.changes(explanation));
    if explanation.fitting() == 0 {
        lines.extend(text.when_empty(explanation));
    }
    lines.extend(explanation.victims.as_ref().map(|victims| text.victims(victims)));
    lines.extend(text.queue(explanation));
    lines.join("\n")
}

/// One change with which it would fit: `ram <= 3 GiB (on m1)`.
#[must_use]
pub fn change(change: &Counterfactual, units: &dyn Units) -> String {
    Text { units }.change(change)
}

/// One reason: `2 lack ram (most free: 3 GiB on m1)`.
#[must_use]
pub fn reason(reason: &ReasonCount, units: &dyn Units) -> String {
    Text { units }.reason(reason)
}

/// The same without the number of machines, for tables that have a column for it: `lack ram (most
/// free: 3 GiB on m1)`.
#[must_use]
pub fn reason_alone(reason: &ReasonCount, units: &dyn Units) -> String {
    Text { units }.reason_alone(reason).1
}

/// What stands against a task on one machine: `it lacks ram (most free: 3 GiB)`.
#[must_use]
pub fn obstacle(obstacle: &ReasonCount, units: &dyn Units) -> String {
    Text { units }.obstacle(obstacle)
}

/// What a reason starts with: the machines, or `on` and the machines.
enum Subject {
    Machines,
    OnMachines,
}

struct Text<'a> {
    units: &'a dyn Units,
}

impl Text<'_> {
    /// `4 GiB ram`, `2 cores`.
    fn requested(&self, dimension: Dimension, value: u64) -> String {
        self.amount(dimension, value, Rounding::Up)
    }

    fn free(&self, dimension: Dimension, value: u64) -> String {
        self.units.amount(dimension, value, Rounding::Down)
    }

    fn amount(&self, dimension: Dimension, value: u64, rounding: Rounding) -> String {
        let amount = self.units.amount(dimension, value, rounding);
        format!("{amount} {dimension}")
    }

    fn headline(&self, e: &Explanation) -> String {
        let total = group_digits(u64::from(e.machines_total));
        let fitting = e.fitting();
        if e.machines_total == 0 {
            return "the cell has no machines.".into();
        }
        if let (true, Some(gang)) = (fitting > 0, e.gang.filter(|gang| *gang > 1)) {
            let gang = group_digits(u64::from(gang));
            return format!(
                "one task would fit on {} of {}, but all {gang} of the gang must find a \
                 place together.",
                group_digits(u64::from(fitting)),
                pluralize(u64::from(e.machines_total), "machine")
            );
        }
        if fitting > 0 && e.machines_total == 1 {
            return "fits on the only machine as it is now.".into();
        }
        if fitting > 0 {
            let fitting = group_digits(u64::from(fitting));
            return format!("fits on {fitting} of {total} machines as they are now.");
        }
        let needs = self.needs(e);
        let (it, needs) = match needs.as_slice() {
            [] => return format!("no machine of {total} can take it."),
            [(text, 1)] => ("it", vec![text.clone()]),
            [(text, _)] => ("them", vec![text.clone()]),
            [_, _] => ("both", needs.into_iter().map(|(text, _)| text).collect()),
            _ => ("all of it", needs.into_iter().map(|(text, _)| text).collect()),
        };
        let among: u32 =
            e.reasons.iter().filter(|r| is_resolvable_by_eviction(r)).map(|r| r.machines).sum();
        let who = match among {
            all if all == e.machines_total => format!("no machine of {total} has {it} free"),
            1 => format!("the only machine it may run on lacks {it}"),
            some => {
                let some = group_digits(u64::from(some));
                format!("none of the {some} machines it may run on has {it} free")
            }
        };
        format!("needs {}; {who}.", join_list(&needs))
    }

    /// What some machine is short of, devices first, each with the amount needed.
    fn needs(&self, e: &Explanation) -> Vec<(String, u64)> {
        let mut needs: Vec<(String, u64)> = Vec::new();
        for reason in &e.reasons {
            let need = match &reason.detail {
                Detail::Device { kind, models, requested, milli, .. } => {
                    (device_text(kind, models, *requested, *milli), u64::from(*requested))
                }
                Detail::Named { name, requested, .. } => {
                    (format!("{} {name}", group_digits(*requested)), *requested)
                }
                _ => continue,
            };
            needs.push(need);
        }
        let short = |d: &Dimension| e.reasons.iter().any(|r| is_short_of(r, *d));
        let dimensions = Dimension::ALL.into_iter().filter(short);
        needs.extend(dimensions.map(|d| (self.requested(d, e.limits.get(d)), 1)));
        needs
    }

    fn reasons(&self, e: &Explanation) -> String {
        let infeasible = e.reasons.iter().filter(|r| r.code != FITS);
        let mut parts: Vec<String> =
            infeasible.clone().take(MAX_REASONS).map(|r| self.reason(r)).collect();
        let rest: u32 = infeasible.skip(MAX_REASONS).map(|r| r.machines).sum();
        if rest > 0 {
            parts.push(format!("{} fail for other reasons", group_digits(u64::from(rest))));
        }
        let mut text = parts.join(", ");
        if !text.is_empty() {
            text.push('.');
        }
        text
    }

    fn reason(&self, reason: &ReasonCount) -> String {
        let machines = group_digits(u64::from(reason.machines));
        match self.reason_alone(reason) {
            (Subject::Machines, rest) => format!("{machines} {rest}"),
            (Subject::OnMachines, rest) => format!("on {machines} {rest}"),
        }
    }

    fn reason_alone(&self, reason: &ReasonCount) -> (Subject, String) {
        let n = reason.machines;
        let [is, lack, fail, have, do_not] = match n {
            1 => ["is", "lacks", "fails", "has", "does not"],
            _ => ["are", "lack", "fail", "have", "do not"],
        };
        let on = |machine: &Option<MachineRef>, available: u64| match machine {
            Some(machine) if available > 0 => format!(" on {}", machine.name),
            _ => String::new(),
        };
        let mut subject = Subject::Machines;
        let mut on_machines = |rest: String| {
            subject = Subject::OnMachines;
            rest
        };
        let rest = match &reason.detail {
            Detail::Nothing => match reason.code {
                FITS if n == 1 => "takes it as they are".into(),
                FITS => "take it as they are".into(),
                "other-machine" => format!("{is} not its own"),
                "machine-down" => format!("{is} down"),
                "machine-draining" => format!("{is} draining"),
                "crashed-here" => on_machines("it crashed too often".into()),
                "resource-pressure" => format!("{is} short itself, open to production only"),
                "no-alloc-here" => format!("{have} no alloc of its set"),
                code => format!("{fail} for {code}"),
            },
            Detail::Constraint { constraint, .. } => format!("{fail} the constraint {constraint}"),
            Detail::Tasks { most } => {
                format!("{have} as many tasks as a machine may: {}", group_digits(*most))
            }
            Detail::Volume(loan) => format!("{do_not} lend {loan}"),
            Detail::Spread { domain, limit } => on_machines(format!(
                "the {} holds {limit} of the job's tasks already",
                domain_name(*domain)
            )),
            Detail::StaticPort { port, holders } => {
                let mut named: Vec<String> = holders
                    .iter()
                    .map(|h| format!("{} on {}", h.task.name, h.machine.name))
                    .collect();
                if holders.len() < n as usize {
                    named.push("others".into());
                }
                on_machines(format!("port {port} is taken (by {})", join_list(&named)))
            }
            Detail::DynamicPorts { requested, available, machine } => format!(
                "{lack} free ports (asked {requested}, most free: {available}{})",
                on(machine, *available)
            ),
            Detail::Device { kind, models, requested, milli, available, machine } => {
                let (of, share) = (models_text(models), share_text(*milli));
                format!(
                    "{lack} {kind}{of} (asked {requested}{share}, at best {available}{})",
                    on(machine, *available)
                )
            }
            Detail::Named { name, requested, available, machine } => format!(
                "{lack} {name} (asked {}, most free: {}{})",
                group_digits(*requested),
                group_digits(*available),
                on(machine, *available)
            ),
            Detail::Resource { dimension, available, machine, .. } => {
                let most = self.free(*dimension, *available);
                format!("{lack} {dimension} (most free: {most}{})", on(machine, *available))
            }
        };
        (subject, rest)
    }

    /// Everything that the nearest machine lacks; the reasons above name one thing of each machine.
    fn nearest(&self, nearest: &NearestMachine) -> Option<String> {
        if nearest.obstacles.len() < 2 {
            return None;
        }
        let obstacles = nearest.obstacles.iter().map(|obstacle| self.obstacle(obstacle));
        let place = match &nearest.alloc {
            Some(alloc) => format!("{} in {}", nearest.machine.name, alloc.name),
            None => nearest.machine.name.clone(),
        };
        let all: Vec<String> = obstacles.collect();
        Some(format!("Nearest is {place}: {}.", join_list(&all)))
    }

    /// What stands against it on one machine.
    fn obstacle(&self, obstacle: &ReasonCount) -> String {
        match self.reason_alone(obstacle) {
            (Subject::Machines, rest) => format!("it {rest}"),
            (Subject::OnMachines, rest) => rest,
        }
    }

    fn changes(&self, e: &Explanation) -> Option<String> {
        if e.fitting() > 0 {
            return None;
        }
        // No task runs without CPU or memory, so that is no advice.
        let sensible = |c: &&Counterfactual| match c.change {
            Change::Resource { at_most, .. } => at_most > 0,
            Change::TwoResources(both) => both.iter().all(|lowered| lowered.at_most > 0),
            _ => true,
        };
        let mut offers = e.counterfactual.iter().chain(&e.alternatives).filter(sensible);
        let Some(nearest) = offers.next() else {
            return Some("No single change of the request would make it fit.".into());
        };
        let mut text = match nearest.change {
            Change::TwoResources(_) => {
                let change = self.change(nearest);
                format!(
                    "No single change of the request would make it fit; {change} together would."
                )
            }
            _ => format!("Would fit if {}.", self.change(nearest)),
        };
        let others: Vec<String> = offers.take(MAX_ALTERNATIVES).map(|c| self.change(c)).collect();
        if !others.is_empty() {
            text.push_str(&format!(" Or if {}.", others.join("; or if ")));
        }
        Some(text)
    }

    fn change(&self, c: &Counterfactual) -> String {
        let place = match &c.alloc {
            Some(alloc) => format!("{} in {}", c.machine.name, alloc.name),
            None => c.machine.name.clone(),
        };
        let n = u64::from(c.machines);
        let place = match n {
            0 | 1 => format!("on {place}"),
            _ => format!("on {} machines, such as {place}", group_digits(n)),
        };
        let lowered = |dimension: Dimension, at_most: u64| {
            format!("{dimension} <= {}", self.free(dimension, at_most))
        };
        match &c.change {
            Change::Resource { dimension, at_most, .. } => {
                format!("{} ({place})", lowered(*dimension, *at_most))
            }
            Change::TwoResources([a, b]) => format!(
                "{} and {} ({place})",
                lowered(a.dimension, a.at_most),
                lowered(b.dimension, b.at_most)
            ),
            Change::Ports { at_most, .. } => {
                format!("it asked for {} ({place})", pluralize(*at_most, "port"))
            }
            Change::Named { name, at_most: 0, .. } => format!("it did without {name} ({place})"),
            Change::Named { name, at_most, .. } => {
                format!("{name} <= {} ({place})", group_digits(*at_most))
            }
            Change::DeviceCount { kind, at_most: 0, .. } => {
                format!("it did without {kind} ({place})")
            }
            Change::DeviceCount { kind, at_most, .. } => {
                format!("it asked for {at_most} {kind} ({place})")
            }
            Change::DeviceShares { kind, at_most, .. } => {
                format!("its share of one {kind} were {at_most}/{WHOLE_DEVICE} ({place})")
            }
            Change::Spread { domain, at_least, .. } => format!(
                "{at_least} of its tasks were allowed in one {} ({place})",
                domain_name(*domain)
            ),
            Change::DropConstraint { constraint, .. } => {
                format!("the constraint {constraint} were dropped ({place})")
            }
            Change::DropVolume(loan) => format!("it did without {loan} ({place})"),
            Change::DropStaticPort { port } => {
                format!("it did not insist on port {port} ({place})")
            }
            Change::DrainEnded => format!("draining machines were open again ({place})"),
            Change::MachineBack => format!("machines that are down came back ({place})"),
        }
    }

    fn when_empty(&self, e: &Explanation) -> Option<String> {
        let machines = |n: u32| pluralize(u64::from(n), "machine");
        match (e.when_empty - e.kept_apart, e.kept_apart) {
            (0, 0) if e.once_open > 0 => {
                let closed = machines(e.once_open);
                return Some(format!(
                    "It waits for machines that drain or are down: {closed} could take it once \
                     open and empty."
                ));
            }
            (0, 0) => {}
            (0, apart) => {
                return Some(format!(
                    "Tasks of its own job are in the way: {} could take it when empty.",
                    machines(apart)
                ));
            }
            (full, 0) => {
                let full = machines(full);
                return Some(format!("The cell is only full: {full} could take it when empty."));
            }
            (full, apart) => {
                return Some(format!(
                    "The cell is only full: {} could take it when empty, {} more without tasks of \
                     its own job.",
                    machines(full),
                    group_digits(u64::from(apart))
                ));
            }
        }
        if e.reasons.iter().any(|reason| reason.code == "resource-pressure") {
            return Some("A machine that is short takes it when that has passed.".into());
        }
        let too_large: Vec<String> = e
            .too_large
            .iter()
            .map(|t| {
                let requested = self.requested(t.dimension, t.requested);
                format!("{requested}, the largest has {}", self.free(t.dimension, t.largest))
            })
            .collect();
        let lacks_alloc = |r: &ReasonCount| r.code == "no-alloc-here" && r.machines > 0;
        if !too_large.is_empty() {
            let requested = join_list(&too_large);
            Some(format!("No machine is large enough even when empty: asked {requested}."))
        } else if e.reasons.iter().any(lacks_alloc) {
            Some("It runs only inside an alloc of its set: it waits for one.".into())
        } else {
            Some(
                "As asked, no machine could take it even when empty: waiting will not help.".into(),
            )
        }
    }

    fn victims(&self, victims: &Victims) -> String {
        let shown = victims.tasks.iter().take(VICTIMS_SHOWN);
        let mut who: Vec<String> =
            shown.map(|v| format!("{} (priority {})", v.task.name, v.priority.0)).collect();
        if victims.tasks.len() > VICTIMS_SHOWN {
            who.push(format!("{} more", victims.tasks.len() - VICTIMS_SHOWN));
        }
        let who = format!("{} on {}", join_list(&who), victims.machine.name);
        if victims.allowed {
            return format!("It may evict {who}; a pass with preemption would.");
        }
        let mut why: Vec<String> = Vec::new();
        for obstacle in victims.tasks.iter().filter_map(|v| v.obstacle.as_ref()) {
            let sentence = obstacle_text(obstacle);
            if !why.contains(&sentence) {
                why.push(sentence);
            }
        }
        format!("Room would need {who} evicted, which is not allowed: {}.", join_list(&why))
    }

    fn queue(&self, e: &Explanation) -> Option<String> {
        let place = e.queue_position?;
        if let Some(wait) = place.tried_in {
            return Some(format!("Next try in {} (back-off or lease).", quantity::span(wait)));
        }
        let position = group_digits(u64::from(place.position?));
        let waiting = group_digits(u64::from(place.waiting));
        let higher = group_digits(u64::from(place.higher_priority));
        Some(format!("Number {position} of {waiting} in the queue, {higher} of higher priority."))
    }
}

fn is_short_of(reason: &ReasonCount, dimension: Dimension) -> bool {
    matches!(&reason.detail, Detail::Resource { dimension: d, .. } if *d == dimension)
}

/// Whether the machines lack something that holders release, and nothing else rules them out.
fn is_resolvable_by_eviction(reason: &ReasonCount) -> bool {
    use Detail::{Device, Named, Resource};
    matches!(&reason.detail, Device { .. } | Named { .. } | Resource { .. })
}

/// `2 gpu`, `1 gpu (a100 or t4) with 500/1000 free`.
fn device_text(kind: &Token, models: &[Token], requested: u32, milli: u16) -> String {
    format!("{requested} {kind}{}{}", models_text(models), share_text(milli))
}

/// ` (a100 or t4)`; nothing when any model will do.
fn models_text(models: &[Token]) -> String {
    if models.is_empty() {
        return String::new();
    }
    let names: Vec<&str> = models.iter().map(Token::as_str).collect();
    format!(" ({})", names.join(" or "))
}

fn share_text(milli: u16) -> String {
    if milli == WHOLE_DEVICE { String::new() } else { format!(" with {milli}/{WHOLE_DEVICE} free") }
}

fn domain_name(domain: Domain) -> &'static str {
    match domain {
        Domain::Machine => "machine",
        Domain::Rack => "rack",
        Domain::Power => "power domain",
        Domain::Cell => "cell",
    }
}

fn obstacle_text(obstacle: &Obstacle) -> String {
    match obstacle {
        Obstacle::NotLower => "equal or higher priority is never evicted".into(),
        Obstacle::SameProdBand(band) => format!("{band} never preempts {band}"),
        Obstacle::Budget { left: 0 } => "a victim's job may lose no more tasks now".into(),
        Obstacle::Budget { left: 1 } => "a victim's job may lose only 1 more task now".into(),
        Obstacle::Budget { left } => format!("a victim's job may lose only {left} more tasks now"),
        Obstacle::Restarting => "a victim is restarting in place".into(),
    }
}

/// `a`, `a and b`, `a, b and c`.
fn join_list(items: &[String]) -> String {
    match items {
        [] => String::new(),
        [one] => one.clone(),
        [most @ .., last] => format!("{} and {last}", most.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::resource::Resources;
    use crate::words::quantity::Natural;

    #[test]
    fn a_cell_without_machines_is_all_there_is_to_say() {
        let requested = Resources::new(1000, 1 << 30, 0, 0);
        let waiting =
            Explanation { limits: requested, reservation: requested, ..Explanation::default() };
        assert_eq!(render(&waiting, &Natural), "pending: the cell has no machines.");
    }
}
