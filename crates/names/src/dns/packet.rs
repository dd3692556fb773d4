//! One packet in, one packet out, without sockets: the server's behaviour on arbitrary bytes, for
//! fuzzing. No rate limit applies here.

use super::{Handler, SharedHandler};
use crate::shared_directory::SharedDirectory;
use crate::zone::Zone;
use hickory_server::net::NetError;
use hickory_server::net::runtime::TokioTime;
use hickory_server::net::xfer::Protocol;
use hickory_server::proto::rr::Record;
use hickory_server::proto::serialize::binary::BinEncoder;
use hickory_server::server::{Request, RequestHandler, ResponseHandler, ResponseInfo};
use hickory_server::zone_handler::MessageResponse;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};

/// The server without its listeners.
#[doc(hidden)]
pub struct PacketServer(SharedHandler);

impl PacketServer {
    #[must_use]
    pub fn new(names: SharedDirectory, zone: Zone) -> PacketServer {
        let handler = Handler::new(names, zone, u32::MAX, Box::new(|| false));
        PacketServer(SharedHandler(Arc::new(handler)))
    }

    /// The response; `None` for bytes that the library does not accept as a DNS packet.
    pub async fn answer(&self, packet: &[u8], over_tcp: bool) -> Option<Vec<u8>> {
        let protocol = if over_tcp { Protocol::Tcp } else { Protocol::Udp };
        let client = SocketAddr::from((Ipv4Addr::LOCALHOST, 53));
        let request = Request::from_bytes(packet.to_vec(), client, protocol).ok()?;
        let sent = CapturedResponse::default();
        self.0.handle_request::<_, TokioTime>(&request, sent.clone()).await;
        sent.0.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

#[derive(Clone, Default)]
struct CapturedResponse(Arc<Mutex<Option<Vec<u8>>>>);

#[async_trait::async_trait]
impl ResponseHandler for CapturedResponse {
    async fn send_response<'a>(
        &mut self,
        response: MessageResponse<
            '_,
            'a,
            impl Iterator<Item = &'a Record> + Send + 'a,
            impl Iterator<Item = &'a Record> + Send + 'a,
            impl Iterator<Item = &'a Record> + Send + 'a,
            impl Iterator<Item = &'a Record> + Send + 'a,
        >,
    ) -> Result<ResponseInfo, NetError> {
        let mut bytes = Vec::new();
        let mut encoder = BinEncoder::new(&mut bytes);
        encoder.set_max_size(u16::MAX);
        let info = response.destructive_emit(&mut encoder)?;
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(bytes);
        Ok(info)
    }
}
