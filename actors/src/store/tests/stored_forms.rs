//! What stands in the tables after a transition, byte for byte.

use holdpoint_core::attempt::Ending;
use holdpoint_core::chain::{ChainedEvent, link};
use holdpoint_core::ids::{RunId, SpecHash, StepId};
use holdpoint_core::transition::Durability;

use super::support::*;
use crate::store::{OperatorStore, ReadError};

#[tokio::test]
async fn a_call_that_ran_is_stored_as_the_specification_says() {
    let bench = Bench::start().await;
    let mut call = executing("r1", "me/1");
    bench.intent(call.take(Durability::Synced)).await;
    let db = bench.other();
    assert_eq!(
        rows(&db, "SELECT status, lease_owner, lease_expires_at, step_count FROM runs"),
        ["RUNNING|me/1|2026-10-01T09:00:30Z|1"]
    );
    finish(&mut call, at(3));
    call.keep_ending(StepId::from("r1-s0"), Ending::Answered);
    bench.outcome(call.take(Durability::Synced)).await;

    let hash = spec("pay").recorded().hash;
    assert_eq!(
        rows(&db, "SELECT * FROM runs"),
        [concat!(
            r#"r1|a goal|COMPLETED|goal_completed|done|{"max_steps":50,"max_consecutive_tool_failures":3,"#,
            r#""loop_threshold":3,"approval_ttl":60000000000}|1|2026-10-01T09:00:00Z|2026-10-01T09:00:00Z|"#,
            r#"2026-10-01T09:00:03Z|{"paid": true}|0|0|0|0|0|2000||"#
        )]
    );
    assert_eq!(
        rows(&db, "SELECT * FROM steps"),
        [format!(
            concat!(
                r#"r1-s0|r1|0|done|{{"kind":"tool_call","tool":"pay","args":{{"to":"\u003ca\u0026b\u003e","n":1.50}}}}|"#,
                r#"{{"outcome":"allow","reason":"fine"}}|"#,
                r#"{{"kind":"tool_result","content":{{"paid":true}},"summary":"paid","content_hash":"{content}"}}|"#,
                r#"{content}|2026-10-01T09:00:01Z|2026-10-01T09:00:03Z|{hash}|"#
            ),
            content = text(&db, "SELECT observation_hash FROM steps"),
            hash = hash,
        )]
    );
    assert_eq!(
        rows(&db, "SELECT spec_json FROM tool_specs"),
        [concat!(
            r#"{"description":"does \u003cpay\u003e \u0026 more","input_schema":{"type":"object"},"name":"pay","#,
            r#""side_effect":"remote_mutation","timeout":30000000000}"#
        )]
    );
    assert_eq!(rows(&db, "SELECT * FROM holdpoint_endings"), ["r1-s0|answered"]);
    assert_eq!(
        rows(&db, "SELECT seq, step_id, at, type FROM events ORDER BY seq"),
        [
            "1||2026-10-01T09:00:00Z|run.created",
            "2||2026-10-01T09:00:00Z|run.started",
            "3|r1-s0|2026-10-01T09:00:01Z|step.started",
            "4|r1-s0|2026-10-01T09:00:01Z|step.decided",
            "5|r1-s0|2026-10-01T09:00:01Z|step.policy",
            "6|r1-s0|2026-10-01T09:00:01Z|step.tool_started",
            "7|r1-s0|2026-10-01T09:00:03Z|step.tool_finished",
            "8||2026-10-01T09:00:03Z|run.finished",
        ]
    );
}

#[tokio::test]
async fn a_waiting_run_holds_no_lease_and_its_approval_is_stored_whole() {
    let bench = Bench::start().await;
    let (mut call, approval) = waiting("r1");
    bench.intent(call.take(Durability::Synced)).await;
    let db = bench.other();
    assert_eq!(
        rows(&db, "SELECT status, lease_owner, lease_expires_at, finished_at FROM runs"),
        ["WAITING_FOR_APPROVAL|||"]
    );
    let row = rows(&db, "SELECT * FROM approvals");
    let expected = format!(
        concat!(
            r#"r1-a0|r1|r1-s0|remote_mutation|{{"tool":"pay"}}|{{"tool":"pay"}}|"#,
            r#"{{"run_id":"r1","step_id":"r1-s0","spec":{{"name":"pay","description":"does \u003cpay\u003e \u0026 more","#,
            r#""input_schema":{{"type":"object"}},"side_effect":"remote_mutation","timeout":30000000000}},"#,
            r#""args":{{"to":"\u003ca\u0026b\u003e","n":1.50}}}}|{hash}|pending|2026-10-01T09:00:02Z||||2026-10-01T09:01:02Z"#
        ),
        hash = approval.hash,
    );
    assert_eq!(row, [expected]);
}

#[tokio::test]
async fn what_was_written_is_read_back_equal() {
    let bench = Bench::start().await;
    let (mut call, approval) = waiting("r1");
    bench.intent(call.take(Durability::Synced)).await;
    let (run, steps, approvals) = bench
        .client
        .read(|reader| {
            let id = RunId::from("r1");
            Ok((reader.run(&id)?, reader.steps(&id)?, reader.approvals(&id)?))
        })
        .await
        .unwrap();
    assert_eq!(run.as_ref(), Some(call.run()));
    assert_eq!(steps.len(), 1);
    assert_eq!((&steps[0].status, &steps[0].policy), (&call.steps()[0].status, &call.steps()[0].policy));
    assert_eq!(steps[0].decode_error, None);
    assert!(approvals[0].is_intact());
    assert_eq!((&approvals[0].id, &approvals[0].hash), (&approval.id, &approval.hash));
}

#[tokio::test]
async fn the_stored_hashes_chain_across_runs() {
    let bench = Bench::start().await;
    bench.intent(begun("r1", Durability::Synced)).await;
    bench.intent(begun("r2", Durability::Written)).await;
    bench.outcome(executing("r3", "me").take(Durability::Synced)).await;
    let db = bench.other();
    let mut statement = db
        .prepare("SELECT seq, run_id, step_id, at, type, payload_json, hash FROM events ORDER BY seq")
        .unwrap();
    let mut rows = statement.query([]).unwrap();
    let (mut previous, mut count) = (String::new(), 0);
    while let Some(row) = rows.next().unwrap() {
        count += 1;
        let text = |i: usize| row.get::<_, String>(i).unwrap();
        let (run_id, step_id, at, kind, payload) = (text(1), text(2), text(3), text(4), text(5));
        let event = ChainedEvent {
            seq: row.get(0).unwrap(),
            run_id: &run_id,
            step_id: &step_id,
            at: &at,
            kind: &kind,
            payload_json: &payload,
        };
        assert_eq!(event.seq, count);
        previous = link(&previous, &event);
        assert_eq!(text(6), previous);
    }
    assert_eq!(count, 10);
    let report = bench.client.read(|reader| reader.verify(0, 0)).await.unwrap();
    assert_eq!((report.checked, report.hash, report.broken), (10, previous, None));
}

#[tokio::test]
async fn the_chain_goes_on_over_what_another_connection_appended() {
    let bench = Bench::start().await;
    let (mut call, approval) = waiting("r1");
    bench.intent(call.take(Durability::Synced)).await;
    let run = RunId::from("r1");
    let answer = super::decisions::approve(&run, &approval);
    let events = bench.operator().decide(&answer, at(5)).unwrap();
    assert_eq!(events.iter().map(|event| event.seq).collect::<Vec<_>>(), [7]);
    let applied = bench.intent(begun("r2", Durability::Synced)).await;
    assert_eq!(applied.events().map(|event| event.seq).collect::<Vec<_>>(), [8, 9]);
    let report = bench.client.read(|reader| reader.verify(0, 0)).await.unwrap();
    assert_eq!((report.checked, report.broken), (9, None));
}

#[tokio::test]
async fn the_number_of_a_deleted_event_is_never_given_again() {
    let bench = Bench::start().await;
    bench.intent(begun("r1", Durability::Synced)).await;
    bench.other().execute("DELETE FROM events WHERE seq = 2", []).unwrap();
    let applied = bench.intent(begun("r2", Durability::Synced)).await;
    assert_eq!(applied.events().next().unwrap().seq, 3);
    let report = bench.client.read(|reader| reader.verify(0, 0)).await.unwrap();
    assert_eq!(report.broken.unwrap().seq, 3);
}

#[tokio::test]
async fn altered_deleted_and_long_events_are_found_where_they_stand() {
    let bench = Bench::start().await;
    for i in 0..100 {
        bench.intent(begun(&format!("r{i}"), Durability::Written)).await;
    }
    let db = bench.other();
    // Longer than what is held whole, longer than a chunk, and not UTF-8: hashed as the bytes that they are.
    db.execute("UPDATE events SET payload_json = CAST(zeroblob(2000000) AS TEXT) WHERE seq = 150", [])
        .unwrap();
    let verify = |from, to| bench.client.read(move |reader| reader.verify(from, to));
    let report = verify(0, 149).await.unwrap();
    assert_eq!((report.from, report.to, report.checked, report.broken), (1, 149, 149, None));
    let broken = verify(0, 0).await.unwrap().broken.unwrap();
    assert_eq!(broken.seq, 150);
    // The same long event with the hash that it has now is whole again, up to the one after it.
    db.execute("UPDATE events SET hash = ? WHERE seq = 150", [&broken.expected]).unwrap();
    assert_eq!(verify(0, 0).await.unwrap().broken.unwrap().seq, 151);
    db.execute("DELETE FROM events WHERE seq = 20", []).unwrap();
    assert_eq!(verify(0, 0).await.unwrap().broken.unwrap().seq, 21);
    // A later start trusts what stands before it.
    assert_eq!(verify(22, 140).await.unwrap().broken, None);
    assert_eq!(verify(150, 100).await.unwrap().checked, 0);
}

#[tokio::test]
async fn heads_and_hashes_can_be_asked_for() {
    let bench = Bench::start().await;
    let (head, none) = bench.client.read(|r| Ok((r.head()?, r.event_hash(1)?))).await.unwrap();
    assert_eq!((head.seq, head.hash.as_str(), none), (0, "", None));
    bench.intent(begun("r1", Durability::Synced)).await;
    let (head, last) = bench.client.read(|r| Ok((r.head()?, r.event_hash(2)?))).await.unwrap();
    assert_eq!((head.seq, Some(head.hash)), (2, last));
}

#[tokio::test]
async fn a_spec_that_was_altered_is_not_given_out() {
    let bench = Bench::start().await;
    bench.intent(begun("r1", Durability::Synced)).await;
    let kept = spec("pay").recorded();
    let wanted = kept.hash.clone();
    assert_eq!(bench.client.read(move |r| r.spec(&wanted)).await.unwrap(), Some(kept.clone()));
    bench.other().execute("UPDATE tool_specs SET spec_json = '{}'", []).unwrap();
    let wanted = kept.hash.clone();
    let refused = bench.client.read(move |r| r.spec(&wanted)).await.unwrap_err();
    assert!(matches!(refused, ReadError::AlteredSpec { .. }), "{refused}");
    assert_eq!(bench.client.read(|r| r.spec(&SpecHash::from("none"))).await.unwrap(), None);
}

#[tokio::test]
async fn a_damaged_row_says_so_and_fails_nothing() {
    let bench = Bench::start().await;
    let (mut call, _approval) = waiting("r1");
    bench.intent(call.take(Durability::Synced)).await;
    let db = bench.other();
    db.execute("UPDATE steps SET decision_json = '{', started_at = 'noon', status = 'odd'", []).unwrap();
    db.execute("UPDATE approvals SET request_json = X'ff', expires_at = 7", []).unwrap();
    let (steps, approvals) = bench
        .client
        .read(|reader| {
            let id = RunId::from("r1");
            Ok((reader.steps(&id)?, reader.approvals(&id)?))
        })
        .await
        .unwrap();
    let damage = steps[0].decode_error.clone().unwrap();
    assert!(
        damage.contains("decision:") && damage.contains("started_at:") && damage.contains("status:"),
        "{damage}"
    );
    assert_eq!(steps[0].decision, None);
    assert!(steps[0].policy.is_some());
    let damage = approvals[0].decode_error.clone().unwrap();
    assert!(damage.contains("request:") && damage.contains("expires_at:"), "{damage}");
    assert!(!approvals[0].is_intact());
    db.execute("UPDATE runs SET limits_json = 'x'", []).unwrap();
    let refused = bench.client.read(|r| r.run(&RunId::from("r1"))).await.unwrap_err();
    assert!(matches!(refused, ReadError::DamagedRun { .. }), "{refused}");
}

#[tokio::test]
async fn a_file_without_our_own_tables_has_no_endings() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("theirs.db");
    super::schema::as_the_reference_makes_it(&path);
    let mut store = OperatorStore::open(&path, true).unwrap();
    assert_eq!(store.read(|r| r.ending(&StepId::from("s"))).unwrap(), None);
}

#[tokio::test]
async fn totals_saturate_instead_of_becoming_floats() {
    let bench = Bench::start().await;
    let mut call = executing("r1", "me");
    bench.intent(call.take(Durability::Synced)).await;
    bench.other().execute("UPDATE runs SET active_ms = 9223372036854775806", []).unwrap();
    finish(&mut call, at(3));
    bench.outcome(call.take(Durability::Synced)).await;
    assert_eq!(number(&bench.other(), "SELECT active_ms FROM runs"), i64::MAX);
}
