//! The example of the approval channel, run to its end.

use std::sync::{Arc, Mutex};

#[path = "../../../examples/approver.rs"]
mod approver;

async fn told(reject: bool) -> String {
    let folder = tempfile::tempdir().unwrap();
    let out = Arc::new(Mutex::new(Vec::<u8>::new()));
    approver::run(Arc::<Mutex<Vec<u8>>>::clone(&out), &folder.path().join("a.db"), reject).await.unwrap();
    String::from_utf8(out.lock().unwrap().clone()).unwrap()
}

#[tokio::test]
async fn the_example_grants_through_the_channel_and_runs_once() {
    let told = told(false).await;
    for wanted in [
        "approval.requested",
        "[bot] > kind    publication\n",
        "[bot] > tool    publish_proposal\n",
        "[bot] > ----- end of approval ",
        "[bot] approve by chat:ada: HTTP 202 \"approved\"\n",
        "webhook.decision",
        "approval.decided",
        "is COMPLETED (goal_completed); publish_proposal ran 1 time(s)\n",
    ] {
        assert!(told.contains(wanted), "{wanted:?} is missing:\n{told}");
    }
}

#[tokio::test]
async fn the_example_refuses_through_the_channel_and_runs_nothing() {
    let told = told(true).await;
    for wanted in [
        "[bot] reject by chat:ada: HTTP 200 \"rejected\"\n",
        "not resumed: ",
        "is CANCELLED (approval_rejected); publish_proposal ran 0 time(s)\n",
    ] {
        assert!(told.contains(wanted), "{wanted:?} is missing:\n{told}");
    }
}
