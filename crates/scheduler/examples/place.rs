//! How fast a scheduler places work when master and scheduler share one process: the copy follows
//! the log record, a pass plans, the plan goes through its durable form into the master's `apply`
//! and comes back to the copy as a record. No network, no disk, no raft: what is left is the
//! scheduler's own share, an upper bound for a cell. Times are CPU time of this one thread, so that
//! a busy machine does not spoil them.
//!
//! `cargo run --release -p cellwright-scheduler --example place [MACHINES]`

use cellwright_cell::command::{Command, Done, Entry, Request};
use cellwright_cell::constraint::Attributes;
use cellwright_cell::encode;
use cellwright_cell::id::MachineId;
use cellwright_cell::label::Labels;
use cellwright_cell::machine::{MachineSpec, PortRange};
use cellwright_cell::name::{Name, Token};
use cellwright_cell::priority::{Band, Priority};
use cellwright_cell::quota::Quota;
use cellwright_cell::resource::{MAX_QUANTITY, Resources};
use cellwright_cell::spec::JobSpec;
use cellwright_cell::state::State;
use cellwright_cell::time::Time;
use cellwright_messages::LogRecord;
use cellwright_sched::Solver;
use cellwright_scheduler::config::DEFAULT_CHUNK;
use cellwright_scheduler::pass::{self, PassRunner};
use cellwright_scheduler::{CellCopy, SchedulerShard};
use rustix::time::{ClockId, clock_gettime};
use std::error::Error;
use std::time::Duration;

const SEED: u64 = 1;

fn main() -> Result<(), Box<dyn Error>> {
    let machines = match std::env::args().nth(1) {
        Some(text) => text.parse().map_err(|_| format!("MACHINES {text:?}: not a number"))?,
        None => 5000,
    };
    println!("{machines} machines, seed {SEED}; times in ms");
    println!(
        "{:>8} {:>8} {:>9} {:>7} {:>7} {:>7} {:>7} {:>9}",
        "jobs", "tasks", "tasks/s", "follow", "pass", "apply", "echo", "per pass"
    );
    for (jobs, count) in [(1, 10_000), (1, 100_000), (10_000, 1)] {
        // All at once, then as submissions that keep arriving while passes run.
        for batch in [jobs, 500] {
            if batch <= jobs {
                run(machines, jobs, count, batch)?;
            }
        }
    }
    Ok(())
}

/// Time spent, by part.
#[derive(Default)]
struct TimeSpent {
    /// Submissions into the copy.
    follow: Duration,
    pass: Duration,
    /// The master's apply of plans, with encoding and decoding.
    apply: Duration,
    /// Plans into the copy.
    echo: Duration,
}

fn run(machines: u32, jobs: u32, count: u32, batch: u32) -> Result<(), Box<dyn Error>> {
    let mut master = Master::new(machines)?;
    let mut copy = CellCopy::load(master.index, 1, &encode::save(&master.state))?;
    let pass_runner = PassRunner {
        solver: Solver::default(),
        shard: SchedulerShard::new("")?,
        seed: SEED,
        chunk_size: DEFAULT_CHUNK,
    };
    let (mut spent, mut placed, mut passes) = (TimeSpent::default(), 0, 0u32);
    for first in (0..jobs).step_by(batch as usize) {
        let submit = |number| -> Result<Command, Box<dyn Error>> {
            let owner = Name::new("load")?;
            Ok(Command::SubmitJob { owner, spec: Box::new(job(number, count)?) })
        };
        let commands: Result<Vec<Command>, _> =
            (first..jobs.min(first + batch)).map(submit).collect();
        let record = master.apply(commands?)?;
        spent.follow += time_of(|| {
            copy.apply_record(&record)?;
            copy.sync();
            Ok(())
        })?;
        let mut planned = None;
        spent.pass += time_of(|| {
            planned = Some(pass_runner.pass(&mut copy, master.state.now()));
            Ok(())
        })?;
        passes += 1;
        for plan in planned.into_iter().flat_map(|planned| planned.chunks) {
            placed += plan.groups.iter().map(|group| group.assignments.len()).sum::<usize>();
            let name = Name::new("place")?;
            let mut record = None;
            spent.apply += time_of(|| {
                let requests = pass::proposal(&name, plan).requests;
                record = Some(master.apply_requests(requests)?);
                Ok(())
            })?;
            let record = record.ok_or("no record")?;
            spent.echo += time_of(|| Ok(copy.apply_record(&record)?))?;
        }
        spent.echo += time_of(|| {
            copy.sync();
            Ok(())
        })?;
    }
    if placed != jobs as usize * count as usize || copy.hash() != master.state.hash() {
        return Err(format!("{placed} placed, or the copy differs").into());
    }
    let total = spent.follow + spent.pass + spent.apply + spent.echo;
    let ms = |time: Duration| format!("{:.1}", time.as_secs_f64() * 1e3);
    println!(
        "{jobs:>8} {placed:>8} {:>9.0} {:>7} {:>7} {:>7} {:>7} {:>9}",
        placed as f64 / total.as_secs_f64(),
        ms(spent.follow),
        ms(spent.pass),
        ms(spent.apply),
        ms(spent.echo),
        placed as u32 / passes,
    );
    Ok(())
}

fn time_of(work: impl FnOnce() -> Result<(), Box<dyn Error>>) -> Result<Duration, Box<dyn Error>> {
    let start = cpu_time()?;
    work()?;
    Ok(cpu_time()?.saturating_sub(start))
}

/// CPU time of this thread. Not from `/proc`: that figure moves only with the kernel's ticks, which
/// are longer than what is measured here.
fn cpu_time() -> Result<Duration, Box<dyn Error>> {
    Ok(Duration::try_from(clock_gettime(ClockId::ThreadCPUTime))?)
}

struct Master {
    state: State,
    index: u64,
}

impl Master {
    fn new(machines: u32) -> Result<Master, Box<dyn Error>> {
        let mut master = Master { state: State::default(), index: 0 };
        let user = Name::new("load")?;
        let max = MAX_QUANTITY;
        let amount = Resources::new(max, max, max, max);
        let quota = Some(Quota { amount, from: Time::ZERO, until: Time::NEVER });
        let mut commands = vec![
            Command::AddUser { name: user.clone() },
            Command::SetQuota { user, band: Band::Batch, quota, expect: None },
        ];
        for number in 0..machines {
            commands.push(Command::AddMachine(machine(number)?));
        }
        master.apply(commands)?;
        let up = |number| Command::MachineUp { machine: MachineId(number), incarnation: 1 };
        master.apply((0..machines).map(up).collect())?;
        Ok(master)
    }

    fn apply(&mut self, commands: Vec<Command>) -> Result<LogRecord, Box<dyn Error>> {
        let request = |command| Request::from_default_sender(command, &self.state);
        self.apply_requests(commands.into_iter().map(request).collect())
    }

    /// Applies one entry through its durable form; every request in it must take effect.
    fn apply_requests(&mut self, requests: Vec<Request>) -> Result<LogRecord, Box<dyn Error>> {
        let entry = encode::save_entry(&Entry { now: Time(1000 + self.index), requests });
        let mut events = Vec::new();
        for verdict in self.state.apply(&encode::load_entry(&entry)?, &mut events) {
            if let Done::Partly(rejected) = verdict? {
                return Err(format!("refused: {:?}", rejected[0]).into());
            }
        }
        let previous = self.index;
        self.index += 1;
        Ok(LogRecord { index: self.index, previous, term: 1, entry })
    }
}

/// Three sizes of machines.
fn machine(number: u32) -> Result<MachineSpec, Box<dyn Error>> {
    let cores = [16_000, 32_000, 64_000][number as usize % 3];
    Ok(MachineSpec {
        name: Name::new(&format!("m{number}"))?,
        capacity: Resources::new(cores, cores << 22, cores << 24, 1 << 30),
        attributes: Attributes::new(),
        labels: Labels::new(),
        rack: Some(Token::new(&format!("r{}", number / 40))?),
        power: None,
        devices: Vec::new(),
        named: Vec::new(),
        ports: PortRange::default(),
        address: None,
    })
}

/// One core, 2 GiB; the jobs differ a little, as real ones do.
fn job(number: u32, count: u32) -> Result<JobSpec, Box<dyn Error>> {
    let more = u64::from(number % 8);
    let limits = Resources::new(1000 + 100 * more, (2 << 30) + (more << 27), 1 << 30, 1 << 20);
    let mut spec = JobSpec::new(Name::new(&format!("j{number}"))?, count, Priority(150), limits);
    spec.task.command = vec!["work".into()];
    Ok(spec)
}
