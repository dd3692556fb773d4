//! What an agent answers to people on its own machine: the output of tasks, over HTTP on loopback.
//!
//! Whoever can reach it may read, so it listens on loopback only and only where its configuration
//! says so; `cell dev` does. Rejected for now: the same with certificates. Agents have certificates
//! for dialling, not for being dialled, and whether a person may read a task's output is for the
//! masters to say.

use crate::folder::Folders;
use crate::output::{Found, Place, after, near_end};
use axum::Json;
use axum::extract::{Path, Query, State};
use axum::http::StatusCode;
use axum::routing::get;
use cellwright_api::error::{ApiError, Code};
use cellwright_api::output::{OUTPUT_PATH, OutputPiece, OutputQuery};
use std::io;
use std::net::SocketAddr;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::time::{Instant, sleep};

/// Bytes told when the request does not say how many.
const TAIL: u64 = 64 * 1024;
/// Longest wait for more.
const WAIT_MAX: Duration = Duration::from_secs(30);
/// Between two looks for more.
const LOOK: Duration = Duration::from_millis(50);

/// Listens, and says where.
///
/// # Errors
/// When the address cannot be had.
pub async fn open(address: SocketAddr) -> io::Result<(TcpListener, SocketAddr)> {
    let listener = TcpListener::bind(address).await?;
    let address = listener.local_addr()?;
    Ok((listener, address))
}

/// Answers for as long as it is let.
pub async fn serve(listener: TcpListener, folders: Folders) {
    let route = format!("{OUTPUT_PATH}/{{user}}/{{job}}/{{index}}");
    let router = axum::Router::new().route(&route, get(output)).with_state(folders);
    if let Err(error) = axum::serve(listener, router).await {
        tracing::error!(%error, "output can no longer be asked for");
    }
}

type Refused = (StatusCode, Json<ApiError>);

async fn output(
    State(folders): State<Folders>,
    Path((user, job, index)): Path<(String, String, u32)>,
    Query(query): Query<OutputQuery>,
) -> Result<Json<OutputPiece>, Refused> {
    let name = format!("{user}/{job}/{index}");
    let until = Instant::now() + Duration::from_millis(query.wait).min(WAIT_MAX);
    let mut query = query;
    loop {
        let piece = piece(&folders, &name, &query)?;
        if !piece.text.is_empty() || piece.ended || Instant::now() >= until {
            return Ok(Json(piece));
        }
        // Stays with the attempt and the place it began with.
        query.attempt = Some(piece.attempt);
        query.from = Some(piece.next);
        sleep(LOOK).await;
    }
}

fn piece(folders: &Folders, name: &str, query: &OutputQuery) -> Result<OutputPiece, Refused> {
    let failed = |error: io::Error| refuse(Code::Internal, &error.to_string());
    let found = folders.of_name(name).map_err(failed)?;
    let newest = found
        .into_iter()
        .rfind(|found| query.attempt.is_none_or(|wanted| wanted == found.attempt.number));
    let absent = || refuse(Code::NoSuchTask, &format!("no output of {name} is kept here"));
    let Found { attempt, folder } = newest.ok_or_else(absent)?;
    // Before the read: what is written in between is read too.
    let ended = crate::shim::exit_of(&folder).is_ok_and(|exit| exit.is_some());
    let from = match &query.from {
        Some(text) => Place::parse(text).ok_or_else(|| {
            refuse(Code::BadParameter, &format!("from: {text:?}; allowed: a `next`"))
        })?,
        None => near_end(&folder, query.stream, query.tail.unwrap_or(TAIL)).map_err(failed)?,
    };
    let (bytes, next) = after(&folder, query.stream, from).map_err(failed)?;
    // A piece may be cut short by its size: there is more, so it is not the end.
    let ended = ended && next == after(&folder, query.stream, next).map_err(failed)?.1;
    let text = String::from_utf8_lossy(&bytes).into_owned();
    Ok(OutputPiece { attempt: attempt.number, text, next: next.text(), ended })
}

fn refuse(code: Code, message: &str) -> Refused {
    let status = StatusCode::from_u16(code.status()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    (status, Json(ApiError::new(code, message)))
}
