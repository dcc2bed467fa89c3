//! Approving, rejecting, cancelling and verifying, by a script: nobody is at a terminal.

use std::process::Stdio;
use std::time::Duration;

use holdpoint::gate::Limits;
use serde_json::{Value, json};

use super::{Plan, Ran, Record, bare};

fn pay() -> Value {
    json!({"to": "alice", "amount": 20})
}

#[test]
fn an_approval_that_is_named_is_granted_and_the_run_goes_on_waiting() {
    let record = Record::waiting(pay());
    let id = record.approval("r1");
    let ran = record.run(&format!("approve r1 --approval {id} --by alice --note looks-right"));
    assert_eq!(ran.status, 0, "{}", ran.err);
    assert!(ran.out.contains("APPROVAL WAITING"), "the request is shown first: {}", ran.out);
    assert!(
        ran.out.contains(&format!("approval {id}: approved by alice\nrun r1: WAITING_FOR_APPROVAL\n")),
        "{}",
        ran.out
    );
    assert!(ran.err.contains("approval.decided"), "what was recorded goes to stderr: {}", ran.err);
    let shown = record.json("show r1");
    assert!(shown.get("waiting_approval").is_none());
    let approval = &shown["approvals"][0];
    assert_eq!((&approval["status"], &approval["decided_by"]), (&json!("approved"), &json!("alice")));
    assert_eq!(approval["note"], "looks-right");
    let again = record.run(&format!("approve r1 --approval {id}"));
    assert_eq!((again.status, again.code()), (1, "approval.not_pending"));
    let none = record.run("approve r1 --yes");
    assert_eq!((none.status, none.code()), (1, "approval.none_pending"));
    assert_eq!(record.run("verify").status, 0);
}

#[test]
fn a_rejection_ends_the_run_and_says_why() {
    let record = Record::waiting(pay());
    let ran = record.run("reject --yes --note no r1");
    assert_eq!(ran.status, 0, "{}", ran.err);
    assert!(ran.out.ends_with("rejected by tester\nrun r1: CANCELLED (approval_rejected)\n"), "{}", ran.out);
    let again = record.run("reject r1 --yes");
    assert_eq!((again.status, again.code()), (1, "run.not_waiting"));
}

#[test]
fn a_decision_in_json_prints_the_run_and_the_approval_and_nothing_else() {
    let record = Record::waiting(pay());
    let decided = record.json("approve r1 --yes");
    let keys: Vec<&String> = decided.as_object().unwrap().keys().collect();
    assert_eq!(keys, ["run", "approval"]);
    assert_eq!(decided["run"]["status"], "WAITING_FOR_APPROVAL");
    assert_eq!(decided["approval"]["status"], "approved");
    assert_eq!(decided["approval"]["hash"].as_str().unwrap().len(), 64);
    let cancelled = record.json("cancel r1 --note enough");
    assert_eq!(cancelled["run"]["reason"], "operator_cancelled");
    assert!(cancelled.get("approval").is_none());
}

#[test]
fn nothing_is_decided_where_nobody_confirms_it() {
    let record = Record::waiting(pay());
    let nobody = record.run("approve r1");
    assert_eq!((nobody.status, nobody.code()), (2, "usage.confirm"));
    assert!(nobody.out.contains("\"alice\""), "it was shown all the same: {}", nobody.out);
    // A pipe that says yes is not a person.
    let mut child = record
        .command("approve r1")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    std::io::Write::write_all(&mut child.stdin.take().unwrap(), b"y\n").unwrap();
    let piped = Ran::from(child.wait_with_output().unwrap());
    assert_eq!((piped.status, piped.code()), (2, "usage.confirm"));
    let json = record.run("--json approve r1");
    assert_eq!((json.status, json.code(), json.out.as_str()), (2, "usage.confirm", ""));
    assert!(record.approval("r1").len() == 32, "it still waits");
}

#[test]
fn somebody_must_be_named_as_the_one_who_decides() {
    let record = Record::waiting(pay());
    for line in ["approve r1 --yes", "reject r1 --yes"] {
        let ran = Ran::of(record.command(line).env_remove("USER"));
        assert_eq!((ran.status, ran.code()), (2, "usage.by_empty"), "{line}");
    }
    // A cancellation may be anonymous, as the reference has it.
    assert_eq!(Ran::of(record.command("cancel r1").env_remove("USER")).status, 0);
}

#[test]
fn of_several_approvals_none_is_guessed() {
    let record = Record::waiting(pay());
    record.tamper(
        "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 24)
         INSERT INTO approvals SELECT 'copy' || i, run_id, step_id, kind, capability_json, presentation_json,
             request_json, hash, status, created_at, decided_at, decided_by, note, expires_at
         FROM approvals, n WHERE run_id = 'r1'",
    );
    let ran = record.run("approve r1 --yes");
    assert_eq!((ran.status, ran.code()), (1, "approval.ambiguous"));
    assert!(ran.err.contains("25 approvals") && ran.err.contains("copy19 and 5 more"), "{}", ran.err);
    assert_eq!(record.json("runs")["runs"][0].get("pending_approval_id"), None);
    let page = record.json("show r1 --limit 2");
    assert_eq!((page["approvals"].as_array().unwrap().len(), &page["approvals_total"]), (2, &json!(25)));
    assert!(page.get("waiting_approval").is_none());
    let text = record.run("show r1 --limit 2").out;
    assert_eq!(text.matches("APPROVAL WAITING").count(), 2, "{text}");
    assert!(text.contains("waiting approvals: … 23 more; --offset 2 shows them"), "{text}");
    assert_eq!(record.run("approve r1 --approval copy24").status, 0);
}

#[test]
fn an_approval_that_was_altered_can_t_be_decided() {
    let record = Record::waiting(pay());
    record.tamper("UPDATE approvals SET request_json = replace(request_json, '20', '2000000')");
    let ran = record.run("approve r1 --yes");
    assert_eq!((ran.status, ran.code()), (1, "approval.hash_mismatch"));
    assert!(ran.out.contains("2000000"), "{}", ran.out);
    assert_eq!(record.run("cancel r1").status, 0);
}

#[test]
fn a_decision_that_comes_too_late_expires_the_approval() {
    let limits = Limits::default().approval_ttl(Duration::from_secs(3_600));
    let record = Record::of(vec![("r1", "pay", Plan::Pays(pay()))], limits);
    let shown = record.run("show r1").out;
    assert!(shown.contains("APPROVAL EXPIRED") && !shown.contains("decide with"), "{shown}");
    let ran = record.run("approve r1 --yes");
    assert_eq!((ran.status, ran.code()), (1, "approval.expired"));
    assert!(ran.out.contains("expired   2026-10-01 10:00:"), "{}", ran.out);
    assert!(ran.err.contains("run.finished"), "what was recorded goes to stderr: {}", ran.err);
    assert_eq!(record.json("show r1")["run"]["reason"], "approval_expired");
}

#[test]
fn a_run_is_cancelled_once() {
    let record =
        Record::of(vec![("r1", "read", Plan::Reads), ("r2", "pay", Plan::Pays(pay()))], Limits::default());
    let ran = record.run("cancel r2 --by alice --note enough");
    assert_eq!((ran.status, ran.out.as_str()), (0, "run r2: CANCELLED (operator_cancelled)\n"));
    for line in ["cancel r1", "cancel r2"] {
        let ran = record.run(line);
        assert_eq!((ran.status, ran.code()), (1, "run.finished"), "{line}");
    }
    let shown = record.run("show r2").out;
    assert!(!shown.contains("APPROVAL WAITING"), "nobody can decide it any more: {shown}");
}

#[test]
fn what_does_not_exist_is_named() {
    let record = Record::waiting(pay());
    for (line, code) in [
        ("show nope", "run.not_found"),
        ("events nope", "run.not_found"),
        ("approve nope --yes", "run.not_found"),
        ("cancel nope", "run.not_found"),
        ("approve r1 --approval nope", "approval.not_found"),
    ] {
        let ran = record.run(line);
        assert_eq!((ran.status, ran.code(), ran.out.as_str()), (1, code, ""), "{line}");
        assert!(ran.err.contains(&format!("more: holdpoint explain {code}")), "{}", ran.err);
    }
}

#[test]
fn an_intact_chain_is_told_with_its_head() {
    let record = Record::waiting(pay());
    let found = record.json("verify");
    let head = &found["head"];
    assert_eq!(
        (&found["intact"], &found["from"], &found["checked"]),
        (&json!(true), &json!(1), &head["seq"])
    );
    assert_eq!(found["hash"], head["hash"]);
    let keys: Vec<&String> = found.as_object().unwrap().keys().collect();
    assert_eq!(keys, ["head", "from", "to", "hash", "checked", "intact"]);
    let (seq, hash) = (head["seq"].as_i64().unwrap(), head["hash"].as_str().unwrap());
    let text = record.run("verify");
    assert_eq!(
        text.out,
        format!("head      {seq}:{hash}\nintact    {seq} events, 1 to {seq}\nchecked   {seq}:{hash}\n")
    );
    let kept = record.json(&format!("verify --from 2 --head {seq}:{hash}"));
    assert_eq!(kept["kept_head"], json!({"seq": seq, "hash": hash, "found": hash, "matches": true}));
    assert_eq!(record.json(&format!("verify --to {seq}"))["requested"], json!({"to": seq, "reached": true}));
    let wrong = record.run(&format!("verify --head 2:{hash}"));
    assert_eq!((wrong.status, wrong.code()), (1, "chain.head_mismatch"));
    for line in [format!("verify --to {}", seq + 1), format!("verify --head {}:{hash}", seq + 1)] {
        let ran = record.run(&line);
        assert_eq!((ran.status, ran.code()), (1, "chain.not_reached"), "{line}");
        assert!(ran.out.contains("intact"), "{line}: {}", ran.out);
    }
}

#[test]
fn an_altered_a_deleted_and_a_swapped_event_break_the_chain() {
    for (sql, seq) in [
        ("UPDATE events SET payload_json = '{}' WHERE seq = 3", 3),
        ("DELETE FROM events WHERE seq = 3", 4),
        (
            "UPDATE events SET seq = -1 WHERE seq = 3; UPDATE events SET seq = 3 WHERE seq = 4; UPDATE events SET seq = 4 WHERE seq = -1",
            3,
        ),
    ] {
        let record = Record::waiting(pay());
        record.tamper(sql);
        let ran = record.run("verify");
        assert_eq!((ran.status, ran.code()), (1, "chain.broken"), "{sql}");
        assert!(ran.out.contains(&format!("broken    at event {seq}:")), "{sql}: {}", ran.out);
        let json = record.run("--json verify");
        assert_eq!(json.status, 1);
        let found: Value = serde_json::from_str(&json.out).unwrap();
        assert_eq!((&found["intact"], &found["break"]["seq"]), (&json!(false), &json!(seq)), "{sql}");
    }
}

#[test]
fn a_tail_that_was_cut_off_shows_only_against_a_kept_head() {
    let record = Record::waiting(pay());
    let head = record.json("verify")["head"].clone();
    record.tamper("DELETE FROM events WHERE seq = (SELECT MAX(seq) FROM events)");
    assert_eq!(record.run("verify").status, 0);
    let kept = format!("verify --head {}:{}", head["seq"], head["hash"].as_str().unwrap());
    assert_eq!(record.run(&kept).code(), "chain.not_reached");
}

#[test]
fn a_head_that_is_none_is_refused_before_anything_is_read() {
    let record = Record::waiting(pay());
    for flag in ["--head", "--since"] {
        for head in ["4:ab", "4", "4:deadbeef…"] {
            let ran = record.run(&format!("verify {flag} {head}"));
            assert_eq!((ran.status, ran.out.as_str()), (2, ""), "{flag} {head}: {}", ran.err);
            assert!(ran.err.contains("64 hex digits"), "{}", ran.err);
        }
    }
}

#[test]
fn since_a_trusted_head_only_what_is_new_is_checked() {
    let record = Record::waiting(pay());
    let event = |seq: i64| {
        let checked = record.json(&format!("verify --to {seq}"));
        format!("{seq}:{}", checked["hash"].as_str().unwrap())
    };
    let (second, fourth) = (event(2), event(4));
    record.tamper("UPDATE events SET payload_json = '{\"x\":1}' WHERE seq = 2");
    assert_eq!(record.run("verify").code(), "chain.broken");
    let verified = record.json(&format!("verify --since {fourth}"));
    assert_eq!((&verified["from"], &verified["kept_head"]["matches"]), (&4.into(), &true.into()));
    assert_eq!(record.run(&format!("verify --since {second}")).code(), "chain.broken");
    let other = format!("verify --since 4:{}", "ab".repeat(32));
    assert_eq!(record.run(&other).code(), "chain.head_mismatch");
    assert_eq!(record.run(&format!("verify --since {fourth} --from 1")).status, 2);
}

#[test]
fn the_database_comes_from_the_flag_else_from_the_environment() {
    let record = Record::waiting(pay());
    let path = record.path.to_str().unwrap();
    for line in [format!("--db {path} runs"), format!("runs --db {path}")] {
        let ran = Ran::of(bare(&line).env("HOLDPOINT_DB", "/nonexistent"));
        assert_eq!(ran.status, 0, "{line}: {}", ran.err);
    }
    assert_eq!(Ran::of(bare("runs").env("AGENTRT_DB", path)).status, 0);
    assert_eq!(Ran::of(bare("runs").env("HOLDPOINT_DB", "").env("AGENTRT_DB", path)).status, 0);
    let other = Ran::of(bare("runs").env("HOLDPOINT_DB", "/nonexistent").env("AGENTRT_DB", path));
    assert_eq!(other.code(), "store.missing");
    let none = Ran::of(&mut bare("runs"));
    assert_eq!((none.status, none.code()), (2, "usage.no_database"));
}

#[test]
fn a_run_with_a_damaged_row_is_still_shown_and_cancelled() {
    for sql in [
        "UPDATE steps SET decision_json = '{'",
        "UPDATE approvals SET request_json = '{'",
        "UPDATE approvals SET created_at = 'yesterday'",
    ] {
        let record = Record::waiting(pay());
        record.tamper(sql);
        for line in ["runs", "show r1", "--json show r1", "events r1"] {
            let ran = record.run(line);
            assert_eq!(ran.status, 0, "{sql}: {line}: {}", ran.err);
        }
        let ran = record.run("cancel r1");
        assert_eq!(
            (ran.status, ran.out.as_str()),
            (0, "run r1: CANCELLED (operator_cancelled)\n"),
            "{sql}: {}",
            ran.err
        );
    }
}
