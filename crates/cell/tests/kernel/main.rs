//! Tests of the kernel as a whole, through its public interface: random runs under all invariants,
//! transcripts that read like the paper, pinned bytes, and decoders under hostile input.

mod build;
mod components;
mod coverage;
mod decoders;
mod draw;
mod generate;
mod hashes;
mod json;
mod keyed;
mod language;
mod options;
mod properties;
mod rights;
mod samples;
mod schedule;
mod specs;
mod text;
mod transcripts;
mod wire;
mod world;
