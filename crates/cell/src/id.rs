//! Newtype identities. A bare integer is never an identity: mixing a task slot with a machine slot
//! must not compile. Ids index rows of the state's tables; people only ever see names.

use serde::{Deserialize, Serialize};
use std::fmt;

macro_rules! id {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(
            Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
        )]
        #[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
        pub struct $name(pub u32);

        impl $name {
            /// Position of the row in its table.
            #[inline]
            pub fn slot(self) -> usize {
                self.0 as usize
            }
        }

        impl crate::table::Key for $name {
            fn from_slot(slot: usize) -> Self {
                // Tables refuse to grow past u32::MAX rows, so the cast cannot lose bits.
                Self(slot as u32)
            }
            fn slot(self) -> usize {
                self.0 as usize
            }
        }
    };
}

id!(
    /// A user of the cell.
    UserId
);
id!(
    /// A job or alloc set. Never reused, so a stale reference cannot meet a newer job.
    JobId
);
id!(
    /// The row of one task or alloc. Rows of purged jobs are reused; outside the state a task is
    /// named by job and index.
    TaskId
);
id!(
    /// A machine. Never reused.
    MachineId
);
id!(
    /// A periodic job. Never reused.
    CronId
);
id!(
    /// A token's row. Never reused.
    TokenId
);
id!(
    /// A blob's row. Never reused.
    BlobId
);
id!(
    /// An interned name of a countable resource (static or ephemeral). Never reused.
    ResourceId
);

/// One try at running one task. What was told to an attempt, or held against it, says nothing about
/// the next one: that is another program in another place.
///
/// A saver that fetches what an attempt left behind runs under that attempt's name, with the number
/// of the run: it is no task of its own, and what it fetches is that attempt's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Attempt {
    pub task: TaskId,
    pub number: u32,
    /// Which run of its saver this is, from 1; 0 for the attempt itself.
    pub saver: u32,
}

impl Attempt {
    #[must_use]
    pub const fn new(task: TaskId, number: u32) -> Attempt {
        Attempt { task, number, saver: 0 }
    }

    #[must_use]
    pub const fn is_saver(self) -> bool {
        self.saver > 0
    }

    /// Whose leavings a saver fetches; itself for all others.
    #[must_use]
    pub const fn itself(self) -> Attempt {
        Attempt { saver: 0, ..self }
    }
}

impl fmt::Display for Attempt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.task.0, self.number)?;
        match self.saver {
            0 => Ok(()),
            run => write!(f, "-{run}"),
        }
    }
}
