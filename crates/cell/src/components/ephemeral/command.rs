//! Commands for ephemeral resources.

use super::{CapacityChange, NodeChoice};
use crate::apply::authorize::{AgentRight, Rights, UserRight};
use crate::components::ComponentCommand;
use crate::name::Token;
use crate::time::Span;
use serde::{Deserialize, Serialize};

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Command {
    Set {
        namespace: Token,
        name: Token,
        /// Counted from the entry's time.
        lease: Span,
        changes: Vec<(NodeChoice, CapacityChange)>,
    },
    Delete {
        namespace: Token,
        name: Token,
    },
}

impl ComponentCommand for Command {
    fn name(&self) -> &'static str {
        match self {
            Command::Set { .. } => "set_resource",
            Command::Delete { .. } => "delete_resource",
        }
    }

    fn rights(&self) -> Rights<'_> {
        match self {
            Command::Set { namespace, changes, .. } => Rights {
                agent: AgentRight::Capacity { namespace, changes },
                ..Rights::users(UserRight::Namespace(namespace))
            },
            Command::Delete { namespace, .. } => Rights::users(UserRight::Namespace(namespace)),
        }
    }

    fn object(&self) -> String {
        let (Command::Set { namespace, name, .. } | Command::Delete { namespace, name }) = self;
        format!("{namespace}/{name}")
    }

    fn frees_space(&self) -> bool {
        matches!(self, Command::Delete { .. })
    }
}
