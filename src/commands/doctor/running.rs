//! What running proxies report of their actors, asked for over the socket beside the database.

use std::path::Path;

use holdpoint::doctor_socket::{self, Observed};
use serde_json::Value;

use super::{Area, Findings, Health};
use crate::commands::block_on;
use crate::error::CommandError;

pub(super) fn look(database: &Path, findings: &mut Findings) -> Result<(), CommandError> {
    let all = block_on(doctor_socket::observe_all(database))?;
    if all.is_empty() {
        findings.push(Area::Running, Health::Fact, "no proxy serves this database now");
    }
    for observed in all {
        told(observed, findings);
    }
    Ok(())
}

fn told(observed: Observed, findings: &mut Findings) {
    let path = observed.path.display();
    match observed.answer {
        Err(problem) => {
            findings.push(
                Area::Running,
                Health::Bad,
                format!("a proxy listens at {path} and does not answer: {problem}"),
            );
        }
        Ok(answer) => {
            findings.push(Area::Running, Health::Good, format!("a proxy answers at {path}"));
            for (name, value) in flattened(&answer) {
                findings.push(Area::Running, Health::Fact, format!("{name}: {value}"));
            }
            findings.observations.push(answer);
        }
    }
}

/// An answer's members as `actor.field: value`, so that any actor's observation can be read without knowing it.
fn flattened(answer: &Value) -> Vec<(String, String)> {
    fn walk(name: &str, value: &Value, out: &mut Vec<(String, String)>) {
        let join = |part: &str| if name.is_empty() { part.to_owned() } else { format!("{name}.{part}") };
        match value {
            Value::Object(members) => members.iter().for_each(|(key, value)| walk(&join(key), value, out)),
            Value::Array(items) if items.iter().any(|item| item.is_object()) => {
                for (at, item) in items.iter().enumerate() {
                    let label = item.get("name").or_else(|| item.get("server")).and_then(Value::as_str);
                    walk(&join(label.unwrap_or(&at.to_string())), item, out);
                }
            }
            Value::String(text) => out.push((name.to_owned(), text.clone())),
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::Array(_) => {
                out.push((name.to_owned(), value.to_string()));
            }
        }
    }
    let mut out = Vec::new();
    walk("", answer, &mut out);
    out
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn any_actor_s_observation_can_be_read() {
        let answer = json!({"store": {"applied": 3, "trouble": null},
            "connections": [{"server": "shop", "state": "connected"}], "pids": [1, 2]});
        let lines: Vec<String> =
            flattened(&answer).into_iter().map(|(name, value)| format!("{name}: {value}")).collect();
        assert_eq!(
            lines,
            [
                "store.applied: 3",
                "store.trouble: null",
                "connections.shop.server: shop",
                "connections.shop.state: connected",
                "pids: [1,2]"
            ]
        );
    }
}
