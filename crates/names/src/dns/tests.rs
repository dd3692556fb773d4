//! Queries over real sockets on loopback, made by a DNS client and, where a client would hide what
//! matters, as bytes.

use super::*;
use crate::testing::{Cell, job, key, name};
use cellwright_cell::command::{Command, Observed};
use hickory_server::net::client::{Client, ClientHandle};
use hickory_server::net::runtime::TokioRuntimeProvider;
use hickory_server::net::tcp::TcpClientStream;
use hickory_server::net::udp::UdpClientStream;
use hickory_server::proto::op::{DnsResponse, Message, Query};
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

const LOOPBACK: SocketAddr = SocketAddr::new(IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 0);

async fn serve(cell: &Cell) -> (DnsServer, SharedDirectory) {
    serve_with(cell, MAX_ANSWERS_PER_SECOND).await
}

async fn serve_with(cell: &Cell, max_answers: u32) -> (DnsServer, SharedDirectory) {
    let names = SharedDirectory::default();
    names.reset(&cell.state, cell.index);
    let zone = Zone::new(&name("main"), "cell.internal").unwrap();
    let handler = Handler::new(names.clone(), zone, max_answers, Box::new(|| false));
    let server = DnsServer::start_with(LOOPBACK, handler, Supervisor::default()).await;
    (server.unwrap(), names)
}

async fn udp(server: &DnsServer) -> Client<TokioRuntimeProvider> {
    let provider = TokioRuntimeProvider::default();
    let stream = UdpClientStream::builder(server.address(), provider).build();
    let (client, background) = Client::<TokioRuntimeProvider>::from_sender(stream);
    tokio::spawn(background);
    client
}

async fn query(
    client: &mut Client<TokioRuntimeProvider>,
    text: &str,
    kind: RecordType,
) -> DnsResponse {
    client.query(Name::from_str(text).unwrap(), DNSClass::IN, kind).await.unwrap()
}

async fn over_tcp(server: &DnsServer, text: &str) -> DnsResponse {
    let provider = TokioRuntimeProvider::default();
    let (stream, sender) = TcpClientStream::new(server.address(), None, None, provider);
    let (mut client, background) =
        Client::<TokioRuntimeProvider>::new(stream.await.unwrap(), sender);
    tokio::spawn(background);
    query(&mut client, text, RecordType::SRV).await
}

fn answer_texts(response: &DnsResponse) -> Vec<String> {
    response.answers.iter().map(|record| record.data.to_string()).collect()
}

fn texts(response: &DnsResponse) -> Vec<Vec<String>> {
    let record_text = |record: &Record| match &record.data {
        RData::TXT(text) => {
            let values = text.txt_data.iter();
            values.map(|value| String::from_utf8_lossy(value).into_owned()).collect()
        }
        other => panic!("{other:?}"),
    };
    response.answers.iter().map(record_text).collect()
}

#[tokio::test]
async fn a_client_finds_tasks_and_ports_and_a_dead_task_is_gone_at_once() {
    let mut cell = Cell::with_machines(2);
    cell.submit(job("web", 2, 1));
    cell.run("web", 0, 0);
    cell.run("web", 1, 1);
    let (server, names) = serve(&cell).await;
    let mut client = udp(&server).await;
    let web = "Web.ADA.main.cell.internal.";
    let mut found = answer_texts(&query(&mut client, web, RecordType::A).await);
    found.sort();
    assert_eq!(found, ["10.0.0.1", "10.0.0.2"]);
    let srv_answer = query(&mut client, "1.web.ada.main.cell.internal.", RecordType::SRV).await;
    let port = cell.directory.job(&key("web")).unwrap()[&1].ports[0];
    assert_eq!(answer_texts(&srv_answer), [format!("0 1 {port} 1.web.ada.main.cell.internal.")]);
    assert!(srv_answer.answers.iter().all(|record| record.ttl <= 5), "promised");
    assert_eq!(srv_answer.additionals[0].data.to_string(), "10.0.0.2");
    assert!(srv_answer.metadata.authoritative);
    assert!(cell.report(cell.task("web", 1), Observed::Unhealthy));
    names.reset(&cell.state, cell.index);
    assert_eq!(answer_texts(&query(&mut client, web, RecordType::A).await), ["10.0.0.1"]);
    let task_name = "1.web.ada.main.cell.internal.";
    let gone = query(&mut client, task_name, RecordType::A).await;
    assert_eq!((gone.metadata.response_code, gone.answers.len()), (ResponseCode::NoError, 0));
    let answer = query(&mut client, task_name, RecordType::TXT).await;
    assert_eq!(texts(&answer), [["state=stopping", "healthy=false"]]);
    let answer = query(&mut client, web, RecordType::TXT).await;
    assert_eq!(texts(&answer), [["size=2", "healthy=1", "unhealthy=1"]]);
    assert!(answer.answers.iter().all(|record| record.ttl <= 5), "promised");
    cell.ok(Command::StopJob { job: key("web"), expect: None });
    assert!((0..2).all(|index| cell.report(cell.task("web", index), Observed::Stopped)));
    names.reset(&cell.state, cell.index);
    let over = query(&mut client, web, RecordType::TXT).await;
    assert_eq!(over.metadata.response_code, ResponseCode::NXDomain);
    server.stop().await;
}

#[tokio::test]
async fn names_that_are_not_kept_any_more_are_not_told() {
    let mut cell = Cell::with_machines(1);
    cell.submit(job("web", 1, 0));
    cell.run("web", 0, 0);
    let names = SharedDirectory::default();
    names.reset(&cell.state, cell.index);
    let zone = Zone::new(&name("main"), "cell.internal").unwrap();
    let over = Arc::new(AtomicBool::new(false));
    let flag = over.clone();
    let is_over = move || flag.load(Ordering::Relaxed);
    let server = DnsServer::start(LOOPBACK, names, zone, is_over, Supervisor::default());
    let server = server.await.unwrap();
    let mut client = udp(&server).await;
    let web = "web.ada.main.cell.internal.";
    assert_eq!(answer_texts(&query(&mut client, web, RecordType::A).await), ["10.0.0.1"]);
    over.store(true, Ordering::Relaxed);
    for text in [web, "nobody.main.cell.internal."] {
        let (answer, _) = packet(&server, text, None).await;
        assert_eq!(answer.metadata.response_code, ResponseCode::ServFail, "{text}");
        assert!(answer.answers.is_empty() && !answer.metadata.authoritative, "{answer:?}");
    }
}

#[tokio::test]
async fn a_no_carries_the_authority_and_is_short_lived() {
    let mut cell = Cell::with_machines(1);
    cell.submit(job("web", 1, 0));
    cell.run("web", 0, 0);
    let (server, _names) = serve(&cell).await;
    let mut client = udp(&server).await;
    for (text, kind, code) in [
        ("nobody.main.cell.internal.", RecordType::A, ResponseCode::NXDomain),
        ("web.ada.main.cell.internal.", RecordType::AAAA, ResponseCode::NoError),
        ("web.ada.main.cell.internal.", RecordType::MX, ResponseCode::NoError),
    ] {
        let response = query(&mut client, text, kind).await;
        assert_eq!(response.metadata.response_code, code, "{text}");
        assert_eq!(answer_texts(&response), Vec::<String>::new());
        let [soa] = response.authorities.as_slice() else { panic!("{response:?}") };
        let RData::SOA(data) = &soa.data else { panic!("{soa:?}") };
        assert_eq!(soa.name.to_string(), "main.cell.internal.");
        assert_eq!(u64::from(data.serial), cell.index);
        assert!(data.minimum <= 5 && soa.ttl <= 5);
    }
    let foreign = query(&mut client, "example.com.", RecordType::A).await;
    assert_eq!(foreign.metadata.response_code, ResponseCode::Refused);
    assert!(!foreign.metadata.recursion_available);
}

/// Sends the query as bytes, so that no client retries it on its own.
async fn packet(server: &DnsServer, text: &str, payload: Option<u16>) -> (Message, usize) {
    let bytes = question(text, payload).to_vec().unwrap();
    let socket = UdpSocket::bind(LOOPBACK).await.unwrap();
    socket.send_to(&bytes, server.address()).await.unwrap();
    let mut buffer = [0; 4096];
    let (length, _) = socket.recv_from(&mut buffer).await.unwrap();
    (Message::from_vec(&buffer[..length]).unwrap(), length)
}

fn question(text: &str, payload: Option<u16>) -> Message {
    question_of(RecordType::SRV, text, payload)
}

fn question_of(kind: RecordType, text: &str, payload: Option<u16>) -> Message {
    let mut message = Message::new(7, MessageType::Query, OpCode::Query);
    message.add_query(Query::query(Name::from_str(text).unwrap(), kind));
    if let Some(payload) = payload {
        let mut edns = Edns::new();
        edns.set_max_payload(payload);
        message.edns = Some(edns);
    }
    message
}

#[tokio::test]
async fn long_answers_are_cut_over_udp_and_whole_over_tcp() {
    let mut cell = Cell::with_machines(1);
    cell.submit(job("web", 60, 1));
    for index in 0..60 {
        cell.run("web", index, 0);
    }
    let (server, _names) = serve(&cell).await;
    let web = "web.ada.main.cell.internal.";
    let mut counts = Vec::new();
    for (payload, max_size) in
        [(None, 512), (Some(100), 512), (Some(1000), 1000), (Some(4096), 1232)]
    {
        let (message, length) = packet(&server, web, payload).await;
        assert!(message.metadata.truncation, "{payload:?}");
        assert!(length <= max_size, "{payload:?}: {length}");
        assert_eq!(message.edns.is_some(), payload.is_some());
        counts.push(message.answers.len());
    }
    assert!(counts[0] < counts[2] && counts[2] < counts[3], "{counts:?}");
    let whole = over_tcp(&server, web).await;
    assert_eq!(whole.answers.len(), 60);
    assert!(!whole.metadata.truncation);
}

#[tokio::test]
async fn a_short_question_is_not_answered_with_a_long_packet_for_everything_or_beyond_the_share() {
    let mut cell = Cell::with_machines(1);
    cell.submit(job("web", 60, 1));
    for index in 0..60 {
        cell.run("web", index, 0);
    }
    let (generous, _names) = serve(&cell).await;
    let (strict, _names) = serve_with(&cell, 0).await;
    let query = async |server: &DnsServer, kind| {
        let query = question_of(kind, "web.ada.main.cell.internal.", Some(1232));
        let query = query.to_vec().unwrap();
        let socket = UdpSocket::bind(LOOPBACK).await.unwrap();
        socket.send_to(&query, server.address()).await.unwrap();
        let mut buffer = [0; 2000];
        let (length, _) = socket.recv_from(&mut buffer).await.unwrap();
        let message = Message::from_vec(&buffer[..length]).unwrap();
        (message.metadata.truncation, length > query.len())
    };
    assert_eq!(query(&generous, RecordType::SRV).await, (true, true));
    assert_eq!(query(&generous, RecordType::ANY).await, (true, false));
    assert_eq!(query(&strict, RecordType::SRV).await, (true, false));
    assert_eq!(over_tcp(&strict, "web.ada.main.cell.internal.").await.answers.len(), 60);
}

#[tokio::test]
async fn askers_get_the_tasks_in_different_orders() {
    let mut cell = Cell::with_machines(3);
    cell.submit(job("web", 3, 1));
    for index in 0..3 {
        cell.run("web", usize::try_from(index).unwrap(), index);
    }
    let (server, _names) = serve(&cell).await;
    let socket = UdpSocket::bind(LOOPBACK).await.unwrap();
    let mut first = std::collections::BTreeSet::new();
    for id in 0..3 {
        let mut message = question("web.ada.main.cell.internal.", None);
        message.metadata.id = id;
        socket.send_to(&message.to_vec().unwrap(), server.address()).await.unwrap();
        let mut buffer = [0; 512];
        let (length, _) = socket.recv_from(&mut buffer).await.unwrap();
        let answer = Message::from_vec(&buffer[..length]).unwrap();
        first.insert(answer.answers[0].data.to_string());
    }
    assert_eq!(first.len(), 3);
}

#[tokio::test]
async fn noise_newer_edns_and_changes_are_answered_with_a_no_and_the_server_lives() {
    let mut cell = Cell::with_machines(1);
    cell.ok(Command::AddUser { name: name("bob") });
    let (server, _names) = serve(&cell).await;
    let mut tcp = TcpStream::connect(server.address()).await.unwrap();
    tcp.write_all(&[0, 3, 1, 2, 3]).await.unwrap();
    let socket = UdpSocket::bind(LOOPBACK).await.unwrap();
    for noise in [&b""[..], b"x", &[0xff; 12], &[0xff; 600]] {
        socket.send_to(noise, server.address()).await.unwrap();
    }
    let mut newer = question("main.cell.internal.", Some(1000));
    newer.edns.as_mut().unwrap().set_version(1);
    let mut update = question("main.cell.internal.", None);
    update.metadata.op_code = OpCode::Notify;
    for (message, code) in [(newer, ResponseCode::BADVERS), (update, ResponseCode::NotImp)] {
        let socket = UdpSocket::bind(LOOPBACK).await.unwrap();
        socket.send_to(&message.to_vec().unwrap(), server.address()).await.unwrap();
        let mut buffer = [0; 512];
        let (length, _) = socket.recv_from(&mut buffer).await.unwrap();
        let answer = Message::from_vec(&buffer[..length]).unwrap();
        // Two names of one code, of which the client crate uses the other.
        assert_eq!(u16::from(answer.metadata.response_code), u16::from(code));
    }
    let mut rest = Vec::new();
    let closing = tcp.shutdown().await;
    drop((closing, tcp.read_to_end(&mut rest).await));
    let (message, _) = packet(&server, "bob.main.cell.internal.", None).await;
    assert_eq!(message.metadata.response_code, ResponseCode::NXDomain);
}
