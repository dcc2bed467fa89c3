//! The checker's own hashes: the chain's link, the canonical form of JSON, an approval's hash.
//!
//! Written from the specification (sections 3.2, 4.2 and 5.1) and held to its published values; shares no code with the
//! product, whose numbers keep their text as these do.

use std::collections::BTreeMap;

use serde_json::Value;
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
    canonical_text(&value.to_string()).unwrap_or_default()
}

/// The canonical form of a text. Read by hand: a library may write a number otherwise than it stood there.
pub(crate) fn canonical_text(text: &str) -> Option<String> {
    let mut reader = Reader { text, at: 0 };
    let value = reader.value()?;
    reader.space();
    (reader.at == text.len()).then_some(value)
}

struct Reader<'a> {
    text: &'a str,
    at: usize,
}

impl Reader<'_> {
    fn peek(&self) -> Option<u8> {
        self.text.as_bytes().get(self.at).copied()
    }

    fn space(&mut self) {
        while self.peek().is_some_and(|byte| byte.is_ascii_whitespace()) {
            self.at += 1;
        }
    }

    fn take(&mut self, byte: u8) -> bool {
        self.space();
        let is_next = self.peek() == Some(byte);
        self.at += usize::from(is_next);
        is_next
    }

    fn value(&mut self) -> Option<String> {
        self.space();
        match self.peek()? {
            b'{' => self.object(),
            b'[' => self.array(),
            b'"' => self.string().map(|text| quoted(&text)),
            _ => {
                let from = self.at;
                while self.peek().is_some_and(|byte| byte.is_ascii_alphanumeric() || b"+-.".contains(&byte)) {
                    self.at += 1;
                }
                (self.at > from).then(|| self.text[from..self.at].to_owned())
            }
        }
    }

    fn string(&mut self) -> Option<String> {
        let from = self.at;
        self.at += 1;
        while self.peek()? != b'"' {
            // An escaped quotation mark ends nothing.
            self.at += 1 + usize::from(self.peek()? == b'\\');
        }
        self.at += 1;
        serde_json::from_str(&self.text[from..self.at]).ok()
    }

    fn array(&mut self) -> Option<String> {
        self.take(b'[');
        let mut items = Vec::new();
        while !self.take(b']') {
            items.push(self.value()?);
            self.take(b',');
        }
        Some(format!("[{}]", items.join(",")))
    }

    fn object(&mut self) -> Option<String> {
        self.take(b'{');
        let mut members = BTreeMap::new();
        while !self.take(b'}') {
            let key = self.string()?;
            if !self.take(b':') {
                return None;
            }
            members.insert(key.into_bytes(), self.value()?);
            self.take(b',');
            self.space();
        }
        let members: Option<Vec<String>> = members
            .into_iter()
            .map(|(key, value)| Some(format!("{}:{value}", quoted(&String::from_utf8(key).ok()?))))
            .collect();
        Some(format!("{{{}}}", members?.join(",")))
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
    let json = |text: &str| canonical_text(if text.is_empty() { "{}" } else { text });
    let (capability, presentation, request) = (json(capability)?, json(presentation)?, json(request)?);
    let kind = quoted(kind);
    let whole = format!(
        r#"{{"capability":{capability},"kind":{kind},"presentation":{presentation},"request":{request}}}"#
    );
    Some(sha256(whole.as_bytes()))
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
    fn the_published_hash_of_an_approval_comes_out() {
        let request = r#"{"run_id":"r1","step_id":"s1","spec":{"name":"push","description":"push <main> & tag",
            "input_schema":{"type":"object"},"side_effect":"remote_mutation","timeout":30000000000},
            "args":{"n":7,"ref":"refs/heads/main"}}"#;
        let (capability, presentation) =
            (r#"{"tool":"push","args":{"n":7}}"#, r#"{"title":"Publish <PR> & tag","lines":1.0}"#);
        let hash = approval_hash("remote_mutation", capability, presentation, request).unwrap();
        assert_eq!(hash, "175bcfc7a7e3cdab6b98d7b50caf9f2a8e59d5208211b97de39a4b027c7fa0b2");
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
            assert_eq!(sha256(canonical_text(text).unwrap().as_bytes()), hash, "{text}");
        }
    }
}
