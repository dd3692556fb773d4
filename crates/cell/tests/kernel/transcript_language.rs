//! The language of transcripts. One line is one command; names stand for rows, so that transcripts
//! stay readable: `place ada/web/0 on m1`, `started ada/web/0`, `drain m1`.
//!
//! `as USER …` sends the line in that user's name, `id CLIENT.SEQUENCE …` with a request id.
//! Options are `key=value`; see `options.rs` for those of specs.

use crate::build;
use crate::components;
use crate::options::{Options, seconds};
use crate::schedule;
use crate::tokens_and_blobs;
use crate::world::{World, entry};
use cellwright_cell::bounds::Bounds;
use cellwright_cell::command::{
    Actor, Command, ControllerName, Entry, EvictCause, Observed, RequestId, ReservationChange,
    TaskReport, TasksToStart,
};
use cellwright_cell::event::Event;
use cellwright_cell::id::{MachineId, TaskId};
use cellwright_cell::job_size::JobSize;
use cellwright_cell::machine::ResourcePressureReport;
use cellwright_cell::name::JobKey;
use cellwright_cell::overcommit_eviction;
use cellwright_cell::plan::{Group, Plan, Victim};
use cellwright_cell::pressure_eviction;
use cellwright_cell::priority::Band;
use cellwright_cell::quota::{Capability, Quota};
use cellwright_cell::resource::Dimension;
use cellwright_cell::spec::JobKind;
use cellwright_cell::task::{ExitClass, TaskState};
use cellwright_cell::time::{Span, Time};
use cellwright_cell::words;

#[derive(Default)]
pub struct TranscriptRunner {
    pub world: World,
    now: Time,
}

type Words<'a> = &'a [&'a str];

fn unknown<T>(what: &str, word: &str) -> Result<T, String> {
    Err(format!("there is no {what} {word:?}"))
}

impl TranscriptRunner {
    /// Runs one line and returns the cell's answer.
    pub fn run_line(&mut self, line: &str) -> Result<Vec<String>, String> {
        let words: Vec<&str> = line.split_whitespace().collect();
        match &words[..] {
            ["wait", span] => {
                self.now = self.now.plus(seconds(span)?);
                Ok(Vec::new())
            }
            ["show", what] => self.show(what),
            ["who-must-leave", machine] => {
                let victims =
                    overcommit_eviction::victims(&self.world.state, self.machine(machine)?);
                Ok(victims.into_iter().map(|id| self.world.state.task_name(id)).collect())
            }
            ["who-leaves", machine] => {
                let next =
                    pressure_eviction::next_victim(&self.world.state, self.machine(machine)?);
                Ok(next.into_iter().map(|(id, _)| self.world.state.task_name(id)).collect())
            }
            ["due", cron] => {
                let id = self.world.state.cron_named(&self.job(cron)?);
                let row = id.and_then(|id| self.world.state.crons().get(id)).ok_or("a cron")?;
                let slots = cellwright_cell::cron::due_slots(row, self.now);
                Ok(slots.into_iter().map(|slot| format!("{}s", slot.0 / 1000)).collect())
            }
            // A machine is added together with a report of its agent.
            ["machine", name, options @ ..] => {
                let spec =
                    Options::new(options)?.machine(build::machine(name, build::room(0, 0, 0)))?;
                let mut lines = self.send(None, None, Command::AddMachine(spec))?;
                let machine = self.machine(name)?;
                let up = Command::MachineUp { machine, incarnation: 1 };
                lines.extend(self.send(None, None, up)?);
                Ok(lines)
            }
            words => self.request(words),
        }
    }

    fn request(&mut self, words: Words<'_>) -> Result<Vec<String>, String> {
        let (mut by, mut id, mut rest) = (None, None, words);
        loop {
            rest = match rest {
                ["as", user, more @ ..] => {
                    by = Some(actor(user)?);
                    more
                }
                ["id", number, more @ ..] => {
                    let (client, sequence) = number.split_once('.').ok_or("id CLIENT.SEQUENCE")?;
                    let number = |text: &str| text.parse().map_err(|_| "a number".to_owned());
                    id = Some(RequestId { client: number(client)?, sequence: number(sequence)? });
                    more
                }
                _ => break,
            };
        }
        let command = self.command(rest)?;
        self.send(by, id, command)
    }

    fn send(
        &mut self,
        by: Option<Actor>,
        id: Option<RequestId>,
        command: Command,
    ) -> Result<Vec<String>, String> {
        let by = by.unwrap_or_else(|| Actor::default_sender(&command, &self.world.state));
        let sent: Entry = entry(self.now, by, id, command);
        let before = self.world.state.clone();
        let outcome = self.world.apply(sent)?;
        let state = &self.world.state;
        // A removed row has a name only in the state before; a row without one is rendered as `#`,
        // and the machine of a task as gone.
        let told = |event: &Event| match words::event(state, event) {
            text if text.contains('#') || text.contains("that is gone") => {
                words::event(&before, event)
            }
            text => text,
        };
        let answers = outcome.verdicts.iter().map(|verdict| words::verdict(state, verdict));
        let plain = |line: &String| line != "done";
        let mut lines: Vec<String> = answers.filter(plain).collect();
        lines.extend(outcome.events.iter().map(told));
        Ok(lines)
    }

    fn command(&self, words: Words<'_>) -> Result<Command, String> {
        let [verb, rest @ ..] = words else { return Err("an empty line".to_owned()) };
        if let Some(command) = components::parse_command(verb, rest)? {
            return Ok(command);
        }
        let found = match self.machine_command(verb, rest)? {
            Some(command) => Some(command),
            None => match self.user_command(verb, rest)? {
                Some(command) => Some(command),
                None => match self.job_command(verb, rest)? {
                    Some(command) => Some(command),
                    None => match tokens_and_blobs::parse_command(verb, rest)? {
                        Some(command) => Some(command),
                        None => self.task_command(verb, rest)?,
                    },
                },
            },
        };
        found.map_or_else(|| unknown("command", &words.join(" ")), Ok)
    }

    fn machine_command(&self, verb: &str, rest: Words<'_>) -> Result<Option<Command>, String> {
        Ok(Some(match (verb, rest) {
            ("update-machine", [name, options @ ..]) => {
                let row = self.world.state.machines().get(self.machine(name)?);
                let old = row.map(|row| row.spec.clone()).ok_or("a machine")?;
                Command::UpdateMachine { spec: Options::new(options)?.machine(old)?, expect: None }
            }
            ("remove-machine", [name]) => {
                Command::RemoveMachine { name: build::name(name), expect: None }
            }
            ("remove-empty-machine", [name]) => {
                Command::RemoveEmptyMachine { name: build::name(name), expect: None }
            }
            ("up", [name, options @ ..]) => {
                let incarnation = Options::new(options)?.number("incarnation")?.unwrap_or(1);
                Command::MachineUp { machine: self.machine(name)?, incarnation }
            }
            ("down", [name]) => Command::MachineDown { machine: self.machine(name)? },
            ("drain", [name, within]) => Command::DrainWithin {
                name: build::name(name),
                within: seconds(within)?,
                expect: None,
            },
            ("drain", [name]) => Command::StartDrain { name: build::name(name), expect: None },
            ("stop-drain", [name]) => Command::StopDrain { name: build::name(name), expect: None },
            ("packages", [name, packages @ ..]) => {
                let packages = packages.iter().map(|package| crate::options::package(package));
                let machine = self.machine(name)?;
                Command::SetMachinePackages { machine, packages: packages.collect() }
            }
            ("short", [name, "of", resource, "asked", requested]) => {
                let dimension = Dimension::ALL.into_iter().find(|d| d.as_str() == *resource);
                let dimension = dimension.ok_or(format!("resource {resource}"))?;
                let requested = requested.parse().map_err(|_| "a number")?;
                let report =
                    ResourcePressureReport { dimension, lasted: Span::seconds(60), requested };
                self.report_pressure(name, vec![report])?
            }
            ("not-short", [name]) => self.report_pressure(name, Vec::new())?,
            ("release", [task, "on", machine, options @ ..]) => {
                let task = self.task(task)?;
                let attempt = Options::new(options)?.number("attempt")?.unwrap_or(1) as u32;
                Command::ReleaseRetained { machine: self.machine(machine)?, task, attempt }
            }
            ("expire", []) => Command::Expire,
            ("bounds", options) => Command::SetBounds(bounds(options)?),
            ("level", [level]) => {
                Command::RaiseLevel { level: level.parse().map_err(|_| "a number")? }
            }
            _ => return Ok(None),
        }))
    }

    fn report_pressure(
        &self,
        name: &str,
        resource_pressure: Vec<ResourcePressureReport>,
    ) -> Result<Command, String> {
        let machine = self.machine(name)?;
        let row = self.world.state.machines().get(machine).ok_or("a machine")?;
        Ok(Command::SetResourcePressure {
            machine,
            incarnation: row.incarnation,
            resource_pressure,
        })
    }

    fn user_command(&self, verb: &str, rest: Words<'_>) -> Result<Option<Command>, String> {
        Ok(Some(match (verb, rest) {
            ("user", [name]) => Command::AddUser { name: build::name(name) },
            ("remove-user", [name]) => {
                Command::RemoveUser { name: build::name(name), expect: None }
            }
            ("grant", [user, capabilities @ ..]) => {
                let named = |text: &&str| {
                    let same = |c: &Capability| format!("{c:?}") == **text;
                    Capability::ALL.into_iter().find(same).ok_or(format!("capability {text}"))
                };
                let capabilities = capabilities.iter().map(named).collect::<Result<_, _>>()?;
                Command::SetCapabilities { user: build::name(user), capabilities, expect: None }
            }
            ("quota", [user, band, options @ ..]) => {
                let band = self.band(band)?;
                let quota = match options {
                    ["none"] => None,
                    options => Some(self.quota(options)?),
                };
                Command::SetQuota { user: build::name(user), band, quota, expect: None }
            }
            _ => return Ok(None),
        }))
    }

    fn band(&self, word: &str) -> Result<Band, String> {
        Band::ALL.into_iter().find(|band| band.as_str() == word).ok_or(format!("band {word}"))
    }

    fn quota(&self, options: Words<'_>) -> Result<Quota, String> {
        let mut options = Options::new(options)?;
        let until = options.span("for")?;
        let amount = options.resources(build::room(0, 0, 0))?;
        options.all_used()?;
        let until = until.map_or(Time::NEVER, |span: Span| self.now.plus(span));
        Ok(Quota { amount, from: Time::ZERO, until })
    }

    fn job_command(&self, verb: &str, rest: Words<'_>) -> Result<Option<Command>, String> {
        Ok(Some(match (verb, rest) {
            ("submit" | "submit-alloc-set", [job, options @ ..]) => {
                let key = self.job(job)?;
                let mut spec = build::job(key.job.as_str(), 200, 1, build::room(1, 1, 0));
                if verb == "submit-alloc-set" {
                    spec.kind = JobKind::AllocSet;
                }
                let spec = Options::new(options)?.job(spec)?;
                Command::SubmitJob { owner: key.user, spec: Box::new(spec) }
            }
            ("update", [job, options @ ..]) => {
                let key = self.job(job)?;
                let id = self.world.state.job_named(&key);
                let row = id.and_then(|id| self.world.state.jobs().get(id)).ok_or("a job")?;
                let mut options = Options::new(options)?;
                let expect = options.number("expect")?.map(|n| n as u32);
                let spec = options.job((**row.spec()).clone())?;
                Command::UpdateJob { owner: key.user, spec: Box::new(spec), expect }
            }
            ("apply", [job, options @ ..]) => {
                let key = self.job(job)?;
                let mut options = Options::new(options)?;
                let expect = options.number("expect")?.map(|n| n as u32);
                let spec = build::job(key.job.as_str(), 200, 1, build::room(1, 1, 0));
                let again = options.text("again").is_some();
                Command::ApplyJob {
                    owner: key.user,
                    spec: Box::new(options.job(spec)?),
                    expect,
                    again,
                }
            }
            ("resize", [job, count]) => {
                let count = count.parse().map_err(|_| "a count")?;
                Command::ResizeJob {
                    job: self.job(job)?,
                    size: JobSize::tasks(count),
                    expect: None,
                }
            }
            ("resize-limits", [job, options @ ..]) => {
                let key = self.job(job)?;
                let id = self.world.state.job_named(&key);
                let row = id.and_then(|id| self.world.state.jobs().get(id)).ok_or("a job")?;
                let mut options = Options::new(options)?;
                let expect = options.number("expect")?.map(|n| n as u32);
                let limits = options.resources(row.spec().task.limits)?.into();
                options.all_used()?;
                Command::ResizeLimits { job: key, limits, expect }
            }
            ("stop", [job]) => Command::StopJob { job: self.job(job)?, expect: None },
            ("stop-task", [task]) => {
                let (job, index) = task.rsplit_once('/').ok_or("USER/JOB/INDEX")?;
                let index = index.parse().map_err(|_| "an index")?;
                Command::StopTask { job: self.job(job)?, index, expect: None }
            }
            ("undo", [job]) => Command::UndoUpdate { job: self.job(job)?, expect: None },
            ("close", [job]) => Command::CloseUpdate { job: self.job(job)?, expect: None },
            ("step", [task]) => {
                let (job, index) = task.rsplit_once('/').ok_or("USER/JOB/INDEX")?;
                let index = index.parse().map_err(|_| "an index")?;
                Command::StepUpdate { job: self.job(job)?, index }
            }
            ("give-back", [job]) => Command::GiveBack { job: self.job(job)? },
            ("match", [job]) => Command::MatchMachines { job: self.job(job)? },
            ("purge", []) => Command::PurgeJobs { ended_before: self.now },
            _ => return self.start_command(verb, rest),
        }))
    }

    /// What has tasks run again.
    fn start_command(&self, verb: &str, rest: Words<'_>) -> Result<Option<Command>, String> {
        Ok(Some(match (verb, rest) {
            ("restart", [job]) => Command::RestartTasks { job: self.job(job)?, index: None },
            ("restart-task" | "step-restart" | "start-task", [task]) => {
                let (job, index) = task.rsplit_once('/').ok_or("USER/JOB/INDEX")?;
                let (job, index) = (self.job(job)?, index.parse().map_err(|_| "an index")?);
                match verb {
                    "restart-task" => Command::RestartTasks { job, index: Some(index) },
                    "step-restart" => Command::StepRestart { job, index },
                    _ => Command::StartTasks { job, which: TasksToStart::One(index) },
                }
            }
            ("start-failed", [job]) => {
                Command::StartTasks { job: self.job(job)?, which: TasksToStart::Failed }
            }
            _ => return Ok(None),
        }))
    }

    fn task_command(&self, verb: &str, rest: Words<'_>) -> Result<Option<Command>, String> {
        Ok(Some(match (verb, rest) {
            ("place", rest) => self.place(rest)?,
            ("evict", [task, cause]) => {
                let cause = match *cause {
                    "drain" => EvictCause::Drain,
                    "over-commit" => EvictCause::OverCommit,
                    "rebalance" => EvictCause::Rebalance,
                    "pressure" => EvictCause::ResourcePressure(Dimension::Cpu),
                    other => return unknown("cause", other),
                };
                let task = self.task(task)?;
                Command::Evict { task, attempt: self.attempt(task), cause }
            }
            ("hold", [task, "on", machine, rest @ ..]) => {
                let alloc = match rest {
                    ["in", alloc] => Some(self.task(alloc)?),
                    _ => None,
                };
                let (task, machine) = (self.task(task)?, self.machine(machine)?);
                let target = schedule::assign(&self.world.state, task, machine, alloc, &[]);
                Command::ReserveHold(target.ok_or("the task and the machine exist")?)
            }
            ("let-go", [task, "on", machine]) => {
                let (task, machine) = (self.task(task)?, self.machine(machine)?);
                Command::ReleaseHold { task, attempt: self.attempt(task), machine }
            }
            ("reserve", [task, options @ ..]) => {
                let task = self.task(task)?;
                let row = self.world.state.tasks().get(task).ok_or("a task")?;
                let reservation = Options::new(options)?.resources(row.reservation)?;
                let attempt = row.attempt;
                Command::SetReservations(vec![ReservationChange { task, attempt, reservation }])
            }
            // The limits of its version, unless the line says otherwise.
            ("in-force", [task, options @ ..]) => {
                let id = self.task(task)?;
                let row = self.world.state.tasks().get(id).ok_or("a task")?;
                let spec = self.world.state.spec_of(row).ok_or("a spec")?;
                let mut options = Options::new(options)?;
                let resizes = options.number("change")?.map_or(row.resizes, |n| n as u32);
                let limits = options.resources(spec.limits_of(row.index))?;
                options.all_used()?;
                self.report(task, Observed::LimitsInForce { resizes, limits }, &[])?
            }
            (verb, [task, options @ ..]) => match observed(verb, options)? {
                Some((what, options)) => self.report(task, what, options)?,
                None => return Ok(None),
            },
            _ => return Ok(None),
        }))
    }

    /// From the machine the task is on and of its present attempt, unless the line says otherwise.
    fn report(&self, task: &str, what: Observed, options: Words<'_>) -> Result<Command, String> {
        let task = self.task(task)?;
        let mut options = Options::new(options)?;
        let machine = match options.text("from") {
            Some(name) => self.machine(name)?,
            None => {
                let row = self.world.state.tasks().get(task);
                row.and_then(|row| row.machine()).ok_or("the task is on no machine: from=")?
            }
        };
        let found = self.world.state.machines().get(machine).map_or(0, |row| row.incarnation);
        let incarnation = options.number("incarnation")?.unwrap_or(found);
        let attempt = options.number("attempt")?.map_or(self.attempt(task), |n| n as u32);
        options.all_used()?;
        let reports = vec![TaskReport { task, attempt, what }];
        Ok(Command::TaskReports { machine, incarnation, reports })
    }

    /// `place TASKS on MACHINES [in ALLOCS] [over VICTIMS]`: lists with commas; one group.
    fn place(&self, words: Words<'_>) -> Result<Command, String> {
        let after = |word: &str| {
            let at = words.iter().position(|w| *w == word);
            at.and_then(|at| words.get(at + 1)).copied()
        };
        let list = |word: Option<&str>| -> Result<Vec<TaskId>, String> {
            word.map_or(Ok(Vec::new()), |text| text.split(',').map(|t| self.task(t)).collect())
        };
        let tasks = list(words.first().copied())?;
        let machines: Vec<MachineId> = match after("on") {
            Some(text) => text.split(',').map(|m| self.machine(m)).collect::<Result<_, _>>()?,
            None => return Err("place TASK on MACHINE".to_owned()),
        };
        let (allocs, out) = (list(after("in"))?, list(after("over"))?);
        let mut assignments = Vec::new();
        for (at, task) in tasks.iter().enumerate() {
            let machine = machines[at % machines.len()];
            let alloc = (!allocs.is_empty()).then(|| allocs[at % allocs.len()]);
            let assigned = schedule::assign(&self.world.state, *task, machine, alloc, &out);
            assignments.push(assigned.ok_or("the task and the machine exist")?);
        }
        let victims =
            out.iter().map(|task| Victim { task: *task, attempt: self.attempt(*task) }).collect();
        let groups = vec![Group { victims, assignments }];
        Ok(Command::CommitPlan(Plan { made_at: self.world.state.applied(), groups }))
    }

    fn machine(&self, word: &str) -> Result<MachineId, String> {
        let found = self.world.state.machine_named(&build::name(word));
        found.map_or_else(|| unknown("machine", word), Ok)
    }

    fn job(&self, word: &str) -> Result<JobKey, String> {
        let (user, job) = word.split_once('/').ok_or("USER/JOB")?;
        Ok(build::job_key(user, job))
    }

    fn task(&self, word: &str) -> Result<TaskId, String> {
        let (job, index) = word.rsplit_once('/').ok_or("USER/JOB/INDEX")?;
        let id = self.world.state.job_named(&self.job(job)?);
        let row = id.and_then(|id| self.world.state.jobs().get(id));
        let index: usize = index.parse().map_err(|_| "an index".to_owned())?;
        let found = row.and_then(|row| row.tasks.get(index).copied());
        found.map_or_else(|| unknown("task", word), Ok)
    }

    fn attempt(&self, task: TaskId) -> u32 {
        self.world.state.tasks().get(task).map_or(0, |row| row.attempt)
    }

    /// The tasks of a job, or what is held on a machine.
    fn show(&self, what: &str) -> Result<Vec<String>, String> {
        let state = &self.world.state;
        if !what.contains('/') {
            let machine = self.machine(what)?;
            let load = state.machine_load(machine).ok_or("a machine has a load")?;
            let flag = state.machines().get(machine).is_some_and(|row| row.over_committed);
            let line = format!(
                "prod limits cpu {}, reserved cpu {}, disk {}; over-committed: {flag}",
                load.prod_limits.cpu, load.reserved.cpu, load.reserved.disk
            );
            return Ok(vec![line]);
        }
        let id = state.job_named(&self.job(what)?);
        let row = id.and_then(|id| state.jobs().get(id)).ok_or("a job")?;
        let line = |task: &TaskId| {
            let row = state.tasks().get(*task)?;
            let named = |machine| state.machines().get(machine).map(|row| row.spec.name.clone());
            let on = row.machine().and_then(named);
            let on = on.map_or(String::new(), |name| format!(" on {name}"));
            let kept = row.holds.reserved().and_then(|hold| named(hold.machine));
            let on = on + &kept.map_or(String::new(), |name| format!(", holds room on {name}"));
            let word = match row.state {
                TaskState::Stopping(_) => "stopping".to_owned(),
                other => format!("{other:?}").to_lowercase(),
            };
            let (name, version) = (state.task_name(*task), row.version);
            Some(format!("{name} {word}{on}, attempt {}, version {version}", row.attempt))
        };
        Ok(row.tasks.iter().filter_map(line).collect())
    }
}

fn observed<'a>(verb: &str, options: Words<'a>) -> Result<Option<(Observed, Words<'a>)>, String> {
    let what = match (verb, options) {
        ("started", _) => Observed::Started,
        ("finished", _) => Observed::Finished,
        ("stopped", _) => Observed::Stopped,
        ("unhealthy", _) => Observed::Unhealthy,
        ("healthy", _) => Observed::Healthy,
        ("lost", _) => Observed::Lost,
        ("failed", ["oom", rest @ ..]) => {
            return Ok(Some((Observed::Failed(ExitClass::OutOfMemory), rest)));
        }
        ("failed", ["timeout", rest @ ..]) => {
            return Ok(Some((Observed::Failed(ExitClass::TimedOut), rest)));
        }
        ("failed", ["crowded", rest @ ..]) => {
            return Ok(Some((Observed::Failed(ExitClass::OutOfMemoryBystander), rest)));
        }
        ("failed", [code, rest @ ..]) => {
            let code = code.parse().map_err(|_| format!("exit code {code}"))?;
            return Ok(Some((Observed::Failed(ExitClass::Code(code)), rest)));
        }
        _ => return Ok(None),
    };
    Ok(Some((what, options)))
}

/// `jobs=2 tasks=10 least-ram=4g`, all other bounds unlimited.
fn bounds(options: Words<'_>) -> Result<Bounds, String> {
    let mut bounds = Bounds::default();
    for option in options {
        let (name, value) = option.split_once('=').ok_or("NAME=NUMBER")?;
        let number: u64 = value.parse().map_err(|_| format!("a number in {option}"))?;
        match name {
            "jobs" => bounds.jobs = number,
            "tasks" => bounds.tasks = number,
            "crons" => bounds.crons = number,
            "machine-tasks" => bounds.machine_tasks = number,
            "versions" => bounds.versions = number,
            "default-disk" => bounds.default_disk = number,
            "least-cpu" => bounds.least_charge.cpu = number,
            _ => return Err(format!("bound {name}")),
        }
    }
    Ok(bounds)
}

/// `ann` is a user; the cell's own parts are `agent:m1`, `scheduler:s1`, `task:7.2` and so on.
fn actor(text: &str) -> Result<Actor, String> {
    let Some((kind, name)) = text.split_once(':') else {
        return Ok(Actor::User(build::name(text)));
    };
    Ok(match kind {
        "agent" => Actor::Agent(build::name(name)),
        "scheduler" => Actor::Scheduler(build::name(name)),
        "replica" => Actor::Replica(build::name(name)),
        "controller" => {
            let named = |known: &ControllerName| known.as_str() == name;
            Actor::Controller(ControllerName::ALL.into_iter().find(named).ok_or("a controller")?)
        }
        "task" => {
            let (task, attempt) = name.split_once('.').ok_or("task:ROW.ATTEMPT")?;
            let number = |text: &str| text.parse().map_err(|_| "a number".to_owned());
            Actor::Task { task: TaskId(number(task)?), attempt: number(attempt)? }
        }
        _ => return Err(format!("no actor {text}")),
    })
}
