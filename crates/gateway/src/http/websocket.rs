//! Exec sessions for the console: a WebSocket that carries the very bytes of `exec`, because pages
//! can open no other bidirectional connection. The messages are not parsed here: they are a byte
//! stream, cut anywhere.
//!
//! A WebSocket is the one connection that a page may open to any server. The browser sends the
//! page's origin, which the page cannot forge: a request without an origin, or from a page of
//! another server, is rejected (`crate::access::request_origin` compares the two). Its token, which
//! a page cannot send as a header, comes as in `crate::access::authorization_header`.
//!
//! Rejected: a library. The handshake is one digest; frames have at most fourteen bytes of header,
//! and nothing of what libraries add (extensions, text, reassembled fragments) is wanted.

use super::call::Call;
use axum::body::Body;
use axum::http::{HeaderValue, Response, StatusCode, header};
use cellwright_api::error::{ApiError, Code};
use cellwright_api::exec::{EXEC_PROTOCOL, MAX_FRAME};
use hyper::upgrade::OnUpgrade;
use std::io;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, DuplexStream, duplex, split};
use tokio::sync::Mutex;
use tokio::time::timeout;

/// The GUID that the handshake's digest includes (RFC 6455, section 1.3).
const HANDSHAKE_GUID: &str = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11";
/// Limit of a frame's payload: a frame of a session, and its header.
const MAX_PAYLOAD: usize = MAX_FRAME + 16;
/// Bytes buffered between the two sides.
const BUFFER: usize = 64 << 10;
/// Limit of a control frame's payload.
const MAX_CONTROL_PAYLOAD: usize = 125;
/// Timeout for the close handshake.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(5);

/// Opcodes of frames.
mod opcode {
    pub const CONTINUATION: u8 = 0;
    pub const BINARY: u8 = 2;
    pub const CLOSE: u8 = 8;
    pub const PING: u8 = 9;
    pub const PONG: u8 = 10;
}

/// Why a connection is closed.
mod close_code {
    pub const NORMAL: u16 = 1000;
    pub const PROTOCOL_ERROR: u16 = 1002;
    pub const UNSUPPORTED_DATA: u16 = 1003;
    pub const TOO_LARGE: u16 = 1009;
}

/// Checks a page's upgrade request; returns the connection, and the answer to send.
pub(super) fn accept_upgrade(call: &mut Call) -> Result<(OnUpgrade, Response<Body>), ApiError> {
    let is = |name: &str, wanted: &str| {
        let has =
            |text: &str| text.split(',').any(|token| token.trim().eq_ignore_ascii_case(wanted));
        call.header(name).is_some_and(has)
    };
    let is_websocket = is("upgrade", "websocket")
        && is("sec-websocket-version", "13")
        && is("sec-websocket-protocol", EXEC_PROTOCOL);
    let key = call.header("sec-websocket-key").filter(|key| is_websocket && key.len() == 24);
    let accept = key.map(accept_key).and_then(|text| HeaderValue::try_from(text).ok());
    let from_page = call.header("origin").is_some();
    let (Some(upgrade), Some(accept)) = (call.upgrade.take(), accept) else {
        let message = "a page's session takes a WebSocket over HTTP/1.1";
        return Err(ApiError::new(Code::UpgradeRequired, message)
            .with("upgrade", "websocket")
            .with("sec-websocket-version", 13)
            .with("sec-websocket-protocol", EXEC_PROTOCOL));
    };
    if !from_page {
        let message = "header origin: missing; allowed: the address the request goes to";
        return Err(ApiError::new(Code::NotAllowed, message)
            .hint("a program asks with POST and `upgrade: cell-exec`")
            .with("header", "origin"));
    }
    let mut response = Response::new(Body::empty());
    *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    let headers = response.headers_mut();
    headers.insert(header::CONNECTION, HeaderValue::from_static("upgrade"));
    headers.insert(header::UPGRADE, HeaderValue::from_static("websocket"));
    headers.insert(header::SEC_WEBSOCKET_ACCEPT, accept);
    headers.insert(header::SEC_WEBSOCKET_PROTOCOL, HeaderValue::from_static(EXEC_PROTOCOL));
    Ok((upgrade, response))
}

/// The `Sec-WebSocket-Accept` value for a key.
fn accept_key(key: &str) -> String {
    // The protocol requires this digest; no security depends on it.
    let sha1 = &ring::digest::SHA1_FOR_LEGACY_USE_ONLY;
    base64(ring::digest::digest(sha1, format!("{key}{HANDSHAKE_GUID}").as_bytes()).as_ref())
}

fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::new();
    for three in bytes.chunks(3) {
        let at = |nth: usize| u32::from(three.get(nth).copied().unwrap_or(0));
        let whole = (at(0) << 16) | (at(1) << 8) | at(2);
        for nth in 0..4 {
            let digit = DIGITS[(whole >> (18 - 6 * nth)) as usize & 63];
            text.push(if nth <= three.len() { char::from(digit) } else { '=' });
        }
    }
    text
}

/// The stream inside a WebSocket, and the future that pumps its bytes. It completes when the page
/// has closed, or when everything written to the stream, and its end, has been sent to the page.
pub(super) fn websocket_stream(
    socket: impl AsyncRead + AsyncWrite,
) -> (DuplexStream, impl Future<Output = ()>) {
    let (near, far) = duplex(BUFFER);
    let (mut from, to) = split(socket);
    let to = Mutex::new(to);
    let (mut session_output, mut session_input) = split(far);
    let pump = async move {
        let there = async {
            let code = read_messages(&mut from, &to, &mut session_input)
                .await
                .unwrap_or(close_code::PROTOCOL_ERROR);
            // A page that does not read would keep the session open.
            let _ = timeout(CLOSE_TIMEOUT, write_message(&to, opcode::CLOSE, &code.to_be_bytes()))
                .await;
        };
        let back = async {
            let mut buffer = vec![0; MAX_FRAME];
            while let Ok(count @ 1..) = session_output.read(&mut buffer).await {
                write_message(&to, opcode::BINARY, &buffer[..count]).await?;
            }
            write_message(&to, opcode::CLOSE, &close_code::NORMAL.to_be_bytes()).await?;
            to.lock().await.shutdown().await
        };
        // Whichever comes first: the page has closed or has been sent the end.
        tokio::select! {
            () = there => {}
            _ = back => {}
        }
    };
    (near, pump)
}

/// Reads the page's messages, until it closes or violates the protocol; returns the close code.
async fn read_messages(
    from: &mut (impl AsyncRead + Unpin),
    to: &Mutex<impl AsyncWrite + Unpin>,
    into: &mut (impl AsyncWrite + Unpin),
) -> io::Result<u16> {
    loop {
        let (kind, body) = match read_frame(from).await? {
            Ok(frame) => frame,
            Err(code) => return Ok(code),
        };
        match kind {
            opcode::CONTINUATION | opcode::BINARY => into.write_all(&body).await?,
            opcode::CLOSE => return Ok(close_code::NORMAL),
            opcode::PING => write_message(to, opcode::PONG, &body).await?,
            opcode::PONG => {}
            _ => return Ok(close_code::UNSUPPORTED_DATA),
        }
    }
}

/// One frame of a page: its opcode and payload, or why it is not valid.
async fn read_frame(from: &mut (impl AsyncRead + Unpin)) -> io::Result<Result<(u8, Vec<u8>), u16>> {
    let mut head = [0; 2];
    from.read_exact(&mut head).await?;
    let [first, second] = head;
    let (kind, length) = (first & 0x0f, second & 0x7f);
    let (reserved, masked, last) = (first & 0x70, second & 0x80 != 0, first & 0x80 != 0);
    let control = kind >= opcode::CLOSE;
    // Pages mask their frames, so that no proxy on the way takes them for something else.
    if reserved != 0 || !masked || (control && (!last || usize::from(length) > MAX_CONTROL_PAYLOAD))
    {
        return Ok(Err(close_code::PROTOCOL_ERROR));
    }
    let length = match length {
        126 => usize::from(from.read_u16().await?),
        127 => usize::try_from(from.read_u64().await?).unwrap_or(usize::MAX),
        length => usize::from(length),
    };
    if length > MAX_PAYLOAD {
        return Ok(Err(close_code::TOO_LARGE));
    }
    let mut mask = [0; 4];
    from.read_exact(&mut mask).await?;
    let mut body = vec![0; length];
    from.read_exact(&mut body).await?;
    body.iter_mut().zip(mask.iter().cycle()).for_each(|(byte, mask)| *byte ^= mask);
    Ok(Ok((kind, body)))
}

/// Writes one whole message to the page.
async fn write_message(
    to: &Mutex<impl AsyncWrite + Unpin>,
    kind: u8,
    body: &[u8],
) -> io::Result<()> {
    let mut bytes = Vec::with_capacity(body.len() + 10);
    bytes.push(0x80 | kind);
    match (u8::try_from(body.len()), u16::try_from(body.len())) {
        (Ok(short @ 0..126), _) => bytes.push(short),
        (_, Ok(length)) => {
            bytes.push(126);
            bytes.extend_from_slice(&length.to_be_bytes());
        }
        _ => {
            bytes.push(127);
            bytes.extend_from_slice(&(body.len() as u64).to_be_bytes());
        }
    }
    bytes.extend_from_slice(body);
    let mut to = to.lock().await;
    to.write_all(&bytes).await?;
    to.flush().await
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_key_is_answered_as_the_standard_says() {
        assert_eq!(accept_key("dGhlIHNhbXBsZSBub25jZQ=="), "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=");
        assert_eq!(base64(b"a"), "YQ==");
        assert_eq!(base64(b"ab"), "YWI=");
        assert_eq!(base64(b"abc"), "YWJj");
    }

    fn masked_frame(first: u8, body: &[u8]) -> Vec<u8> {
        let mask = [7, 11, 13, 17];
        let mut bytes = vec![first, 0x80 | 126];
        bytes.extend_from_slice(&u16::try_from(body.len()).unwrap().to_be_bytes());
        bytes.extend_from_slice(&mask);
        bytes.extend(body.iter().zip(mask.iter().cycle()).map(|(byte, mask)| byte ^ mask));
        bytes
    }

    #[tokio::test]
    async fn bytes_go_both_ways_and_the_end_is_told() {
        let (mut page, socket) = duplex(1 << 20);
        let (mut near, pump) = websocket_stream(socket);
        let moving = tokio::spawn(pump);
        // A fragmented message is one stream of bytes.
        page.write_all(&masked_frame(0x02, b"he")).await.unwrap();
        page.write_all(&masked_frame(0x80, b"llo")).await.unwrap();
        let mut received = [0; 5];
        near.read_exact(&mut received).await.unwrap();
        assert_eq!(&received, b"hello");
        near.write_all(&[5; 300]).await.unwrap();
        drop(near);
        moving.await.unwrap();
        let mut received_text = Vec::new();
        page.read_to_end(&mut received_text).await.unwrap();
        assert_eq!(received_text[..4], [0x82, 126, 1, 44]);
        assert_eq!(received_text[4..304], [5; 300]);
        assert_eq!(received_text[304..], [0x88, 2, 3, 232]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_page_that_goes_and_does_not_read_is_let_go() {
        let (mut page, socket) = duplex(64);
        let (mut near, pump) = websocket_stream(socket);
        let moving = tokio::spawn(pump);
        near.write_all(&[5; 1000]).await.unwrap();
        // Once its header is read, the rest of the message must follow.
        let mut head = [0; 4];
        page.read_exact(&mut head).await.unwrap();
        page.write_all(&[0x88, 0x80, 0, 0, 0, 0]).await.unwrap();
        timeout(2 * CLOSE_TIMEOUT, moving).await.expect("it is not waited for").unwrap();
        drop(near);
    }

    #[tokio::test]
    async fn what_a_page_must_not_say_ends_it_by_name() {
        let unmasked = vec![0x82, 1, 0];
        let huge = [&[0x82, 0x80 | 127][..], &u64::MAX.to_be_bytes()].concat();
        for (bytes, code) in [
            (unmasked, close_code::PROTOCOL_ERROR),
            (huge, close_code::TOO_LARGE),
            (masked_frame(0x81, b"text"), close_code::UNSUPPORTED_DATA),
            (masked_frame(0xc2, b"reserved"), close_code::PROTOCOL_ERROR),
            (masked_frame(0x08, b"a close in pieces"), close_code::PROTOCOL_ERROR),
            (masked_frame(0x82, b""), close_code::NORMAL),
        ] {
            let (mut page, socket) = duplex(1 << 20);
            let (near, pump) = websocket_stream(socket);
            page.write_all(&bytes).await.unwrap();
            if code == close_code::NORMAL {
                page.write_all(&[0x89, 0x81, 0, 0, 0, 0, b'?']).await.unwrap();
                page.write_all(&[0x88, 0x80, 0, 0, 0, 0]).await.unwrap();
            }
            pump.await;
            drop(near);
            let mut received_text = Vec::new();
            page.read_to_end(&mut received_text).await.unwrap();
            let [a, b] = code.to_be_bytes();
            let pong: &[u8] = if code == close_code::NORMAL { &[0x8a, 1, b'?'] } else { &[] };
            assert_eq!(received_text, [pong, &[0x88, 2, a, b]].concat(), "{bytes:?}");
        }
    }

    proptest! {
        #[test]
        fn whatever_comes_reading_it_ends(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
            runtime.block_on(async {
                let to = Mutex::new(Vec::new());
                // Running out of bytes is the only error that can occur.
                let close_reason = read_messages(&mut &bytes[..], &to, &mut Vec::new()).await;
                let short = |error: io::Error| error.kind() == io::ErrorKind::UnexpectedEof;
                prop_assert!(close_reason.is_ok() || close_reason.is_err_and(short));
                Ok(())
            })?;
        }
    }
}
