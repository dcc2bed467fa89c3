//! Holdpoint: a gate between an AI agent and its tools.
//!
//! Every action that a model asks for is recorded, checked against its tool's schema, put to a policy, held for a person when
//! the policy says so, run at most once, and recorded again. What was started is on the disk before it leaves, so a process
//! may die anywhere: who goes on with a run finds what happened, what did not, and what nobody can know.
//!
//! # An agent under control
//!
//! A [`Runtime`](gate::Runtime) opens a record, which is one SQLite file, and runs over it. An [`Agent`](driver::Agent) decides
//! each step from what happened so far; a [`Driver`](driver::Driver) takes the run to its end, or to its next pause. Without a
//! policy of your own, reads and local changes run, remote changes wait for a person, and what can't be undone is refused.
//!
//! ```
//! use std::sync::Arc;
//! use holdpoint::approver::{Approver, Decision, Local};
//! use holdpoint::driver::{AgentError, Limits, Proposal, RunStatus, StepInput};
//! use holdpoint::gate::{Runtime, SideEffect, ToolOutput, ToolSpec, tool_fn};
//!
//! async fn decide(input: StepInput) -> Result<Proposal, AgentError> {
//!     Ok(match input.steps.len() {
//!         0 => Proposal::tool_call("wipe", "{}"),
//!         1 => Proposal::tool_call("pay", r#"{"to":"ada"}"#),
//!         _ => Proposal::complete(r#"{"paid":"ada"}"#),
//!     })
//! }
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let folder = tempfile::tempdir()?;
//! # let database = folder.path().join("agent.db");
//! let wipe = tool_fn(ToolSpec::new("wipe", SideEffect::Destructive, r#"{"type":"object"}"#), |_call| async {
//!     Ok(ToolOutput::default())
//! });
//! let pay = tool_fn(ToolSpec::new("pay", SideEffect::RemoteMutation, r#"{"type":"object"}"#), |call| async move {
//!     // The step's id is the same when an approved call is run again: send it along as an idempotency key.
//!     Ok(ToolOutput::new(r#"{"paid":true}"#, format!("paid, {}", call.step_id)))
//! });
//! let runtime = Runtime::builder(&database).tool(wipe).tool(pay).start().await?;
//! let driver = runtime.driver(Arc::new(decide));
//!
//! // The wipe is denied, which the agent is shown; the payment waits.
//! let run = driver.start("pay ada", Limits::default()).await?;
//! assert_eq!(run.status, RunStatus::WaitingForApproval);
//!
//! // A person, in this process or any other, says yes to exactly what they were shown.
//! let approver = Local::open(&database)?;
//! let asked = approver.pending(&run.id, 1).await?.remove(0).approval;
//! let (run_id, hash) = (run.id.clone(), asked.hash.clone());
//! let yes = Decision { run: run_id, approval: asked.id, hash, by: "ada".into(), note: String::new() };
//! approver.approve(&yes).await?;
//!
//! // Whoever owns the run collects the grant: it executes what was approved, and the run goes on.
//! let run = driver.resume(run.id).await?;
//! assert_eq!(run.status, RunStatus::Completed);
//! # runtime.stop().await;
//! # Ok(()) }
//! ```
//!
//! # A policy of your own
//!
//! A [`Policy`](gate::Policy) sees the checked request and the run so far, and answers; it has no other say. An approval that
//! it asks for is bound by hash to what it shows and to the exact request.
//!
//! ```
//! use holdpoint::gate::{Json, PolicyDecision, SideEffect, policy_fn};
//! use serde::Serialize;
//!
//! #[derive(Serialize)]
//! struct Shown<'a> {
//!     title: &'a str,
//!     changes_so_far: usize,
//! }
//!
//! let policy = policy_fn(|request, view| {
//!     let changes = view.steps.iter().filter(|step| step.tool() != Some("read")).count();
//!     Ok(match request.spec.side_effect {
//!         SideEffect::ReadOnly => PolicyDecision::allow("it reads"),
//!         SideEffect::Destructive => PolicyDecision::deny("nothing is destroyed here"),
//!         SideEffect::LocalMutation | SideEffect::RemoteMutation => PolicyDecision::need_approval(
//!             "change",
//!             "changes are looked at",
//!             Json::of(&request.spec.name)?,
//!             Json::of(&Shown { title: &request.spec.description, changes_so_far: changes })?,
//!         ),
//!     })
//! });
//! # let _ = policy;
//! ```
//!
//! # What to depend on
//!
//! The crate, and `tokio` with its features `macros` and `rt-multi-thread`. Everything of the crates below that you need is
//! re-exported here.
//!
//! # The rest of the way
//!
//! | for | see |
//! |---|---|
//! | a loop of your own, without an agent | [`gate`] |
//! | a model on the run's books: limits on calls, tokens and cost, retries, prices; the providers' adapters | [`model`], [`driver::ModelCaller`] |
//! | a run's steps as a model's conversation, and its answer as a decision | [`render`] |
//! | models recorded and served again | [`replay`] |
//! | the tools of an MCP server, pinned and classed | [`mcp`] |
//! | what died in the middle, and who knows what became of it | [`gate::Reconcile`] |
//! | an approval channel of your own | [`approver`] |
//! | reading the record, following it, printing it | [`view`], [`export`], [`trace`] |
//! | what another policy would have decided about what is recorded | [`recheck`] |
//! | testing what you build: crashes, tables, arguments from a schema | `testkit` |
//!
//! # Features
//!
//! Two are on without being asked for: `bench`, which brings no package, and `cli`, which is the program `holdpoint` and what
//! it needs for its command line: a library does without it (`default-features = false`). `testkit` brings the test kit,
//! `full` everything; the rest are named where they are used.

pub mod approver;
#[cfg(feature = "bench")]
pub mod bench;
#[doc(hidden)]
pub mod codes;
#[doc(hidden)]
pub mod doctor_socket;
pub mod driver;
pub mod export;
pub mod gate;
pub mod mcp;
pub mod model;
pub mod proxy;
pub mod recheck;
pub mod render;
#[doc(hidden)]
pub mod replace;
pub mod replay;
#[doc(hidden)]
pub mod stderr;
#[cfg(feature = "testkit")]
pub mod testkit;
pub mod trace;
pub mod view;
