//! The restart rule, on actors that end on demand.

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
        match order {
            Order::Die => Err("told to".into()),
            Order::Close => {
                me.stop(Some(CLOSED.to_owned()));
                Ok(())
            }
            Order::Ping(reply) => {
                crate::answer(reply, *start);
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
    // A start that was under way and failed for good ends nobody's work.
    let failed = NotStarted { why: "the disk is gone".to_owned(), fatal: true };
    supervisor.cast(Msg::Started(0, Err(failed))).unwrap();
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
