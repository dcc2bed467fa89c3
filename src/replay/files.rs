//! The files of recordings: their names, their text, and how they get onto the disk.
//!
//! Owns the format: an object indented by two spaces, with the members `model`, `request`, `response` and, when the
//! provider's bytes were kept, `raw_bytes`, a string so that no encoder touches them. The first exchange of a key is
//! `<key>.json`, the next `<key>.2.json`. Never reads a recording that it writes; recorder and replayer call it.

use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};

use holdpoint_core::json::{Json, ObjectWriter, compact};
use holdpoint_core::model::{ModelRequest, ModelResponse};
use serde::Deserialize;

use crate::replace::replace;

/// The folder is its owner's alone, because a recording holds a whole conversation.
const FOLDER_MODE: u32 = 0o700;

/// Where the `n`th exchange of a key is kept, counted from one.
pub(super) fn path(folder: &Path, key: &str, n: u64) -> PathBuf {
    folder.join(if n == 1 { format!("{key}.json") } else { format!("{key}.{n}.json") })
}

/// The text of one recorded exchange.
pub(super) fn text(model: &str, request: &ModelRequest, response: &ModelResponse) -> String {
    let mut w = ObjectWriter::plain();
    w.str("model", model).object("request", |w| request.write(w));
    let raw = response.raw.as_ref().map_or("", Json::as_str);
    let without_raw = ModelResponse { raw: None, ..response.clone() };
    w.object("response", |w| without_raw.write(w)).omit_empty_str("raw_bytes", raw);
    let mut text = indented(&w.finish());
    text.push('\n');
    text
}

/// Reads the answer of a recorded exchange.
pub(super) fn response(text: &str) -> Result<ModelResponse, serde_json::Error> {
    #[derive(Deserialize)]
    struct Recorded {
        response: ModelResponse,
        #[serde(default)]
        raw_bytes: String,
    }
    let recorded: Recorded = Json::trusted(text).decode()?;
    let mut response = recorded.response;
    for tool_use in &mut response.tool_uses {
        // The indentation is the file's, not the model's.
        tool_use.args = Json::trusted(compact(tool_use.args.as_str()));
    }
    if !recorded.raw_bytes.is_empty() {
        // Files from before this member have the provider's answer inside the response, and keep that.
        response.raw = Some(Json::trusted(recorded.raw_bytes));
    }
    Ok(response)
}

/// Puts a recording in its place: whole or not at all, and on the disk when this returns.
///
/// The first of a session replaces every recording that an earlier session left under its key. Those go first, so that a
/// crash in between leaves too few answers and never a mixture.
pub(super) fn put(folder: &Path, key: &str, n: u64, text: &str) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(FOLDER_MODE).create(folder)?;
    if n == 1 {
        remove_later_ones(folder, key)?;
    }
    replace(&path(folder, key, n), text)
}

fn remove_later_ones(folder: &Path, key: &str) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let name = entry.file_name();
        let number =
            name.to_str().and_then(|name| name.strip_prefix(key)?.strip_prefix('.')?.strip_suffix(".json"));
        if number.is_some_and(|number| !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit()))
        {
            fs::remove_file(entry.path())?;
        }
    }
    Ok(())
}

/// Breaks compact JSON into lines, two spaces a level. What is empty stays on one line, as Go's encoder has it.
fn indented(compact: &str) -> String {
    let mut out = String::with_capacity(compact.len() * 2);
    let (mut depth, mut in_string, mut escaped, mut before) = (0, false, false, '\0');
    let line = |out: &mut String, depth: usize| {
        out.push('\n');
        out.extend(std::iter::repeat_n("  ", depth));
    };
    for char in compact.chars() {
        if in_string {
            (in_string, escaped) = (escaped || char != '"', !escaped && char == '\\');
            out.push(char);
            before = char;
            continue;
        }
        let opened = matches!(before, '{' | '[');
        let closes = matches!(char, '}' | ']');
        if closes {
            depth -= 1;
        }
        if before == ',' || opened != closes && (opened || closes) {
            line(&mut out, depth);
        }
        out.push(char);
        match char {
            '{' | '[' => depth += 1,
            ':' => out.push(' '),
            '"' => in_string = true,
            _ => {}
        }
        before = char;
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_broken_as_go_breaks_it() {
        let compact = r#"{"a":{},"b":[],"c":[1,{"d":"} , [ \" \\"}],"e":"","f":[[]],"g":null}"#;
        let expected = concat!(
            "{\n  \"a\": {},\n  \"b\": [],\n  \"c\": [\n    1,\n    {\n      \"d\": \"} , [ \\\" \\\\\"\n    }\n  ],\n",
            "  \"e\": \"\",\n  \"f\": [\n    []\n  ],\n  \"g\": null\n}"
        );
        assert_eq!(indented(compact), expected);
        assert_eq!(holdpoint_core::json::compact(expected), compact);
        assert_eq!(indented("{}"), "{}");
    }
}
