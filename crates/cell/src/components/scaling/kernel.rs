//! Scaling in the tests of the kernel (`tests/kernel`, of which this is a module): samples for the
//! pinned bytes, random commands, and their words in transcripts.

use crate::build;
use crate::draw::Draw;
use crate::options::seconds;
use crate::tokens_and_blobs::parse_key;
use crate::wire::{Pins, every_variant, one};
use cellwright_cell::command;
use cellwright_cell::cron::schedule::Schedule;
use cellwright_cell::id::JobId;
use cellwright_cell::name::{Name, Token};
use cellwright_cell::scale::{
    Decision, MetricKind, MetricSource, MetricTarget, ScalePolicy, ScaleRule, ScaleSize, ScaleVeto,
    ScheduledMinimum, SignalName, Untold,
};
use cellwright_cell::scaling::{Command, Event, JobLoad, ScalingChange, ScalingId};
use cellwright_cell::state::State;
use cellwright_cell::time::{Span, Time};

pub fn commands() -> Vec<Command> {
    let load = JobLoad {
        job: JobId(3),
        need: Some((SignalName::Ram, 2500)),
        missing: 1,
        peak_cpu: 400,
        peak_ram: 1 << 20,
        oom_limit: 1 << 21,
        untold: Some(untold()),
    };
    vec![
        Command::Measure { loads: vec![load] },
        Command::Decide { job: JobId(3), decision: decision() },
        Command::SetMode { job: build::job_key("ada", "web"), manual: true },
        Command::Forget { job: JobId(3) },
    ]
}

/// One event of each change.
pub fn events() -> Vec<Event> {
    let changes = [
        ScalingChange::Measured { need: Some((SignalName::Cpu, 2500)) },
        ScalingChange::Decided { decision: decision() },
        ScalingChange::Decided { decision: Decision { to: decision().from, ..decision() } },
        ScalingChange::ModeChanged { manual: true },
        ScalingChange::Forgotten,
    ];
    changes.map(|change| Event { scaling: ScalingId(1), job: JobId(3), change }).to_vec()
}

fn untold() -> Untold {
    Untold { metric: metric(), tasks: 1, of: 2 }
}

fn metric() -> Token {
    Token::new("requests_total").expect("a token")
}

fn decision() -> Decision {
    let size = |count| ScaleSize { count, cpu: 500, ram: 1 << 20 };
    Decision {
        at: Time(60_000),
        from: size(2),
        want: size(9),
        to: size(6),
        rule: ScaleRule::Target(SignalName::Cpu),
        vetoes: vec![ScaleVeto::Step],
        measured: Some(8500),
        expected: 8700,
    }
}

pub fn pin(pins: &mut Pins) {
    every_variant(pins, "ScalingCommand", &commands());
    let mut changes: Vec<ScalingChange> = events().into_iter().map(|event| event.change).collect();
    // A decision that changes nothing is the same variant.
    changes.remove(2);
    every_variant(pins, "ScalingChange", &changes);
    let by = SignalName::Cpu;
    let rules = [
        ScaleRule::Steady,
        ScaleRule::Target(by.clone()),
        ScaleRule::Trend,
        ScaleRule::Swing,
        ScaleRule::SameTimeEarlier,
        ScaleRule::Schedule,
        ScaleRule::Bounds,
        ScaleRule::Peak(by),
        ScaleRule::OutOfMemory,
    ];
    every_variant(pins, "ScaleRule", &rules);
    every_variant(pins, "ScaleVeto", &ScaleVeto::ALL);
    every_variant(
        pins,
        "SignalName",
        &[SignalName::Cpu, SignalName::Ram, SignalName::Metric(metric())],
    );
    let mut policy = ScalePolicy::between(2, 9);
    policy.target.cpu = Some(60);
    policy.schedule.push(ScheduledMinimum {
        from: Schedule::new("0 8 * * mon-fri").expect("a schedule"),
        lasts: Span::seconds(3600),
        min: 4,
    });
    policy.target.metrics.push(MetricTarget {
        name: metric(),
        per_task: 100_500,
        kind: MetricKind::Rate,
        labels: [(Token::new("code").expect("a token"), "200".to_owned())].into(),
    });
    policy.metrics = Some(MetricSource::File("metrics.prom".into()));
    one(pins, "ScalePolicy", &policy);
    let http = MetricSource::Http { port: 1, path: "/metrics".into() };
    every_variant(pins, "MetricSource", &[http, MetricSource::File("metrics.prom".into())]);
    every_variant(pins, "MetricKind", &[MetricKind::Value, MetricKind::Rate]);
}

pub fn owner(command: &Command) -> Option<Name> {
    match command {
        Command::SetMode { job, .. } => Some(job.user.clone()),
        _ => None,
    }
}

pub fn random(state: &State, draw: &mut Draw) -> command::Command {
    let live = state.jobs().iter().filter(|(_, row)| !row.is_dead()).map(|(id, _)| id);
    let live: Vec<JobId> = live.collect();
    let job = draw.pick(&live).copied().unwrap_or(JobId(draw.below(9) as u32));
    let command = match draw.below(12) {
        0..5 => Command::Measure { loads: vec![load(job, draw)] },
        5..9 => Command::Decide { job, decision: random_decision(state, job, draw) },
        9 | 10 => {
            let key = state.job_key(job).unwrap_or_else(|| build::job_key("u0", "j0"));
            Command::SetMode { job: key, manual: draw.one_in(2) }
        }
        _ => Command::Forget { job: JobId(draw.below(20) as u32) },
    };
    command.into()
}

fn load(job: JobId, draw: &mut Draw) -> JobLoad {
    JobLoad {
        job,
        need: (!draw.one_in(4)).then(|| (SignalName::Cpu, draw.below(9000) as u32)),
        missing: draw.below(3) as u32,
        peak_cpu: draw.below(9),
        peak_ram: draw.below(9),
        oom_limit: if draw.one_in(4) { draw.below(9) } else { 0 },
        untold: draw.one_in(4).then(untold),
    }
}

/// Mostly one that fits the job as it is.
fn random_decision(state: &State, job: JobId, draw: &mut Draw) -> Decision {
    let present = state.jobs().get(job).map(|row| ScaleSize::of(row.spec()));
    let from = present.filter(|_| !draw.one_in(10)).unwrap_or_default();
    let to = ScaleSize { count: 1 + draw.below(6) as u32, ..from };
    let at = if draw.one_in(20) { Time::NEVER } else { state.now() };
    Decision { at, from, want: to, to, ..decision() }
}

/// Parses commands of transcripts.
pub fn parse_command(verb: &str, rest: &[&str]) -> Result<Option<command::Command>, String> {
    let number = |text: &str| text.parse::<u64>().map_err(|_| format!("a number, not {text}"));
    let command = match (verb, rest) {
        ("measure", [job, need]) => {
            let (job, need) = (JobId(number(job)? as u32), number(need)? as u32);
            let need = Some((SignalName::Cpu, need));
            let (peak_cpu, peak_ram) = (0, 0);
            let (missing, oom_limit, untold) = (0, 0, None);
            let load = JobLoad { job, need, missing, peak_cpu, peak_ram, oom_limit, untold };
            Command::Measure { loads: vec![load] }
        }
        ("scale", [job, from, to, limits, at]) => {
            let (cpu, ram) = limits.split_once('/').ok_or("MILLICORES/BYTES")?;
            let (cpu, ram) = (number(cpu)?, number(ram)?);
            let size = |count: u64| ScaleSize { count: count as u32, cpu, ram };
            let (from, to) = (size(number(from)?), size(number(to)?));
            let at = Time::ZERO.plus(seconds(at)?);
            let decision = Decision { at, from, want: to, to, vetoes: Vec::new(), ..decision() };
            Command::Decide { job: JobId(number(job)? as u32), decision }
        }
        ("scale-mode", [key, mode]) => {
            Command::SetMode { job: parse_key(key)?, manual: *mode == "manual" }
        }
        ("forget-scaling", [job]) => Command::Forget { job: JobId(number(job)? as u32) },
        _ => return Ok(None),
    };
    Ok(Some(command.into()))
}
