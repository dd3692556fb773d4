//! A day of a machine, from its kernel's counters to the sums of history: tasks of fifty
//! milliseconds and of hours, lost messages, masters that are killed, a machine that boots again.

use super::*;
use cellwright_cell::observed::ObservedTask;
use cellwright_cell::state::State;
use cellwright_history::{History, HistoryReader, QueryLimits, RetentionConfig, Value};
use cellwright_master::history::UsageInbox;

/// 2026-11-01, midnight.
const MIDNIGHT: u64 = 1_793_491_200_000;
const DAY: u64 = 86_400_000;

/// Draws for one machine and day.
struct Draw(u64);

impl Draw {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = xxhash_rust::xxh3::xxh3_64(&self.0.to_le_bytes());
        self.0 % bound
    }

    fn one_in(&mut self, count: u64) -> bool {
        self.below(count) == 0
    }
}

struct Day {
    agent: VirtualAgent,
    history: History,
    /// Of the master that runs now.
    inbox: UsageInbox,
    orders: Vec<DesiredTask>,
    tasks: u32,
    polls: u64,
}

impl Day {
    fn start_task(&mut self, draw: &mut Draw) {
        // Half of them are over before anybody looks.
        let longest = [60, 900, 30_000, 1_200_000][draw.below(4) as usize];
        let millis = (50 + draw.below(longest)).to_string();
        self.tasks += 1;
        self.orders.push(order(self.tasks, work(&["sim", "finish", &millis])));
    }

    /// A poll whose question or answer may be lost.
    fn poll(&mut self, now: u64, arrives: bool, is_answered: bool) -> usize {
        let wall = Time(MIDNIGHT + now);
        let report = self.agent.report(true, wall, now);
        let ended = |told: &ObservedTask| {
            !matches!(told.state, ObservedState::Running { .. } | ObservedState::Preparing)
        };
        if arrives {
            self.inbox.accept(&State::default(), &report, wall);
            self.orders.retain(|order| {
                let told = report.tasks.iter().find(|told| told.task == order.task);
                told.is_none_or(|told| !ended(told))
            });
        }
        if arrives && is_answered {
            self.polls += 1;
            let usage_recorded = self.inbox.recorded(&report.machine);
            let orders = AgentOrders { usage_recorded, ..answer(self.polls, self.orders.clone()) };
            self.agent.apply_orders(orders, now, now);
        }
        report.book.closed.len()
    }

    fn write(&mut self) {
        let delivery = self.inbox.delivery();
        self.history.ingest_usage(&delivery.rows).unwrap();
        self.inbox.confirm(&delivery);
    }
}

fn number(folder: &std::path::Path, sql: &str) -> u64 {
    let answer = HistoryReader::new(folder).query(sql, &[], QueryLimits::default()).unwrap();
    match answer.rows[0][0] {
        Value::Integer(number) => u64::try_from(number).unwrap(),
        ref other => panic!("{sql}: {other:?}"),
    }
}

#[test]
fn a_day_of_tasks_is_in_history_to_the_hundredth_whoever_was_killed() {
    let folder = std::env::temp_dir().join(format!("cellwright-day-{}", std::process::id()));
    drop(std::fs::remove_dir_all(&folder));
    let mut draw = Draw(11);
    let mut day = Day {
        agent: agent(Profile::new(3)),
        history: History::open(&folder, RetentionConfig::default()).unwrap(),
        inbox: UsageInbox::default(),
        orders: Vec::new(),
        tasks: 0,
        polls: 0,
    };
    let mut now = 0;
    while now < DAY {
        now += 1000 + draw.below(15_000);
        run_until(&mut day.agent, now);
        if day.orders.len() < 6 && draw.one_in(3) {
            day.start_task(&mut draw);
        }
        let (arrives, is_answered) = (!draw.one_in(5), !draw.one_in(5));
        day.poll(now, arrives, is_answered);
        if draw.one_in(50) {
            day.write();
        }
        if draw.one_in(150) {
            // The master is killed: what it had not written is gone.
            day.inbox = UsageInbox::default();
        }
        if draw.one_in(3000) {
            day.agent.reboot(now);
        }
    }
    // The day is over, and everybody comes to rest.
    day.orders.clear();
    let mut left = usize::MAX;
    while left > 0 {
        now += 2000;
        run_until(&mut day.agent, now);
        left = day.poll(now, true, true);
        day.write();
    }
    let spent = u64::try_from(day.agent.kernel().spent.as_micros()).unwrap();
    let booked = number(&folder, "select sum(cpu_micros) from usage");
    // A boot loses what was not read yet, and nothing is there twice.
    assert!(booked <= spent && spent - booked <= spent / 100, "{booked} of {spent}");
    let daily = number(&folder, "select sum(cpu_used) * 1000 from usage_daily");
    assert!(daily.abs_diff(booked) < 10_000, "{daily} of {booked}");
    let rows = number(&folder, "select count(*) from usage");
    let tasks = number(&folder, "select count(distinct task_index) from usage");
    assert!(rows > tasks && tasks * 100 >= u64::from(day.tasks) * 99, "{tasks} of {}", day.tasks);
    let short = "select count(*) from (select sum(millis) m, sum(samples) s from usage
                 group by task_index having m < 1000 and s = 0)";
    assert!(number(&folder, short) > 100, "tasks that nobody looked at");
    drop(std::fs::remove_dir_all(&folder));
}
