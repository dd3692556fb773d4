//! The limit of open files (`RLIMIT_NOFILE`) of processes that serve: raised to what the hard limit
//! allows.
//!
//! A login session or a service begins with 1,024 on most systems, and may raise that by itself a
//! long way. A master with a connection for every machine needs more, so every process that serves
//! raises it when it begins. Tasks must not be affected: some programs still fail above 1,024
//! (`select` does), and the limit of tasks is set by their machine's operator. So the agent passes
//! its initial limit to the shims and sessions that it starts, and they go back to it before they
//! start anything.
//!
//! Rejected: requiring operators to set it. The shipped systemd units do, but not every operator
//! uses them.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::sync::OnceLock;

/// More than any process here has open. Some systems allow a thousand times as many, and programs
/// that loop over all descriptors, as container runtimes did, take minutes for it.
const MAX_OPEN_FILES: u64 = 1 << 20;
/// The agent's initial limit, for the processes that it starts.
const ENV_VAR: &str = "CELL_OPEN_FILES_BEFORE";

static INITIAL_LIMIT: OnceLock<u64> = OnceLock::new();

/// Raises the limit of this process to the most it is allowed.
pub fn raise() {
    let limit = getrlimit(Resource::Nofile);
    if let (Some(before), Some(raised)) = (limit.current, raised(&limit))
        // Always allowed; if a sandbox forbids it, the process goes on with its limit.
        && setrlimit(Resource::Nofile, raised).is_ok()
    {
        // A second call would find the raised limit; the first one counts.
        let _ = INITIAL_LIMIT.set(before);
    }
}

/// The raised limit, if that is more than the current one.
fn raised(limit: &Rlimit) -> Option<Rlimit> {
    let most = limit.maximum.unwrap_or(MAX_OPEN_FILES).min(MAX_OPEN_FILES);
    let is_more = limit.current.is_some_and(|now| now < most);
    is_more.then_some(Rlimit { current: Some(most), maximum: limit.maximum })
}

/// The environment variable for a process around a task.
pub fn inherited_env() -> Option<(&'static str, String)> {
    INITIAL_LIMIT.get().map(|before| (ENV_VAR, before.to_string()))
}

/// Restores the agent's initial limit, in a process that the agent started.
pub fn lower() {
    let inherited = std::env::var(ENV_VAR).ok().and_then(|before| before.parse().ok());
    let Some(before) = inherited else { return };
    let limit = getrlimit(Resource::Nofile);
    if let Some(lowered) = lowered(&limit, before) {
        // To lower one's own limit is always allowed.
        let _never = setrlimit(Resource::Nofile, lowered);
    }
}

fn lowered(limit: &Rlimit, before: u64) -> Option<Rlimit> {
    let is_less = limit.current.is_none_or(|now| before < now);
    is_less.then_some(Rlimit { current: Some(before), maximum: limit.maximum })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limit(current: Option<u64>, maximum: Option<u64>) -> Rlimit {
        Rlimit { current, maximum }
    }

    #[test]
    fn the_limit_is_raised_as_far_as_it_may_be_and_is_of_use() {
        let check = |current, maximum, expected: Option<u64>| {
            let raised = raised(&limit(current, maximum));
            assert_eq!(raised, expected.map(|now| limit(Some(now), maximum)), "{current:?}");
        };
        check(Some(1024), Some(4096), Some(4096));
        check(Some(1024), Some(1 << 30), Some(MAX_OPEN_FILES));
        check(Some(1024), None, Some(MAX_OPEN_FILES));
        check(Some(4096), Some(4096), None);
        check(Some(MAX_OPEN_FILES + 1), Some(1 << 30), None);
        check(None, None, None);
    }

    #[test]
    fn tasks_have_what_the_agent_began_with_and_never_more() {
        let raised = limit(Some(4096), Some(4096));
        assert_eq!(lowered(&raised, 1024), Some(limit(Some(1024), Some(4096))));
        assert_eq!(lowered(&limit(Some(512), Some(4096)), 1024), None);
    }
}
