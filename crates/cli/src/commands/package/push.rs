//! `cell package push`: a package to the masters, and what to write into a job.

use super::{Scratch, failed, has_bytes, no_such};
use crate::args::OutputArgs;
use crate::failure::Failure;
use crate::format;
use crate::output::{Output, print, print_json};
use crate::progress::Transfer;
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
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

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

/// A package's name becomes the name of a folder on the machines.
fn package_name(text: &str) -> Result<Token, String> {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    let token = Token::new(text).ok().filter(|_| text.bytes().all(plain));
    token.filter(|_| !text.starts_with('.')).ok_or_else(|| {
        "allowed: 1 to 128 letters, digits, -, _ and ., the first of them not a dot".into()
    })
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
        let path = format!("/v1/blobs/{digest}");
        let (is_there, stored): (bool, Changed) = ask(async {
            let is_there = has_bytes(&cell, &path).await?;
            let sent = Arc::new(AtomicU64::new(0));
            let sending = cell.client.put_file(&path, &file, &sent);
            let stored = Transfer::sending("package", bytes, &sent, sending).await;
            Ok((is_there, stored?.value))
        })?;
        let spelt = digest.token().map_err(|bad| Failure::work(&bad, "report this"))?;
        let reference = PackageRef { name: self.name, digest: spelt, bytes };
        if self.output.output == Output::Json {
            return print_json(&reference);
        }
        let what = match (stored.changed, is_there) {
            (true, _) => "stored",
            (false, true) => "was stored already",
            (false, false) => "stored again: the masters had lost its bytes",
        };
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
pub(super) fn checked(file: &Path) -> Result<(PackageDigest, u64), Failure> {
    let cannot = |error: std::io::Error| no_such(file, &error);
    let opened = File::open(file).map_err(cannot)?;
    let bytes = opened.metadata().map_err(cannot)?.len();
    let (digest, _) = list(opened, bytes, Limits::default()).map_err(failed)?;
    Ok((digest, bytes))
}
