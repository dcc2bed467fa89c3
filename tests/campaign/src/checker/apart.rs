//! The checker as a process of its own: it opens the files that are left as anybody does who comes later.
//!
//! Owns the form in which it is told what is known outside, and in which it tells what it found.

use std::io::{Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::{Value, json};

use super::{Decided, Effect, Head, Held, Outside, Property, Told, Violation, judge, judge_settled};
use crate::host::Answer;

/// What the program is called with to be the checker.
pub(crate) const WORD: &str = "judge";

/// When what is left is judged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum When {
    /// Right after a death, or at any other time.
    AnyTime,
    /// When everything was recovered and every process has gone.
    Settled,
}

/// Has a fresh process of `program` judge what is left.
pub(crate) fn ask(
    program: &Path,
    database: &Path,
    scratch: &Path,
    outside: &Outside,
    when: When,
) -> Result<Vec<Violation>, String> {
    let mut command = Command::new(program);
    command.arg(WORD).args([database, scratch]).stdin(Stdio::piped()).stdout(Stdio::piped());
    let told = |error: std::io::Error| format!("start the checker: {error}");
    let mut checker = command.spawn().map_err(told)?;
    let question = json!({"outside": outside.to_json(), "settled": when == When::Settled}).to_string();
    if let Some(mut input) = checker.stdin.take() {
        input.write_all(question.as_bytes()).map_err(told)?;
    }
    let output = checker.wait_with_output().map_err(told)?;
    let found: Value = serde_json::from_slice(&output.stdout)
        .map_err(|_| format!("the checker said {:?}", String::from_utf8_lossy(&output.stdout)))?;
    match (found["why"].as_str(), found["found"].as_array()) {
        (None, Some(found)) => found.iter().map(Violation::of_json).collect(),
        (why, _) => Err(why.unwrap_or("the checker said nothing").to_owned()),
    }
}

/// Judges as the one that was asked.
pub(crate) fn answer(words: &[String]) -> Result<(), String> {
    let [database, scratch] = words else { return Err("name the database and a folder".to_owned()) };
    let (database, scratch) = (PathBuf::from(database), PathBuf::from(scratch));
    let mut text = String::new();
    std::io::stdin().read_to_string(&mut text).map_err(|error| error.to_string())?;
    let question: Value = serde_json::from_str(&text).map_err(|error| error.to_string())?;
    let outside = Outside::of_json(&question["outside"]);
    let judged = match question["settled"] == true {
        true => judge_settled(&database, &scratch, &outside),
        false => judge(&database, &scratch, &outside),
    };
    let said = match judged {
        Ok(found) => json!({"found": found.iter().map(Violation::to_json).collect::<Vec<_>>()}),
        Err(why) => json!({"why": why}),
    };
    writeln!(std::io::stdout(), "{said}").map_err(|error| error.to_string())
}

impl Violation {
    fn to_json(&self) -> Value {
        json!({"property": self.property.to_string(), "detail": self.detail})
    }

    fn of_json(value: &Value) -> Result<Violation, String> {
        let property = Property::ALL.into_iter().find(|known| value["property"] == known.to_string());
        let property = property.ok_or_else(|| format!("the checker found {value}"))?;
        Ok(Violation { property, detail: text(&value["detail"]) })
    }
}

impl Outside {
    fn to_json(&self) -> Value {
        let told =
            |told: &Told| json!([told.tool, told.args, told.answer.text, told.answer.is_error, told.mark]);
        let decided = |one: &Decided| json!([one.approval, one.approved, one.by, one.mark, one.note]);
        let effect = |one: &Effect| json!([one.tool, one.args, one.open_intents, one.mark]);
        json!({
            "told": self.told.iter().map(told).collect::<Vec<_>>(),
            "decided": self.decided.iter().map(decided).collect::<Vec<_>>(),
            "heads": self.heads.iter().map(|head| json!([head.seq, head.hash, head.mark])).collect::<Vec<_>>(),
            "held": self.held.iter().map(|held| json!([held.run, held.owner, held.seq])).collect::<Vec<_>>(),
            "effects": self.effects.iter().map(effect).collect::<Vec<_>>(),
            "orphans": self.orphans,
            "aged": self.aged,
            "apart_ms": self.apart_ms,
            "older": self.older,
        })
    }

    fn of_json(value: &Value) -> Outside {
        let each = |name: &str| value[name].as_array().cloned().unwrap_or_default().into_iter();
        let mark = |value: &Value| value.as_u64().unwrap_or(0);
        Outside {
            told: each("told")
                .map(|one| Told {
                    tool: text(&one[0]),
                    args: one[1].clone(),
                    answer: Answer { text: text(&one[2]), is_error: one[3] == true },
                    mark: mark(&one[4]),
                })
                .collect(),
            decided: each("decided")
                .map(|one| Decided {
                    approval: text(&one[0]),
                    approved: one[1] == true,
                    by: text(&one[2]),
                    mark: mark(&one[3]),
                    note: text(&one[4]),
                })
                .collect(),
            heads: each("heads")
                .map(|one| Head {
                    seq: one[0].as_i64().unwrap_or(-1),
                    hash: text(&one[1]),
                    mark: mark(&one[2]),
                })
                .collect(),
            held: each("held")
                .map(|one| Held {
                    run: text(&one[0]),
                    owner: text(&one[1]),
                    seq: one[2].as_i64().unwrap_or(0),
                })
                .collect(),
            effects: each("effects")
                .map(|one| Effect {
                    tool: text(&one[0]),
                    args: one[1].clone(),
                    open_intents: one[2].as_u64(),
                    mark: mark(&one[3]),
                })
                .collect(),
            orphans: each("orphans").map(|one| text(&one)).collect(),
            aged: value["aged"] == true,
            apart_ms: mark(&value["apart_ms"]),
            older: value["older"] == true,
        }
    }
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_known_outside_comes_through_whole() {
        let answer = Answer { text: "paid \u{1}".to_owned(), is_error: true };
        let outside = Outside {
            told: vec![Told { tool: "t".to_owned(), args: json!({"n": 1}), answer, mark: u64::MAX }],
            decided: vec![Decided {
                approval: "a".to_owned(),
                approved: true,
                by: "b".to_owned(),
                note: "n".to_owned(),
                mark: 2,
            }],
            held: vec![Held { run: "r".to_owned(), owner: "o".to_owned(), seq: 6 }],
            heads: vec![Head { seq: 3, hash: "h".to_owned(), mark: 4 }],
            effects: vec![Effect { tool: "e".to_owned(), args: json!([]), open_intents: None, mark: 5 }],
            orphans: vec!["7".to_owned()],
            aged: true,
            apart_ms: 8,
            older: true,
        };
        let come = Outside::of_json(&serde_json::from_str(&outside.to_json().to_string()).unwrap());
        assert_eq!(format!("{come:?}"), format!("{outside:?}"));
        for property in Property::ALL {
            let violation = Violation { property, detail: "d".to_owned() };
            assert_eq!(Violation::of_json(&violation.to_json()).unwrap().property, property);
        }
    }
}
