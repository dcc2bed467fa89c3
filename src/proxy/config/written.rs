//! The configuration as it is written, with every default filled in.
//!
//! Owns the keys and what their values may be. A key that is unknown is an error, and every error names the key with its
//! server and its tool. Never looks at a file.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::Duration;

use holdpoint_core::duration::parse_go_duration;
use holdpoint_core::ids::SessionName;
use holdpoint_core::pin::rules::{Rule, RuleError};
use holdpoint_core::policy::Outcome;
use holdpoint_core::tool::SideEffect;

use super::object::{Object, text_of};
use super::{
    Config, ContentError, HOLD_DEFAULT, LEASE_TTL_MIN, MAX_PENDING_DEFAULT, NAME_BYTES_MAX,
    REPEAT_WINDOW_DEFAULT, STATUS_TOOL_DEFAULT, Server, TTL_DEFAULT, ToolRule,
};
use crate::proxy::policy::ClassPolicy;

const KEYS: &[&str] = &[
    "database",
    "session",
    "servers",
    "policy",
    "hold",
    "repeat_window",
    "max_pending",
    "approval_ttl",
    "grant_ttl",
    "status_tool",
    "lease_ttl",
];
const SERVER_KEYS: &[&str] = &[
    "name",
    "command",
    "endpoint",
    "env",
    "inherit_env",
    "connect_timeout",
    "default_timeout",
    "manifest",
    "rules",
    "skip_path_check",
    "pid_namespace",
];

/// Reads a text that is JSON, and that can be read in one way only.
pub(super) fn config(text: &str) -> Result<Config, ContentError> {
    let file = Object::read("the configuration", text)?.at("");
    file.only(KEYS)?;
    let value = |text: &str| ContentError::Value(text.to_owned());
    let database = filled(file.text("database", "runs.db")?).ok_or_else(|| value("database is required"))?;
    let session = file.text("session", "main")?.ok_or_else(|| value("session is required"))?;
    check_name("session", &session)?;
    let policy = class_policy(&file)?;
    let max_pending = match file.whole("max_pending")?.unwrap_or(0) {
        0 => MAX_PENDING_DEFAULT,
        max => usize::try_from(max).map_err(|_| value("max_pending can't be negative"))?,
    };
    let lease_ttl = duration(&file, "lease_ttl")?;
    if let Some(ttl) = lease_ttl.filter(|ttl| *ttl < LEASE_TTL_MIN) {
        let why = format!("lease_ttl {ttl:?} is shorter than {LEASE_TTL_MIN:?}");
        return Err(ContentError::Value(why));
    }
    let status_tool = filled(file.text("status_tool", STATUS_TOOL_DEFAULT)?)
        .unwrap_or_else(|| STATUS_TOOL_DEFAULT.to_owned());
    check_name("status_tool", &status_tool)?;
    Ok(Config {
        path: None,
        database: PathBuf::from(database),
        session: SessionName::from(session),
        servers: servers(&file)?,
        policy,
        hold: duration(&file, "hold")?.unwrap_or(HOLD_DEFAULT),
        repeat_window: duration(&file, "repeat_window")?.unwrap_or(REPEAT_WINDOW_DEFAULT),
        max_pending,
        approval_ttl: duration(&file, "approval_ttl")?.unwrap_or(TTL_DEFAULT),
        grant_ttl: duration(&file, "grant_ttl")?.unwrap_or(TTL_DEFAULT),
        status_tool,
        lease_ttl,
    })
}

fn class_policy(file: &Object<'_>) -> Result<ClassPolicy, ContentError> {
    let mut policy = ClassPolicy::default();
    for (class, value) in file.object("policy")? {
        let known = SideEffect::parse(&class)
            .ok_or_else(|| ContentError::Value(format!("policy: {class:?} is no side effect")))?;
        let field = format!("policy: {class}");
        policy.set(known, outcome(&field, &text_of(&field, "allow", value)?)?);
    }
    Ok(policy)
}

fn outcome(field: &str, text: &str) -> Result<Outcome, ContentError> {
    match Outcome::parse(text) {
        Some(outcome @ (Outcome::Allow | Outcome::RequireApproval | Outcome::Deny)) => Ok(outcome),
        // A call can end its own run, and nobody else's.
        Some(Outcome::Abort) | None => {
            let why = format!("{field}: outcome {text:?} is not allow, require_approval or deny");
            Err(ContentError::Value(why))
        }
    }
}

fn servers(file: &Object<'_>) -> Result<Vec<Server>, ContentError> {
    let texts = file.list("servers")?;
    if texts.is_empty() {
        return Err(ContentError::Value("at least one server is required".to_owned()));
    }
    let mut names = BTreeSet::new();
    let mut servers = Vec::with_capacity(texts.len());
    for (at, text) in texts.into_iter().enumerate() {
        let server = server(at, text)?;
        if !names.insert(server.name.clone()) {
            let why = format!("servers[{at}]: the name {:?} is used twice", server.name);
            return Err(ContentError::Value(why));
        }
        servers.push(server);
    }
    Ok(servers)
}

fn server(at: usize, text: &str) -> Result<Server, ContentError> {
    let mut object = Object::read(format!("servers[{at}]"), text)?;
    let name = object.text("name", "files").map(filled);
    if let Ok(Some(name)) = &name {
        object = object.at(format!("server {name:?}"));
    }
    object.only(SERVER_KEYS)?;
    let Some(name) = name? else {
        return Err(ContentError::Value(format!("servers[{at}]: name is required")));
    };
    let wrong = |why: &str| ContentError::Value(format!("server {name:?}: {why}"));
    let command = object.texts("command", "npx")?;
    let endpoint = filled(object.text("endpoint", "https://host/mcp")?);
    if command.is_empty() == endpoint.is_none() {
        return Err(wrong("exactly one of command and endpoint is required"));
    }
    let manifest =
        filled(object.text("manifest", "files.json")?).ok_or_else(|| wrong("manifest is required"))?;
    let rules = object.object("rules")?.into_iter().map(|(tool, text)| {
        let rule = tool_rule(&name, &tool, text)?;
        Ok((tool, rule))
    });
    Ok(Server {
        rules: rules.collect::<Result<_, ContentError>>()?,
        connect_timeout: duration(&object, "connect_timeout")?,
        default_timeout: duration(&object, "default_timeout")?,
        command,
        endpoint,
        env: object.texts("env", "NAME=value")?,
        inherit_env: object.texts("inherit_env", "NAME")?,
        manifest: PathBuf::from(manifest),
        skip_path_check: object.truth("skip_path_check")?.unwrap_or(false),
        pid_namespace: object.truth("pid_namespace")?,
        name,
    })
}

fn tool_rule(server: &str, tool: &str, text: &str) -> Result<ToolRule, ContentError> {
    let named = |error| ContentError::Rule { server: server.to_owned(), tool: tool.to_owned(), error };
    let (rule, others) = Rule::read(text).map_err(named)?;
    if let Some(field) = others.keys().find(|key| !["outcome", "repeat_window"].contains(&key.as_str())) {
        return Err(named(RuleError::UnknownField(field.clone())));
    }
    let object = Object::of(format!("server {server:?}: tool {tool:?}"), others);
    let said = filled(object.text("outcome", "allow")?);
    Ok(ToolRule {
        rule,
        outcome: said.map(|text| outcome(&object.field("outcome"), &text)).transpose()?,
        repeat_window: duration(&object, "repeat_window")?,
    })
}

fn duration(object: &Object<'_>, key: &str) -> Result<Option<Duration>, ContentError> {
    let Some(text) = object.text(key, "10s")? else { return Ok(None) };
    let field = object.field(key);
    match parse_go_duration(&text) {
        Err(error) => Err(ContentError::Duration { field, error }),
        Ok(parsed) => parsed.to_std().map(Some).ok_or(ContentError::Negative(field)),
    }
}

fn filled(text: Option<String>) -> Option<String> {
    text.filter(|text| !text.is_empty())
}

/// Takes a name that no shell, terminal or path reads as more than a name.
fn check_name(field: &str, text: &str) -> Result<(), ContentError> {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-';
    if (1..=NAME_BYTES_MAX).contains(&text.len()) && text.bytes().all(plain) {
        return Ok(());
    }
    let why = format!("{field} {text:?} must be 1 to {NAME_BYTES_MAX} letters, digits, '_' or '-'");
    Err(ContentError::Value(why))
}
