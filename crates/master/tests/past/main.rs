//! The past of a cell from a replica's files, while it runs and after it stopped, and files that
//! another version wrote.

mod eras;
mod replay;
mod support;
mod versions;
