//! How a task is shut off from its machine and its neighbours (B37, B38, X9), as its owner asks for
//! it: its root, its network, what it may take of what others leave, what it may see of the
//! machine, and its secrets.
//!
//! What is left out is what most tasks want: the machine's own programs as the root, the machine's
//! network, CPU that others leave but none of their memory.

use crate::name::Token;
use serde::{Deserialize, Serialize};
use std::fmt;

/// Most processes and threads of a task that does not say.
pub const PROCESSES: u32 = 1024;

/// What a value of a secret reads as wherever a spec is shown.
pub const HIDDEN: &str = "(hidden)";

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Network {
    /// That of the machine. Use of a port that was not given is seen and reported.
    #[default]
    Host,
    /// One with nothing in it: no port of the machine can be used.
    Own,
}

/// How a task is shut off. Left out: each field as stated there.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default, deny_unknown_fields)]
pub struct Isolation {
    /// The package that is the task's file system. `None`: the machine's own programs, read-only.
    pub root: Option<Token>,
    /// Left out: host.
    pub network: Network,
    /// Whether it may use CPU that others leave, beyond its limit. Left out: true.
    pub slack_cpu: bool,
    /// Whether it may use memory that others leave, beyond its limit, and be killed first when
    /// they want it back. Left out: false.
    pub slack_ram: bool,
    /// Cores that are closed to other latency-sensitive tasks. Left out: 0.
    pub whole_cores: u32,
    /// Most processes and threads. Left out: 1024.
    pub processes: u32,
    /// Folders of the machine that its operator lends to tasks. Left out: none.
    pub volumes: Vec<Volume>,
}

impl Default for Isolation {
    fn default() -> Isolation {
        Isolation {
            root: None,
            network: Network::Host,
            slack_cpu: true,
            slack_ram: false,
            whole_cores: 0,
            processes: PROCESSES,
            volumes: Vec::new(),
        }
    }
}

/// A folder of the machine, seen by a task.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Volume {
    /// The path on the machine.
    pub source: String,
    /// The path that the task sees.
    pub target: String,
    /// Left out: false.
    #[serde(default)]
    pub writable: bool,
}

/// A value that its machine writes into a file for the task and nobody is shown.
#[derive(Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(transparent)]
pub struct Secret(pub String);

impl Secret {
    /// What stands in its place where a spec is shown.
    #[must_use]
    pub fn hidden() -> Secret {
        Secret(HIDDEN.to_owned())
    }
}

/// A value never gets into a log by accident.
impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(HIDDEN)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_left_out_is_what_most_want() {
        let none: Isolation = serde_json::from_str("{}").unwrap();
        assert_eq!(none, Isolation::default());
        assert_eq!((none.slack_cpu, none.slack_ram, none.network), (true, false, Network::Host));
        let own: Isolation = serde_json::from_str(r#"{"network": "own"}"#).unwrap();
        assert_eq!(own, Isolation { network: Network::Own, ..Isolation::default() });
    }

    #[test]
    fn a_secret_is_not_printed() {
        let secret = Secret("rosebud".into());
        assert_eq!(format!("{secret:?}"), HIDDEN);
        assert_eq!(serde_json::to_string(&secret).unwrap(), "\"rosebud\"");
    }
}
