//! Asking an actor: the three ways in which there is no answer, and a question that outlives the actor that it found.

use std::time::Duration;

use holdpoint_actors::address::{Address, AskError};
use holdpoint_actors::clock::monotonic;
use holdpoint_actors::executor::{self, CallEnd, Execution, Started, ToolCall, ToolExecutor};
use holdpoint_actors::lease::Fence;
use holdpoint_core::attempt::Ending;
use holdpoint_core::json::Json;
use holdpoint_core::tool::SideEffect;
use ractor::{Actor, ActorRef};

use crate::bench::*;

const SOON: Duration = Duration::from_secs(20);

async fn executor() -> ActorRef<executor::Msg> {
    Actor::spawn(None, ToolExecutor, ()).await.unwrap().0
}

fn execution(
    tool: &std::sync::Arc<Scripted>,
    fence: Fence,
    reply: ractor::RpcReplyPort<CallEnd>,
) -> executor::Msg {
    let call = ToolCall {
        run_id: r(),
        step_id: "s".into(),
        args: Json::empty_object(),
        timeout: SOON,
        fence,
        started: Started::default(),
    };
    let tool = std::sync::Arc::clone(tool);
    executor::Msg::Execute(Box::new(Execution { name: tool.spec.name.clone(), tool, call, reply }))
}

fn fresh() -> Fence {
    Fence::stamped(monotonic(), SOON)
}

#[tokio::test]
async fn a_question_that_finds_nobody_was_not_delivered() {
    let (_cell, address) = Address::<executor::Msg>::vacant();
    let asked = address.ask(Duration::from_millis(10), executor::Msg::Observe).await;
    assert_eq!(asked.unwrap_err(), AskError::Down);
    let (cell, orphaned) = Address::<executor::Msg>::vacant();
    drop(cell);
    assert_eq!(
        orphaned.ask(SOON, executor::Msg::Observe).await.unwrap_err(),
        AskError::Down,
        "and nobody will come"
    );
}

#[tokio::test]
async fn a_question_that_finds_a_dead_actor_is_put_to_the_next_one() {
    let (cell, address) = Address::vacant();
    let dead = executor().await;
    cell.send_replace(Some(dead.clone()));
    dead.kill();
    dead.wait(None).await.unwrap();
    let asking = tokio::spawn(async move { address.ask(SOON, executor::Msg::Observe).await });
    tokio::task::yield_now().await;
    cell.send_replace(Some(executor().await));
    assert_eq!(asking.await.unwrap().unwrap().executed, 0);
}

#[tokio::test]
async fn an_actor_that_dies_with_a_question_or_never_answers_may_have_acted() {
    let (work, latch) = Scripted::latched("work", SideEffect::LocalMutation);
    let (cell, address) = Address::vacant();
    let actor = executor().await;
    cell.send_replace(Some(actor.clone()));
    let late = address.ask(Duration::from_millis(50), |reply| execution(&work, fresh(), reply)).await;
    assert_eq!(late.unwrap_err(), AskError::Late);
    latch.entered().await;
    let asking = {
        let work = std::sync::Arc::clone(&work);
        tokio::spawn(async move { address.ask(SOON, |reply| execution(&work, fresh(), reply)).await })
    };
    latch.entered().await;
    actor.kill();
    assert_eq!(asking.await.unwrap().unwrap_err(), AskError::Lost);
    assert_eq!(work.calls(), 2);
}

#[tokio::test]
async fn a_call_leaves_only_within_two_thirds_of_its_leases_time() {
    let tool = Scripted::new("work", SideEffect::LocalMutation);
    let (cell, address) = Address::vacant();
    cell.send_replace(Some(executor().await));
    let of_age =
        |seconds| Fence::stamped(monotonic() - Duration::from_secs(seconds), Duration::from_secs(300));
    for (fence, sent) in [(of_age(0), true), (of_age(199), true), (of_age(201), false), (of_age(301), false)]
    {
        let before = tool.calls();
        let end = address.ask(SOON, |reply| execution(&tool, fence, reply)).await.unwrap();
        assert_eq!(end.ending, if sent { Ending::Answered } else { Ending::NotSent });
        assert_eq!(tool.calls() - before, usize::from(sent));
    }
    let lost = of_age(0);
    lost.lose();
    assert!(!lost.is_held() && !lost.may_send());
    let renewed = of_age(250);
    assert!(renewed.is_held() && !renewed.may_send());
    renewed.restamp(monotonic());
    assert!(renewed.may_send());
    renewed.restamp(monotonic() - Duration::from_secs(290));
    assert!(renewed.may_send(), "an older stamp changes nothing");
    assert!(!of_age(301).is_held());
}
