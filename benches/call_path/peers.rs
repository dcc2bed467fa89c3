//! Other proxies in front of the same server, each as its own documentation starts it, with every call allowed.
//!
//! Owns which there are and what each leaves out, as seen in what it writes and syncs while it is called. One that can't
//! be installed or does not answer is left out, with the reason.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};

use crate::Outcome;
use crate::host::Host;

/// A proxy that somebody else wrote.
#[derive(Debug)]
pub(crate) struct Peer {
    pub(crate) label: String,
    pub(crate) host: Host,
    pub(crate) tool: String,
}

/// How a package is installed, at one version.
#[derive(Debug, Clone, Copy)]
enum Source {
    Python,
    Cargo,
}

/// One that can be installed.
struct Known {
    package: &'static str,
    version: &'static str,
    source: Source,
    /// What it does less than Holdpoint.
    less: &'static str,
    /// What it calls the tool `put`.
    tool: &'static str,
    /// How it is started.
    start: fn(&Site) -> Outcome<Command>,
}

const KNOWN: [Known; 5] = [
    Known {
        package: "fastmcp",
        version: "4.2.3",
        source: Source::Python,
        less: "no policy, no record, no sync",
        tool: "put",
        start: fastmcp,
    },
    Known {
        package: "vex-mcp",
        version: "0.3.0",
        source: Source::Cargo,
        less: "a line in a log for each call, no sync",
        tool: "put",
        start: vex,
    },
    Known {
        package: "obsigno",
        version: "0.3.0",
        source: Source::Python,
        less: "no policy, a signed line for each call, no sync",
        tool: "put",
        start: obsigno,
    },
    Known {
        package: "shugo",
        version: "0.1.0",
        source: Source::Python,
        less: "one line and one sync a call",
        tool: "echo__put",
        start: shugo,
    },
    Known {
        package: "agentveil-mcp-proxy",
        version: "0.7.49",
        source: Source::Python,
        less: "no record of an allowed call, no sync",
        tool: "put",
        start: agentveil,
    },
];

/// Where a peer is installed, and the folder that it runs in.
struct Site {
    programs: PathBuf,
    folder: PathBuf,
    /// The server behind it.
    server: PathBuf,
}

impl Site {
    fn program(&self, name: &str) -> Command {
        let mut command = Command::new(self.programs.join(name));
        // What it keeps for its user stays here.
        command.current_dir(&self.folder).env("HOME", &self.folder);
        command
    }

    fn write(&self, name: &str, text: &str) -> Outcome<()> {
        Ok(fs::write(self.folder.join(name), text)?)
    }
}

/// Starts what there is; says of the others why there are none.
pub(crate) fn start(install: bool, left_out: &mut Vec<String>) -> Vec<Peer> {
    let mut peers = Vec::new();
    for known in &KNOWN {
        match known.run(install) {
            Ok(peer) => peers.push(peer),
            Err(why) => left_out.push(format!("`{}` {}: {why}", known.package, known.version)),
        }
    }
    peers
}

impl Known {
    fn run(&self, install: bool) -> Outcome<Peer> {
        let root = Path::new(env!("CARGO_TARGET_TMPDIR")).join("peers");
        let root = root.join(format!("{}-{}", self.package, self.version));
        let done = root.join("installed");
        if !done.exists() {
            if !install {
                return Err("it is not installed; run with `-- --peers`".into());
            }
            self.install(&root)?;
            fs::write(&done, "")?;
        }
        let site =
            Site { programs: root.join("bin"), folder: root.join("run"), server: std::env::current_exe()? };
        if site.folder.exists() {
            fs::remove_dir_all(&site.folder)?;
        }
        fs::create_dir(&site.folder)?;
        let mut host = Host::start((self.start)(&site)?)?;
        host.call(self.tool, r#"{"n":0}"#)?;
        let label = format!("`{}` {} ({})", self.package, self.version, self.less);
        Ok(Peer { label, host, tool: self.tool.to_owned() })
    }

    fn install(&self, root: &Path) -> Outcome<()> {
        match self.source {
            Source::Python => {
                ran(Command::new("python3").args(["-m", "venv"]).arg(root))?;
                let wanted = format!("{}=={}", self.package, self.version);
                let pip = ["-m", "pip", "install", "--quiet", "--timeout", "60"];
                ran(Command::new(root.join("bin/python")).args(pip).arg(wanted))
            }
            Source::Cargo => {
                let cargo = ["install", "--quiet", "--locked", "--version", self.version, self.package];
                // Its build must not be taken for a part of ours.
                let target = root.join("target");
                ran(Command::new("cargo").args(cargo).arg("--root").arg(root).env("CARGO_TARGET_DIR", target))
            }
        }
    }
}

/// Passes everything on and keeps nothing.
fn fastmcp(site: &Site) -> Outcome<Command> {
    const PROGRAM: &str = "
import sys
from fastmcp.server import create_proxy
create_proxy({'mcpServers': {'echo': {'command': sys.argv[1], 'args': ['--serve-echo']}}}).run(show_banner=False)
";
    let mut command = site.program("python");
    command.args(["-c", PROGRAM]).arg(&site.server);
    Ok(command)
}

fn vex(site: &Site) -> Outcome<Command> {
    site.write("vex.toml", "[server]\nid = \"echo\"\n[policy]\ndefault_action = \"deny\"\nallowed_tools = [\"put\"]\n[audit]\npath = \"audit.log\"\n")?;
    let mut command = site.program("vex-mcp");
    command.arg(&site.server).arg("--serve-echo");
    Ok(command)
}

fn obsigno(site: &Site) -> Outcome<Command> {
    let mut command = site.program("obsigno-mcp");
    command.args(["--ledger", "ledger", "--"]).arg(&site.server).arg("--serve-echo");
    Ok(command)
}

fn shugo(site: &Site) -> Outcome<Command> {
    // YAML takes JSON.
    let policy = json!({
        "version": "0.1",
        "defaults": {"decision": "deny", "on_error": "deny"},
        "upstreams": {"echo": {"command": site.server, "args": ["--serve-echo"], "env": {}}},
        "rules": [{
            "id": "all", "description": "all", "decision": "allow", "match": {"server": "echo", "tool": "*"},
        }],
    });
    site.write("guardrails.yaml", &policy.to_string())?;
    let mut command = site.program("shugo");
    command.args(["serve", "--config", "guardrails.yaml"]);
    Ok(command)
}

fn agentveil(site: &Site) -> Outcome<Command> {
    let mut made = site.program("agentveil-mcp-proxy");
    made.args(["init", "--home", "home", "--plaintext", "--downstream-name", "echo", "--downstream-command"]);
    ran(made.arg(&site.server).arg("--downstream-arg=--serve-echo"))?;
    let file = site.folder.join("home/mcp-proxy/config.json");
    let mut config: Value = serde_json::from_slice(&fs::read(&file)?)?;
    config["policy"]["rules"] = json!([{
        "id": "all", "decision": "allow", "risk_class": "read", "match": {"server": ["echo"], "tool": ["*"]},
    }]);
    fs::write(&file, config.to_string())?;
    let mut command = site.program("agentveil-mcp-proxy");
    command.args(["run", "--home", "home", "--headless", "--approval-ui-mode", "none"]);
    Ok(command)
}

fn ran(command: &mut Command) -> Outcome<()> {
    let done = command.output()?;
    if done.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&done.stderr);
    Err(said.lines().last().unwrap_or("it failed").to_owned().into())
}
