//! MCP servers inside an embedded runtime: the real one of the demonstration, under the gate.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use holdpoint::driver::{AgentError, Proposal, Run, StepInput};
use holdpoint::gate::{Limits, RunStatus, Runtime, RuntimeError};
use holdpoint::mcp::{Manifest, ServerSpec, UpstreamSpec, parse_rules, pin};
use holdpoint_actors::store::GroupStore;

fn server(ledger: &Path) -> ServerSpec {
    let command = [env!("CARGO_BIN_EXE_holdpoint"), "payment-server", "--ledger", &ledger.to_string_lossy()];
    ServerSpec {
        name: "shop".to_owned(),
        command: command.map(str::to_owned).to_vec(),
        default_timeout: Some(Duration::from_secs(10)),
        ..ServerSpec::default()
    }
}

fn upstream(server: &ServerSpec, manifest: &Manifest, rules: &str) -> UpstreamSpec {
    let (server, manifest) = (server.clone(), manifest.clone());
    UpstreamSpec { server, manifest, rules: parse_rules(rules.as_bytes()).expect("rules"), terminal: false }
}

async fn pay_once(runtime: &Runtime) -> Run {
    let agent = |input: StepInput| async move {
        Ok::<_, AgentError>(match input.steps.len() {
            0 => Proposal::tool_call("shop_pay", r#"{"to":"ada","amount":20}"#),
            _ => Proposal::complete("true"),
        })
    };
    runtime.driver(Arc::new(agent)).start("pay ada", Limits::default()).await.expect("a run")
}

#[tokio::test]
async fn a_servers_pinned_tools_run_inside_an_embedded_driver_and_the_server_ends_with_it() {
    let folder = tempfile::tempdir().unwrap();
    let (database, ledger) = (folder.path().join("agent.db"), folder.path().join("ledger"));
    let server = server(&ledger);
    let manifest = pin(&server).await.unwrap();
    assert!(manifest.tools.contains_key("pay") && !ledger.exists(), "listing pays nothing");

    let rules = r#"{"pay":{"side_effect":"local_mutation"}}"#;
    let runtime =
        Runtime::builder(&database).server(upstream(&server, &manifest, rules)).start().await.unwrap();
    let report = &runtime.reports()[0];
    assert_eq!((report.server.as_str(), report.registered.len()), ("shop", 1));
    assert!(!report.unclassified.is_empty(), "a tool without a rule is told of, and not offered");
    let run = pay_once(&runtime).await;
    assert_eq!((run.status, run.step_count), (RunStatus::Completed, 2));
    assert_eq!(std::fs::read_to_string(&ledger).unwrap().lines().count(), 1);
    runtime.stop().await;
    let left = GroupStore::new(&database).list_groups().unwrap();
    let alive = |pid: u32| Path::new(&format!("/proc/{pid}/stat")).exists();
    assert!(left.iter().all(|group| !alive(group.pgid)), "{left:?}");
}

#[tokio::test]
async fn a_tool_that_changed_since_it_was_pinned_is_not_offered() {
    let folder = tempfile::tempdir().unwrap();
    let (database, ledger) = (folder.path().join("agent.db"), folder.path().join("ledger"));
    let server = server(&ledger);
    let mut manifest = pin(&server).await.unwrap();
    manifest.tools.get_mut("pay").unwrap().description_hash = "another".to_owned();
    let rules = r#"{"pay":{"side_effect":"local_mutation"}}"#;
    let started = Runtime::builder(&database).server(upstream(&server, &manifest, rules)).start().await;
    let Err(RuntimeError::Server(error)) = started else { panic!("{started:?}") };
    assert!(error.why.contains("none of its tools can be offered"), "{error}");
    assert_eq!(error.report.refused[0].tool, "pay");
}

#[tokio::test]
async fn a_server_that_cannot_be_had_starts_no_runtime() {
    let folder = tempfile::tempdir().unwrap();
    let working = server(&folder.path().join("ledger"));
    let manifest = pin(&working).await.unwrap();
    let missing = ServerSpec { command: vec!["/nowhere/a-server".to_owned()], ..working };
    assert!(pin(&missing).await.unwrap_err().why.contains("shop"));
    let rules = r#"{"pay":{"side_effect":"local_mutation"}}"#;
    let builder = Runtime::builder(folder.path().join("agent.db"));
    let started = builder.server(upstream(&missing, &manifest, rules)).start().await;
    assert!(matches!(started, Err(RuntimeError::Server(_))), "{started:?}");
}

#[cfg(feature = "testkit")]
mod kit {
    use holdpoint::testkit::{Disruption, Outcome, Point, Scenario};

    use super::*;

    /// A run that pays once through a server, disrupted; and how many payments there are.
    async fn disrupted(by: Disruption) -> (Outcome, usize) {
        let folder = tempfile::tempdir().expect("a folder");
        let ledger = folder.path().join("ledger");
        let server = server(&ledger);
        let manifest = pin(&server).await.expect("a server that can be pinned");
        let agent = |input: StepInput| async move {
            let paid =
                input.steps.iter().any(|step| step.observation.as_ref().is_some_and(|o| !o.is_failure()));
            Ok::<_, AgentError>(match paid {
                false => Proposal::tool_call("shop_pay", r#"{"to":"ada","amount":20}"#),
                true => Proposal::complete("true"),
            })
        };
        let rules = r#"{"pay":{"side_effect":"local_mutation"}}"#;
        let scenario = Scenario::of(Arc::new(agent)).server(upstream(&server, &manifest, rules));
        let outcome = scenario.run(&[by]).await;
        let payments = std::fs::read_to_string(&ledger).unwrap_or_default().lines().count();
        (outcome, payments)
    }

    #[tokio::test]
    async fn a_connection_that_is_killed_at_a_step_is_had_again_and_nothing_is_paid_twice() {
        for at in [Point::StepStarted, Point::PolicyAllowed, Point::ToolStarted, Point::ToolEffect] {
            let (outcome, payments) = disrupted(Disruption::kill_connection("shop", 0, at)).await;
            outcome.failures.assert_none();
            assert_eq!(outcome.disrupted.len(), 1);
            let run = outcome.run.unwrap();
            assert_eq!((run.status, payments), (RunStatus::Completed, 1), "{at:?}: {}", run.reason_detail);
        }
    }

    #[tokio::test]
    async fn a_crash_takes_the_server_with_it_and_a_person_is_asked_before_it_pays_again() {
        let (outcome, payments) = disrupted(Disruption::crash(0, Point::ToolEffect)).await;
        outcome.failures.assert_none();
        assert_eq!((outcome.approvals.len(), payments), (1, 2));
    }

    #[tokio::test]
    async fn a_server_that_a_scenario_has_not_is_no_disruption() {
        let (outcome, payments) = disrupted(Disruption::kill_connection("bank", 0, Point::ToolStarted)).await;
        assert_eq!((outcome.disrupted.len(), outcome.failures.iter().count(), payments), (0, 1, 1));
    }
}
