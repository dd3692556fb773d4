//! `cell package import`: makes a package from an OCI image, from a file or a registry. Nothing is
//! sent to the cell.

use super::build::{built_json, built_text};
use super::{default_target, package_failure};
use crate::args::OutputArgs;
use crate::failure::Failure;
use crate::format;
use crate::output::{Output, print_json, print_prose};
use crate::progress::Transfer;
use crate::runtime::{ShutdownSignal, block_on};
use cellwright_package::oci::{self, Imported};
use cellwright_package::registry::{
    self, Fetched, Proxies, PullConfig, Reference, RegistryError, SCHEME,
};
use cellwright_package::{Limits, PackageError};
use clap::Args;
use serde_json::json;
use std::fs;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use tokio::sync::oneshot;

#[derive(Debug, Args)]
pub struct ImportArgs {
    // Not a doc comment, because rustdoc would read the brackets as links.
    #[arg(
        value_name = "IMAGE|FILE|DIR",
        value_parser = parse_source,
        help = "An image in a registry, docker://HOST[:PORT]/NAME[:TAG|@sha256:DIGEST] \
                (docker://alpine for Docker Hub), or an OCI image layout: a tar file or a folder"
    )]
    source: Source,

    /// Where the package goes [default: the image's or file's name and .package, here]
    #[arg(long, value_name = "FILE")]
    to: Option<PathBuf>,

    /// Which image of several [default: this machine's]
    #[arg(long, value_name = "OS/ARCH[/VARIANT]", value_parser = parse_platform)]
    platform: Option<String>,

    #[command(flatten)]
    registry: RegistryArgs,

    #[command(flatten)]
    output: OutputArgs,
}

#[derive(Debug, Args)]
#[command(next_help_heading = "Registry")]
struct RegistryArgs {
    /// User names and passwords, in a file as `docker login` or `podman login` writes it
    #[arg(long, value_name = "FILE")]
    credentials: Option<PathBuf>,

    /// Certificates of authorities to trust beside the machine's own; with it loopback is spoken to
    /// over https too
    #[arg(long, value_name = "FILE")]
    ca: Option<PathBuf>,

    /// Speak to the registry in plain text, which on loopback is usual
    #[arg(long, conflicts_with = "ca")]
    insecure_http: bool,
}

impl RegistryArgs {
    /// The first of the registry options that was given.
    fn first_given_option(&self) -> Option<&'static str> {
        let options = [
            ("--credentials", self.credentials.is_some()),
            ("--ca", self.ca.is_some()),
            ("--insecure-http", self.insecure_http),
        ];
        options.into_iter().find(|(_, is_given)| *is_given).map(|(option, _)| option)
    }
}

#[derive(Clone, Debug)]
enum Source {
    Layout(PathBuf),
    Image(Reference),
}

fn parse_source(text: &str) -> Result<Source, String> {
    if text.starts_with(SCHEME) {
        text.parse().map(Source::Image).map_err(|bad: registry::BadReference| bad.to_string())
    } else {
        Ok(Source::Layout(text.into()))
    }
}

fn parse_platform(text: &str) -> Result<String, String> {
    let is_word = |part: &str| !part.is_empty() && part.bytes().all(|b| b.is_ascii_alphanumeric());
    if (2..=3).contains(&text.split('/').count()) && text.split('/').all(is_word) {
        Ok(text.to_owned())
    } else {
        Err("allowed: OS/ARCH or OS/ARCH/VARIANT, as linux/arm64 or linux/arm/v7".into())
    }
}

impl ImportArgs {
    pub fn run(self) -> Result<(), Failure> {
        let (imported, target, fetched) = match &self.source {
            Source::Layout(path) => {
                let (imported, target) = self.import_layout(path)?;
                (imported, target, None)
            }
            Source::Image(reference) => {
                let (imported, target, fetched) = self.import_image(reference)?;
                (imported, target, Some(fetched))
            }
        };
        if self.output.output == Output::Json {
            let mut facts = built_json(&target, &imported.built);
            facts["image"] = image_json(&imported, fetched.as_ref());
            return print_json(&facts);
        }
        let fetched_line = fetched.map(|fetched| fetched_text(&fetched)).unwrap_or_default();
        print_prose(&format!(
            "{fetched_line}{}{}",
            image_text(&imported),
            built_text(&target, &imported.built)
        ))
    }

    fn import_layout(&self, path: &Path) -> Result<(Imported, PathBuf), Failure> {
        if let Some(option) = self.registry.first_given_option() {
            return Err(Failure::Usage {
                message: format!("{option} is for registries, and {} is none", path.display()),
                next: format!("the same command without {option}, or with {SCHEME}HOST/NAME"),
            });
        }
        if !path.exists() {
            return Err(no_such_source(path));
        }
        let target = match &self.to {
            Some(target) => target.clone(),
            None => default_target(path)?,
        };
        let imported = block_on(cancel_on_stop(&path.display().to_string(), async {
            let layout = TemporaryLayout::create_beside(&target)?;
            let made = layout.0.join("package");
            let imported = import(path, &made, self.platform.clone(), Limits::default()).await?;
            let imported = imported.map_err(package_failure)?;
            move_into_place(&made, &target)?;
            Ok(imported)
        }))?;
        Ok((imported, target))
    }

    fn import_image(&self, reference: &Reference) -> Result<(Imported, PathBuf, Fetched), Failure> {
        let target = self.to.clone();
        let target =
            target.unwrap_or_else(|| PathBuf::from(format!("{}.package", reference.stem())));
        let RegistryArgs { credentials, ca, insecure_http } = &self.registry;
        let login = match credentials {
            Some(file) => registry::credentials::read(file, reference).map_err(|bad| {
                Failure::from_error(&bad, "correct the file, or leave out --credentials")
            })?,
            None => None,
        };
        let settings = PullConfig {
            platform: self.platform.clone(),
            login,
            authority: ca.clone(),
            insecure_http: *insecure_http,
            proxies: Proxies::from_environment(),
            ..PullConfig::default()
        };
        let (imported, fetched) = block_on(cancel_on_stop(&reference.to_string(), async {
            let layout = TemporaryLayout::create_beside(&target)?;
            let made = layout.0.join("package");
            let done = fetch_and_import(reference, &settings, &layout.0, &made).await?;
            move_into_place(&made, &target)?;
            Ok(done)
        }))?;
        Ok((imported, target, fetched))
    }
}

/// Cancels the work on a shutdown signal; the signal is listened for before the work creates
/// anything.
async fn cancel_on_stop<T>(
    subject: &str,
    work: impl Future<Output = Result<T, Failure>>,
) -> Result<T, Failure> {
    let done = ShutdownSignal::listen()?.run_unless_requested(work).await?;
    done.ok_or_else(|| stopped_failure(subject))
}

fn move_into_place(made: &Path, target: &Path) -> Result<(), Failure> {
    let moved = fs::rename(made, target);
    moved.map_err(|source| Failure::Write { what: target.display().to_string(), source })
}

/// Runs on a thread of its own, so that a shutdown need not wait for it.
async fn import(
    layout: &Path,
    target: &Path,
    platform: Option<String>,
    limits: Limits,
) -> Result<Result<Imported, PackageError>, Failure> {
    let (sender, receiver) = oneshot::channel();
    let (layout, target) = (layout.to_owned(), target.to_owned());
    std::thread::spawn(move || {
        // If the receiver is gone, nothing waits for the result any more.
        let _ = sender.send(oci::import(&layout, &target, platform.as_deref(), limits));
    });
    receiver.await.map_err(|gone| Failure::from_error(&gone, "report this"))
}

async fn fetch_and_import(
    reference: &Reference,
    settings: &PullConfig,
    layout: &Path,
    target: &Path,
) -> Result<(Imported, Fetched), Failure> {
    let transfer = Transfer::to_stderr();
    let fetched = registry::fetch(reference, layout, settings, &transfer).await;
    let fetched = fetched.map_err(|error| registry_failure(&error))?;
    drop(transfer);
    let imported = import(layout, target, settings.platform.clone(), settings.limits).await?;
    Ok((imported.map_err(|error| image_failure(reference, &error))?, fetched))
}

/// A temporary image layout, removed at the end whatever the result. It is created beside the
/// package, where there is enough disk space.
struct TemporaryLayout(PathBuf);

impl TemporaryLayout {
    fn create_beside(target: &Path) -> Result<TemporaryLayout, Failure> {
        let mut name = std::ffi::OsString::from(".");
        name.push(target.file_name().unwrap_or(target.as_os_str()));
        name.push(format!(".{}.layout", std::process::id()));
        let path = target.with_file_name(name);
        let made = fs::DirBuilder::new().mode(0o700).create(&path);
        made.map_err(|source| Failure::Write { what: path.display().to_string(), source })?;
        Ok(TemporaryLayout(path))
    }
}

impl Drop for TemporaryLayout {
    fn drop(&mut self) {
        // A cancelled import may still run on its thread. It uses paths, so after a rename the
        // folder gets no new files while it is removed.
        let renamed = self.0.with_extension("gone");
        let path = fs::rename(&self.0, &renamed).map_or(&self.0, |()| &renamed);
        // An error here cannot be reported any more.
        let _left_behind = fs::remove_dir_all(path);
    }
}

fn registry_failure(error: &RegistryError) -> Failure {
    Failure::Operation { message: error.to_string(), next: error.next().to_owned() }
}

fn image_failure(reference: &Reference, error: &PackageError) -> Failure {
    let next = format!("see what the image has: skopeo inspect {reference}");
    Failure::Operation { message: format!("{reference}: {error}"), next }
}

fn stopped_failure(subject: &str) -> Failure {
    let message = format!("{subject}: stopped, and nothing of it was kept");
    Failure::Operation { message, next: "run it again when there is time".into() }
}

/// The path does not exist; it may be an image reference without its scheme.
fn no_such_source(path: &Path) -> Failure {
    let path_text = path.display().to_string();
    let image: Result<Reference, _> = format!("{SCHEME}{path_text}").parse();
    let next = match image {
        Ok(_) => format!(
            "check the path; for an image in a registry: cell package import {SCHEME}{path_text}"
        ),
        Err(_) => "check the path, then run it again".into(),
    };
    Failure::Usage { message: format!("there is no file {path_text}"), next }
}

fn image_json(imported: &Imported, fetched: Option<&Fetched>) -> serde_json::Value {
    json!({
        "reference": fetched.map(|fetched| fetched.pinned.to_string()),
        "platform": imported.platform,
        "layers": imported.layers,
        "command": imported.command,
        "env": imported.env,
        "working_folder": imported.working_folder,
        "user": imported.user,
        "devices_dropped": imported.dropped.devices,
        "owner_modes_dropped": imported.dropped.owner_modes,
        "links_rewritten": imported.dropped.rewritten_links,
    })
}

fn fetched_text(fetched: &Fetched) -> String {
    format!("{}, {} fetched\n", fetched.pinned, format::bytes(fetched.bytes))
}

fn image_text(imported: &Imported) -> String {
    let layers = format::pluralize(imported.layers as u64, "layer");
    let mut out = format!("{} in {layers}, runs {:?}\n", imported.platform, imported.command);
    let dropped = imported.dropped;
    for (count, subject) in [
        (dropped.devices, "device or pipe left out"),
        (dropped.owner_modes, "program that would run as its owner runs as its caller"),
        (dropped.rewritten_links, "link rewritten to lead to the same place from inside"),
    ] {
        if count > 0 {
            out.push_str(&format!("{} x {subject}\n", format::count(count)));
        }
    }
    out
}
