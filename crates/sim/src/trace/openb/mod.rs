//! Alibaba GPU trace 2023 ("openb"): nodes with GPUs, and pods that take whole GPUs or shares.
//!
//! There are two node lists (all nodes; only those with GPUs) and a pod list per variant of the
//! workload. CPU is in milli-cores, memory in MiB, and a GPU has 1,000 milli-shares.
//! [`shuffled_load`] turns a pod list into the arrivals of one experiment.

mod load;
mod nodes;
mod pods;
mod published;

pub use load::{Arrivals, LoadError, PodIndex, shuffled_load};
pub use nodes::{ALL_NODES_FILE, GPU_NODES_FILE, Node, gpu_capacity_milli, read_nodes};
pub use pods::{Pod, PodPhase, Qos, find_pod_list, pod_lists, read_pods};
pub use published::{PUBLISHED_FILE, PublishedAllocation, read_published};

/// Shares in one whole GPU.
pub const GPU_MILLI: u32 = 1000;
