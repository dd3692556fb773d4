//! Openraft's async runtime: tokio, with randomness that can be seeded and supervised tasks.
//!
//! Openraft draws election timeouts from its runtime. In the product they come from the operating
//! system; the simulator seeds the generator of its thread, so that a run can be repeated from its
//! seed. One type serves both, because a second `TypeConfig` would mean that the simulator runs
//! other code than the product.
//!
//! Openraft also starts its tasks here: the core, the worker that applies, one for each follower. A
//! panic in any of them leaves a replica that looks alive, so all of them are supervised: a task
//! that is started under a supervisor passes it on to the tasks that it starts.

use std::cell::RefCell;
use std::future::Future;
use std::time::Duration;

use cellwright_supervise::{Supervisor, catch_panic_async};
use openraft::{AsyncRuntime, OptionalSend, TokioRuntime};
use rand::{Rng, RngCore, SeedableRng};
use rand_chacha::ChaCha8Rng;

thread_local! {
    static RNG: RefCell<Option<ChaCha8Rng>> = const { RefCell::new(None) };
}

tokio::task_local! {
    /// The supervisor of the replica that a task of consensus works for.
    static SUPERVISOR: Supervisor;
}

/// Supervises every task that consensus starts inside `work`.
pub(crate) async fn supervised<T>(by: Supervisor, work: impl Future<Output = T>) -> T {
    SUPERVISOR.scope(by, work).await
}

/// From here on, the random numbers of replicas on this thread follow from `seed`.
pub fn seed_rng(seed: u64) {
    RNG.with_borrow_mut(|draws| *draws = Some(ChaCha8Rng::seed_from_u64(seed)));
}

/// The generator of the current thread.
#[derive(Debug)]
pub struct ThreadRng;

impl ThreadRng {
    #[expect(clippy::disallowed_methods, reason = "election timeouts of a real cell must differ")]
    fn with<T>(draw: impl FnOnce(&mut ChaCha8Rng) -> T) -> T {
        RNG.with_borrow_mut(|draws| draw(draws.get_or_insert_with(ChaCha8Rng::from_os_rng)))
    }
}

/// A random time between the two, from the generator that openraft uses.
pub(crate) fn random_between(least: Duration, most: Duration) -> Duration {
    let width = u64::try_from(most.saturating_sub(least).as_micros()).unwrap_or(u64::MAX);
    least + Duration::from_micros(ThreadRng::with(|draws| draws.random_range(0..=width)))
}

/// Openraft is built against an older release of the trait than the rest of the workspace.
impl rand_core_06::RngCore for ThreadRng {
    fn next_u32(&mut self) -> u32 {
        Self::with(RngCore::next_u32)
    }

    fn next_u64(&mut self) -> u64 {
        Self::with(RngCore::next_u64)
    }

    fn fill_bytes(&mut self, bytes: &mut [u8]) {
        Self::with(|draws| draws.fill_bytes(bytes));
    }

    fn try_fill_bytes(&mut self, bytes: &mut [u8]) -> Result<(), rand_core_06::Error> {
        self.fill_bytes(bytes);
        Ok(())
    }
}

/// Tokio for everything but randomness.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct SeededRuntime;

impl AsyncRuntime for SeededRuntime {
    type JoinError = <TokioRuntime as AsyncRuntime>::JoinError;
    type JoinHandle<T: OptionalSend + 'static> = <TokioRuntime as AsyncRuntime>::JoinHandle<T>;
    type Sleep = <TokioRuntime as AsyncRuntime>::Sleep;
    type Instant = <TokioRuntime as AsyncRuntime>::Instant;
    type TimeoutError = <TokioRuntime as AsyncRuntime>::TimeoutError;
    type Timeout<R, T: Future<Output = R> + OptionalSend> =
        <TokioRuntime as AsyncRuntime>::Timeout<R, T>;
    type ThreadLocalRng = ThreadRng;
    type OneshotSender<T: OptionalSend> = <TokioRuntime as AsyncRuntime>::OneshotSender<T>;
    type OneshotReceiver<T: OptionalSend> = <TokioRuntime as AsyncRuntime>::OneshotReceiver<T>;
    type OneshotReceiverError = <TokioRuntime as AsyncRuntime>::OneshotReceiverError;

    fn spawn<T>(future: T) -> Self::JoinHandle<T::Output>
    where
        T: Future + OptionalSend + 'static,
        T::Output: OptionalSend + 'static,
    {
        let Ok(by) = SUPERVISOR.try_with(Clone::clone) else { return TokioRuntime::spawn(future) };
        let supervisor = by.clone();
        TokioRuntime::spawn(SUPERVISOR.scope(by, async move {
            match catch_panic_async(future).await {
                Ok(done) => done,
                Err(panicked) => {
                    supervisor.report_panic("consensus", &panicked);
                    // Openraft has its own way of noticing.
                    panicked.resume()
                }
            }
        }))
    }

    fn sleep(duration: Duration) -> Self::Sleep {
        TokioRuntime::sleep(duration)
    }

    fn sleep_until(deadline: Self::Instant) -> Self::Sleep {
        TokioRuntime::sleep_until(deadline)
    }

    fn timeout<R, F: Future<Output = R> + OptionalSend>(
        duration: Duration,
        future: F,
    ) -> Self::Timeout<R, F> {
        TokioRuntime::timeout(duration, future)
    }

    fn timeout_at<R, F: Future<Output = R> + OptionalSend>(
        deadline: Self::Instant,
        future: F,
    ) -> Self::Timeout<R, F> {
        TokioRuntime::timeout_at(deadline, future)
    }

    fn is_panic(join_error: &Self::JoinError) -> bool {
        TokioRuntime::is_panic(join_error)
    }

    fn thread_rng() -> Self::ThreadLocalRng {
        ThreadRng
    }

    fn oneshot<T>() -> (Self::OneshotSender<T>, Self::OneshotReceiver<T>)
    where
        T: OptionalSend,
    {
        TokioRuntime::oneshot()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand_core_06::RngCore as _;

    #[test]
    fn a_seed_repeats_the_draws() {
        let draw = |seed| {
            seed_rng(seed);
            [SeededRuntime::thread_rng().next_u64(), SeededRuntime::thread_rng().next_u64()]
        };
        assert_eq!(draw(7), draw(7));
        assert_ne!(draw(7), draw(8));
    }
}
