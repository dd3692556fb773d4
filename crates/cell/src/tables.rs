//! The tables of the state, in one list, and what every kind of row says of itself.
//!
//! Whatever is done to all tables alike (bytes, text, hash, what a refused command must not touch)
//! is made from the list: a table that is missing somewhere would be lost by a checkpoint, or
//! changed without anybody noticing. A new table is a component's, in [`crate::components`], and a
//! row type that encodes itself.
//!
//! Rejected: a registry of trait objects. Rows of a table are of one type, and who reads them by
//! that type would have to cast.

use crate::encode::{LoadError, Rows};
use crate::name::Name;
use crate::state::State;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::fmt;

/// Hands every table to a macro, in the order of a checkpoint: field of lists of all tables,
/// variant of [`TableName`], word for people, type of the ids, type of the rows, where in the state
/// it is. Those of components follow, from [`crate::components`].
macro_rules! each_table {
    ($then:ident) => {
        $crate::components::with_component_tables! {
            $then [
                users Users "users" (crate::id::UserId, crate::quota::User) at users;
                machines Machines "machines" (
                    crate::id::MachineId, crate::machine::Machine
                ) at machines;
                jobs Jobs "jobs" (crate::id::JobId, crate::job::Job) at jobs;
                tasks Tasks "tasks" (crate::id::TaskId, crate::task::Task) at tasks;
                tokens Tokens "tokens" (
                    crate::id::TokenId, crate::credential::AccessToken
                ) at tokens;
                blobs Blobs "packages" (crate::id::BlobId, crate::blob::Blob) at blobs;
            ]
        }
    };
}
pub(crate) use each_table;

/// What a kind of row says of itself, wherever rows of all tables are treated alike.
pub(crate) trait TableRow:
    Clone + fmt::Debug + PartialEq + Serialize + DeserializeOwned
{
    /// What errors call a row: `user row 3`.
    const NOUN: &'static str;
    /// Whether its label begins with that of its owner, which stands in another row.
    const OWNED: bool = false;

    /// Whether its label is made of other rows alone.
    const LABEL_OF_OTHERS: bool = false;

    /// What people call it. Nobody has vouched for the rows: what it refers to may be missing.
    fn label(&self, rows: &Rows) -> String;

    /// What people call it in events; `None` if nobody does.
    fn name(&self, _: &State) -> Option<String> {
        None
    }

    /// What errors call it beside its id, if the row itself says it.
    fn title(&self) -> Option<String> {
        None
    }

    /// Whether it is this machine, is on it or holds room there, for whoever asks for all of a
    /// machine.
    fn is_of_machine(&self, _: &Rows, _: &Name) -> bool {
        false
    }

    /// Holds it to what admission lets in. `row` is what errors call it.
    fn check(&self, row: &str) -> Result<(), LoadError> {
        let _ = row;
        Ok(())
    }
}

/// `user row 3 (ann)`.
pub(crate) fn row_title<T: TableRow>(id: usize, row: &T) -> String {
    match row.title() {
        Some(title) => format!("{} row {id} ({title})", T::NOUN),
        None => format!("{} row {id}", T::NOUN),
    }
}

/// A row of any table. Durable: the feed of events keeps the names of rows by it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct RowRef {
    pub table: TableName,
    pub slot: u32,
}

impl fmt::Display for RowRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}#{}", self.table, self.slot)
    }
}

macro_rules! table_names {
    ($($field:ident $variant:ident $word:literal ($id:ty, $row:ty)
        at $($place:ident).+;)*) => {
        /// The tables of a state, and the replay windows, which are treated as one.
        #[derive(
            Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize,
            serde::Deserialize,
        )]
        pub enum TableName {
            $(#[serde(rename = $word)] $variant,)*
            /// What clients were answered lately, should they ask again.
            #[serde(rename = "windows")]
            Windows,
        }

        impl TableName {
            pub const ALL: [TableName; [$($word),*].len() + 1] =
                [$(TableName::$variant,)* TableName::Windows];

            /// What errors call a row of it; nothing for windows, which have no ids.
            pub(crate) fn noun(self) -> Option<&'static str> {
                match self {
                    $(TableName::$variant => Some(<$row as TableRow>::NOUN),)*
                    TableName::Windows => None,
                }
            }

            /// Whether labels of its rows say nothing of the row itself.
            pub(crate) fn is_labelled_by_others(self) -> bool {
                match self {
                    $(TableName::$variant => <$row as TableRow>::LABEL_OF_OTHERS,)*
                    TableName::Windows => false,
                }
            }

            /// Whether labels of its rows begin with that of an owner.
            pub(crate) fn is_owned(self) -> bool {
                match self {
                    $(TableName::$variant => <$row as TableRow>::OWNED,)*
                    TableName::Windows => false,
                }
            }
        }

        $(
            impl From<$id> for RowRef {
                fn from(id: $id) -> RowRef {
                    RowRef { table: TableName::$variant, slot: id.0 }
                }
            }
        )*

        impl fmt::Display for TableName {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(match self {
                    $(TableName::$variant => $word,)*
                    TableName::Windows => "windows",
                })
            }
        }
    };
}
each_table!(table_names);
