//! Newtype identities. A bare integer is never an identity: mixing a task slot with a machine slot
//! must not compile. Ids index rows of the state's tables; people only ever see names.
//!
//! Ids that several kinds of rows refer to are defined here; a table may define its own id type.

/// Defines an id type of rows: `id!(/// A lease. LeaseId);`. For use in a crate with a feature
/// `schema` that enables `schemars`, as this one has.
#[macro_export]
macro_rules! id {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(
            Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash,
            ::serde::Serialize, ::serde::Deserialize,
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

        impl $crate::table::Key for $name {
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
