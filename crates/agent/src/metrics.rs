//! Reads the numbers that tasks tell, for the scaling of their jobs: asked for over loopback, as
//! health is, or from a file in the task's folder. What the text means is decided by
//! [`MetricReader`], which is pure.
//!
//! A task may answer slowly, without end, or with anything: each reading has a time and a size, and
//! so many are made at once. The file is opened by the kernel's rules: a regular one below the
//! task's folder, no link on the way, so that nothing else of the machine is read for a task.

use crate::health::{connect, get_request};
use cellwright_agent_core::metrics::{MAX_BYTES, MetricReader};
use cellwright_cell::scale::{MetricSeries, MetricSource, MetricsOrder};
use cellwright_supervise::failpoint;
use rustix::fs::{CWD, FileType, Mode, OFlags, ResolveFlags, fstat, openat, openat2};
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::Semaphore;
use tokio::time::{sleep, timeout};

/// Between two readings. The masters look at them every 15 s.
const INTERVAL: Duration = Duration::from_secs(10);
/// How long one may take.
const TIMEOUT: Duration = Duration::from_secs(1);
/// Bytes of an answer before its body.
const HEAD_BYTES: usize = 16 << 10;
/// Readings at a time, each of which may hold as many bytes as one may have.
pub const MAX_PARALLEL: usize = 16;

/// Of what task, and how.
#[derive(Clone, Debug)]
pub struct MetricsTarget {
    /// `user/job/index`.
    pub name: String,
    pub order: MetricsOrder,
    pub ports: Vec<u16>,
    /// Its own folder.
    pub folder: PathBuf,
    pub permits: Arc<Semaphore>,
}

/// What was told.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Numbers {
    /// In thousandths.
    pub told: Vec<(MetricSeries, u64)>,
    /// Readings that were refused so far.
    pub refused: u64,
}

/// Why there is no text.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
enum Unread {
    /// Nothing is there, or not in time.
    #[error("it tells nothing")]
    Silent,
    #[error("more than {MAX_BYTES} bytes")]
    TooLarge,
    #[error("no answer of HTTP with status 200 and a whole body")]
    NoAnswer,
    #[error("no text in UTF-8")]
    NoText,
    #[error("no file of the task's folder that is reached without links")]
    NoFile,
}

/// Reads until it is dropped; calls `on_reading` with every reading.
pub async fn read_repeatedly(target: MetricsTarget, on_reading: impl Fn(Numbers)) {
    let mut reader = MetricReader::new(target.order.clone());
    loop {
        failpoint("metrics");
        // The semaphore is never closed, so a permit is always obtained in the end.
        let permit = target.permits.acquire().await.ok();
        let text = timeout(TIMEOUT, read(&target)).await.unwrap_or(Err(Unread::Silent));
        drop(permit);
        let refused = reader.refused();
        let told = match &text {
            Ok(text) => reader.read(crate::boot::now(), text),
            Err(Unread::Silent) => Vec::new(),
            Err(_) => {
                reader.refuse();
                Vec::new()
            }
        };
        // Once: a task that tells nonsense does so every time.
        if refused == 0 && reader.refused() > 0 {
            let why = text.err().map_or_else(
                || "below zero, endless, too large, told twice, or no number".to_owned(),
                |why| why.to_string(),
            );
            let (task, source) = (&target.name, &target.order.source);
            tracing::warn!(task, %source, why, "its numbers are refused");
        }
        on_reading(Numbers { told, refused: reader.refused() });
        sleep(INTERVAL).await;
    }
}

async fn read(target: &MetricsTarget) -> Result<String, Unread> {
    let bytes = match &target.order.source {
        MetricSource::Http { port, path } => answer(&target.ports, *port, path).await?,
        MetricSource::File(path) => {
            let (folder, path) = (target.folder.clone(), path.clone());
            let read = tokio::task::spawn_blocking(move || file(&folder, Path::new(&path)));
            read.await.unwrap_or(Err(Unread::Silent))?
        }
    };
    String::from_utf8(bytes).map_err(|_| Unread::NoText)
}

/// The body of the answer to a GET.
async fn answer(ports: &[u16], port: u8, path: &str) -> Result<Vec<u8>, Unread> {
    let mut stream = connect(ports, port).await.ok_or(Unread::Silent)?;
    stream.write_all(get_request(path).as_bytes()).await.map_err(|_| Unread::Silent)?;
    let mut answer = Vec::new();
    let mut stream = stream.take((HEAD_BYTES + MAX_BYTES) as u64 + 1);
    // Some say how long it is, and leave the connection open.
    while expected_bytes(&answer).is_none_or(|bytes| answer.len() < bytes) {
        if stream.read_buf(&mut answer).await.map_err(|_| Unread::Silent)? == 0 {
            break;
        }
    }
    body(answer)
}

/// Where the head of an answer ends.
fn head_end(answer: &[u8]) -> Option<usize> {
    let head = &answer[..answer.len().min(HEAD_BYTES)];
    head.windows(4).position(|bytes| bytes == b"\r\n\r\n")
}

/// Bytes of the whole answer, once it has said so.
fn expected_bytes(answer: &[u8]) -> Option<usize> {
    let end = head_end(answer)?;
    let head = String::from_utf8_lossy(&answer[..end]).to_ascii_lowercase();
    let length = head.lines().find_map(|line| line.strip_prefix("content-length:"))?;
    (end + 4).checked_add(length.trim().parse().ok()?)
}

/// The body of an answer to a request of HTTP 1.0, which comes in one piece.
fn body(mut answer: Vec<u8>) -> Result<Vec<u8>, Unread> {
    let end = head_end(&answer).ok_or(Unread::NoAnswer)?;
    let head = String::from_utf8_lossy(&answer[..end]).to_ascii_lowercase();
    let mut lines = head.lines();
    let mut status = lines.next().unwrap_or_default().split_ascii_whitespace();
    let is_http = status.next().is_some_and(|word| word.starts_with("http/"));
    if !is_http || status.next() != Some("200") {
        return Err(Unread::NoAnswer);
    }
    let body = answer.split_off(end + 4);
    if body.len() > MAX_BYTES {
        return Err(Unread::TooLarge);
    }
    for (name, value) in lines.filter_map(|line| line.split_once(':')) {
        let is_whole = match name.trim() {
            "transfer-encoding" => value.trim() == "identity",
            "content-length" => value.trim().parse() == Ok(body.len()),
            _ => true,
        };
        if !is_whole {
            return Err(Unread::NoAnswer);
        }
    }
    Ok(body)
}

/// The content of a file of the task.
fn file(folder: &Path, path: &Path) -> Result<Vec<u8>, Unread> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let folder = openat(CWD, folder, flags, Mode::empty()).map_err(|_| Unread::Silent)?;
    // A pipe would wait for its other end.
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let rules = ResolveFlags::BENEATH
        | ResolveFlags::NO_SYMLINKS
        | ResolveFlags::NO_MAGICLINKS
        | ResolveFlags::NO_XDEV;
    let opened = openat2(&folder, path, flags, Mode::empty(), rules).map_err(|why| {
        if why == rustix::io::Errno::NOENT { Unread::Silent } else { Unread::NoFile }
    })?;
    let about = fstat(&opened).map_err(|_| Unread::NoFile)?;
    if FileType::from_raw_mode(about.st_mode) != FileType::RegularFile {
        return Err(Unread::NoFile);
    }
    let mut content = Vec::new();
    let mut opened = File::from(opened).take(MAX_BYTES as u64 + 1);
    opened.read_to_end(&mut content).map_err(|_| Unread::Silent)?;
    if content.len() > MAX_BYTES { Err(Unread::TooLarge) } else { Ok(content) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::state_dir::scratch::Scratch;
    use cellwright_cell::name::Token;
    use cellwright_cell::scale::MetricKind;
    use std::collections::BTreeMap;
    use std::fs;
    use std::os::unix::fs::symlink;
    use tokio::net::TcpListener;
    use tokio::sync::mpsc;

    fn target(source: MetricSource, ports: Vec<u16>, folder: PathBuf) -> MetricsTarget {
        let name = Token::new("queue").unwrap();
        let series = MetricSeries { name, kind: MetricKind::Value, labels: BTreeMap::new() };
        MetricsTarget {
            name: "u/j/0".into(),
            order: MetricsOrder { source, series: vec![series] },
            ports,
            folder,
            permits: Arc::new(Semaphore::new(1)),
        }
    }

    fn http() -> MetricSource {
        MetricSource::Http { port: 0, path: "/metrics".into() }
    }

    /// What becomes of an answer of these bytes; `ends`: the connection is closed after them.
    async fn answered(answer: &[u8], ends: bool) -> Result<Vec<u8>, Unread> {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let answer = answer.to_vec();
        let serve = tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut request = Vec::new();
            while !request.ends_with(b"\r\n\r\n") {
                request.push(stream.read_u8().await.unwrap());
            }
            // The reader may have had enough.
            let _ = stream.write_all(&answer).await;
            if !ends {
                std::future::pending::<()>().await;
            }
            String::from_utf8(request).unwrap()
        });
        let target = target(http(), vec![port], PathBuf::new());
        let found = timeout(TIMEOUT, read(&target)).await.unwrap_or(Err(Unread::Silent));
        if ends {
            assert!(serve.await.unwrap().starts_with("GET /metrics HTTP/1.0\r\n"));
        } else {
            serve.abort();
        }
        found.map(String::into_bytes)
    }

    #[tokio::test]
    async fn a_page_is_read_whole_or_not_at_all() {
        let good = b"HTTP/1.1 200 OK\r\nContent-Length: 8\r\n\r\nqueue 5\n";
        assert_eq!(answered(good, true).await, Ok(b"queue 5\n".to_vec()));
        let open_ended = b"HTTP/1.0 200 OK\r\n\r\nqueue 5\n";
        assert_eq!(answered(open_ended, true).await, Ok(b"queue 5\n".to_vec()));
        for refused in [
            &b"HTTP/1.1 500 Oh no\r\n\r\nqueue 5\n"[..],
            b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nqueue 5\n",
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n8\r\nqueue 5\n\r\n0\r\n\r\n",
            b"SSH-2.0 200\r\n\r\n",
            b"queue 5\n",
            b"",
        ] {
            assert_eq!(answered(refused, true).await, Err(Unread::NoAnswer));
        }
        let no_text = b"HTTP/1.1 200 OK\r\n\r\nqueue \xff\n";
        assert_eq!(answered(no_text, true).await, Err(Unread::NoText));
    }

    #[tokio::test]
    async fn slow_and_endless_answers_end() {
        assert_eq!(answered(b"", false).await, Err(Unread::Silent));
        assert_eq!(answered(b"HTTP/1.1 200 OK\r\n\r\nqueue 5\n", false).await, Err(Unread::Silent));
        let mut huge = b"HTTP/1.1 200 OK\r\n\r\n".to_vec();
        huge.resize(huge.len() + MAX_BYTES, b'#');
        assert_eq!(answered(&huge, true).await.map(|body| body.len()), Ok(MAX_BYTES));
        huge.resize(huge.len() + HEAD_BYTES, b'#');
        assert_eq!(answered(&huge, false).await, Err(Unread::TooLarge));
        let open = b"HTTP/1.1 200 OK\r\nContent-Length: 8\r\n\r\nqueue 5\n";
        assert_eq!(answered(open, false).await, Ok(b"queue 5\n".to_vec()));
        let no_one = target(http(), vec![], PathBuf::new());
        assert_eq!(read(&no_one).await, Err(Unread::Silent), "no such port");
    }

    #[test]
    fn only_a_file_of_the_folder_is_read() {
        let scratch = Scratch::new();
        let folder = scratch.path("work");
        fs::create_dir_all(folder.join("in")).unwrap();
        fs::write(scratch.path("secret"), "queue 1\n").unwrap();
        fs::write(folder.join("in/metrics.prom"), "queue 5\n").unwrap();
        symlink("/etc/passwd", folder.join("absolute")).unwrap();
        symlink("../secret", folder.join("above")).unwrap();
        symlink("in", folder.join("folder")).unwrap();
        fs::write(folder.join("huge"), vec![b'#'; MAX_BYTES + 1]).unwrap();
        rustix::fs::mknodat(CWD, folder.join("pipe"), FileType::Fifo, Mode::RUSR, 0).unwrap();
        let check = |path: &str, want: Result<&str, Unread>| {
            let want = want.map(|text| text.as_bytes().to_vec());
            assert_eq!(file(&folder, Path::new(path)), want, "{path}");
        };
        check("in/metrics.prom", Ok("queue 5\n"));
        check("absent", Err(Unread::Silent));
        check("huge", Err(Unread::TooLarge));
        for path in ["absolute", "above", "folder/metrics.prom", "../secret", "in", "pipe"] {
            check(path, Err(Unread::NoFile));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_refused_is_counted_and_read_again() {
        let scratch = Scratch::new();
        let path = scratch.path("numbers");
        fs::write(&path, "queue NaN\n").unwrap();
        let source = MetricSource::File("numbers".into());
        let target = target(source, vec![], scratch.path(""));
        let (send, mut readings) = mpsc::unbounded_channel();
        let reading = tokio::spawn(read_repeatedly(target, move |numbers| {
            let _ = send.send(numbers);
        }));
        let refused = readings.recv().await.unwrap();
        assert_eq!((refused.told.len(), refused.refused), (0, 1));
        fs::write(&path, "7.5").unwrap();
        let told = readings.recv().await.unwrap();
        let numbers: Vec<u64> = told.told.iter().map(|(_, number)| *number).collect();
        assert_eq!((numbers, told.refused), (vec![7500], 1));
        fs::remove_file(&path).unwrap();
        let silent = readings.recv().await.unwrap();
        assert_eq!((silent.told.len(), silent.refused), (0, 1), "silence is no offence");
        reading.abort();
    }
}
