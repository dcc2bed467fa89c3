//! The checker's own hashes: the chain's link, the canonical form of JSON, an approval's hash.
//!
//! Written from the specification (sections 3.2, 4.2 and 5.1) and held to its published values; shares no code with the
//! product, whose numbers keep their text as these do.

use serde_json::{Value, json};
use sha2::{Digest, Sha256};

/// An event's hash, after one whose hash is `previous`.
pub(crate) fn link(previous: &str, seq: i64, fields: [&str; 5]) -> String {
    let number = seq.to_string();
    let mut bytes = Vec::new();
    for part in [previous, number.as_str()].into_iter().chain(fields) {
        bytes.extend_from_slice(part.len().to_string().as_bytes());
        bytes.push(b':');
        bytes.extend_from_slice(part.as_bytes());
        bytes.push(b',');
    }
    sha256(&bytes)
}

/// SHA-256 in lower-case hex.
pub(crate) fn sha256(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The canonical form: keys in the order of their bytes, no white space, numbers as they were written.
pub(crate) fn canonical(value: &Value) -> String {
    match value {
        Value::Null => "null".to_owned(),
        Value::Bool(yes) => yes.to_string(),
        Value::Number(number) => number.to_string(),
        Value::String(text) => quoted(text),
        Value::Array(items) => {
            let items: Vec<String> = items.iter().map(canonical).collect();
            format!("[{}]", items.join(","))
        }
        Value::Object(members) => {
            let mut members: Vec<_> = members.iter().collect();
            members.sort_by(|a, b| a.0.as_bytes().cmp(b.0.as_bytes()));
            let members: Vec<String> = members
                .into_iter()
                .map(|(key, value)| format!("{}:{}", quoted(key), canonical(value)))
                .collect();
            format!("{{{}}}", members.join(","))
        }
    }
}

fn quoted(text: &str) -> String {
    let mut out = String::from('"');
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\u{8}' => out.push_str("\\b"),
            '\u{c}' => out.push_str("\\f"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '<' | '>' | '&' | '\u{2028}' | '\u{2029}' => out.push_str(&format!("\\u{:04x}", u32::from(c))),
            c if u32::from(c) < 0x20 => out.push_str(&format!("\\u{:04x}", u32::from(c))),
            c => out.push(c),
        }
    }
    out.push('"');
    out
}

/// What an approval's stored hash has to be.
pub(crate) fn approval_hash(
    kind: &str,
    capability: &str,
    presentation: &str,
    request: &str,
) -> Option<String> {
    let json = |text: &str| if text.is_empty() { Some(json!({})) } else { serde_json::from_str(text).ok() };
    let whole = json!({
        "kind": kind,
        "capability": json(capability)?,
        "presentation": json(presentation)?,
        "request": json(request)?,
    });
    Some(sha256(canonical(&whole).as_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_published_link_comes_out() {
        let fields = ["r", "", "2026-10-01T09:00:00Z", "run.started", "{}"];
        assert_eq!(link("", 1, fields), "215d2d4feca5e8542594838002508a9d6739ae568ac25b15fa28058b3943b60f");
    }

    #[test]
    fn the_published_canonical_hashes_come_out() {
        for (text, hash) in [
            ("{}", "44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a"),
            (
                r#"{"n":1.50,"m":[1e5,2E-5,-0.0]}"#,
                "99a916ac72d6c6a45b638603e2b3385d14a8bd7df100584bb68aaf3485b33323",
            ),
            (
                r#""<script>&amp;</script>""#,
                "82f277f8f0331a2f51b10e04e886175451d160438aef59587053bfbcea064dd7",
            ),
        ] {
            let value: Value = serde_json::from_str(text).unwrap();
            assert_eq!(sha256(canonical(&value).as_bytes()), hash, "{text}");
        }
    }
}
