//! Real groups and real containers on this machine. They need root, control groups and a runtime;
//! where one is missing a test says so and passes, so that it can run anywhere.

mod container;
mod escape;
mod group;
mod lab;
