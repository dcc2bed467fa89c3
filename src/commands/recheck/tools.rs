//! The tools of a configuration as its servers offer them now, for `--current-tools`.
//!
//! Each server is started, asked for its tools, judged as serving would judge it, and ended. Nothing is registered, and the
//! database is not touched.

use std::collections::BTreeMap;

use holdpoint::codes::Code;
use holdpoint::proxy::config::Config;
use holdpoint::proxy::serve::Prepared;
use holdpoint_actors::schema::ArgumentSchema;
use holdpoint_core::json::Json;
use holdpoint_core::pin::load::{LoadedTool, Loading, check_tools, misfits};
use holdpoint_core::pin::rules::Rules;
use tokio::runtime::Runtime;

use crate::commands::servers;
use crate::error::CommandError;
use crate::text::Ui;

/// Gives the tools that would be offered, and tells on stderr what became of each.
pub(super) fn offered(
    config: &Config,
    runtime: &Runtime,
    ui: &mut Ui,
) -> Result<Vec<LoadedTool>, CommandError> {
    // What the servers could reach, and the manifests, as before serving.
    Prepared::check(config.clone()).map_err(servers::of_serve)?;
    let listings = runtime.block_on(servers::list_all(&config.servers));
    let mut offered = Vec::new();
    let mut names: BTreeMap<String, String> = BTreeMap::new();
    for (server, listing) in config.servers.iter().zip(listings) {
        let manifest = servers::manifest(server)?;
        let rules: Rules =
            server.rules.iter().map(|(tool, said)| (tool.clone(), said.rule.clone())).collect();
        if let Some(misfit) = misfits(&server.name, &manifest, &rules).first() {
            return Err(CommandError::new(Code::ConfigInvalid, format!("server {}: {misfit}", server.name)));
        }
        let loading = Loading {
            server: &server.name,
            manifest: &manifest,
            rules: &rules,
            live: &listing?,
            default_timeout: server.default_timeout,
        };
        let accept = |tool: &LoadedTool| {
            ArgumentSchema::compile(&Json::trusted(tool.spec.input_schema.as_str())).map(|_| ())
        };
        let found = check_tools(&loading, &accept);
        for line in found.report.lines() {
            writeln!(ui.err(), "{line}")?;
        }
        if found.tools.is_empty() {
            let message = format!("server {} starts, and none of its tools may be offered", server.name);
            return Err(CommandError::new(Code::ServerNothingRegistered, message));
        }
        for mut tool in found.tools {
            if let Some(holder) = names.insert(tool.spec.name.clone(), server.name.clone()) {
                let message = format!(
                    "server {}: the name {} is taken by server {holder}",
                    server.name, tool.spec.name
                );
                return Err(CommandError::new(Code::ConfigInvalid, message));
            }
            // Each call of a proxy is a run of its own, which the tool's success completes.
            tool.spec.terminal = true;
            offered.push(tool);
        }
    }
    Ok(offered)
}
