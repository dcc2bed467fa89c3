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
            let mut lines = Vec::new();
            lines_of("", &answer, &mut lines);
            for line in lines {
                let health = if line.worrying { Health::Doubtful } else { Health::Fact };
                findings.push(Area::Running, health, line.text);
            }
            findings.observations.push(answer);
        }
    }
}

/// A line about one part of a proxy.
#[derive(Debug, PartialEq, Eq)]
struct Line {
    text: String,
    /// Something of it is out of order.
    worrying: bool,
}

/// Gives each object of an answer a line with its plain members, so that any actor's observation can be read without
/// knowing it.
fn lines_of(name: &str, value: &Value, out: &mut Vec<Line>) {
    let join = |part: &str| if name.is_empty() { part.to_owned() } else { format!("{name}.{part}") };
    match value {
        Value::Object(members) => {
            let plain: Vec<(&String, &Value)> =
                members.iter().filter(|(key, value)| is_plain(key, value)).collect();
            if !plain.is_empty() {
                let told: Vec<String> =
                    plain.iter().map(|(key, value)| format!("{key} {}", worded(value))).collect();
                let name = if name.is_empty() { "proxy" } else { name };
                let worrying = plain.iter().any(|(key, value)| is_worrying(key, value));
                out.push(Line { text: format!("{name}: {}", told.join(", ")), worrying });
            }
            let nested = members.iter().filter(|(_, value)| value.is_object() || is_list_of_objects(value));
            nested.for_each(|(key, value)| lines_of(&join(key), value, out));
        }
        Value::Array(items) => {
            for (at, item) in items.iter().enumerate() {
                let label = LABELS.iter().find_map(|label| item.get(label).and_then(Value::as_str));
                lines_of(label.unwrap_or(&at.to_string()), item, out);
            }
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {
            out.push(Line { text: format!("{name}: {}", worded(value)), worrying: false });
        }
    }
}

/// The members that name an item of a list.
const LABELS: [&str; 2] = ["name", "server"];
/// The members that hold a sentence only when something went wrong.
const SENTENCES: [&str; 3] = ["trouble", "last_error", "last_end"];

/// Whether a member belongs on its object's line: what is absent and what the line is named after does not.
fn is_plain(key: &str, value: &Value) -> bool {
    !(value.is_null() || value.is_object() || is_list_of_objects(value) || LABELS.contains(&key))
}

fn is_list_of_objects(value: &Value) -> bool {
    value.as_array().is_some_and(|items| items.iter().any(Value::is_object))
}

fn is_worrying(key: &str, value: &Value) -> bool {
    (key == "running" && value == &Value::Bool(false)) || (SENTENCES.contains(&key) && value.is_string())
}

fn worded(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn any_actor_s_observation_can_be_read() {
        let answer = json!({"session": "shop", "store": {"applied": 3, "trouble": null},
            "children": [{"name": "store-writer", "running": true, "last_end": null},
                         {"name": "executor", "running": false}],
            "connections": [{"server": "shop", "state": "down", "last_error": "no licence"}], "pids": [1, 2]});
        let mut lines = Vec::new();
        lines_of("", &answer, &mut lines);
        let told: Vec<(&str, bool)> = lines.iter().map(|line| (line.text.as_str(), line.worrying)).collect();
        assert_eq!(
            told,
            [
                ("proxy: session shop, pids [1,2]", false),
                ("store: applied 3", false),
                ("store-writer: running true", false),
                ("executor: running false", true),
                ("shop: state down, last_error no licence", true),
            ]
        );
    }
}
