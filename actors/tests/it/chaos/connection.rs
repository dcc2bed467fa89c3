//! The table for the actor that stands between a call and its server, walked in front of a real server.
//!
//! The world is what the server has read of its input: a call that it never read had no effect.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use holdpoint_actors::address::{self, Address};
use holdpoint_actors::connection::{
    Arguments, Fault, McpConnection, MemoryLedger, Msg, ServerSpec, Upstream, UpstreamSpec,
};
use holdpoint_actors::executor::Tool;
use holdpoint_actors::faults::Point;
use holdpoint_actors::session::{Beginning, Gate, GateSpec, OpenStep, Pace, Session, SessionError, Verdict};
use holdpoint_actors::store::Options;
use holdpoint_core::approval::Approval;
use holdpoint_core::attempt::Ending;
use holdpoint_core::decision::Proposal;
use holdpoint_core::ids::RunId;
use holdpoint_core::pin::manifest::Manifest;
use holdpoint_core::pin::rules::{Rule, Rules};
use holdpoint_core::run::RunStatus;
use holdpoint_core::step::StepStatus;
use holdpoint_core::tool::{SideEffect, ToolSpec};
use ractor::Actor as _;

use crate::bench::*;

use super::scene::{Armed, ByName, left_executing};
use super::table::{DEATHS, Death, KINDS, Kind, STEPS, Step};
use super::{SOON, counted};

/// The server's tool that answers once the file that its arguments name is there.
const HELD: &str = "held";

/// The example of this package that is a server, as a program. `cargo test` builds examples, but not when one target was asked
/// for.
fn fake_mcp() -> PathBuf {
    let tests = std::env::current_exe().unwrap();
    let program = tests.parent().unwrap().parent().unwrap().join("examples/fake_mcp");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/fake_mcp.rs");
    let changed = |path: &Path| path.metadata().and_then(|file| file.modified()).ok();
    if changed(&program) < changed(&source) {
        let build = ["build", "--quiet", "-p", "holdpoint-actors", "--examples"];
        assert!(std::process::Command::new(env!("CARGO")).args(build).status().unwrap().success());
    }
    program
}

fn server(log: &Path) -> ServerSpec {
    let text = |path: &Path| path.to_str().unwrap().to_owned();
    let command = vec![text(&fake_mcp()), "normal".to_owned(), "--log".to_owned(), text(log)];
    ServerSpec { name: "fake".to_owned(), command, ..ServerSpec::default() }
}

/// What the server's tools are pinned as.
async fn pinned() -> Manifest {
    let folder = tempfile::tempdir().unwrap();
    let arguments = Arguments {
        spec: server(&folder.path().join("log")),
        session: "pin".to_owned(),
        ledger: Arc::new(MemoryLedger::default()),
        check: Arc::new(|listing| Ok(listing.tools().map(|tool| tool.name.clone()).collect())),
    };
    let (actor, ended) = McpConnection::spawn(None, McpConnection, arguments).await.unwrap();
    let loaded = address::ask(&actor, SOON, Msg::Tools).await.unwrap().unwrap();
    address::ask(&actor, SOON, Msg::Close).await.unwrap();
    ended.await.unwrap();
    Manifest::pin("fake", start(), &loaded.listing)
}

/// Has the connection die, and waits until it is dead.
async fn strike(connection: Address<Msg>, death: Death) {
    let actor = connection.find(SOON).await.expect("an actor to kill");
    match death {
        Death::Panic => actor.cast(Msg::Fault(Fault::Panic)).unwrap(),
        Death::Error => actor.cast(Msg::Fault(Fault::Error)).unwrap(),
        Death::Kill => actor.kill(),
    }
    actor.wait(Some(SOON)).await.expect("it dies");
}

/// A tree with one server, whose tool is of the class of one kind of call.
struct Served {
    bench: Bench,
    process: Process,
    gate: Gate,
    upstream: Upstream,
    spec: ToolSpec,
    in_policy: Armed,
    log: PathBuf,
    kind: Kind,
}

impl Served {
    async fn new(kind: Kind, manifest: Manifest) -> Served {
        let (bench, in_policy) = (Bench::new(), Armed::default());
        let policy = Arc::new(ByName(in_policy.clone()));
        let process = bench.process_with(&[], policy.clone(), Options::default(), |_| {}).await;
        let log = bench.path().with_file_name("server.log");
        let class = match kind {
            Kind::Read => SideEffect::ReadOnly,
            Kind::Local | Kind::ReRun => SideEffect::LocalMutation,
            Kind::Remote | Kind::Approved => SideEffect::RemoteMutation,
        };
        let rule = Rule {
            side_effect: class.as_str().to_owned(),
            timeout: Some(SOON.into()),
            allow_hint_mismatch: true,
            ..Rule::default()
        };
        let rules = Rules::from([(HELD.to_owned(), rule)]);
        let spec = UpstreamSpec { server: server(&log), manifest, rules, terminal: false };
        let tree = process.running.tree.clone();
        let upstream =
            Upstream::start(&tree, spec, "chaos", Arc::new(MemoryLedger::default())).await.unwrap();
        let (tools, _) = upstream.load().await.unwrap();
        let tools: Vec<_> = tools.into_iter().map(|tool| Arc::new(tool) as Arc<dyn Tool>).collect();
        let spec = tools[0].spec();
        let gate = Gate::new(tree, GateSpec::new(policy, tools)).unwrap();
        Served { bench, process, gate, upstream, spec, in_policy, log, kind }
    }

    /// How often the server has read a run's call.
    fn effects(&self, run: &RunId) -> usize {
        effects(&self.log, run)
    }

    /// What holds a run's call in the server for as long as it is not there.
    fn until(&self, run: &RunId) -> PathBuf {
        self.log.with_file_name(run.as_str())
    }

    fn args(&self, run: &RunId) -> String {
        format!(r#"{{"run":"{run}","until":{:?}}}"#, self.until(run))
    }

    async fn propose(&self, run: &RunId) -> (Session, OpenStep, Verdict) {
        let beginning = Beginning { pace: Pace::Effects, ..Beginning::default() };
        let session = self.gate.begin_with(run.clone(), "g", limits(), beginning).await.unwrap();
        let (step, verdict) = propose(&session, call("fake_held", &self.args(run))).await;
        (session, step, verdict)
    }

    async fn collect(&self, run: &RunId, approval: &Approval) -> (Session, OpenStep) {
        self.bench.approve(approval);
        granted(self.gate.attach_with(run.clone(), Pace::Effects).await)
    }

    /// Makes the call, from its proposal or from its grant to the end of its run.
    async fn make(&self, run: &RunId) -> Result<Ending, SessionError> {
        let (session, step) = match self.kind {
            Kind::Read | Kind::Local | Kind::Remote => {
                let (session, step, verdict) = self.propose(run).await;
                allowed(&verdict);
                (session, step)
            }
            Kind::Approved => {
                let (_session, _, verdict) = self.propose(run).await;
                self.collect(run, &pending(verdict)).await
            }
            Kind::ReRun => {
                left_executing(&self.process.running.tree, self.spec.clone(), run, &self.args(run)).await;
                let asked = asks(self.gate.attach_with(run.clone(), Pace::Effects).await);
                self.collect(run, &asked).await
            }
        };
        let ending = step.execute().await?.ending;
        let last = session.step().await?.expect("a step");
        ended(last.propose(Proposal::complete("")).await?);
        Ok(ending)
    }

    fn arm(&self, death: Death, step: Step, run: &RunId) {
        let connection = self.upstream.connection().clone();
        let hook = |point| {
            let connection = connection.clone();
            let hooks = &self.process.running.tree.hooks;
            hooks.once(point, run.clone(), move || strike(connection, death));
        };
        match step {
            Step::Judging => self.in_policy.add(run, strike(connection, death)),
            Step::Starting => hook(Point::Starting),
            Step::Started => hook(Point::Started),
            Step::Answered => hook(Point::Answered),
            Step::Sent => {
                let (log, run) = (self.log.clone(), run.clone());
                tokio::spawn(async move {
                    while effects(&log, &run) == 0 {
                        tokio::time::sleep(Duration::from_millis(1)).await;
                    }
                    strike(connection, death).await;
                });
            }
            Step::Recorded => {}
            Step::FirstAbsent | Step::FirstPresent | Step::SecondAbsent | Step::SecondPresent => {
                panic!("only the writer dies there")
            }
        }
    }

    async fn case(&self, death: Death, step: Step) {
        let kind = format!("{:?}", self.kind).to_lowercase();
        let name = format!("{kind}.{death:?}.{step:?}");
        let run = RunId::from(name.as_str());
        if step != Step::Sent {
            fs::write(self.until(&run), "").unwrap();
        }
        self.arm(death, step, &run);
        let answer = tokio::time::timeout(SOON, self.make(&run)).await;
        let answer = answer.unwrap_or_else(|_| panic!("{name}: nobody answered")).unwrap();
        if step == Step::Recorded {
            strike(self.upstream.connection().clone(), death).await;
        }
        // A server that is back before the call leaves is as good as one that was never gone.
        let expected: &[Ending] = match step {
            Step::Sent => &[Ending::NoAnswer],
            Step::Judging | Step::Starting | Step::Started => &[Ending::Answered, Ending::NotSent],
            Step::Answered | Step::Recorded => &[Ending::Answered],
            Step::FirstAbsent | Step::FirstPresent | Step::SecondAbsent | Step::SecondPresent => &[],
        };
        assert!(expected.contains(&answer), "{name}: {answer:?}");
        assert_eq!(
            self.effects(&run),
            usize::from(answer != Ending::NotSent),
            "{name}: what the server read"
        );
        let recorded = &self.bench.steps(&run)[0];
        let as_it_was = if answer == Ending::Answered { StepStatus::Done } else { StepStatus::Failed };
        assert_eq!(
            (recorded.status, self.bench.run(&run).status),
            (as_it_was, RunStatus::Completed),
            "{name}"
        );
        let kept = self.bench.operator().read(|reader| reader.ending(&recorded.id)).unwrap();
        assert_eq!(kept, Some(answer).filter(|ending| *ending != Ending::Answered), "{name}");
        counted("McpConnection", death, step, self.kind);
    }
}

fn effects(log: &Path, run: &RunId) -> usize {
    let read = fs::read_to_string(log).unwrap_or_default();
    read.lines().filter(|line| line.contains("tools/call") && line.contains(run.as_str())).count()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_call_is_answered_as_the_table_says_when_the_connection_dies() {
    let manifest = pinned().await;
    for kind in KINDS {
        for step in STEPS {
            let served = Served::new(kind, manifest.clone()).await;
            for death in DEATHS {
                served.case(death, step).await;
            }
            served.bench.verify();
            served.upstream.close(SOON).await;
            served.process.running.tree.stop().await;
        }
    }
}
