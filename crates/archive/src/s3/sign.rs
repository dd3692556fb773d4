//! Signature of a request, version 4 of Amazon's. The published examples are the tests.

use super::Credentials;
use cellwright_cell::time::Time;
use ring::{digest, hmac};
use std::collections::BTreeMap;
use time::OffsetDateTime;

const SERVICE: &str = "s3";
const ALGORITHM: &str = "AWS4-HMAC-SHA256";

/// A request before it is signed.
pub(super) struct Unsigned<'a> {
    pub method: &'a str,
    pub host: &'a str,
    /// Of plain characters, or still to be encoded; begins with a slash.
    pub path: &'a str,
    pub query: &'a [(&'a str, &'a str)],
    /// Beside those that are always there; names in lower case.
    pub headers: &'a [(&'a str, &'a str)],
    /// Of the body, in hex digits.
    pub payload_digest: &'a str,
    pub at: Time,
}

/// What is sent.
#[derive(Debug)]
pub(super) struct Signed {
    /// Path and query, encoded.
    pub target: String,
    pub headers: BTreeMap<String, String>,
}

pub(super) fn sign(request: &Unsigned<'_>, credentials: &Credentials, region: &str) -> Signed {
    let (date, stamp) = dates(request.at);
    let mut headers: BTreeMap<String, String> = request
        .headers
        .iter()
        .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
        .collect();
    headers.insert("host".into(), request.host.to_owned());
    headers.insert("x-amz-content-sha256".into(), request.payload_digest.to_owned());
    headers.insert("x-amz-date".into(), stamp.clone());
    if let Some(token) = &credentials.session_token {
        headers.insert("x-amz-security-token".into(), token.clone());
    }
    let path = encode(request.path, true);
    let mut pairs: Vec<String> = request
        .query
        .iter()
        .map(|(name, value)| format!("{}={}", encode(name, false), encode(value, false)))
        .collect();
    pairs.sort();
    let query = pairs.join("&");
    let canonical_headers: String =
        headers.iter().map(|(name, value)| format!("{name}:{}\n", value.trim())).collect();
    let names = headers.keys().map(String::as_str).collect::<Vec<_>>().join(";");
    let canonical = format!(
        "{}\n{path}\n{query}\n{canonical_headers}\n{names}\n{}",
        request.method, request.payload_digest
    );
    let scope = format!("{date}/{region}/{SERVICE}/aws4_request");
    let text = format!("{ALGORITHM}\n{stamp}\n{scope}\n{}", sha256_hex(canonical.as_bytes()));
    let signature = hex(&keyed(&signing_key(credentials, &date, region), &text));
    let authorization = format!(
        "{ALGORITHM} Credential={}/{scope},SignedHeaders={names},Signature={signature}",
        credentials.access_key
    );
    headers.insert("authorization".into(), authorization);
    let target = if query.is_empty() { path } else { format!("{path}?{query}") };
    Signed { target, headers }
}

fn signing_key(credentials: &Credentials, date: &str, region: &str) -> Vec<u8> {
    let first = format!("AWS4{}", credentials.secret_key).into_bytes();
    [date, region, SERVICE, "aws4_request"].iter().fold(first, |key, text| keyed(&key, text))
}

fn keyed(key: &[u8], text: &str) -> Vec<u8> {
    hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, key), text.as_bytes()).as_ref().to_vec()
}

pub(super) fn sha256_hex(content: &[u8]) -> String {
    hex(digest::digest(&digest::SHA256, content).as_ref())
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// `20130524` and `20130524T000000Z`.
fn dates(at: Time) -> (String, String) {
    let seconds = i64::try_from(at.0 / 1000).unwrap_or(0);
    let at = OffsetDateTime::from_unix_timestamp(seconds).unwrap_or(OffsetDateTime::UNIX_EPOCH);
    let date = format!("{:04}{:02}{:02}", at.year(), u8::from(at.month()), at.day());
    let stamp = format!("{date}T{:02}{:02}{:02}Z", at.hour(), at.minute(), at.second());
    (date, stamp)
}

/// Percent-encoded, all but the characters that never are; slashes stay in a path.
fn encode(text: &str, is_path: bool) -> String {
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        let plain = byte.is_ascii_alphanumeric() || b"-._~".contains(&byte);
        if plain || (is_path && byte == b'/') {
            out.push(char::from(byte));
        } else {
            out.push_str(&format!("%{byte:02X}"));
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The examples of Amazon's manual of its store ("Authenticating Requests: Using the
    /// Authorization Header"), of the first second of 24 May 2013.
    fn check(
        (method, path): (&str, &str),
        query: &[(&str, &str)],
        headers: &[(&str, &str)],
        payload: &[u8],
        expected: &str,
    ) {
        let credentials = Credentials {
            access_key: "AKIAIOSFODNN7EXAMPLE".into(),
            secret_key: "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY".into(),
            session_token: None,
        };
        let request = Unsigned {
            method,
            host: "examplebucket.s3.amazonaws.com",
            path,
            query,
            headers,
            payload_digest: &sha256_hex(payload),
            at: Time(1_369_353_600_000),
        };
        let signed = sign(&request, &credentials, "us-east-1");
        let authorization = &signed.headers["authorization"];
        assert!(authorization.ends_with(&format!("Signature={expected}")), "{signed:?}");
        let scope = "Credential=AKIAIOSFODNN7EXAMPLE/20130524/us-east-1/s3/aws4_request,";
        assert!(authorization.contains(scope), "{authorization}");
    }

    #[test]
    fn requests_are_signed_as_in_the_published_examples() {
        check(
            ("GET", "/test.txt"),
            &[],
            &[("range", "bytes=0-9")],
            b"",
            "f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41",
        );
        check(
            ("PUT", "/test$file.text"),
            &[],
            &[
                ("date", "Fri, 24 May 2013 00:00:00 GMT"),
                ("x-amz-storage-class", "REDUCED_REDUNDANCY"),
            ],
            b"Welcome to Amazon S3.",
            "98ad721746da40c64f1a55b78f14c238d841ea1380cd77a1b5971af0ece108bd",
        );
        check(
            ("GET", "/"),
            &[("lifecycle", "")],
            &[],
            b"",
            "fea454ca298b7da1c68078a5d1bdbfbbe0d65c699e0f91ac7a200a0136783543",
        );
        check(
            ("GET", "/"),
            &[("prefix", "J"), ("max-keys", "2")],
            &[],
            b"",
            "34b48302e7b5fa45bde8084f4b7868a86f0a534bc59db6670ed5711ef69dc6f7",
        );
    }

    #[test]
    fn a_session_token_is_sent_and_signed() {
        let credentials = Credentials {
            access_key: "AK".into(),
            secret_key: "secret".into(),
            session_token: Some("token".into()),
        };
        let request = Unsigned {
            method: "GET",
            host: "h:9000",
            path: "/b/a b",
            query: &[("prefix", "x/y")],
            headers: &[],
            payload_digest: &sha256_hex(b""),
            at: Time(0),
        };
        let signed = sign(&request, &credentials, "r");
        assert_eq!(signed.target, "/b/a%20b?prefix=x%2Fy");
        assert_eq!(signed.headers["x-amz-security-token"], "token");
        assert!(signed.headers["authorization"].contains("x-amz-date;x-amz-security-token,"));
    }
}
