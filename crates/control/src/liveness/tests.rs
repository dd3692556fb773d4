//! Machines fall silent and come back; the clock is a number.

use super::*;
use crate::controller::testing::Cell;
use cellwright_cell::command::Command;
use proptest::prelude::*;

const CONFIG: LivenessConfig = LivenessConfig {
    poll_interval: Span(5_000),
    missed_polls: 4,
    link_shard_timeout: Span(5_000),
    reconnect_grace: Span(20_000),
    max_down_per_minute: DownRate::Machines(60),
    burst: 2,
    pause_above_permille: 500,
    count_down_for: Span(60_000),
    retry_after: Span(3_000),
    check_interval: Span(500),
};

/// All machines polled through shard 1, once a second.
struct World {
    cell: Cell,
    liveness: Liveness,
    at: u64,
}

impl World {
    fn new(machines: u32) -> World {
        let liveness = Liveness::new(CONFIG, Span::ZERO);
        World { cell: Cell::with_machines(machines), liveness, at: 0 }
    }

    /// A second passes in which only the machines `speaking` send heartbeats; the leader's decision
    /// is carried out.
    fn second(&mut self, speaking: impl Fn(u32) -> bool, shard_speaks: bool) -> LivenessDecision {
        self.at += 1_000;
        let at = Span(self.at);
        if shard_speaks {
            self.liveness.shard_reported(1, at);
        }
        let machines = self.cell.state.machines().slots() as u32;
        for machine in (0..machines).filter(|machine| shard_speaks && speaking(*machine)) {
            self.liveness.heartbeats(MachineId(machine), 1, at);
        }
        let decision = self.liveness.step(&self.cell.state, at);
        for machine in &decision.down {
            self.cell.ok(Command::MachineDown { machine: *machine });
        }
        decision
    }

    /// When which machines are declared down, in seconds from here.
    fn run(&mut self, seconds: u64, speaking: impl Fn(u32) -> bool) -> Vec<(u64, u32)> {
        let mut declared = Vec::new();
        for second in 1..=seconds {
            let down = self.second(&speaking, true).down;
            declared.extend(down.into_iter().map(|machine| (second, machine.0)));
        }
        declared
    }
}

#[test]
fn a_machine_silent_for_several_polls_is_declared_down_once() {
    let mut world = World::new(5);
    assert_eq!(world.run(10, |_| true), []);
    assert_eq!(world.run(60, |machine| machine != 3), [(21, 3)]);
}

#[test]
fn a_new_leader_gives_everyone_the_full_time_and_the_time_to_redial() {
    let mut world = World::new(5);
    // The first step, at 1 s, is the leader's first check.
    assert_eq!(world.run(60, |machine| machine != 3), [(42, 3)]);
}

#[test]
fn a_machine_whose_shard_is_silent_gets_time_to_find_another() {
    let mut world = World::new(5);
    world.run(10, |_| true);
    // Shard 1 is gone; four machines find shard 2, machine 3 does not.
    let mut declared = Vec::new();
    for second in 1..=60 {
        for machine in [0, 1, 2, 4].into_iter().filter(|_| second > 3) {
            world.liveness.heartbeats(MachineId(machine), 2, Span(world.at));
        }
        world.liveness.shard_reported(2, Span(world.at));
        let down = world.second(|_| false, false).down;
        declared.extend(down.into_iter().map(|machine| (second, machine.0)));
    }
    assert_eq!(declared, [(41, 3)]);
    assert_eq!(world.liveness.shards.len(), 2);
    world.liveness.set_voters(&[2, 3]);
    assert_eq!(world.liveness.shards.len(), 1);
}

#[test]
fn nothing_moves_when_more_than_half_are_silent() {
    let mut world = World::new(10);
    world.run(10, |_| true);
    let mut alarms = Vec::new();
    for _ in 0..600 {
        let decision = world.second(|machine| machine >= 6, true);
        assert_eq!(decision.down, []);
        alarms.extend(decision.alarms);
    }
    alarms.dedup();
    assert_eq!(alarms, [Alarm::MostMachinesSilent { silent: 6, up: 10 }]);
    // The alarm stays until the next check.
    let between = world.liveness.step(&world.cell.state, Span(world.at + 100));
    assert_eq!(between.alarms, alarms);
    // They come back, and all is as before.
    assert_eq!(world.second(|_| true, true), LivenessDecision::default());
}

/// When machines were silent together, the return of the first does not make the others look dead.
#[test]
fn those_who_come_back_later_than_others_have_the_full_time_again() {
    let mut world = World::new(3);
    world.run(10, |_| true);
    assert_eq!(world.run(60, |machine| machine == 0), []);
    assert_eq!(world.run(20, |machine| machine <= 1), []);
    assert_eq!(world.run(60, |_| true), []);
    // One that stays away is declared down all the same.
    assert_eq!(world.run(60, |machine| machine == 0), []);
    assert_eq!(world.run(60, |machine| machine <= 1), [(21, 2)]);
}

/// Polls come one after another, so machines cut off at once fall silent one after another.
#[test]
fn nothing_moves_when_more_than_half_are_cut_off_between_their_polls() {
    let mut world = World::new(10);
    world.run(10, |_| true);
    for second in 1..=5 {
        assert_eq!(world.second(|machine| machine >= 6.min(second), true).down, []);
    }
    let mut alarms = Vec::new();
    for _ in 0..600 {
        let decision = world.second(|machine| machine >= 6, true);
        assert_eq!(decision.down, [], "after {} ms", world.at);
        alarms.extend(decision.alarms);
    }
    assert_eq!(alarms.last(), Some(&Alarm::MostMachinesSilent { silent: 6, up: 10 }));
    // Machines one poll short of silence are no reason to spare others that are long silent.
    let mut world = World::new(10);
    world.run(10, |_| true);
    assert_eq!(world.run(22, |machine| machine > 0), [(21, 0)]);
}

#[test]
fn the_only_machine_is_never_declared_down_and_said_to_be_silent() {
    let mut world = World::new(1);
    world.run(10, |_| true);
    for second in 1..=600 {
        let decision = world.second(|_| false, true);
        assert_eq!(decision.down, [], "there is nowhere to go");
        let expected = match second {
            ..=20 => (vec![], vec![]),
            _ => (
                vec![Alarm::MostMachinesSilent { silent: 1, up: 1 }],
                vec![(MachineId(0), Span::seconds(second))],
            ),
        };
        assert_eq!((decision.alarms, decision.silent), expected, "after {second} s");
    }
    assert_eq!(world.second(|_| true, true), LivenessDecision::default());
}

#[test]
fn one_of_two_machines_is_declared_down() {
    let mut world = World::new(2);
    world.run(10, |_| true);
    assert_eq!(world.run(30, |machine| machine != 1), [(21, 1)]);
    // The one that is left counts with the one that went: more than half.
    let last = (0..21).map(|_| world.second(|_| false, true)).last().unwrap();
    assert_eq!(last.alarms, [Alarm::MostMachinesSilent { silent: 2, up: 2 }]);
    assert_eq!(last.silent, [(MachineId(0), Span::seconds(21))]);
}

#[test]
fn a_cut_that_spreads_slowly_counts_as_one() {
    let mut world = World::new(10);
    world.run(10, |_| true);
    assert_eq!(world.run(25, |machine| machine >= 4).len(), 4);
    // Two more: six of ten are gone, though only two of the six that are up.
    let decision = (0..30).map(|_| world.second(|machine| machine >= 6, true)).last().unwrap();
    let alarm = Alarm::MostMachinesSilent { silent: 6, up: 10 };
    assert_eq!((decision.down, decision.alarms), (vec![], vec![alarm]));
    // Machines declared down long ago are no longer part of the same incident.
    assert_eq!(world.run(60, |machine| machine >= 6).len(), 2);
}

#[test]
fn declarations_are_limited_and_the_rest_waits() {
    let mut world = World::new(20);
    world.run(10, |_| true);
    let alarms = |world: &mut World| world.second(|machine| machine >= 6, true).alarms;
    (0..20).for_each(|_| assert_eq!(alarms(&mut world), []));
    assert_eq!(alarms(&mut world), [Alarm::DownRateLimited { waiting: 4 }]);
    let waiting = world.liveness.step(&world.cell.state, Span(world.at + 1)).silent;
    let waiting: Vec<u32> = waiting.iter().map(|(machine, _)| machine.0).collect();
    assert_eq!(waiting, [2, 3, 4, 5], "those two that are down are not silent any more");
    let declared = world.run(10, |machine| machine >= 6);
    assert_eq!(declared, [(1, 2), (2, 3), (3, 4), (4, 5)]);
}

#[test]
fn a_share_of_the_cell_is_declared_down_in_a_minute() {
    assert_eq!(DownRate::Percent(5).of(1000), 50);
    assert_eq!(DownRate::Percent(5).of(10), DownRate::LEAST);
    assert_eq!(DownRate::Machines(1).of(1000), 1);
    // A tenth of the machines is lost at once.
    let last_of = |rate| {
        let config = LivenessConfig { max_down_per_minute: rate, ..CONFIG };
        let mut world = World::new(400);
        world.liveness = Liveness::new(config, Span::ZERO);
        world.run(5, |_| true);
        let declared = world.run(200, |machine| machine >= 40);
        assert!(declared.iter().all(|(_, machine)| *machine < 40));
        (declared.len(), declared.last().unwrap().0)
    };
    let (all, seconds) = last_of(DownRate::Percent(5));
    assert_eq!(all, 40);
    assert!((100..180).contains(&seconds), "{seconds}");
    assert!(last_of(DownRate::Machines(6)).0 < 40, "six a minute are too few");
}

#[test]
fn a_declaration_without_effect_is_repeated_after_a_while() {
    let mut world = World::new(5);
    world.run(10, |_| true);
    let mut retries = Vec::new();
    for second in 1..=30 {
        world.at += 1_000;
        world.liveness.shard_reported(1, Span(world.at));
        for machine in [0, 1, 2, 4] {
            world.liveness.heartbeats(MachineId(machine), 1, Span(world.at));
        }
        let down = world.liveness.step(&world.cell.state, Span(world.at)).down;
        retries.extend(down.into_iter().map(|machine| (second, machine.0)));
    }
    assert_eq!(retries, [(21, 3), (24, 3), (27, 3), (30, 3)]);
}

/// What happens to the cell in a phase of some seconds.
#[derive(Clone, Debug)]
struct TestPhase {
    seconds: u64,
    /// Machine n is silent when the bit is set.
    silent: u32,
    shard_speaks: bool,
    /// Whether the log accepts the leader's decisions.
    log_works: bool,
}

fn stretch() -> impl Strategy<Value = TestPhase> {
    let silent = prop_oneof![Just(0), any::<u32>(), any::<u32>().prop_map(|bits| bits & 0x1249)];
    let shard_speaks = prop::bool::weighted(0.8);
    (1..40u64, silent, shard_speaks, prop::bool::weighted(0.9)).prop_map(
        |(seconds, silent, shard_speaks, log_works)| TestPhase {
            seconds,
            silent,
            shard_speaks,
            log_works,
        },
    )
}

/// Keeps its own, simpler record and compares.
struct Auditor {
    last_heard: Vec<u64>,
    /// Declarations beyond what the rate limit has earned since; in thousandths of a machine.
    bucket: u64,
}

impl Auditor {
    fn check(&mut self, world: &World, was_up: &[bool], down: &[MachineId]) {
        let heartbeat_timeout = CONFIG.heartbeat_timeout().0;
        let silent = |machine: usize| {
            was_up[machine] && world.at - self.last_heard[machine] > heartbeat_timeout
        };
        let silent_now = (0..was_up.len()).filter(|machine| silent(*machine)).count();
        let up = was_up.iter().filter(|up| **up).count();
        for machine in down {
            assert!(silent(machine.slot()), "{machine:?} was heard lately or was not up");
            assert!(silent_now * 2 <= up, "{silent_now} of {up} silent, and some declared down");
        }
        self.bucket = self.bucket.saturating_sub(1_000) + 1_000 * down.len() as u64;
        assert!(self.bucket <= 1_000 * CONFIG.burst, "faster than the rate");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn rate_half_and_the_living_are_respected(
        machines in 1..24u32,
        history in prop::collection::vec(stretch(), 1..20),
    ) {
        let mut world = World::new(machines);
        let mut auditor = Auditor { last_heard: vec![1_000; machines as usize], bucket: 0 };
        for TestPhase { seconds, silent, shard_speaks, log_works } in history {
            for _ in 0..seconds {
                let is_heard = |machine: u32| shard_speaks && silent >> machine & 1 == 0;
                let at = world.at + 1_000;
                let before = world.cell.state.clone();
                let row = |machine: usize| before.machines().get(MachineId(machine as u32));
                let is_up = |machine| row(machine).unwrap().status == MachineStatus::Up;
                let was_up: Vec<bool> = (0..machines as usize).map(is_up).collect();
                for machine in (0..machines).filter(|machine| is_heard(*machine)) {
                    auditor.last_heard[machine as usize] = at;
                }
                let down = world.second(is_heard, shard_speaks).down;
                auditor.check(&world, &was_up, &down);
                if !log_works {
                    world.cell.state = before;
                }
                for machine in (0..machines).filter(|machine| is_heard(*machine)) {
                    if !was_up[machine as usize] {
                        world.cell.up(machine);
                        // The leader sees it up at its next check.
                        auditor.last_heard[machine as usize] = at + 1_000;
                    }
                }
            }
        }
    }
}
