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
mod options;
mod properties;
mod rehearsal;
mod rejections;
mod rights;
mod samples;
mod schedule;
mod specs;
mod text;
mod tokens_and_blobs;
mod transcript_language;
mod transcripts;
mod wire;
mod world;
