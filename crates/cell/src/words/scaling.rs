//! Decisions of scaling in words.

use crate::resource::Dimension;
use crate::scale::{Decision, ScaleRule, ScaleSize, ScaleVeto, SignalName};
use crate::units::{Rounding, amount, pluralize};

/// `2.5`, of thousandths of tasks.
#[must_use]
pub fn tasks(need: u32) -> String {
    thousandths(need.into())
}

/// The same of any number.
#[must_use]
pub fn thousandths(number: u64) -> String {
    let text = format!("{}.{:03}", number / 1000, number % 1000);
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

#[must_use]
pub fn signal(name: &SignalName) -> &str {
    match name {
        SignalName::Cpu => "cpu",
        SignalName::Ram => "memory",
        SignalName::Metric(name) => name.as_str(),
    }
}

/// Why a size is wanted.
#[must_use]
pub fn rule(rule: &ScaleRule) -> String {
    match rule {
        ScaleRule::Steady => "its size fits".into(),
        ScaleRule::Target(by) => format!("{} is off its target", signal(by)),
        ScaleRule::Trend => "its load rises".into(),
        ScaleRule::Swing => "its load swings".into(),
        ScaleRule::SameTimeEarlier => "its load rose at this time on earlier days".into(),
        ScaleRule::Schedule => "its schedule says so".into(),
        ScaleRule::Bounds => "it was out of its bounds".into(),
        ScaleRule::Peak(by) => format!("its peaks of {} are others than its limit", signal(by)),
        ScaleRule::OutOfMemory => "a task was killed for want of memory".into(),
    }
}

/// What kept it from that size.
#[must_use]
pub fn veto(veto: ScaleVeto) -> String {
    let text = match veto {
        ScaleVeto::NotTold { tasks, of } => {
            return format!("{tasks} of {} did not tell it", pluralize(u64::from(of), "task"));
        }
        ScaleVeto::Max => "it has as many tasks as it may",
        ScaleVeto::Quota => "the quota of its owner has no room",
        ScaleVeto::Step => "one step is not longer",
        ScaleVeto::Stabilise => "it needed more within the last minutes",
        ScaleVeto::CoolDown => "it has just grown",
        ScaleVeto::GrowsSoon => "on earlier days it soon grew again",
        ScaleVeto::NotMeasured => "nothing was measured",
        ScaleVeto::TasksFail => "half of its tasks fail",
        ScaleVeto::UpdateOpen => "an update is open",
        ScaleVeto::Advise => "its policy asks for advice alone",
        ScaleVeto::Manual => "it is sized by hand",
    };
    text.to_owned()
}

/// `5 tasks of 0.5 cores and 1 GiB`.
#[must_use]
pub fn size(size: ScaleSize) -> String {
    let count = pluralize(u64::from(size.count), "task");
    let of = |dimension, value| amount(dimension, value, Rounding::Down);
    format!("{count} of {} and {}", of(Dimension::Cpu, size.cpu), of(Dimension::Ram, size.ram))
}

/// From one size to another, with what of it is different.
fn change(from: ScaleSize, to: ScaleSize) -> String {
    if (from.cpu, from.ram) == (to.cpu, to.ram) {
        format!("from {} to {}", from.count, pluralize(u64::from(to.count), "task"))
    } else {
        format!("from {} to {}", size(from), size(to))
    }
}

/// What was decided, and why.
#[must_use]
pub fn decision(decision: &Decision) -> String {
    let Decision { from, want, to, .. } = decision;
    let why = rule(&decision.rule);
    let held: Vec<String> = decision.vetoes.iter().map(|held| veto(*held)).collect();
    let held = if held.is_empty() { String::new() } else { format!(", but {}", held.join(", ")) };
    if from != to {
        format!("is scaled {}, because {why}{held}", change(*from, *to))
    } else if let (Some(by), true) = (unknown(decision), from == want) {
        let held = held.trim_start_matches(", but ");
        format!("keeps its size; what {by} asks for is not known: {held}")
    } else if from != want {
        format!("keeps its size; it would go {}, because {why}{held}", change(*from, *want))
    } else {
        format!("keeps its size, because {why}{held}")
    }
}

/// What was not told by all, where that is why the size stays.
fn unknown(decision: &Decision) -> Option<&str> {
    let ScaleRule::Target(by) = &decision.rule else { return None };
    let untold = |veto: &ScaleVeto| matches!(veto, ScaleVeto::NotTold { .. });
    decision.vetoes.iter().any(untold).then(|| signal(by))
}

/// The same in codes, for history.
#[must_use]
pub fn detail(decision: &Decision) -> String {
    let Decision { from, want, to, .. } = decision;
    let mut text = format!("{} to {} tasks", from.count, to.count);
    if from.cpu != to.cpu {
        text.push_str(&format!(", cpu {} to {}", from.cpu, to.cpu));
    }
    if from.ram != to.ram {
        text.push_str(&format!(", ram {} to {}", from.ram, to.ram));
    }
    text.push_str(&format!(", rule {}, want {}", decision.rule.code(), want.count));
    if !decision.vetoes.is_empty() {
        let vetoes: Vec<&str> = decision.vetoes.iter().map(|veto| veto.as_str()).collect();
        text.push_str(&format!(", vetoed by {}", vetoes.join(" ")));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::name::Token;
    use crate::time::Time;

    #[test]
    fn a_decision_says_what_why_and_what_held_it() {
        let size = |count| ScaleSize { count, cpu: 500, ram: 1 << 30 };
        let made = |from, want, to, rule, vetoes: &[ScaleVeto]| Decision {
            at: Time(0),
            from: size(from),
            want: size(want),
            to: size(to),
            rule,
            vetoes: vetoes.to_vec(),
            measured: Some(2500),
            expected: 2500,
        };
        let grown = made(2, 9, 6, ScaleRule::Target(SignalName::Cpu), &[ScaleVeto::Step]);
        let want = "is scaled from 2 to 6 tasks, because cpu is off its target, but one step is \
                    not longer";
        assert_eq!(decision(&grown), want);
        assert_eq!(detail(&grown), "2 to 6 tasks, rule target, want 9, vetoed by step");
        let kept = made(2, 3, 2, ScaleRule::Trend, &[ScaleVeto::Advise]);
        let want = "keeps its size; it would go from 2 to 3 tasks, because its load rises, but \
                    its policy asks for advice alone";
        assert_eq!(decision(&kept), want);
        let by = SignalName::Metric(Token::new("queue").unwrap());
        let by_metric = made(2, 4, 4, ScaleRule::Target(by.clone()), &[]);
        assert_eq!(detail(&by_metric), "2 to 4 tasks, rule metric queue, want 4");
        let untold = [ScaleVeto::NotTold { tasks: 1, of: 2 }];
        let frozen = made(2, 2, 2, ScaleRule::Target(by), &untold);
        let want = "keeps its size; what queue asks for is not known: 1 of 2 tasks did not tell it";
        assert_eq!(decision(&frozen), want);
        let steady = made(2, 2, 2, ScaleRule::Steady, &[]);
        assert_eq!(decision(&steady), "keeps its size, because its size fits");
        assert_eq!(
            (tasks(2500), tasks(3000), tasks(7)),
            ("2.5".into(), "3".into(), "0.007".into())
        );
    }
}
