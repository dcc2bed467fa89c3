//! `export` as a process: lines on stdout, a cursor, a head that verifies, signals, and what is refused.

use std::fs::{self, Permissions};
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::process::{Child, Stdio};

use holdpoint::gate::Limits;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use super::refusals::start_programs_that_are_held_by_modes;
use super::{Plan, Ran, Record};

fn two_runs() -> Record {
    let runs = vec![
        ("r1", "read the balance", Plan::Reads),
        ("r2", "pay the invoice", Plan::Pays(json!({"to": "alice", "amount": 40}))),
    ];
    Record::of(runs, Limits::default())
}

fn seqs(lines: &str) -> Vec<i64> {
    let seq = |line: &str| serde_json::from_str::<Value>(line).unwrap()["seq"].as_i64().unwrap();
    lines.lines().map(seq).collect()
}

#[test]
fn the_lines_are_those_of_events_for_every_run_or_for_the_one_that_is_named() {
    let record = two_runs();
    let all = record.run("export --jsonl");
    assert_eq!((all.status, all.err.as_str()), (0, ""));
    let each: String =
        ["r1", "r2"].map(|run| record.run(&format!("events {run} --limit 0 --json")).out).concat();
    assert_eq!(all.out, each);
    assert_eq!(record.run("export --jsonl --run r2 --once").out, record.run("events r2 --json").out);
}

#[test]
fn a_cursor_is_gone_on_from_and_the_head_that_is_told_verifies() {
    let record = two_runs();
    let cursor = record.folder().join("cursor");
    let line = format!("export --jsonl --cursor {}", cursor.display());
    let first = record.run(&line);
    let last = *seqs(&first.out).last().unwrap();
    assert_eq!(fs::read_to_string(&cursor).unwrap(), format!("{last}\n"));
    let head = first.err.trim_end().rsplit(' ').next().unwrap();
    let told = format!("{last} events handed on; the record's head there is {head}\n");
    assert_eq!((first.status, first.err.as_str()), (0, told.as_str()));
    assert_eq!(record.run(&format!("verify --head {head}")).status, 0);
    let second = record.run(&line);
    assert_eq!((second.status, second.out.as_str()), (0, ""));
    assert!(second.err.starts_with("0 events handed on; "), "{}", second.err);
    record.tamper("UPDATE events SET payload_json = '{}' WHERE seq = 1");
    assert_eq!(record.run(&format!("verify --head {head}")).code(), "chain.broken");
}

#[test]
fn a_run_that_is_not_there_and_a_cursor_that_is_none_are_refused() {
    let record = two_runs();
    assert_eq!(record.run("export --jsonl --run r9").code(), "run.not_found");
    let cursor = record.folder().join("cursor");
    for text in ["nonsense", "-4", "100000"] {
        fs::write(&cursor, text).unwrap();
        let refused = record.run(&format!("export --jsonl --cursor {}", cursor.display()));
        assert_eq!(
            (refused.status, refused.code(), refused.out.as_str()),
            (1, "export.cursor", ""),
            "{}",
            refused.err
        );
    }
    let nowhere = record.folder().join("no/such/folder/cursor");
    let refused = record.run(&format!("export --jsonl --cursor {}", nowhere.display()));
    let told = (refused.status, refused.code(), refused.out.as_str());
    assert_eq!(told, (1, "export.cursor", ""), "nothing is handed on that would come again each time");
    assert_eq!(super::bare("export --jsonl --db /nonexistent.db").output().unwrap().status.code(), Some(1));
}

#[test]
fn nothing_is_handed_on_when_the_cursor_s_folder_can_t_be_written() {
    let record = two_runs();
    let folder = tempfile::tempdir().unwrap();
    let line = format!("export --jsonl --cursor {}", folder.path().join("cursor").display());
    fs::set_permissions(folder.path(), Permissions::from_mode(0o555)).unwrap();
    let refused = std::thread::scope(|scope| {
        let exporting = scope.spawn(|| {
            start_programs_that_are_held_by_modes();
            record.run(&line)
        });
        exporting.join().unwrap()
    });
    let told = (refused.status, refused.code(), refused.out.as_str());
    assert_eq!(told, (1, "export.cursor", ""), "{}", refused.err);
    fs::set_permissions(folder.path(), Permissions::from_mode(0o755)).unwrap();
    assert_eq!(seqs(&record.run(&line).out)[0], 1);
}

#[test]
fn where_to_and_for_how_long_are_named_once() {
    let record = two_runs();
    for line in ["export", "export --jsonl --otlp", "export --jsonl --once --follow", "export --jsonl --json"]
    {
        assert_eq!(record.run(line).status, 2, "{line}");
    }
}

#[test]
#[cfg(not(feature = "otlp"))]
fn a_build_without_opentelemetry_says_how_to_get_one_with_it() {
    let refused = two_runs().run("export --otlp");
    assert_eq!((refused.status, refused.code(), refused.out.as_str()), (2, "usage", ""));
    assert!(refused.err.contains("cargo install --path . --locked --features otlp"), "{}", refused.err);
}

/// A follower's process, ended with its test.
struct Following {
    child: Child,
    lines: BufReader<std::process::ChildStdout>,
}

impl Following {
    fn start(record: &Record, line: &str) -> Following {
        let mut command = record.command(line);
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap());
        Following { child, lines }
    }

    fn next(&mut self) -> Value {
        let mut line = String::new();
        self.lines.read_line(&mut line).unwrap();
        serde_json::from_str(&line).unwrap()
    }

    fn end(mut self, signal: Signal) -> Ran {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
        let mut out = String::new();
        while self.lines.read_line(&mut out).unwrap() > 0 {}
        let output = self.child.wait_with_output().unwrap();
        Ran { out, ..Ran::from(output) }
    }
}

#[test]
fn a_follower_tells_what_another_process_commits_until_a_signal_ends_it() {
    let record = two_runs();
    let cursor = record.folder().join("cursor");
    for signal in [Signal::TERM, Signal::INT] {
        let mut following =
            Following::start(&record, &format!("export --jsonl --follow --cursor {}", cursor.display()));
        if signal == Signal::TERM {
            while following.next()["type"] != "approval.requested" {}
            assert_eq!(record.run("approve r2 --yes --by al").status, 0);
            let decided = following.next();
            assert_eq!(
                (&decided["type"], &decided["payload"]["by"]),
                (&json!("approval.decided"), &json!("al"))
            );
        } else {
            assert_eq!(record.run("cancel r2 --by al").status, 0);
            while following.next()["type"] != "run.finished" {}
        }
        let ended = following.end(signal);
        assert_eq!((ended.status, ended.out.as_str()), (0, ""), "{}", ended.err);
        assert!(ended.err.starts_with("asked to end; "), "{}", ended.err);
        let last = record.json("verify")["head"]["seq"].to_string();
        assert_eq!(fs::read_to_string(&cursor).unwrap().trim(), last);
    }
}

#[test]
fn a_reader_that_goes_away_ends_an_export_without_a_complaint() {
    let record = two_runs();
    let mut following = Following::start(&record, "export --jsonl --follow");
    following.next();
    drop(following.lines);
    // What it writes next has no reader.
    assert_eq!(record.run("approve r2 --yes --by al").status, 0);
    let ended = Ran::from(following.child.wait_with_output().unwrap());
    assert_eq!((ended.status, ended.err.as_str()), (1, ""));
}

#[test]
fn an_export_that_is_killed_within_a_page_hands_that_page_on_again_and_loses_nothing() {
    let record = two_runs();
    // More of a page than a pipe holds, so that it is killed as it writes its second.
    record.tamper(
        "WITH RECURSIVE more(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM more WHERE n < 1600)
         INSERT INTO events (run_id, at, type, payload_json, hash)
         SELECT 'r1', '2026-10-01T10:00:00Z', 'run.resumed', json_object('after', printf('%.300c', 'x')), ''
         FROM more",
    );
    let cursor = record.folder().join("cursor");
    let line = format!("export --jsonl --cursor {}", cursor.display());
    let mut killed = Following::start(&record, &line);
    let seen: Vec<i64> = (0..700).map(|_| killed.next()["seq"].as_i64().unwrap()).collect();
    killed.child.kill().unwrap();
    killed.child.wait().unwrap();
    assert_eq!(seen, (1..=700).collect::<Vec<_>>());
    assert_eq!(fs::read_to_string(&cursor).unwrap(), "500\n", "the page that was let go of");
    let again = record.run(&line);
    let last = i64::try_from(1_600 + record.run("events r2 --json").out.lines().count()).unwrap();
    let rest = seqs(&again.out);
    assert_eq!((again.status, rest[0]), (0, 501), "{}", again.err);
    assert_eq!(rest, (501..=*rest.last().unwrap()).collect::<Vec<_>>());
    assert!(*rest.last().unwrap() >= last);
    assert_eq!(record.run(&line).out, "");
}
