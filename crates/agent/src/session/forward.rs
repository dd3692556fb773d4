//! The helper of a connection to a port of a task. It connects from where the task itself is, to
//! its loopback address: in the task's own network to any port, in that of the machine, which tasks
//! may share, only to those that the task was given.

use super::ForwardRequest;
use super::helper::{FrameWriter, send_heartbeats};
use bytes::Bytes;
use cellwright_api::exec::Frame;
use cellwright_supervise::spawn_request;
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf as TcpReader, OwnedWriteHalf as TcpWriter};
use tokio::net::unix::OwnedReadHalf;
use tokio::sync::{Notify, watch};
use tokio::time::timeout;

/// Timeout of a connection to a port of the same machine.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
const READ_BYTES: usize = 16 << 10;

/// Carries bytes until one side has closed.
pub(super) async fn serve(
    request: ForwardRequest,
    from: BufReader<OwnedReadHalf>,
    to: &FrameWriter,
) -> io::Result<()> {
    let stream = match open(&request).await {
        Ok(stream) => stream,
        Err(error) => {
            let text = format!("port {}: {error}", request.port);
            return Frame::Failed(text).write(&mut *to.lock().await).await;
        }
    };
    let (is_over, over) = watch::channel(false);
    let lost = Arc::new(Notify::new());
    let heartbeats = spawn_request("heartbeats", send_heartbeats(to.clone(), lost.clone(), over));
    let (reader, writer) = stream.into_split();
    tokio::select! {
        sent = send(reader, to) => sent?,
        () = receive(from, writer) => return Ok(()),
        () = lost.notified() => return Ok(()),
    }
    is_over.send_replace(true);
    // One that panicked has logged it.
    let _ = heartbeats.await;
    Frame::Exit(0).write(&mut *to.lock().await).await
}

async fn open(request: &ForwardRequest) -> io::Result<TcpStream> {
    let is_own_network = request.view.enter_network()?;
    request.view.become_user()?;
    if !is_own_network && !request.assigned {
        return Err(io::Error::other(
            "not one of the task's; where it shares the network of its machine, others may \
             have it",
        ));
    }
    let mut last = None;
    for address in [Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into()] {
        let connecting = TcpStream::connect(SocketAddr::new(address, request.port));
        match timeout(CONNECT_TIMEOUT, connecting).await {
            Ok(Ok(stream)) => {
                // Small messages must not wait for more; a failure only costs time.
                let _ = stream.set_nodelay(true);
                return Ok(stream);
            }
            Ok(Err(error)) => last = last.or(Some(error)),
            Err(_) => last = last.or(Some(io::ErrorKind::TimedOut.into())),
        }
    }
    Err(last.unwrap_or_else(|| io::ErrorKind::NotFound.into()))
}

/// What the task sends, until it has closed.
async fn send(mut reader: TcpReader, to: &FrameWriter) -> io::Result<()> {
    let mut buffer = vec![0; READ_BYTES];
    while let Ok(count @ 1..) = reader.read(&mut buffer).await {
        let frame = Frame::Data(Bytes::copy_from_slice(&buffer[..count]));
        frame.write(&mut *to.lock().await).await?;
    }
    Ok(())
}

/// What the caller sends, until it is gone. Its end of input is only the end of that.
async fn receive(mut from: BufReader<OwnedReadHalf>, mut writer: TcpWriter) {
    loop {
        let written = match Frame::read(&mut from).await {
            Ok(Some(Frame::Data(bytes))) => writer.write_all(&bytes).await,
            Ok(Some(Frame::End)) => writer.shutdown().await,
            _ => return,
        };
        // A task that reads no more may still have something to say.
        if written.is_err() {
            while let Ok(Some(_)) = Frame::read(&mut from).await {}
            return;
        }
    }
}
