//! The last moment of a hold: what lands exactly as its time ends is neither lost nor done twice.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use futures_util::future::BoxFuture;
use holdpoint_core::ids::{ApprovalId, RunId};
use tokio::sync::Barrier;

use super::support::*;
use crate::proxy::desk::Desk;
use crate::proxy::hold::Waiter;

const KIM: &str = r#"{"to":"kim","amount":1}"#;

type Moment = Box<dyn Fn() -> BoxFuture<'static, ()> + Send + Sync>;

/// Ends every hold right after something has happened: as if its time were over and nobody had told the call of it, or as
/// if somebody had.
struct LastMoment {
    holds: Mutex<usize>,
    happens: Moment,
    told: bool,
}

impl LastMoment {
    /// In the last moment `happens` is done, at once.
    fn of(happens: impl Fn() + Send + Sync + 'static) -> Arc<LastMoment> {
        LastMoment::during(move || {
            happens();
            Box::pin(async {})
        })
    }

    fn during(happens: impl Fn() -> BoxFuture<'static, ()> + Send + Sync + 'static) -> Arc<LastMoment> {
        Arc::new(LastMoment { holds: Mutex::default(), happens: Box::new(happens), told: false })
    }

    /// How many holds have ended.
    fn holds(&self) -> usize {
        *self.holds.lock().unwrap()
    }
}

#[async_trait]
impl Waiter for LastMoment {
    async fn wait(&self, _run: &RunId, _approval: &ApprovalId, _within: Duration) -> bool {
        (self.happens)().await;
        *self.holds.lock().unwrap() += 1;
        self.told
    }
}

/// A desk whose calls are held, and whose holds end as the waiter says.
async fn holding(place: &Place, waiter: &Arc<LastMoment>) -> TestDesk {
    place
        .desk(|settings| {
            settings.hold = Duration::from_secs(3_600);
            settings.waiter = Some(Arc::clone(waiter) as Arc<dyn Waiter>);
        })
        .await
}

/// The payments that the record says were begun.
fn begun(place: &Place, run: &RunId) -> usize {
    place.events(run).iter().filter(|kind| *kind == "step.tool_started").count()
}

#[tokio::test]
async fn an_approval_that_lands_as_the_hold_ends_runs_the_call_once_and_in_its_own_answer() {
    let place = Arc::new(Place::new());
    let waiter = LastMoment::of({
        let place = Arc::clone(&place);
        move || place.approve(&place.only_pending())
    });
    let desk = holding(&place, &waiter).await;
    assert_eq!(desk.pay(KIM).await.text, "paid kim");
    assert_eq!(waiter.holds(), 1);
    assert!(desk.pay(KIM).await.is("DUPLICATE", true).ends_with("paid kim"));
    assert_eq!((place.bank.payments(), begun(&place, &place.last_run()), place.rows().len()), (1, 1, 1));
}

#[tokio::test]
async fn an_approval_that_lands_after_the_last_look_is_collected_once_by_the_next_call() {
    let place = Place::new();
    let waiter = LastMoment::of(|| {});
    let desk = holding(&place, &waiter).await;
    let approval = {
        let told = desk.pay(KIM).await;
        let approval = place.only_pending();
        assert!(told.is("PENDING_APPROVAL", false).contains(approval.id.as_str()), "{told:?}");
        approval
    };
    assert_eq!((waiter.holds(), place.bank.payments()), (1, 0));
    place.approve(&approval);
    assert_eq!(desk.pay(KIM).await.text, "paid kim");
    desk.pay(KIM).await.is("DUPLICATE", true);
    assert_eq!((place.bank.payments(), begun(&place, &approval.run_id), place.rows().len()), (1, 1, 1));
}

#[tokio::test]
async fn of_calls_that_two_proxies_hold_to_the_same_last_moment_one_runs_and_both_are_answered() {
    let place = Arc::new(Place::new());
    let both = Arc::new(Barrier::new(2));
    let waiter = LastMoment::during({
        let place = Arc::clone(&place);
        move || {
            let (place, both) = (Arc::clone(&place), Arc::clone(&both));
            Box::pin(async move {
                if both.wait().await.is_leader() {
                    place.approve(&place.only_pending());
                }
                both.wait().await;
            })
        }
    });
    let (one, other) = (holding(&place, &waiter).await, holding(&place, &waiter).await);
    let (first, second) = tokio::join!(one.pay(KIM), other.pay(KIM));
    assert_eq!(waiter.holds(), 2);
    let paid = |got: &Got| got.text == "paid kim";
    let other_way = |got: &Got| got.text.starts_with("IN_PROGRESS: ") || got.text.starts_with("DUPLICATE: ");
    assert!(
        paid(&first) && other_way(&second) || paid(&second) && other_way(&first),
        "{first:?} and {second:?}"
    );
    assert_eq!((place.bank.payments(), begun(&place, &place.last_run()), place.rows().len()), (1, 1, 1));
}

#[tokio::test]
async fn a_refusal_that_lands_as_the_hold_ends_is_told_in_place_of_the_wait() {
    let place = Arc::new(Place::new());
    let rejecting = LastMoment::of({
        let place = Arc::clone(&place);
        move || place.reject(&place.only_pending(), "not him")
    });
    let told = holding(&place, &rejecting).await.pay(KIM).await;
    assert!(told.is("REJECTED", true).contains("\"not him\""), "{told:?}");
    let cancelling = LastMoment::of({
        let place = Arc::clone(&place);
        move || place.cancel(&place.only_pending().run_id, "stop it")
    });
    let told = holding(&place, &cancelling).await.pay(r#"{"to":"lou","amount":1}"#).await;
    assert!(told.is("REJECTED", true).contains("\"stop it\""), "{told:?}");
    assert_eq!((rejecting.holds(), cancelling.holds(), place.bank.payments()), (1, 1, 0));
}

#[tokio::test]
async fn an_approval_that_expires_as_the_hold_ends_is_not_said_to_wait() {
    let place = Arc::new(Place::new());
    let waiter = LastMoment::of({
        let place = Arc::clone(&place);
        move || place.clock.advance(Duration::from_secs(86_401))
    });
    let told = holding(&place, &waiter).await.pay(KIM).await;
    told.is("EXPIRED", true);
    assert_eq!((waiter.holds(), place.bank.payments(), place.pending().len()), (1, 0, 0));
}

#[tokio::test]
async fn an_approval_that_lands_as_the_session_ends_runs_nothing_there_and_is_collected_by_the_next() {
    for told in [false, true] {
        let (place, ending) = (Arc::new(Place::new()), Arc::new(Mutex::<Option<Arc<Desk>>>::default()));
        let happens = {
            let (place, ending) = (Arc::clone(&place), Arc::clone(&ending));
            move || {
                place.approve(&place.only_pending());
                ending.lock().unwrap().take().unwrap().begin_end();
            }
        };
        let mut waiter = LastMoment::of(happens);
        Arc::get_mut(&mut waiter).unwrap().told = told;
        let desk = holding(&place, &waiter).await;
        *ending.lock().unwrap() = Some(Arc::clone(&desk.desk));
        desk.pay(KIM).await.is("PENDING_APPROVAL", false);
        assert_eq!((waiter.holds(), place.bank.payments()), (1, 0));
        desk.end().await;
        let next = place.desk(|_| ()).await;
        assert_eq!(next.pay(KIM).await.text, "paid kim");
        next.pay(KIM).await.is("DUPLICATE", true);
        assert_eq!((place.bank.payments(), begun(&place, &place.last_run()), place.rows().len()), (1, 1, 1));
    }
}
