//! Processes: a child that is ended by its id when its owner goes, and a command that is run to its end.
//!
//! Owns that nothing which the demonstration starts outlives it, whichever way it ends. Never ends anything by name.

use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, WaitId, WaitIdOptions};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};
use tokio::time::timeout;

use super::error::Error;

/// How long a command may take that works on the files of the demonstration.
const COMMAND_MAX: Duration = Duration::from_secs(30);

/// A running child.
#[derive(Debug)]
pub(super) struct Running {
    child: Child,
}

impl Running {
    /// Starts a child whose input and output are pipes.
    pub(super) fn start(mut command: Command) -> std::io::Result<(Running, ChildStdin, ChildStdout)> {
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut running = Running { child: command.spawn()? };
        match (running.child.stdin.take(), running.child.stdout.take()) {
            (Some(input), Some(output)) => Ok((running, input, output)),
            (None | Some(_), None | Some(_)) => Err(std::io::Error::other("its pipes are not there")),
        }
    }

    /// Its id; 0 once it has ended and been waited for.
    pub(super) fn id(&self) -> u32 {
        self.child.id().unwrap_or_default()
    }

    /// Waits for it to end by itself.
    pub(super) async fn ends_within(&mut self, patience: Duration) -> Option<ExitStatus> {
        timeout(patience, self.child.wait()).await.ok()?.ok()
    }
}

impl Drop for Running {
    /// SIGKILL, and no return before it is dead: what comes next may be to delete its files.
    fn drop(&mut self) {
        let Some(pid) = self.child.id().and_then(|id| Pid::from_raw(id.cast_signed())) else { return };
        if self.child.start_kill().is_ok() {
            // Left as a zombie for the runtime, which reaps it.
            let dead = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
            rustix::process::waitid(WaitId::Pid(pid), dead).ok();
        }
    }
}

/// Kills a process by its id.
pub(super) fn kill(id: u32) -> bool {
    let pid = Pid::from_raw(id.cast_signed());
    pid.is_some_and(|pid| rustix::process::kill_process(pid, Signal::KILL).is_ok())
}

/// Whether a process runs. One that is dead and not yet waited for does not.
pub(super) fn is_running(id: u32) -> bool {
    if let Ok(status) = std::fs::read_to_string(format!("/proc/{id}/stat")) {
        let state = status.rsplit_once(") ").and_then(|(_, rest)| rest.chars().next());
        return !matches!(state, Some('Z' | 'X'));
    }
    // Where there is no /proc, the answer to signal zero is the best there is.
    Pid::from_raw(id.cast_signed()).is_some_and(|pid| rustix::process::test_kill_process(pid).is_ok())
}

/// Runs a command to its end and returns what it printed. `typed` is how a person would write it.
pub(super) async fn run(mut command: Command, typed: &str) -> Result<String, Error> {
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
    let failed = |source| Error::Process { who: typed.to_owned(), source };
    let output = match timeout(COMMAND_MAX, command.spawn().map_err(failed)?.wait_with_output()).await {
        Ok(output) => output.map_err(failed)?,
        Err(_) => return Err(Error::Silent { who: typed.to_owned(), within: COMMAND_MAX }),
    };
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_owned();
    if output.status.success() {
        return Ok(text(&output.stdout));
    }
    let said = format!("{} {}", text(&output.stdout), text(&output.stderr));
    Err(Error::Command { command: typed.to_owned(), status: output.status.to_string(), said })
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    #[tokio::test]
    async fn a_child_is_dead_when_its_owner_has_gone() {
        let (running, mut input, mut output) = Running::start(Command::new("cat")).unwrap();
        input.write_all(b"x").await.unwrap();
        assert_eq!(output.read_u8().await.unwrap(), b'x');
        let id = running.id();
        assert!(is_running(id));
        drop(running);
        assert!(!is_running(id));
    }

    #[tokio::test]
    async fn a_child_whose_input_ends_is_waited_for() {
        let (mut running, input, _output) = Running::start(Command::new("cat")).unwrap();
        drop(input);
        assert!(running.ends_within(Duration::from_secs(20)).await.unwrap().success());
        assert_eq!(running.id(), 0);
    }

    #[tokio::test]
    async fn a_command_that_fails_says_how() {
        let mut command = Command::new("sh");
        command.args(["-c", "echo out; echo why >&2; exit 3"]);
        let error = run(command, "sh").await.unwrap_err().to_string();
        assert!(error.contains("exit status: 3: out why"), "{error}");
    }
}
