//! Objects in a store that speaks S3: put, get, list and delete, with the bucket in the path, as
//! stores of one's own understand it and Amazon's does.
//!
//! The digest of what is sent is part of the signature, so a store does not take what was damaged
//! on its way; it is kept with the object, and compared with what comes back. Credentials are read
//! from their file for each request: what replaces them needs no restart of a master.

mod http;
mod list;
#[cfg(test)]
mod real_server;
mod sign;

use crate::names::is_plain;
use crate::store::{ObjectInfo, ObjectStore, StoreError};
use bytes::Bytes;
use futures::future::BoxFuture;
use http::{Answer, Endpoint};
use hyper::Method;
use sign::{Unsigned, sha256_hex};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

/// Header of the digest that is kept with an object.
const DIGEST: &str = "x-amz-meta-sha256";
/// Objects of one page of a list.
const MAX_PAGE: usize = 1000;
/// Permission bits of the file of credentials that others must not have.
const OPEN_TO_OTHERS: u32 = 0o077;

/// A bucket and who writes to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct S3Config {
    /// `https://host[:port]`.
    pub endpoint: String,
    pub bucket: String,
    /// What names begin with; may be empty.
    pub prefix: String,
    pub region: String,
    /// File with `aws_access_key_id`, `aws_secret_access_key` and perhaps `aws_session_token`.
    pub credentials: PathBuf,
    /// Certificates of authorities that are trusted beside the machine's.
    pub authority: Option<PathBuf>,
}

/// Whether this can be the address of a store.
#[must_use]
pub fn is_endpoint(text: &str) -> bool {
    Endpoint::parse(text).is_ok()
}

/// Who a request is from.
#[derive(Clone, PartialEq, Eq)]
pub struct Credentials {
    pub access_key: String,
    pub secret_key: String,
    pub session_token: Option<String>,
}

impl Credentials {
    /// Reads the lines `name = value`; sections and other names are left alone, so the file can be
    /// the one that other programs read.
    ///
    /// # Errors
    /// When the file cannot be read, is open to others, or a name is missing.
    pub fn load(path: &std::path::Path) -> Result<Credentials, StoreError> {
        let bad = |why: String| {
            StoreError::Config(format!("archive.s3.credentials {}: {why}", path.display()))
        };
        let mode = fs::metadata(path).map_err(|why| bad(why.to_string()))?.mode() & 0o7777;
        if mode & OPEN_TO_OTHERS != 0 {
            return Err(bad(format!("its mode is {mode:04o}; allowed: 0600")));
        }
        let text = fs::read_to_string(path).map_err(|why| bad(why.to_string()))?;
        let value = |name: &str| {
            let mut pairs = text.lines().filter_map(|line| line.split_once('='));
            let (_, value) = pairs.find(|(key, _)| key.trim() == name)?;
            Some(value.trim().to_owned()).filter(|value| !value.is_empty())
        };
        let required =
            |name: &str| value(name).ok_or_else(|| bad(format!("there is no line {name} = …")));
        Ok(Credentials {
            access_key: required("aws_access_key_id")?,
            secret_key: required("aws_secret_access_key")?,
            session_token: value("aws_session_token"),
        })
    }
}

pub struct S3Store {
    config: S3Config,
    /// With the name of the cell, and a slash at its end.
    prefix: String,
}

impl S3Store {
    /// The objects of one cell, below its name.
    #[must_use]
    pub fn new(config: S3Config, cell: &str) -> S3Store {
        let own = config.prefix.trim_matches('/');
        let prefix = if own.is_empty() { format!("{cell}/") } else { format!("{own}/{cell}/") };
        S3Store { config, prefix }
    }

    fn key(&self, name: &str) -> Result<String, StoreError> {
        if is_plain(name) {
            Ok(format!("/{}/{}{name}", self.config.bucket, self.prefix))
        } else {
            Err(StoreError::Config(format!("{name:?} can be no name of an object")))
        }
    }

    async fn send(
        &self,
        method: Method,
        path: &str,
        query: &[(&str, &str)],
        headers: &[(&str, &str)],
        content: Bytes,
    ) -> Result<Answer, StoreError> {
        let endpoint = Endpoint::parse(&self.config.endpoint)?;
        let credentials = Credentials::load(&self.config.credentials)?;
        let signed = sign::sign(
            &Unsigned {
                method: method.as_str(),
                host: &endpoint.authority(),
                path,
                query,
                headers,
                payload_digest: &sha256_hex(&content),
                at: cellwright_identity::clock::wall(),
            },
            &credentials,
            &self.config.region,
        );
        endpoint.send(method, &signed, content, self.config.authority.as_deref()).await
    }

    fn refused(&self, answer: &Answer) -> StoreError {
        let (code, message) = list::error_text(&answer.body);
        StoreError::Refused { place: self.place(), status: answer.status, code, message }
    }
}

impl ObjectStore for S3Store {
    fn put<'a>(&'a self, name: &'a str, content: Bytes) -> BoxFuture<'a, Result<(), StoreError>> {
        Box::pin(async move {
            let digest = sha256_hex(&content);
            let headers = [(DIGEST, digest.as_str())];
            let path = self.key(name)?;
            let answer = self.send(Method::PUT, &path, &[], &headers, content).await?;
            if answer.is_success() { Ok(()) } else { Err(self.refused(&answer)) }
        })
    }

    fn get<'a>(&'a self, name: &'a str) -> BoxFuture<'a, Result<Option<Bytes>, StoreError>> {
        Box::pin(async move {
            let path = self.key(name)?;
            let answer = self.send(Method::GET, &path, &[], &[], Bytes::new()).await?;
            // A bucket that is not there is no missing object.
            if answer.status == 404 && list::error_text(&answer.body).0 != "NoSuchBucket" {
                return Ok(None);
            }
            if !answer.is_success() {
                return Err(self.refused(&answer));
            }
            let found = sha256_hex(&answer.body);
            if answer.header(DIGEST).is_some_and(|expected| expected != found) {
                let why = "its SHA-256 is not the one that was kept with it".to_owned();
                return Err(StoreError::Damaged { name: name.to_owned(), why });
            }
            Ok(Some(answer.body))
        })
    }

    fn list<'a>(
        &'a self,
        prefix: &'a str,
        after: &'a str,
        most: usize,
    ) -> BoxFuture<'a, Result<Vec<ObjectInfo>, StoreError>> {
        Box::pin(async move {
            let mut found = Vec::new();
            let mut after = after.to_owned();
            // A server has pages of its own, which may be shorter than what is asked for.
            while found.len() < most {
                let page = self.list_page(prefix, &after, most - found.len()).await?;
                let Some(last) = page.last() else { break };
                after.clone_from(&last.name);
                found.extend(page);
            }
            Ok(found)
        })
    }

    fn remove<'a>(&'a self, name: &'a str) -> BoxFuture<'a, Result<(), StoreError>> {
        Box::pin(async move {
            let path = self.key(name)?;
            let answer = self.send(Method::DELETE, &path, &[], &[], Bytes::new()).await?;
            if answer.is_success() || answer.status == 404 {
                Ok(())
            } else {
                Err(self.refused(&answer))
            }
        })
    }

    fn place(&self) -> String {
        let S3Config { endpoint, bucket, .. } = &self.config;
        format!("{}/{bucket}/{}", endpoint.trim_end_matches('/'), self.prefix.trim_end_matches('/'))
    }
}

impl S3Store {
    async fn list_page(
        &self,
        prefix: &str,
        after: &str,
        most: usize,
    ) -> Result<Vec<ObjectInfo>, StoreError> {
        let most = most.min(MAX_PAGE).to_string();
        let prefix = format!("{}{prefix}", self.prefix);
        let after = format!("{}{after}", self.prefix);
        let query = [
            ("list-type", "2"),
            ("max-keys", most.as_str()),
            ("prefix", prefix.as_str()),
            ("start-after", after.as_str()),
        ];
        let path = format!("/{}", self.config.bucket);
        let answer = self.send(Method::GET, &path, &query, &[], Bytes::new()).await?;
        if !answer.is_success() {
            return Err(self.refused(&answer));
        }
        let found = list::objects(&answer.body).ok_or_else(|| StoreError::Damaged {
            name: prefix.clone(),
            why: "the list of the store is not one".into(),
        })?;
        let own = found.into_iter().filter_map(|object| {
            let name = object.name.strip_prefix(&self.prefix)?.to_owned();
            Some(ObjectInfo { name, ..object })
        });
        Ok(own.collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn credentials_are_read_from_a_file_of_ones_own() {
        let path = std::env::temp_dir().join(format!("archive-keys-{}", std::process::id()));
        let write = |text: &str, mode: u32| {
            fs::write(&path, text).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            Credentials::load(&path)
        };
        let text = "[default]\naws_access_key_id = AK\naws_secret_access_key=se/cr=et\n";
        let read = write(text, 0o600).ok().unwrap();
        assert_eq!((read.access_key.as_str(), read.secret_key.as_str()), ("AK", "se/cr=et"));
        assert_eq!(read.session_token, None);
        let error = |text, mode| write(text, mode).err().unwrap().to_string();
        assert!(error(text, 0o644).ends_with("its mode is 0644; allowed: 0600"));
        assert!(error("aws_access_key_id = AK\n", 0o600).contains("aws_secret_access_key = "));
        fs::remove_file(&path).unwrap();
        assert!(Credentials::load(&path).is_err());
    }
}
