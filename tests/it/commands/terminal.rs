//! A person at a terminal: the prompt, its answers, and colours. The terminal is a pseudo-terminal of the kernel's.

use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::process::{Child, Command};

use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use serde_json::json;

use super::{Record, assert_harmless};

/// A command whose three streams are a terminal.
struct Terminal {
    child: Child,
    screen: File,
    seen: String,
}

impl Terminal {
    fn start(mut command: Command) -> Terminal {
        let screen: OwnedFd = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
        grantpt(&screen).unwrap();
        unlockpt(&screen).unwrap();
        let name = ptsname(&screen, Vec::new()).unwrap().into_string().unwrap();
        let end = || OpenOptions::new().read(true).write(true).open(&name).unwrap();
        let child = command.stdin(end()).stdout(end()).stderr(end()).spawn().unwrap();
        // The command holds the streams too: only when those are closed does the terminal end with the child.
        drop(command);
        Terminal { child, screen: File::from(screen), seen: String::new() }
    }

    /// Reads until the text appears.
    fn wait_for(&mut self, text: &str) {
        while !self.seen.contains(text) {
            assert!(self.read() > 0, "the command ended before {text:?}: {}", self.seen);
        }
    }

    /// Reads some; nothing is left when the other side has ended, which the kernel tells as an error.
    fn read(&mut self) -> usize {
        let mut bytes = [0; 4096];
        let count = self.screen.read(&mut bytes).unwrap_or(0);
        self.seen.push_str(std::str::from_utf8(&bytes[..count]).unwrap());
        count
    }

    fn types(&mut self, text: &str) {
        self.screen.write_all(text.as_bytes()).unwrap();
    }

    /// Reads to the end, and gives the exit status and everything on the screen.
    fn finish(mut self) -> (i32, String) {
        while self.read() > 0 {}
        (self.child.wait().unwrap().code().unwrap(), self.seen)
    }
}

fn record() -> Record {
    Record::waiting(json!({"to": "alice", "amount": 20}))
}

#[test]
fn a_person_is_asked_after_the_request_was_shown() {
    let record = record();
    let mut terminal = Terminal::start(record.command("approve r1"));
    terminal.wait_for("of run r1? [y/N] ");
    assert!(terminal.seen.contains("approve pay, approval "), "{}", terminal.seen);
    assert!(terminal.seen.contains("\"alice\""), "{}", terminal.seen);
    terminal.types("y\n");
    let (status, seen) = terminal.finish();
    assert_eq!(status, 0, "{seen}");
    assert!(seen.contains("approved by tester"), "{seen}");
}

#[test]
fn anything_but_yes_is_no_and_the_end_of_input_is_nobody() {
    let record = record();
    for (typed, status, code) in
        [("n\n", 1, "declined"), ("\n", 1, "declined"), ("\u{4}", 2, "usage.confirm")]
    {
        let mut terminal = Terminal::start(record.command("reject r1"));
        terminal.wait_for("[y/N] ");
        terminal.types(typed);
        let (ended, seen) = terminal.finish();
        assert_eq!(ended, status, "{typed:?}: {seen}");
        assert!(seen.contains(code), "{typed:?}: {seen}");
    }
    assert_eq!(record.json("runs")["runs"][0]["status"], "WAITING_FOR_APPROVAL");
}

#[test]
fn a_request_that_changes_while_a_person_reads_is_not_granted() {
    let record = record();
    let mut terminal = Terminal::start(record.command("approve r1"));
    terminal.wait_for("[y/N] ");
    record.tamper("UPDATE approvals SET hash = 'ab'");
    terminal.types("y\n");
    let (status, seen) = terminal.finish();
    assert_eq!(status, 1, "{seen}");
    assert!(seen.contains("approval.changed"), "{seen}");
}

#[test]
fn a_terminal_has_colours_unless_they_are_not_wanted() {
    let record = record();
    let (status, seen) = Terminal::start(record.command("runs")).finish();
    assert_eq!(status, 0);
    assert!(seen.contains("\x1b["), "{seen:?}");
    let mut plain = record.command("runs");
    plain.env("NO_COLOR", "1");
    let (_, seen) = Terminal::start(plain).finish();
    assert_harmless(&seen.replace('\r', ""));
    // JSON is for programs, whatever reads it.
    let (_, seen) = Terminal::start(record.command("--json runs")).finish();
    assert!(!seen.contains('\x1b'), "{seen:?}");
}
