//! Events as lines: aligned text for a terminal, or JSON Lines for a collector.
//!
//! Owns both forms, and the observer that writes them while a run goes on. Each event is one whole line, whoever writes
//! beside it. Never reads the store. Text is escaped; JSON carries every payload whole, and what a terminal might act on
//! in JSON's own escapes.
//!
//! ```
//! use std::sync::Arc;
//!
//! use holdpoint::gate::{Observer, Runtime};
//! use holdpoint::trace::Trace;
//!
//! let trace = Arc::new(Trace::text(std::io::stderr()));
//! let builder = Runtime::builder("agent.db").observer(Arc::clone(&trace) as Arc<dyn Observer>);
//! // ... and when the run is over:
//! assert!(trace.error().is_none(), "a line of the trace was lost");
//! # drop(builder);
//! ```

use std::fmt;
use std::io::{self, Write};
use std::sync::{Arc, Mutex, PoisonError};

use chrono::{DateTime, Local};
use holdpoint_actors::session::Observer;
use holdpoint_core::event::Event;
use holdpoint_core::sanitize::{escape_json, sanitize};
use holdpoint_core::time::UnixNanos;
use serde::Serialize;
use serde_json::value::RawValue;

/// The most bytes of a payload that [`short_text_line`] shows.
pub const PAYLOAD_BYTES_MAX: usize = 8_000;

/// Writes an event as a line of text: local time, kind, payload. Ends with a line feed.
pub fn text_line(event: &Event) -> String {
    text_with(event, &event.payload)
}

/// Writes an event as [`text_line`] does, its payload cut at [`PAYLOAD_BYTES_MAX`] with the count of what is missing.
pub fn short_text_line(event: &Event) -> String {
    text_with(event, &cut(&event.payload))
}

fn text_with(event: &Event, payload: &str) -> String {
    let at = event.at.map_or_else(|| "-".to_owned(), local);
    format!("{at:<29}  {:<22} {}\n", sanitize(&event.kind), sanitize(payload))
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

/// Writes each committed event as a line.
///
/// A line that can't be written is lost, and the run goes on: [`Trace::error`] tells the first time that it happened.
pub struct Trace<W> {
    form: fn(&Event) -> String,
    output: Mutex<Output<W>>,
}

struct Output<W> {
    to: W,
    /// A part of a line was written and the rest was not.
    torn: bool,
    error: Option<Arc<io::Error>>,
}

impl<W: Write> Trace<W> {
    /// Aligned text, see [`text_line`].
    pub fn text(to: W) -> Trace<W> {
        Trace::of(text_line, to)
    }

    /// JSON Lines, see [`json_line`].
    pub fn json_lines(to: W) -> Trace<W> {
        Trace::of(json_line, to)
    }

    fn of(form: fn(&Event) -> String, to: W) -> Trace<W> {
        Trace { form, output: Mutex::new(Output { to, torn: false, error: None }) }
    }

    /// The first error of writing, if there was one.
    pub fn error(&self) -> Option<Arc<io::Error>> {
        self.lock().error.clone()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Output<W>> {
        self.output.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<W: Write> Output<W> {
    fn write(&mut self, mut line: String) {
        if self.torn {
            // The next line stays whole, whatever was left of the one before.
            line.insert(0, '\n');
        }
        let mut left = line.as_bytes();
        while !left.is_empty() {
            match self.to.write(left) {
                Ok(0) => return self.failed(left.len() < line.len(), io::ErrorKind::WriteZero.into()),
                Ok(written) => left = &left[written..],
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return self.failed(left.len() < line.len(), error),
            }
        }
        self.torn = false;
    }

    fn failed(&mut self, partly: bool, error: io::Error) {
        self.torn |= partly;
        self.error.get_or_insert_with(|| Arc::new(error));
    }
}

impl<W: Write + Send + 'static> Observer for Trace<W> {
    fn committed(&self, event: &Event) {
        let line = (self.form)(event);
        self.lock().write(line);
    }
}

impl<W> fmt::Debug for Trace<W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Trace").finish_non_exhaustive()
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
        let long = event(&"x".repeat(9_000));
        assert!(short_text_line(&long).ends_with("x… [1000 more bytes]\n"));
        assert!(
            text_line(&long).ends_with("x\n") && text_line(&long).len() > 9_000,
            "an observer gets it whole"
        );
        let undated = text_line(&Event { at: None, ..event("{}") });
        assert_eq!(undated.find("run.started"), Some(31), "{undated}");
    }

    #[test]
    fn a_payload_as_deep_as_the_record_takes_is_still_json() {
        let deep = format!("{{\"a\":{}{}}}", "[".repeat(255), "]".repeat(255));
        assert!(json_line(&event(&deep)).ends_with(&format!("\"payload\":{deep}}}\n")));
    }

    #[test]
    fn what_html_reads_is_not_rewritten() {
        assert!(json_line(&event(r#"{"a":"<b> & c"}"#)).ends_with("\"payload\":{\"a\":\"<b> & c\"}}\n"));
    }

    /// Takes a byte at a time, and fails at the given writes.
    #[derive(Clone, Default)]
    struct Trickle(Arc<Mutex<(Vec<u8>, usize)>>, Vec<usize>);

    impl Write for Trickle {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let mut state = self.0.lock().unwrap();
            state.1 += 1;
            if self.1.contains(&state.1) {
                return Err(io::Error::other(format!("write {}", state.1)));
            }
            state.0.push(bytes[0]);
            Ok(1)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    impl Trickle {
        fn text(&self) -> String {
            String::from_utf8(self.0.lock().unwrap().0.clone()).unwrap()
        }
    }

    #[test]
    fn lines_of_several_threads_stay_whole() {
        let output = Trickle::default();
        let trace = Trace::json_lines(output.clone());
        std::thread::scope(|scope| {
            for seq in 0..4 {
                let trace = &trace;
                scope.spawn(move || {
                    for _ in 0..20 {
                        trace.committed(&Event { seq, ..event("{}") });
                    }
                });
            }
        });
        assert!(trace.error().is_none());
        let text = output.text();
        let whole: Vec<i64> = text
            .lines()
            .map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap()["seq"].as_i64().unwrap())
            .collect();
        for seq in 0..4 {
            assert_eq!(whole.iter().filter(|found| **found == seq).count(), 20);
        }
    }

    #[test]
    fn the_first_error_is_kept_and_the_next_line_begins_on_its_own() {
        let output = Trickle(Arc::default(), vec![1, 5]);
        let trace = Trace::json_lines(output.clone());
        for _ in 0..3 {
            trace.committed(&event("{}"));
        }
        assert_eq!(trace.error().unwrap().to_string(), "write 1");
        let whole = json_line(&event("{}"));
        assert_eq!(output.text(), format!("{{\"s\n{whole}"), "one was lost, one torn, one is whole");
    }
}
