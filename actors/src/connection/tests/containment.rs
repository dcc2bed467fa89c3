//! What holds a server's processes: nothing gets out, and the server notices as little of it as can be.
//!
//! Each test goes every way that this machine allows, and says which it skips. The witness of a process that hides from
//! everybody is a pipe: it has hung up when the last process that held it has gone.

use std::io::{Read, Write};
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, channel};

use super::*;
use process::Process;
use rustix::process::{Pid, Signal, kill_process};

const GUARDED: [&[Containment]; 3] =
    [&[Containment::PidNamespace], &[Containment::UserNamespace], &[Containment::Guard]];

fn say(line: std::fmt::Arguments<'_>) {
    writeln!(std::io::stderr(), "{line}").unwrap();
}

/// The guarded ways that can be gone here.
fn ways() -> Vec<&'static [Containment]> {
    let mut ways = GUARDED.to_vec();
    ways.retain(|way| match way[0].obstacle() {
        None => true,
        Some(why) => {
            say(format_args!("skipped: {} ({why})", way[0].describe()));
            false
        }
    });
    ways
}

fn pid(number: u32) -> Pid {
    Pid::from_raw(number.cast_signed()).unwrap()
}

/// Sees a process come that opens a pipe, and the last one go that holds it.
struct Witness {
    _folder: tempfile::TempDir,
    path: String,
    news: Receiver<&'static str>,
}

impl Witness {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("hold");
        let mode = rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR;
        rustix::fs::mknodat(rustix::fs::CWD, &path, rustix::fs::FileType::Fifo, mode, 0).unwrap();
        let (tell, news) = channel();
        let pipe = path.clone();
        std::thread::spawn(move || {
            // Opened when somebody opens the other end.
            let mut pipe = std::fs::File::open(pipe).unwrap();
            pipe.read_exact(&mut [0]).unwrap();
            tell.send("held").ok();
            pipe.read_to_end(&mut Vec::new()).unwrap();
            tell.send("gone").ok();
        });
        Self { _folder: folder, path: path.to_str().unwrap().to_owned(), news }
    }

    /// A server that starts a process which leaves it, its group and its session at once.
    fn spec(&self) -> ServerSpec {
        ServerSpec { env: vec![format!("HOLD={}", self.path)], ..spec("escapes") }
    }

    fn sees(&self, what: &str) {
        assert_eq!(self.news.recv_timeout(PATIENCE), Ok(what));
    }
}

async fn start(way: &'static [Containment], spec: &ServerSpec) -> Process {
    let process = Process::start_in(way, spec, "test", Arc::new(MemoryLedger::default())).await.unwrap();
    assert_eq!(process.held(), &Held { by: way[0], instead_of: None });
    process
}

/// Starts a shell in place of a server.
async fn shell(way: &'static [Containment], script: &str) -> Process {
    let command = ["sh", "-c", script].map(str::to_owned).to_vec();
    start(way, &ServerSpec { name: "fake".to_owned(), command, ..ServerSpec::default() }).await
}

async fn first_line(process: &mut Process) -> String {
    use tokio::io::AsyncBufReadExt;
    let mut line = String::new();
    let mut output = tokio::io::BufReader::new(process.stdout.take().unwrap());
    tokio::time::timeout(PATIENCE, output.read_line(&mut line)).await.unwrap().unwrap();
    line.trim().to_owned()
}

async fn end_of(process: &Process) -> ExitStatus {
    let mut exit = process.exit();
    let ended = tokio::time::timeout(PATIENCE, exit.wait_for(Option::is_some)).await.unwrap();
    ended.unwrap().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_process_that_left_its_server_at_once_ends_with_the_connection() {
    for way in ways() {
        for polite in [true, false] {
            let witness = Witness::new();
            let process = start(way, &witness.spec()).await;
            witness.sees("held");
            if polite {
                process.close().await;
            } else {
                drop(process);
            }
            witness.sees("gone");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_process_that_left_its_server_at_once_ends_with_a_killed_actor() {
    for asked in [None, Some(false)] {
        let witness = Witness::new();
        let connection = Connection::start(ServerSpec { pid_namespace: asked, ..witness.spec() }).await;
        witness.sees("held");
        connection.actor.kill();
        witness.sees("gone");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_process_that_left_its_server_at_once_ends_with_the_server() {
    for way in ways() {
        let witness = Witness::new();
        let process = start(way, &witness.spec()).await;
        witness.sees("held");
        // The server's number here, also in a namespace.
        kill_process(pid(process.pid()), Signal::KILL).unwrap();
        assert_eq!(end_of(&process).await.signal(), Some(9));
        witness.sees("gone");
    }
}

#[test]
fn a_process_that_left_its_server_at_once_ends_with_a_killed_owner() {
    for asked in [None, Some(true), Some(false)] {
        if let Err(why) = contain::expected(asked) {
            say(format_args!("skipped: {why}"));
            continue;
        }
        let witness = Witness::new();
        let word = asked.map(|asked| ("PID_NAMESPACE", asked.to_string()));
        let mut owner = Command::new(example("fake_owner"))
            .args(["1".to_owned(), fake_mcp(), "escapes".to_owned()])
            .env("HOLD", &witness.path)
            .envs(word)
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        witness.sees("held");
        owner.kill().unwrap();
        witness.sees("gone");
        owner.wait().unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stopped_guard_does_what_it_is_told_all_the_same() {
    for way in ways() {
        let witness = Witness::new();
        let process = start(way, &witness.spec()).await;
        witness.sees("held");
        let guard = guard_of(&process);
        kill_process(pid(guard), Signal::STOP).unwrap();
        while reap::ProcessStat::read(guard).is_some_and(|stat| stat.state != 'T') {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        drop(process);
        witness.sees("gone");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_seen_of_a_process_that_left_its_server_ends_also_when_the_guard_is_killed() {
    for way in ways().into_iter().filter(|way| !way[0].is_namespace()) {
        let witness = Witness::new();
        let ledger = Arc::new(MemoryLedger::default());
        let process = Process::start_in(way, &witness.spec(), "test", ledger.clone()).await.unwrap();
        witness.sees("held");
        let started = Instant::now();
        while ledger.groups().len() < 2 {
            assert!(started.elapsed() < PATIENCE, "it was never seen");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        kill_process(pid(guard_of(&process)), Signal::KILL).unwrap();
        witness.sees("gone");
        assert_eq!(end_of(&process).await.signal(), Some(9));
    }
}

/// The child of this process that is above a server.
fn guard_of(process: &Process) -> u32 {
    let mut above = process.pid();
    loop {
        let status = std::fs::read_to_string(format!("/proc/{above}/status")).unwrap();
        let parent = status.lines().find_map(|line| line.strip_prefix("PPid:")).unwrap();
        match parent.trim().parse().unwrap() {
            parent if parent == std::process::id() => return above,
            parent => above = parent,
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_end_of_a_server_is_its_own_and_not_that_of_a_guard() {
    for way in ways() {
        for (script, status) in [
            ("exit 0", ExitStatus::from_raw(0)),
            ("exit 7", ExitStatus::from_raw(7 << 8)),
            ("exit 137", ExitStatus::from_raw(137 << 8)),
            ("kill -TERM $$", ExitStatus::from_raw(15)),
            ("kill -KILL $$", ExitStatus::from_raw(9)),
        ] {
            let process = shell(way, script).await;
            assert_eq!(end_of(&process).await, status, "{script}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_cannot_be_executed_says_why_in_the_same_words() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("no-program");
    std::fs::write(&file, "words").unwrap();
    for program in ["/no/such/program", "/", file.to_str().unwrap(), "no-such-program"] {
        let spec = ServerSpec { command: vec![program.to_owned()], ..ServerSpec::default() };
        let ledger = || Arc::new(MemoryLedger::default());
        let bare = Process::start_in(&[Containment::Group], &spec, "test", ledger()).await.unwrap_err();
        for way in ways() {
            let error = Process::start_in(way, &spec, "test", ledger()).await.unwrap_err();
            assert_eq!((error.kind(), error.to_string()), (bare.kind(), bare.to_string()));
        }
    }
}

/// Closes a shell once it says that it is ready, and gives its end.
async fn closed(way: &'static [Containment], script: &str) -> ExitStatus {
    let mut process = shell(way, script).await;
    assert_eq!(first_line(&mut process).await, "ready");
    let exit = process.exit();
    process.close().await;
    exit.borrow().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn closing_asks_first_by_the_end_of_input_then_by_sigterm_then_kills() {
    let by_its_input = "echo ready; read line; exit 3";
    // SIGTERM reaches the whole group: the child must end too before the server does.
    let by_sigterm = "trap 'wait; exit 4' TERM; sh -c 'trap \"exit 0\" TERM; echo ready; while :; do sleep 1; done' & wait";
    let by_sigkill = "trap '' TERM; echo ready; while :; do sleep 1000; done";
    let cases = ways().into_iter().map(|way| async move {
        let ends = tokio::join!(closed(way, by_its_input), closed(way, by_sigterm), closed(way, by_sigkill));
        assert_eq!((ends.0.code(), ends.1.code(), ends.2.signal()), (Some(3), Some(4), Some(9)), "{way:?}");
    });
    futures_util::future::join_all(cases).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_guard_takes_no_orders_to_terminate_from_its_server() {
    for way in ways() {
        // In a namespace the parent is the init.
        let script = "trap 'exit 5' TERM; kill -TERM $PPID; echo done; read line; exit 6";
        let mut process = shell(way, script).await;
        assert_eq!(first_line(&mut process).await, "done");
        let exit = process.exit();
        process.close().await;
        assert_eq!(exit.borrow().and_then(|status| status.code()), Some(6));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_finds_itself_under_its_own_number_and_leads_a_group() {
    for way in ways() {
        let script = "set -- $$ $(cut -d' ' -f1,5 /proc/$$/stat) $(cut -d' ' -f1 /proc/self/stat) $$; \
                      [ $1 = $2 ] && [ $2 = $3 ] && [ $4 != $1 ] && tr '\\0' ' ' < /proc/$$/cmdline | head -c 5";
        let mut process = shell(way, script).await;
        assert_eq!(first_line(&mut process).await, "sh -c", "{way:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_of_a_namespace_sees_out_of_it_and_its_first_process_is_not_the_server() {
    for way in ways().into_iter().filter(|way| way[0].is_namespace()) {
        let mut process = shell(way, "echo $$ $PPID $(ls -d /proc/[0-9]* | wc -l)").await;
        // Itself, the init, and the two ends of that pipe.
        let seen = first_line(&mut process).await;
        assert!(seen == "2 1 4" || seen == "2 1 5", "{seen}");
        assert_ne!(process.pid(), 2);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_is_the_user_that_it_was_and_has_gained_no_capability() {
    let own = |field: &str| {
        let status = std::fs::read_to_string("/proc/self/status").unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix(field)).unwrap().to_owned();
        line.split_whitespace().collect::<Vec<_>>().join(" ")
    };
    let folder = tempfile::tempdir().unwrap();
    for way in ways() {
        let file = folder.path().join(format!("made-{:?}", way[0]));
        let script = format!(
            "echo made > '{}'; echo $(grep -E '^(Uid|Gid|CapEff|CapPrm|CapAmb|CapBnd|NoNewPrivs)' /proc/self/status)",
            file.display()
        );
        let mut process = shell(way, &script).await;
        let (effective, bounding) = if way[0] == Containment::UserNamespace {
            ("0000000000000000".to_owned(), "0000000000000000".to_owned())
        } else {
            (own("CapEff:"), own("CapBnd:"))
        };
        assert_eq!(
            first_line(&mut process).await,
            format!(
                "Uid: {} Gid: {} CapPrm: {effective} CapEff: {effective} CapBnd: {bounding} CapAmb: {} NoNewPrivs: 1",
                own("Uid:"),
                own("Gid:"),
                own("CapAmb:"),
            )
        );
        use std::os::unix::fs::MetadataExt;
        let made = std::fs::metadata(&file).unwrap();
        let (uid, gid) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
        assert_eq!((made.uid(), made.gid()), (uid, gid));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_guard_keeps_nothing_open_and_lets_nobody_look_into_it() {
    for way in ways() {
        let process = start(way, &spec("normal")).await;
        let mut above = process.pid();
        let command = std::fs::read_to_string(format!("/proc/{above}/cmdline")).unwrap();
        assert!(command.starts_with(&fake_mcp()), "what is shown is the server: {command:?}");
        while above != guard_of(&process) {
            let status = std::fs::read_to_string(format!("/proc/{above}/status")).unwrap();
            let parent = status.lines().find_map(|line| line.strip_prefix("PPid:")).unwrap();
            above = parent.trim().parse().unwrap();
            // The files of a process that can't be looked into belong to the root user, who may look all the same.
            let root = std::fs::metadata(format!("/proc/{above}/mem")).map(|file| {
                use std::os::unix::fs::MetadataExt;
                file.uid()
            });
            assert!(root.is_ok_and(|uid| uid == 0));
            if let Ok(open) = std::fs::read_dir(format!("/proc/{above}/fd")) {
                assert!(open.count() <= 2);
            }
        }
        process.close().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_must_have_a_namespace_is_held_in_one_or_not_started() {
    let connection = Connection::start(ServerSpec { pid_namespace: Some(true), ..spec("normal") }).await;
    match contain::expected(Some(true)) {
        Ok(held) => {
            assert!(held.by.is_namespace());
            connection.tools().await.unwrap();
            let seen = connection.observe().await;
            assert_eq!((seen.held_by, seen.held_because), (Some(held.by), held.instead_of));
        }
        Err(why) => assert!(connection.tools().await.unwrap_err().contains(&why)),
    }
    connection.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_way_that_cannot_be_gone_is_told_and_the_next_is_taken() {
    // What an ordinary user's server meets; whoever may make namespaces has no obstacle here.
    let process = Process::start(&spec("normal"), "test", Arc::new(MemoryLedger::default())).await.unwrap();
    assert_eq!(process.held(), &contain::expected(None).unwrap());
    match Containment::PidNamespace.obstacle() {
        None => assert_eq!(process.held().by, Containment::PidNamespace),
        Some(why) => assert!(process.held().instead_of.as_ref().is_some_and(|told| told.contains(why))),
    }
    process.close().await;
}
