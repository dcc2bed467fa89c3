//! Events as lines: aligned text for a terminal, or JSON Lines for a collector.
//!
//! Owns both forms; each is one whole line, so that several writers can share a stream. Never reads the store. Text
//! is escaped; JSON carries every payload whole, and what a terminal might act on in JSON's own escapes.

use chrono::{DateTime, Local};
use holdpoint_core::event::Event;
use holdpoint_core::sanitize::{escape_json, sanitize};
use holdpoint_core::time::UnixNanos;
use serde::Serialize;
use serde_json::value::RawValue;

/// The most bytes of a payload that a line of text shows.
pub const PAYLOAD_BYTES_MAX: usize = 8_000;

/// Writes an event as a line of text: local time, kind, payload. Ends with a line feed.
pub fn text_line(event: &Event) -> String {
    let at = event.at.map_or_else(|| "-".to_owned(), local);
    format!("{at:<29}  {:<22} {}\n", sanitize(&event.kind), sanitize(&cut(&event.payload)))
}

fn local(at: UnixNanos) -> String {
    let at = DateTime::from_timestamp_nanos(at.as_nanos()).with_timezone(&Local);
    at.format("%Y-%m-%d %H:%M:%S%.3f %z").to_string()
}

fn cut(payload: &str) -> String {
    if payload.len() <= PAYLOAD_BYTES_MAX {
        return payload.to_owned();
    }
    let end = payload.floor_char_boundary(PAYLOAD_BYTES_MAX);
    format!("{}… [{} more bytes]", &payload[..end], payload.len() - end)
}

#[derive(Serialize)]
struct Line<'a, P> {
    seq: i64,
    run_id: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    step_id: &'a str,
    at: String,
    #[serde(rename = "type")]
    kind: &'a str,
    payload: P,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    invalid_payload: bool,
}

/// Writes an event as a line of JSON. A blank payload is `{}`; one that is no JSON becomes a string, and says so.
pub fn json_line(event: &Event) -> String {
    let blank = event.payload.trim().is_empty();
    // White space between tokens is all that can hold a line feed in JSON.
    let payload = if blank { "{}".to_owned() } else { event.payload.replace(['\n', '\r'], " ") };
    let text = match serde_json::from_str::<&RawValue>(&payload) {
        Ok(payload) => serde_json::to_string(&Line::of(event, payload, false)),
        Err(_) => serde_json::to_string(&Line::of(event, event.payload.as_str(), true)),
    };
    // Neither a string nor checked JSON can fail to be written.
    let mut text = escape_json(&text.unwrap_or_default()).into_owned();
    text.push('\n');
    text
}

impl<'a, P> Line<'a, P> {
    fn of(event: &'a Event, payload: P, invalid_payload: bool) -> Line<'a, P> {
        Line {
            seq: event.seq,
            run_id: event.run_id.as_str(),
            step_id: &event.step_id,
            at: event.at.map(UnixNanos::to_rfc3339).unwrap_or_default(),
            kind: &event.kind,
            payload,
            invalid_payload,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(payload: &str) -> Event {
        Event {
            seq: 7,
            run_id: "r1".into(),
            step_id: String::new(),
            at: Some(UnixNanos::parse("2026-10-01T09:00:00.25Z").unwrap()),
            kind: "run.started".to_owned(),
            payload: payload.to_owned(),
        }
    }

    #[test]
    fn a_line_of_json_carries_the_payload_as_recorded() {
        assert_eq!(
            json_line(&event(r#"{"b":1.50,"a":"\u003c<"}"#)),
            "{\"seq\":7,\"run_id\":\"r1\",\"at\":\"2026-10-01T09:00:00.25Z\",\"type\":\"run.started\",\
             \"payload\":{\"b\":1.50,\"a\":\"\\u003c<\"}}\n"
        );
        let with_step = Event { step_id: "s1".to_owned(), ..event(" ") };
        assert!(json_line(&with_step).contains(r#""step_id":"s1","#));
        assert!(json_line(&with_step).ends_with("\"payload\":{}}\n"));
    }

    #[test]
    fn a_line_of_json_holds_nothing_that_a_terminal_acts_on() {
        let line = json_line(&event("{\"a\":\"\u{9b}31m\u{202e}\"}"));
        assert!(line.ends_with("\"payload\":{\"a\":\"\\u009b31m\\u202e\"}}\n"), "{line}");
    }

    #[test]
    fn a_payload_that_is_no_json_stays_in_the_log_as_a_string() {
        assert!(json_line(&event("{oops")).ends_with("\"payload\":\"{oops\",\"invalid_payload\":true}\n"));
    }

    #[test]
    fn a_line_is_one_line_whatever_the_payload_holds() {
        assert_eq!(json_line(&event("{\n\"a\":\r\n1}")).lines().count(), 1);
        let text = text_line(&event("{\"a\":\"\u{1b}[2J\u{202e}\n\"}"));
        assert_eq!(text.lines().count(), 1, "{text}");
        assert!(text.contains(r#"{"a":"\x1b[2J\u{202e} "}"#), "{text}");
    }

    #[test]
    fn text_is_aligned_and_a_long_payload_is_counted() {
        let text = text_line(&event("{}"));
        assert_eq!(text.find("run.started"), Some(31), "{text}");
        assert_eq!(text.find("{}"), Some(54), "{text}");
        let long = text_line(&event(&"x".repeat(9_000)));
        assert!(long.ends_with("x… [1000 more bytes]\n"), "{long}");
        let undated = text_line(&Event { at: None, ..event("{}") });
        assert_eq!(undated.find("run.started"), Some(31), "{undated}");
    }
}
