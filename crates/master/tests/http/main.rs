//! The public API against a master of one voter on a real disk: the router in process, and the
//! client over a loopback socket.

mod changes;
mod client;
mod document;
mod errors;
mod lists;
mod parts;
mod routes;
mod support;
mod watch;
