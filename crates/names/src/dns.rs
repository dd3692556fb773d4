//! The DNS server: packets in, packets out. The content of answers is decided in [`crate::answer`].
//!
//! Authoritative for the cell's zone and nothing else; it neither recurses nor forwards. Answers
//! over UDP are truncated to what the client can take, at most 1232 bytes, with the TC flag that
//! makes resolvers retry over TCP. A client that queries for all records, or exceeds its rate
//! limit, gets the flag alone: a packet with a spoofed sender must not become a long one to a
//! victim ([`crate::rate_limiter`]). The cost of a query is bounded before anything is encoded.

pub mod packet;

use crate::answer::{
    Answer, Record as AnswerRecord, RecordData, RecordKind, TTL_SECONDS, answer, soa_record,
};
use crate::rate_limiter::RateLimiter;
use crate::shared_directory::SharedDirectory;
use crate::zone::Zone;
use cellwright_supervise::{Supervisor, catch_panic, failpoint, note_handler_panic};
use hickory_server::Server;
use hickory_server::net::runtime::Time;
use hickory_server::net::xfer::Protocol;
use hickory_server::proto::ProtoError;
use hickory_server::proto::op::{
    Edns, Header, HeaderCounts, MessageType, Metadata, OpCode, ResponseCode,
};
use hickory_server::proto::rr::rdata::{A, AAAA, SOA, SRV, TXT};
use hickory_server::proto::rr::{DNSClass, Name, RData, Record, RecordType};
use hickory_server::proto::serialize::binary::BinEncoder;
use hickory_server::server::{Request, RequestHandler, ResponseHandler, ResponseInfo};
use hickory_server::zone_handler::{MessageResponse, MessageResponseBuilder, Queries};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::slice::Iter;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tokio::net::{TcpListener, UdpSocket};
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinHandle;

/// What passes any network without fragmentation.
const MAX_UDP: u16 = 1232;
const MIN_UDP: u16 = 512;
/// How long a TCP connection may be idle.
const TCP_IDLE: Duration = Duration::from_secs(10);
/// Answers in flight on one TCP connection.
const TCP_QUEUE: usize = 16;
/// Records encoded for an answer over UDP: more than a packet of 1232 bytes holds.
const MAX_UDP_RECORDS: usize = 80;
/// And over TCP, where an answer ends at 64 KiB. Of a larger job each client gets a part, beginning
/// with another task.
const MAX_TCP_RECORDS: usize = 1000;
/// Full answers over UDP that a network gets in a second. Answers live for [`TTL_SECONDS`] seconds,
/// so a resolver needs one for each name it is queried for.
const MAX_ANSWERS_PER_SECOND: u32 = 300;
/// Queries handled concurrently; those beyond are not answered, and clients retry.
const MAX_CONCURRENT_QUERIES: usize = 512;
/// The EDNS version that we speak.
const EDNS_VERSION: u8 = 0;

#[derive(Debug, thiserror::Error)]
#[error("cannot listen for DNS on {address}: {why}")]
pub struct ListenError {
    pub address: SocketAddr,
    pub why: io::Error,
}

/// A server that answers until it is stopped or dropped.
pub struct DnsServer {
    address: SocketAddr,
    stop: watch::Sender<bool>,
    /// One for each listener: the library ends its server only when all listeners have ended.
    serving: [JoinHandle<()>; 2],
}

impl Drop for DnsServer {
    fn drop(&mut self) {
        self.serving.iter().for_each(JoinHandle::abort);
    }
}

impl DnsServer {
    /// Listens on UDP and TCP; a listener that fails is the `supervisor`'s affair. `is_over`: names
    /// are no longer kept up to date, so resolvers should use another server.
    ///
    /// # Errors
    /// When the address cannot be bound.
    pub async fn start(
        listen: SocketAddr,
        names: SharedDirectory,
        zone: Zone,
        is_over: impl Fn() -> bool + Send + Sync + 'static,
        supervisor: Supervisor,
    ) -> Result<DnsServer, ListenError> {
        let handler = Handler::new(names, zone, MAX_ANSWERS_PER_SECOND, Box::new(is_over));
        DnsServer::start_with(listen, handler, supervisor).await
    }

    async fn start_with(
        listen: SocketAddr,
        handler: Handler,
        supervisor: Supervisor,
    ) -> Result<DnsServer, ListenError> {
        let failed = |why| ListenError { address: listen, why };
        let tcp = TcpListener::bind(listen).await.map_err(failed)?;
        // With port 0 the system chose one, and both listeners must have the same.
        let address = tcp.local_addr().map_err(failed)?;
        let udp = UdpSocket::bind(address).await.map_err(failed)?;
        let shared = SharedHandler(Arc::new(handler));
        let (mut packets, mut streams) = (Server::new(shared.clone()), Server::new(shared));
        packets.register_socket(udp);
        streams.register_listener(tcp, TCP_IDLE, TCP_QUEUE);
        let (stop, stopped) = watch::channel(false);
        let serving = [packets, streams].map(|server| {
            let work = serve(server, stopped.clone(), supervisor.clone());
            supervisor.spawn_finite("a DNS server", work)
        });
        Ok(DnsServer { address, stop, serving })
    }

    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Stops listening and waits for the answers in flight.
    pub async fn stop(mut self) {
        self.stop.send_replace(true);
        for serving in &mut self.serving {
            // Its failure was reported where it happened.
            let _ = serving.await;
        }
    }
}

/// Answers until it is stopped. A listener that ends earlier is a failure: clients depend on it.
async fn serve(
    mut server: Server<SharedHandler>,
    mut stopped: watch::Receiver<bool>,
    supervisor: Supervisor,
) {
    let ended = tokio::select! {
        biased;
        _ = stopped.wait_for(|stop| *stop) => None,
        ended = server.block_until_done() => Some(ended),
    };
    if let Some(ended) = ended {
        let why = ended.err().map_or_else(String::new, |error| format!(": {error}"));
        return supervisor.report_failure(&format!("a DNS server ended{why}"));
    }
    if let Err(error) = server.shutdown_gracefully().await {
        tracing::warn!(%error, "DNS did not stop in order");
    }
}

/// The handler that both listeners share.
#[derive(Clone)]
struct SharedHandler(Arc<Handler>);

type IsOver = Box<dyn Fn() -> bool + Send + Sync>;

struct Handler {
    names: SharedDirectory,
    zone: Zone,
    is_over: IsOver,
    rate_limiter: Mutex<RateLimiter>,
    started: Instant,
    query_slots: Semaphore,
}

/// The library's type of an outgoing response.
type Outgoing<'a> =
    MessageResponse<'a, 'a, Iter<'a, Record>, Iter<'a, Record>, Iter<'a, Record>, Iter<'a, Record>>;

/// A response in the library's types.
struct Reply {
    code: ResponseCode,
    authoritative: bool,
    answers: Vec<Record>,
    additional: Vec<Record>,
    authority: Vec<Record>,
    /// There are more records over TCP.
    truncated: bool,
}

impl Reply {
    fn error(code: ResponseCode) -> Reply {
        let (answers, additional, authority) = (Vec::new(), Vec::new(), Vec::new());
        Reply { code, authoritative: false, answers, additional, authority, truncated: false }
    }

    /// An empty answer with the flag to retry over TCP.
    fn retry_over_tcp() -> Reply {
        Reply { authoritative: true, truncated: true, ..Reply::error(ResponseCode::NoError) }
    }

    fn message<'a>(
        &'a self,
        queries: &'a Queries,
        edns: Option<&'a Edns>,
        metadata: Metadata,
    ) -> Outgoing<'a> {
        let builder = MessageResponseBuilder::new(queries, edns);
        builder.build(metadata, &self.answers, &[], &self.authority, &self.additional)
    }

    fn fits(
        &self,
        queries: &Queries,
        edns: Option<&Edns>,
        metadata: Metadata,
        max_size: u16,
    ) -> bool {
        let mut bytes = Vec::new();
        let mut encoder = BinEncoder::new(&mut bytes);
        encoder.set_max_size(max_size);
        let encoded = self.message(queries, edns, metadata).destructive_emit(&mut encoder);
        encoded.is_ok_and(|info| !info.truncation)
    }

    /// Drops records that do not fit; returns whether the client misses any. The library would drop
    /// what is encoded last, which is the record with our EDNS version.
    fn truncate(&mut self, fits: impl Fn(&Reply) -> bool) -> bool {
        if fits(self) {
            return false;
        }
        self.additional.clear();
        if fits(self) {
            return false;
        }
        // Halves that fit are kept and the rest is halved again, so that each record is moved a few
        // times and none is copied.
        let mut rest = std::mem::take(&mut self.answers);
        while !rest.is_empty() {
            let later = rest.split_off(rest.len().div_ceil(2));
            let before = self.answers.len();
            self.answers.append(&mut rest);
            if fits(self) {
                rest = later;
                continue;
            }
            rest = self.answers.split_off(before);
            if rest.len() == 1 {
                break;
            }
        }
        true
    }
}

#[async_trait::async_trait]
impl RequestHandler for SharedHandler {
    async fn handle_request<R: ResponseHandler, T: Time>(
        &self,
        request: &Request,
        mut response: R,
    ) -> ResponseInfo {
        let SharedHandler(handler) = self;
        let Ok(_in_work) = handler.query_slots.try_acquire() else {
            let metadata = Metadata::response_from_request(&request.metadata);
            return ResponseInfo::from(Header { metadata, counts: HeaderCounts::default() });
        };
        let edns = request.edns.as_ref().map(|edns_request| {
            let mut edns = Edns::new();
            edns.set_max_payload(edns_request.max_payload().clamp(MIN_UDP, MAX_UDP));
            edns.set_version(EDNS_VERSION);
            edns
        });
        let too_new = request.edns.as_ref().is_some_and(|edns| edns.version() > EDNS_VERSION);
        let mut reply = if too_new {
            Reply::error(ResponseCode::BADVERS)
        } else {
            handler.reply_or_refuse(request)
        };
        let mut metadata = Metadata::response_from_request(&request.metadata);
        metadata.response_code = reply.code;
        metadata.authoritative = reply.authoritative;
        let max_size = match (request.protocol(), &edns) {
            (Protocol::Udp, Some(edns)) => edns.max_payload(),
            (Protocol::Udp, None) => MIN_UDP,
            _ => u16::MAX,
        };
        let fits = |reply: &Reply| reply.fits(&request.queries, edns.as_ref(), metadata, max_size);
        let is_cut = reply.truncate(fits) || reply.truncated;
        // Over TCP there is no larger transport to retry, and resolvers take the flag for a
        // failure.
        metadata.truncation = is_cut && request.protocol() == Protocol::Udp;
        let message = reply.message(&request.queries, edns.as_ref(), metadata);
        match response.send_response(message).await {
            Ok(info) => info,
            Err(error) => {
                tracing::debug!(%error, client = %request.src(), "DNS answer not sent");
                ResponseInfo::from(Header { metadata, counts: HeaderCounts::default() })
            }
        }
    }
}

impl Handler {
    fn new(names: SharedDirectory, zone: Zone, max_answers: u32, is_over: IsOver) -> Handler {
        let rate_limiter = Mutex::new(RateLimiter::new(max_answers));
        let query_slots = Semaphore::new(MAX_CONCURRENT_QUERIES);
        Handler { names, zone, is_over, rate_limiter, started: Instant::now(), query_slots }
    }

    /// Whether the client gets a full answer to this kind of query.
    fn allows(&self, request: &Request, kind: RecordKind) -> bool {
        if request.protocol() != Protocol::Udp {
            return true;
        }
        let mut rate_limiter = self.rate_limiter.lock().unwrap_or_else(PoisonError::into_inner);
        kind != RecordKind::Any
            && rate_limiter.try_acquire(request.src().ip(), self.started.elapsed())
    }

    /// On failure the client is told to use another server; no other client is affected.
    fn reply_or_refuse(&self, request: &Request) -> Reply {
        catch_panic(|| self.reply(request)).unwrap_or_else(|panicked| {
            note_handler_panic();
            tracing::error!("a question over DNS was not answered: {panicked}");
            Reply::error(ResponseCode::ServFail)
        })
    }

    fn reply(&self, request: &Request) -> Reply {
        failpoint("dns");
        let metadata = &request.metadata;
        if metadata.message_type != MessageType::Query || metadata.op_code != OpCode::Query {
            return Reply::error(ResponseCode::NotImp);
        }
        let Ok(info) = request.request_info() else {
            return Reply::error(ResponseCode::FormErr);
        };
        if info.query.query_class() != DNSClass::IN {
            return Reply::error(ResponseCode::Refused);
        }
        let name = info.query.name().to_string().to_ascii_lowercase();
        let kind = record_kind(info.query.query_type());
        if self.zone.relative_labels(&name).is_some() {
            // Resolvers try the next server; an old address would be taken for the truth.
            if (self.is_over)() {
                return Reply::error(ResponseCode::ServFail);
            }
            if !self.allows(request, kind) {
                return Reply::retry_over_tcp();
            }
        }
        let max_records =
            if request.protocol() == Protocol::Udp { MAX_UDP_RECORDS } else { MAX_TCP_RECORDS };
        let turn = (usize::from(metadata.id), max_records);
        let built = self.names.read(|directory| {
            let found_answer = answer(directory, &self.zone, &name, kind, turn);
            let soa = soa_record(directory, &self.zone);
            (found_answer, soa)
        });
        to_reply(built.0, &built.1, &self.zone).unwrap_or_else(|error| {
            tracing::error!(%error, name, "DNS answer cannot be spelt");
            Reply::error(ResponseCode::ServFail)
        })
    }
}

fn record_kind(kind: RecordType) -> RecordKind {
    match kind {
        RecordType::A => RecordKind::A,
        RecordType::AAAA => RecordKind::Aaaa,
        RecordType::SRV => RecordKind::Srv,
        RecordType::TXT => RecordKind::Txt,
        RecordType::SOA => RecordKind::Soa,
        RecordType::ANY => RecordKind::Any,
        _ => RecordKind::Other,
    }
}

fn to_reply(answer: Answer, soa: &AnswerRecord, zone: &Zone) -> Result<Reply, ProtoError> {
    let no = |code| -> Result<Reply, ProtoError> {
        let authority = vec![to_dns_record(soa, zone)?];
        Ok(Reply { authoritative: true, authority, ..Reply::error(code) })
    };
    match answer {
        Answer::OutsideZone => Ok(Reply::error(ResponseCode::Refused)),
        Answer::NxDomain => no(ResponseCode::NXDomain),
        Answer::NoData => no(ResponseCode::NoError),
        Answer::Records { answers, additional, truncated } => Ok(Reply {
            authoritative: true,
            truncated,
            answers: answers.iter().map(|r| to_dns_record(r, zone)).collect::<Result<_, _>>()?,
            additional: additional
                .iter()
                .map(|r| to_dns_record(r, zone))
                .collect::<Result<_, _>>()?,
            ..Reply::error(ResponseCode::NoError)
        }),
    }
}

fn to_dns_record(dns_record: &AnswerRecord, zone: &Zone) -> Result<Record, ProtoError> {
    let data = match &dns_record.data {
        RecordData::Address(IpAddr::V4(address)) => RData::A(A(*address)),
        RecordData::Address(IpAddr::V6(address)) => RData::AAAA(AAAA(*address)),
        RecordData::Service { port, target } => RData::SRV(SRV::new(0, 1, *port, fqdn(target)?)),
        RecordData::Text(values) => RData::TXT(TXT::new(values.clone())),
        RecordData::Authority { serial } => {
            let ttl = i32::try_from(TTL_SECONDS).unwrap_or(1);
            let origin = fqdn(zone.origin())?;
            let mailbox = origin.prepend_label("hostmaster")?;
            RData::SOA(SOA::new(origin, mailbox, *serial, ttl, ttl, ttl, TTL_SECONDS))
        }
    };
    Ok(Record::from_rdata(fqdn(&dns_record.name)?, TTL_SECONDS, data))
}

/// A fully qualified name.
fn fqdn(text: &str) -> Result<Name, ProtoError> {
    let mut name = Name::from_ascii(text)?;
    name.set_fqdn(true);
    Ok(name)
}

#[cfg(test)]
mod tests;
