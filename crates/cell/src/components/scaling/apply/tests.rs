//! A scaled job: measured, sized, taken in hand, updated and forgotten.

use super::*;
use crate::apply::fixture::{Cell, job, key, name};
use crate::command::{Actor, ApplyOutcome, Command, ControllerName};
use crate::components::scaling;
use crate::name::Name;
use crate::scale::{ScaleRule, ScaleVeto, SignalName};
use crate::spec::JobSpec;
use crate::time::Time;

const JOB: JobId = JobId(0);

/// `ubar/jfoo` of two tasks, scaled between one and five.
fn spec() -> JobSpec {
    let mut spec = job("jfoo", 2, 100);
    let mut policy = ScalePolicy::between(1, 5);
    policy.target.cpu = Some(60);
    spec.scale = Some(policy);
    spec
}

fn cell() -> Cell {
    let mut cell = Cell::with_machines(1);
    cell.submit(&spec());
    cell
}

fn measure(need: u32) -> scaling::Command {
    let load = JobLoad {
        job: JOB,
        need: Some((SignalName::Cpu, need)),
        missing: 0,
        peak_cpu: 7,
        peak_ram: 8,
        oom_limit: 0,
        untold: None,
    };
    scaling::Command::Measure { loads: vec![load] }
}

/// From the present size to `to` tasks.
fn decide(cell: &Cell, to: u32) -> scaling::Command {
    let from = ScaleSize::of(cell.state.jobs().get(JOB).unwrap().spec());
    let to = ScaleSize { count: to, ..from };
    let decision = Decision {
        at: Time(cell.now),
        from,
        want: to,
        to,
        rule: ScaleRule::Target(SignalName::Cpu),
        vetoes: vec![ScaleVeto::Step],
        measured: Some(4000),
        expected: 4000,
    };
    scaling::Command::Decide { job: JOB, decision }
}

fn count(cell: &Cell) -> u32 {
    cell.state.jobs().get(JOB).unwrap().spec().count
}

fn row(cell: &Cell) -> &Scaling {
    cell.state.scaling_of(JOB).unwrap().1
}

#[test]
fn a_job_is_measured_and_sized_and_says_why() {
    let mut cell = cell();
    // Nothing is decided about what was never measured.
    let unknown = decide(&cell, 4);
    assert_eq!(cell.ok(unknown), Done::Unchanged);
    assert_eq!(cell.ok(measure(4000)), Done::Applied);
    assert_eq!(cell.event_lines, ["ubar/jfoo needs 4 tasks by cpu: what it uses was measured"]);
    assert_eq!(row(&cell).measured.as_ref().map(|last| last.need), Some(4000));
    let grow = decide(&cell, 4);
    assert_eq!(cell.ok(grow.clone()), Done::Applied);
    assert_eq!(count(&cell), 4);
    assert_eq!(cell.event_lines[0], "ubar/jfoo resized to 4 tasks: as the rules of scaling say");
    let why = "ubar/jfoo is scaled from 2 to 4 tasks, because cpu is off its target, but one step \
               is not longer: as the rules of scaling say";
    assert_eq!(cell.event_lines.last().map(String::as_str), Some(why));
    assert_eq!(row(&cell).memory.grown_at, Time(cell.now));
    // It was made of another size.
    assert_eq!(cell.ok(grow), Done::Unchanged);
    assert_eq!(count(&cell), 4);
}

#[test]
fn no_size_is_taken_beyond_bounds_and_quota() {
    let mut cell = cell();
    cell.ok(measure(4000));
    let text = |cell: &mut Cell, to| {
        let command = decide(cell, to);
        cell.rejection_text(command)
    };
    assert_eq!(text(&mut cell, 6), "field to.count: value 6 is not valid; allowed: 1 to 5");
    let mut cell = Cell::with_machines(1);
    cell.submit(&JobSpec { scale: Some(ScalePolicy::between(1, 50)), ..spec() });
    cell.ok(measure(4000));
    assert!(text(&mut cell, 11).starts_with("quota of ubar in band batch does not suffice"));
    assert_eq!((count(&cell), row(&cell).decision.is_none()), (2, true));
    let scaling = Actor::Controller(ControllerName::Scaling);
    for other in [Actor::User(name("ubar")), Actor::Controller(ControllerName::Cron)] {
        let grow = decide(&cell, 3);
        assert!(cell.apply(other, grow).is_err());
    }
    let grow = decide(&cell, 3);
    assert_eq!(cell.apply(scaling, grow), Ok(Done::Applied));
}

#[test]
fn a_hand_on_the_size_takes_it_and_gives_it_back() {
    let mut cell = cell();
    cell.ok(measure(4000));
    let by_hand =
        Command::ResizeJob { job: key("ubar/jfoo"), size: JobSize::tasks(3), expect: None };
    cell.ok(by_hand);
    assert!(row(&cell).manual);
    let last = "ubar/jfoo is sized by hand: requested";
    assert!(cell.event_lines.iter().any(|line| line == last), "{:?}", cell.event_lines);
    let grow = decide(&cell, 5);
    assert_eq!(cell.ok(grow), Done::Unchanged);
    let mode = |manual| scaling::Command::SetMode { job: key("ubar/jfoo"), manual };
    assert_eq!(cell.send_as("ubar", mode(false)), Ok(Done::Applied));
    assert_eq!(cell.event_lines, ["ubar/jfoo is sized by the cell: requested"]);
    assert_eq!(cell.ok(mode(false)), Done::Unchanged);
    let grow = decide(&cell, 5);
    assert_eq!(cell.ok(grow), Done::Applied);
    assert!(!row(&cell).manual, "the cell's own hand is none");
    cell.ok(Command::AddUser { name: name("ufoo") });
    assert!(cell.send_as("ufoo", mode(true)).is_err());
}

#[test]
fn advice_changes_nothing_and_is_kept() {
    let mut cell = Cell::with_machines(1);
    let mut advised = spec();
    if let Some(policy) = &mut advised.scale {
        policy.advise = true;
    }
    cell.submit(&advised);
    cell.ok(measure(4000));
    let grow = decide(&cell, 4);
    assert_eq!(cell.ok(grow.clone()), Done::Unchanged);
    let scaling::Command::Decide { job, mut decision } = grow else { panic!("{grow:?}") };
    (decision.to, decision.vetoes) = (decision.from, vec![ScaleVeto::Advise]);
    let advice = scaling::Command::Decide { job, decision };
    assert_eq!(cell.ok(advice.clone()), Done::Applied);
    let text = "ubar/jfoo keeps its size; it would go from 2 to 4 tasks, because cpu is off its \
                target, but its policy asks for advice alone: as the rules of scaling say";
    assert_eq!(cell.event_lines, [text]);
    assert_eq!(cell.ok(advice), Done::Unchanged, "it is said once");
}

fn file(owner: &Name, count: u32, max: u32) -> Command {
    let mut spec = spec();
    spec.count = count;
    spec.priority.0 += 1;
    if let Some(policy) = &mut spec.scale {
        policy.max = max;
    }
    Command::ApplyJob { owner: owner.clone(), spec: Box::new(spec), expect: None, again: false }
}

#[test]
fn an_update_keeps_the_size_that_was_chosen_since() {
    let mut cell = cell();
    cell.ok(measure(4000));
    let grow = decide(&cell, 4);
    cell.ok(grow);
    // The same file again is no change, whatever it says of the first size.
    let again = Command::ApplyJob {
        owner: name("ubar"),
        spec: Box::new(spec()),
        expect: None,
        again: false,
    };
    match cell.ok(again) {
        Done::Job { became, .. } => assert_eq!(became, ApplyOutcome::Unchanged),
        other => panic!("{other:?}"),
    }
    cell.ok(file(&name("ubar"), 2, 5));
    assert_eq!(count(&cell), 4);
    let mut spec = (**cell.state.jobs().get(JOB).unwrap().spec()).clone();
    spec.count = 1;
    spec.priority.0 += 1;
    cell.ok(Command::CloseUpdate { job: key("ubar/jfoo"), expect: None });
    cell.ok(Command::UpdateJob { owner: name("ubar"), spec: Box::new(spec), expect: None });
    assert_eq!(count(&cell), 4);
    cell.ok(Command::CloseUpdate { job: key("ubar/jfoo"), expect: None });
    // A new bound holds at once.
    let mut low = self::spec();
    low.scale = Some(ScalePolicy::between(1, 3));
    cell.ok(Command::ApplyJob {
        owner: name("ubar"),
        spec: Box::new(low),
        expect: None,
        again: false,
    });
    assert_eq!(count(&cell), 3);
}

#[test]
fn loads_of_another_target_are_forgotten_and_peaks_are_not() {
    let mut cell = cell();
    cell.ok(measure(4000));
    let mut other = spec();
    if let Some(policy) = &mut other.scale {
        policy.target.cpu = Some(30);
    }
    cell.ok(Command::ApplyJob {
        owner: name("ubar"),
        spec: Box::new(other),
        expect: None,
        again: false,
    });
    cell.now += 60_000;
    cell.ok(measure(1000));
    let memory = &row(&cell).memory;
    assert_eq!(memory.recent.len(), 1);
    assert_eq!(memory.peaks.last().map(|day| day.ram), Some(8));
}

#[test]
fn what_has_ended_or_is_not_scaled_is_forgotten() {
    let mut cell = cell();
    cell.ok(measure(4000));
    let forget = scaling::Command::Forget { job: JOB };
    assert_eq!(cell.ok(forget.clone()), Done::Unchanged);
    cell.ok(Command::StopJob { job: key("ubar/jfoo"), expect: None });
    assert_eq!(cell.ok(measure(5000)), Done::Unchanged);
    assert_eq!(cell.ok(forget), Done::Applied);
    assert_eq!(cell.event_lines, ["ubar/jfoo is scaled no more: it has ended, or has no policy"]);
    assert_eq!(cell.state.scaling_of(JOB), None);
    cell.submit(&job("jbar", 1, 100));
    let plain = scaling::Command::SetMode { job: key("ubar/jbar"), manual: true };
    let why = "job ubar/jbar has no policy of scaling";
    assert!(cell.rejection_text(plain).contains(why));
}
