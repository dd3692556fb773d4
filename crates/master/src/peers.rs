//! Calls to other replicas. Over HTTP in the product, over a simulated network in the simulator;
//! the rest of the master does not know which.

use cellwright_api::internal::LinkForward;
use cellwright_store::{CallError, CallFuture, NodeId, Peer, RaftAnswer, RaftCall, Transport};
use futures::future::BoxFuture;
use serde::{Deserialize, Serialize};
use std::sync::Arc;

#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum PeerCall {
    Raft(RaftCall),
    Forward(LinkForward),
}

#[derive(Debug, Serialize, Deserialize)]
pub enum PeerAnswer {
    Raft(RaftAnswer),
    /// `false`: not the leader of that term; the shard looks for the leader again.
    Forwarded(bool),
}

pub trait Peers: Send + Sync + 'static {
    fn call(
        &self,
        to: NodeId,
        peer: Peer,
        call: PeerCall,
    ) -> BoxFuture<'static, Result<PeerAnswer, CallError>>;
}

/// Raft's calls as calls among others.
pub struct RaftOver(pub Arc<dyn Peers>);

impl Transport for RaftOver {
    fn call(&self, to: NodeId, peer: Peer, call: RaftCall) -> CallFuture {
        let answer = self.0.call(to, peer, PeerCall::Raft(call));
        Box::pin(async move {
            match answer.await? {
                PeerAnswer::Raft(answer) => Ok(answer),
                PeerAnswer::Forwarded(_) => {
                    Err(CallError::Failed("the peer answered another question".into()))
                }
            }
        })
    }
}
