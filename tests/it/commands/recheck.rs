//! `recheck` on what a real proxy recorded: its exit statuses, its text, its JSON, and that it writes nothing.
//!
//! What a person is asked is bound by an approval's hash. When other words are put to them, grants that were given before an
//! update do not count after it; the record of a released version shows that here first.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt as _;

use serde_json::{Value, json};

use super::released::{record_of, released};
use super::servers::Gate;
use super::serving::{Host, pinned};
use super::{Ran, Record, assert_harmless, bare};

/// A gate whose payments wait, whose refunds are refused, and in front of which a host can sit.
fn gate() -> Gate {
    let mut gate = pinned();
    gate.config["servers"][0]["rules"]["refund"] = json!({"side_effect": "destructive"});
    gate.save();
    gate
}

/// Says yes to what a run waits for.
fn approve(gate: &Gate, run: &str) {
    let approved =
        Ran::of(&mut bare(&format!("--db {} approve {run} --yes", gate.path("gate.db").display())));
    assert_eq!(approved.status, 0, "{}", approved.err);
}

/// The runs, newest first.
fn runs(gate: &Gate) -> Vec<String> {
    let listed = Ran::of(&mut bare(&format!("--db {} --json runs", gate.path("gate.db").display())));
    let listed: Value = serde_json::from_str(&listed.out).unwrap();
    listed["runs"].as_array().unwrap().iter().map(|run| run["id"].as_str().unwrap().to_owned()).collect()
}

/// A read that ran, a payment that was approved and collected, a refund that was denied.
fn recorded() -> Gate {
    let gate = gate();
    let mut host = Host::start(&gate);
    assert!(host.call("shop_balance", json!({"account": "main"})).contains("main"));
    let payment = json!({"to": "kim", "amount": 5});
    assert!(host.call("shop_pay", payment.clone()).starts_with("PENDING_APPROVAL: "));
    approve(&gate, &runs(&gate)[0]);
    assert_eq!(host.call("shop_pay", payment), "paid 5 to kim");
    assert!(host.call("shop_refund", json!({"payment": "p1"})).starts_with("DENIED: "));
    assert_eq!(host.end(None).0, 0);
    gate
}

/// Writes another configuration beside the gate's own.
fn other(gate: &Gate, change: impl FnOnce(&mut Value)) -> String {
    let mut config = gate.config.clone();
    change(&mut config);
    let path = gate.path("other.json");
    fs::write(&path, config.to_string()).unwrap();
    fs::set_permissions(&path, Permissions::from_mode(0o600)).unwrap();
    path.to_str().unwrap().to_owned()
}

/// What the gate's folder holds of the record. An empty log is none: a reader makes one, and the last writer to close
/// takes it away.
fn bytes(gate: &Gate) -> Vec<Option<Vec<u8>>> {
    let read = |name| fs::read(gate.path(name)).ok().filter(|bytes| !bytes.is_empty());
    ["gate.db", "gate.db-wal"].map(read).to_vec()
}

/// Ids and numbers that differ from one run of the tests to the next, by what they are.
fn without_ids(gate: &Gate, text: &str) -> String {
    let mut text = text.to_owned();
    for (run, name) in runs(gate).iter().zip(["<refund>", "<payment>", "<balance>"]) {
        text = text.replace(run.as_str(), name);
    }
    let id = text.split("agentrt-proxy/sha256:").nth(1).map(|rest| rest[..64].to_owned());
    text.replace(&id.unwrap_or_default(), "<hash>")
}

#[test]
fn the_configuration_that_decided_decides_the_same_again() {
    let gate = recorded();
    let before = bytes(&gate);
    let ran = gate.run("recheck");
    assert_eq!((ran.status, ran.err.as_str()), (0, ""), "{}", ran.out);
    insta::assert_snapshot!(without_ids(&gate, &ran.out), @r#"
    run <refund> FAILED: 0 of 1 re-checked evaluations differ; policy unchanged: "agentrt-proxy/sha256:<hash>"; recorded specs
    same      step 0 seq 25 shop_refund: deny

    run <payment> COMPLETED: 0 of 2 re-checked evaluations differ; policy unchanged: "agentrt-proxy/sha256:<hash>"; recorded specs
    same      step 0 seq 13 shop_pay: require_approval
    same      step 0 seq 17 shop_pay (on resume): require_approval

    run <balance> COMPLETED: 0 of 1 re-checked evaluations differ; policy unchanged: "agentrt-proxy/sha256:<hash>"; recorded specs
    same      step 0 seq 5 shop_balance: allow

    3 runs re-checked under agentrt-proxy/sha256:<hash>: 4 decisions re-checked, 0 not re-checkable and skipped; 0 runs differ
    Only the policy was asked again. What is decided before it is asked (duplicates, repeat windows, what
    waits or blocks, arguments that don't fit) was not.
    "#);
    assert_eq!(bytes(&gate), before, "nothing is written");
    let reports: Value = serde_json::from_str(&gate.run("--json recheck").out).unwrap();
    let reports = reports.as_array().unwrap();
    assert_eq!(reports.len(), 3);
    assert!(
        reports.iter().all(|report| report["same"] == true && report["identity"] == "unchanged"),
        "{reports:?}"
    );
    assert_eq!(
        (&reports[1]["rechecked"], &reports[1]["evaluations"][1]["on_resume"]),
        (&json!(2), &json!(true))
    );
    let newest: Value = serde_json::from_str(&gate.run("--json recheck --limit 1").out).unwrap();
    assert_eq!((newest.as_array().unwrap().len(), &newest[0]["run_id"]), (1, &json!(runs(&gate)[0])));
}

#[test]
fn a_changed_policy_names_the_decisions_that_it_denies_now() {
    let mut gate = recorded();
    gate.config["policy"] = json!({"remote_mutation": "deny"});
    gate.save();
    let ran = gate.run("recheck");
    assert_eq!((ran.status, ran.code()), (1, "recheck.differs"), "{}", ran.out);
    assert_eq!(ran.out.matches("DIFFERENT").count(), 2, "{}", ran.out);
    let why = "shop_pay: require_approval -> deny: side effect remote_mutation is deny by policy\n";
    assert!(
        ran.out.contains(why) && ran.out.contains("shop_pay (on resume): require_approval -> deny"),
        "{}",
        ran.out
    );
    assert!(
        ran.out.contains("policy changed: recorded") && ran.out.contains("; 1 run differs\n"),
        "{}",
        ran.out
    );
    let read = runs(&gate).pop().unwrap();
    let ran = gate.run(&format!("recheck --run {read}"));
    assert_eq!(ran.status, 0, "the read is decided as before: {}", ran.out);
    assert!(
        ran.out.contains("shop_balance: allow\n") && ran.out.contains("\n1 run re-checked under "),
        "{}",
        ran.out
    );
}

#[test]
fn the_tools_of_now_make_other_approvals_once_a_description_changed() {
    let mut gate = recorded();
    gate.config["servers"][0]["rules"]["pay"]["description"] = json!("Send money, in the operator's words.");
    gate.save();
    assert_eq!(gate.run("recheck").status, 0, "the recorded specs are as they were");
    let before = bytes(&gate);
    let ran = gate.run("--json recheck --current-tools");
    assert_eq!((ran.status, ran.code()), (1, "recheck.differs"), "{}", ran.err);
    assert_eq!(bytes(&gate), before, "nothing is written");
    let reports: Value = serde_json::from_str(&ran.out).unwrap();
    let paid = &reports[1];
    assert_eq!((&paid["spec_source"], &paid["identity"]), (&json!("current"), &json!("unchanged")));
    assert_eq!(paid["evaluations"][0]["detail"], "it asks for another approval: another tool spec");
    assert_eq!(reports[2]["evaluations"][0]["result"], "same");
    assert!(ran.err.contains("shop: registered pay as shop_pay"), "what was loaded is told: {}", ran.err);

    gate.config["servers"][0]["rules"]["pay"].as_object_mut().unwrap().remove("description");
    gate.save();
    assert_eq!(gate.run("recheck --current-tools").status, 0, "the same tools make the same approvals");
    gate.config["servers"][0]["command"] =
        json!([env!("CARGO_BIN_EXE_holdpoint"), "payment-server", "--ledger", gate.path("gate.json")]);
    gate.save();
    let ran = gate.run("recheck --current-tools");
    assert_eq!((ran.status, ran.code()), (1, "config.reach"), "{}", ran.err);
}

#[test]
fn a_repeat_of_an_unknown_outcome_is_decided_the_same_again() {
    let mut gate = gate();
    gate.config["servers"][0]["rules"]["pay"]["outcome"] = json!("allow");
    gate.save();
    let mut host = Host::start(&gate);
    let payment = json!({"to": "kim", "amount": 5, "mode": "exit"});
    assert!(host.call("shop_pay", payment.clone()).starts_with("UNKNOWN_OUTCOME: "));
    let ran = gate.run("recheck");
    assert_eq!(ran.status, 0, "while it waits: {}{}", ran.out, ran.err);
    assert!(ran.out.contains("note: the run is WAITING_FOR_APPROVAL"), "{}", ran.out);
    assert_eq!(
        ran.out.matches("\nsame ").count(),
        2,
        "the attempt, and the question whether to repeat it: {}",
        ran.out
    );
    approve(&gate, &runs(&gate)[0]);
    assert!(host.call("shop_pay", payment).starts_with("UNKNOWN_OUTCOME: "), "it ends in the same way again");
    host.end(None);
    let ran = gate.run("recheck");
    assert_eq!(ran.status, 0, "{}{}", ran.out, ran.err);
    assert!(ran.out.contains("(on resume): require_approval\n"), "{}", ran.out);

    // A policy under which nothing repeats without a person is one more question, not a difference of this one.
    let waits =
        other(&gate, |config| config["servers"][0]["rules"]["pay"]["outcome"] = json!("require_approval"));
    let ran = gate.run(&format!("--json recheck --policy {waits}"));
    let listing: Value = serde_json::from_str(&ran.out).unwrap();
    assert_eq!((ran.status, &listing["totals"]["different"]), (1, &json!(1)), "{}", ran.out);
    assert_eq!(listing["changes"][0]["recorded"], "allow");
}

#[test]
fn another_configuration_shows_what_it_would_have_decided() {
    let gate = recorded();
    let mut host = Host::start(&gate);
    host.call("shop_balance", json!({"account": "second"}));
    assert_eq!(host.end(None).0, 0);
    let before = bytes(&gate);

    let as_it_is = other(&gate, |config| config["hold"] = json!("1s"));
    let ran = gate.run(&format!("recheck --policy {as_it_is}"));
    assert_eq!((ran.status, ran.err.as_str()), (0, ""), "{}", ran.out);
    assert!(
        ran.out.starts_with(
            "other.json over session test: 5 decisions in 4 runs re-checked, 5 as recorded, 0 otherwise\n"
        ),
        "{}",
        ran.out
    );

    let changed = other(&gate, |config| {
        config["servers"][0]["rules"]["pay"]["outcome"] = json!("allow");
        config["servers"][0]["rules"]["refund"]["outcome"] = json!("require_approval");
        config["servers"][0]["rules"].as_object_mut().unwrap().remove("balance");
        // What it would be served with is nothing to a re-check.
        config["database"] = json!("elsewhere.db");
        config["session"] = json!("elsewhere");
    });
    let ran = gate.run(&format!("recheck --policy {changed}"));
    assert_eq!((ran.status, ran.code()), (1, "recheck.differs"), "{}", ran.out);
    assert!(ran.err.contains("would have decided 5 of 5 decisions otherwise"), "{}", ran.err);
    let newest = runs(&gate).remove(0);
    let text = ran.out.replace(&newest, "<balance again>");
    let ids = runs(&gate)[1..].to_vec();
    let text = ids
        .iter()
        .zip(["<refund>", "<payment>", "<balance>"])
        .fold(text, |text, (id, name)| text.replace(id, name));
    let kept: Vec<&str> =
        text.lines().filter(|line| !line.starts_with("policy ")).map(str::trim_end).collect();
    insta::assert_snapshot!(kept.join("\n"), @r#"
    CHANGE    TOOL          RECORDED          NOW               DECISIONS  RUNS  WHY                                                        FOR EXAMPLE
    looser    shop_pay      require_approval  allow             2          1     the operator's rule for shop_pay says allow                <payment>
    looser    shop_refund   deny              require_approval  1          1     the operator's rule for shop_refund says require_approval  <refund>
    stricter  shop_balance  allow             deny              2          2     tool "shop_balance" is not offered                         <balance again> <balance>

    other.json over session test: 5 decisions in 4 runs re-checked, 0 as recorded, 5 otherwise
    3 looser, 2 stricter, 0 with another approval
    Only the policy was asked again. What is decided before it is asked (duplicates, repeat windows, what
    waits or blocks, arguments that don't fit) was not.
    "#);
    assert_harmless(&ran.out);
    assert_eq!(bytes(&gate), before, "nothing is written");
    assert!(!gate.path("elsewhere.db").exists());

    let listing: Value =
        serde_json::from_str(&gate.run(&format!("--json recheck --policy {changed}")).out).unwrap();
    assert_eq!(listing["session"], "test");
    let totals = &listing["totals"];
    assert_eq!((&totals["runs"], &totals["looser"], &totals["stricter"]), (&json!(4), &json!(3), &json!(2)));
    let paid = &listing["changes"][0];
    assert_eq!(
        (&paid["tool"], &paid["decisions"], &paid["runs"]),
        (&json!("shop_pay"), &json!(2), &json!(1))
    );
    assert_eq!(paid["examples"], json!([ids[1]]));
    let only: Value =
        serde_json::from_str(&gate.run(&format!("--json recheck --policy {changed} --limit 1")).out).unwrap();
    assert_eq!((&only["totals"]["runs"], &only["changes"][0]["tool"]), (&json!(1), &json!("shop_balance")));
}

#[test]
fn one_run_under_another_configuration_is_shown_line_by_line() {
    let mut gate = recorded();
    let denied = other(&gate, |config| config["policy"] = json!({"remote_mutation": "deny"}));
    let payment = runs(&gate)[1].clone();
    let ran = gate.run(&format!("recheck --policy {denied} --run {payment}"));
    assert_eq!((ran.status, ran.code()), (1, "recheck.differs"));
    assert!(
        ran.out.contains("DIFFERENT step 0 seq ")
            && ran.out.contains(&format!("other.json over run {payment}: ")),
        "{}",
        ran.out
    );
    assert!(!ran.out.contains("already decides so"), "{}", ran.out);
    gate.config["policy"] = json!({"remote_mutation": "deny"});
    gate.save();
    let ran = gate.run(&format!("recheck --policy {denied}"));
    assert!(ran.out.contains("2 of them gate.json already decides so\n"), "{}", ran.out);
}

#[test]
fn re_checking_nothing_fails() {
    let gate = recorded();
    let ran = gate.run("recheck --session nobodys");
    assert_eq!((ran.status, ran.code()), (1, "recheck.nothing"));
    assert!(
        ran.err.contains(r#"no run of session "nobodys" was found, so nothing was re-checked"#),
        "{}",
        ran.err
    );
    assert!(ran.out.starts_with("0 runs re-checked under "), "{}", ran.out);
    let ran = gate.run("--json recheck --session nobodys");
    assert_eq!((ran.status, ran.out.as_str()), (1, "[]\n"));
    let same = other(&gate, |_| {});
    assert_eq!(gate.run(&format!("recheck --policy {same} --session nobodys")).code(), "recheck.nothing");
    let ran = gate.run("recheck --run nobodys");
    assert_eq!((ran.status, ran.code()), (1, "run.not_found"));

    // What a policy that fails leaves: no evaluation, and a step that failed of it.
    let conn = rusqlite::Connection::open(gate.path("gate.db")).unwrap();
    conn.execute_batch(
        r#"DELETE FROM events WHERE type IN ('step.policy', 'step.failed');
           INSERT INTO events (run_id, step_id, at, type, payload_json)
           SELECT run_id, id, started_at, 'step.failed', '{"detail":"policy error: rules unavailable"}'
           FROM steps WHERE spec_hash != '';"#,
    )
    .unwrap();
    let ran = gate.run("recheck");
    assert_eq!((ran.status, ran.code()), (1, "recheck.nothing"));
    assert!(
        ran.out.contains("the policy failed, and no evaluation is recorded: rules unavailable"),
        "{}",
        ran.out
    );
    assert!(
        ran.out.contains(": 0 decisions re-checked, 3 not re-checkable and skipped; 0 runs differ\n"),
        "{}",
        ran.out
    );
    assert!(ran.err.contains("no decision of a policy was re-checked (3 not re-checkable)"), "{}", ran.err);
    let ran = gate.run(&format!("recheck --policy {same}"));
    assert_eq!((ran.status, ran.code()), (1, "recheck.nothing"));
    assert!(ran.out.contains("3 decisions can't be re-checked"), "{}", ran.out);
}

#[test]
fn what_can_t_be_asked_for_is_refused_before_anything_is_read() {
    let gate = gate();
    for line in [
        "recheck --run x --session y",
        "recheck --limit 0",
        "recheck --limit -1",
        "recheck extra",
        "recheck --nope",
        "--db gate.db recheck",
    ] {
        assert_eq!(gate.run(line).status, 2, "{line}");
    }
    assert_eq!(Ran::of(&mut bare("recheck --run x")).status, 2, "a configuration is needed");
    let ran = gate.run("recheck");
    assert_eq!((ran.status, ran.code()), (1, "store.missing"), "nothing was served yet, and nothing is made");
    assert!(!gate.path("gate.db").exists());
    let broken = other(&gate, |config| config["polcy"] = json!({}));
    let ran = gate.run(&format!("recheck --policy {broken}"));
    assert_eq!((ran.status, ran.code()), (1, "config.invalid"), "{}", ran.err);
    assert!(ran.err.contains("other.json"), "{}", ran.err);
}

#[test]
fn a_record_that_no_proxy_wrote_has_no_sessions_and_has_runs() {
    let record = Record::waiting(json!({"to": "kim"}));
    let gate = gate();
    fs::copy(&record.path, gate.path("gate.db")).unwrap();
    rusqlite::Connection::open(gate.path("gate.db"))
        .unwrap()
        .execute_batch("DROP TABLE proxy_calls")
        .unwrap();
    let ran = gate.run("recheck");
    assert_eq!((ran.status, ran.code()), (1, "recheck.nothing"));
    assert!(ran.err.contains("hint: --run RUN re-checks one run"), "{}", ran.err);
    let ran = gate.run("recheck --run r1");
    assert_eq!(
        (ran.status, ran.code()),
        (1, "recheck.differs"),
        "its tools are not this proxy's: {}",
        ran.out
    );
    assert!(ran.out.contains(r#"pay: require_approval -> deny: tool "pay" is not offered"#), "{}", ran.out);
}

#[test]
fn what_a_released_version_decided_is_decided_the_same_again() {
    let (version, sql) = released().pop().unwrap();
    let record = record_of(&sql);
    let server = |name: &str, pay: &str| {
        json!({"name": name, "command": ["/nowhere"], "manifest": format!("{name}.none.json"), "rules": {
            "balance": {"side_effect": "read_only"}, "pay": {"side_effect": "remote_mutation", "outcome": pay}}})
    };
    // The rules of the demonstration, whose record it is.
    let servers = [server("bank", "require_approval"), server("petty", "allow")];
    let config = record.folder().join("gate.json");
    fs::write(&config, json!({"database": "gate.db", "session": "demo", "servers": servers}).to_string())
        .unwrap();
    fs::set_permissions(&config, Permissions::from_mode(0o600)).unwrap();
    let ran = Ran::of(bare("recheck").arg("--config").arg(&config));
    assert_eq!(ran.status, 0, "{version}: {}{}", ran.out, ran.err);
    assert!(
        ran.out.contains("policy unchanged") && !ran.out.contains("policy changed"),
        "{version}: {}",
        ran.out
    );
    assert!(ran.out.contains("no evaluation of a policy: the call was cut off"), "{version}: {}", ran.out);
}
