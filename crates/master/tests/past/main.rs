//! Log replay from a replica's files, while it runs and after it stopped, and files that another
//! version wrote.

mod formats;
mod log_epochs;
mod replay;
mod support;
mod versions;
