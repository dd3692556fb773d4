//! The parts of an image: index, manifest, configuration, layers. Everything but the index is named
//! by its digest and checked against it when it is read.

use crate::digest::{Hasher, PackageDigest};
use crate::error::{Limit, PackageError, at};
use crate::path::shortened;
use crate::stream::members;
use crate::unpack::Limits;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, BufReader, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

/// Longest index, manifest or configuration.
const MAX_JSON: u64 = 4 << 20;
/// An index may name an index; more than this is no image anybody made.
const MAX_NESTING: u32 = 4;

#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Descriptor {
    #[serde(default)]
    media_type: String,
    digest: String,
    size: u64,
    platform: Option<Platform>,
}

#[derive(Clone, Debug, Deserialize)]
struct Platform {
    os: String,
    architecture: String,
}

#[derive(Deserialize)]
struct Index {
    manifests: Vec<Descriptor>,
}

#[derive(Deserialize)]
struct Manifest {
    config: Descriptor,
    layers: Vec<Descriptor>,
}

#[derive(Deserialize)]
struct Configuration {
    #[serde(default)]
    os: String,
    #[serde(default)]
    architecture: String,
    #[serde(default)]
    config: Run,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Run {
    #[serde(default)]
    entrypoint: Option<Vec<String>>,
    #[serde(default)]
    cmd: Option<Vec<String>>,
    #[serde(default)]
    env: Option<Vec<String>>,
    #[serde(default)]
    working_dir: String,
    #[serde(default)]
    user: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Compression {
    None,
    Gzip,
}

pub(super) struct Layer {
    pub(super) blob: Descriptor,
    pub(super) compression: Compression,
}

pub(super) struct Image {
    path: PathBuf,
    /// Where in the archive each member's bytes are, and how many.
    members: BTreeMap<String, (u64, u64)>,
    pub(super) platform: String,
    pub(super) layers: Vec<Layer>,
    pub(super) command: Vec<String>,
    pub(super) env: Vec<String>,
    pub(super) working_folder: String,
    pub(super) user: String,
}

impl Image {
    pub(super) fn open(
        path: &Path,
        platform: Option<&str>,
        limits: Limits,
    ) -> Result<Image, PackageError> {
        let file = File::open(path).map_err(at(path))?;
        let mut found = BTreeMap::new();
        members(BufReader::new(file), limits.entries, |member, _| {
            let name = member.path.strip_prefix("./").unwrap_or(&member.path).to_owned();
            if member.kind.is_file() && found.insert(name, (member.starts, member.bytes)).is_some()
            {
                return Err(PackageError::Twice { path: shortened(&member.path) });
            }
            Ok(())
        })?;
        let mut image = Image {
            path: path.to_owned(),
            members: found,
            platform: String::new(),
            layers: Vec::new(),
            command: Vec::new(),
            env: Vec::new(),
            working_folder: String::new(),
            user: String::new(),
        };
        image.read_parts(platform)?;
        Ok(image)
    }

    fn read_parts(&mut self, platform: Option<&str>) -> Result<(), PackageError> {
        let (starts, bytes) = *self.members.get("index.json").ok_or_else(|| {
            image(
                "it has no index.json; allowed: an OCI image layout, as from \
                   `skopeo copy docker://NAME oci-archive:FILE`",
            )
        })?;
        let index: Index = parse("index.json", self.section(starts, bytes)?, bytes)?;
        let descriptor = self.choose(index, platform, 0)?;
        let manifest: Manifest = self.json(&descriptor)?;
        let configuration: Configuration = self.json(&manifest.config)?;
        for blob in manifest.layers {
            let compression = compression(&blob.media_type)?;
            self.layers.push(Layer { blob, compression });
        }
        self.platform = format!("{}/{}", configuration.os, configuration.architecture);
        let Run { entrypoint, cmd, env, working_dir, user } = configuration.config;
        self.command = [entrypoint.unwrap_or_default(), cmd.unwrap_or_default()].concat();
        self.env = env.unwrap_or_default();
        (self.working_folder, self.user) = (working_dir, user);
        Ok(())
    }

    /// The manifest for the platform; one that names none is for any.
    fn choose(
        &self,
        index: Index,
        platform: Option<&str>,
        depth: u32,
    ) -> Result<Descriptor, PackageError> {
        let here = format!("linux/{}", architecture());
        let wanted = platform.unwrap_or(&here);
        let matches = |descriptor: &&Descriptor| match &descriptor.platform {
            Some(p) => format!("{}/{}", p.os, p.architecture) == wanted,
            None => true,
        };
        let Some(found) = index.manifests.iter().find(matches) else {
            let has: Vec<String> = index
                .manifests
                .iter()
                .filter_map(|d| d.platform.as_ref())
                .map(|p| format!("{}/{}", p.os, p.architecture))
                .collect();
            let has = has.join(", ");
            return Err(image(&format!("it has nothing for {wanted}; allowed: {has}")));
        };
        if !found.media_type.contains("index") && !found.media_type.contains("manifest.list") {
            return Ok(found.clone());
        }
        if depth >= MAX_NESTING {
            return Err(image("an index names an index, which names an index, and so on"));
        }
        let inner: Index = self.json(found)?;
        self.choose(inner, platform, depth + 1)
    }

    fn json<T: DeserializeOwned>(&self, descriptor: &Descriptor) -> Result<T, PackageError> {
        let mut blob = self.blob(descriptor)?;
        let value = parse(&descriptor.digest, &mut blob, descriptor.size)?;
        blob.finish()?;
        Ok(value)
    }

    /// A blob's bytes; its digest is checked by [`Blob::finish`].
    pub(super) fn blob(&self, descriptor: &Descriptor) -> Result<Blob, PackageError> {
        let digits = descriptor.digest.strip_prefix("sha256:");
        let expected = digits.and_then(PackageDigest::parse).ok_or_else(|| {
            image(&format!(
                "digest {:?} is not sha256: and 64 digits",
                shortened(&descriptor.digest)
            ))
        })?;
        let name = format!("blobs/sha256/{expected}");
        let found = self.members.get(&name);
        let (starts, bytes) = *found.ok_or_else(|| image(&format!("{name} is missing")))?;
        if bytes != descriptor.size {
            let size = descriptor.size;
            return Err(image(&format!("{name} has {bytes} bytes and should have {size}")));
        }
        Ok(Blob { inner: self.section(starts, bytes)?, hasher: Hasher::new(), expected })
    }

    fn section(&self, starts: u64, bytes: u64) -> Result<io::Take<File>, PackageError> {
        let mut file = File::open(&self.path).map_err(at(&self.path))?;
        file.seek(SeekFrom::Start(starts)).map_err(at(&self.path))?;
        Ok(file.take(bytes))
    }
}

/// A blob on its way through a hash.
pub(super) struct Blob {
    inner: io::Take<File>,
    hasher: Hasher,
    expected: PackageDigest,
}

impl Read for Blob {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let got = self.inner.read(buffer)?;
        self.hasher.update(&buffer[..got]);
        Ok(got)
    }
}

impl Blob {
    /// To be called when all of it was read.
    pub(super) fn finish(self) -> Result<(), PackageError> {
        let (expected, found) = (self.expected, PackageDigest(self.hasher.finish()));
        if found != expected {
            return Err(PackageError::OtherContent { expected, found });
        }
        Ok(())
    }
}

fn parse<T: DeserializeOwned>(
    name: &str,
    mut from: impl Read,
    bytes: u64,
) -> Result<T, PackageError> {
    if bytes > MAX_JSON {
        return Err(PackageError::Beyond { limit: Limit::Head, found: bytes, most: MAX_JSON });
    }
    let mut text = Vec::new();
    from.read_to_end(&mut text).map_err(|why| crate::stream::unreadable(0, why))?;
    serde_json::from_slice(&text)
        .map_err(|why| image(&format!("{} cannot be read: {why}", shortened(name))))
}

fn compression(media_type: &str) -> Result<Compression, PackageError> {
    if media_type.ends_with("+gzip") || media_type.ends_with(".gzip") {
        return Ok(Compression::Gzip);
    }
    if media_type.ends_with(".tar") {
        return Ok(Compression::None);
    }
    let media_type = shortened(media_type);
    Err(image(&format!(
        "a layer is of type {media_type:?}; allowed: tar and tar+gzip, as from \
         `skopeo copy --dest-compress-format gzip`"
    )))
}

/// This machine's, as images spell it.
fn architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}

fn image(why: &str) -> PackageError {
    PackageError::Image(why.to_owned())
}
