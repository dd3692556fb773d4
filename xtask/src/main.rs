//! Repository chores that are programs, not shell: `cargo xtask tidy`.
//!
//! Style that nothing enforces decays, so the rules of STYLE.md that a machine can check are
//! checked here, next to the compiler and clippy. A lint plugin was rejected: it would bind the
//! project to compiler internals, while these checks only need file names, text and tokens.

mod manifest;
mod modules;
mod reference;
mod repo;
mod rust_file;
mod tidy;

use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;

const USAGE: &str = "usage: cargo xtask tidy";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
        ["tidy"] => run_tidy(),
        ["help" | "--help" | "-h"] => {
            println!("{USAGE}");
            ExitCode::SUCCESS
        }
        [] => {
            eprintln!("xtask: no chore named\n{USAGE}");
            ExitCode::from(2)
        }
        other => {
            eprintln!(
                "xtask: unknown chore {:?}; the only one is `tidy`\n{USAGE}",
                other.join(" ")
            );
            ExitCode::from(2)
        }
    }
}

fn run_tidy() -> ExitCode {
    let started = Instant::now();
    let repo = match find_root().and_then(|root| repo::Repo::load(&root)) {
        Ok(repo) => repo,
        Err(error) => {
            eprintln!("tidy: cannot read the repository: {error}");
            return ExitCode::from(2);
        }
    };
    let findings = tidy::run(&repo);
    for finding in &findings {
        println!("{finding}");
    }
    println!(
        "tidy: {} files, {} findings, {:.2} s",
        repo.file_count(),
        findings.len(),
        started.elapsed().as_secs_f64()
    );
    if findings.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// The nearest folder upwards that holds this crate. The path known when this was compiled will not
/// do: checkouts that share a build cache share this program.
fn find_root() -> io::Result<PathBuf> {
    let here = std::env::current_dir()?;
    let root = here.ancestors().find(|folder| folder.join("xtask/tidy-allow.txt").is_file());
    root.map(Path::to_path_buf)
        .ok_or_else(|| io::Error::other(format!("{} is outside of it", here.display())))
}
