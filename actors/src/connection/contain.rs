//! How a server's processes can be held together on this machine, and which way is taken for a server.
//!
//! Each way is rehearsed once in the life of this process, by doing all of it with a server that ends where it would
//! begin: what a kernel, a container or a security module allows is known only by trying. `guard` does what is decided
//! here, `process` takes the ways in the order that stands here, `doctor` tells which it is.
//!
//! Why an ordinary user's server is not put into a namespace unasked: `docs/decisions/a-guard-holds-each-server.md`.

use std::sync::OnceLock;

use serde::Serialize;

/// A way to hold a server and everything that it starts, from the strictest to the loosest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Containment {
    /// A process-id namespace: the kernel ends everything in it with its first process. Takes privileges to make.
    PidNamespace,
    /// The same inside a user namespace, which an ordinary user may make on many machines. Every other user's files
    /// appear to belong to `nobody` in it.
    UserNamespace,
    /// A guard process, to which the kernel gives every process that its parent leaves, and which ends them. A server
    /// that kills its guard gets out of hand.
    Guard,
    /// The server's process group, and what is seen below it from time to time. A child that leaves both in between
    /// gets out of hand.
    Group,
}

impl Containment {
    /// Says what holds the server, to follow "held by".
    #[must_use]
    pub const fn describe(self) -> &'static str {
        match self {
            Self::PidNamespace => "a process-id namespace",
            Self::UserNamespace => "a process-id namespace inside a user namespace",
            Self::Guard => "a guard process",
            Self::Group => "its process group",
        }
    }

    /// Whether a guard stands between this process and the server.
    pub(super) const fn is_guarded(self) -> bool {
        !matches!(self, Self::Group)
    }

    pub(super) const fn is_namespace(self) -> bool {
        matches!(self, Self::PidNamespace | Self::UserNamespace)
    }

    /// Why this way can't be gone here, if it can't.
    pub(super) fn obstacle(self) -> Option<&'static str> {
        static NAMESPACE: OnceLock<Option<String>> = OnceLock::new();
        static USER_NAMESPACE: OnceLock<Option<String>> = OnceLock::new();
        static GUARD: OnceLock<Option<String>> = OnceLock::new();
        let known = match self {
            Self::PidNamespace => &NAMESPACE,
            Self::UserNamespace => &USER_NAMESPACE,
            Self::Guard => &GUARD,
            Self::Group => return None,
        };
        known.get_or_init(|| rehearse(self)).as_deref()
    }
}

/// The ways that may be taken for a server, in the order in which they are tried.
///
/// `asked` is the operator's word on a process-id namespace for it.
pub(super) const fn ways(asked: Option<bool>) -> &'static [Containment] {
    use Containment::{Group, Guard, PidNamespace, UserNamespace};
    match asked {
        None => &[PidNamespace, Guard, Group],
        Some(true) => &[PidNamespace, UserNamespace],
        Some(false) => &[Guard, Group],
    }
}

/// What holds a server, and why nothing stricter does.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Held {
    /// What holds it.
    pub by: Containment,
    /// What stood in the way of each stricter way that was tried; none if nothing was.
    pub instead_of: Option<String>,
}

/// Why a server that is to have a namespace can't have one, in the words of [`expected`] and of a failed start.
pub(super) fn refusal(obstacles: &[(Containment, String)]) -> String {
    format!(
        "pid_namespace is true, and no process-id namespace can be made here ({}); leave it out, or set it to false",
        listed(obstacles)
    )
}

/// Puts obstacles into words.
pub(super) fn listed(obstacles: &[(Containment, String)]) -> String {
    let told: Vec<String> =
        obstacles.iter().map(|(way, why)| format!("not by {}: {why}", way.describe())).collect();
    told.join("; ")
}

/// What would hold a server if it were started now, by the operator's word on a process-id namespace for it.
///
/// The first time, this starts and ends up to three processes for each way; it blocks until they have ended.
///
/// # Errors
/// A sentence, when the operator asks for a namespace and none can be made.
pub fn expected(asked: Option<bool>) -> Result<Held, String> {
    let mut obstacles = Vec::new();
    for way in ways(asked) {
        match way.obstacle() {
            None => {
                let instead_of = (!obstacles.is_empty()).then(|| listed(&obstacles));
                return Ok(Held { by: *way, instead_of });
            }
            Some(why) => obstacles.push((*way, why.to_owned())),
        }
    }
    Err(refusal(&obstacles))
}

#[cfg(target_os = "linux")]
fn rehearse(way: Containment) -> Option<String> {
    let obstacle = rehearsal::of(way).err();
    match &obstacle {
        None => tracing::debug!(way = way.describe(), "servers can be held this way"),
        Some(why) => tracing::debug!(way = way.describe(), why, "servers can't be held this way"),
    }
    obstacle
}

#[cfg(not(target_os = "linux"))]
fn rehearse(_way: Containment) -> Option<String> {
    Some("only Linux has it".to_owned())
}

#[cfg(target_os = "linux")]
mod rehearsal {
    use std::process::{Command, Stdio};

    use super::super::guard::{Plan, failed_step};
    use super::Containment;

    /// Goes the whole way, up to where the server would be executed.
    pub(super) fn of(way: Containment) -> Result<(), String> {
        let id_by_proc = std::fs::read_link("/proc/self").map_err(|error| format!("/proc: {error}"))?;
        if id_by_proc.to_str() != Some(std::process::id().to_string().as_str()) {
            // Its numbers would be somebody else's.
            return Err("/proc shows another process-id namespace than this process's".to_owned());
        }
        let words = |error: std::io::Error| failed_step(&error).unwrap_or_else(|| error.to_string());
        let (plan, mut report) = Plan::new(way, true).map_err(words)?;
        // Never executed.
        let mut command = Command::new("/");
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        plan.install(&mut command);
        let started = command.spawn();
        drop(command);
        let mut guard = started.map_err(words)?;
        let told = report.ended();
        let end = guard.wait().map_err(words)?;
        match told {
            Some(status) if status.success() && end.success() => Ok(()),
            Some(_) | None => Err("the rehearsal came to another end".to_owned()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_is_held_the_strictest_way_that_costs_it_nothing() {
        assert_eq!(ways(None).last(), Some(&Containment::Group));
        assert!(!ways(None).contains(&Containment::UserNamespace));
        assert!(ways(Some(true)).iter().all(|way| way.is_namespace()));
        assert!(!ways(Some(false)).iter().any(|way| way.is_namespace()));
    }

    #[test]
    fn what_is_expected_is_the_first_way_without_an_obstacle() {
        for asked in [None, Some(true), Some(false)] {
            let first = ways(asked).iter().find(|way| way.obstacle().is_none());
            match (expected(asked), first) {
                (Ok(held), Some(way)) => {
                    assert_eq!(held.by, *way);
                    assert_eq!(held.instead_of.is_some(), *way != ways(asked)[0]);
                }
                (Err(why), None) => assert!(asked == Some(true) && why.contains("set it to false"), "{why}"),
                (held, way) => panic!("{held:?}, and {way:?}"),
            }
        }
    }

    #[test]
    fn an_obstacle_is_told_with_the_step_that_failed() {
        let obstacles = [
            (Containment::PidNamespace, "making a namespace: not permitted".to_owned()),
            (Containment::UserNamespace, "mounting a /proc of its own: not permitted".to_owned()),
        ];
        assert_eq!(
            refusal(&obstacles),
            "pid_namespace is true, and no process-id namespace can be made here (not by a process-id namespace: \
             making a namespace: not permitted; not by a process-id namespace inside a user namespace: mounting a \
             /proc of its own: not permitted); leave it out, or set it to false"
        );
    }
}
