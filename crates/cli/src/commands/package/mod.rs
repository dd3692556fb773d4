//! `cell package`: the programs of tasks, as immutable files named by their digest.

mod build;
mod find;
mod images;
mod import;
mod missing_packages;
mod push;
mod show;

pub use images::pin_images;
pub use missing_packages::warnings;

use super::{Success, pagination};
use crate::command_line;
use crate::connection::{Cell, ConnectionArgs};
use crate::failure::Failure;
use crate::output::{Output, is_wide, print_json, print_notice, print_prose};
use crate::runtime::block_on;
use crate::{format, table};
use cellwright_api::client::{ChangeOptions, encode_query};
use cellwright_api::error::Code;
use cellwright_api::types::{BlobView, Changed, Page};
use cellwright_package::PackageError;
use clap::{Args, Subcommand};
use hyper::Method;
use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

const EXAMPLES: &str = "\
Examples:
  cell package build ./server
  cell package push ./server --name server
  cell package import docker://alpine:3.20
  cell package import alpine.tar
  cell package show server.package
  cell package ls";

/// Digits of a digest in tables; enough to tell packages apart.
const DIGEST_DIGITS: usize = 12;

/// Packages: build, push, ls, show, rm, import
#[derive(Debug, Subcommand)]
#[command(after_help = EXAMPLES)]
pub enum Package {
    /// Make a package of a folder; the same folder gives the same digest everywhere
    Build(build::BuildArgs),
    /// Make a package of an OCI image, from a registry or from a file
    Import(import::ImportArgs),
    /// Store a package, or a folder as one, with the masters
    Push(push::PushArgs),
    /// List what the masters store
    Ls(LsArgs),
    /// Check a package and list what is in it
    Show(show::ShowArgs),
    /// Remove a package that no job names
    Rm(RmArgs),
}

#[derive(Debug, Args)]
pub struct LsArgs {
    #[command(flatten)]
    output: crate::args::OutputArgs,
}

#[derive(Debug, Args)]
pub struct RmArgs {
    /// The digest, as much of it as `cell package ls` shows, or the name if jobs call only one so
    #[arg(value_name = "DIGEST|NAME")]
    what: String,
}

impl Package {
    pub fn run(self, connection: &ConnectionArgs) -> Result<Success, Failure> {
        match self {
            Package::Build(args) => args.run()?,
            Package::Import(args) => args.run()?,
            Package::Push(args) => args.run(connection)?,
            Package::Ls(args) => args.run(connection)?,
            Package::Show(args) => args.run(connection)?,
            Package::Rm(args) => args.run(connection)?,
        }
        Ok(Success::Done)
    }
}

impl LsArgs {
    fn run(self, connection: &ConnectionArgs) -> Result<(), Failure> {
        let cell = connection.cell()?;
        let blobs = block_on(async {
            let mut blobs = list_packages(&cell).await?;
            // A package that the answering master lacks may be on another, from which it is
            // requested.
            for blob in blobs.iter_mut().filter(|blob| !blob.held) {
                blob.held = has_content(&cell, &format!("/v1/blobs/{}", blob.digest)).await?;
            }
            Ok(blobs)
        })?;
        if self.output.output == Output::Json {
            return print_json(&blobs);
        }
        if blobs.is_empty() {
            print_notice("no packages; next: cell package push DIR --name NAME");
            return Ok(());
        }
        let rows: Vec<Vec<String>> = blobs.iter().map(row).collect();
        let by: &[&str] = if is_wide() { &["by"] } else { &[] };
        let columns = [&["digest", "name", "size"], by, &["stored", "used by"]].concat();
        print_prose(&table::render_with_text_column(&columns, &rows))
    }
}

fn row(blob: &BlobView) -> Vec<String> {
    let stored = if blob.held { format::utc(blob.created) } else { "lost: push it again".into() };
    let name = if blob.names.is_empty() { "-".into() } else { blob.names.join(", ") };
    let mut row = vec![short_digest(&blob.digest), name, format::bytes(blob.bytes)];
    if is_wide() {
        row.push(blob.by.as_ref().map_or_else(|| "the cell".into(), ToString::to_string));
    }
    row.extend([stored, used_by(blob)]);
    row
}

/// The first job that uses the package, and the number of others.
fn used_by(blob: &BlobView) -> String {
    match (blob.used_by.first(), blob.uses) {
        (None, _) => "-".into(),
        (Some(job), 0 | 1) => job.clone(),
        (Some(job), uses) => format!("{job} and {} more", uses - 1),
    }
}

impl RmArgs {
    fn run(self, connection: &ConnectionArgs) -> Result<(), Failure> {
        let cell = connection.cell()?;
        let blob = block_on(find::find_package(&cell, &self.what))?;
        // Removal requires a name or as many digits as lists show.
        if self.what.len() < DIGEST_DIGITS && !find::has_name(&blob, &self.what) {
            let (digits, digest) = (&self.what, short_digest(&blob.digest));
            return Err(Failure::Usage {
                message: format!(
                    "{digits} is {} digits of a digest; allowed: the {DIGEST_DIGITS} that \
                     `cell package ls` shows, or more",
                    digits.len()
                ),
                next: command_line::corrected(digits, &digest),
            });
        }
        let path = format!("/v1/blobs/{}", blob.digest);
        let none: Option<&()> = None;
        let _done: Changed = block_on(async {
            let change = ChangeOptions::default();
            match cell.client.change(Method::DELETE, &path, none, &change).await {
                Ok(done) => Ok(done.value),
                Err(error) if error.code() == Some(Code::WrongState) && blob.uses > 0 => {
                    let crons = pagination::fetch_all(async |page| {
                        Ok(cell.client.crons(page).await?.value)
                    });
                    let crons = crons.await?;
                    let crons = crons.iter().map(|cron| format!("{}/{}", cron.user, cron.name));
                    Err(in_use_failure(&blob, &crons.collect()))
                }
                Err(error) => Err(error.into()),
            }
        })?;
        print_prose(&format!(
            "package {} removed\nnext: cell package ls\n",
            short_digest(&blob.digest)
        ))
    }
}

/// The failure for a package in use: which jobs use it, and how to end each of them.
fn in_use_failure(blob: &BlobView, crons: &BTreeSet<String>) -> Failure {
    let more = match usize::try_from(blob.uses).unwrap_or(0).saturating_sub(blob.used_by.len()) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    let end = |job: &String| {
        if crons.contains(job) { format!("cell cron rm {job}") } else { format!("cell stop {job}") }
    };
    let ends: Vec<String> = blob.used_by.iter().map(end).collect();
    Failure::Operation {
        message: format!(
            "package {} is needed by {}{more}",
            short_digest(&blob.digest),
            blob.used_by.join(", ")
        ),
        next: format!("{}; then the same command again", ends.join("; ")),
    }
}

async fn list_packages(cell: &Cell) -> Result<Vec<BlobView>, Failure> {
    let mut found = Vec::new();
    let mut after = None;
    loop {
        let pairs = [("limit", Some("1000".to_owned())), ("after", after)];
        let page: Page<BlobView> =
            cell.client.get(&format!("/v1/blobs{}", encode_query(&pairs))).await?.value;
        found.extend(page.items);
        match page.next {
            Some(next) => after = Some(next),
            None => return Ok(found),
        }
    }
}

/// Whether any master has the content; the one that is asked fetches it from the others.
async fn has_content(cell: &Cell, path: &str) -> Result<bool, Failure> {
    match cell.client.download(path).await {
        Ok(_) => Ok(true),
        Err(error) if error.code() == Some(Code::NoSuchBlob) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

fn short_digest(digest: &str) -> String {
    digest.chars().take(DIGEST_DIGITS).collect()
}

fn package_failure(error: PackageError) -> Failure {
    let next = match &error {
        PackageError::Io { .. } => "check the path, the permissions and the free space",
        PackageError::NotAPackage { .. } => "make one: cell package build DIR",
        PackageError::BadLink { .. } => "make the link relative, and lead inside the folder",
        PackageError::Image(_) => {
            "another --platform, if that is what it lacks; else export it again: skopeo copy \
             docker://NAME oci-archive:FILE"
        }
        PackageError::DamagedChunk { .. } | PackageError::OtherContent { .. } => {
            "get the file again; this one is damaged"
        }
        _ => "change what is named there, then run it again",
    };
    Failure::from_error(&error, next)
}

/// A temporary folder for intermediate files, removed at the end.
struct TemporaryFolder(PathBuf);

impl TemporaryFolder {
    fn new() -> Result<TemporaryFolder, Failure> {
        let path = std::env::temp_dir().join(format!("cell-package-{}", std::process::id()));
        let made = fs::DirBuilder::new().mode(0o700).create(&path);
        made.map_err(|source| Failure::Write { what: path.display().to_string(), source })?;
        Ok(TemporaryFolder(path))
    }

    fn file(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for TemporaryFolder {
    fn drop(&mut self) {
        // The system removes what is left in it.
        let _left_behind = fs::remove_dir_all(&self.0);
    }
}

/// The system's error message does not name the path.
fn open_failure(path: &Path, error: &io::Error) -> Failure {
    Failure::Operation {
        message: format!("{}: {error}", path.display()),
        next: "check the path, then run it again".into(),
    }
}

/// `NAME.package` in this folder.
fn default_target(source: &Path) -> Result<PathBuf, Failure> {
    let resolved = fs::canonicalize(source).map_err(|error| open_failure(source, &error))?;
    match resolved.file_stem().and_then(|stem| stem.to_str()) {
        Some(stem) => Ok(PathBuf::from(format!("{stem}.package"))),
        None => Err(Failure::Usage {
            message: format!("{} has no name to call the package by", source.display()),
            next: "the same command with --to FILE".into(),
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_path_that_is_not_there_is_named() {
        let path = Path::new("no-such-folder/nosuch");
        let built = default_target(path).map(drop).unwrap_err().to_string();
        let pushed = push::verify_package(path).map(drop).unwrap_err().to_string();
        for message in [built, pushed] {
            assert!(message.starts_with("no-such-folder/nosuch: No such file"), "{message}");
        }
    }

    #[test]
    fn a_package_is_listed_with_what_jobs_call_it_and_who_needs_it() {
        let listed_columns = |names: &[&str], used_by: &[&str], uses: u32| {
            let blob = json!({
                "digest": "c2a512f6e332".repeat(5), "bytes": 4096, "created": 0, "by": null,
                "held": true, "names": names, "used_by": used_by, "uses": uses,
            });
            let row = row(&serde_json::from_value(blob).unwrap());
            assert_eq!((row[0].as_str(), row[2].as_str()), ("c2a512f6e332", "4 KiB"));
            (row[1].clone(), row[4].clone())
        };
        let is = |name: &str, used: &str| (name.to_owned(), used.to_owned());
        assert_eq!(listed_columns(&[], &[], 0), is("-", "-"));
        assert_eq!(listed_columns(&["web"], &[], 0), is("web", "-"), "a job that is over named it");
        assert_eq!(listed_columns(&["web"], &["ann/web"], 1), is("web", "ann/web"));
        let many = listed_columns(&["httpd", "web"], &["ann/web", "bob/web"], 2);
        assert_eq!(many, is("httpd, web", "ann/web and 1 more"));
    }

    #[test]
    fn who_needs_a_package_is_named_with_how_to_end_them() {
        let blob = json!({
            "digest": "c2a512f6e332".repeat(5), "bytes": 1, "created": 0, "by": null,
            "held": true, "names": ["web"], "used_by": ["ann/web", "bob/tick"], "uses": 3,
        });
        let crons = BTreeSet::from(["bob/tick".to_owned()]);
        let Failure::Operation { message, next } =
            in_use_failure(&serde_json::from_value(blob).unwrap(), &crons)
        else {
            panic!("something else failed")
        };
        assert_eq!(message, "package c2a512f6e332 is needed by ann/web, bob/tick and 1 more");
        let ends = "cell stop ann/web; cell cron rm bob/tick; then the same command again";
        assert_eq!(next, ends);
    }
}
