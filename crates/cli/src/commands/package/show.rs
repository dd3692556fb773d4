//! `cell package show`: reads a package to its end under the rules of unpacking, and lists it.

use super::find::find_package;
use super::{TemporaryFolder, open_failure, package_failure};
use crate::args::OutputArgs;
use crate::connection::{Cell, ConnectionArgs};
use crate::failure::Failure;
use crate::format;
use crate::output::{Output, print, print_json};
use crate::runtime::block_on;
use cellwright_cell::name::Token;
use cellwright_package::unpack::{Listed, list};
use cellwright_package::{Limits, PackageDigest};
use clap::Args;
use serde_json::json;
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};

#[derive(Debug, Args)]
pub struct ShowArgs {
    /// A package file; or a stored package: its digest, how that begins, or what jobs call it
    #[arg(value_name = "FILE|DIGEST|NAME")]
    what: String,

    #[command(flatten)]
    output: OutputArgs,
}

impl ShowArgs {
    pub fn run(self, connection: &ConnectionArgs) -> Result<(), Failure> {
        let path = PathBuf::from(&self.what);
        if path.exists() {
            return self.show(&path);
        }
        if Token::new(&self.what).is_err() {
            return Err(Failure::Usage {
                message: format!("{:?} is neither a file nor a digest nor a name", self.what),
                next: "see which packages there are: cell package ls".into(),
            });
        }
        let cell = connection.cell()?;
        let scratch = TemporaryFolder::new()?;
        let file = scratch.file("package");
        block_on(download(&cell, &self.what, &file))?;
        self.show(&file)
    }

    fn show(&self, path: &Path) -> Result<(), Failure> {
        let cannot = |error: std::io::Error| open_failure(path, &error);
        let file = File::open(path).map_err(cannot)?;
        let bytes = file.metadata().map_err(cannot)?.len();
        let (digest, listed) = list(file, bytes, Limits::default()).map_err(package_failure)?;
        match self.output.output {
            Output::Json => print_json(&package_json(digest, bytes, &listed)),
            Output::Table => print(&package_text(digest, bytes, &listed)),
        }
    }
}

async fn download(cell: &Cell, name_or_digest: &str, file: &Path) -> Result<(), Failure> {
    let blob = find_package(cell, name_or_digest).await?;
    let mut out = File::create(file).map_err(|source| unwritable(file, source))?;
    let mut content = cell.client.download(&format!("/v1/blobs/{}", blob.digest)).await?;
    while let Some(piece) = content.next().await? {
        out.write_all(&piece).map_err(|source| unwritable(file, source))?;
    }
    Ok(())
}

fn unwritable(file: &Path, source: std::io::Error) -> Failure {
    Failure::Write { what: file.display().to_string(), source }
}

fn package_json(digest: PackageDigest, bytes: u64, listed: &[Listed]) -> serde_json::Value {
    let entries: Vec<_> = listed
        .iter()
        .map(|entry| {
            json!({
                "path": entry.path.as_str(),
                "kind": entry.kind,
                "mode": entry.mode.map(|mode| format!("{mode:04o}")),
                "bytes": entry.bytes,
                "target": entry.target,
            })
        })
        .collect();
    json!({"digest": digest.to_string(), "bytes": bytes, "entries": entries})
}

/// Paths are the last column: they may be long, and lines are not wrapped.
fn package_text(digest: PackageDigest, bytes: u64, listed: &[Listed]) -> String {
    let count = format::pluralize_as(listed.len() as u64, "entry", "entries");
    let mut out = format!("digest {digest}\n{}, {count}\n", format::bytes(bytes));
    for entry in listed {
        let mode = entry.mode.map_or_else(|| "-".into(), |mode| format!("{mode:04o}"));
        let size = format::bytes(entry.bytes);
        let target = entry.target.as_ref().map(|to| format!(" -> {to}")).unwrap_or_default();
        out.push_str(&format!("{:9} {mode:>4} {size:>10} {}{target}\n", entry.kind, entry.path));
    }
    out
}
