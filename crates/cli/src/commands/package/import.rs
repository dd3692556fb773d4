//! `cell package import`: a package of an OCI image, from a file or a registry. Nothing goes to the
//! cell.

use super::build::{facts, told};
use super::{default_target, failed};
use crate::args::OutputArgs;
use crate::failure::Failure;
use crate::format;
use crate::output::{Output, print_json, say};
use crate::progress::Transfer;
use crate::server::{Stop, ask};
use cellwright_package::oci::{self, Imported};
use cellwright_package::registry::{
    self, Fetched, Proxies, Reference, RegistryError, SCHEME, Settings,
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
    // Not a comment for rustdoc, which would read the brackets as links.
    #[arg(
        value_name = "IMAGE|FILE|DIR",
        value_parser = source,
        help = "An image in a registry, docker://HOST[:PORT]/NAME[:TAG|@sha256:DIGEST] \
                (docker://alpine for Docker Hub), or an OCI image layout: a tar file or a folder"
    )]
    source: Source,

    /// Where the package goes [default: the image's or file's name and .package, here]
    #[arg(long, value_name = "FILE")]
    to: Option<PathBuf>,

    /// Which image of several [default: this machine's]
    #[arg(long, value_name = "OS/ARCH[/VARIANT]", value_parser = platform)]
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
    /// The first of them that was given.
    fn first(&self) -> Option<&'static str> {
        let given = [
            ("--credentials", self.credentials.is_some()),
            ("--ca", self.ca.is_some()),
            ("--insecure-http", self.insecure_http),
        ];
        given.into_iter().find(|(_, is_given)| *is_given).map(|(option, _)| option)
    }
}

#[derive(Clone, Debug)]
enum Source {
    Layout(PathBuf),
    Image(Reference),
}

fn source(text: &str) -> Result<Source, String> {
    match text.starts_with(SCHEME) {
        true => {
            text.parse().map(Source::Image).map_err(|bad: registry::BadReference| bad.to_string())
        }
        false => Ok(Source::Layout(text.into())),
    }
}

fn platform(text: &str) -> Result<String, String> {
    let word = |part: &str| !part.is_empty() && part.bytes().all(|b| b.is_ascii_alphanumeric());
    match (2..=3).contains(&text.split('/').count()) && text.split('/').all(word) {
        true => Ok(text.to_owned()),
        false => Err("allowed: OS/ARCH or OS/ARCH/VARIANT, as linux/arm64 or linux/arm/v7".into()),
    }
}

impl ImportArgs {
    pub fn run(self) -> Result<(), Failure> {
        let (imported, target, fetched) = match &self.source {
            Source::Layout(path) => {
                let (imported, target) = self.of_layout(path)?;
                (imported, target, None)
            }
            Source::Image(reference) => {
                let (imported, target, fetched) = self.of_registry(reference)?;
                (imported, target, Some(fetched))
            }
        };
        if self.output.output == Output::Json {
            let mut facts = facts(&target, &imported.built);
            facts["image"] = image_facts(&imported, fetched.as_ref());
            return print_json(&facts);
        }
        let from = fetched.map(|fetched| came(&fetched)).unwrap_or_default();
        say(&format!("{from}{}{}", of_image(&imported), told(&target, &imported.built)))
    }

    fn of_layout(&self, path: &Path) -> Result<(Imported, PathBuf), Failure> {
        if let Some(option) = self.registry.first() {
            return Err(Failure::Usage {
                message: format!("{option} is for registries, and {} is none", path.display()),
                next: format!("the same command without {option}, or with {SCHEME}HOST/NAME"),
            });
        }
        if !path.exists() {
            return Err(neither(path));
        }
        let target = match &self.to {
            Some(target) => target.clone(),
            None => default_target(path)?,
        };
        let imported = ask(until_stopped(&path.display().to_string(), async {
            let layout = Layout::beside(&target)?;
            let made = layout.0.join("package");
            let imported = import(path, &made, self.platform.clone(), Limits::default()).await?;
            let imported = imported.map_err(failed)?;
            put(&made, &target)?;
            Ok(imported)
        }))?;
        Ok((imported, target))
    }

    fn of_registry(&self, reference: &Reference) -> Result<(Imported, PathBuf, Fetched), Failure> {
        let target = self.to.clone();
        let target =
            target.unwrap_or_else(|| PathBuf::from(format!("{}.package", reference.stem())));
        let RegistryArgs { credentials, ca, insecure_http } = &self.registry;
        let login = match credentials {
            Some(file) => registry::credentials::read(file, reference).map_err(|bad| {
                Failure::work(&bad, "correct the file, or leave out --credentials")
            })?,
            None => None,
        };
        let settings = Settings {
            platform: self.platform.clone(),
            login,
            authority: ca.clone(),
            insecure_http: *insecure_http,
            proxies: Proxies::from_environment(),
            ..Settings::default()
        };
        let (imported, fetched) = ask(until_stopped(&reference.to_string(), async {
            let layout = Layout::beside(&target)?;
            let made = layout.0.join("package");
            let done = fetch_and_import(reference, &settings, &layout.0, &made).await?;
            put(&made, &target)?;
            Ok(done)
        }))?;
        Ok((imported, target, fetched))
    }
}

/// Gives the work up when told to stop, which is listened for before the work makes anything.
async fn until_stopped<T>(
    what: &str,
    work: impl Future<Output = Result<T, Failure>>,
) -> Result<T, Failure> {
    let done = Stop::listen()?.unless_told(work).await?;
    done.ok_or_else(|| stopped(what))
}

fn put(made: &Path, target: &Path) -> Result<(), Failure> {
    let moved = fs::rename(made, target);
    moved.map_err(|source| Failure::Write { what: target.display().to_string(), source })
}

/// On a thread of its own, so that one who is told to stop need not wait for it.
async fn import(
    layout: &Path,
    target: &Path,
    platform: Option<String>,
    limits: Limits,
) -> Result<Result<Imported, PackageError>, Failure> {
    let (sender, receiver) = oneshot::channel();
    let (layout, target) = (layout.to_owned(), target.to_owned());
    std::thread::spawn(move || {
        // Nobody waits for it any more if it cannot be sent.
        let _ = sender.send(oci::import(&layout, &target, platform.as_deref(), limits));
    });
    receiver.await.map_err(|gone| Failure::work(&gone, "report this"))
}

async fn fetch_and_import(
    reference: &Reference,
    settings: &Settings,
    layout: &Path,
    target: &Path,
) -> Result<(Imported, Fetched), Failure> {
    let transfer = Transfer::to_stderr();
    let fetched = registry::fetch(reference, layout, settings, &transfer).await;
    let fetched = fetched.map_err(|error| refused(&error))?;
    drop(transfer);
    let imported = import(layout, target, settings.platform.clone(), settings.limits).await?;
    Ok((imported.map_err(|error| of_registry(reference, &error))?, fetched))
}

/// Where an image and what is made of it are until it is a package; gone at the end, whatever has
/// come of it. Beside the package, since that is where there is room.
struct Layout(PathBuf);

impl Layout {
    fn beside(target: &Path) -> Result<Layout, Failure> {
        let mut name = std::ffi::OsString::from(".");
        name.push(target.file_name().unwrap_or(target.as_os_str()));
        name.push(format!(".{}.layout", std::process::id()));
        let path = target.with_file_name(name);
        let made = fs::DirBuilder::new().mode(0o700).create(&path);
        made.map_err(|source| Failure::Write { what: path.display().to_string(), source })?;
        Ok(Layout(path))
    }
}

impl Drop for Layout {
    fn drop(&mut self) {
        // An import that was given up may still be at work on its thread. It goes by names, and
        // under another one the folder gets nothing new while it is emptied.
        let gone = self.0.with_extension("gone");
        let path = fs::rename(&self.0, &gone).map_or(&self.0, |()| &gone);
        // There is nobody left to tell.
        let _left_behind = fs::remove_dir_all(path);
    }
}

fn refused(error: &RegistryError) -> Failure {
    Failure::Work { message: error.to_string(), next: error.next().to_owned() }
}

fn of_registry(reference: &Reference, error: &PackageError) -> Failure {
    let next = format!("see what the image has: skopeo inspect {reference}");
    Failure::Work { message: format!("{reference}: {error}"), next }
}

fn stopped(what: &str) -> Failure {
    let message = format!("{what}: stopped, and nothing of it was kept");
    Failure::Work { message, next: "run it again when there is time".into() }
}

/// No file, which may be an image without its scheme.
fn neither(path: &Path) -> Failure {
    let typed = path.display().to_string();
    let image: Result<Reference, _> = format!("{SCHEME}{typed}").parse();
    let next = match image {
        Ok(_) => format!(
            "check the path; for an image in a registry: cell package import {SCHEME}{typed}"
        ),
        Err(_) => "check the path, then run it again".into(),
    };
    Failure::Usage { message: format!("there is no file {typed}"), next }
}

fn image_facts(imported: &Imported, fetched: Option<&Fetched>) -> serde_json::Value {
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

fn came(fetched: &Fetched) -> String {
    format!("{}, {} fetched\n", fetched.pinned, format::bytes(fetched.bytes))
}

fn of_image(imported: &Imported) -> String {
    let layers = format::counted(imported.layers as u64, "layer");
    let mut out = format!("{} in {layers}, runs {:?}\n", imported.platform, imported.command);
    let dropped = imported.dropped;
    for (count, what) in [
        (dropped.devices, "device or pipe left out"),
        (dropped.owner_modes, "program that would run as its owner runs as its caller"),
        (dropped.rewritten_links, "link rewritten to lead to the same place from inside"),
    ] {
        if count > 0 {
            out.push_str(&format!("{} x {what}\n", format::count(count)));
        }
    }
    out
}
