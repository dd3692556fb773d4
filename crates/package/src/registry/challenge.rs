//! The authentication challenge of a registry: the `WWW-Authenticate` header of its 401 response.

use super::error::printable;
use super::http_client::{Address, is_loopback};
use hyper::header::{HeaderMap, WWW_AUTHENTICATE};
use std::collections::BTreeMap;

/// Longest challenge that is read, and most of them.
const MAX_CHALLENGE: usize = 8 << 10;
const MAX_CHALLENGES: usize = 8;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Challenge {
    /// User name and password with every request.
    Basic,
    /// A token that an authorization server issues.
    Bearer { realm: Address, service: Option<String>, scope: Option<String> },
}

/// The challenge to answer: a token where one is offered.
///
/// # Errors
/// When none of them is supported.
pub(super) fn parse_challenge(headers: &HeaderMap) -> Result<Challenge, String> {
    let mut basic = None;
    let mut schemes = Vec::new();
    for value in headers.get_all(WWW_AUTHENTICATE).iter().take(MAX_CHALLENGES) {
        let Some(text) = value.to_str().ok().filter(|text| text.len() <= MAX_CHALLENGE) else {
            continue;
        };
        let (scheme, parameters) = text.trim().split_once(' ').unwrap_or((text.trim(), ""));
        schemes.push(printable(scheme));
        if scheme.eq_ignore_ascii_case("basic") {
            basic = Some(Challenge::Basic);
        } else if scheme.eq_ignore_ascii_case("bearer") {
            let mut given = parse_parameters(parameters);
            let realm = given.remove("realm").unwrap_or_default();
            let realm = Address::parse(&realm)
                .ok_or_else(|| format!("it sends us for a token to {:?}", printable(&realm)))?;
            let (service, scope) = (given.remove("service"), given.remove("scope"));
            return Ok(Challenge::Bearer { realm, service, scope });
        }
    }
    basic.ok_or_else(|| match schemes.as_slice() {
        [] => "it does not say what it wants to see".into(),
        schemes => format!("it wants {}; allowed: Basic and Bearer", schemes.join(", ")),
    })
}

/// `a="b",c=d`, with backslashes before quotes.
fn parse_parameters(text: &str) -> BTreeMap<String, String> {
    let mut out = BTreeMap::new();
    let mut rest = text;
    while let Some((name, after)) = rest.split_once('=') {
        let name = name.trim_matches([',', ' ']).to_ascii_lowercase();
        let (value, after) = match after.strip_prefix('"') {
            Some(quoted) => until_quote(quoted),
            None => {
                let end = after.find(',').unwrap_or(after.len());
                (after[..end].trim().to_owned(), &after[end..])
            }
        };
        out.entry(name).or_insert(value);
        rest = after;
    }
    out
}

fn until_quote(text: &str) -> (String, &str) {
    let mut value = String::new();
    let mut letters = text.char_indices();
    while let Some((at, letter)) = letters.next() {
        match letter {
            '"' => return (value, &text[at + 1..]),
            '\\' => value.extend(letters.next().map(|(_, escaped)| escaped)),
            _ => value.push(letter),
        }
    }
    (value, "")
}

/// Whether credentials for `registry` may be sent to `realm`: both have the same owner, as far as
/// names tell. Otherwise a registry could collect tokens for servers it has nothing to do with.
///
/// Names of one owner end alike: `registry.gitlab.example` and `gitlab.example`. A registry whose
/// name is directly below a public suffix could send credentials it is given anyway to its
/// neighbours; no table of public suffixes is kept for that.
pub(super) fn is_related(registry: &str, realm: &str) -> bool {
    let below = |name: &str, owner: &str| {
        name.strip_suffix(owner).is_some_and(|front| front.is_empty() || front.ends_with('.'))
    };
    let is_name = |host: &str| host.parse::<std::net::IpAddr>().is_err() && !is_loopback(host);
    if registry == realm {
        return true;
    }
    if !is_name(registry) || !is_name(realm) {
        return false;
    }
    let owner = registry.split_once('.').map(|(_, owner)| owner).filter(|o| o.contains('.'));
    below(realm, registry) || owner.is_some_and(|owner| below(realm, owner))
}

#[cfg(test)]
mod tests {
    use super::*;
    use hyper::header::HeaderValue;

    fn parse_headers(values: &[&str]) -> Result<Challenge, String> {
        let mut headers = HeaderMap::new();
        for value in values {
            headers.append(WWW_AUTHENTICATE, HeaderValue::from_str(value).unwrap());
        }
        parse_challenge(&headers)
    }

    #[test]
    fn challenges_are_read_as_registries_write_them() {
        let bearer = parse_headers(&[
            "Basic realm=\"x\"",
            "Bearer realm=\"https://auth.example/token?a=b\", service=reg,scope=\"r:a,b:\\\"p\"",
        ]);
        let realm = Address::parse("https://auth.example/token?a=b").unwrap();
        let (service, scope) = (Some("reg".to_owned()), Some("r:a,b:\"p".to_owned()));
        assert_eq!(bearer.unwrap(), Challenge::Bearer { realm, service, scope });
        assert_eq!(parse_headers(&["basic realm=\"x\""]).unwrap(), Challenge::Basic);
        for (values, part) in [
            (&["Negotiate"][..], "wants Negotiate; allowed"),
            (&[], "does not say"),
            (&["Bearer realm=\"gopher://x\""], "for a token to"),
            (&["Bearer realm=\"https://u:p@x/\""], "for a token to"),
            (&["Bearer"], "for a token to"),
        ] {
            let error = parse_headers(values).unwrap_err();
            assert!(error.contains(part), "{error}");
        }
    }

    #[test]
    fn credentials_stay_with_their_owner() {
        for (registry, realm, related) in [
            ("registry-1.docker.io", "auth.docker.io", true),
            ("registry.gitlab.com", "gitlab.com", true),
            ("ghcr.io", "ghcr.io", true),
            ("example.com", "auth.example.com", true),
            ("evil.example", "auth.docker.io", false),
            ("a.evil.example", "evil.example.org", false),
            ("registry.gitlab.com", "notgitlab.com", false),
            ("quay.io", "evil.io", false),
            ("127.0.0.1", "127.0.0.1", true),
            ("127.0.0.1", "127.0.0.2", false),
            ("10.0.0.1", "9.0.0.1", false),
        ] {
            assert_eq!(is_related(registry, realm), related, "{registry} {realm}");
        }
    }
}
