//! Pulls images from a registry, over the OCI distribution protocol.
//!
//! ```text
//!   reference ─► manifest or index ─► manifest of the platform ─► configuration
//!                                                              └─► layers, four at a time
//! ```
//!
//! The image is stored in a folder as an image layout, which [`crate::oci`] imports as a package:
//! so an image from a registry is as untrusted as one from a file, and nothing is parsed before its
//! digest is verified.
//!
//! The protocol is a handful of GETs, implemented here. Rejected: a client library. How one fared
//! with a hostile registry is in `docs/decisions/0021-own-registry-client.md`.

mod blob;
mod challenge;
pub mod credentials;
mod error;
mod http_client;
mod proxy;
mod reference;
mod session;

pub use blob::Progress;
pub use credentials::Login;
pub use error::{Credentials, RegistryError, RegistryFailure};
pub use http_client::Timeouts;
pub use proxy::Proxies;
pub use reference::{BadReference, Reference, SCHEME};

use crate::digest::PackageDigest;
use crate::error::{Limit, PackageError, at};
use crate::oci::image::{
    Descriptor, Index, MAX_JSON, MAX_NESTING, Manifest, is_index, target_platform,
    too_deeply_nested,
};
use crate::unpack::Limits;
use blob::BlobRef;
use bytes::Bytes;
use cellwright_identity::public_tls;
use error::printable;
use futures::{StreamExt, TryStreamExt, stream};
use http_client::{Address, HttpClient, is_loopback};
use hyper::header::CONTENT_TYPE;
use reference::split_host;
use serde::Deserialize;
use serde_json::json;
use session::Session;
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// Layers in flight at a time.
const MAX_PARALLEL_LAYERS: usize = 4;
/// Media types of manifests that are accepted, of OCI and of Docker.
const MANIFEST_MEDIA_TYPES: &str = "application/vnd.oci.image.index.v1+json, \
    application/vnd.oci.image.manifest.v1+json, \
    application/vnd.docker.distribution.manifest.list.v2+json, \
    application/vnd.docker.distribution.manifest.v2+json";

/// How an image is pulled.
#[derive(Clone, Default)]
pub struct PullConfig {
    /// `OS/ARCHITECTURE[/VARIANT]`; without one, this machine's.
    pub platform: Option<String>,
    pub login: Option<Login>,
    /// Certificates of authorities that are trusted beside the machine's.
    pub authority: Option<PathBuf>,
    /// Whether the registry is accessed over plain HTTP. On loopback it is unless `authority` is
    /// given.
    pub insecure_http: bool,
    pub proxies: Proxies,
    pub limits: Limits,
    pub timeouts: Timeouts,
}

/// An image that was fetched.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fetched {
    /// The image by digest: the same bytes at every pull.
    pub pinned: Reference,
    pub layers: usize,
    /// Of all layers, as transferred.
    pub bytes: u64,
}

/// A manifest or index as received.
struct Document {
    media_type: String,
    digest: PackageDigest,
    content: Bytes,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ManifestFields {
    media_type: Option<String>,
    #[serde(default)]
    schema_version: u32,
    manifests: Option<serde::de::IgnoredAny>,
    layers: Option<serde::de::IgnoredAny>,
}

/// Fetches the image into the folder `into`, which is created, as an image layout.
///
/// # Errors
/// When the registry cannot be reached, returns an error, or serves anything but what it announced.
/// The folder may be there then, with parts of the image.
pub async fn fetch(
    reference: &Reference,
    into: &Path,
    pull_config: &PullConfig,
    progress: &dyn Progress,
) -> Result<Fetched, RegistryError> {
    let session = open(reference, pull_config)?;
    let blobs = into.join("blobs/sha256");
    let to_error =
        |why: PackageError| session.error_for("the folder for it", RegistryFailure::Package(why));
    fs::create_dir_all(&blobs).map_err(at(&blobs)).map_err(to_error)?;
    let top = fetch_manifest(&session, &reference.version(), reference.digest()).await?;
    save_document(&blobs, &top).map_err(to_error)?;
    let index = json!({"schemaVersion": 2, "manifests": [{
        "mediaType": top.media_type,
        "digest": format!("sha256:{}", top.digest),
        "size": top.content.len(),
    }]});
    let pinned = reference.with_digest(top.digest);
    let chosen =
        select_platform(&session, top, &blobs, &target_platform(pull_config.platform.as_deref()))
            .await?;
    let (config, layers) = plan_downloads(&chosen, pull_config.limits).map_err(|why| {
        session.error_for(&manifest_label(&chosen.digest), RegistryFailure::Package(why))
    })?;
    fetch_configuration(&session, config, &blobs).await?;
    let bytes = layers.iter().map(|layer| layer.bytes).sum();
    progress.started(layers.len(), bytes);
    let count = layers.len();
    stream::iter(layers)
        .map(|layer| blob::fetch(&session, layer, &blobs, progress))
        .buffer_unordered(MAX_PARALLEL_LAYERS)
        .try_collect::<()>()
        .await?;
    let path = into.join("index.json");
    fs::write(&path, index.to_string()).map_err(at(&path)).map_err(to_error)?;
    Ok(Fetched { pinned, layers: count, bytes })
}

fn open(reference: &Reference, pull_config: &PullConfig) -> Result<Session, RegistryError> {
    let failed = |why| {
        let (reference, label) = (reference.to_string(), "the registry".into());
        RegistryError { reference, requested: label, why }
    };
    let authority = reference.connect_address();
    let is_local = split_host(authority).is_some_and(|(host, _)| is_loopback(host));
    let tls = !pull_config.insecure_http && (!is_local || pull_config.authority.is_some());
    let extra = pull_config.authority.as_deref().map(|path| ("--ca", path));
    let registry = Address::new(tls, authority, "/")
        .ok_or_else(|| failed(RegistryFailure::Unreachable(format!("{authority} is no host"))))?;
    let http_client = HttpClient {
        host: registry.host.clone(),
        tls: public_tls::client_config(extra)
            .map_err(|why| failed(RegistryFailure::Untrusted(why)))?,
        insecure_http: pull_config.insecure_http,
        is_local,
        proxies: pull_config.proxies.clone(),
        times: pull_config.timeouts,
    };
    Ok(Session::new(reference.clone(), http_client, registry, pull_config.login.clone()))
}

fn manifest_label(digest: &PackageDigest) -> String {
    format!("manifest sha256:{digest}")
}

/// Requests a manifest or index by tag or digest.
async fn fetch_manifest(
    session: &Session,
    version: &str,
    digest: Option<PackageDigest>,
) -> Result<Document, RegistryError> {
    let label = format!("manifest {version}");
    let path = format!("/v2/{}/manifests/{version}", session.reference.name());
    let most = usize::try_from(MAX_JSON).unwrap_or(usize::MAX);
    let (headers, content) = session.whole(&label, &path, Some(MANIFEST_MEDIA_TYPES), most).await?;
    let found = PackageDigest::of(&content);
    let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
    let stated = text("docker-content-digest").and_then(|text| text.strip_prefix("sha256:"));
    let expected = digest.or_else(|| stated.and_then(PackageDigest::parse));
    if let Some(expected) = expected.filter(|expected| *expected != found) {
        let error = PackageError::OtherContent { expected, found };
        return Err(session.error_for(&label, RegistryFailure::Package(error)));
    }
    let stated = text(CONTENT_TYPE.as_str()).unwrap_or_default();
    let media_type =
        document_kind(&content, stated).map_err(|why| session.error_for(&label, why))?;
    Ok(Document { media_type, digest: found, content })
}

/// The kind of the document. One that can be read as two kinds is rejected: whoever checked it may
/// have read it as the other.
fn document_kind(content: &[u8], stated: &str) -> Result<String, RegistryFailure> {
    let untrue = |why: String| RegistryFailure::Untrue(why);
    let fields: ManifestFields = serde_json::from_slice(content)
        .map_err(|why| untrue(format!("what comes is no manifest: {why}")))?;
    let stated = stated.split(';').next().unwrap_or_default().trim();
    let media_type = match &fields.media_type {
        Some(own)
            if MANIFEST_MEDIA_TYPES.contains(stated) && !stated.is_empty() && own != stated =>
        {
            let (own, stated) = (printable(own), printable(stated));
            return Err(untrue(format!("it calls itself {own} and is served as {stated}")));
        }
        Some(own) => own.clone(),
        None => stated.to_owned(),
    };
    if fields.schema_version == 1 {
        return Err(RegistryFailure::Package(PackageError::Image(
            "it is in Docker's first format, which nobody makes any more; push it anew".into(),
        )));
    }
    let listed = MANIFEST_MEDIA_TYPES.split(", ").any(|supported| supported == media_type);
    if !listed {
        let why = format!("it is a {:?}; allowed: {MANIFEST_MEDIA_TYPES}", printable(&media_type));
        return Err(untrue(why));
    }
    match (fields.manifests.is_some(), fields.layers.is_some(), is_index(&media_type)) {
        (true, false, true) | (false, true, false) => Ok(media_type),
        _ => Err(untrue(format!("its content is not that of a {}", printable(&media_type)))),
    }
}

/// Follows indexes to the manifest of the platform.
async fn select_platform(
    session: &Session,
    top: Document,
    blobs: &Path,
    target: &str,
) -> Result<Document, RegistryError> {
    let mut here = top;
    for _ in 0..=MAX_NESTING {
        if !is_index(&here.media_type) {
            return Ok(here);
        }
        let label = manifest_label(&here.digest);
        let failed = |why| session.error_for(&label, RegistryFailure::Package(why));
        let index: Index = read(&here).map_err(failed)?;
        let found = index.pick(target).map_err(failed)?;
        let (digest, size) = (found.digest().map_err(failed)?, found.size);
        here = fetch_manifest(session, &format!("sha256:{digest}"), Some(digest)).await?;
        if here.content.len() as u64 != size {
            let why = format!("it has {} bytes, the index says {size}", here.content.len());
            return Err(session.error_for(&manifest_label(&digest), RegistryFailure::Untrue(why)));
        }
        save_document(blobs, &here).map_err(failed)?;
    }
    Err(session.error_for("manifest", RegistryFailure::Package(too_deeply_nested())))
}

/// What has to be fetched: configuration and layers, each once. All checks that are possible
/// without the bytes are made here.
fn plan_downloads(
    manifest: &Document,
    limits: Limits,
) -> Result<(BlobRef, BTreeSet<BlobRef>), PackageError> {
    let manifest: Manifest = read(manifest)?;
    manifest.check()?;
    let want = |blob: &Descriptor| Ok(BlobRef { digest: blob.digest()?, bytes: blob.size });
    let config = want(&manifest.config)?;
    if config.bytes > MAX_JSON {
        let (limit, found) = (Limit::Head, config.bytes);
        return Err(PackageError::Beyond { limit, found, most: MAX_JSON });
    }
    let layers: BTreeSet<BlobRef> =
        manifest.layers.iter().map(want).collect::<Result<_, PackageError>>()?;
    let digests: BTreeSet<PackageDigest> = layers.iter().map(|layer| layer.digest).collect();
    if digests.len() < layers.len() || digests.contains(&config.digest) {
        let why = "it names one blob twice, in two ways";
        return Err(PackageError::Image(why.into()));
    }
    let total = layers.iter().try_fold(0u64, |sum, layer| sum.checked_add(layer.bytes));
    match total.filter(|total| *total <= limits.bytes) {
        Some(_) => Ok((config, layers)),
        None => {
            let found = total.unwrap_or(u64::MAX);
            Err(PackageError::Beyond { limit: Limit::Bytes, found, most: limits.bytes })
        }
    }
}

/// The image's configuration: small, and read like a manifest.
async fn fetch_configuration(
    session: &Session,
    config: BlobRef,
    blobs: &Path,
) -> Result<(), RegistryError> {
    let BlobRef { digest, bytes } = config;
    let label = format!("configuration sha256:{digest}");
    let path = format!("/v2/{}/blobs/sha256:{digest}", session.reference.name());
    let most = usize::try_from(bytes).unwrap_or(usize::MAX);
    let (_, content) = session.whole(&label, &path, None, most).await?;
    let found = PackageDigest::of(&content);
    if found != digest {
        let error = PackageError::OtherContent { expected: digest, found };
        return Err(session.error_for(&label, RegistryFailure::Package(error)));
    }
    write(blobs, digest, &content)
        .map_err(|why| session.error_for(&label, RegistryFailure::Package(why)))
}

fn read<T: serde::de::DeserializeOwned>(document: &Document) -> Result<T, PackageError> {
    let digest = document.digest;
    serde_json::from_slice(&document.content)
        .map_err(|why| PackageError::Image(format!("sha256:{digest} cannot be read: {why}")))
}

fn save_document(blobs: &Path, document: &Document) -> Result<(), PackageError> {
    write(blobs, document.digest, &document.content)
}

fn write(blobs: &Path, digest: PackageDigest, content: &[u8]) -> Result<(), PackageError> {
    let path = blobs.join(digest.to_string());
    fs::write(&path, content).map_err(at(&path))
}

#[cfg(test)]
mod tests;
