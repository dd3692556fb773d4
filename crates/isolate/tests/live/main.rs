//! Real cgroups and real containers on this machine. They need root, cgroups and a runtime; without
//! root a test says so and passes, so that it can run anywhere but where `CI` is set. Root without
//! the rest is a failure too, unless `CELL_TEST_SKIP=1` allows it.

mod container;
mod escape;
mod group;
mod isolation;
mod lab;
