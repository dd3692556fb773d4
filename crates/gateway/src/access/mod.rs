//! Who is at the door, and how parts of the cell get the papers they show there.
//!
//! | file | what |
//! |---|---|
//! | `caller` | from evidence (certificate, token, nothing) to a caller; pure |
//! | `shown` | what a request shows of who asks, taken out of it |
//! | `provenance` | whether a web page sent it |
//! | `join` | a join token and a signing request against a certificate; renewal |
//! | `refusals` | how much of those who are turned away is taken down |
//! | `listener` | the accept loop: handshake, caps, one `Caller` per request |
//! | `gate` | the listener's questions, answered from the replicated state and the audit log |
//! | `routes` | joining and renewing over HTTP |
//! | `renewal` | this replica's own certificate, kept fresh |
//!
//! A cell is its own authority: nothing outside has to be installed, asked or trusted, and a
//! certificate says no more than which part of which cell its holder is. What that part may do is
//! decided by exact match on the `Caller`, and what matches nothing is refused.
//!
//! Rejected: trusting every certificate of the authority alike and telling parts apart by address.
//! Addresses are lent; names are signed.

pub mod caller;
pub mod gate;
pub mod join;
pub mod listener;
pub mod provenance;
pub mod refusals;
pub mod renewal;
pub mod routes;
pub mod shown;
#[cfg(test)]
mod tests;
