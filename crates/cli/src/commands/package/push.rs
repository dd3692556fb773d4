//! `cell package push`: a package to the masters, and what to write into a job.

use super::{Scratch, failed};
use crate::args::OutputArgs;
use crate::failure::Failure;
use crate::format;
use crate::output::{Output, print, print_json};
use crate::reach::Reach;
use crate::server::ask;
use cellwright_api::types::Changed;
use cellwright_cell::name::Token;
use cellwright_cell::spec::PackageRef;
use cellwright_package::unpack::list;
use cellwright_package::{Limits, PackageDigest, build};
use clap::Args;
use std::fs::File;
use std::path::{Path, PathBuf};

#[derive(Debug, Args)]
pub struct PushArgs {
    /// A package, or a folder to make one of
    #[arg(value_name = "FILE|DIR")]
    source: PathBuf,

    /// What jobs call it
    #[arg(long, value_name = "NAME", value_parser = package_name)]
    name: Token,

    #[command(flatten)]
    output: OutputArgs,
}

fn package_name(text: &str) -> Result<Token, String> {
    Token::new(text).map_err(|bad| format!("allowed: {}", bad.allowed))
}

impl PushArgs {
    pub fn run(self, reach: &Reach) -> Result<(), Failure> {
        let cell = reach.cell()?;
        let scratch = Scratch::new()?;
        let file = match self.source.is_dir() {
            true => {
                let file = scratch.file("package");
                build(&self.source, &file).map_err(failed)?;
                file
            }
            false => self.source,
        };
        let (digest, bytes) = checked(&file)?;
        let stored: Changed = ask(async {
            let path = format!("/v1/blobs/{digest}");
            Ok(cell.client.put_file(&path, &file).await?.value)
        })?;
        let spelt = digest.token().map_err(|bad| Failure::work(&bad, "report this"))?;
        let reference = PackageRef { name: self.name, digest: spelt, bytes };
        if self.output.output == Output::Json {
            return print_json(&reference);
        }
        let what = if stored.changed { "stored" } else { "was stored already" };
        print(&format!(
            "{} {what}, {}\nin a job: \"packages\": [{{\"name\": \"{}\", \"digest\": \"{digest}\", \
             \"bytes\": {bytes}}}]\nnext: cell run FILE\n",
            reference.name,
            format::bytes(bytes),
            reference.name,
        ))
    }
}

/// Reads all of it first: what the masters are given is what every machine will get.
fn checked(file: &Path) -> Result<(PackageDigest, u64), Failure> {
    let cannot = |e: std::io::Error| Failure::work(&e, "check the path, then run it again");
    let opened = File::open(file).map_err(cannot)?;
    let bytes = opened.metadata().map_err(cannot)?.len();
    let (digest, _) = list(opened, bytes, Limits::default()).map_err(failed)?;
    Ok((digest, bytes))
}
