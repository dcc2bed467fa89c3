//! One case's world: a folder with the gate's files, the ledgers beside it, the real programs, and a log of everything
//! that people were told.
//!
//! Owns the layout and its removal. The programs are the product's, as child processes; what happens to them is asked for
//! in their environment.

use std::fs::{self, OpenOptions, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use rusqlite::{Connection, OpenFlags, Row};
use serde_json::{Value, json};

use crate::checker::{Decided, Effect, Head, Held, Outside, Property, Told, Violation, When, ask};
use crate::clock::{Rng, pass, until};
use crate::host::{Answer, End, Heard, Host, PATIENCE};
use crate::payments::{RECORD, RECORDING, beside, mark};
use crate::power::{self, Images};

/// The gate's lease; the shortest that it takes.
pub(crate) const LEASE: Duration = Duration::from_secs(3);
/// How far a process that recovers is ahead of the one that died: past its lease.
const PAST_LEASE_MS: u64 = 4_000;
/// How long a question and a grant are good for, which the configuration says in its own words.
const GOOD_FOR_MS: u64 = 1_800_000;
/// How often a call is repeated before it counts as stuck, and how long between.
const TRIES_MAX: usize = 150;
/// How often a call that is blocked is repeated before the others are made.
const BLOCKED_MAX: usize = 2;
/// What a decision ends in that found the file locked: nothing was recorded.
const LOCKED: End = End::Exited(i32::MIN);
/// How often it is tried again.
const LOCKED_MAX: usize = 5;
/// Where the pins are.
const MANIFESTS: [&str; 2] = ["bank.manifest.json", "petty.manifest.json"];
const BETWEEN_TRIES: Duration = Duration::from_millis(40);
/// How long a server may outlive its gate: the time of a signal.
const ORPHANS: Duration = Duration::from_secs(5);

/// Where the programs are.
#[derive(Debug, Clone)]
pub(crate) struct Programs {
    /// The product, built with its faults.
    pub(crate) holdpoint: PathBuf,
    /// What records a disk.
    pub(crate) recorder: PathBuf,
    /// The layers that run inside one process with the product's crates.
    pub(crate) inside: PathBuf,
    /// This program, which is also the payment server.
    pub(crate) campaign: PathBuf,
    /// A folder for the cases.
    pub(crate) folder: PathBuf,
    /// Where these programs are.
    pub(crate) place: PathBuf,
}

/// A call that a host makes.
#[derive(Debug, Clone)]
pub(crate) struct Call {
    pub(crate) tool: String,
    pub(crate) args: Value,
}

impl Call {
    pub(crate) fn read(reference: &str) -> Call {
        Call { tool: "petty_balance".to_owned(), args: json!({"ref": reference}) }
    }

    pub(crate) fn pay(server: &str, reference: &str, mode: Option<&str>) -> Call {
        let mut args = json!({"amount": 40, "ref": reference});
        if let Some(mode) = mode {
            args["mode"] = json!(mode);
        }
        Call { tool: format!("{server}_pay"), args }
    }
}

/// What came of making a call until it is over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Settled {
    Done,
    /// The proxy died.
    Died,
    /// Another request has to be made first: a person allowed its repetition.
    Blocked,
}

/// An approval that waits.
#[derive(Debug)]
pub(crate) struct Waiting {
    pub(crate) run: String,
    pub(crate) id: String,
    pub(crate) kind: String,
}

pub(crate) struct World {
    programs: Programs,
    root: PathBuf,
    ahead_ms: u64,
    broken: Option<&'static str>,
    pub(crate) told: Vec<Told>,
    pub(crate) decided: Vec<Decided>,
    pub(crate) heads: Vec<Head>,
    held: Vec<Held>,
    people: u64,
    /// Whether the file was an older version's once.
    pub(crate) older: bool,
    /// Whether an embedding service takes the calls instead of a proxy.
    embedded: bool,
    /// Whether what is written and synced is recorded.
    records: bool,
    /// Which write, sync or truncation of the programs that are started fails.
    fails: Option<String>,
    /// What was wrong with what people were told, apart from the record.
    pub(crate) wrong: Vec<Violation>,
    /// Kept on disk for whoever has to look at it.
    pub(crate) keep: bool,
}

impl World {
    pub(crate) fn make(
        programs: &Programs,
        name: &str,
        broken: Option<&'static str>,
    ) -> Result<World, String> {
        let root = programs.folder.join(name);
        for folder in ["gate", "bank", "petty", "judge"] {
            let path = root.join(folder);
            fs::create_dir_all(&path).map_err(|error| format!("{}: {error}", path.display()))?;
            own(&path, 0o700)?;
        }
        let world = World {
            programs: programs.clone(),
            root,
            ahead_ms: 0,
            broken,
            told: Vec::new(),
            decided: Vec::new(),
            heads: Vec::new(),
            held: Vec::new(),
            people: 0,
            older: false,
            embedded: false,
            records: false,
            fails: None,
            wrong: Vec::new(),
            keep: false,
        };
        let config = world.path("gate/config.json");
        fs::write(&config, world.configuration().to_string()).map_err(|error| error.to_string())?;
        own(&config, 0o600)?;
        world.pin()?;
        Ok(world)
    }

    fn configuration(&self) -> Value {
        let server = |name: &str, outcome: &str| {
            json!({
                "name": name,
                "command": [self.programs.campaign, "payment-server", self.ledger(name)],
                "env": [format!("{RECORD}={}", self.database().display()), format!("{RECORDING}={}", self.recording().display())],
                "default_timeout": "20s",
                "manifest": format!("{name}.manifest.json"),
                "rules": {
                    "balance": {"side_effect": "read_only"},
                    "pay": {"side_effect": "remote_mutation", "outcome": outcome},
                },
            })
        };
        json!({
            "database": "gate.db", "session": "campaign", "hold": "0s", "repeat_window": "1000h",
            "approval_ttl": "30m", "grant_ttl": "30m",
            "max_pending": 50, "lease_ttl": format!("{}s", LEASE.as_secs()),
            "servers": [server("bank", "require_approval"), server("petty", "allow")],
        })
    }

    /// Pins the tools; they are the same in every world, so only the first one asks the servers.
    fn pin(&self) -> Result<(), String> {
        let pinned = self.programs.folder.join("pinned");
        if !pinned.exists() {
            let output = self.pin_again()?;
            if !output.status.success() {
                return Err(format!("pin: {}", String::from_utf8_lossy(&output.stderr)));
            }
            fs::create_dir_all(&pinned).map_err(|error| error.to_string())?;
            for name in MANIFESTS {
                fs::copy(self.path("gate").join(name), pinned.join(name))
                    .map_err(|error| error.to_string())?;
            }
        }
        for name in MANIFESTS {
            let to = self.path("gate").join(name);
            fs::copy(pinned.join(name), &to).map_err(|error| error.to_string())?;
            own(&to, 0o600)?;
        }
        Ok(())
    }

    /// Has the product ask the servers for their tools.
    pub(crate) fn pin_again(&self) -> Result<Output, String> {
        let mut command = self.program(&self.programs.holdpoint, None);
        command.args(["pin", "--yes", "--config"]).arg(self.path("gate/config.json")).stdin(Stdio::null());
        command.output().map_err(|error| format!("pin: {error}"))
    }

    /// Makes the pins others than the servers' tools, so that pinning again writes them.
    pub(crate) fn outdate_pins(&self) -> Result<(), String> {
        for name in MANIFESTS {
            let pinned = fs::read_to_string(self.programs.folder.join("pinned").join(name));
            let older = pinned.map(|text| text.replace("Pay somebody.", "Pay nobody."));
            older
                .and_then(|text| fs::write(self.path("gate").join(name), text))
                .map_err(|error| error.to_string())?;
        }
        Ok(())
    }

    /// Makes the pins those of tools that were described otherwise: each description has another hash.
    pub(crate) fn drift(&self) -> Result<(), String> {
        const HASH: &str = "\"description_hash\": \"";
        for name in MANIFESTS {
            let path = self.path("gate").join(name);
            let pinned = fs::read_to_string(&path).map_err(|error| error.to_string())?;
            let mut parts = pinned.split(HASH);
            let mut other = parts.next().unwrap_or_default().to_owned();
            for part in parts {
                let rest = part.get(64..).ok_or("a pin has no hash")?;
                other += &format!("{HASH}{}{rest}", "0".repeat(64));
            }
            if other == pinned {
                return Err(format!("{name} pins no description"));
            }
            fs::write(&path, other).map_err(|error| error.to_string())?;
        }
        Ok(())
    }

    /// Pins that are neither those of before nor others that are whole.
    pub(crate) fn torn_pins(&self) -> Vec<String> {
        let whole = |name: &&str| {
            let text = fs::read_to_string(self.path("gate").join(name)).unwrap_or_default();
            let pins: Value = serde_json::from_str(&text).unwrap_or_default();
            pins["tools"]
                .as_object()
                .is_some_and(|tools| tools.contains_key("pay") && tools.contains_key("balance"))
        };
        MANIFESTS.iter().filter(|name| !whole(name)).map(|name| format!("{name} is torn")).collect()
    }

    fn path(&self, name: &str) -> PathBuf {
        self.root.join(name)
    }

    pub(crate) fn database(&self) -> PathBuf {
        self.path("gate/gate.db")
    }

    pub(crate) fn ledger(&self, server: &str) -> PathBuf {
        self.path(server).join("ledger")
    }

    pub(crate) fn programs(&self) -> &Programs {
        &self.programs
    }

    pub(crate) fn program(&self, program: &Path, fault: Option<&str>) -> Command {
        let mut command = Command::new(program);
        command.env("HOLDPOINT_CLOCK_AHEAD_MS", self.ahead_ms.to_string());
        for (name, value) in [("HOLDPOINT_FAULT", fault), ("HOLDPOINT_BROKEN", self.broken)] {
            match value {
                Some(value) => command.env(name, value),
                None => command.env_remove(name),
            };
        }
        if self.records {
            command.env("LD_PRELOAD", &self.programs.recorder);
            command.env("CAMPAIGN_IO_FILE", self.database()).env(RECORDING, self.recording());
        }
        if let Some(fails) = &self.fails {
            command.env("LD_PRELOAD", &self.programs.recorder).env("CAMPAIGN_IO_FAIL", fails);
            command.env("CAMPAIGN_IO_FOLDER", self.path("gate")).env("CAMPAIGN_IO_HIT", self.path("hits"));
        }
        command
    }

    /// From now on the programs' writes and syncs are recorded.
    pub(crate) fn record(&mut self) {
        self.records = true;
    }

    /// From now on this write, sync or truncation of a program that is started fails; none, when there is nothing.
    pub(crate) fn fail(&mut self, fails: Option<String>) {
        self.fails = fails;
    }

    /// What the programs' files were told of failures: which struck, and what a log was asked for after its sync failed.
    pub(crate) fn hits(&self) -> Vec<String> {
        fs::read_to_string(self.path("hits")).unwrap_or_default().lines().map(str::to_owned).collect()
    }

    /// Where the disk is recorded.
    pub(crate) fn recording(&self) -> PathBuf {
        self.path("recording")
    }

    /// Whether the log was ever synced while it was recorded.
    pub(crate) fn was_synced(&self) -> bool {
        power::has_sync(&self.recording())
    }

    pub(crate) fn mark(&self) -> u64 {
        mark(Some(&self.recording()))
    }

    /// When what is told of a call can't be lost with the power: at once, but for a read, which is synced a moment later.
    fn kept_by(&self, call: &Call) -> u64 {
        if call.tool.ends_with("_pay") { self.mark() } else { u64::MAX }
    }

    /// So much time has passed that the first so many that were told can't be lost any more, reads too.
    pub(crate) fn are_kept(&mut self, first: usize) {
        let mark = self.mark();
        self.told.iter_mut().take(first).for_each(|told| told.mark = told.mark.min(mark));
    }

    /// Hears the answer to a call that was sent.
    pub(crate) fn hear(&mut self, host: &mut Host, call: &Call, id: u64) -> Result<Option<Answer>, String> {
        match host.hear(id, PATIENCE) {
            Heard::Gone => Ok(None),
            Heard::Silence => Err(self.never_ends(format!("{call:?} was never answered"))),
            Heard::Answer(answer) => {
                let mark = self.kept_by(call);
                let (tool, args) = (call.tool.clone(), call.args.clone());
                self.told.push(Told { tool, args, answer: answer.clone(), mark });
                Ok(Some(answer))
            }
        }
    }

    /// Cuts the power at so many moments of what was recorded.
    pub(crate) fn cut_power(&self, images: usize, rng: &mut Rng) -> Result<Images, String> {
        power::cut(&self.recording(), &self.path("judge"), &self.outside(Vec::new())?, images, rng)
    }

    /// From now on what is started is an embedding service.
    pub(crate) fn embed(&mut self) {
        self.embedded = true;
    }

    pub(crate) fn is_embedded(&self) -> bool {
        self.embedded
    }

    /// Starts a proxy, or a service, that does not know of a greeting yet.
    pub(crate) fn spawn(&self, fault: Option<&str>) -> Result<Host, String> {
        if self.embedded { self.spawn_service(fault) } else { self.spawn_proxy(fault) }
    }

    fn spawn_proxy(&self, fault: Option<&str>) -> Result<Host, String> {
        let mut command = self.program(&self.programs.holdpoint, fault);
        command.args(["proxy", "--config"]).arg(self.path("gate/config.json"));
        self.host(command)
    }

    /// Starts a service that embeds the gate, on the same record.
    pub(crate) fn spawn_service(&self, fault: Option<&str>) -> Result<Host, String> {
        let mut command = self.program(&self.programs.inside, fault);
        command.arg("service").arg(self.database()).arg(&self.root);
        command.env(RECORD, self.database()).env(RECORDING, self.recording());
        self.host(command)
    }

    fn host(&self, mut command: Command) -> Result<Host, String> {
        let log = OpenOptions::new().create(true).append(true).open(self.path("log"));
        command.stderr(log.map_err(|error| error.to_string())?);
        Host::spawn(command)
    }

    /// Starts a proxy with a host in front of it.
    pub(crate) fn start(&self, fault: Option<&str>) -> Result<Host, String> {
        let mut host = self.spawn(fault)?;
        host.greet();
        Ok(host)
    }

    /// Lets time pass for whoever is started next.
    pub(crate) fn pass(&mut self, time: Duration) {
        self.ahead_ms += u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
    }

    /// From now on the operator's configuration says something else in one place.
    pub(crate) fn configure(&self, from: &str, to: &str) -> Result<(), String> {
        let config = self.configuration().to_string().replace(from, to);
        fs::write(self.path("gate/config.json"), config).map_err(|error| error.to_string())
    }

    /// Does to the record what somebody with an SQLite shell could.
    pub(crate) fn bend(&self, sql: &str) -> Result<(), String> {
        let bent = Connection::open(self.database()).and_then(|conn| {
            conn.execute_batch(sql)?;
            Ok(conn.total_changes())
        });
        match bent {
            Ok(changes) if changes > 0 => Ok(()),
            other => Err(format!("{sql}: {other:?}")),
        }
    }

    /// Lets the lease of everybody who died be over for whoever is started next.
    pub(crate) fn pass_lease(&mut self) {
        self.ahead_ms += PAST_LEASE_MS;
    }

    /// Makes a call, and makes it again until it is over, deciding what waits.
    pub(crate) fn settle(&mut self, host: &mut Host, call: &Call, rng: &mut Rng) -> Result<Settled, String> {
        let mut blocked = 0;
        for _ in 0..TRIES_MAX {
            let id = host.send(&call.tool, &call.args);
            let Some(answer) = self.hear(host, call, id)? else { return Ok(Settled::Died) };
            match answer.word() {
                Some("IN_PROGRESS" | "UNAVAILABLE") => pass(BETWEEN_TRIES),
                Some("PENDING_APPROVAL" | "INTERRUPTED" | "UNKNOWN_OUTCOME") => self.decide_all(rng)?,
                Some("BLOCKED") if blocked == BLOCKED_MAX => return Ok(Settled::Blocked),
                Some("BLOCKED") => {
                    blocked += 1;
                    self.decide_all(rng)?;
                }
                Some(_) | None => return Ok(Settled::Done),
            }
        }
        let last = self.told.last().map(|told| told.answer.text.clone());
        Err(self.never_ends(format!("{call:?} is stuck at {last:?}")))
    }

    /// A call that comes to no end is a violation, and the end of its case.
    fn never_ends(&mut self, detail: String) -> String {
        self.wrong.push(Violation { property: Property::Ends, detail: detail.clone() });
        detail
    }

    /// What waits for a person, read from the file.
    pub(crate) fn waiting(&self) -> Result<Vec<Waiting>, String> {
        let read = || -> rusqlite::Result<Vec<Waiting>> {
            let conn = Connection::open_with_flags(self.database(), OpenFlags::SQLITE_OPEN_READ_ONLY)?;
            conn.busy_timeout(PATIENCE)?;
            let sql = "SELECT a.run_id, a.id, a.kind FROM approvals a JOIN runs r ON r.id = a.run_id
                       WHERE a.status = 'pending' AND r.status = 'WAITING_FOR_APPROVAL' ORDER BY a.rowid";
            conn.prepare(sql)?
                .query_map([], |row| Ok(Waiting { run: row.get(0)?, id: row.get(1)?, kind: row.get(2)? }))?
                .collect()
        };
        read().map_err(|error| format!("look for what waits: {error}"))
    }

    /// Decides everything that waits, with the operator's command: ordinary questions are approved, interruptions as
    /// chance has it.
    pub(crate) fn decide_all(&mut self, rng: &mut Rng) -> Result<(), String> {
        for waiting in self.waiting()? {
            let approve = waiting.kind != "interrupted_side_effect" || rng.flip();
            // A process that stands still in the middle of a write keeps everybody out, and the command says so.
            for _ in 0..LOCKED_MAX {
                if self.decide(&waiting, approve, None)? != LOCKED {
                    break;
                }
            }
        }
        Ok(())
    }

    /// Decides one question, and notes the decision when the command acknowledged it.
    pub(crate) fn decide(
        &mut self,
        what: &Waiting,
        approve: bool,
        fault: Option<&str>,
    ) -> Result<End, String> {
        self.people += 1;
        let by = format!("person {}", self.people);
        let mut command = self.program(&self.programs.holdpoint, fault);
        command.arg("--db").arg(self.database()).arg("--json").arg(if approve {
            "approve"
        } else {
            "reject"
        });
        let note = format!("so says {by}");
        command.args([&what.run, "--approval", &what.id, "--by", &by, "--note", &note]).stdin(Stdio::null());
        let output = command.output().map_err(|error| format!("start the operator's command: {error}"))?;
        use std::os::unix::process::ExitStatusExt as _;
        match (output.status.code(), output.status.signal()) {
            (Some(0), _) => {
                self.decided.push(Decided {
                    approval: what.id.clone(),
                    approved: approve,
                    by,
                    note,
                    mark: self.mark(),
                });
                Ok(End::Exited(0))
            }
            (_, Some(9)) => Ok(End::Killed),
            (code, _) => {
                let said = String::from_utf8_lossy(&output.stderr).into_owned();
                if said.contains("store.locked") {
                    return Ok(LOCKED);
                }
                // Somebody may have been faster, and the command says so.
                let known =
                    ["approved", "rejected", "not waiting", "CANCELLED", "RUNNING", "COMPLETED", "FAILED"];
                match known.iter().any(|word| said.contains(word)) {
                    true => Ok(End::Exited(code.unwrap_or(-1))),
                    false => Err(format!("the question {} can't be acted on: {said}", what.id)),
                }
            }
        }
    }

    /// Has an operator cancel whatever runs or waits, which the command acknowledges.
    pub(crate) fn cancel_all(&self) -> Result<Vec<String>, String> {
        let runs = self.runs("status IN ('RUNNING', 'WAITING_FOR_APPROVAL')")?;
        for run in &runs {
            let mut command = self.program(&self.programs.holdpoint, None);
            command.arg("--db").arg(self.database()).args(["--json", "cancel", run, "--by", "somebody"]);
            let output = command.stdin(Stdio::null()).output().map_err(|error| format!("cancel: {error}"))?;
            if !output.status.success() {
                return Err(format!("cancel {run}: {}", String::from_utf8_lossy(&output.stderr)));
            }
        }
        Ok(runs)
    }

    /// Calls whose end was recorded beside their cancelled runs.
    pub(crate) fn late_outcomes(&self) -> Result<i64, String> {
        let read = || -> rusqlite::Result<i64> {
            let conn = Connection::open_with_flags(self.database(), OpenFlags::SQLITE_OPEN_READ_ONLY)?;
            conn.busy_timeout(PATIENCE)?;
            let sql = "SELECT COUNT(*) FROM events e JOIN runs r ON r.id = e.run_id
                       WHERE e.type = 'step.tool_finished' AND e.payload_json LIKE '%\"late\":true%'
                         AND r.status = 'CANCELLED'";
            conn.query_row(sql, [], |row| row.get(0))
        };
        read().map_err(|error| format!("look for what came late: {error}"))
    }

    /// What the world has seen, and what people were told.
    fn outside(&self, orphans: Vec<String>) -> Result<Outside, String> {
        let mut effects = Vec::new();
        for server in ["bank", "petty"] {
            let text = fs::read_to_string(self.ledger(server)).unwrap_or_default();
            for line in text.lines() {
                let line: Value = serde_json::from_str(line).map_err(|_| format!("a torn ledger: {line}"))?;
                let open_intents = line["open_intents"].as_u64();
                effects.push(Effect {
                    tool: format!("{server}_pay"),
                    args: line["arguments"].clone(),
                    open_intents,
                    mark: line["mark"].as_u64().unwrap_or(0),
                });
            }
        }
        Ok(Outside {
            told: self.told.clone(),
            decided: self.decided.clone(),
            heads: self.heads.clone(),
            held: self.held.clone(),
            effects,
            orphans,
            aged: self.ahead_ms >= GOOD_FOR_MS,
            apart_ms: self.ahead_ms,
            older: self.older,
        })
    }

    /// Payments that were applied so far.
    pub(crate) fn effects(&self) -> usize {
        self.outside(Vec::new()).map_or(0, |outside| outside.effects.len())
    }

    /// Looks who holds what now.
    pub(crate) fn see_holders(&mut self) -> Result<(), String> {
        let read = || -> rusqlite::Result<Vec<Held>> {
            let conn = Connection::open_with_flags(self.database(), OpenFlags::SQLITE_OPEN_READ_ONLY)?;
            conn.busy_timeout(PATIENCE)?;
            let sql =
                "SELECT id, lease_owner, (SELECT MAX(seq) FROM events) FROM runs WHERE lease_owner <> ''";
            let held = |row: &Row<'_>| Ok(Held { run: row.get(0)?, owner: row.get(1)?, seq: row.get(2)? });
            conn.prepare(sql)?.query_map([], held)?.collect()
        };
        self.held.extend(read().map_err(|error| format!("look who holds what: {error}"))?);
        Ok(())
    }

    /// Judges what is left right after a death.
    pub(crate) fn judge(&self) -> Result<Vec<Violation>, String> {
        self.ask_checker(&self.outside(Vec::new())?, When::AnyTime)
    }

    /// Recovers with a new process, makes every call until it is over, closes, and judges what is left.
    pub(crate) fn recover_and_judge(
        &mut self,
        calls: &[Call],
        rng: &mut Rng,
    ) -> Result<Vec<Violation>, String> {
        self.pass_lease();
        let mut host = self.start(None)?;
        let mut found = self.recovered_unasked()?;
        self.settle_all(&mut host, calls, rng)?;
        found.extend(self.close_and_judge(host, rng)?);
        Ok(found)
    }

    /// A proxy recovers what others left as it starts, before anybody asks it for anything. A service does as its program
    /// says.
    pub(crate) fn recovered_unasked(&self) -> Result<Vec<Violation>, String> {
        let recovered =
            || self.running().map_or_else(|error| Some(Err(error)), |all| all.is_empty().then_some(Ok(())));
        if self.embedded || until(PATIENCE, recovered).transpose()?.is_some() {
            return Ok(Vec::new());
        }
        let detail = format!("{:?} are left running by a proxy that nobody has asked", self.running()?);
        Ok(vec![Violation { property: Property::Left, detail }])
    }

    /// The runs that somebody holds, or has left.
    fn running(&self) -> Result<Vec<String>, String> {
        self.runs("status = 'RUNNING'")
    }

    fn runs(&self, which: &str) -> Result<Vec<String>, String> {
        let read = || -> rusqlite::Result<Vec<String>> {
            let conn = Connection::open_with_flags(self.database(), OpenFlags::SQLITE_OPEN_READ_ONLY)?;
            conn.busy_timeout(PATIENCE)?;
            let mut runs = conn.prepare(&format!("SELECT id FROM runs WHERE {which}"))?;
            runs.query_map([], |row| row.get(0))?.collect()
        };
        read().map_err(|error| format!("look for what runs: {error}"))
    }

    /// Makes every call until it is over.
    pub(crate) fn settle_all(
        &mut self,
        host: &mut Host,
        calls: &[Call],
        rng: &mut Rng,
    ) -> Result<(), String> {
        let mut left: Vec<&Call> = calls.iter().collect();
        // Each round ends at least the one that the others were blocked by.
        for _ in 0..=calls.len() {
            let mut blocked = Vec::new();
            for call in left {
                match self.settle(host, call, rng)? {
                    Settled::Done => {}
                    Settled::Blocked => blocked.push(call),
                    Settled::Died => return Err("a proxy died that nobody killed".to_owned()),
                }
            }
            left = blocked;
        }
        if left.is_empty() { Ok(()) } else { Err(format!("{left:?} stay blocked")) }
    }

    /// Acts on every question, closes the last proxy as a host does, and judges what is left.
    pub(crate) fn close_and_judge(&mut self, host: Host, rng: &mut Rng) -> Result<Vec<Violation>, String> {
        self.decide_all(rng)?;
        match host.leave() {
            Some(End::Exited(0)) => {}
            other => return Err(format!("the proxy was left, and ended as {other:?}")),
        }
        self.judge_settled()
    }

    pub(crate) fn judge_settled(&self) -> Result<Vec<Violation>, String> {
        let _gone = until(ORPHANS, || self.orphans().is_empty().then_some(()));
        self.ask_checker(&self.outside(self.orphans())?, When::Settled)
    }

    fn ask_checker(&self, outside: &Outside, when: When) -> Result<Vec<Violation>, String> {
        ask(&self.programs.campaign, &self.database(), &self.path("judge"), outside, when)
    }

    /// Processes of this world that are alive, when the last of its proxies has gone: servers, and whoever guards them.
    ///
    /// Told by their command lines and not by what they say of themselves: a server may count in numbers of its own.
    fn orphans(&self) -> Vec<String> {
        let ours = format!("{}/", self.root.display());
        let number = |entry: fs::DirEntry| entry.file_name().into_string().ok()?.parse::<u32>().ok();
        let lives = |pid: &u32| {
            fs::read_to_string(format!("/proc/{pid}/cmdline")).is_ok_and(|line| line.contains(&ours))
        };
        let processes = fs::read_dir("/proc").into_iter().flatten().flatten().filter_map(number);
        processes.filter(lives).map(|pid| pid.to_string()).collect()
    }

    /// Waits until a payment is held in its server.
    pub(crate) fn is_held(&self, server: &str) -> Result<(), String> {
        let held = beside(&self.ledger(server), "held");
        until(PATIENCE, || held.exists().then_some(())).ok_or_else(|| "no payment came to be held".to_owned())
    }

    /// Holds no payment any more.
    pub(crate) fn release(&self) -> Result<(), String> {
        for server in ["bank", "petty"] {
            fs::write(beside(&self.ledger(server), "release"), "").map_err(|error| error.to_string())?;
        }
        Ok(())
    }

    pub(crate) fn root(&self) -> &Path {
        &self.root
    }
}

impl Drop for World {
    fn drop(&mut self) {
        if !self.keep {
            drop(fs::remove_dir_all(&self.root));
        }
    }
}

fn own(path: &Path, mode: u32) -> Result<(), String> {
    fs::set_permissions(path, Permissions::from_mode(mode))
        .map_err(|error| format!("{}: {error}", path.display()))
}
