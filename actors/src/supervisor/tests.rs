//! The restart rule, on actors that end on demand.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::sync::Notify;

use super::*;
use crate::address::{self, Address, AskError};

/// Ends as it is told to; fails to start again when it was told so.
struct Mortal {
    starts: Arc<AtomicUsize>,
    fatal_from: usize,
}

enum Order {
    Die,
    Close,
    Ping(RpcReplyPort<usize>),
    /// Is at it until it is told that it is done.
    Work(Arc<Notify>),
}

impl Actor for Mortal {
    type Msg = Order;
    type State = usize;
    type Arguments = ();

    async fn pre_start(&self, _me: ActorRef<Order>, (): ()) -> Result<usize, ActorProcessingErr> {
        let start = self.starts.fetch_add(1, Ordering::SeqCst);
        if start >= self.fatal_from { Err(Fatal("the disk is gone".to_owned()).into()) } else { Ok(start) }
    }

    async fn handle(
        &self,
        me: ActorRef<Order>,
        order: Order,
        start: &mut usize,
    ) -> Result<(), ActorProcessingErr> {
        order.obey(&me, *start).await
    }
}

impl Order {
    async fn obey(self, me: &ActorRef<Order>, start: usize) -> Result<(), ActorProcessingErr> {
        match self {
            Order::Die => Err("told to".into()),
            Order::Close => {
                me.stop(Some(CLOSED.to_owned()));
                Ok(())
            }
            Order::Ping(reply) => {
                crate::answer(reply, start);
                Ok(())
            }
            Order::Work(done) => {
                done.notified().await;
                Ok(())
            }
        }
    }
}

const SOON: Duration = Duration::from_secs(20);

async fn supervised(fatal_from: usize) -> (ActorRef<Msg>, tokio::task::JoinHandle<()>, Address<Order>) {
    supervised_as(fatal_from, |child| child).await
}

async fn supervised_as(
    fatal_from: usize,
    so: impl FnOnce(ChildSpec) -> ChildSpec,
) -> (ActorRef<Msg>, tokio::task::JoinHandle<()>, Address<Order>) {
    let (cell, address) = Address::vacant();
    let starts = Arc::new(AtomicUsize::new(0));
    let child =
        ChildSpec::new("mortal", cell, move || (Mortal { starts: Arc::clone(&starts), fatal_from }, ()));
    let child = so(child);
    let (supervisor, ended) = Actor::spawn(None, Supervisor, vec![child]).await.unwrap();
    (supervisor, ended, address)
}

#[test]
fn the_backoff_doubles_and_stays_within_its_bounds() {
    for times in 1..100 {
        let wait = backoff(times);
        assert!(wait >= BACKOFF_MIN / 2 && wait <= BACKOFF_MAX);
    }
    assert!(backoff(5) >= BACKOFF_MIN * 8);
}

#[tokio::test]
async fn a_child_that_dies_is_started_again_and_found_under_its_address() {
    let (supervisor, ended, address) = supervised(usize::MAX).await;
    for life in 0..3 {
        // Whoever asks meanwhile may meet the one that is dying; it asks again.
        let seen = loop {
            match address.ask(SOON, Order::Ping).await {
                Ok(start) if start >= life => break start,
                Ok(_) | Err(AskError::Down | AskError::Lost) => tokio::task::yield_now().await,
                Err(AskError::Late) => panic!("no answer in time"),
            }
        };
        assert_eq!(seen, life);
        assert!(address.tell(Order::Die));
    }
    supervisor.cast(Msg::Stop).unwrap();
    ended.await.unwrap();
}

#[tokio::test]
async fn a_child_that_keeps_dying_ends_the_tree() {
    let (_supervisor, ended, address) = supervised(usize::MAX).await;
    let killer = tokio::spawn(async move {
        while let Some(child) = address.find(SOON).await {
            child.kill();
            tokio::task::yield_now().await;
        }
    });
    ended.await.unwrap();
    killer.abort();
}

#[tokio::test(start_paused = true)]
async fn a_child_that_never_escalates_is_started_again_past_the_limit() {
    let (supervisor, ended, address) = supervised_as(usize::MAX, ChildSpec::never_escalates).await;
    for life in 0..RESTARTS_MAX + 3 {
        let patience = 2 * BACKOFF_MAX;
        while address.ask(patience, Order::Ping).await.ok().is_none_or(|start| start < life) {
            tokio::task::yield_now().await;
        }
        assert!(address.tell(Order::Die));
    }
    assert!(!ended.is_finished());
    supervisor.cast(Msg::Stop).unwrap();
    ended.await.unwrap();
}

#[tokio::test]
async fn a_start_that_no_restart_can_help_ends_the_tree_at_once() {
    let (_supervisor, ended, address) = supervised(1).await;
    assert!(address.tell(Order::Die));
    ended.await.unwrap();
    assert_eq!(address.ask(Duration::from_millis(1), Order::Ping).await, Err(AskError::Down));
}

#[test]
fn whoever_reads_why_a_tree_ended_is_told_how_often_its_child_did() {
    let of = |times| Escalated { child: "mortal".to_owned(), times, why: "told to".to_owned() }.to_string();
    assert_eq!(of(1), "keep mortal alive: it ended once within a minute, last because of: told to");
    assert_eq!(of(11), "keep mortal alive: it ended 11 times within a minute, last because of: told to");
}

#[tokio::test]
async fn a_child_that_was_closed_is_not_started_again() {
    let (supervisor, ended, address) = supervised(usize::MAX).await;
    assert!(address.tell(Order::Close));
    let child = loop {
        let observed = address::ask(&supervisor, SOON, Msg::Observe).await.unwrap();
        match observed.into_iter().find(|child| !child.running) {
            Some(child) => break child,
            None => tokio::task::yield_now().await,
        }
    };
    assert_eq!((child.restarts, child.last_end.as_deref()), (0, Some(CLOSED)));
    supervisor.cast(Msg::Stop).unwrap();
    ended.await.unwrap();
    assert!(address.find(Duration::ZERO).await.is_none(), "and nothing was started meanwhile");
}

#[tokio::test]
async fn a_tree_that_is_being_stopped_still_says_how_it_fares_and_starts_nobody() {
    let (supervisor, ended, address) = supervised(usize::MAX).await;
    let done = Arc::new(Notify::new());
    assert!(address.tell(Order::Work(Arc::clone(&done))));
    supervisor.cast(Msg::Stop).unwrap();
    let seen = address::ask(&supervisor, SOON, Msg::Observe).await.unwrap();
    assert!(seen[0].running, "it works off what it has begun");
    let (cell, _address) = Address::vacant();
    let added = add(&supervisor, ChildSpec::new("late", cell, || (Unborn, ()))).await;
    assert_eq!(added, Err(STOPPING.to_owned()));
    done.notify_one();
    ended.await.unwrap();
}

/// Never comes to its start.
struct Unborn;

impl Actor for Unborn {
    type Msg = Order;
    type State = ();
    type Arguments = ();

    async fn pre_start(&self, _me: ActorRef<Order>, (): ()) -> Result<(), ActorProcessingErr> {
        std::future::pending().await
    }
}

#[tokio::test(start_paused = true)]
async fn a_child_that_never_starts_keeps_nobody_waiting() {
    let (supervisor, ended, _) = supervised(usize::MAX).await;
    let (cell, _address) = Address::vacant();
    let added = add(&supervisor, ChildSpec::new("unborn", cell, || (Unborn, ()))).await;
    assert_eq!(added, Err("unborn did not start within 10 s".to_owned()));
    supervisor.stop(None);
    ended.await.unwrap();
    let (cell, _address) = Address::vacant();
    let added = add(&supervisor, ChildSpec::new("late", cell, || (Unborn, ()))).await;
    assert_eq!(added, Err("the supervisor is gone".to_owned()));
}

/// What a test sees of [`Slow`] children, and lets them do.
#[derive(Clone, Default)]
struct Seen {
    /// A start past the first is under way.
    starting: Arc<Notify>,
    /// It may come to something.
    go_on: Arc<Notify>,
    /// Who has ended in order, as they did.
    ended: Arc<Mutex<Vec<&'static str>>>,
    /// How many starts were broken off or have failed.
    given_up: Arc<AtomicUsize>,
}

/// Starts at once as often as it is told, and then only when it is let.
#[derive(Clone)]
struct Slow {
    name: &'static str,
    seen: Seen,
    at_once: usize,
    then: Result<(), Fatal>,
    starts: Arc<AtomicUsize>,
}

impl Slow {
    fn new(name: &'static str, at_once: usize, seen: &Seen) -> Slow {
        Slow { name, seen: seen.clone(), at_once, then: Ok(()), starts: Arc::default() }
    }

    fn child(&self) -> (ChildSpec, Address<Order>) {
        let (cell, address) = Address::vacant();
        let slow = self.clone();
        (ChildSpec::new(self.name, cell, move || (slow.clone(), ())), address)
    }
}

/// Counts a start that came to nothing.
struct Unfinished<'a>(Option<&'a AtomicUsize>);

impl Drop for Unfinished<'_> {
    fn drop(&mut self) {
        if let Some(given_up) = self.0 {
            given_up.fetch_add(1, Ordering::SeqCst);
        }
    }
}

impl Actor for Slow {
    type Msg = Order;
    type State = usize;
    type Arguments = ();

    async fn pre_start(&self, _me: ActorRef<Order>, (): ()) -> Result<usize, ActorProcessingErr> {
        let start = self.starts.fetch_add(1, Ordering::SeqCst);
        if start < self.at_once {
            return Ok(start);
        }
        let mut unfinished = Unfinished(Some(&self.seen.given_up));
        self.seen.starting.notify_one();
        self.seen.go_on.notified().await;
        self.then.clone()?;
        unfinished.0 = None;
        Ok(start)
    }

    async fn handle(
        &self,
        me: ActorRef<Order>,
        order: Order,
        start: &mut usize,
    ) -> Result<(), ActorProcessingErr> {
        order.obey(&me, *start).await
    }

    async fn post_stop(&self, _me: ActorRef<Order>, _start: &mut usize) -> Result<(), ActorProcessingErr> {
        self.seen.ended.lock().unwrap().push(self.name);
        Ok(())
    }
}

/// A tree of one child that is asked and one that asks, in the moment in which it is told to stop while the first is being
/// started again and the second is at work.
struct Caught {
    seen: Seen,
    supervisor: ActorRef<Msg>,
    ended: tokio::task::JoinHandle<()>,
    asked: Address<Order>,
    done: Arc<Notify>,
}

async fn caught_while_one_starts(then: Result<(), Fatal>) -> Caught {
    let (seen, done) = (Seen::default(), Arc::new(Notify::new()));
    let mut slow = Slow::new("asked", 1, &seen);
    slow.then = then;
    let ((first, asked), (second, asking)) = (slow.child(), Slow::new("asking", 1, &seen).child());
    let (supervisor, ended) = Actor::spawn(None, Supervisor, vec![first, second]).await.unwrap();
    assert!(asking.tell(Order::Work(Arc::clone(&done))));
    assert!(asked.tell(Order::Die));
    seen.starting.notified().await;
    supervisor.cast(Msg::Stop).unwrap();
    Caught { seen, supervisor, ended, asked, done }
}

#[tokio::test]
async fn a_child_that_is_starting_as_the_tree_is_stopped_serves_those_before_it_and_is_then_worked_off() {
    let Caught { seen, supervisor, ended, asked, done } = caught_while_one_starts(Ok(())).await;
    // It has heard of the stop before the start comes to something.
    address::ask(&supervisor, SOON, Msg::Observe).await.unwrap();
    seen.go_on.notify_one();
    assert_eq!(asked.ask(SOON, Order::Ping).await, Ok(1));
    let children = address::ask(&supervisor, SOON, Msg::Observe).await.unwrap();
    assert!(children.iter().all(|child| child.running), "whoever may be asked stays: {children:?}");
    done.notify_one();
    ended.await.unwrap();
    assert_eq!(*seen.ended.lock().unwrap(), ["asking", "asked"]);
}

#[tokio::test]
async fn a_child_that_is_still_starting_when_its_turn_comes_is_waited_for_and_worked_off() {
    let Caught { seen, supervisor, ended, done, .. } = caught_while_one_starts(Ok(())).await;
    done.notify_one();
    while address::ask(&supervisor, SOON, Msg::Observe).await.unwrap()[1].running {
        tokio::task::yield_now().await;
    }
    assert!(!ended.is_finished(), "nothing of it may outlive the tree");
    seen.go_on.notify_one();
    ended.await.unwrap();
    assert_eq!(*seen.ended.lock().unwrap(), ["asking", "asked"]);
}

#[tokio::test]
async fn a_start_that_fails_for_good_as_the_tree_is_stopped_ends_nobody_s_work() {
    let failure = Err(Fatal("the disk is gone".to_owned()));
    let Caught { seen, supervisor, ended, done, .. } = caught_while_one_starts(failure).await;
    seen.go_on.notify_one();
    while seen.given_up.load(Ordering::SeqCst) == 0 {
        tokio::task::yield_now().await;
    }
    let children = address::ask(&supervisor, SOON, Msg::Observe).await.unwrap();
    assert!(children[1].running, "it works off what it has begun");
    done.notify_one();
    ended.await.unwrap();
    assert_eq!(*seen.ended.lock().unwrap(), ["asking"]);
}

#[tokio::test(start_paused = true)]
async fn a_start_that_comes_to_nothing_is_broken_off_so_that_a_stop_ends() {
    let Caught { seen, ended, done, .. } = caught_while_one_starts(Ok(())).await;
    done.notify_one();
    ended.await.unwrap();
    assert_eq!(*seen.ended.lock().unwrap(), ["asking"]);
    assert_eq!(seen.given_up.load(Ordering::SeqCst), 1, "and nothing goes on with it");
}

/// A tree that was told to stop while one more child was starting, and what comes of the adding.
async fn stopped_while_one_is_added()
-> (Seen, ActorRef<Msg>, tokio::task::JoinHandle<()>, tokio::task::JoinHandle<Result<(), String>>) {
    let (seen, (supervisor, ended, _)) = (Seen::default(), supervised(usize::MAX).await);
    let (late, _address) = Slow::new("late", 0, &seen).child();
    let adding = tokio::spawn({
        let supervisor = supervisor.clone();
        async move { add(&supervisor, late).await }
    });
    seen.starting.notified().await;
    supervisor.cast(Msg::Stop).unwrap();
    (seen, supervisor, ended, adding)
}

#[tokio::test]
async fn a_child_that_is_being_added_as_the_tree_is_stopped_is_worked_off_too() {
    let (seen, supervisor, ended, adding) = stopped_while_one_is_added().await;
    let children = address::ask(&supervisor, SOON, Msg::Observe).await.unwrap();
    assert!(children[0].running, "it may yet be asked by the one that starts");
    seen.go_on.notify_one();
    assert_eq!(adding.await.unwrap(), Err(STOPPING.to_owned()));
    ended.await.unwrap();
    assert_eq!(*seen.ended.lock().unwrap(), ["late"]);
}

#[tokio::test(start_paused = true)]
async fn a_child_that_is_being_added_for_ever_is_broken_off_so_that_a_stop_ends() {
    let (seen, _supervisor, ended, adding) = stopped_while_one_is_added().await;
    ended.await.unwrap();
    assert!(adding.await.unwrap().is_err());
    assert_eq!(seen.given_up.load(Ordering::SeqCst), 1);
}
