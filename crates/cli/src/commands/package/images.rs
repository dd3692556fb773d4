//! The images that jobs name: each is looked up among the packages of the cell and stands in the
//! spec by its digest from then on, so that the job means the same wherever and whenever it is
//! started.

use super::find::pick;
use super::list_packages;
use crate::connection::Cell;
use crate::failure::Failure;
use crate::output::print_notice;
use cellwright_api::types::BlobView;
use cellwright_cell::name::Token;
use cellwright_lang::Document;
use cellwright_lang::image::ImageReference;

/// Puts the packages of the cell into the specs, and says which they are.
///
/// # Errors
/// If the cell has no such package, or several.
pub async fn pin_images(cell: &Cell, documents: &mut [Document]) -> Result<(), Failure> {
    if documents.iter().all(|document| document.image().is_none()) {
        return Ok(());
    }
    let stored = list_packages(cell).await?;
    for document in documents {
        let Some(image) = document.image().cloned() else { continue };
        let (name, blob) = (document.name().clone(), find_image(&stored, &image)?);
        let unreadable =
            |error: &dyn std::error::Error| Failure::from_error(error, "cell package ls");
        let digest = Token::new(&blob.digest).map_err(|error| unreadable(&error))?;
        print_notice(&format!("image {} of {name} is package {digest}", image.written));
        image.pin(document.job_mut(), digest, blob.bytes);
    }
    Ok(())
}

fn find_image(stored: &[BlobView], image: &ImageReference) -> Result<BlobView, Failure> {
    let wanted = image.digest.as_deref().unwrap_or(image.name.as_str());
    let is_wanted = |blob: &&BlobView| match &image.digest {
        Some(digest) => blob.digest.starts_with(digest.as_str()),
        None => blob.names.iter().any(|name| name == image.name.as_str()),
    };
    let found: Vec<BlobView> = stored.iter().filter(is_wanted).cloned().collect();
    if found.is_empty() {
        let (written, file) = (&image.written, format!("{}.package", image.name));
        let (address, _) = written.split_once('@').unwrap_or((written, ""));
        let message = match &image.digest {
            Some(digest) => format!("the cell has no package {digest}, which is image {written}"),
            None => format!("no job calls a package {}, so image {written} is unknown", image.name),
        };
        return Err(Failure::Operation {
            message,
            next: format!(
                "see cell package ls, or: cell package import docker://{address} --to {file} && \
                 cell package push {file}; then once: image: '{address}@DIGEST'"
            ),
        });
    }
    pick(found, wanted).map_err(|failure| match failure {
        Failure::Operation { message, .. } => Failure::Operation {
            message,
            next: format!("say which: image: '{}@DIGEST'", image.written),
        },
        other => other,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn stored() -> Vec<BlobView> {
        let blob = |digest: &str, names: &[&str]| {
            let blob = json!({
                "digest": digest.repeat(16), "bytes": 7, "created": 0, "by": null,
                "held": true, "names": names, "used_by": [], "uses": 0,
            });
            serde_json::from_value::<BlobView>(blob).unwrap()
        };
        vec![blob("0123", &["alpine-3.20", "both"]), blob("cafe", &["both"])]
    }

    fn found(text: &str) -> Result<String, String> {
        let image = ImageReference::parse(text).unwrap();
        match find_image(&stored(), &image) {
            Ok(blob) => Ok(blob.digest[..4].to_owned()),
            Err(Failure::Operation { message, next }) => Err(format!("{message}\n{next}")),
            Err(other) => panic!("{other:?}"),
        }
    }

    #[test]
    fn an_image_is_found_by_its_digest_or_by_what_jobs_call_it() {
        assert_eq!(found("alpine:3.20"), Ok("0123".into()));
        assert_eq!(found("any@cafecafecafe"), Ok("cafe".into()));
        let unknown = found("alpine:3.21").unwrap_err();
        let want = "no job calls a package alpine-3.21, so image alpine:3.21 is unknown\n";
        assert!(unknown.starts_with(want), "{unknown}");
        let command = "cell package import docker://alpine:3.21 --to alpine-3.21.package && \
                       cell package push alpine-3.21.package; then once: image: \
                       'alpine:3.21@DIGEST'";
        assert!(unknown.ends_with(command), "{unknown}");
        let missing = found("web@0000000000000").unwrap_err();
        assert!(missing.starts_with("the cell has no package 0000000000000"), "{missing}");
        let two = found("both").unwrap_err();
        assert!(two.starts_with("jobs call 2 packages both: "), "{two}");
        assert!(two.ends_with("say which: image: 'both@DIGEST'"), "{two}");
    }
}
