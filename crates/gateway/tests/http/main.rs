//! Tests of the HTTP API of masters on a real disk, over loopback sockets and the real listener.

mod agent;
mod apply;
mod blobs;
mod changes;
mod client;
mod document;
mod errors;
mod every_route;
mod explain;
mod flood;
mod lists;
mod matrix;
mod members;
mod overview;
mod pages;
mod parts;
mod plan;
mod reading;
mod revoked;
mod routes;
mod shapes;
mod sql;
mod support;
mod watch;
