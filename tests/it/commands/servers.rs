//! The commands that start servers: pinning them, and the doctor. The server is the demonstration's, from this binary.

use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::PathBuf;

use serde_json::{Value, json};

use super::refusals::start_programs_that_are_held_by_modes;
use super::{Ran, Record, bare};

/// A folder with a configuration in it.
pub(super) struct Gate {
    folder: tempfile::TempDir,
    outside: tempfile::TempDir,
    pub(super) config: Value,
}

impl Gate {
    pub(super) fn new() -> Gate {
        let folder = tempfile::tempdir().unwrap();
        // Outside the gate's own folder, which a server may not reach.
        let outside = tempfile::tempdir().unwrap();
        let ledger = outside.path().join("ledger");
        let server = |name: &str, command: Value| {
            json!({"name": name, "command": command, "manifest": format!("{name}.json"), "default_timeout": "5s",
                "rules": {"balance": {"side_effect": "read_only"}, "pay": {"side_effect": "remote_mutation"}}})
        };
        let shop = json!([env!("CARGO_BIN_EXE_holdpoint"), "payment-server", "--ledger", ledger]);
        let config = json!({"database": "gate.db", "session": "test", "servers": [server("shop", shop)], "hold": "0s"});
        let gate = Gate { folder, outside, config };
        gate.save();
        gate
    }

    pub(super) fn save(&self) {
        fs::write(self.path("gate.json"), self.config.to_string()).unwrap();
        fs::set_permissions(self.path("gate.json"), Permissions::from_mode(0o600)).unwrap();
    }

    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub(super) fn run(&self, line: &str) -> Ran {
        Ran::of(bare(line).arg("--config").arg(self.path("gate.json")))
    }

    /// Where the server writes down what it did.
    pub(super) fn ledger(&self) -> PathBuf {
        self.outside.path().join("ledger")
    }

    pub(super) fn folder(&self) -> &std::path::Path {
        self.folder.path()
    }

    pub(super) fn manifest(&self) -> Value {
        serde_json::from_slice(&fs::read(self.path("shop.json")).unwrap()).unwrap()
    }
}

#[test]
fn a_first_pin_writes_what_the_server_offers() {
    let gate = Gate::new();
    let ran = gate.run("pin");
    assert_eq!((ran.status, ran.err.as_str()), (0, ""));
    insta::assert_snapshot!(ran.out.replace(gate.folder.path().to_str().unwrap(), "<folder>"), @r"
    shop: 3 tools, manifest <folder>/shop.json
      balance                      readOnly                   Tell what an account holds.
      pay                          claims nothing             Pay somebody.
      refund                       no annotations             Give a payment back.
    written
    ");
    assert_eq!(fs::metadata(gate.path("shop.json")).unwrap().mode() & 0o7777, 0o600);
    assert_eq!(gate.manifest()["tools"].as_object().unwrap().len(), 3);
    let again = gate.run("pin");
    assert_eq!(again.status, 0, "{}", again.err);
    assert!(again.out.contains("as it was pinned; the manifest stays"), "{}", again.out);
    assert!(
        !gate.path("gate.db").exists() && !gate.path("gate.db-wal").exists(),
        "pinning opens no database"
    );
}

#[test]
fn a_changed_server_is_shown_and_replaces_its_manifest_only_with_consent() {
    let gate = Gate::new();
    assert_eq!(gate.run("pin").status, 0);
    let mut pinned = gate.manifest();
    pinned["tools"]["pay"]["description"] = json!("Pay nobody.");
    pinned["tools"]["gone"] = pinned["tools"]["refund"].clone();
    pinned["tools"]["gone"]["name"] = json!("gone");
    pinned["tools"].as_object_mut().unwrap().remove("refund");
    fs::write(gate.path("shop.json"), pinned.to_string()).unwrap();
    let refused = gate.run("pin");
    assert_eq!((refused.status, refused.code()), (2, "usage.confirm"));
    for line in ["    - Pay nobody.", "    + Pay somebody.", "- removed  gone ", "+ added    refund "] {
        assert!(refused.out.contains(line), "{line:?} in {}", refused.out);
    }
    assert_eq!(gate.manifest(), pinned, "nothing was written");
    let agreed = gate.run("pin --yes");
    assert_eq!(agreed.status, 0, "{}", agreed.err);
    let tools = gate.manifest()["tools"].clone();
    assert_eq!(tools["pay"]["description"], "Pay somebody.");
    assert!(tools.get("gone").is_none() && tools.get("refund").is_some());
}

#[test]
fn a_server_that_is_down_does_not_keep_the_others_from_being_pinned() {
    let mut gate = Gate::new();
    let mut down = gate.config["servers"][0].clone();
    down["name"] = json!("down");
    down["manifest"] = json!("down.json");
    down["command"] = json!(["/bin/sh", "-c", "echo 'no licence \u{1b}[2J' >&2; exit 3"]);
    gate.config["servers"].as_array_mut().unwrap().insert(0, down);
    gate.save();
    let ran = gate.run("pin");
    assert_eq!((ran.status, ran.code()), (1, "server.down"));
    assert!(ran.err.contains("no licence"), "{}", ran.err);
    super::assert_harmless(&ran.err);
    assert!(gate.path("shop.json").exists() && !gate.path("down.json").exists());
}

#[test]
fn a_configuration_that_can_t_be_used_says_why() {
    let mut gate = Gate::new();
    let refused = |gate: &Gate, code: &str, text: &str| {
        for line in ["pin", "doctor"] {
            let ran = gate.run(line);
            let told = format!("{}{}", ran.out, ran.err);
            assert_eq!(ran.status, 1, "{line}: {told}");
            assert!(told.contains(code) && told.contains(text), "{line}: {told}");
        }
    };
    fs::set_permissions(gate.path("gate.json"), Permissions::from_mode(0o620)).unwrap();
    refused(&gate, "config.insecure", "gate.json");
    gate.config["holt"] = json!("0s");
    gate.save();
    refused(&gate, "config.invalid", "holt");
    fs::write(gate.path("gate.json"), r#"{"session":"a","session":"b"}"#).unwrap();
    refused(&gate, "config.invalid", "session");
    fs::remove_file(gate.path("gate.json")).unwrap();
    refused(&gate, "config.unreadable", "gate.json");
}

#[test]
fn the_doctor_finds_a_pinned_configuration_healthy() {
    let gate = Gate::new();
    assert_eq!(gate.run("pin").status, 0);
    let ran = gate.run("doctor");
    let told = ran.out.replace(gate.folder.path().to_str().unwrap(), "<folder>");
    // Machines differ in what they allow.
    let (before, rest) = told.split_once(" are held by ").unwrap();
    let told = format!("{before} are held by …\n{}", rest.split_once('\n').unwrap().1);
    insta::assert_snapshot!(told, @r"
    configuration
      ok    <folder>/gate.json is readable: session test, 1 server
      ok    no server's arguments reach the gate's own files
      -     server shop: its processes are held by …
      -     server shop: refund: no rule
      ok    server shop starts and offers 2 tools

    database
      look  <folder>/gate.db does not exist yet
      ok    serving can write it

    running proxies
      -     no proxy serves this database now
    ");
    assert_eq!((ran.status, ran.err.as_str()), (0, ""));
    let names: Vec<String> = fs::read_dir(gate.folder.path())
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    assert_eq!(names.len(), 2, "nothing was made: {names:?}");
}

#[test]
fn a_database_that_serving_can_t_write_is_named_before_a_host_comes() {
    let gate = Gate::new();
    assert_eq!(gate.run("pin").status, 0);
    let modes = |of: &str, mode| fs::set_permissions(gate.path(of), Permissions::from_mode(mode)).unwrap();
    let judged = |named: &str| {
        let (doctor, check) = std::thread::scope(|scope| {
            let judging = scope.spawn(|| {
                start_programs_that_are_held_by_modes();
                (gate.run("doctor"), gate.run("check"))
            });
            judging.join().unwrap()
        });
        let told = format!(
            "{} can't be written by this user",
            gate.path(named).display().to_string().trim_end_matches('/')
        );
        assert_eq!((doctor.status, doctor.code()), (1, "doctor.failed"), "{named}: {}", doctor.out);
        assert!(doctor.out.contains(&told) && doctor.out.contains("[store.io]"), "{named}: {}", doctor.out);
        assert_eq!((check.status, check.code()), (1, "store.io"), "{named}: {}", check.err);
        assert!(check.err.contains(&told), "{named}: {}", check.err);
    };
    modes("", 0o555);
    judged("");
    modes("", 0o755);
    assert_eq!(gate.run("check").status, 0);
    modes("gate.db", 0o400);
    judged("gate.db");
    modes("gate.db", 0o600);
    // Reading has made files beside the database, of its mode then.
    for name in ["gate.db-wal", "gate.db-shm"].into_iter().filter(|name| gate.path(name).exists()) {
        modes(name, 0o600);
    }
    assert_eq!((gate.run("doctor").status, gate.run("check").status), (0, 0));
}

#[test]
fn a_database_in_a_folder_that_is_missing_is_told_for_whoever_named_it() {
    let mut gate = Gate::new();
    assert_eq!(gate.run("pin").status, 0);
    gate.config["database"] = json!("none/gate.db");
    gate.save();
    let hint = "or `database` in the configuration; the proxy makes the file when it first starts, and never the folder";
    let check = gate.run("check");
    assert_eq!((check.status, check.code()), (1, "store.missing"), "{}", check.err);
    assert!(check.err.contains(hint), "{}", check.err);
    let doctor = gate.run("doctor");
    assert_eq!((doctor.status, doctor.code()), (1, "doctor.failed"), "{}", doctor.out);
    assert!(doctor.out.contains("[store.missing]") && doctor.out.contains(hint), "{}", doctor.out);
}

#[test]
fn the_doctor_says_what_holds_a_server_s_processes() {
    let mut gate = Gate::new();
    assert_eq!(gate.run("pin").status, 0);
    for (word, told) in [
        (json!(null), "held by a "),
        (json!(false), "held by a guard process\n"),
        (json!(true), "process-id namespace"),
    ] {
        gate.config["servers"][0]["pid_namespace"] = word.clone();
        gate.save();
        let ran = gate.run("doctor");
        assert!(ran.out.contains(told), "{word}: {}", ran.out);
        // Where no namespace can be made, one that is asked for fails the server, and says what to do.
        let refused = ran.out.contains("no process-id namespace can be made here");
        assert_eq!(ran.status, i32::from(refused), "{word}: {}", ran.out);
        assert!(!refused || (word == json!(true) && ran.out.contains("set it to false")), "{}", ran.out);
    }
}

#[test]
fn the_doctor_says_what_is_wrong_with_each_server() {
    let mut gate = Gate::new();
    let unpinned = gate.run("doctor");
    assert_eq!((unpinned.status, unpinned.code()), (1, "doctor.failed"));
    assert!(unpinned.out.contains("[config.unreadable]"), "{}", unpinned.out);
    assert!(unpinned.out.contains("hint: holdpoint pin makes the manifest of shop"), "{}", unpinned.out);
    assert_eq!(gate.run("pin").status, 0);
    let reaching = json!(gate.folder.path());
    gate.config["servers"][0]["command"].as_array_mut().unwrap().push(reaching);
    gate.config["servers"][0]["rules"]["nothing"] = json!({"side_effect": "read_only"});
    gate.save();
    let ran = gate.run("--json doctor");
    assert_eq!(ran.status, 1);
    let told: Value = serde_json::from_str(&ran.out).unwrap();
    assert_eq!(told["healthy"], false);
    let codes: Vec<&str> =
        told["findings"].as_array().unwrap().iter().filter_map(|finding| finding["code"].as_str()).collect();
    assert_eq!(codes, ["config.reach", "config.invalid"], "{}", ran.out);
}

#[test]
fn the_doctor_looks_at_a_database_alone() {
    let record = Record::waiting(json!({"amount": 20}));
    let ran = record.run("doctor");
    assert_eq!(ran.status, 0, "{}{}", ran.out, ran.err);
    for text in [
        "schema version 6",
        "every page is sound",
        "1 run: 1 WAITING_FOR_APPROVAL",
        "1 approval waiting for a decision",
        "the chain of events is intact from 1 to ",
    ] {
        assert!(ran.out.contains(text), "{text:?} in {}", ran.out);
    }
    record.tamper("UPDATE runs SET status = 'RUNNING', lease_owner = 'gone/1', lease_expires_at = '2026-10-01T09:00:30Z'");
    let left = record.run("doctor").out;
    assert!(
        left.contains("run r1 was left half done by gone/1; its lease ran out 2026-10-01 09:00:30"),
        "{left}"
    );
    record.tamper("DELETE FROM events WHERE seq = 2");
    let broken = record.run("doctor");
    assert_eq!((broken.status, broken.code()), (1, "doctor.failed"));
    assert!(broken.out.contains("[chain.broken]"), "{}", broken.out);
    let missing = Ran::of(&mut bare("doctor"));
    assert_eq!((missing.status, missing.code()), (2, "usage.no_database"));
}
