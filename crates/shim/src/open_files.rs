//! How many files a process that serves may have open: as many as it may allow itself.
//!
//! A session of a person or of a service begins with 1,024 on most systems, and may raise that by
//! itself a long way. A master with a connection for every machine needs more, so every process
//! that serves does that when it begins. Tasks are not to notice: some programs still go wrong
//! above 1,024 (`select` does), and what their machine's operator allows them is the operator's
//! word. So the agent tells the shims and sessions that it starts what it began with, and they go
//! back to it before they start anything.
//!
//! Rejected: to ask operators for it. The units that are shipped do, but not everybody uses them.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::sync::OnceLock;

/// More than any process here has open. Some systems allow a thousand times as many, and programs
/// that go through all numbers, as runtimes of containers did, take minutes for it.
const MAX_OPEN_FILES: u64 = 1 << 20;
/// What the agent began with, for those whom it starts.
const ENV_VAR: &str = "CELL_OPEN_FILES_BEFORE";

static INITIAL_LIMIT: OnceLock<u64> = OnceLock::new();

/// Allows this process as many as it may allow itself.
pub fn raise() {
    let limit = getrlimit(Resource::Nofile);
    if let (Some(before), Some(raised)) = (limit.current, raised(&limit))
        // Always allowed; if a sandbox forbids it, the process goes on with what it has.
        && setrlimit(Resource::Nofile, raised).is_ok()
    {
        // Whoever raises it a second time began with what the first one found.
        let _ = INITIAL_LIMIT.set(before);
    }
}

/// What the limit is to be, if that is more than it is.
fn raised(limit: &Rlimit) -> Option<Rlimit> {
    let most = limit.maximum.unwrap_or(MAX_OPEN_FILES).min(MAX_OPEN_FILES);
    let is_more = limit.current.is_some_and(|now| now < most);
    is_more.then_some(Rlimit { current: Some(most), maximum: limit.maximum })
}

/// What a process around a task is told in its environment.
pub fn inherited_env() -> Option<(&'static str, String)> {
    INITIAL_LIMIT.get().map(|before| (ENV_VAR, before.to_string()))
}

/// Goes back to what the agent began with, in a process that the agent started.
pub fn lower() {
    let inherited = std::env::var(ENV_VAR).ok().and_then(|before| before.parse().ok());
    let Some(before) = inherited else { return };
    let limit = getrlimit(Resource::Nofile);
    if let Some(lowered) = lowered(&limit, before) {
        // To give up what one has is always allowed.
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
