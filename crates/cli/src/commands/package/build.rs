//! `cell package build`: makes a package file; nothing is sent.

use super::{default_target, package_failure};
use crate::args::OutputArgs;
use crate::failure::Failure;
use crate::format;
use crate::output::{Output, print_json, print_prose};
use cellwright_package::{Built, build};
use clap::Args;
use serde_json::json;
use std::path::{Path, PathBuf};

#[derive(Debug, Args)]
pub struct BuildArgs {
    /// The folder
    #[arg(value_name = "DIR")]
    folder: PathBuf,

    /// Where the package goes [default: the folder's name and .package, here]
    #[arg(long, value_name = "FILE")]
    to: Option<PathBuf>,

    #[command(flatten)]
    output: OutputArgs,
}

impl BuildArgs {
    pub fn run(self) -> Result<(), Failure> {
        let target = match self.to {
            Some(target) => target,
            None => default_target(&self.folder)?,
        };
        let built = build(&self.folder, &target).map_err(package_failure)?;
        match self.output.output {
            Output::Json => print_json(&built_json(&target, &built)),
            Output::Table => print_prose(&built_text(&target, &built)),
        }
    }
}

pub(super) fn built_json(target: &Path, built: &Built) -> serde_json::Value {
    json!({
        "file": target.display().to_string(),
        "digest": built.digest.to_string(),
        "bytes": built.bytes,
        "entries": built.entries,
        "content_bytes": built.content,
    })
}

pub(super) fn built_text(target: &Path, built: &Built) -> String {
    let file = target.display();
    format!(
        "{file}: {}, {}\ndigest {}\nnext: cell package push {file} --name NAME\n",
        format::pluralize_as(built.entries, "entry", "entries"),
        format::bytes(built.bytes),
        built.digest,
    )
}
