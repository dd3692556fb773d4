//! The parts of an image: index, manifest, configuration, layers. Everything but the index is named
//! by its digest and checked against it when it is read.
//!
//! They are in the image layout, as members of one tar file or as files of a folder.

use crate::digest::{Hasher, PackageDigest};
use crate::error::{Limit, PackageError, at};
use crate::path::{shortened, shown};
use crate::stream::members;
use crate::unpack::Limits;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, BufReader, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

/// Longest index, manifest or configuration.
pub(crate) const MAX_JSON: u64 = 4 << 20;
/// An index may name an index; more than this is no image anybody made.
pub(crate) const MAX_NESTING: u32 = 4;
/// Layers of one image; those that make images stop at 127. Each is an open file here.
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
    Zstd,
}

pub(super) struct Layer {
    pub(super) blob: Descriptor,
    pub(super) compression: Compression,
}

/// Where the bytes of a part are.
struct Place {
    file: PathBuf,
    starts: u64,
    bytes: u64,
}

pub(super) struct Image {
    /// By path in the layout.
    parts: BTreeMap<String, Place>,
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
        let parts = match path.is_dir() {
            true => in_folder(path, limits)?,
            false => in_archive(path, limits)?,
        };
        let mut image = Image {
            parts,
            platform: String::new(),
            layers: Vec::new(),
            command: Vec::new(),
            env: Vec::new(),
            working_folder: String::new(),
            user: String::new(),
        };
        image.read_parts(&wanted(platform))?;
        Ok(image)
    }

    fn read_parts(&mut self, wanted: &str) -> Result<(), PackageError> {
        let place = self.parts.get("index.json").ok_or_else(|| {
            image(
                "it has no index.json; allowed: an OCI image layout, as from \
                   `skopeo copy docker://NAME oci-archive:FILE`",
            )
        })?;
        let index: Index = parse("index.json", section(place)?, place.bytes)?;
        let descriptor = self.choose(&index, wanted, 0)?;
        let manifest: Manifest = self.json(&descriptor)?;
        manifest.check()?;
        let configuration: Configuration = self.json(&manifest.config)?;
        let stated = format!("{}/{}", configuration.os, configuration.architecture);
        self.platform = shown(&stated);
        if !stated.starts_with('/') && !is_for(&stated, wanted) {
            let platform = &self.platform;
            let why = format!("it is for {platform} and not for {wanted}; allowed: --platform");
            return Err(image(&format!("{why} {platform}")));
        }
        for blob in manifest.layers {
            let compression = compression(&blob.media_type)?;
            self.layers.push(Layer { blob, compression });
        }
        let Run { entrypoint, cmd, env, working_dir, user } = configuration.config;
        self.command = [entrypoint.unwrap_or_default(), cmd.unwrap_or_default()].concat();
        self.env = env.unwrap_or_default();
        (self.working_folder, self.user) = (working_dir, user);
        Ok(())
    }

    fn choose(&self, index: &Index, wanted: &str, depth: u32) -> Result<Descriptor, PackageError> {
        let found = index.pick(wanted)?;
        if !is_index(&found.media_type) {
            return Ok(found.clone());
        }
        if depth >= MAX_NESTING {
            return Err(nested());
        }
        let inner: Index = self.json(found)?;
        self.choose(&inner, wanted, depth + 1)
    }

    fn json<T: DeserializeOwned>(&self, descriptor: &Descriptor) -> Result<T, PackageError> {
        let mut blob = self.blob(descriptor)?;
        let value = parse(&descriptor.digest, &mut blob, descriptor.size)?;
        blob.finish()?;
        Ok(value)
    }

    /// A blob's bytes; its digest is checked by [`Blob::finish`].
    pub(super) fn blob(&self, descriptor: &Descriptor) -> Result<Blob, PackageError> {
        let expected = descriptor.digest()?;
        let name = format!("blobs/sha256/{expected}");
        let found = self.parts.get(&name);
        let place = found.ok_or_else(|| image(&format!("{name} is missing")))?;
        let (bytes, size) = (place.bytes, descriptor.size);
        if bytes != size {
            return Err(image(&format!("{name} has {bytes} bytes and should have {size}")));
        }
        Ok(Blob { inner: section(place)?, hasher: Hasher::new(), expected })
    }
}

impl Descriptor {
    pub(crate) fn digest(&self) -> Result<PackageDigest, PackageError> {
        let digits = self.digest.strip_prefix("sha256:");
        digits.and_then(PackageDigest::parse).ok_or_else(|| {
            image(&format!("digest {:?} is not sha256: and 64 digits", shortened(&self.digest)))
        })
    }
}

impl Index {
    /// The manifest for the platform; one that names none is for any.
    pub(crate) fn pick(&self, wanted: &str) -> Result<&Descriptor, PackageError> {
        let platform = |descriptor: &Descriptor| descriptor.platform.as_ref().map(Platform::spelt);
        let fits = |d: &&Descriptor| platform(d).is_none_or(|found| is_for(&found, wanted));
        self.manifests.iter().find(fits).ok_or_else(|| {
            let mut has: Vec<String> = self.manifests.iter().filter_map(platform).collect();
            // What vouches for an image is in the index as an image for nothing.
            has.retain(|platform| !platform.starts_with("unknown/"));
            has.dedup();
            has.truncate(50);
            let has = shown(&has.join(", "));
            image(&format!("it has nothing for {wanted}; allowed: --platform with one of {has}"))
        })
    }
}

impl Manifest {
    /// # Errors
    /// When there are too many layers, or ones that cannot be unpacked.
    pub(crate) fn check(&self) -> Result<(), PackageError> {
        let found = self.layers.len();
        if found > MAX_LAYERS {
            return Err(image(&format!("it has {found} layers; allowed: at most {MAX_LAYERS}")));
        }
        self.layers.iter().try_for_each(|layer| compression(&layer.media_type).map(drop))
    }
}

impl Platform {
    fn spelt(&self) -> String {
        match self.variant.as_deref().filter(|variant| !variant.is_empty()) {
            Some(variant) => format!("{}/{}/{variant}", self.os, self.architecture),
            None => format!("{}/{}", self.os, self.architecture),
        }
    }
}

/// The platform to look for: `OS/ARCHITECTURE[/VARIANT]`.
pub(crate) fn wanted(platform: Option<&str>) -> String {
    platform.map_or_else(|| format!("linux/{}", architecture()), ToOwned::to_owned)
}

/// What is said of one of them without a variant holds for all of them.
fn is_for(found: &str, wanted: &str) -> bool {
    let (mut found, mut wanted) = (found.split('/'), wanted.split('/'));
    (0..3).all(|part| match (found.next(), wanted.next()) {
        (Some(found), Some(wanted)) => found == wanted,
        (None, None) => true,
        _ => part == 2,
    })
}

pub(crate) fn is_index(media_type: &str) -> bool {
    media_type.contains("index") || media_type.contains("manifest.list")
}

pub(crate) fn nested() -> PackageError {
    image("an index names an index, which names an index, and so on")
}

fn in_archive(path: &Path, limits: Limits) -> Result<BTreeMap<String, Place>, PackageError> {
    let file = File::open(path).map_err(at(path))?;
    let mut found = BTreeMap::new();
    members(BufReader::new(file), limits.entries, |member, _| {
        let name = member.path.strip_prefix("./").unwrap_or(&member.path).to_owned();
        let place = Place { file: path.to_owned(), starts: member.starts, bytes: member.bytes };
        if member.kind.is_file() && found.insert(name, place).is_some() {
            return Err(PackageError::Twice { path: shortened(&member.path) });
        }
        Ok(())
    })?;
    Ok(found)
}

fn in_folder(path: &Path, limits: Limits) -> Result<BTreeMap<String, Place>, PackageError> {
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
                let place = Place { file: entry.path(), starts: 0, bytes: about.len() };
                found.insert(format!("{below}{name}"), place);
            }
            let (count, most) = (found.len() as u64, limits.entries);
            if count > most {
                return Err(PackageError::Beyond { limit: Limit::Entries, found: count, most });
            }
        }
    }
    Ok(found)
}

fn section(place: &Place) -> Result<io::Take<File>, PackageError> {
    let mut file = File::open(&place.file).map_err(at(&place.file))?;
    file.seek(SeekFrom::Start(place.starts)).map_err(at(&place.file))?;
    Ok(file.take(place.bytes))
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
    if media_type.ends_with("+zstd") || media_type.ends_with(".zstd") {
        return Ok(Compression::Zstd);
    }
    if media_type.ends_with(".tar") {
        return Ok(Compression::None);
    }
    let media_type = shortened(media_type);
    Err(image(&format!(
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

fn image(why: &str) -> PackageError {
    PackageError::Image(why.to_owned())
}
