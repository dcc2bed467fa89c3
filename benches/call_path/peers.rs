//! Other proxies for the same server, where they can be had. Each is optional; one that does less says so.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::Outcome;
use crate::host::Host;

/// A proxy that somebody else wrote.
#[derive(Debug)]
pub(crate) struct Peer {
    pub(crate) label: String,
    pub(crate) host: Host,
    pub(crate) tool: String,
}

/// A program for the FastMCP proxy: it passes everything on and keeps nothing.
const FASTMCP: &str = "
import sys
import fastmcp
config = {'mcpServers': {'echo': {'command': sys.argv[1], 'args': ['--serve-echo']}}}
try:
    from fastmcp.server import create_proxy
    proxy = create_proxy(config, name='peer')
except ImportError:
    proxy = fastmcp.FastMCP.as_proxy(config, name='peer')
proxy.run(show_banner=False)
";

/// Starts what there is; says of the others why there are none.
pub(crate) fn start(install: bool, left_out: &mut Vec<String>) -> Vec<Peer> {
    match fastmcp(install) {
        Ok(peer) => vec![peer],
        Err(why) => {
            left_out.push(format!("the `fastmcp` proxy: {why}"));
            Vec::new()
        }
    }
}

fn fastmcp(install: bool) -> Outcome<Peer> {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("peers/fastmcp");
    let python: PathBuf = folder.join("bin/python");
    if !python.exists() {
        if !install {
            return Err("it is not installed; run with `-- --peers`".into());
        }
        ran(Command::new("python3").args(["-m", "venv"]).arg(&folder))?;
        ran(Command::new(&python).args(["-m", "pip", "install", "--quiet", "--timeout", "60", "fastmcp"]))?;
    }
    let version = "import fastmcp; print(fastmcp.__version__)";
    let version = ran(Command::new(&python).args(["-c", version]))?;
    let mut command = Command::new(&python);
    command.args(["-c", FASTMCP]).arg(std::env::current_exe()?);
    let mut host = Host::start(command)?;
    // One server's tools may keep their names.
    let listed = host.ask("tools/list", "{}")?.to_string();
    let tool = if listed.contains("echo_put") { "echo_put" } else { "put" };
    host.call(tool, r#"{"n":0}"#)?;
    Ok(Peer {
        label: format!("`fastmcp` {} proxy (no policy, no record, no sync)", version.trim()),
        host,
        tool: tool.to_owned(),
    })
}

fn ran(command: &mut Command) -> Outcome<String> {
    let done = command.output()?;
    if done.status.success() {
        Ok(String::from_utf8(done.stdout)?)
    } else {
        let said = String::from_utf8_lossy(&done.stderr);
        Err(said.lines().last().unwrap_or("it failed").to_owned().into())
    }
}
