//! Reclamation (B40): estimates how much of its limit a task will use, from what it has used.
//!
//! A task reserves its limit for its first [`ReclaimConfig::warm_up`]; then the estimate decays
//! towards recent peak usage plus a margin, and rises at once when usage passes it. Non-prod work
//! is placed into what limits leave over reservations, so a wrong estimate throttles or kills
//! non-prod work, never prod.
//!
//! There are two values: the running estimate, soft and recomputed with every sample, and the
//! *logged* reservation, the only one `apply` uses. Rises are logged at once; decays only when they
//! are large enough, in steps of a fixed fraction of the limit. That bounds the log: a task with
//! steady usage causes a handful of entries in its lifetime.
//!
//! Rejected: a percentile of the usage distribution (needs long histories per task and reacts to a
//! level shift only after a fraction of the window has passed).

mod config;
mod estimate;

pub use config::{DimensionReclaimConfig, ReclaimConfig};
pub use estimate::{Estimate, Sample};
