//! Resolves a stored package: by its digest, a prefix of it, or the name that jobs use.
//!
//! A package has no name of its own: each job names it as it likes. So a name identifies a package
//! as long as all jobs that use the name refer to the same one.

use super::{list_packages, short_digest};
use crate::connection::Cell;
use crate::failure::Failure;
use cellwright_api::types::BlobView;

/// The one package with this name or digest prefix.
pub async fn find_package(cell: &Cell, name_or_digest: &str) -> Result<BlobView, Failure> {
    pick(list_packages(cell).await?, name_or_digest)
}

pub fn has_name(blob: &BlobView, name_or_digest: &str) -> bool {
    blob.names.iter().any(|name| name == name_or_digest)
}

/// Names come first: a name of hexadecimal digits is meant as a name.
pub fn pick(stored: Vec<BlobView>, name_or_digest: &str) -> Result<BlobView, Failure> {
    let (mut named, others): (Vec<_>, Vec<_>) =
        stored.into_iter().partition(|blob| has_name(blob, name_or_digest));
    if named.len() > 1 {
        let digests: Vec<String> = named.iter().map(|blob| short_digest(&blob.digest)).collect();
        return Err(Failure::Operation {
            message: format!(
                "jobs call {} packages {name_or_digest}: {}",
                named.len(),
                digests.join(", ")
            ),
            next: "the same command with one of these digests".into(),
        });
    }
    if let Some(blob) = named.pop() {
        return Ok(blob);
    }
    let is_prefix = is_digest_prefix(name_or_digest);
    let begins = |blob: &BlobView| is_prefix && blob.digest.starts_with(name_or_digest);
    let mut found: Vec<BlobView> = others.into_iter().filter(begins).collect();
    let message = match found.len() {
        1 => return Ok(found.remove(0)),
        0 if is_prefix => {
            format!("no package begins with {name_or_digest}, and no job calls one so")
        }
        0 => format!(
            "no job calls a package {name_or_digest}; one that no job names has only its digest"
        ),
        many => format!("{many} packages begin with {name_or_digest}"),
    };
    Err(Failure::Operation { message, next: "see which there are: cell package ls".into() })
}

/// Whether the text can be a digest, or a prefix of one.
fn is_digest_prefix(text: &str) -> bool {
    let hex = |c: char| matches!(c, '0'..='9' | 'a'..='f');
    (4..=64).contains(&text.len()) && text.chars().all(hex)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_package_is_found_by_digest_or_by_a_name_that_means_one() {
        let blob = |digest: &str, names: &[&str]| {
            let blob = json!({
                "digest": digest.repeat(16), "bytes": 1, "created": 0, "by": null,
                "held": true, "names": names, "used_by": [], "uses": 0,
            });
            serde_json::from_value::<BlobView>(blob).unwrap()
        };
        let stored = || {
            vec![
                blob("0123", &["greeter", "both"]),
                blob("0124", &["cafe", "both"]),
                blob("cafe", &[]),
            ]
        };
        let found = |name_or_digest: &str| {
            pick(stored(), name_or_digest).map(|blob| blob.digest[..4].to_owned())
        };
        for (name_or_digest, want) in [("greeter", "0123"), ("0124", "0124"), ("cafe", "0124")] {
            assert_eq!(found(name_or_digest).unwrap(), want, "{name_or_digest}");
        }
        for (name_or_digest, want) in [
            ("both", "jobs call 2 packages both: 012301230123, 012401240124"),
            ("greet", "no job calls a package greet; one that no job names has only its digest"),
            ("abcd", "no package begins with abcd, and no job calls one so"),
            ("012", "no job calls a package 012; "),
        ] {
            let message = found(name_or_digest).unwrap_err().to_string();
            assert!(message.starts_with(want), "{message}");
        }
    }
}
