//! Files are read and written by threads that block, connections are not: the two ends of a pipe of
//! bounded size between them. Both ends of a copy use it, the helper beside the task and the
//! command line.

use bytes::Bytes;
use cellwright_api::exec::{Frame, MAX_FRAME};
use std::io::{self, Read, Write};
use tokio::sync::mpsc;

/// Frames between both sides.
const QUEUED: usize = 4;

/// Content that was received, until its end. `None` is the end: a pipe that is closed without it
/// has lost the sender.
#[must_use]
pub fn input_pipe() -> (mpsc::Sender<Option<Bytes>>, PipeReader) {
    let (sender, receiver) = mpsc::channel(QUEUED);
    (sender, PipeReader { from: receiver, rest: Bytes::new(), is_over: false })
}

pub struct PipeReader {
    from: mpsc::Receiver<Option<Bytes>>,
    rest: Bytes,
    is_over: bool,
}

impl Read for PipeReader {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        while self.rest.is_empty() && !self.is_over {
            match self.from.blocking_recv() {
                Some(Some(bytes)) => self.rest = bytes,
                Some(None) => self.is_over = true,
                None => {
                    let text = "the other side is gone";
                    return Err(io::Error::new(io::ErrorKind::UnexpectedEof, text));
                }
            }
        }
        let count = self.rest.len().min(into.len());
        into[..count].copy_from_slice(&self.rest.split_to(count));
        Ok(count)
    }
}

/// Content to send, as frames of data.
#[must_use]
pub fn output_pipe() -> (PipeWriter, mpsc::Receiver<Frame>) {
    let (sender, receiver) = mpsc::channel(QUEUED);
    (PipeWriter { to: sender, held: Vec::new() }, receiver)
}

pub struct PipeWriter {
    to: mpsc::Sender<Frame>,
    held: Vec<u8>,
}

impl PipeWriter {
    /// Where frames of another kind may be sent in between.
    #[must_use]
    pub fn frames(&self) -> mpsc::Sender<Frame> {
        self.to.clone()
    }

    fn send(&mut self) -> io::Result<()> {
        let bytes = Bytes::from(std::mem::take(&mut self.held));
        let gone = |_| io::Error::new(io::ErrorKind::BrokenPipe, "the other side is gone");
        if bytes.is_empty() {
            Ok(())
        } else {
            self.to.blocking_send(Frame::Data(bytes)).map_err(gone)
        }
    }
}

impl Write for PipeWriter {
    fn write(&mut self, from: &[u8]) -> io::Result<usize> {
        let count = from.len().min(MAX_FRAME - self.held.len());
        self.held.extend_from_slice(&from[..count]);
        if self.held.len() == MAX_FRAME {
            self.send()?;
        }
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.send()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn bytes_pass_and_an_end_is_told_from_a_loss() {
        let read = |mut pipe: PipeReader| {
            tokio::task::spawn_blocking(move || {
                let mut text = String::new();
                pipe.read_to_string(&mut text).map(|_| text).map_err(|error| error.kind())
            })
        };
        let (to, pipe) = input_pipe();
        let reading = read(pipe);
        for bytes in [Some("one"), Some(""), Some(" two"), None] {
            to.send(bytes.map(|text| Bytes::from_static(text.as_bytes()))).await.unwrap();
        }
        assert_eq!(reading.await.unwrap(), Ok("one two".to_owned()));
        let (to, pipe) = input_pipe();
        let reading = read(pipe);
        to.send(Some(Bytes::from_static(b"one"))).await.unwrap();
        drop(to);
        assert_eq!(reading.await.unwrap(), Err(io::ErrorKind::UnexpectedEof));
    }

    #[tokio::test]
    async fn what_is_written_comes_in_frames_that_are_allowed() {
        let (mut pipe, mut frames) = output_pipe();
        let writing = tokio::task::spawn_blocking(move || {
            pipe.write_all(&vec![7; 3 * MAX_FRAME + 5]).and_then(|()| pipe.flush())
        });
        let mut sizes = Vec::new();
        while let Some(Frame::Data(bytes)) = frames.recv().await {
            sizes.push(bytes.len());
        }
        writing.await.unwrap().unwrap();
        assert_eq!(sizes, [MAX_FRAME, MAX_FRAME, MAX_FRAME, 5]);
    }
}
