//! The credentials in a request: its `Authorization` header, or its substitute where a page cannot
//! set one. A page that opens a WebSocket controls nothing of the request but the protocols it
//! offers, so a token comes as one more of them: `cell-token.<id>.<secret>`.
//!
//! Rejected: a token in the URL, which is written to logs on the way; and a cookie, which a browser
//! also sends for foreign pages.

use axum::http::{HeaderMap, HeaderValue, header};

/// Prefix of the protocol that carries a token.
pub const TOKEN_PROTOCOL: &str = "cell-token.";

/// Removes it from the headers: handlers never see the secret.
pub fn take_authorization(headers: &mut HeaderMap) -> Option<HeaderValue> {
    let offered = take_from_websocket_protocols(headers);
    headers.remove(header::AUTHORIZATION).or(offered)
}

fn take_from_websocket_protocols(headers: &mut HeaderMap) -> Option<HeaderValue> {
    let all = headers.get_all(header::SEC_WEBSOCKET_PROTOCOL).iter();
    // A value that is not text is not one of our protocols.
    let texts: Vec<&str> = all.filter_map(|value| value.to_str().ok()).collect();
    let offered = texts.iter().flat_map(|text| text.split(',')).map(str::trim);
    let (tokens, others): (Vec<&str>, Vec<&str>) =
        offered.partition(|protocol| protocol.starts_with(TOKEN_PROTOCOL));
    let token = tokens.first()?.strip_prefix(TOKEN_PROTOCOL)?;
    let mut authorization = HeaderValue::try_from(format!("Bearer {token}")).ok()?;
    authorization.set_sensitive(true);
    let rest = HeaderValue::try_from(others.join(", ")).ok()?;
    let is_socket = headers
        .get(header::UPGRADE)
        .is_some_and(|upgrade| upgrade.as_bytes().eq_ignore_ascii_case(b"websocket"));
    headers.insert(header::SEC_WEBSOCKET_PROTOCOL, rest);
    is_socket.then_some(authorization)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(pairs: &[(header::HeaderName, &'static str)]) -> HeaderMap {
        pairs.iter().map(|(name, value)| (name.clone(), HeaderValue::from_static(value))).collect()
    }

    #[test]
    fn a_page_shows_its_token_as_a_protocol_and_handlers_do_not_see_it() {
        let socket = (header::UPGRADE, "websocket");
        let offered = (header::SEC_WEBSOCKET_PROTOCOL, "cell-exec, cell-token.a1.secret");
        let mut offered_headers = headers(&[socket.clone(), offered.clone()]);
        assert_eq!(take_authorization(&mut offered_headers).unwrap(), "Bearer a1.secret");
        assert_eq!(offered_headers[header::SEC_WEBSOCKET_PROTOCOL], "cell-exec");
        assert_eq!(take_authorization(&mut offered_headers), None);
        let mut plain = headers(&[offered]);
        assert_eq!(take_authorization(&mut plain), None, "only where there is no other way");
        assert_eq!(plain[header::SEC_WEBSOCKET_PROTOCOL], "cell-exec");
        let mut nobody = headers(&[socket, (header::SEC_WEBSOCKET_PROTOCOL, "cell-exec")]);
        assert_eq!(take_authorization(&mut nobody), None);
    }

    #[test]
    fn programs_show_theirs_as_ever() {
        let mut bearer_headers = headers(&[(header::AUTHORIZATION, "Bearer a1.secret")]);
        assert_eq!(take_authorization(&mut bearer_headers).unwrap(), "Bearer a1.secret");
        assert!(bearer_headers.is_empty());
    }
}
