//! An explanation in sentences, as a person would write it: what is short, how many machines fail
//! for which reason, what would help, who is in the way, when it is tried again. Lines have at most
//! 80 columns.

use super::units::{self, Rounding, Units, group_digits};
use super::{Change, Counterfactual, Detail, Explanation, FITS, Obstacle, ReasonCount, Victims};
use cellwright_cell::device::WHOLE_DEVICE;
use cellwright_cell::name::Token;
use cellwright_cell::resource::Dimension;
use cellwright_cell::spec::Domain;
use cellwright_cell::units::pluralize;

const COLUMNS: usize = 80;
/// Reasons spelt out; the rest is summed up.
const MAX_REASONS: usize = 8;
/// Further changes spelt out.
const MAX_ALTERNATIVES: usize = 3;
/// Victims named.
const MAX_VICTIMS: usize = 5;

/// One paragraph of sentences, one line each where they fit.
#[must_use]
pub fn render(explanation: &Explanation, units: &dyn Units) -> String {
    let text = TextRenderer { units };
    let mut lines = vec![text.headline(explanation)];
    // Where there is no machine, nothing that could be asked of one says more.
    if explanation.machines_total == 0 {
        lines.extend(text.queue(explanation));
        return lines.iter().map(|line| wrap(line)).collect::<Vec<_>>().join("\n");
    }
    let reasons = text.reasons(explanation);
    if !reasons.is_empty() {
        lines.push(reasons);
    }
    lines.extend(text.changes(explanation));
    if explanation.fitting() == 0 {
        lines.extend(text.when_empty(explanation));
    }
    lines.extend(explanation.victims.as_ref().map(|victims| text.victims(victims)));
    lines.extend(text.queue(explanation));
    lines.iter().map(|line| wrap(line)).collect::<Vec<_>>().join("\n")
}

/// One change with which it would fit: `ram <= 3 GiB (on m1)`.
#[must_use]
pub fn format_change(change: &Counterfactual, units: &dyn Units) -> String {
    TextRenderer { units }.change(change)
}

/// One reason: `2 lack ram (largest free_text: 3 GiB on m1)`.
#[must_use]
pub fn format_reason(reason: &ReasonCount, units: &dyn Units) -> String {
    match reason.code {
        FITS => {
            let takes = if reason.machines == 1 { "takes" } else { "take" };
            format!("{} {takes} it as they are", group_digits(u64::from(reason.machines)))
        }
        _ => TextRenderer { units }.reason(reason),
    }
}

impl Explanation {
    /// Machines on which the task fits as things are.
    #[must_use]
    pub fn fitting(&self) -> u32 {
        self.reasons.iter().filter(|r| r.code == FITS).map(|r| r.machines).sum()
    }
}

struct TextRenderer<'a> {
    units: &'a dyn Units,
}

impl TextRenderer<'_> {
    /// `4 GiB ram`, `2 cores`.
    fn requested_text(&self, dimension: Dimension, value: u64) -> String {
        self.amount_text(dimension, value, Rounding::Up)
    }

    fn free_text(&self, dimension: Dimension, value: u64) -> String {
        self.units.amount(dimension, value, Rounding::Down)
    }

    fn amount_text(&self, dimension: Dimension, value: u64, rounding: Rounding) -> String {
        let amount = self.units.amount(dimension, value, rounding);
        format!("{amount} {dimension}")
    }

    fn headline(&self, e: &Explanation) -> String {
        let total = group_digits(u64::from(e.machines_total));
        let fitting = e.fitting();
        if e.machines_total == 0 {
            return "pending: the cell has no machines.".into();
        }
        if let (true, Some(gang)) = (fitting > 0, e.gang.filter(|gang| *gang > 1)) {
            let gang = group_digits(u64::from(gang));
            return format!(
                "pending: one task would fit on {} of {}, but all {gang} of the gang must find a \
                 place together.",
                group_digits(u64::from(fitting)),
                pluralize(u64::from(e.machines_total), "machine")
            );
        }
        if fitting > 0 && e.machines_total == 1 {
            return "pending: fits on the only machine as it is now.".into();
        }
        if fitting > 0 {
            let fitting = group_digits(u64::from(fitting));
            return format!("pending: fits on {fitting} of {total} machines as they are now.");
        }
        let needs = self.needs(e);
        let (subject, needs) = match needs.as_slice() {
            [] => return format!("pending: no machine of {total} can take it."),
            [(text, 1)] => ("it", vec![text.clone()]),
            [(text, _)] => ("them", vec![text.clone()]),
            [_, _] => ("both", needs.into_iter().map(|(text, _)| text).collect()),
            _ => ("all of it", needs.into_iter().map(|(text, _)| text).collect()),
        };
        let among: u32 =
            e.reasons.iter().filter(|r| is_resolvable_by_eviction(r)).map(|r| r.machines).sum();
        let names = match among {
            all if all == e.machines_total => format!("no machine of {total} has {subject} free"),
            1 => format!("the only machine it may run on lacks {subject}"),
            some => {
                let some = group_digits(u64::from(some));
                format!("none of the {some} machines it may run on has {subject} free")
            }
        };
        format!("pending: needs {}; {names}.", join_list(&needs))
    }

    /// What some machine is short of, devices first, each with how many things it is.
    fn needs(&self, e: &Explanation) -> Vec<(String, u64)> {
        let mut needs: Vec<(String, u64)> = Vec::new();
        for reason in &e.reasons {
            let need = match &reason.detail {
                Detail::Device { kind, models, asked: requested, milli, .. } => {
                    (device_text(kind, models, *requested, *milli), u64::from(*requested))
                }
                Detail::Named { name, asked: requested, .. } => {
                    (format!("{} {name}", group_digits(*requested)), *requested)
                }
                _ => continue,
            };
            needs.push(need);
        }
        let is_short = |d: &Dimension| e.reasons.iter().any(|r| is_short_of(r, *d));
        let dimensions = Dimension::ALL.into_iter().filter(is_short);
        needs.extend(dimensions.map(|d| (self.requested_text(d, e.limits.get(d)), 1)));
        needs
    }

    fn reasons(&self, e: &Explanation) -> String {
        let refusing = e.reasons.iter().filter(|r| r.code != FITS);
        let mut parts: Vec<String> =
            refusing.clone().take(MAX_REASONS).map(|r| self.reason(r)).collect();
        let rest: u32 = refusing.skip(MAX_REASONS).map(|r| r.machines).sum();
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
        let n = reason.machines;
        let machines = group_digits(u64::from(n));
        let [is, lack, fail, have, do_not] = match n {
            1 => ["is", "lacks", "fails", "has", "does not"],
            _ => ["are", "lack", "fail", "have", "do not"],
        };
        let on = |machine: &Option<super::MachineRef>, available: u64| match machine {
            Some(machine) if available > 0 => format!(" on {}", machine.name),
            _ => String::new(),
        };
        match &reason.detail {
            Detail::Nothing => match reason.code {
                "machine-down" => format!("{machines} {is} down"),
                "machine-draining" => format!("{machines} {is} draining"),
                "crashed-here" => format!("on {machines} it crashed too often"),
                "machine-short" => format!("{machines} {is} short itself, open to production only"),
                "no-alloc-here" => format!("{machines} {have} no alloc of its set"),
                code => format!("{machines} {fail} for {code}"),
            },
            Detail::Constraint { constraint, .. } => {
                format!("{machines} {fail} the constraint {constraint}")
            }
            Detail::Tasks { most } => {
                format!("{machines} {have} as many tasks as a machine may: {}", group_digits(*most))
            }
            Detail::Volume(host_volume) => format!("{machines} {do_not} lend {host_volume}"),
            Detail::Spread { domain, limit } => format!(
                "on {machines} the {} holds {limit} of the job's tasks already",
                domain_name(*domain)
            ),
            Detail::StaticPort { port, holders } => {
                let mut named: Vec<String> = holders
                    .iter()
                    .map(|h| format!("{} on {}", h.task.name, h.machine.name))
                    .collect();
                if holders.len() < n as usize {
                    named.push("others".into());
                }
                format!("on {machines} port {port} is taken (by {})", join_list(&named))
            }
            Detail::DynamicPorts { asked: requested, available, machine } => format!(
                "{machines} {lack} free ports (asked {requested}, most free: {available}{})",
                on(machine, *available)
            ),
            Detail::Device { kind, models, asked: requested, milli, available, machine } => {
                let (of, share) = (models_text(models), share_text(*milli));
                format!(
                    "{machines} {lack} {kind}{of} (asked {requested}{share}, at best {available}{})",
                    on(machine, *available)
                )
            }
            Detail::Named { name, asked: requested, available, machine } => format!(
                "{machines} {lack} {name} (asked {}, most free: {}{})",
                group_digits(*requested),
                group_digits(*available),
                on(machine, *available)
            ),
            Detail::Resource { dimension, available, machine, .. } => {
                let largest = self.free_text(*dimension, *available);
                format!(
                    "{machines} {lack} {dimension} (most free: {largest}{})",
                    on(machine, *available)
                )
            }
        }
    }

    fn changes(&self, e: &Explanation) -> Option<String> {
        if e.fitting() > 0 {
            return None;
        }
        // Nobody runs a task without CPU or memory, so that is no advice.
        let sensible = |c: &&Counterfactual| match c.change {
            Change::Resource { at_most, .. } => at_most > 0,
            Change::TwoResources(both) => both.iter().all(|lowered| lowered.at_most > 0),
            _ => true,
        };
        let mut suggested = e.counterfactual.iter().chain(&e.alternatives).filter(sensible);
        let Some(nearest) = suggested.next() else {
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
        let others: Vec<String> =
            suggested.take(MAX_ALTERNATIVES).map(|c| self.change(c)).collect();
        if !others.is_empty() {
            text.push_str(&format!(" Or if {}.", others.join("; or if ")));
        }
        Some(text)
    }

    fn change(&self, c: &Counterfactual) -> String {
        let location = match &c.alloc {
            Some(alloc) => format!("{} in {}", c.machine.name, alloc.name),
            None => c.machine.name.clone(),
        };
        let n = u64::from(c.machines);
        let location = match n {
            0 | 1 => format!("on {location}"),
            _ => format!("on {} machines, such as {location}", group_digits(n)),
        };
        let lowered = |dimension: Dimension, at_most: u64| {
            format!("{dimension} <= {}", self.free_text(dimension, at_most))
        };
        match &c.change {
            Change::Resource { dimension, at_most, .. } => {
                format!("{} ({location})", lowered(*dimension, *at_most))
            }
            Change::TwoResources([a, b]) => format!(
                "{} and {} ({location})",
                lowered(a.dimension, a.at_most),
                lowered(b.dimension, b.at_most)
            ),
            Change::Ports { at_most, .. } => {
                format!("it asked for {} ({location})", pluralize(*at_most, "port"))
            }
            Change::Named { name, at_most: 0, .. } => format!("it did without {name} ({location})"),
            Change::Named { name, at_most, .. } => {
                format!("{name} <= {} ({location})", group_digits(*at_most))
            }
            Change::DeviceCount { kind, at_most: 0, .. } => {
                format!("it did without {kind} ({location})")
            }
            Change::DeviceCount { kind, at_most, .. } => {
                format!("it asked for {at_most} {kind} ({location})")
            }
            Change::DeviceShares { kind, at_most, .. } => {
                format!("its share of one {kind} were {at_most}/{WHOLE_DEVICE} ({location})")
            }
            Change::Spread { domain, at_least, .. } => format!(
                "{at_least} of its tasks were allowed in one {} ({location})",
                domain_name(*domain)
            ),
            Change::DropConstraint { constraint, .. } => {
                format!("the constraint {constraint} were dropped ({location})")
            }
            Change::DropVolume(host_volume) => format!("it did without {host_volume} ({location})"),
            Change::DropStaticPort { port } => {
                format!("it did not insist on port {port} ({location})")
            }
            Change::DrainEnded => format!("draining machines were open again ({location})"),
            Change::MachineBack => format!("machines that are down came back ({location})"),
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
        if e.reasons.iter().any(|reason| reason.code == "machine-short") {
            return Some("A machine that is short takes it when that has passed.".into());
        }
        let too_large: Vec<String> = e
            .too_large
            .iter()
            .map(|t| {
                let excess = self.requested_text(t.dimension, t.asked);
                format!("{excess}, the largest has {}", self.free_text(t.dimension, t.largest))
            })
            .collect();
        let lacks_alloc = |r: &ReasonCount| r.code == "no-alloc-here" && r.machines > 0;
        match too_large.is_empty() {
            true if e.reasons.iter().any(lacks_alloc) => {
                Some("It runs only inside an alloc of its set: it waits for one.".into())
            }
            true => Some(
                "As asked, no machine could take it even when empty: waiting will not help.".into(),
            ),
            false => {
                let asked = join_list(&too_large);
                Some(format!("No machine is large enough even when empty: asked {asked}."))
            }
        }
    }

    fn victims(&self, victims: &Victims) -> String {
        let named = victims.tasks.iter().take(MAX_VICTIMS);
        let mut names: Vec<String> =
            named.map(|v| format!("{} (priority {})", v.task.name, v.priority.0)).collect();
        if victims.tasks.len() > MAX_VICTIMS {
            names.push(format!("{} more", victims.tasks.len() - MAX_VICTIMS));
        }
        let names = format!("{} on {}", join_list(&names), victims.machine.name);
        if victims.allowed {
            return format!("It may evict {names}; a pass with preemption would.");
        }
        let mut why: Vec<String> = Vec::new();
        for obstacle in victims.tasks.iter().filter_map(|v| v.obstacle.as_ref()) {
            let sentence = obstacle_text(obstacle);
            if !why.contains(&sentence) {
                why.push(sentence);
            }
        }
        format!("Room would need {names} evicted, which is not allowed: {}.", join_list(&why))
    }

    fn queue(&self, e: &Explanation) -> Option<String> {
        let queue_position = e.standing?;
        if let Some(wait) = queue_position.tried_in {
            return Some(format!("Next try in {} (back-off or lease).", units::format_span(wait)));
        }
        let position = group_digits(u64::from(queue_position.position?));
        let waiting = group_digits(u64::from(queue_position.waiting));
        let higher = group_digits(u64::from(queue_position.higher_priority));
        Some(format!("Number {position} of {waiting} in the queue, {higher} of higher priority."))
    }
}

fn is_short_of(reason: &ReasonCount, dimension: Dimension) -> bool {
    matches!(&reason.detail, Detail::Resource { dimension: d, .. } if *d == dimension)
}

/// Whether the machines lack something that holders give back, and nothing else keeps it away.
fn is_resolvable_by_eviction(reason: &ReasonCount) -> bool {
    use Detail::{Device, Named, Resource};
    matches!(&reason.detail, Device { .. } | Named { .. } | Resource { .. })
}

/// `2 gpu`, `1 gpu (a100 or t4) with 500/1000 free_text`.
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

/// Breaks a line at spaces; continuation lines are indented. A longer word stands alone.
fn wrap(line: &str) -> String {
    let mut out = String::new();
    let mut column = 0;
    for word in line.split_whitespace() {
        let length = word.chars().count();
        if column > 0 && column + 1 + length > COLUMNS {
            out.push_str("\n  ");
            column = 2;
        } else if column > 0 {
            out.push(' ');
            column += 1;
        }
        out.push_str(word);
        column += length;
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::explain::units::StandardUnits;
    use cellwright_cell::resource::Resources;

    #[test]
    fn a_cell_without_machines_is_all_there_is_to_say() {
        let requested = Resources::new(1000, 1 << 30, 0, 0);
        let waiting =
            Explanation { limits: requested, reservation: requested, ..Explanation::default() };
        assert_eq!(render(&waiting, &StandardUnits), "pending: the cell has no machines.");
    }
}
