//! `cell package build` and `cell package import-oci`: a file is made, nothing is sent.

use super::{default_target, failed};
use crate::args::OutputArgs;
use crate::failure::Failure;
use crate::format;
use crate::output::{Output, print, print_json};
use cellwright_package::oci::{self, Imported};
use cellwright_package::{Built, Limits, build};
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

#[derive(Debug, Args)]
pub struct ImportArgs {
    /// An OCI image layout in a tar file
    #[arg(value_name = "FILE")]
    archive: PathBuf,

    /// Where the package goes [default: the file's name and .package, here]
    #[arg(long, value_name = "FILE")]
    to: Option<PathBuf>,

    /// Which image of several [default: this machine's]
    #[arg(long, value_name = "OS/ARCH")]
    platform: Option<String>,

    #[command(flatten)]
    output: OutputArgs,
}

impl BuildArgs {
    pub fn run(self) -> Result<(), Failure> {
        let target = match self.to {
            Some(target) => target,
            None => default_target(&self.folder)?,
        };
        let built = build(&self.folder, &target).map_err(failed)?;
        match self.output.output {
            Output::Json => print_json(&facts(&target, &built)),
            Output::Table => print(&told(&target, &built)),
        }
    }
}

impl ImportArgs {
    pub fn run(self) -> Result<(), Failure> {
        let target = match self.to {
            Some(target) => target,
            None => default_target(&self.archive)?,
        };
        let platform = self.platform.as_deref();
        let imported = oci::import(&self.archive, &target, platform, Limits::default());
        let imported = imported.map_err(failed)?;
        match self.output.output {
            Output::Json => {
                let mut facts = facts(&target, &imported.built);
                facts["image"] = json!({
                    "platform": imported.platform,
                    "layers": imported.layers,
                    "command": imported.command,
                    "env": imported.env,
                    "working_folder": imported.working_folder,
                    "user": imported.user,
                    "devices_dropped": imported.dropped.devices,
                    "owner_modes_dropped": imported.dropped.owner_modes,
                    "links_rewritten": imported.dropped.rewritten_links,
                });
                print_json(&facts)
            }
            Output::Table => {
                print(&format!("{}{}", of_image(&imported), told(&target, &imported.built)))
            }
        }
    }
}

fn facts(target: &Path, built: &Built) -> serde_json::Value {
    json!({
        "file": target.display().to_string(),
        "digest": built.digest.to_string(),
        "bytes": built.bytes,
        "entries": built.entries,
        "content_bytes": built.content,
    })
}

fn told(target: &Path, built: &Built) -> String {
    let file = target.display();
    format!(
        "{file}: {} entries, {}\ndigest {}\nnext: cell package push {file} --name NAME\n",
        format::count(built.entries),
        format::bytes(built.bytes),
        built.digest,
    )
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
