//! The helper of a copy of files: as the task's user, below the task's root.

use super::CopyRequest;
use super::file_tree::{Root, Target, pack, unpack};
use super::frame_pipe::{PipeReader, PipeWriter, input_pipe, output_pipe};
use super::helper::{FrameWriter, send_heartbeats};
use cellwright_api::exec::{CopyDirection, Frame};
use cellwright_supervise::spawn_request;
use std::io::{self, Write};
use std::path::PathBuf;
use std::sync::Arc;
use tokio::io::BufReader;
use tokio::net::unix::OwnedReadHalf;
use tokio::sync::{Notify, mpsc, watch};
use tokio::task::spawn_blocking;

/// Serves the copy until it is done, or the caller is gone.
pub(super) async fn serve(
    request: CopyRequest,
    from: BufReader<OwnedReadHalf>,
    to: &FrameWriter,
) -> io::Result<()> {
    let (is_over, over) = watch::channel(false);
    let lost = Arc::new(Notify::new());
    // As long as nothing runs beside this thread.
    let root = request.view.open_root().and_then(|root| {
        request.view.become_user()?;
        Ok(Root::Within { root, directory: request.view.directory.clone() })
    });
    let heartbeats = spawn_request("heartbeats", send_heartbeats(to.clone(), lost.clone(), over));
    let copying = async {
        match (root, request.direction) {
            (Err(error), _) => Err(error),
            (Ok(root), CopyDirection::OutOf) => send(root, request.path, from, to).await,
            (Ok(root), CopyDirection::Into) => receive(root, request, from).await,
        }
    };
    let last = tokio::select! {
        copied = copying => match copied {
            Ok(()) => Frame::Exit(0),
            Err(error) => Frame::Failed(error.to_string()),
        },
        () = lost.notified() => return Ok(()),
    };
    is_over.send_replace(true);
    // One that panicked has logged it.
    let _ = heartbeats.await;
    last.write(&mut *to.lock().await).await
}

async fn send(
    root: Root,
    path: PathBuf,
    from: BufReader<OwnedReadHalf>,
    to: &FrameWriter,
) -> io::Result<()> {
    let (pipe, mut frames) = output_pipe();
    let packing = spawn_blocking(move || pack_into(&root, &path, pipe));
    let sending = async {
        while let Some(frame) = frames.recv().await {
            frame.write(&mut *to.lock().await).await?;
        }
        Ok(())
    };
    tokio::select! {
        sent = sending => sent.and(finished(packing.await)),
        () = until_closed(from) => Err(io::Error::other("the caller is gone")),
    }
}

fn pack_into(root: &Root, path: &std::path::Path, mut pipe: PipeWriter) -> io::Result<()> {
    let frames = pipe.frames();
    let mut report = |name: &std::path::Path, why: &str| {
        let text = format!("{}: {why}\n", name.display());
        // Without a caller the next write fails.
        drop(frames.blocking_send(Frame::Stderr(text.into())));
    };
    pack(root.open_source(path)?, &mut pipe, &mut report)?;
    pipe.flush()
}

async fn receive(
    root: Root,
    request: CopyRequest,
    from: BufReader<OwnedReadHalf>,
) -> io::Result<()> {
    let (sender, pipe) = input_pipe();
    let unpacking = spawn_blocking(move || unpack_below(&root, &request, pipe));
    tokio::select! {
        done = unpacking => finished(done),
        () = pass_on(from, sender) => Err(io::Error::other("the caller is gone")),
    }
}

fn unpack_below(root: &Root, request: &CopyRequest, mut pipe: PipeReader) -> io::Result<()> {
    let name = request.name.as_deref().unwrap_or_default();
    let target = Target::find(root, &request.path, name)?;
    unpack(&target, &mut pipe).map(drop)
}

/// Passes content on to its end, and then waits for the caller to close.
async fn pass_on(mut from: BufReader<OwnedReadHalf>, to: mpsc::Sender<Option<bytes::Bytes>>) {
    loop {
        let piece = match Frame::read(&mut from).await {
            Ok(Some(Frame::Data(bytes))) => Some(bytes),
            Ok(Some(Frame::End)) => None,
            _ => return,
        };
        if to.send(piece).await.is_err() {
            // It is done with what it has.
            return until_closed(from).await;
        }
    }
}

async fn until_closed(mut from: BufReader<OwnedReadHalf>) {
    while let Ok(Some(_)) = Frame::read(&mut from).await {}
}

fn finished(done: Result<io::Result<()>, tokio::task::JoinError>) -> io::Result<()> {
    done.unwrap_or_else(|_| Err(io::Error::other("the copy was not finished")))
}
