//! The tables of the state, in one list, and what every kind of row says of itself.
//!
//! Whatever is done to all tables alike (bytes, text, hash, what a refused command must not touch)
//! is made from the list: a table that is missing somewhere would be lost by a checkpoint, or
//! changed without anybody noticing. A new table is a line here and a row type that
//! encodes itself.
//!
//! Rejected: a registry of trait objects. Rows of a table are of one type, and who reads them by
//! that type would have to cast.

use crate::encode::{LoadError, Rows};
use crate::name::Name;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::fmt;

/// Hands every table to a macro, in the order of a checkpoint: field, variant of [`TableName`],
/// word for people, type of the ids, type of the rows.
macro_rules! each_table {
    ($then:ident) => {
        $then! {
            users Users "users" (crate::id::UserId, crate::quota::User);
            machines Machines "machines" (crate::id::MachineId, crate::machine::Machine);
            resources Resources "resources" (crate::id::ResourceId, crate::ephemeral::ResourceRow);
            jobs Jobs "jobs" (crate::id::JobId, crate::job::Job);
            tasks Tasks "tasks" (crate::id::TaskId, crate::task::Task);
            crons Crons "crons" (crate::id::CronId, crate::cron::Cron);
            tokens Tokens "tokens" (crate::id::TokenId, crate::credential::AccessToken);
            blobs Blobs "packages" (crate::id::BlobId, crate::blob::Blob);
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

    /// What people call it. Nobody has vouched for the rows: what it refers to may be missing.
    fn label(&self, rows: &Rows) -> String;

    /// What errors call it beside its id, if the row itself says it.
    fn title(&self) -> Option<String> {
        None
    }

    /// The machine it is or is on, for whoever asks for all of a machine.
    fn machine<'a>(&'a self, _: &'a Rows) -> Option<&'a Name> {
        None
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

macro_rules! table_names {
    ($($field:ident $variant:ident $word:literal ($id:ty, $row:ty);)*) => {
        /// The tables of a state, and the replay windows, which are treated as one.
        #[derive(
            Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, serde::Serialize,
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

            /// Whether labels of its rows begin with that of an owner.
            pub(crate) fn is_owned(self) -> bool {
                match self {
                    $(TableName::$variant => <$row as TableRow>::OWNED,)*
                    TableName::Windows => false,
                }
            }
        }

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
