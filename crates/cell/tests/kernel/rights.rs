//! Tests of authorization: every command is sent by an actor of every kind, and the result must
//! agree with the table of `apply/authorize.rs` and with docs/security.md. A command that is not
//! among the samples fails there; one without a row does not compile.
//!
//! `UPDATE_SECURITY=1` rewrites the page; read the difference before keeping it.

use crate::build::name;
use crate::components as tested;
use crate::draw::Draw;
use crate::samples;
use crate::specs;
use cellwright_cell::apply::authorize::{AgentRight, Rights, UserRight};
use cellwright_cell::command::{
    Actor, Command, ControllerName, Entry, EvictCause, Request, Verdict,
};
use cellwright_cell::components;
use cellwright_cell::credential::PartKind;
use cellwright_cell::ephemeral::{self, CapacityChange, NodeChoice};
use cellwright_cell::id::TaskId;
use cellwright_cell::name::Token;
use cellwright_cell::plan::Plan;
use cellwright_cell::reason::Rejection;
use cellwright_cell::resource::Dimension;
use cellwright_cell::state::State;
use cellwright_cell::time::{Span, Time};
use std::collections::BTreeMap;
use std::path::PathBuf;

const BEGIN: &str = "<!-- commands: recorded by crates/cell/tests/kernel/rights.rs -->\n";
const END: &str = "<!-- end of commands -->";
const HEAD: &str = "| command | user | operator | agent | scheduler | controller | replica | task |
|---|---|---|---|---|---|---|---|
";

fn send(state: &State, by: Actor, command: &Command) -> Verdict {
    let request = Request { by, id: None, command: command.clone() };
    let entry = Entry { now: Time(10), requests: vec![request] };
    state.clone().apply(&entry, &mut Vec::new()).remove(0)
}

/// Machines `m0` to `m3`, which the samples speak of by row and by name, and the user `ada`.
fn state() -> State {
    let mut state = State::default();
    let mut draw = Draw::new(1);
    let machines = (0..4).map(|n| Command::AddMachine(specs::machine(&format!("m{n}"), &mut draw)));
    let commands = machines.chain([Command::AddUser { name: name("ada") }]);
    let request = |command| Request { by: Actor::Operator, id: None, command };
    let requests = commands.map(request).collect();
    let verdicts = state.apply(&Entry { now: Time(1), requests }, &mut Vec::new());
    assert!(verdicts.iter().all(Result::is_ok), "{verdicts:?}");
    state
}

/// One of every command, and one for each content on which its right depends.
fn commands() -> Vec<(String, Command)> {
    let mut all = Vec::new();
    for command in samples::commands().into_iter().chain(tested::commands()) {
        match &command {
            Command::Evict { task, attempt, .. } => {
                for cause in [
                    EvictCause::Drain,
                    EvictCause::OverCommit,
                    EvictCause::Rebalance,
                    EvictCause::ResourcePressure(Dimension::Ram),
                ] {
                    let (task, attempt) = (*task, *attempt);
                    let cause_name = ControllerName::of_cause(cause);
                    let one = Command::Evict { task, attempt, cause };
                    all.push((format!("{} ({cause_name})", command.name()), one));
                }
            }
            Command::RevokePart { name, .. } => {
                for part in [PartKind::Agent, PartKind::Replica, PartKind::Scheduler] {
                    let one = Command::RevokePart { part, name: name.clone() };
                    all.push((format!("{} ({part})", command.name()), one));
                }
            }
            _ => all.push((command.name().to_owned(), command)),
        }
    }
    all
}

fn is_wrong_actor(verdict: &Verdict) -> bool {
    matches!(verdict, Err(Rejection::WrongActor { .. }))
}

/// The agent for whose machine the command is, by the table.
fn agent_for(rights: &Rights<'_>, state: &State) -> Option<Actor> {
    match rights.agent {
        AgentRight::Never => None,
        AgentRight::Machine(machine) => Some(Actor::agent_of(machine, state)),
        AgentRight::Named(name) => Some(Actor::Agent(name.clone())),
        AgentRight::Capacity { changes, .. } => match &changes[0].0 {
            NodeChoice::Node(name) => Some(Actor::Agent(name.clone())),
            NodeChoice::Available(_) => None,
        },
    }
}

#[test]
fn every_command_obeys_every_kind_of_actor_as_the_table_says() {
    let state = state();
    for (label, mut command) in commands() {
        if let Command::Component(components::Command::Ephemeral(ephemeral::Command::Set {
            namespace,
            ..
        })) = &mut command
        {
            *namespace = Token::new("system").unwrap();
        }
        let rights = Rights::of(&command);
        let check = |by: Actor, may: bool| {
            let verdict = send(&state, by.clone(), &command);
            assert_eq!(is_wrong_actor(&verdict), !may, "{label} by {by}: {verdict:?}");
        };
        let users_may = !matches!(rights.user, UserRight::Never);
        check(Actor::Operator, users_may);
        check(Actor::User(name("ada")), users_may);
        if let Some(own) = agent_for(&rights, &state) {
            check(own, true);
        }
        // One of another machine, and one of no machine at all.
        check(Actor::Agent(name("m0")), false);
        check(Actor::Agent(name("stranger")), false);
        check(Actor::Scheduler(name("s1")), rights.scheduler);
        for controller in ControllerName::ALL {
            check(Actor::Controller(controller), rights.controller == Some(controller));
        }
        check(Actor::Replica(name("r1")), rights.replica);
        check(Actor::Task { task: TaskId(0), attempt: 1 }, rights.task);
        // Tests and dry runs rely on it.
        check(Actor::default_sender(&command, &state), true);
    }
}

/// A compromised agent can act for its own machine and nothing else, and its rejections say so.
#[test]
fn an_agent_acts_for_its_own_machine_alone() {
    let state = state();
    let answer_to_agent = |by: &str, command: &Command| {
        let verdict = send(&state, Actor::Agent(name(by)), command);
        verdict.map_or_else(|rejection| rejection.to_string(), |done| format!("{done:?}"))
    };
    let machine = state.machine_named(&name("m2")).unwrap();
    let up = Command::MachineUp { machine, incarnation: 1 };
    assert_eq!(answer_to_agent("m2", &up), "Applied");
    let other = "machine_up is not for agent:m1; allowed: the agent of machine m2";
    assert_eq!(answer_to_agent("m1", &up), other);
    let set = |namespace: &str, nodes: Vec<NodeChoice>| -> Command {
        let set = ephemeral::Command::Set {
            namespace: Token::new(namespace).unwrap(),
            name: Token::new("slot").unwrap(),
            lease: Span(1000),
            changes: nodes.into_iter().map(|node| (node, CapacityChange::Add(1))).collect(),
        };
        set.into()
    };
    let node = |machine: &str| NodeChoice::Node(name(machine));
    assert_eq!(answer_to_agent("m2", &set("system", vec![node("m2")])), "Applied");
    for foreign in [
        set("system", vec![node("m1")]),
        set("system", vec![node("m2"), node("m1")]),
        set("system", vec![]),
        set("app", vec![node("m2")]),
    ] {
        let answer = answer_to_agent("m2", &foreign);
        let reason = "set_resource is not for agent:m2; allowed: the user whose namespace it is, \
                      agents for their own machine, in namespace system";
        assert_eq!(answer, reason, "{foreign:?}");
    }
}

/// Nobody becomes the operator for being unknown.
#[test]
fn whom_the_cell_does_not_know_it_obeys_in_nothing() {
    let mut state = state();
    let sent_away = [PartKind::Scheduler, PartKind::Replica];
    for (part, who) in sent_away.into_iter().zip(["s1", "r1"]) {
        let away = Command::RevokePart { part, name: name(who) };
        let request = Request { by: Actor::Operator, id: None, command: away };
        let entry = Entry { now: Time(5), requests: vec![request] };
        assert!(state.apply(&entry, &mut Vec::new())[0].is_ok());
    }
    let strangers = [
        Actor::User(name("nobody")),
        Actor::Agent(name("stranger")),
        Actor::Task { task: TaskId(4711), attempt: 1 },
        Actor::Scheduler(name("s1")),
        Actor::Replica(name("r1")),
    ];
    for (label, command) in commands() {
        for by in &strangers {
            let verdict = send(&state, by.clone(), &command);
            let is_rejected = match &verdict {
                Err(Rejection::NoSuchUser(user)) => by.user() == Some(user),
                other => is_wrong_actor(other),
            };
            assert!(is_rejected, "{label} by {by}: {verdict:?}");
        }
    }
    let plan = Command::CommitPlan(Plan { made_at: 0, groups: vec![] });
    let text = send(&state, Actor::Scheduler(name("s1")), &plan).unwrap_err().to_string();
    assert_eq!(text, "commit_plan is not for scheduler:s1; allowed: schedulers of the cell");
    assert!(send(&state, Actor::Scheduler(name("s2")), &plan).is_ok());
}

#[test]
fn a_scheduler_changes_no_users_and_a_task_nothing() {
    let state = state();
    let add = Command::AddUser { name: name("eve") };
    let refused = |by| send(&state, by, &add).unwrap_err().to_string();
    let allowed = "allowed: users with manage_users";
    let scheduler = refused(Actor::Scheduler(name("s1")));
    assert_eq!(scheduler, format!("add_user is not for scheduler:s1; {allowed}"));
    let task = refused(Actor::Task { task: TaskId(7), attempt: 2 });
    assert_eq!(task, format!("add_user is not for task:7.2; {allowed}"));
}

/// The row of a command for the page.
fn cells(rights: &Rights<'_>) -> String {
    let word = |may: bool| if may { "yes" } else { "no" };
    let user = rights.user.sender().map(|sender| sender.to_string());
    let operator = word(user.is_some());
    let user = user.unwrap_or_else(|| "no".to_owned());
    let agent = match rights.agent {
        AgentRight::Never => "no",
        AgentRight::Machine(_) | AgentRight::Named(_) => "of that machine",
        AgentRight::Capacity { .. } => "of that machine, in namespace `system`",
    };
    let scheduler = word(rights.scheduler);
    let controller = rights.controller.map_or("no", ControllerName::as_str);
    let (replica, task) = (word(rights.replica), word(rights.task));
    format!("{user} | {operator} | {agent} | {scheduler} | {controller} | {replica} | {task}")
}

#[test]
fn the_page_says_who_may_send_which_command() {
    let mut rows: BTreeMap<String, String> = BTreeMap::new();
    for (label, command) in commands() {
        let cells = cells(&Rights::of(&command));
        let before = rows.insert(label.clone(), cells.clone());
        assert!(before.is_none_or(|before| before == cells), "{label} has two rows");
    }
    let lines = rows.iter().map(|(label, cells)| format!("| `{label}` | {cells} |\n"));
    let seen = format!("{HEAD}{}", lines.collect::<String>());
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../docs/security.md");
    let text = std::fs::read_to_string(&path).unwrap();
    let (head, rest) = text.split_once(BEGIN).expect("the mark before the table");
    let (table, tail) = rest.split_once(END).expect("the mark behind the table");
    if std::env::var_os("UPDATE_SECURITY").is_some() {
        std::fs::write(&path, format!("{head}{BEGIN}{seen}{END}{tail}")).unwrap();
        return;
    }
    let lines = |text: &str| text.lines().map(str::to_owned).collect::<Vec<_>>();
    assert_eq!(lines(&seen), lines(table), "docs/security.md says otherwise");
}
