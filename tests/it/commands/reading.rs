//! What the commands print: in text for people, in JSON for programs.

use std::fs;

use serde_json::json;

use super::{HOSTILE, Plan, Ran, Record, assert_harmless, bare};
use holdpoint::gate::Limits;

fn two_runs() -> Record {
    let pay = Plan::Pays(json!({"to": "alice", "amount": 20}));
    Record::of(
        vec![("r1", "look at the account", Plan::Reads), ("r2", "pay the invoice", pay)],
        Limits::default(),
    )
}

#[test]
fn runs_are_listed_newest_first_in_aligned_columns() {
    let record = two_runs();
    let approval = record.approval("r2");
    let ran = record.run("runs");
    insta::assert_snapshot!(ran.out.replace(&approval, "<approval id, as long as any other>"), @r"
    RUN  STATUS                REASON          STEPS  CREATED                    APPROVAL                          GOAL
    r2   WAITING_FOR_APPROVAL  -               1      2026-10-01 09:00:09 +0000  <approval id, as long as any other>  pay the invoice
    r1   COMPLETED             goal_completed  2      2026-10-01 09:00:00 +0000  -                                 look at the account
    ");
    assert_eq!((ran.status, ran.err.as_str()), (0, ""));
}

#[test]
fn what_waits_is_listed_with_what_it_asks_for_however_much_ran_since() {
    let pay = |to| Plan::Pays(json!({"to": to, "amount": 20}));
    let runs =
        vec![("r1", "pay", pay("alice")), ("r2", "pay", pay("bob\u{202e}")), ("r3", "look", Plan::Reads)];
    let record = Record::of(runs, Limits::default());
    let (alice, bob) = (record.approval("r1"), record.approval("r2"));
    let listed = |line: &str| record.run(line).out.replace(&alice, "<alice's>").replace(&bob, "<bob's>");
    // The columns are as wide as ids are, so that the list is compared without its padding.
    let squeezed = |text: &str| text.split_inclusive('\n').map(squeeze).collect::<String>();
    insta::assert_snapshot!(squeezed(&listed("runs --waiting")), @r#"
    RUN APPROVAL STATE KIND EXPIRES CALL
    r2 <bob's> pending remote_mutation - pay {"to":"bob\u{202e}","amount":20}
    r1 <alice's> pending remote_mutation - pay {"to":"alice","amount":20}
    "#);
    let before = listed("runs --waiting");
    record.tamper(r"UPDATE approvals SET request_json = replace(request_json, char(8238), '\u202e')");
    assert_eq!(listed("runs --waiting"), before, "a character is shown alike, however a host escaped it");
    assert!(listed("runs --waiting --limit 1").ends_with("… 1 more; --offset 1 shows them\n"));
    let json = record.json("runs --waiting");
    assert_eq!((&json["total"], &json["runs"][1]["id"]), (&json!(2), &json!("r1")));

    assert_eq!(record.run("approve r1 --yes").status, 0);
    assert_eq!(record.run("reject r2 --yes").status, 0);
    insta::assert_snapshot!(squeezed(&listed("runs --waiting")), @r#"
    RUN APPROVAL STATE KIND EXPIRES CALL
    r1 <alice's> granted remote_mutation - pay {"to":"alice","amount":20}
    "#);
    assert_eq!(record.run("cancel r1").status, 0);
    assert_eq!(listed("runs --waiting"), "nothing waits\n");
}

#[test]
fn each_list_has_its_own_length_when_none_is_asked_for() {
    let record = two_runs();
    for (command, rows) in [("runs", 100), ("show r1", 500)] {
        assert_eq!(record.json(command)["limit"], json!(rows), "{command}");
    }
    for (command, rows) in [("runs", 100), ("show", 500), ("events", 500)] {
        let help = Ran::of(bare(command).arg("--help")).out;
        assert!(help.contains(&format!("[default: {rows}]")), "{help}");
    }
}

fn squeeze(line: &str) -> String {
    line.split(' ').filter(|word| !word.is_empty()).collect::<Vec<_>>().join(" ")
}

#[test]
fn a_granted_run_says_who_granted_it_and_what_it_still_waits_for() {
    let record = two_runs();
    let approval = record.approval("r2");
    assert_eq!(record.run("approve r2 --yes").status, 0);
    let shown = record.run("show r2").out;
    assert!(shown.contains(&format!("\ngranted   {approval} by tester, ")), "{shown}");
    assert!(shown.contains("\n          Nothing has run yet. "), "{shown}");
}

#[test]
fn runs_in_json_carry_the_page_that_they_are() {
    let record = two_runs();
    let all = record.json("runs");
    assert_eq!(all["total"], 2);
    assert_eq!((&all["limit"], &all["offset"]), (&json!(100), &json!(0)));
    assert!(all.get("truncated").is_none());
    assert_eq!(all["runs"][0]["id"], "r2");
    assert_eq!(all["runs"][0]["pending_approval_id"], record.approval("r2").as_str());
    assert_eq!(all["runs"][1]["reason"], "goal_completed");
    assert_eq!(all["runs"][1]["created_at"], "2026-10-01T09:00:00Z");
    let first = record.json("runs --limit 1");
    assert_eq!((&first["truncated"], &first["runs"][0]["id"]), (&json!(true), &json!("r2")));
    let last = record.json("runs --limit 1 --offset 1");
    assert_eq!(last["runs"][0]["id"], "r1");
    assert!(last.get("truncated").is_none());
    assert_eq!(record.json("runs --limit 0")["runs"].as_array().unwrap().len(), 2);
    let text = record.run("runs --limit 1");
    assert!(text.out.ends_with("… 1 more; --offset 1 shows them\n"), "{}", text.out);
}

#[test]
fn an_empty_record_has_no_runs_no_head_and_an_intact_chain() {
    let record = Record::empty();
    assert_eq!(record.run("runs").out, "no runs\n");
    assert_eq!(record.json("runs"), json!({"runs": [], "total": 0, "limit": 100, "offset": 0}));
    let verified = record.run("verify");
    assert_eq!(
        (verified.status, verified.out.as_str()),
        (0, "head      no events\nintact    no events in the range\n")
    );
}

#[test]
fn a_run_is_shown_with_what_it_waits_for_and_its_steps() {
    let record = two_runs();
    let approval = record.approval("r2");
    let shown =
        record.run("show r2").out.replace(&approval, "<id>").replace(record.path.to_str().unwrap(), "<db>");
    insta::assert_snapshot!(shown, @r#"
    run       r2
    goal      pay the invoice
    status    WAITING_FOR_APPROVAL
    steps     1
    created   2026-10-01 09:00:09 +0000

    APPROVAL WAITING  <id>
    kind      remote_mutation
    tool      pay
    asked     2026-10-01 09:00:13 +0000
    because   side effect remote_mutation is require_approval by policy
    arguments of the call, a field at a time, each with its size as stored:
      amount (2 bytes)
        20
      to (7 bytes)
        "alice"
    presentation by the policy; it may quote what a model or a server wrote:
      args (26 bytes)
        {
          "amount": 20,
          "to": "alice"
        }
      tool (5 bytes)
        "pay"
    decide with: holdpoint --db <db> approve r2 --approval <id>
             or: holdpoint --db <db> reject r2 --approval <id>
    ----- end of approval <id> for tool pay -----

    STEP  TOOL  DECISION   STATUS             POLICY            OBSERVATION  SUMMARY
    0     pay   tool_call  awaiting_approval  require_approval  -            -
    "#);
    insta::assert_snapshot!(record.run("show r1").out, @r"
    run       r1
    goal      look at the account
    status    COMPLETED (goal_completed)
    steps     2
    created   2026-10-01 09:00:00 +0000
    finished  2026-10-01 09:00:08 +0000

    STEP  TOOL     DECISION   STATUS  POLICY  OBSERVATION  SUMMARY
    0     balance  tool_call  done    allow   tool_result  balance: 120
    1     -        complete   done    -       -            -
    ");
}

#[test]
fn a_request_that_is_padded_hides_nothing_of_what_waits() {
    let padded = json!({"to": "mallory", "amount": 1_000_000, "aaa": "x".repeat(70_000)});
    let record = Record::waiting(padded);
    let (shown, asked) = (record.run("show r1").out, record.run("approve r1").out);
    let block = |text: &str| {
        let begin = text.find("APPROVAL WAITING").unwrap();
        text[begin..].split_once("----- end of").unwrap().0.to_owned()
    };
    assert_eq!(block(&shown), block(&asked), "what is shown is what is asked");
    for text in ["aaa (70002 bytes)", "\"mallory\"", "amount (7 bytes)", "--approval "] {
        assert!(shown.contains(text), "{text:?} in {shown}");
    }
    let args = &record.json("show r1")["waiting_approval"]["request"]["args"];
    assert_eq!((&args["to"], &args["amount"]), (&json!("mallory"), &json!(1_000_000)));
    assert!(args["aaa"].as_str().unwrap().contains("bytes left out"), "{args}");
}

#[test]
fn a_run_in_json_has_its_steps_and_its_approvals() {
    let record = two_runs();
    let shown = record.json("show r2");
    let keys: Vec<&String> = shown.as_object().unwrap().keys().collect();
    assert_eq!(
        keys,
        [
            "run",
            "steps",
            "steps_total",
            "approvals",
            "approvals_total",
            "waiting_approval",
            "limit",
            "offset"
        ]
    );
    assert_eq!(shown["steps"][0]["tool"], "pay");
    assert_eq!(shown["steps"][0]["status"], "awaiting_approval");
    assert_eq!(shown["steps"][0]["policy"], "require_approval");
    let approval = &shown["waiting_approval"];
    assert_eq!(approval, &shown["approvals"][0]);
    assert_eq!(approval["kind"], "remote_mutation");
    assert_eq!(approval["request"]["args"], json!({"to": "alice", "amount": 20}));
    assert_eq!(approval["request"]["spec"]["timeout"], 5_000_000_000_u64);
    assert_eq!(approval["status"], "pending");
    assert_eq!(approval["hash"].as_str().unwrap().len(), 64);
    assert!(approval.get("decided_at").is_none());
}

#[test]
fn events_are_lines_and_json_events_are_lines_too() {
    let record = two_runs();
    let text = record.run("events r1");
    let first = text.out.lines().next().unwrap();
    assert!(first.starts_with("2026-10-01 09:00:00.000 +0000  run.created            {\"goal\":"), "{first}");
    let lines: Vec<serde_json::Value> =
        record.run("--json events r1").out.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(lines.len(), text.out.lines().count());
    assert_eq!(lines[0]["seq"], 1);
    assert_eq!(lines[0]["type"], "run.created");
    assert_eq!(lines.last().unwrap()["payload"]["status"], "COMPLETED");
    let some = record.run("--json events r1 --limit 2 --offset 1");
    let last: serde_json::Value = serde_json::from_str(some.out.lines().last().unwrap()).unwrap();
    assert_eq!(
        last,
        json!({"meta": true, "truncated": true, "total": lines.len(), "returned": 2, "offset": 1})
    );
    assert_eq!(some.out.lines().count(), 3);
    assert!(record.run("events r1 --limit 2").out.ends_with("more; --offset 2 shows them\n"));
    assert_eq!(record.run("events r1 --limit 0").out, text.out);
}

#[test]
fn nothing_that_a_model_wrote_reaches_the_terminal_as_it_is() {
    let args = json!({"to": HOSTILE, (HOSTILE): [HOSTILE, {"deep": HOSTILE}]});
    let record = Record::of(vec![("r1", HOSTILE, Plan::Pays(args))], Limits::default());
    for line in ["runs", "show r1", "events r1", "approve r1", "reject r1 --yes"] {
        let ran = record.run(line);
        assert_harmless(&ran.out);
        assert_harmless(&ran.err);
        assert!(ran.out.contains(r"\u{202e}"), "{line}: {}", ran.out);
    }
    // Programs get what is stored.
    assert_eq!(record.json("show r1")["run"]["goal"], HOSTILE);
}

#[test]
fn output_that_is_no_terminal_has_no_colours() {
    let record = two_runs();
    for line in ["runs", "show r2", "verify", "explain", "explain exit.1", "--help", "nonsense"] {
        let ran = record.run(line);
        assert!(!ran.out.contains('\x1b') && !ran.err.contains('\x1b'), "{line}");
    }
    let forced = Ran::of(record.command("runs").env("CLICOLOR_FORCE", "1").env("NO_COLOR", "1"));
    assert!(forced.out.contains("COMPLETED"));
}

#[test]
fn a_reader_that_goes_away_is_no_reason_to_complain() {
    let record = two_runs();
    let mut child = record
        .command("explain")
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    let ran = Ran::from(child.wait_with_output().unwrap());
    assert_eq!(ran.err, "");
}

#[test]
fn the_help_goes_to_stdout_and_a_missing_command_s_usage_to_stderr() {
    for line in ["--help", "-h", "help", "runs --help", "help approve"] {
        let ran = Ran::of(&mut bare(line));
        assert_eq!((ran.status, ran.err.as_str()), (0, ""), "{line}");
        assert!(ran.out.contains("Usage: holdpoint"), "{line}: {}", ran.out);
    }
    for line in ["", "--json"] {
        let ran = Ran::of(&mut bare(line));
        assert_eq!((ran.status, ran.out.as_str()), (2, ""), "{line}");
        assert!(ran.err.contains("Usage: holdpoint"), "{line}: {}", ran.err);
    }
    assert!(!Ran::of(&mut bare("--help")).out.contains("payment-server"), "it is not for people");
}

#[test]
fn the_proxys_help_says_what_it_does_not_govern() {
    let ran = Ran::of(&mut bare("proxy --help"));
    let words = ran.out.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(words.contains("Only the calls that go through it are governed."), "{}", ran.out);
    assert!(words.contains("can approve its own requests"), "{}", ran.out);
}

#[test]
fn a_pasted_argument_that_is_refused_comes_back_escaped() {
    let ran = Ran::of(bare("show").arg("--\u{202e}limit\u{9b}2J"));
    assert_eq!((ran.status, ran.out.as_str()), (2, ""));
    assert!(ran.err.contains(r"--\u{202e}limit\x9b2J"), "{}", ran.err);
    assert!(!ran.err.contains(['\u{202e}', '\u{9b}']), "{}", ran.err);
}

#[test]
fn every_code_has_a_page_and_the_list_has_every_code() {
    let list = Ran::of(&mut bare("explain"));
    assert_eq!(list.status, 0);
    for code in holdpoint::codes::Code::ALL {
        assert!(list.out.lines().any(|line| line.starts_with(code.as_str())), "{code}");
        let page = Ran::of(&mut bare(&format!("explain {code}")));
        assert!(page.out.starts_with(code.as_str()) && page.out.ends_with(code.page()), "{code}");
    }
    assert_eq!(Ran::of(&mut bare("explain nothing.like.it")).status, 2);
}

#[test]
fn a_page_is_read_and_no_row_beside_it() {
    let runs = ["r1", "r2"].map(|run| (run, "read the balance", Plan::Reads));
    let record = Record::of(runs.into(), Limits::default());
    record.tamper(
        "UPDATE runs SET goal = printf('%.90000c', 'x') WHERE id = 'r1';
         UPDATE steps SET decision_json = printf('%.90000c', 'x') WHERE run_id = 'r2' AND idx = 1;
         UPDATE events SET payload_json = printf('%.90000c', 'x') WHERE seq = (SELECT MAX(seq) FROM events);
         PRAGMA wal_checkpoint(TRUNCATE)",
    );
    // What these texts fill is cut off from them: whoever reads one finds the file malformed.
    let mut file = fs::read(&record.path).unwrap();
    let filled = file.chunks_exact_mut(4_096).filter(|page| page[4..4_000].iter().all(|byte| *byte == b'x'));
    assert!(filled.map(|page| page[..4].fill(0xFF)).count() > 60);
    fs::write(&record.path, file).unwrap();
    for (page, all) in [
        ("runs --limit 1", "runs"),
        ("show r2 --limit 1", "show r2"),
        ("events r2 --limit 3 --offset 1", "events r2"),
    ] {
        let ran = record.run(page);
        assert_eq!(ran.status, 0, "{page}: {}", ran.err);
        assert_eq!(record.run(all).code(), "store.not_a_database", "{all}");
    }
}
