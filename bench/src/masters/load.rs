//! Clients of an HTTP server: each has one connection and one request on its way, and sends the
//! next when it has the answer. The same clients are used against every server.
//!
//! They write prepared bytes and read no more of an answer than its status and length: on a machine
//! that client and server share, what the client does is taken from the server. Rejected: the
//! product's own client for the load, which would be compared with another one's.

use crate::report::percentile;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// Longest head of an answer.
const LONGEST_HEAD: usize = 16 << 10;

/// Writes a whole request: for which client, and which of all requests it is.
pub type Request = Arc<dyn Fn(usize, u64, &mut Vec<u8>) + Send + Sync>;

/// How long the clients go on.
#[derive(Clone, Copy)]
pub enum Length {
    For(Duration),
    /// So many requests of all clients together.
    Requests(u64),
}

pub struct Load {
    pub address: String,
    pub clients: usize,
    pub length: Length,
    pub request: Request,
}

/// What came of it.
pub struct Outcome {
    pub done: u64,
    /// Answers other than success.
    pub rejected: u64,
    pub seconds: f64,
    /// Milliseconds of the successes, sorted.
    pub latencies: Vec<f64>,
}

impl Outcome {
    pub fn rate(&self) -> f64 {
        self.done as f64 / self.seconds
    }

    pub fn latency(&self, share: f64) -> f64 {
        percentile(&self.latencies, share)
    }

    /// # Errors
    /// When something was refused: then it was not the work that was to be measured.
    pub fn all_done(self) -> io::Result<Outcome> {
        match self.rejected {
            0 => Ok(self),
            rejected => Err(io::Error::other(format!("{rejected} requests were refused"))),
        }
    }
}

/// `POST` of JSON. `headers` are whole lines.
pub fn post(out: &mut Vec<u8>, path: &str, headers: &str, body: &str) {
    let head = format!(
        "POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n{headers}\
         content-length: {}\r\n\r\n",
        body.len()
    );
    out.extend_from_slice(head.as_bytes());
    out.extend_from_slice(body.as_bytes());
}

pub fn get(out: &mut Vec<u8>, path: &str) {
    out.extend_from_slice(format!("GET {path} HTTP/1.1\r\nhost: localhost\r\n\r\n").as_bytes());
}

impl Load {
    /// Connects all clients first, then lets them go.
    ///
    /// # Errors
    /// When a connection fails.
    pub async fn run(self) -> io::Result<Outcome> {
        let mut connections = Vec::with_capacity(self.clients);
        for _ in 0..self.clients {
            connections.push(Connection::open(&self.address).await?);
        }
        let taken = Arc::new(AtomicU64::new(0));
        let begun = Instant::now();
        let mut clients = Vec::with_capacity(self.clients);
        for (number, connection) in connections.into_iter().enumerate() {
            let (taken, request) = (taken.clone(), self.request.clone());
            clients.push(tokio::spawn(run_client(
                number,
                connection,
                request,
                taken,
                self.length,
                begun,
            )));
        }
        let mut outcome = Outcome { done: 0, rejected: 0, seconds: 0.0, latencies: Vec::new() };
        for client in clients {
            let (latencies, rejected) = client.await.map_err(io::Error::other)??;
            outcome.rejected += rejected;
            outcome.latencies.extend(latencies);
        }
        outcome.seconds = begun.elapsed().as_secs_f64();
        outcome.done = outcome.latencies.len() as u64;
        outcome.latencies.sort_by(f64::total_cmp);
        Ok(outcome)
    }
}

async fn run_client(
    number: usize,
    mut connection: Connection,
    request: Request,
    taken: Arc<AtomicU64>,
    length: Length,
    begun: Instant,
) -> io::Result<(Vec<f64>, u64)> {
    let (mut latencies, mut rejected) = (Vec::new(), 0);
    let mut bytes = Vec::new();
    loop {
        let request_number = taken.fetch_add(1, Ordering::Relaxed);
        let over = match length {
            Length::For(time) => begun.elapsed() >= time,
            Length::Requests(most) => request_number >= most,
        };
        if over {
            return Ok((latencies, rejected));
        }
        bytes.clear();
        request(number, request_number, &mut bytes);
        let sent = Instant::now();
        let answer = connection.exchange(&bytes).await?;
        if (200..300).contains(&answer.status) {
            latencies.push(sent.elapsed().as_secs_f64() * 1e3);
        } else {
            if rejected == 0 && number == 0 {
                eprintln!("{}: {}", answer.status, String::from_utf8_lossy(answer.body));
            }
            rejected += 1;
        }
    }
}

pub struct Connection {
    stream: TcpStream,
    buffer: Vec<u8>,
}

pub struct Answer<'a> {
    pub status: u16,
    pub body: &'a [u8],
}

impl Connection {
    pub async fn open(address: &str) -> io::Result<Connection> {
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        Ok(Connection { stream, buffer: Vec::with_capacity(4096) })
    }

    /// Sends a request and reads the whole answer.
    pub async fn exchange(&mut self, request: &[u8]) -> io::Result<Answer<'_>> {
        self.stream.write_all(request).await?;
        self.buffer.clear();
        let head = loop {
            self.read_more().await?;
            if let Some(at) = self.buffer.windows(4).position(|four| four == b"\r\n\r\n") {
                break at + 4;
            }
            if self.buffer.len() > LONGEST_HEAD {
                return Err(io::Error::other("an answer whose head has no end"));
            }
        };
        let (status, length) = parse(&self.buffer[..head])?;
        while self.buffer.len() < head + length {
            self.read_more().await?;
        }
        Ok(Answer { status, body: &self.buffer[head..] })
    }

    async fn read_more(&mut self) -> io::Result<()> {
        match self.stream.read_buf(&mut self.buffer).await? {
            0 => Err(io::ErrorKind::UnexpectedEof.into()),
            _ => Ok(()),
        }
    }
}

/// Status and length of the body.
fn parse(head: &[u8]) -> io::Result<(u16, usize)> {
    let text = String::from_utf8_lossy(head);
    let bad = || io::Error::other(format!("an answer without status or length: {text}"));
    let status = text.split(' ').nth(1).and_then(|code| code.parse().ok()).ok_or_else(bad)?;
    let length = text.lines().find_map(|line| {
        let (name, value) = line.split_once(':')?;
        name.eq_ignore_ascii_case("content-length").then(|| value.trim().parse().ok())?
    });
    Ok((status, length.ok_or_else(bad)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn status_and_length_are_found_whatever_the_case() {
        let head = b"HTTP/1.1 429 Too Many\r\nX: 1\r\nContent-Length: 17\r\n\r\n";
        assert_eq!(parse(head).unwrap(), (429, 17));
        assert!(parse(b"HTTP/1.1 200 OK\r\n\r\n").is_err());
    }

    #[test]
    fn requests_say_how_long_they_are() {
        let mut out = Vec::new();
        post(&mut out, "/v1/x", "a: b\r\n", "{}");
        let text = String::from_utf8(out).unwrap();
        assert!(text.contains("a: b\r\ncontent-length: 2\r\n\r\n{}"), "{text}");
    }
}
