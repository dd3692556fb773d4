//! The commands: one file per verb.

mod agent;
mod alarms;
mod archive;
mod arrivals;
mod audit;
mod checkpoint;
mod compact;
mod completion;
mod context;
mod cp;
mod cron;
mod describe;
mod dev;
mod dev_ports;
mod dev_ready;
mod drain;
mod edit;
mod enum_words;
mod events;
mod exec;
mod explain;
mod file;
mod file_inputs;
mod fits;
mod fmt;
mod init;
mod job;
mod join_request;
mod logs;
mod machine;
mod master;
mod one_off;
mod pack;
mod package;
mod pagination;
mod parse;
mod plan;
mod plan_request;
mod port_forward;
mod quota;
mod resize;
mod restart;
mod run;
mod scale;
mod scale_cell;
mod scheduler;
mod schema;
mod select;
mod shapes;
mod sim_query;
mod sim_report;
mod sim_scale;
mod simulated_agents;
mod sql;
mod start;
mod status;
mod status_text;
mod stop;
mod target;
mod token;
mod top;
mod update;
mod user;
mod validate;
mod virtual_args;
mod wait;
mod whatif;

use crate::connection::ConnectionArgs;
use crate::failure::Failure;
use clap::Subcommand;

/// How a command ended without an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Success {
    Done,
    /// The result is that the job does not fit.
    DoesNotFit,
    /// The plan found changes, and its exit code was requested to say so.
    WouldChange,
    /// A command in a task exited with this code.
    ExitWith(u8),
    /// The result is printed, but no master leads, so it may be stale.
    NoLeader,
}

/// The default path of a master's configuration.
pub const DEFAULT_CONFIG: &str = "/etc/cellwright/master.toml";

const SIM_EXAMPLES: &str = "\
Examples:
  cell sim pack --trace example:examples/small-cell
  cell sim pack --trace example:examples/small-cell --explain ci/riscv-port/0
  cell sim compact --trace example:examples/small-cell --trials 11
  cell sim fits --trace example:examples/small-cell --job cpu=2,ram=8GiB
  cell sim whatif --trace example:examples/small-cell \\
    --job cpu=8,ram=32GiB,count=20
  cell sim scale --trace rates:requests.csv";

#[derive(Debug, Subcommand)]
pub enum Command {
    Dev(dev::DevArgs),
    Status(status::StatusArgs),
    Describe(describe::DescribeArgs),
    Top(top::TopArgs),
    Wait(wait::WaitArgs),
    Stop(stop::StopArgs),
    Start(start::StartArgs),
    Restart(restart::RestartArgs),
    Update(update::UpdateArgs),
    Promote(update::PromoteArgs),
    Revert(job::RevertArgs),
    Resize(resize::ResizeArgs),
    Scale(scale::ScaleArgs),
    Drain(drain::DrainArgs),
    Run(run::RunArgs),
    Validate(validate::ValidateArgs),
    Edit(edit::EditArgs),
    Fmt(fmt::FmtArgs),
    Init(init::InitArgs),
    Schema(schema::SchemaArgs),
    #[command(subcommand)]
    Job(job::Job),
    #[command(subcommand)]
    Cron(cron::Cron),
    #[command(subcommand)]
    Machine(machine::Machine),
    Plan(plan::PlanArgs),
    Explain(explain::ExplainArgs),
    Shapes(shapes::ShapesArgs),
    Events(events::EventsArgs),
    Sql(sql::SqlArgs),
    Logs(logs::LogsArgs),
    Exec(exec::ExecArgs),
    Cp(cp::CpArgs),
    PortForward(port_forward::PortForwardArgs),
    #[command(subcommand)]
    User(user::User),
    #[command(subcommand)]
    Quota(quota::Quota),
    #[command(subcommand)]
    Token(token::Token),
    #[command(subcommand)]
    Package(package::Package),
    #[command(subcommand)]
    Master(master::Master),
    /// Run a scheduler in the foreground
    Scheduler(scheduler::SchedulerArgs),
    #[command(subcommand)]
    Agent(agent::Agent),
    #[command(subcommand)]
    Checkpoint(checkpoint::Checkpoint),
    #[command(subcommand)]
    Archive(archive::Archive),
    Audit(audit::AuditArgs),
    #[command(subcommand)]
    Context(context::Context),
    Completion(completion::CompletionArgs),
    Man(completion::ManArgs),
    /// Run the real scheduler on a recorded or made-up workload
    #[command(subcommand, after_help = SIM_EXAMPLES)]
    Sim(Sim),
}

/// Experiments; but for `agents`, nothing outside this process changes.
#[derive(Debug, Subcommand)]
pub enum Sim {
    /// Place a whole workload from scratch: what fits, what pends and why
    Pack(pack::PackArgs),
    /// Find how few machines would do for a workload
    Compact(compact::CompactArgs),
    /// Count how many more tasks of a job fit, and say what stops the next one
    Fits(fits::FitsArgs),
    /// Say what adding a job would do: where it goes, who is evicted, what pends
    Whatif(whatif::WhatifArgs),
    Scale(sim_scale::SimScaleArgs),
    Agents(simulated_agents::SimulatedAgentsArgs),
}

impl Command {
    pub fn run(self, connection: &ConnectionArgs) -> Result<Success, Failure> {
        match self {
            Command::Dev(args) => args.run(),
            Command::Status(args) => args.run(connection),
            Command::Describe(args) => args.run(connection),
            Command::Top(args) => args.run(connection),
            Command::Wait(args) => args.run(connection),
            Command::Stop(args) => args.run(connection),
            Command::Start(args) => args.run(connection),
            Command::Restart(args) => args.run(connection),
            Command::Update(args) => args.run(connection),
            Command::Promote(args) => args.run(connection),
            Command::Revert(args) => args.run(connection),
            Command::Resize(args) => args.run(connection),
            Command::Scale(args) => args.run(connection),
            Command::Drain(args) => args.run(connection),
            Command::Run(args) => args.run(connection),
            Command::Validate(args) => args.run(connection),
            Command::Edit(args) => args.run(connection),
            Command::Fmt(args) => args.run(),
            Command::Init(args) => args.run(),
            Command::Schema(args) => args.run(),
            Command::Job(verb) => verb.run(connection),
            Command::Cron(verb) => verb.run(connection),
            Command::Machine(verb) => verb.run(connection),
            Command::Plan(args) => args.run(connection),
            Command::Explain(args) => args.run(connection),
            Command::Shapes(args) => args.run(connection),
            Command::Events(args) => args.run(connection),
            Command::Sql(args) => args.run(connection),
            Command::Logs(args) => args.run(connection),
            Command::Exec(args) => args.run(connection),
            Command::Cp(args) => args.run(connection),
            Command::PortForward(args) => args.run(connection),
            Command::User(verb) => verb.run(connection),
            Command::Quota(verb) => verb.run(connection),
            Command::Token(verb) => verb.run(connection),
            Command::Package(verb) => verb.run(connection),
            Command::Master(verb) => verb.run(connection),
            Command::Scheduler(args) => args.run(connection),
            Command::Agent(verb) => verb.run(connection),
            Command::Checkpoint(verb) => verb.run(connection),
            Command::Archive(verb) => verb.run(connection),
            Command::Audit(args) => args.run(connection),
            Command::Context(verb) => verb.run(connection),
            Command::Completion(args) => args.run(crate::command_tree()),
            Command::Man(args) => args.run(crate::command_tree()),
            Command::Sim(sim) => sim.run(connection),
        }
    }
}

impl Sim {
    fn run(self, connection: &ConnectionArgs) -> Result<Success, Failure> {
        match self {
            Sim::Pack(args) => args.run(),
            Sim::Compact(args) => args.run(),
            Sim::Fits(args) => args.run(),
            Sim::Whatif(args) => args.run(),
            Sim::Scale(args) => args.run(),
            Sim::Agents(args) => args.run(connection),
        }
    }
}
