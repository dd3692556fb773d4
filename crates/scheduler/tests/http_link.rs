//! The three calls over the wire, to a listener on loopback with one fixed answer.

use cellwright_api::client::internal_calls::{LEASE_PATH, LOG_PATH, PROPOSE_PATH};
use cellwright_api::client::{ApiClientConfig, Client};
use cellwright_cell::command::Done;
use cellwright_cell::name::Name;
use cellwright_cell::plan::Plan;
use cellwright_cell::time::Span;
use cellwright_messages::{
    LeaseAnswer, LeaseRequest, LogAnswer, LogRecord, LogRequest, PassStatistics, Proposal,
    ProposalAnswer,
};
use cellwright_scheduler::http_link::HttpLink;
use cellwright_scheduler::{LinkError, MasterLink, pass};
use serde::Serialize;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

/// Answers one request; returns its path and body.
async fn answering(status: &str, body: Vec<u8>) -> (HttpLink, JoinHandle<(String, Vec<u8>)>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let head = format!(
        "HTTP/1.1 {status}\r\ncell-wire: 1\r\ncell-wire-range: 1-1\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    let served = tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        let request = read_request(&mut stream).await;
        stream.write_all(head.as_bytes()).await.unwrap();
        stream.write_all(&body).await.unwrap();
        request
    });
    let client = Client::new(ApiClientConfig::new(vec![address])).unwrap();
    (HttpLink::new(client), served)
}

async fn read_request(stream: &mut tokio::net::TcpStream) -> (String, Vec<u8>) {
    let mut bytes = Vec::new();
    loop {
        let mut part = [0; 4096];
        let count = stream.read(&mut part).await.unwrap();
        assert!(count > 0, "the request ended early");
        bytes.extend_from_slice(&part[..count]);
        let Some(end) = bytes.windows(4).position(|four| four == b"\r\n\r\n") else { continue };
        let head = String::from_utf8(bytes[..end].to_vec()).unwrap().to_lowercase();
        let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
        let length: usize = length.unwrap_or("0").parse().unwrap();
        if bytes.len() >= end + 4 + length {
            let path = head.split(' ').nth(1).unwrap().to_owned();
            return (path, bytes[end + 4..].to_vec());
        }
    }
}

fn wire(value: &impl Serialize) -> Vec<u8> {
    postcard::to_stdvec(value).unwrap()
}

#[tokio::test]
async fn the_three_questions_and_their_answers() {
    let record = LogRecord { index: 9, previous: 7, term: 2, entry: vec![1, 2, 3] };
    let answer = LogAnswer::Records(vec![record]);
    let (link, served) = answering("200 OK", wire(&answer)).await;
    assert_eq!(link.log_after(7, Span(50)).await, Ok(answer));
    let received = served.await.unwrap();
    let request = LogRequest { after: 7, wait: Span(50) };
    assert_eq!(received, (LOG_PATH.to_owned(), wire(&request)));

    let proposal: Proposal =
        pass::proposal(&Name::new("s1").unwrap(), Plan { made_at: 4, groups: vec![] });
    let answer = ProposalAnswer { index: 11, verdicts: vec![Ok(Done::Unchanged)] };
    let (link, served) = answering("200 OK", wire(&answer)).await;
    assert_eq!(link.propose(proposal.clone()).await, Ok(answer));
    assert_eq!(served.await.unwrap(), (PROPOSE_PATH.to_owned(), wire(&proposal)));

    let passes = PassStatistics { passes: 3, ..PassStatistics::default() };
    let request = LeaseRequest {
        scheduler: "s1".into(),
        scheduler_shard: "gpu".into(),
        passes,
        wall: cellwright_cell::time::Time::ZERO,
        level: 1,
    };
    let answer = LeaseAnswer { granted: true, holder: "s1".into(), length: Span(9) };
    let (link, served) = answering("200 OK", wire(&answer)).await;
    assert_eq!(link.lease(request.clone()).await, Ok(answer));
    let (path, received) = served.await.unwrap();
    let mut received: LeaseRequest = postcard::from_bytes(&received).unwrap();
    // The link adds the time of its own clock.
    assert!(received.wall > request.wall);
    received.wall = request.wall;
    assert_eq!((path, wire(&received)), (LEASE_PATH.to_owned(), wire(&request)));
}

#[tokio::test]
async fn what_the_master_refuses_and_what_never_arrived_are_told_apart() {
    let body = br#"{"code":"not-allowed","message":"not a scheduler","hint":"","details":{}}"#;
    let (link, served) = answering("403 Forbidden", body.to_vec()).await;
    let rejected =
        link.propose(pass::proposal(&Name::new("s1").unwrap(), Plan::default())).await.unwrap_err();
    assert!(matches!(&rejected, LinkError::Rejected(why) if why.contains("not a scheduler")));
    served.await.unwrap();
    let (link, served) = answering("200 OK", b"\xff\xff".to_vec()).await;
    let odd =
        link.propose(pass::proposal(&Name::new("s1").unwrap(), Plan::default())).await.unwrap_err();
    assert!(matches!(odd, LinkError::Unreachable(_)), "{odd}");
    served.await.unwrap();
}
