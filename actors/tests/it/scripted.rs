//! Tools and policies that do what a test wrote.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use futures_util::future::BoxFuture;
use holdpoint_actors::executor::{Tool, ToolCall, ToolFailure, ToolOutput};
use holdpoint_actors::policy::{DefaultPolicy, Policy, PolicyError};
use holdpoint_core::json::Json;
use holdpoint_core::policy::{PolicyDecision, PolicyView};
use holdpoint_core::tool::{SideEffect, ToolRequest, ToolSpec};

type Script = dyn Fn(ToolCall) -> BoxFuture<'static, Result<ToolOutput, ToolFailure>> + Send + Sync;

/// A tool that does what a test wrote, and remembers its calls: what they ask for is what happened to the world.
pub(crate) struct Scripted {
    pub(crate) spec: ToolSpec,
    script: Box<Script>,
    calls: Mutex<Vec<ToolCall>>,
}

impl Scripted {
    /// A tool that echoes its arguments.
    pub(crate) fn new(name: &str, class: SideEffect) -> Arc<Scripted> {
        Scripted::with(spec(name, class), |call| {
            Box::pin(async move { Ok(ToolOutput::new(call.args.as_str().as_bytes(), "echoed")) })
        })
    }

    pub(crate) fn with(
        spec: ToolSpec,
        script: impl Fn(ToolCall) -> BoxFuture<'static, Result<ToolOutput, ToolFailure>> + Send + Sync + 'static,
    ) -> Arc<Scripted> {
        Arc::new(Scripted { spec, script: Box::new(script), calls: Mutex::default() })
    }

    /// A tool that always gives this.
    pub(crate) fn giving(
        name: &str,
        class: SideEffect,
        answer: Result<ToolOutput, ToolFailure>,
    ) -> Arc<Scripted> {
        Scripted::with(spec(name, class), move |_| {
            let answer = answer.clone();
            Box::pin(async move { answer })
        })
    }

    /// A tool that says when it was entered, and returns when it is released.
    pub(crate) fn latched(name: &str, class: SideEffect) -> (Arc<Scripted>, Latch) {
        let latch = Latch::default();
        let inside = latch.clone();
        let terminal = name == "finish";
        let spec = ToolSpec { timeout: Duration::from_secs(60), terminal, ..spec(name, class) };
        let tool = Scripted::with(spec, move |_| {
            let latch = inside.clone();
            Box::pin(async move {
                latch.entered.add_permits(1);
                latch.release.acquire().await.unwrap().forget();
                Ok(ToolOutput::new("{\"done\":true}", "done"))
            })
        });
        (tool, latch)
    }

    pub(crate) fn calls(&self) -> usize {
        self.calls.lock().unwrap().len()
    }

    pub(crate) fn args(&self) -> Vec<String> {
        self.calls.lock().unwrap().iter().map(|call| call.args.to_string()).collect()
    }

    pub(crate) fn call_ids(&self) -> Vec<(String, String)> {
        let calls = self.calls.lock().unwrap();
        calls.iter().map(|call| (call.run_id.to_string(), call.step_id.to_string())).collect()
    }
}

#[async_trait]
impl Tool for Scripted {
    fn spec(&self) -> ToolSpec {
        self.spec.clone()
    }

    async fn call(&self, call: ToolCall) -> Result<ToolOutput, ToolFailure> {
        self.calls.lock().unwrap().push(call.clone());
        (self.script)(call).await
    }
}

pub(crate) const SCHEMA: &str =
    r#"{"type":"object","properties":{"n":{"type":"integer"}},"additionalProperties":false}"#;

pub(crate) fn spec(name: &str, class: SideEffect) -> ToolSpec {
    ToolSpec {
        name: name.to_owned(),
        description: name.to_owned(),
        input_schema: Json::trusted(SCHEMA),
        side_effect: class,
        timeout: Duration::from_secs(10),
        terminal: false,
    }
}

/// The four classes, and a terminal tool.
pub(crate) fn tools() -> Vec<Arc<Scripted>> {
    let finish = ToolSpec { terminal: true, ..spec("finish", SideEffect::LocalMutation) };
    vec![
        Scripted::new("read", SideEffect::ReadOnly),
        Scripted::new("write", SideEffect::LocalMutation),
        Scripted::new("push", SideEffect::RemoteMutation),
        Scripted::new("wipe", SideEffect::Destructive),
        Scripted::with(finish, |call| {
            Box::pin(async move { Ok(ToolOutput::new(call.args.as_str().as_bytes(), "finished")) })
        }),
    ]
}

/// The two ends of a latched tool's call.
#[derive(Debug, Clone)]
pub(crate) struct Latch {
    entered: Arc<tokio::sync::Semaphore>,
    release: Arc<tokio::sync::Semaphore>,
}

impl Default for Latch {
    fn default() -> Latch {
        let none = || Arc::new(tokio::sync::Semaphore::new(0));
        Latch { entered: none(), release: none() }
    }
}

impl Latch {
    pub(crate) async fn entered(&self) {
        self.entered.acquire().await.unwrap().forget();
    }

    pub(crate) fn release(&self) {
        self.release.add_permits(1);
    }
}

type Rule = dyn Fn(&ToolRequest, &PolicyView) -> Result<PolicyDecision, PolicyError> + Send;

/// A policy that a test can change while it is in use.
pub(crate) struct Rules {
    rule: Mutex<Box<Rule>>,
    id: Option<String>,
    never_blocks: AtomicBool,
    asked: Mutex<Vec<(ToolRequest, PolicyView)>>,
}

impl Rules {
    pub(crate) fn new(
        rule: impl Fn(&ToolRequest, &PolicyView) -> Result<PolicyDecision, PolicyError> + Send + 'static,
    ) -> Arc<Rules> {
        Rules::named(None, rule)
    }

    pub(crate) fn named(
        id: Option<&str>,
        rule: impl Fn(&ToolRequest, &PolicyView) -> Result<PolicyDecision, PolicyError> + Send + 'static,
    ) -> Arc<Rules> {
        Arc::new(Rules {
            rule: Mutex::new(Box::new(rule)),
            id: id.map(str::to_owned),
            never_blocks: AtomicBool::default(),
            asked: Mutex::default(),
        })
    }

    pub(crate) fn change(
        &self,
        rule: impl Fn(&ToolRequest, &PolicyView) -> Result<PolicyDecision, PolicyError> + Send + 'static,
    ) {
        *self.rule.lock().unwrap() = Box::new(rule);
    }

    /// Says of itself from now on whether it never blocks.
    pub(crate) fn blocks_never(&self, never: bool) {
        self.never_blocks.store(never, Ordering::Release);
    }

    /// What it was asked, in order.
    pub(crate) fn asked(&self) -> Vec<(ToolRequest, PolicyView)> {
        self.asked.lock().unwrap().clone()
    }
}

#[async_trait]
impl Policy for Rules {
    async fn evaluate(
        &self,
        request: &ToolRequest,
        view: &PolicyView,
    ) -> Result<PolicyDecision, PolicyError> {
        self.asked.lock().unwrap().push((request.clone(), view.clone()));
        // A rule that panics is one of the things that are tried.
        let rule = self.rule.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        rule(request, view)
    }

    fn id(&self) -> Option<String> {
        self.id.clone()
    }

    fn never_blocks(&self) -> bool {
        self.never_blocks.load(Ordering::Acquire)
    }
}

pub(crate) fn by_class() -> Arc<dyn Policy> {
    Arc::new(DefaultPolicy)
}

pub(crate) fn ask_for(shown: &str) -> PolicyDecision {
    let shown = Json::trusted(format!("{{\"shown\":\"{shown}\"}}"));
    PolicyDecision::need_approval("release", "a person decides", Json::empty_object(), shown)
}

/// Every policy answer is this.
pub(crate) fn always(decision: PolicyDecision) -> Arc<Rules> {
    Rules::new(move |_, _| Ok(decision.clone()))
}
