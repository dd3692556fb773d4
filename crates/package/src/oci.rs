//! Imports an OCI image as a package.
//!
//! The image comes as one tar file in the image layout (`skopeo copy … oci-archive:FILE`, `podman
//! save --format oci-archive`, `docker buildx build -o type=oci`). Its layers are merged in memory,
//! as names that point into the unpacked layers, and written out sorted.
//!
//! Rejected: unpacking the layers over each other on disk and packing the result. That takes root
//! for the owners and modes of some images, and every layer could plant a link for the next one to
//! write through.

pub(crate) mod image;
mod tree;
pub(crate) mod zstd;

use crate::build::Built;
use crate::error::{Limit, PackageError, at};
use crate::tar_stream::{Member, members};
use crate::unpack::Limits;
use crate::writer::{Scratch, Writer};
use flate2::read::MultiGzDecoder;
use image::{Compression, Image, Layer};
use std::fs::File;
use std::io::{self, BufReader, Read, Seek, SeekFrom, Write};
use std::path::Path;
use tree::{Content, Tree};

/// Bytes of all names and links of a layer together: a large one has a hundred thousand of a
/// hundred bytes.
const MAX_NAMES: u64 = 128 << 20;

/// An image that was written as a package.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Imported {
    pub built: Built,
    pub platform: String,
    pub layers: usize,
    /// The image's entrypoint and command; for the `command` of a job.
    pub command: Vec<String>,
    pub env: Vec<String>,
    pub working_folder: String,
    pub user: String,
    pub dropped: Dropped,
}

/// What a package cannot hold.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Dropped {
    /// Devices and FIFOs.
    pub devices: u64,
    /// Set-user-ID programs; they run as their caller.
    pub owner_modes: u64,
    /// Links whose target was rewritten, leading to the same path from within the package.
    pub rewritten_links: u64,
}

/// Writes the image in `archive` as a package to `target`. `platform` is `OS/ARCHITECTURE`; without
/// one, this machine's.
///
/// # Errors
/// When the archive is no image layout, is damaged, or holds what no package may hold.
pub fn import(
    archive: &Path,
    target: &Path,
    platform: Option<&str>,
    limits: Limits,
) -> Result<Imported, PackageError> {
    let image = Image::open(archive, platform, limits)?;
    let mut tree = Tree::default();
    let mut bytes_left = limits.bytes;
    let mut layers = Vec::new();
    for layer in &image.layers {
        let (scratch, mut file, bytes) = unpack_layer(&image, layer, target, bytes_left)?;
        bytes_left -= bytes;
        file.seek(SeekFrom::Start(0)).map_err(at(&scratch.path))?;
        let found = read_members(&file, limits)?;
        tree.apply_layer(layers.len(), found)?;
        layers.push((scratch, file));
    }
    let mut dropped = tree.dropped;
    let mut writer = Writer::new(target)?;
    let most = limits.entries;
    for (count, (path, kind, content)) in tree.entries(&mut dropped)?.into_iter().enumerate() {
        if count as u64 >= most {
            let found = count as u64 + 1;
            return Err(PackageError::Beyond { limit: Limit::Entries, found, most });
        }
        match content {
            None => writer.add(&path, &kind, &mut io::empty())?,
            Some(Content { layer, offset: starts, bytes }) => {
                let (scratch, file) = &layers[layer];
                let mut file = file;
                file.seek(SeekFrom::Start(starts)).map_err(at(&scratch.path))?;
                writer.add(&path, &kind, &mut file.take(bytes))?;
            }
        }
    }
    Ok(Imported {
        built: writer.finish()?,
        platform: image.platform,
        layers: layers.len(),
        command: image.command,
        env: image.env,
        working_folder: image.working_folder,
        user: image.user,
        dropped,
    })
}

/// The members of a layer. They are kept all at once, so the bytes of their names are bounded.
fn read_members(layer: &File, limits: Limits) -> Result<Vec<Member>, PackageError> {
    let mut found = Vec::new();
    let mut names = 0;
    members(BufReader::new(layer), limits.entries, |member, _| {
        names += member.path.len() as u64 + member.link.len() as u64;
        if names > MAX_NAMES {
            return Err(PackageError::Beyond {
                limit: Limit::Names,
                found: names,
                most: MAX_NAMES,
            });
        }
        found.push(member);
        Ok(())
    })?;
    Ok(found)
}

/// The layer's tar archive in a file beside `target`, with its digest verified.
fn unpack_layer(
    image: &Image,
    layer: &Layer,
    target: &Path,
    most: u64,
) -> Result<(Scratch, File, u64), PackageError> {
    let (scratch, file) = Scratch::beside(target)?;
    let mut blob = image.blob(&layer.blob)?;
    let copied = match layer.compression {
        Compression::None => copy(&mut blob, &file, most),
        Compression::Gzip => copy(&mut MultiGzDecoder::new(BufReader::new(&mut blob)), &file, most),
        Compression::Zstd => copy(&mut zstd::Frames::new(&mut blob), &file, most),
    };
    let bytes = copied.map_err(|why| crate::tar_stream::unreadable(0, why))?;
    // A decompressor may stop before the end.
    io::copy(&mut blob, &mut io::sink()).map_err(at(&scratch.path))?;
    blob.finish()?;
    Ok((scratch, file, bytes))
}

fn copy(from: &mut dyn Read, mut to: &File, most: u64) -> io::Result<u64> {
    let mut buffer = vec![0; 1 << 16];
    let mut bytes = 0;
    loop {
        let got = from.read(&mut buffer)?;
        if got == 0 {
            return Ok(bytes);
        }
        bytes += got as u64;
        if bytes > most {
            let beyond = PackageError::Beyond { limit: Limit::Bytes, found: bytes, most };
            return Err(io::Error::other(beyond));
        }
        to.write_all(&buffer[..got])?;
    }
}

#[cfg(test)]
mod tests;
