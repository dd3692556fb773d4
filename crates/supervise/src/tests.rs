//! What the supervisor reports, and what it does not.

use super::*;
use std::sync::Mutex;

/// A supervisor, and its reports.
fn recording_supervisor() -> (Supervisor, Arc<Mutex<Vec<String>>>) {
    let all = Arc::new(Mutex::new(Vec::new()));
    let recorded = all.clone();
    let hook = move |why: &str| recorded.lock().unwrap().push(why.to_owned());
    (Supervisor::with_hook(Arc::new(hook)), all)
}

/// Whether there is exactly one report, which begins and ends so; the source location may be
/// between.
fn is_single_line(reports: &Mutex<Vec<String>>, begins: &str, ends: &str) -> bool {
    let reports = reports.lock().unwrap();
    reports.len() == 1 && reports[0].starts_with(begins) && reports[0].ends_with(ends)
}

#[tokio::test]
async fn the_end_and_the_panic_of_an_essential_task_are_heard_once() {
    let (supervisor, reports) = recording_supervisor();
    supervisor.spawn_essential("the loop", async {}).await.unwrap();
    assert_eq!(*reports.lock().unwrap(), ["the loop ended"]);
    assert_eq!(supervisor.failure(), Some("the loop ended"));
    supervisor.spawn_essential("another", async { panic!("no\nmore") }).await.unwrap();
    assert_eq!(reports.lock().unwrap().len(), 1, "what follows from it is not told");
}

#[tokio::test]
async fn a_panic_is_told_on_one_line() {
    let (supervisor, reports) = recording_supervisor();
    supervisor.spawn_finite("the writer", async { panic!("first\n  second") }).await.unwrap();
    assert!(is_single_line(&reports, "the writer panicked", "first second"));
}

#[tokio::test]
async fn an_errand_may_end_and_after_a_stop_everything_may() {
    let (supervisor, reports) = recording_supervisor();
    supervisor.spawn_finite("one", async {}).await.unwrap();
    let forever = supervisor.spawn_essential("two", std::future::pending());
    forever.abort();
    assert!(forever.await.unwrap_err().is_cancelled());
    supervisor.mark_stopping();
    supervisor.spawn_essential("three", async {}).await.unwrap();
    assert!(reports.lock().unwrap().is_empty());
    assert_eq!(supervisor.failure(), None);
}

#[tokio::test]
async fn a_panic_on_the_way_out_ends_nothing_and_is_told() {
    let (supervisor, reports) = recording_supervisor();
    supervisor.mark_stopping();
    supervisor.spawn_essential("the loop", async { panic!("late") }).await.unwrap();
    assert!(is_single_line(&reports, "the loop panicked", ": late"));
    assert_eq!(supervisor.failure(), None);
}

#[tokio::test]
async fn a_panic_of_one_request_is_counted_and_ends_nothing_else() {
    let before = handler_panics();
    spawn_request("an answer", async { panic!("no") }).await.unwrap();
    spawn_request("another", async {}).await.unwrap();
    assert_eq!(handler_panics(), before + 1);
}

/// Panics when it is polled, and holds a value whose drop other tasks wait for.
struct PanicOnPoll<D>(D);

impl<D> Future for PanicOnPoll<D> {
    type Output = ();

    fn poll(self: std::pin::Pin<&mut Self>, _: &mut std::task::Context<'_>) -> std::task::Poll<()> {
        panic!("no")
    }
}

/// Records the panic count at the time when it is dropped.
struct CountOnDrop(Arc<Mutex<Option<u64>>>);

impl Drop for CountOnDrop {
    fn drop(&mut self) {
        *self.0.lock().unwrap() = Some(handler_panics());
    }
}

#[tokio::test]
async fn a_panic_of_one_request_is_counted_before_anybody_finds_it_gone() {
    let before = handler_panics();
    let at_drop = Arc::new(Mutex::new(None));
    spawn_request("a stream", PanicOnPoll(CountOnDrop(at_drop.clone()))).await.unwrap();
    assert!(at_drop.lock().unwrap().is_some_and(|count| count > before));
}

#[test]
fn a_panic_of_a_thread_is_recorded_whoever_catches_it() {
    let ((), inner) = record_panics(|| {
        drop(std::panic::catch_unwind(|| panic!("swallowed")));
        let (_, own) = record_panics(|| catch_panic(|| panic!("of another")).is_err());
        assert!(own.len() == 1 && own[0].ends_with(": of another"), "{own:?}");
        // A panic of another thread is not recorded.
        assert!(std::thread::spawn(|| panic!("elsewhere")).join().is_err());
    });
    assert!(inner.len() == 1 && inner[0].ends_with(": swallowed"), "{inner:?}");
    assert!(record_panics(|| ()).1.is_empty());
}

#[test]
fn a_thread_may_end_and_must_not_panic() {
    let (supervisor, reports) = recording_supervisor();
    supervisor.spawn_thread("good", || {}).unwrap().join().unwrap();
    assert!(reports.lock().unwrap().is_empty());
    supervisor.spawn_thread("bad", || panic!("no")).unwrap().join().unwrap();
    assert!(is_single_line(&reports, "the thread bad panicked", ": no"));
}

#[tokio::test(start_paused = true)]
async fn what_is_restarted_is_counted_and_its_pauses_grow() {
    let (supervisor, reports) = recording_supervisor();
    let mut round = 0;
    let begun = Instant::now();
    let task = supervisor.spawn_restarting("test chore", move || {
        round += 1;
        async move { assert!(round > 3, "round {round}") }
    });
    task.await.unwrap();
    assert_eq!(restarts().get("test chore"), Some(&3));
    assert_eq!(begun.elapsed(), Duration::from_millis(100 + 200 + 400));
    assert!(reports.lock().unwrap().is_empty());
}

#[test]
fn what_is_caught_says_what_it_said() {
    assert_eq!(catch_panic(|| 7).unwrap(), 7);
    let number = 8;
    let text = catch_panic(|| panic!("{number}")).unwrap_err().to_string();
    assert!(text.starts_with("panicked") && text.ends_with(": 8"), "{text}");
}

#[test]
fn a_lock_whose_holder_panicked_is_there_for_the_next() {
    let mutex = Mutex::new(vec![1]);
    let panicked = catch_panic(|| {
        let mut held = lock(&mutex);
        held.push(2);
        panic!("with the lock in hand");
    });
    assert!(panicked.is_err() && mutex.is_poisoned());
    assert_eq!(*lock(&mutex), [1, 2]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_panic_is_told_and_not_the_end_of_whom_it_took_along() {
    report_in_one_line();
    for _ in 0..200 {
        let (supervisor, reports) = recording_supervisor();
        let (held, mut missed) = tokio::sync::oneshot::channel::<()>();
        let other = supervisor.spawn_essential("the other", async move {
            // Spinning, so that it is there at once when the channel closes.
            while missed.try_recv() == Err(tokio::sync::oneshot::error::TryRecvError::Empty) {
                std::hint::spin_loop();
            }
        });
        let cause = supervisor.spawn_essential("the cause", async move {
            let _held = held;
            panic!("no");
        });
        cause.await.unwrap();
        other.await.unwrap();
        let reports = reports.lock().unwrap();
        assert!(
            reports.len() == 1 && reports[0].starts_with("the cause panicked at"),
            "{reports:?}"
        );
    }
}

#[test]
fn what_is_said_of_an_end_commands_no_terminal() {
    let escaped = escape_control(
        "cannot go on: panicked at x: `a\u{1b}]52;c;aGk=\u{7}\u{9b}2J\r\u{202e}`\n\tat y",
    );
    let want = r"cannot go on: panicked at x: `a\u{1b}]52;c;aGk=\u{7}\u{9b}2J\u{d}\u{202e}`";
    assert_eq!(escaped, format!("{want}\n\tat y"));
}
