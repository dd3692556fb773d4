//! Images by name: `image: 'alpine:3.20@c2a512f6e332'` in a job says which package of the cell is
//! the task's file system. A file cannot know how large that package is, or its whole digest, so it
//! stands in the spec with a placeholder, which whoever submits the spec replaces by what the cell
//! has. A spec that was submitted always holds the digest.
//!
//! An image of a registry is refused with what to type: fetching it while a job is run would make
//! the meaning of the file depend on what the registry holds by then.

use cellwright_cell::name::Token;
use cellwright_cell::spec::{JobSpec, PackageRef};
use serde::Serialize;
use serde_json::{Map, Value, json};

/// The field of a job or task.
pub(crate) const FIELD: &str = "image";
/// The digits of a digest that tell packages apart.
const MIN_DIGITS: usize = 12;
const DIGEST_DIGITS: usize = 64;
/// How addresses of registries begin.
const SCHEMES: [&str; 3] = ["docker://", "http://", "https://"];
const FORMS: &str = "NAME, NAME:TAG, or either with @ and a digest of 12 to 64 digits, as \
                     'alpine:3.20@c2a512f6e332'";

/// A package of the cell as a file names it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ImageReference {
    /// As written.
    pub written: String,
    /// What the package is called in the spec: the name, with the tag behind a dash.
    pub name: Token,
    /// How its digest begins; absent: the one package that jobs call so.
    pub digest: Option<String>,
}

impl ImageReference {
    /// # Errors
    /// What is wrong, and what is allowed.
    pub fn parse(text: &str) -> Result<ImageReference, (String, String)> {
        let wrong = |why: &str| (format!("{text:?} {why}"), FORMS.to_owned());
        if let Some(scheme) = SCHEMES.into_iter().find(|scheme| text.starts_with(scheme)) {
            let address = text.strip_prefix(scheme).unwrap_or(text);
            let (address, _) = address.split_once('@').unwrap_or((address, ""));
            let name = address.rsplit('/').next().unwrap_or(address);
            let file = format!("{}.package", name.replace(':', "-"));
            return Err((
                format!("{text:?} is in a registry; a job names a package that the cell has"),
                format!(
                    "{name}@DIGEST with the digest that this prints: cell package import \
                     docker://{address} --to {file} && cell package push {file}"
                ),
            ));
        }
        let (name, digest) = match text.split_once('@') {
            Some((name, digest)) => (name, Some(digest.strip_prefix("sha256:").unwrap_or(digest))),
            None => (text, None),
        };
        let is_digest = |digest: &str| {
            let hex = |c: char| matches!(c, '0'..='9' | 'a'..='f');
            (MIN_DIGITS..=DIGEST_DIGITS).contains(&digest.len()) && digest.chars().all(hex)
        };
        if digest.is_some_and(|digest| !is_digest(digest)) {
            return Err(wrong("has no digest of 12 to 64 digits 0-9 and a-f behind its @"));
        }
        let plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
        let (base, tag) = name.split_once(':').unwrap_or((name, "-"));
        if base.is_empty()
            || base.starts_with('.')
            || tag.is_empty()
            || ![base, tag].iter().all(|part| part.chars().all(plain))
        {
            return Err(wrong("cannot be the name of a package: letters, digits, -, _ and ."));
        }
        let name = Token::new(&name.replace(':', "-"))
            .map_err(|bad| (format!("{text:?} is not valid here"), bad.allowed))?;
        let digest = digest.map(str::to_owned);
        Ok(ImageReference { written: text.to_owned(), name, digest })
    }

    /// Whether `package` is what stands in a spec before the image is looked up.
    fn is_placeholder(&self, package: &PackageRef) -> bool {
        package.name == self.name && package.digest.as_str() == placeholder_digest()
    }

    /// Puts the package into the spec, in place of the placeholder.
    pub fn pin(&self, spec: &mut JobSpec, digest: Token, bytes: u64) {
        let packages = spec.task.packages.iter_mut();
        for package in packages.filter(|package| self.is_placeholder(package)) {
            (package.digest, package.bytes) = (digest.clone(), bytes);
        }
    }
}

fn placeholder_digest() -> String {
    "0".repeat(DIGEST_DIGITS)
}

/// Makes the task's file system of the image, as far as the rest of its fields allow it.
pub(crate) fn expand(task: &mut Map<String, Value>, image: &ImageReference) -> bool {
    let isolation = task.entry("isolation").or_insert_with(|| json!({}));
    let Some(isolation) = isolation.as_object_mut() else { return true };
    if isolation.contains_key("root") {
        return false;
    }
    isolation.insert("root".into(), json!(image.name));
    let packages = task.entry("packages").or_insert_with(|| json!([]));
    if let Some(packages) = packages.as_array_mut() {
        let digest = placeholder_digest();
        packages.push(json!({ "name": image.name, "digest": digest, "bytes": "0B" }));
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_image_is_a_name_with_a_tag_or_a_digest_or_both() {
        let check = |text: &str, name: &str, digest: Option<&str>| {
            let read = ImageReference::parse(text).unwrap_or_else(|why| panic!("{text}: {why:?}"));
            assert_eq!((read.name.as_str(), read.digest.as_deref()), (name, digest), "{text}");
        };
        let digest = "c2a512f6e332";
        check("alpine", "alpine", None);
        check("alpine:3.20", "alpine-3.20", None);
        check("alpine@c2a512f6e332", "alpine", Some(digest));
        check("alpine:3.20@sha256:c2a512f6e332", "alpine-3.20", Some(digest));
        for (wrong, part) in [
            ("", "cannot be the name"),
            ("alpine:", "cannot be the name"),
            (".alpine", "cannot be the name"),
            ("library/alpine", "cannot be the name"),
            ("a:b:c", "cannot be the name"),
            ("alpine@c2a5", "digest of 12 to 64 digits"),
            ("alpine@C2A512F6E332", "digest of 12 to 64 digits"),
        ] {
            let (message, allowed) = ImageReference::parse(wrong).unwrap_err();
            assert!(message.contains(part), "{wrong}: {message}");
            assert!(allowed.contains("NAME:TAG"), "{allowed}");
        }
    }

    #[test]
    fn an_image_of_a_registry_is_answered_with_what_to_type() {
        let (message, next) = ImageReference::parse("docker://ghcr.io/acme/web:2").unwrap_err();
        assert!(message.contains("is in a registry"), "{message}");
        let command = "cell package import docker://ghcr.io/acme/web:2 --to web-2.package && \
                       cell package push web-2.package";
        assert!(next.contains(command) && next.starts_with("web:2@DIGEST"), "{next}");
    }
}
