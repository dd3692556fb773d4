//! `cell package push`: uploads a package to the masters, and prints what to write into a job.

use super::{TemporaryFolder, has_content, list_packages, open_failure, package_failure};
use crate::args::OutputArgs;
use crate::connection::ConnectionArgs;
use crate::failure::Failure;
use crate::format;
use crate::output::{Output, print, print_json};
use crate::progress::Transfer;
use crate::runtime::block_on;
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

/// A package's name becomes a folder name on the machines.
fn package_name(text: &str) -> Result<Token, String> {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    let token = Token::new(text).ok().filter(|_| text.bytes().all(plain));
    token.filter(|_| !text.starts_with('.')).ok_or_else(|| {
        "allowed: 1 to 128 letters, digits, -, _ and ., the first of them not a dot".into()
    })
}

impl PushArgs {
    pub fn run(self, connection: &ConnectionArgs) -> Result<(), Failure> {
        let cell = connection.cell()?;
        let scratch = TemporaryFolder::new()?;
        let file = if self.source.is_dir() {
            let file = scratch.file("package");
            build(&self.source, &file).map_err(package_failure)?;
            file
        } else {
            self.source
        };
        let (digest, bytes) = verify_package(&file)?;
        let path = format!("/v1/blobs/{digest}");
        let (is_there, stored, names): (bool, Changed, Vec<String>) = block_on(async {
            let is_there = has_content(&cell, &path).await?;
            let sent = Arc::new(AtomicU64::new(0));
            let sending = cell.client.put_file(&path, &file, &sent);
            let stored = Transfer::track_send("package", bytes, &sent, sending).await;
            let known = list_packages(&cell)
                .await?
                .into_iter()
                .find(|blob| blob.digest == digest.to_string());
            let names = known.map(|blob| blob.names).unwrap_or_default();
            Ok((is_there, stored?.value, names))
        })?;
        let digest_token =
            digest.token().map_err(|bad| Failure::from_error(&bad, "report this"))?;
        let reference = PackageRef { name: self.name, digest: digest_token, bytes };
        if self.output.output == Output::Json {
            return print_json(&reference);
        }
        let name = reference.name.as_str();
        let (outcome, names_note) = match (stored.changed, is_there) {
            (true, _) => ("stored", String::new()),
            (false, true) => ("was stored already", other_names_note(name, &names)),
            (false, false) => ("stored again: the masters had lost its bytes", String::new()),
        };
        print(&format!(
            "{name} {outcome}, {}{names_note}\nin a job: \"packages\": [{{\"name\": \"{name}\", \
             \"digest\": \"{digest}\", \"bytes\": {bytes}}}]\nnext: cell run FILE\n",
            format::bytes(bytes),
        ))
    }
}

/// The names that jobs use for existing content: the name given here is unused until a job has it.
fn other_names_note(name: &str, names: &[String]) -> String {
    match names {
        [] => "; no job that you see names it".into(),
        names if names.iter().any(|known| known == name) => String::new(),
        names => format!("; jobs call it {}, and {name} once one does", names.join(", ")),
    }
}

/// Reads and verifies the whole package first: every machine will get what the masters store.
pub(super) fn verify_package(file: &Path) -> Result<(PackageDigest, u64), Failure> {
    let cannot = |error: std::io::Error| open_failure(file, &error);
    let opened = File::open(file).map_err(cannot)?;
    let bytes = opened.metadata().map_err(cannot)?.len();
    let (digest, _) = list(opened, bytes, Limits::default()).map_err(package_failure)?;
    Ok((digest, bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn content_that_was_there_is_told_with_what_jobs_call_it() {
        let names = |names: &[&str]| names.iter().map(ToString::to_string).collect::<Vec<_>>();
        assert_eq!(other_names_note("greeter", &names(&["greeter", "web"])), "");
        assert_eq!(other_names_note("greeter", &[]), "; no job that you see names it");
        let other = other_names_note("greeter2", &names(&["greeter"]));
        assert_eq!(other, "; jobs call it greeter, and greeter2 once one does");
    }
}
