//! The configuration: whether it loads, its manifests, what its servers could reach, and whether they start.
//!
//! Every server is started, asked for its tools, judged as serving would judge it, and ended. Nothing is registered.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use holdpoint::codes::Code;
use holdpoint::proxy::config::{Config, Server};
use holdpoint_actors::connection::containment;
use holdpoint_actors::schema::ArgumentSchema;
use holdpoint_core::json::Json;
use holdpoint_core::pin::listing::Listing;
use holdpoint_core::pin::load::{LoadedTool, Loading, check_tools, misfits};
use holdpoint_core::pin::report::Report;
use holdpoint_core::pin::rules::Rules;

use super::{Area, Findings, Health};
use crate::commands::{block_on, servers};
use crate::error::CommandError;
use crate::text::plural;

/// Looks at a configuration, and gives the database that it names.
pub(super) fn look(path: &Path, findings: &mut Findings) -> Option<PathBuf> {
    let config = match servers::load(path) {
        Ok(config) => config,
        Err(error) => {
            findings.fail(Area::Configuration, error);
            return None;
        }
    };
    let servers = plural(config.servers.len(), "server");
    let text = format!("{} is readable: session {}, {servers}", path.display(), config.session);
    findings.push(Area::Configuration, Health::Good, text);
    reach(&config, findings);
    config.servers.iter().for_each(|server| hold(server, findings));
    let listings = match block_on(servers::list_all(&config.servers)) {
        Ok(listings) => listings,
        Err(error) => {
            findings.fail(Area::Configuration, error);
            return Some(config.database);
        }
    };
    let mut names = BTreeMap::from([(config.status_tool.clone(), "the status tool".to_owned())]);
    for (server, listing) in config.servers.iter().zip(listings) {
        if let Err(error) = look_at(server, listing, &mut names, findings) {
            findings.fail(Area::Configuration, error);
        }
    }
    Some(config.database)
}

fn reach(config: &Config, findings: &mut Findings) {
    let cwd = match std::env::current_dir() {
        Ok(cwd) => cwd,
        Err(problem) => {
            let message = format!("the working directory can't be read: {problem}");
            return findings.fail(Area::Configuration, CommandError::new(Code::ConfigUnreadable, message));
        }
    };
    let home = std::env::var_os("HOME").map(PathBuf::from);
    match config.check_reach(&config.protected(cwd, home)) {
        Ok(()) => {
            let text = "no server's arguments reach the gate's own files";
            findings.push(Area::Configuration, Health::Good, text);
        }
        Err(reached) => {
            findings.fail(Area::Configuration, CommandError::new(Code::ConfigReach, reached.to_string()));
        }
    }
    for server in config.servers.iter().filter(|server| server.skip_path_check) {
        let text =
            format!("server {}: what its arguments reach is not checked (skip_path_check)", server.name);
        findings.push(Area::Configuration, Health::Doubtful, text);
    }
}

/// Says what holds the server's processes together, and how they could be held better.
fn hold(server: &Server, findings: &mut Findings) {
    // A server that can't be held as it must be does not start, and that is said where it is started.
    let Ok(held) = containment(server.pid_namespace) else { return };
    let better = containment(Some(true)).ok().filter(|better| better.by != held.by);
    let better = better.filter(|_| server.pid_namespace.is_none());
    let better = better.map(|better| format!("\"pid_namespace\": true would use {}", better.by.describe()));
    let notes: Vec<String> = held.instead_of.into_iter().chain(better).collect();
    let notes = if notes.is_empty() { String::new() } else { format!(" ({})", notes.join("; ")) };
    let text = format!("server {}: its processes are held by {}{notes}", server.name, held.by.describe());
    findings.push(Area::Configuration, Health::Fact, text);
}

/// Judges one server as a start would.
fn look_at(
    server: &Server,
    listing: Result<Listing, CommandError>,
    names: &mut BTreeMap<String, String>,
    findings: &mut Findings,
) -> Result<(), CommandError> {
    let manifest = servers::manifest(server)?;
    let rules: Rules = server.rules.iter().map(|(tool, rule)| (tool.clone(), rule.rule.clone())).collect();
    let unfit: Vec<String> =
        misfits(&server.name, &manifest, &rules).iter().map(ToString::to_string).collect();
    if !unfit.is_empty() {
        let message = format!("server {}: {}", server.name, unfit.join("; "));
        return Err(CommandError::new(Code::ConfigInvalid, message));
    }
    let live = listing?;
    let loading = Loading {
        server: &server.name,
        manifest: &manifest,
        rules: &rules,
        live: &live,
        default_timeout: server.default_timeout,
    };
    let accept = |tool: &LoadedTool| {
        ArgumentSchema::compile(&Json::trusted(tool.spec.input_schema.as_str())).map(|_| ())
    };
    told(&server.name, &check_tools(&loading, &accept).report, names, findings)
}

fn told(
    server: &str,
    report: &Report,
    names: &mut BTreeMap<String, String>,
    findings: &mut Findings,
) -> Result<(), CommandError> {
    let held_back = report.refused.iter().map(|tool| format!("{}: refused: {}", tool.tool, tool.reason));
    let unpinned = report.unpinned.iter().map(|tool| format!("{tool}: not in the manifest"));
    let unclassified = report.unclassified.iter().map(|tool| format!("{tool}: no rule"));
    for text in held_back.chain(unpinned) {
        findings.push(Area::Configuration, Health::Doubtful, format!("server {server}: {text}"));
    }
    for text in unclassified {
        findings.push(Area::Configuration, Health::Fact, format!("server {server}: {text}"));
    }
    for tool in &report.registered {
        if let Some(holder) = names.insert(tool.name.clone(), format!("server {server}")) {
            let message = format!("server {server}: the name {} is taken by {holder}", tool.name);
            return Err(CommandError::new(Code::ConfigInvalid, message));
        }
    }
    match report.registered.len() {
        0 => {
            let message = format!("server {server} starts, and none of its tools may be offered");
            Err(CommandError::new(Code::ServerNothingRegistered, message))
        }
        count => {
            let text = format!("server {server} starts and offers {}", plural(count, "tool"));
            findings.push(Area::Configuration, Health::Good, text);
            Ok(())
        }
    }
}
