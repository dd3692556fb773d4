//! The arrivals of one experiment: a pod list shuffled, then brought to a wanted load.
//!
//! The protocol is the one behind the published figures. The list is shuffled by the seed. If its
//! GPU demand is below the target (load times GPU capacity), pods drawn from the list at random,
//! with replacement, are appended until the next one drawn would pass the target; that one is not
//! appended. If its demand is above, pods picked at random are dropped until it is not. So the
//! demand that arrives is never above the target and falls short of it by less than one pod.
//! Draws for the shuffle and for the filling come from separate streams of the seed. The published
//! runs used another generator, so single orders differ and only means can be compared.

use crate::trace::stable_rng::StableRng;

use super::Pod;

/// A pod, by its index in the pod list.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PodIndex(pub u32);

/// Pods in the order of their arrival; pods drawn several times occur several times.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Arrivals {
    pub order: Vec<PodIndex>,
    /// GPU shares that all arrivals request.
    pub demand_milli: u64,
    /// GPU shares that make up the requested load.
    pub target_milli: u64,
}

/// Why a load cannot be made.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LoadError {
    #[error("no pod asks for GPUs, so no GPU load can be made; allowed: a list where some do")]
    NoGpuDemand,
    #[error("{pods} pods are too many; allowed: up to {}", u32::MAX)]
    TooManyPods { pods: usize },
    #[error("the load takes more than {MAX_ARRIVALS} arrivals; allowed: a smaller load")]
    TooManyArrivals,
    #[error("a load of {load_permille} per mille is out of range; allowed: 1 to {MAX_PERMILLE}")]
    LoadOutOfRange { load_permille: u32 },
    #[error("a GPU capacity of {gpu_capacity_milli} milli is out of range; allowed: 1 to 2^50")]
    CapacityOutOfRange { gpu_capacity_milli: u64 },
}

/// A hundred times the capacity: beyond it the list would only grow.
const MAX_PERMILLE: u32 = 100_000;
const MAX_CAPACITY_MILLI: u64 = 1 << 50;
/// A thousand times the arrivals of the published runs.
const MAX_ARRIVALS: usize = 10_000_000;

const SHUFFLE_PURPOSE: u64 = 1;
const FILL_PURPOSE: u64 = 2;

/// Builds the arrivals for a seed; `load_permille` 1300 is 1.3 times the GPU capacity.
pub fn shuffled_load(
    pods: &[Pod],
    gpu_capacity_milli: u64,
    seed: u64,
    load_permille: u32,
) -> Result<Arrivals, LoadError> {
    let target_milli = target(gpu_capacity_milli, load_permille)?;
    let count =
        u32::try_from(pods.len()).map_err(|_| LoadError::TooManyPods { pods: pods.len() })?;
    let mut order: Vec<PodIndex> = (0..count).map(PodIndex).collect();
    let demand_milli: u64 = pods.iter().map(Pod::gpu_demand_milli).sum();
    if demand_milli == 0 {
        return Err(LoadError::NoGpuDemand);
    }
    StableRng::from_seed(seed, SHUFFLE_PURPOSE).shuffle(&mut order);
    let mut arrivals = Arrivals { order, demand_milli, target_milli };
    let mut rng = StableRng::from_seed(seed, FILL_PURPOSE);
    if demand_milli > target_milli {
        drop_surplus(&mut arrivals, pods, &mut rng);
    } else if demand_milli < target_milli {
        append_missing(&mut arrivals, pods, &mut rng)?;
    }
    Ok(arrivals)
}

fn drop_surplus(arrivals: &mut Arrivals, pods: &[Pod], rng: &mut StableRng) {
    while arrivals.demand_milli > arrivals.target_milli
        && let Some(place) = rng.below(arrivals.order.len() as u64)
    {
        let dropped = arrivals.order.remove(place as usize);
        arrivals.demand_milli -= pods[dropped.0 as usize].gpu_demand_milli();
    }
}

fn append_missing(
    arrivals: &mut Arrivals,
    pods: &[Pod],
    rng: &mut StableRng,
) -> Result<(), LoadError> {
    while let Some(drawn) = rng.below(pods.len() as u64) {
        let demand_milli = arrivals.demand_milli + pods[drawn as usize].gpu_demand_milli();
        if demand_milli > arrivals.target_milli {
            break;
        }
        if arrivals.order.len() == MAX_ARRIVALS {
            return Err(LoadError::TooManyArrivals);
        }
        arrivals.demand_milli = demand_milli;
        arrivals.order.push(PodIndex(drawn as u32));
    }
    Ok(())
}

/// Load times capacity, a fraction of a milli-share cut off.
fn target(gpu_capacity_milli: u64, load_permille: u32) -> Result<u64, LoadError> {
    if !(1..=MAX_PERMILLE).contains(&load_permille) {
        return Err(LoadError::LoadOutOfRange { load_permille });
    }
    if !(1..=MAX_CAPACITY_MILLI).contains(&gpu_capacity_milli) {
        return Err(LoadError::CapacityOutOfRange { gpu_capacity_milli });
    }
    let exact = u128::from(gpu_capacity_milli) * u128::from(load_permille) / 1000;
    u64::try_from(exact).map_err(|_| LoadError::CapacityOutOfRange { gpu_capacity_milli })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(gpus: u32, gpu_milli: u32) -> Pod {
        Pod {
            name: String::new(),
            cpu_milli: 0,
            memory_mib: 0,
            gpus,
            gpu_milli,
            gpu_models: Vec::new(),
            qos: None,
            phase: None,
            created_s: None,
            deleted_s: None,
            scheduled_s: None,
        }
    }

    fn pods() -> Vec<Pod> {
        (0..100).map(|n| if n % 10 == 0 { pod(8, 1000) } else { pod(1, 1 + n * 7) }).collect()
    }

    /// Demand equals the sum over the order, and is as near the target as the protocol says.
    fn check(load_permille: u32) -> Arrivals {
        let pods = pods();
        let arrivals = shuffled_load(&pods, 100_000, 5, load_permille).expect("a possible load");
        let demand: u64 =
            arrivals.order.iter().map(|index| pods[index.0 as usize].gpu_demand_milli()).sum();
        assert_eq!(arrivals.demand_milli, demand);
        assert_eq!(arrivals.target_milli, 100 * u64::from(load_permille));
        assert!(demand <= arrivals.target_milli && demand + 8_000 > arrivals.target_milli);
        arrivals
    }

    #[test]
    fn the_load_is_reached_from_below_and_from_above() {
        let filled = check(3_000);
        assert!(filled.order.len() > 100);
        let mut start: Vec<PodIndex> = filled.order[..100].to_vec();
        start.sort_unstable();
        assert!(start.into_iter().eq((0..100).map(PodIndex)), "the list comes first, whole");
        let thinned = check(700);
        assert!(thinned.order.len() < 100);
        let mut once = thinned.order.clone();
        once.sort_unstable();
        once.dedup();
        assert_eq!(once.len(), thinned.order.len(), "nothing is drawn when pods are dropped");
    }

    #[test]
    fn a_seed_fixes_the_order() {
        let order = |seed| shuffled_load(&pods(), 100_000, seed, 3_000).expect("possible").order;
        assert_eq!(order(1), order(1));
        assert_ne!(order(1), order(2));
    }

    #[test]
    fn impossible_loads_are_refused() {
        let check = |pods: &[Pod], capacity, load, expected| {
            assert_eq!(shuffled_load(pods, capacity, 0, load), Err(expected));
        };
        check(&[], 1000, 1300, LoadError::NoGpuDemand);
        check(&[pod(0, 0)], 1000, 1300, LoadError::NoGpuDemand);
        check(&pods(), 1000, 0, LoadError::LoadOutOfRange { load_permille: 0 });
        check(&[pod(1, 1)], 1 << 40, 1300, LoadError::TooManyArrivals);
        check(&pods(), 0, 1300, LoadError::CapacityOutOfRange { gpu_capacity_milli: 0 });
    }
}
