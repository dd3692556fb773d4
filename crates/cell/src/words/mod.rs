//! The one place where reasons become words: verdicts, events, explanations, as a person would say
//! them, with names instead of rows. `apply` and the scheduler make data; the API, the CLI, the
//! console, history and golden transcripts speak with this voice alone, so that what a test pins
//! is what people read.
//!
//! A row that is gone has no name any more; it is then called by its number (`task#7`), but for the
//! machine of a task, of which it is said that it is gone.
//!
//! Nothing here knows how wide a line may be: that is for whoever shows it.
//!
//! Rejected: words beside the code that decides. They were then in rows and hashes, two builds that
//! worded something differently had different hashes, and a hint was found by parsing a message.

mod allowed;
mod conflict;
mod event;
pub mod explanation;
mod names;
pub mod quantity;
mod reason;
mod rejection;
pub mod scaling;

pub use event::{CodedEvent, EventText, event, event_coded, event_text, limits_change};
pub(crate) use names::job_name;
pub use names::machine_name;
pub use reason::{ended, ended_coded, infeasible, not_retried, reason, reason_coded};
pub use rejection::{bad_field, rejection, verdict};

#[cfg(test)]
mod tests {
    use super::*;
    use crate::apply::fixture::{Cell, job, key, name};
    use crate::command::{Command, Done, Observed};
    use crate::event::TaskChange;
    use crate::id::{MachineId, TaskId};
    use crate::name::Token;
    use crate::reason::{InfeasibleReason, Reason, Rejection};
    use crate::spec::Domain;
    use crate::task::ExitClass;
    use crate::time::Time;

    fn check(cell: &mut Cell, command: Command, want: &[&str]) {
        cell.ok(command);
        assert_eq!(cell.event_lines, want);
    }

    #[test]
    fn a_life_reads_like_a_story() {
        let mut cell = Cell::with_machines(1);
        let submit =
            Command::SubmitJob { owner: name("ubar"), spec: Box::new(job("jfoo", 1, 100)) };
        check(
            &mut cell,
            submit,
            &[
                "ubar/jfoo submitted: requested",
                "ubar/jfoo accepted: well formed and within quota",
                "ubar/jfoo/0 submitted: well formed and within quota",
            ],
        );
        cell.run("jfoo", 0, "m1");
        assert_eq!(cell.event_lines, ["ubar/jfoo/0 started on m1: seen by the machine's agent"]);
        let stop = Command::StopJob { job: key("ubar/jfoo"), expect: None };
        let told =
            ["ubar/jfoo told to stop: requested", "ubar/jfoo/0 told to stop on m1: requested"];
        check(&mut cell, stop, &told);
        cell.report("jfoo", 0, Observed::Stopped);
        let ends = ["ubar/jfoo/0 killed: requested", "ubar/jfoo killed: all tasks have ended"];
        assert_eq!(cell.event_lines, ends);
        // Of what is forgotten only the numbers are left.
        let purge = Command::PurgeJobs { ended_before: Time::NEVER };
        check(&mut cell, purge, &["job#0/0 forgotten: requested", "job#0 forgotten: requested"]);
    }

    #[test]
    fn a_task_of_a_machine_that_is_gone_is_told_without_numbers() {
        let mut cell = Cell::with_machines(1);
        cell.submit(&job("jfoo", 1, 100));
        let lost = |machine| event::task_change(&cell.state, TaskChange::Lost { machine });
        assert_eq!(lost(MachineId(0)), "lost with m1, pending again");
        assert_eq!(lost(MachineId(9)), "lost with a machine that is gone, pending again");
        let spread = InfeasibleReason::Spread { domain: Domain::Machine, limit: 1 };
        assert_eq!(infeasible(&cell.state, &spread), "the machine holds 1 task of the job already");
    }

    #[test]
    fn every_code_has_words_of_its_own() {
        let plain = ["requested", "succeeded", "preempted"];
        for code in Reason::CODES {
            let words = reason_coded(code);
            assert_eq!(words == code, plain.contains(&code), "{code}");
        }
        assert_eq!(reason_coded("of-a-newer-build"), "of-a-newer-build");
    }

    #[test]
    fn what_is_given_up_says_where_and_how_it_ended() {
        let mut cell = Cell::with_machines(1);
        let mut spec = job("jfoo", 1, 100);
        spec.restart.max_failures = Some(0);
        cell.submit(&spec);
        let mut next = job("jbar", 1, 100);
        next.after =
            vec![crate::dependency::JobDependency { job: key("ubar/jfoo"), require_success: true }];
        cell.submit(&next);
        cell.run("jfoo", 0, "m1");
        cell.report("jfoo", 0, Observed::Failed(ExitClass::Code(3)));
        let told = [
            "ubar/jfoo/0 failed for good on m1: exited with code 3, \
             its job allows no more failures",
            "ubar/jfoo failed: all tasks have ended",
            "ubar/jbar/0 never ran: a job it needed did not succeed (ubar/jfoo)",
            "ubar/jbar never ran: a job it needed did not succeed (ubar/jfoo)",
        ];
        assert_eq!(cell.event_lines, told);
    }

    #[test]
    fn an_update_that_ended_by_itself_was_not_requested() {
        let mut event = CodedEvent { object: "ann/web", reason: "requested", ..Default::default() };
        (event.event, event.detail) = ("update-closed", Some("version 1"));
        assert_eq!(event_coded(&event), "ann/web update closed (version 1)");
        event.event = "update-opened";
        assert_eq!(event_coded(&event), "ann/web update opened: requested (version 1)");
    }

    #[test]
    fn reasons_name_the_port_its_holder_and_the_numbers() {
        let mut cell = Cell::with_machines(1);
        cell.submit(&job("jfoo", 1, 100));
        let check =
            |why: InfeasibleReason, want: &str| assert_eq!(infeasible(&cell.state, &why), want);
        check(
            InfeasibleReason::StaticPort { port: 80, holder: Some(TaskId(0)) },
            "port 80 is held by ubar/jfoo/0",
        );
        check(
            InfeasibleReason::StaticPort { port: 80, holder: Some(TaskId(9)) },
            "port 80 is held by task#9",
        );
        check(
            InfeasibleReason::Spread { domain: Domain::Rack, limit: 2 },
            "its rack holds 2 tasks of the job already",
        );
        let kind = Token::new("gpu").unwrap();
        check(
            InfeasibleReason::Device { kind, requested: 2, milli: 500, available: 1 },
            "2 gpu with 500 milli free asked, 1 available",
        );
        let by = Reason::Preempted { by: TaskId(0) };
        assert_eq!(reason(&cell.state, &by), "preempted by ubar/jfoo/0");
        let partly = Done::Partly(vec![(3, Rejection::NeedlessVictim(TaskId(0)))]);
        assert_eq!(
            verdict(&cell.state, &Ok(partly)),
            "done in part; refused: item 3: ubar/jfoo/0 need not give way: \
             the group fits without that"
        );
    }
}
