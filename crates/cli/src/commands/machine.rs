//! `cell machine`: lists and describes the machines of a cell, and takes them out of use.

use super::alarms::Alarms;
use super::enum_words::enum_text;
use super::parse::name;
use super::{Success, pagination};
use crate::args::{OutputArgs, WatchArgs};
use crate::connection::{Cell, ConnectionArgs};
use crate::failure::Failure;
use crate::output::{Output, print_json, print_notice, print_prose};
use crate::runtime::block_on;
use crate::{clock, format, table};
use cellwright_api::client::ChangeOptions;
use cellwright_api::types::{
    DrainLimit, DrainWaitView, MachinePackages, MachineView, PackageOnMachine,
    ResourcePressureView, Trouble, TroubleView,
};
use cellwright_cell::device::WHOLE_DEVICE;
use cellwright_cell::name::Name;
use cellwright_cell::time::Time;
use cellwright_sim::experiment::load::Units;
use clap::{Args, Subcommand};
use std::collections::BTreeMap;

/// Digits of a digest in tables.
const DIGEST_DIGITS: usize = 12;

/// Machines: ls, show, packages, drain, undrain, rm
#[derive(Debug, Subcommand)]
pub enum Machine {
    /// List the machines
    Ls(LsArgs),
    /// One machine: what it has, how it runs tasks, and what its agent says of it
    Show(ShowArgs),
    /// The packages on one machine, and who gave them
    Packages(ShowArgs),
    /// Take no new work and move what runs there, within the jobs' budgets
    Drain(MachineArgs),
    /// Take work again
    Undrain(MachineArgs),
    /// Take it out of the cell, until it joins again
    Rm(RmArgs),
}

#[derive(Debug, Args)]
pub struct LsArgs {
    #[command(flatten)]
    watch: WatchArgs,

    #[command(flatten)]
    output: OutputArgs,
}

#[derive(Debug, Args)]
pub struct ShowArgs {
    #[command(flatten)]
    target: MachineArgs,
    #[command(flatten)]
    output: OutputArgs,
}

#[derive(Debug, Args)]
pub struct MachineArgs {
    /// Its name, as `cell machine ls` shows it
    #[arg(value_name = "MACHINE", value_parser = name)]
    machine: Name,
}

#[derive(Debug, Args)]
pub struct RmArgs {
    #[command(flatten)]
    target: MachineArgs,

    /// Also while tasks are on it: they end at once, without notice
    #[arg(long)]
    force: bool,
}

impl Machine {
    pub fn run(self, connection: &ConnectionArgs) -> Result<Success, Failure> {
        let cell = connection.cell()?;
        match self {
            Machine::Ls(args) => {
                let mut machines = block_on(pagination::machines(&cell))?;
                machines.sort_by(|one, other| {
                    format::natural_order(one.name.as_str(), other.name.as_str())
                });
                match args.output.output {
                    Output::Json => print_json(&machines)?,
                    Output::Table if machines.is_empty() => {
                        print_notice(&format!("no machines; next: {}", first_machine_hint(&cell)));
                    }
                    Output::Table => {
                        let silent_seconds =
                            block_on(async { Ok(Alarms::from_leader(&cell).await) })?
                                .silent_machines();
                        print_prose(&render_list(&machines, &silent_seconds))?;
                    }
                }
            }
            Machine::Show(args) => {
                let name = &args.target.machine;
                let machine = block_on(async { Ok(cell.client.machine(name).await?.value.item) })?;
                match args.output.output {
                    Output::Json => print_json(&machine)?,
                    Output::Table => print_prose(&render(&machine))?,
                }
            }
            Machine::Packages(args) => {
                let name = &args.target.machine;
                let package_list =
                    block_on(async { Ok(cell.client.machine_packages(name).await?.value) })?;
                match args.output.output {
                    Output::Json => print_json(&package_list)?,
                    Output::Table => print_prose(&render_packages(name, &package_list))?,
                }
            }
            Machine::Drain(args) => drain(&cell, &args.machine, true)?,
            Machine::Undrain(args) => drain(&cell, &args.machine, false)?,
            Machine::Rm(args) => remove_machine(&cell, &args.target.machine, args.force)?,
        }
        Ok(Success::Done)
    }
}

/// Starts or ends the drain of a machine, and returns the message to print.
pub fn set_draining(cell: &Cell, machine: &Name, is_draining: bool) -> Result<String, Failure> {
    let change = ChangeOptions::default();
    let done = block_on(async {
        Ok(cell.client.drain_machine(machine, is_draining, &change).await?.value)
    })?;
    let outcome = match (is_draining, done.changed) {
        (true, true) => "is being drained",
        (true, false) => "was being drained already",
        (false, true) => "takes work again",
        (false, false) => "took work already",
    };
    Ok(format!("machine {machine} {outcome}\n"))
}

pub fn drain(cell: &Cell, machine: &Name, is_draining: bool) -> Result<(), Failure> {
    let mut text = set_draining(cell, machine, is_draining)?;
    if is_draining {
        let now = block_on(async { Ok(cell.client.machine(machine).await?.value.item) })?;
        let waits = now.drain_waits.iter().map(|wait| drain_wait_text(wait, clock::now()));
        waits.for_each(|wait| text.push_str(&format!("{wait}\n")));
    }
    text.push_str("next: cell machine ls\n");
    print_prose(&text)
}

/// `2 tasks wait for the disruption limit of ann/web, next at 2026-03-01 12:00:00Z`.
pub fn drain_wait_text(wait: &DrainWaitView, now: Time) -> String {
    let tasks = format::pluralize(u64::from(wait.tasks), "task");
    let verb = if wait.tasks == 1 { "waits" } else { "wait" };
    if wait.limit == DrainLimit::MaxDown {
        let are = if wait.down == 1 { "is" } else { "are" };
        let down = format!("{} {are} down", format::count(u64::from(wait.down)));
        return format!("{tasks} {verb} for max_down of {}: {down}", wait.job);
    }
    let next = match wait.next {
        // The cell's time advances only with entries of its log.
        Some(at) if at <= now => "next in a moment".to_owned(),
        Some(at) => format!("next at {}", format::utc(at)),
        None => "which lets fewer leave at once than an alloc holds".to_owned(),
    };
    format!("{tasks} {verb} for the disruption limit of {}, {next}", wait.job)
}

pub fn render(machine: &MachineView) -> String {
    let amount = |dimension, amount| format::amount(Units::CoresAndBytes, dimension, amount);
    let spec = &machine.spec;
    let of = |dimension, free, all| {
        format!("{} of {} free", amount(dimension, free), amount(dimension, all))
    };
    let mut rows = vec![
        ("state".to_owned(), enum_text(&machine.status)),
        ("tasks".to_owned(), format::count(u64::from(machine.tasks))),
        ("cpu".to_owned(), of("cpu", machine.available.cpu, spec.capacity.cpu)),
        ("ram".to_owned(), of("ram", machine.available.ram, spec.capacity.ram)),
        ("disk".to_owned(), of("disk", machine.available.disk, spec.capacity.disk)),
        ("packages".to_owned(), format::count(u64::from(machine.packages))),
    ];
    if machine.draining {
        rows[0].1 = "draining".to_owned();
    }
    if let Some(trouble) = &machine.trouble {
        rows.insert(1, (enum_text(&trouble.kind), trouble_text(trouble)));
        rows.insert(2, ("next".to_owned(), trouble.next.clone()));
    }
    let waits = machine.drain_waits.iter();
    rows.extend(waits.map(|wait| ("drain".to_owned(), drain_wait_text(wait, clock::now()))));
    rows.extend(
        machine
            .resource_pressure
            .iter()
            .map(|shortage| ("short of".to_owned(), pressure_text(shortage))),
    );
    // On a busy network, even a correct clock may appear a second off.
    let apart = machine.clock_ahead_ms.filter(|ahead| ahead.unsigned_abs() >= 1000);
    rows.extend(apart.map(|ahead| {
        ("clock".to_owned(), format!("{} the cell's", format::clock_difference(ahead)))
    }));
    rows.extend(spec.address.map(|address| ("address".to_owned(), address.to_string())));
    rows.extend(spec.devices.iter().enumerate().map(|(number, device)| {
        let used = machine.devices_used.get(number).copied().unwrap_or_default();
        let free = WHOLE_DEVICE.saturating_sub(used);
        // A removed device has no free capacity, and its model is the last one known.
        let device_text = if device.is_removed() {
            format!("{}, gone", device.model)
        } else {
            format!("{} {}, {free} of {WHOLE_DEVICE} free", device.kind, device.model)
        };
        (format!("device {number}"), device_text)
    }));
    let labels = spec.labels.iter();
    rows.extend(labels.map(|(name, value)| (format!("label {name}"), value.clone())));
    let attributes = spec.attributes.iter();
    rows.extend(attributes.map(|(name, value)| (name.to_string(), value.to_string())));
    let rows: Vec<Vec<String>> = rows.into_iter().map(|(name, value)| vec![name, value]).collect();
    table::render_with_text_column(&["machine", machine.name.as_str()], &rows)
}

/// `since 2026-01-01 00:00:00Z: no master hears its agent`.
fn trouble_text(trouble: &TroubleView) -> String {
    format!("since {}: {}", format::utc(trouble.since), trouble.reason)
}

/// `cpu since 2026-01-01T00:00:00Z: takes only production`.
fn pressure_text(shortage: &ResourcePressureView) -> String {
    let (dimension, since) = (shortage.dimension, format::utc(shortage.since));
    if shortage.over {
        format!("{dimension} until lately: takes only production for a while yet")
    } else {
        format!("{dimension} since {since}: takes only production, others are moved away")
    }
}

fn render_packages(machine: &Name, listing: &MachinePackages) -> String {
    let MachinePackages { packages, taken_bytes, most_bytes, .. } = listing;
    let count = format::pluralize(packages.len() as u64, "package");
    let mut out = format!(
        "{machine}: {count}, {} of {}\nfetched since its agent started: {} from masters, {} from \
         machines\ngiven to other machines: {}\n",
        format::bytes(*taken_bytes),
        format::bytes(*most_bytes),
        format::bytes(listing.from_masters),
        format::bytes(listing.from_machines),
        format::bytes(listing.to_machines),
    );
    if !packages.is_empty() {
        let rows: Vec<Vec<String>> = packages.iter().map(package_row).collect();
        out.push('\n');
        out.push_str(&table::render_with_text_column(
            &["digest", "name", "on disk", "", "from"],
            &rows,
        ));
    }
    if !listing.avoided.is_empty() {
        let sources = listing.avoided.join(", ");
        out.push_str(&table::wrap("\nnot asked, for it gave wrong bytes: ", "  ", &sources));
    }
    out
}

fn package_row(package: &PackageOnMachine) -> Vec<String> {
    let state = match (package.is_damaged, package.in_use) {
        (true, _) => "damaged",
        (false, true) => "in use",
        (false, false) => "",
    };
    let masters = package.from.iter().filter(|source| source.is_master && source.bytes > 0);
    let of_masters: u64 = masters.map(|source| source.bytes).sum();
    let mut from: Vec<String> = Vec::new();
    for source in package.from.iter().filter(|source| !source.is_master || source.is_wrong) {
        let wrong = if source.is_wrong { ", some wrong" } else { "" };
        from.push(format!("{} {}{wrong}", source.name, format::bytes(source.bytes)));
    }
    if of_masters > 0 {
        from.push(format!("masters {}", format::bytes(of_masters)));
    }
    if from.is_empty() {
        from.push("here before the agent started".to_owned());
    }
    let digest = package.digest.as_str().chars().take(DIGEST_DIGITS).collect();
    let name = package.name.as_ref().map_or_else(|| "-".to_owned(), ToString::to_string);
    vec![digest, name, format::bytes(package.disk_bytes), state.to_owned(), from.join("; ")]
}

/// How to add the first machine to a cell.
pub fn first_machine_hint(cell: &Cell) -> &'static str {
    if cell.open {
        // Machines do not join an open cell with tokens.
        "cell sim agents --machines 3, or start `cell dev` again"
    } else {
        "cell token create --agent MACHINE"
    }
}

fn remove_machine(cell: &Cell, machine: &Name, force: bool) -> Result<(), Failure> {
    let change = ChangeOptions::default();
    block_on(async { Ok(cell.client.remove_machine(machine, force, &change).await?) })?;
    let rejoin_hint = if cell.open {
        "start `cell dev` again".to_owned()
    } else {
        format!("cell token create --agent {machine}")
    };
    print_prose(&format!(
        "machine {machine} is not part of the cell any more\n\
         next, should it come back: {rejoin_hint}\n"
    ))
}

/// `silent_seconds`: seconds since the last message from machines that are silent.
fn render_list(machines: &[MachineView], silent_seconds: &BTreeMap<String, u64>) -> String {
    let amount = |dimension, amount| format::amount(Units::CoresAndBytes, dimension, amount);
    let rows: Vec<Vec<String>> = machines
        .iter()
        .map(|machine| {
            let mut state =
                if machine.draining { "draining".into() } else { enum_text(&machine.status) };
            let short: Vec<&str> = machine
                .resource_pressure
                .iter()
                .map(|shortage| shortage.dimension.as_str())
                .collect();
            if !short.is_empty() {
                state.push_str(&format!(", short of {}", short.join(" and ")));
            }
            let is_refused =
                machine.trouble.as_ref().is_some_and(|trouble| trouble.kind == Trouble::Refused);
            if is_refused {
                state.push_str(", refused");
            } else if let Some(seconds) = silent_seconds.get(machine.name.as_str()) {
                state.push_str(&format!(", silent {seconds} s"));
            }
            vec![
                machine.name.to_string(),
                state,
                format::count(u64::from(machine.tasks)),
                amount("cpu", machine.available.cpu),
                amount("cpu", machine.spec.capacity.cpu),
                amount("ram", machine.available.ram),
                amount("ram", machine.spec.capacity.ram),
            ]
        })
        .collect();
    let header = ["machine", "state", "tasks", "free cpu", "cpu", "free ram", "ram"];
    table::render(&header, &rows)
}

#[cfg(test)]
mod tests {
    use super::*;
    use cellwright_cell::device::{Device, REMOVED_DEVICE};
    use cellwright_cell::name::{JobKey, Token};
    use cellwright_cell::resource::Dimension;
    use serde_json::json;

    #[test]
    fn who_holds_up_a_drain_is_named() {
        let name = |text| Name::new(text).unwrap();
        let job = JobKey { user: name("ann"), job: name("web") };
        let wait = |tasks, next| {
            let (job, limit) = (job.clone(), DrainLimit::Disruptions);
            DrainWaitView { job, tasks, next, limit, down: 0 }
        };
        let drain_text = |tasks, next| drain_wait_text(&wait(tasks, next), Time(59_999));
        assert_eq!(
            drain_text(1, Some(Time(60_000))),
            "1 task waits for the disruption limit of ann/web, next at 1970-01-01 00:01:00Z"
        );
        assert!(
            drain_text(2, None)
                .starts_with("2 tasks wait for the disruption limit of ann/web, which")
        );
        let past = drain_text(1, Some(Time(59_999)));
        assert!(past.ends_with("ann/web, next in a moment"), "{past}");
        let down = |down| DrainWaitView { limit: DrainLimit::MaxDown, down, ..wait(2, None) };
        let drain_text = |number| drain_wait_text(&down(number), Time(0));
        assert_eq!(drain_text(1), "2 tasks wait for max_down of ann/web: 1 is down");
        assert_eq!(drain_text(0), "2 tasks wait for max_down of ann/web: 0 are down");
    }

    fn machine() -> MachineView {
        let some = json!({ "cpu": 1000, "ram": 1 << 30 });
        serde_json::from_value(json!({
            "name": "m1", "status": "up", "draining": false, "over_committed": false,
            "generation": 1, "incarnation": 1, "spec": { "name": "m1", "capacity": some },
            "reserved": some, "prod_limits": some, "limits": some, "available": some,
            "available_prod": some, "tasks": 2, "stopping": 0, "named": [], "devices_used": [],
            "packages": 0, "retained_bytes": 0, "drain_waits": [], "resource_pressure": [], "since": 0,
        }))
        .unwrap()
    }

    #[test]
    fn the_packages_of_a_machine_are_told_within_a_terminal() {
        let source = json!({ "name": "another-machine-of-the-rack", "is_master": false,
            "bytes": 1_500_000, "is_wrong": false });
        let package = json!({ "digest": "4c".repeat(32), "name": "the-server-of-the-search-team",
            "disk_bytes": 1 << 21, "in_use": true, "is_damaged": false,
            "from": [source, source] });
        let package_list: MachinePackages = serde_json::from_value(json!({
            "packages": [package], "taken_bytes": 1_500_000, "most_bytes": 10_u64 << 30,
            "from_masters": 15_000_000, "from_machines": 15_000_000, "to_machines": 15_000_000,
            "avoided": ["10.0.0.7:7071", "10.0.0.8:7071"],
        }))
        .unwrap();
        let text = table::wrap_prose(&render_packages(&Name::new("m1").unwrap(), &package_list));
        assert!(text.lines().all(|line| line.chars().count() <= table::WIDTH), "{text}");
        assert!(text.contains("14.3 MiB from masters"), "{text}");
    }

    #[test]
    fn a_device_that_is_gone_has_no_share_to_be_had() {
        let mut machine = machine();
        let device = |kind: &str, model: &str| Device {
            kind: Token::new(kind).unwrap(),
            model: Token::new(model).unwrap(),
        };
        machine.spec.devices = vec![device(REMOVED_DEVICE, "gpu:a"), device("gpu", "a100")];
        machine.devices_used = vec![0, 250];
        let rendered = render(&machine);
        assert!(
            rendered.contains("gpu:a, gone") && !rendered.contains(REMOVED_DEVICE),
            "{rendered}"
        );
        assert!(rendered.contains("gpu a100, 750 of 1000 free"), "{rendered}");
    }

    #[test]
    fn a_machine_that_is_silent_or_refused_says_why_since_when_and_what_to_do() {
        let mut machine = machine();
        let listed =
            |machine: &MachineView| render_list(std::slice::from_ref(machine), &BTreeMap::new());
        assert!(!render(&machine).contains("next"), "{}", render(&machine));
        let (reason, next) = ("reports in format 1".to_owned(), "restart the agent".to_owned());
        let since = Time(1_700_000_000_000);
        machine.trouble = Some(TroubleView { kind: Trouble::Refused, since, reason, next });
        let rendered = table::wrap_prose(&render(&machine));
        assert!(
            rendered.contains("refused") && rendered.contains("since 2023-11-14"),
            "{rendered}"
        );
        assert!(
            rendered.contains("format 1") && rendered.contains("restart the agent"),
            "{rendered}"
        );
        assert!(listed(&machine).contains("up, refused"), "{}", listed(&machine));
    }

    #[test]
    fn a_machine_that_is_short_says_of_what_and_since_when() {
        let mut machine = machine();
        let listed =
            |machine: &MachineView| render_list(std::slice::from_ref(machine), &BTreeMap::new());
        assert!(!render(&machine).contains("short") && !listed(&machine).contains("short"));
        let (dimension, since) = (Dimension::Cpu, Time(1_700_000_000_000));
        machine.resource_pressure = vec![ResourcePressureView { dimension, since, over: false }];
        assert!(render(&machine).contains("cpu since 2023-11-14"), "{}", render(&machine));
        assert!(listed(&machine).contains("short"), "{}", listed(&machine));
        machine.resource_pressure[0].over = true;
        assert!(render(&machine).contains("cpu until lately"), "{}", render(&machine));
    }
}
