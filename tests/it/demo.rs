//! The demonstration, run as a person runs it: its exit status, its landmarks, and what it leaves behind.

#![expect(clippy::unwrap_used, reason = "a test that can not go on fails")]

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

const TITLES: [&str; 8] = [
    "1  A read runs at once",
    "2  A payment waits for a person, and runs once",
    "3  The same payment again is a duplicate",
    "4  A host loses the response and tries again",
    "5  The gate is killed in the middle of a payment",
    "6  A server dies in the middle of a payment, and the call is answered",
    "7  An actor is killed in the middle of a call, and the call is answered",
    "8  The record is complete and unaltered",
];

/// What each scene must have told, in this order.
const LANDMARKS: [&[&str]; 8] = [
    &["account main holds", "bank has no payments"],
    &[
        "PENDING_APPROVAL",
        "bank has no payments",
        "$ holdpoint approve demo.",
        "bank has 1 payment: 40 to alice",
    ],
    &["DUPLICATE", "bank has 1 payment"],
    &[
        "straight has 2 payments: 7 to bob, 7 to bob",
        "IN_PROGRESS",
        "DUPLICATE",
        "petty has 1 payment: 7 to bob",
    ],
    &["$ kill -9", "INTERRUPTED", "$ holdpoint reject demo.", "REJECTED", "petty has 2 payments"],
    &["$ kill -9", "UNKNOWN_OUTCOME", "account petty cash holds", "BLOCKED", "petty has 3 payments"],
    &["in doubt, not failed", "embedded has 1 payment: 9 to frank", "started another"],
    &["$ holdpoint verify", "intact: "],
];

fn demo(temporary: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_holdpoint"));
    command.arg("demo").args(arguments).env("TMPDIR", temporary).env_remove("HOLDPOINT_LOG");
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// Runs the demonstration to its end, which must be good, and returns what it told.
fn told(temporary: &Path, arguments: &[&str]) -> String {
    let output = demo(temporary, arguments).output().unwrap();
    let (told, complaint) =
        (String::from_utf8(output.stdout).unwrap(), String::from_utf8_lossy(&output.stderr).into_owned());
    assert!(output.status.success(), "{}\n{told}\n{complaint}", output.status);
    assert_eq!(complaint, "");
    told
}

fn entries(folder: &Path) -> Vec<PathBuf> {
    fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect()
}

/// The processes whose command line names the folder.
fn processes_of(folder: &Path) -> Vec<String> {
    let needle = folder.to_string_lossy().into_owned();
    let all = fs::read_dir("/proc").into_iter().flatten().flatten();
    let lines = all.filter_map(|entry| fs::read_to_string(entry.path().join("cmdline")).ok());
    lines.filter(|line| line.contains(&needle)).collect()
}

#[test]
fn every_scene_of_the_demonstration_happens_and_nothing_is_left() {
    let temporary = TempDir::new().unwrap();
    let told = told(temporary.path(), &[]);
    let mut rest = told.as_str();
    for (number, title) in TITLES.iter().enumerate() {
        let begin = rest.find(title).unwrap_or_else(|| panic!("{title} is missing in {told}"));
        rest = &rest[begin..];
        let end = TITLES.get(number + 1).and_then(|next| rest.find(next)).unwrap_or(rest.len());
        let mut scene = &rest[..end];
        for landmark in LANDMARKS[number] {
            let at = scene.find(landmark).unwrap_or_else(|| panic!("{landmark} is missing in {scene}"));
            scene = &scene[at + landmark.len()..];
        }
    }
    assert!(told.contains("All 8 scenes happened as told"), "{told}");
    assert!(!told.contains('\x1b'), "no colours where no terminal is");
    assert!(entries(temporary.path()).is_empty(), "{:?}", entries(temporary.path()));
    assert!(processes_of(temporary.path()).is_empty(), "{:?}", processes_of(temporary.path()));
}

#[test]
fn kept_files_can_be_looked_at_and_the_question_that_waits_can_be_answered() {
    let temporary = TempDir::new().unwrap();
    let told = told(temporary.path(), &["--keep"]);
    let [folder] = entries(temporary.path()).try_into().unwrap();
    let folder: PathBuf = folder;
    assert!(told.contains(&format!("The files are in {}", folder.display())), "{told}");
    let operate = |words: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_holdpoint"));
        command.env("HOLDPOINT_DB", folder.join("gate/gate.db")).arg("--json").args(words);
        let output = command.stdin(Stdio::null()).output().unwrap();
        assert!(output.status.success(), "{words:?}: {}", String::from_utf8_lossy(&output.stderr));
        serde_json::from_slice::<serde_json::Value>(&output.stdout).unwrap()
    };
    let runs = operate(&["runs"]);
    let waits = runs["runs"].as_array().unwrap().iter().find(|run| run["status"] == "WAITING_FOR_APPROVAL");
    let run = waits.unwrap()["id"].as_str().unwrap();
    operate(&["reject", run, "--yes", "--by", "somebody"]);
    assert_eq!(operate(&["verify"])["intact"], true);
    let ledger = fs::read_to_string(folder.join("petty/ledger")).unwrap();
    assert_eq!(ledger.lines().count(), 3, "{ledger}");
}

/// Ends the demonstration if the test fails before it does.
struct Started(Child);

impl Drop for Started {
    fn drop(&mut self) {
        if !matches!(self.0.try_wait(), Ok(Some(_))) {
            kill_process(Pid::from_child(&self.0), Signal::TERM).ok();
            drop(self.0.wait());
        }
    }
}

#[test]
fn an_interrupt_stops_the_story_and_everything_that_it_started() {
    let temporary = TempDir::new().unwrap();
    let mut started = Started(demo(temporary.path(), &[]).spawn().unwrap());
    let lines = BufReader::new(started.0.stdout.take().unwrap()).lines();
    let mut told = lines.map(Result::unwrap);
    // By then a proxy, its two servers and a third one run, and a payment is under way.
    told.find(|line| line.contains("First straight to the server")).unwrap();
    assert!(processes_of(temporary.path()).len() >= 3, "{:?}", processes_of(temporary.path()));
    kill_process(Pid::from_child(&started.0), Signal::INT).unwrap();
    let status = started.0.wait().unwrap();
    assert_eq!(status.code(), Some(1));
    let complaint = std::io::read_to_string(started.0.stderr.take().unwrap()).unwrap();
    assert!(complaint.contains("error[demo.failed]: SIGINT stopped the demonstration"), "{complaint}");
    assert!(entries(temporary.path()).is_empty(), "{:?}", entries(temporary.path()));
    // The proxy was killed, and its servers end with it as soon as the kernel has told them.
    let mut looks = 0;
    while !processes_of(temporary.path()).is_empty() {
        looks += 1;
        assert!(looks < 1_000, "{:?}", processes_of(temporary.path()));
        thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn a_payment_that_the_story_does_not_know_fails_it() {
    let temporary = TempDir::new().unwrap();
    let mut started = Started(demo(temporary.path(), &[]).spawn().unwrap());
    let lines = BufReader::new(started.0.stdout.take().unwrap()).lines();
    let mut told = lines.map(Result::unwrap);
    told.find(|line| line.contains(TITLES[1])).unwrap();
    let [folder] = entries(temporary.path()).try_into().unwrap();
    let stolen = "{\"tool\":\"pay\",\"arguments\":{\"to\":\"mallory\",\"amount\":1}}\n";
    fs::write(folder.join("bank/ledger"), stolen).unwrap();
    assert!(!told.any(|line| line.contains(TITLES[2])), "the scene with the strange payment is the last");
    assert_eq!(started.0.wait().unwrap().code(), Some(1));
    let complaint = std::io::read_to_string(started.0.stderr.take().unwrap()).unwrap();
    assert!(complaint.contains("error[demo.failed]: scene 2 did not happen as told"), "{complaint}");
    assert!(complaint.contains("1 to mallory"), "{complaint}");
    assert!(entries(temporary.path()).is_empty(), "{:?}", entries(temporary.path()));
}

#[test]
fn a_story_that_cannot_begin_says_why() {
    let temporary = TempDir::new().unwrap();
    let output = demo(&temporary.path().join("missing"), &[]).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let complaint = String::from_utf8(output.stderr).unwrap();
    assert!(complaint.contains("the beginning did not happen as told"), "{complaint}");
    assert!(complaint.contains("missing"), "{complaint}");
}
