//! The parts of an image: index, manifest, configuration, layers. Everything but the index is named
//! by its digest and verified when it is read.
//!
//! They are in the image layout, as members of one tar file or as files of a folder.

use crate::digest::{Hasher, PackageDigest};
use crate::error::{Limit, PackageError, at};
use crate::path::{printable, truncate};
use crate::tar_stream::members;
use crate::unpack::Limits;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, BufReader, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

/// Longest index, manifest or configuration.
pub(crate) const MAX_JSON: u64 = 4 << 20;
/// An index may name an index; real images are not nested deeper than this.
pub(crate) const MAX_NESTING: u32 = 4;
/// Most layers of one image; tools that build images stop at 127. Each is an open file here.
pub(crate) const MAX_LAYERS: usize = 256;

#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Descriptor {
    #[serde(default)]
    pub(crate) media_type: String,
    digest: String,
    pub(crate) size: u64,
    platform: Option<Platform>,
}

#[derive(Clone, Debug, Deserialize)]
struct Platform {
    os: String,
    architecture: String,
    variant: Option<String>,
}

#[derive(Deserialize)]
pub(crate) struct Index {
    manifests: Vec<Descriptor>,
}

#[derive(Deserialize)]
pub(crate) struct Manifest {
    pub(crate) config: Descriptor,
    pub(crate) layers: Vec<Descriptor>,
}

#[derive(Deserialize)]
struct Configuration {
    #[serde(default)]
    os: String,
    #[serde(default)]
    architecture: String,
    #[serde(default)]
    config: RunConfig,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct RunConfig {
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
    Zstd,
}

pub(super) struct Layer {
    pub(super) blob: Descriptor,
    pub(super) compression: Compression,
}

/// Where the bytes of a part are.
struct BlobLocation {
    file: PathBuf,
    offset: u64,
    bytes: u64,
}

pub(super) struct Image {
    /// By path in the layout.
    blobs: BTreeMap<String, BlobLocation>,
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
        let blobs = if path.is_dir() {
            locate_in_folder(path, limits)?
        } else {
            locate_in_archive(path, limits)?
        };
        let mut image = Image {
            blobs,
            platform: String::new(),
            layers: Vec::new(),
            command: Vec::new(),
            env: Vec::new(),
            working_folder: String::new(),
            user: String::new(),
        };
        image.read_manifest(&target_platform(platform))?;
        Ok(image)
    }

    fn read_manifest(&mut self, target: &str) -> Result<(), PackageError> {
        let location = self.blobs.get("index.json").ok_or_else(|| {
            image_error(
                "it has no index.json; allowed: an OCI image layout, as from \
                   `skopeo copy docker://NAME oci-archive:FILE`",
            )
        })?;
        let index: Index = parse("index.json", open_section(location)?, location.bytes)?;
        let descriptor = self.choose(&index, target, 0)?;
        let manifest: Manifest = self.json(&descriptor)?;
        manifest.check()?;
        let configuration: Configuration = self.json(&manifest.config)?;
        let stated = format!("{}/{}", configuration.os, configuration.architecture);
        self.platform = printable(&stated);
        if !stated.starts_with('/') && !matches_platform(&stated, target) {
            let platform = &self.platform;
            let why = format!("it is for {platform} and not for {target}; allowed: --platform");
            return Err(image_error(&format!("{why} {platform}")));
        }
        for blob in manifest.layers {
            let compression = compression(&blob.media_type)?;
            self.layers.push(Layer { blob, compression });
        }
        let RunConfig { entrypoint, cmd, env, working_dir, user } = configuration.config;
        self.command = [entrypoint.unwrap_or_default(), cmd.unwrap_or_default()].concat();
        self.env = env.unwrap_or_default();
        (self.working_folder, self.user) = (working_dir, user);
        Ok(())
    }

    fn choose(&self, index: &Index, target: &str, depth: u32) -> Result<Descriptor, PackageError> {
        let found = index.pick(target)?;
        if !is_index(&found.media_type) {
            return Ok(found.clone());
        }
        if depth >= MAX_NESTING {
            return Err(too_deeply_nested());
        }
        let inner: Index = self.json(found)?;
        self.choose(&inner, target, depth + 1)
    }

    fn json<T: DeserializeOwned>(&self, descriptor: &Descriptor) -> Result<T, PackageError> {
        let mut blob = self.blob(descriptor)?;
        let value = parse(&descriptor.digest, &mut blob, descriptor.size)?;
        blob.finish()?;
        Ok(value)
    }

    /// A reader of a blob's bytes; its digest is verified by [`Blob::finish`].
    pub(super) fn blob(&self, descriptor: &Descriptor) -> Result<Blob, PackageError> {
        let expected = descriptor.digest()?;
        let name = format!("blobs/sha256/{expected}");
        let found = self.blobs.get(&name);
        let location = found.ok_or_else(|| image_error(&format!("{name} is missing")))?;
        let (bytes, size) = (location.bytes, descriptor.size);
        if bytes != size {
            return Err(image_error(&format!("{name} has {bytes} bytes and should have {size}")));
        }
        Ok(Blob { inner: open_section(location)?, hasher: Hasher::new(), expected })
    }
}

impl Descriptor {
    pub(crate) fn digest(&self) -> Result<PackageDigest, PackageError> {
        let digits = self.digest.strip_prefix("sha256:");
        digits.and_then(PackageDigest::parse).ok_or_else(|| {
            image_error(&format!(
                "digest {:?} is not sha256: and 64 digits",
                truncate(&self.digest)
            ))
        })
    }
}

impl Index {
    /// The manifest for the platform; one that names none is for any.
    pub(crate) fn pick(&self, target: &str) -> Result<&Descriptor, PackageError> {
        let platform = |descriptor: &Descriptor| {
            descriptor.platform.as_ref().map(Platform::to_platform_string)
        };
        let fits =
            |d: &&Descriptor| platform(d).is_none_or(|found| matches_platform(&found, target));
        self.manifests.iter().find(fits).ok_or_else(|| {
            let mut has: Vec<String> = self.manifests.iter().filter_map(platform).collect();
            // Attestations of an image are in the index as images for an unknown platform.
            has.retain(|platform| !platform.starts_with("unknown/"));
            has.dedup();
            has.truncate(50);
            let has = printable(&has.join(", "));
            image_error(&format!(
                "it has nothing for {target}; allowed: --platform with one of {has}"
            ))
        })
    }
}

impl Manifest {
    /// # Errors
    /// When there are too many layers, or ones that cannot be unpacked.
    pub(crate) fn check(&self) -> Result<(), PackageError> {
        let found = self.layers.len();
        if found > MAX_LAYERS {
            return Err(image_error(&format!(
                "it has {found} layers; allowed: at most {MAX_LAYERS}"
            )));
        }
        self.layers.iter().try_for_each(|layer| compression(&layer.media_type).map(drop))
    }
}

impl Platform {
    fn to_platform_string(&self) -> String {
        match self.variant.as_deref().filter(|variant| !variant.is_empty()) {
            Some(variant) => format!("{}/{}/{variant}", self.os, self.architecture),
            None => format!("{}/{}", self.os, self.architecture),
        }
    }
}

/// The platform to look for: `OS/ARCHITECTURE[/VARIANT]`.
pub(crate) fn target_platform(platform: Option<&str>) -> String {
    platform.map_or_else(|| format!("linux/{}", architecture()), ToOwned::to_owned)
}

/// An entry without a variant matches all variants.
fn matches_platform(found: &str, target: &str) -> bool {
    let (mut found, mut target_parts) = (found.split('/'), target.split('/'));
    (0..3).all(|part| match (found.next(), target_parts.next()) {
        (Some(found), Some(target)) => found == target,
        (None, None) => true,
        _ => part == 2,
    })
}

pub(crate) fn is_index(media_type: &str) -> bool {
    media_type.contains("index") || media_type.contains("manifest.list")
}

pub(crate) fn too_deeply_nested() -> PackageError {
    image_error("an index names an index, which names an index, and so on")
}

fn locate_in_archive(
    path: &Path,
    limits: Limits,
) -> Result<BTreeMap<String, BlobLocation>, PackageError> {
    let file = File::open(path).map_err(at(path))?;
    let mut found = BTreeMap::new();
    members(BufReader::new(file), limits.entries, |member, _| {
        let name = member.path.strip_prefix("./").unwrap_or(&member.path).to_owned();
        let location =
            BlobLocation { file: path.to_owned(), offset: member.starts, bytes: member.bytes };
        if member.kind.is_file() && found.insert(name, location).is_some() {
            return Err(PackageError::Twice { path: truncate(&member.path) });
        }
        Ok(())
    })?;
    Ok(found)
}

fn locate_in_folder(
    path: &Path,
    limits: Limits,
) -> Result<BTreeMap<String, BlobLocation>, PackageError> {
    let mut found = BTreeMap::new();
    for below in ["", "blobs/sha256/"] {
        let folder = path.join(below);
        if !folder.is_dir() {
            continue;
        }
        for entry in fs::read_dir(&folder).map_err(at(&folder))? {
            let entry = entry.map_err(at(&folder))?;
            let about = entry.metadata().map_err(at(&entry.path()))?;
            if let (true, Some(name)) = (about.is_file(), entry.file_name().to_str()) {
                let location = BlobLocation { file: entry.path(), offset: 0, bytes: about.len() };
                found.insert(format!("{below}{name}"), location);
            }
            let (count, most) = (found.len() as u64, limits.entries);
            if count > most {
                return Err(PackageError::Beyond { limit: Limit::Entries, found: count, most });
            }
        }
    }
    Ok(found)
}

fn open_section(location: &BlobLocation) -> Result<io::Take<File>, PackageError> {
    let mut file = File::open(&location.file).map_err(at(&location.file))?;
    file.seek(SeekFrom::Start(location.offset)).map_err(at(&location.file))?;
    Ok(file.take(location.bytes))
}

/// A blob that is hashed while it is read.
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
    from.read_to_end(&mut text).map_err(|why| crate::tar_stream::unreadable(0, why))?;
    serde_json::from_slice(&text)
        .map_err(|why| image_error(&format!("{} cannot be read: {why}", truncate(name))))
}

fn compression(media_type: &str) -> Result<Compression, PackageError> {
    if media_type.ends_with("+gzip") || media_type.ends_with(".gzip") {
        return Ok(Compression::Gzip);
    }
    if media_type.ends_with("+zstd") || media_type.ends_with(".zstd") {
        return Ok(Compression::Zstd);
    }
    if media_type.ends_with(".tar") {
        return Ok(Compression::None);
    }
    let media_type = truncate(media_type);
    Err(image_error(&format!(
        "a layer is of type {media_type:?}; allowed: tar, tar+gzip and tar+zstd, as from \
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

fn image_error(why: &str) -> PackageError {
    PackageError::Image(why.to_owned())
}
