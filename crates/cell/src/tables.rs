//! The tables of the state, in one list, and the trait that every row type implements.
//!
//! Everything that treats all tables alike (bytes, text, hash, what a rejected command must not
//! change) is generated from the list: a table missing from one of these would be lost by a
//! checkpoint, or changed unnoticed. A new table belongs to a component, in [`crate::components`],
//! and has a row type that encodes itself.
//!
//! Rejected: a registry of trait objects. Rows of a table are of one type, and readers that need
//! that type would have to downcast.

use crate::encode::{LoadError, Rows};
use crate::name::Name;
use crate::state::State;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::fmt;

/// Passes every table to a macro, in the order of a checkpoint: its field in structs with a field
/// for each table, variant of [`TableName`], word for people, type of the ids, type of the rows,
/// where in the state it is. The tables of components follow, from [`crate::components`].
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

/// What code that treats rows of all tables alike needs from a row type.
pub(crate) trait TableRow:
    Clone + fmt::Debug + PartialEq + Serialize + DeserializeOwned
{
    /// The word for a row in errors: `user row 3`.
    const NOUN: &'static str;
    /// Whether a row's label begins with that of its owner, which is another row.
    const OWNED: bool = false;

    /// Whether a row's label is made of other rows alone.
    const LABEL_OF_OTHERS: bool = false;

    /// The row's label for people. The rows are not validated yet: what it refers to may be
    /// missing.
    fn label(&self, rows: &Rows) -> String;

    /// The row's name in events; `None` if it has none.
    fn name(&self, _: &State) -> Option<String> {
        None
    }

    /// The row's name beside its id in errors, if the row itself has one.
    fn title(&self) -> Option<String> {
        None
    }

    /// Whether the row is this machine, is on it or holds room there; for filters by machine.
    fn is_of_machine(&self, _: &Rows, _: &Name) -> bool {
        false
    }

    /// Checks the row by the rules of admission. `row` names it in errors.
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

/// A row of any table. Durable: the event feed stores the names of rows by it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
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
        #[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
        pub enum TableName {
            $(#[serde(rename = $word)] $variant,)*
            /// Recent answers to clients, for repeated requests.
            #[serde(rename = "windows")]
            Windows,
        }

        impl TableName {
            pub const ALL: [TableName; [$($word),*].len() + 1] =
                [$(TableName::$variant,)* TableName::Windows];

            /// The word for a row of the table in errors; none for windows, which have no ids.
            pub(crate) fn noun(self) -> Option<&'static str> {
                match self {
                    $(TableName::$variant => Some(<$row as TableRow>::NOUN),)*
                    TableName::Windows => None,
                }
            }

            /// Whether labels of its rows contain nothing of the row itself.
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
