//! Which stored package is meant: by its digest, by how that begins, or by what jobs call it.
//!
//! A package has no name of its own: jobs name it, each as it likes. So a name means a package as
//! long as all jobs that use the name mean the same one.

use super::{all, short};
use crate::failure::Failure;
use crate::reach::Cell;
use cellwright_api::types::BlobView;

/// The one package that is called so, or whose digest begins so.
pub async fn one(cell: &Cell, what: &str) -> Result<BlobView, Failure> {
    picked(all(cell).await?, what)
}

pub fn is_called(blob: &BlobView, what: &str) -> bool {
    blob.names.iter().any(|name| name == what)
}

/// A name first: who gave one of hexadecimal digits means it.
fn picked(stored: Vec<BlobView>, what: &str) -> Result<BlobView, Failure> {
    let (mut called, others): (Vec<_>, Vec<_>) =
        stored.into_iter().partition(|blob| is_called(blob, what));
    if called.len() > 1 {
        let digests: Vec<String> = called.iter().map(|blob| short(&blob.digest)).collect();
        return Err(Failure::Work {
            message: format!("jobs call {} packages {what}: {}", called.len(), digests.join(", ")),
            next: "the same command with one of these digests".into(),
        });
    }
    if let Some(blob) = called.pop() {
        return Ok(blob);
    }
    let is_digits = is_digits(what);
    let begins = |blob: &BlobView| is_digits && blob.digest.starts_with(what);
    let mut found: Vec<BlobView> = others.into_iter().filter(begins).collect();
    let message = match found.len() {
        1 => return Ok(found.remove(0)),
        0 if is_digits => format!("no package begins with {what}, and no job calls one so"),
        0 => format!("no job calls a package {what}; one that no job names has only its digest"),
        many => format!("{many} packages begin with {what}"),
    };
    Err(Failure::Work { message, next: "see which there are: cell package ls".into() })
}

/// Whether it can be a digest, or how one begins.
fn is_digits(text: &str) -> bool {
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
                "names": names, "used_by": [], "uses": 0,
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
        let found = |what: &str| picked(stored(), what).map(|blob| blob.digest[..4].to_owned());
        for (what, want) in [("greeter", "0123"), ("0124", "0124"), ("cafe", "0124")] {
            assert_eq!(found(what).unwrap(), want, "{what}");
        }
        for (what, want) in [
            ("both", "jobs call 2 packages both: 012301230123, 012401240124"),
            ("greet", "no job calls a package greet; one that no job names has only its digest"),
            ("abcd", "no package begins with abcd, and no job calls one so"),
            ("012", "no job calls a package 012; "),
        ] {
            let said = found(what).unwrap_err().to_string();
            assert!(said.starts_with(want), "{said}");
        }
    }
}
