//! The chain of events: how each event's hash binds the one before it, and how a stored chain is verified.
//!
//! An event's hash is the SHA-256 of seven netstrings (`<length in bytes>:<bytes>,`): the previous event's hash, the
//! sequence number in decimal, and the stored run, step, time, kind and payload. The previous event is the next lower
//! one of the whole database, whatever its run; before the first stands the empty text. Nothing here reads the
//! events: the store hands them over, in order, and decides how to page them.
//!
//! What an intact chain proves is limited: who can write the file can also recompute the chain. Only a head kept
//! elsewhere shows that, and a tail cut off.

use sha2::{Digest, Sha256};

use crate::ids::hex;

/// The most characters of a stored hash that are looked at; a true one has 64.
pub const HASH_CHARS_MAX: usize = 128;

/// An event as the chain sees it: each text exactly as it is stored.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct ChainedEvent<'a> {
    /// The sequence number, from 1, without a gap.
    pub seq: i64,
    /// The run that it belongs to.
    pub run_id: &'a str,
    /// The step that it belongs to, or nothing.
    pub step_id: &'a str,
    /// When it happened, as it is stored.
    pub at: &'a str,
    /// What happened (the column `type`).
    pub kind: &'a str,
    /// The payload, as it is stored.
    pub payload_json: &'a str,
}

/// Gives an event's hash, after an event whose hash is `previous` (empty for the first).
pub fn link(previous: &str, event: &ChainedEvent<'_>) -> String {
    let mut hasher = LinkHasher::new(previous, event.seq);
    for field in [event.run_id, event.step_id, event.at, event.kind, event.payload_json] {
        hasher.field(field.as_bytes());
    }
    hasher.finish()
}

/// Computes one event's hash from its fields as bytes, also when a field is too long to be held whole.
///
/// The fields come in the order of the stored columns: run, step, time, kind, payload.
#[derive(Debug, Clone)]
pub struct LinkHasher {
    hasher: Sha256,
    /// Bytes that are handed on together: a usual event is a few hundred, in some twenty pieces.
    waiting: [u8; WAITING],
    length: usize,
}

/// Bytes that wait at most.
const WAITING: usize = 512;

impl LinkHasher {
    /// Begins the hash of event `seq`, after an event whose hash is `previous`.
    pub fn new(previous: &str, seq: i64) -> Self {
        let mut hasher = Self { hasher: Sha256::new(), waiting: [0; WAITING], length: 0 };
        hasher.field(previous.as_bytes());
        hasher.field(Decimal::of(seq).as_bytes());
        hasher
    }

    /// Adds a field that is at hand.
    pub fn field(&mut self, bytes: &[u8]) {
        self.begin_field(bytes.len() as u64);
        self.chunk(bytes);
        self.end_field();
    }

    /// Begins a field of `length` bytes, which [`chunk`](Self::chunk) brings.
    pub fn begin_field(&mut self, length: u64) {
        self.chunk(Decimal::of(length).as_bytes());
        self.chunk(b":");
    }

    /// Adds the next bytes of the field that was begun.
    pub fn chunk(&mut self, bytes: &[u8]) {
        if self.length + bytes.len() > WAITING {
            self.hasher.update(&self.waiting[..self.length]);
            self.length = 0;
        }
        match self.waiting.get_mut(self.length..self.length + bytes.len()) {
            Some(room) => {
                room.copy_from_slice(bytes);
                self.length += bytes.len();
            }
            None => self.hasher.update(bytes),
        }
    }

    /// Ends the field that was begun.
    pub fn end_field(&mut self) {
        self.chunk(b",");
    }

    /// Gives the hash, as 64 lowercase hex digits.
    pub fn finish(mut self) -> String {
        self.hasher.update(&self.waiting[..self.length]);
        hex(&self.hasher.finalize())
    }
}

/// What a verification found.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct VerifyReport {
    /// The first event checked, or 0.
    pub from: i64,
    /// The last event checked, or 0. Below what was asked for, it means that no later event exists.
    pub to: i64,
    /// How many events were checked, the one that breaks the chain included.
    pub checked: i64,
    /// The stored hash of the last event checked, or nothing.
    pub hash: String,
    /// The first event that does not follow, where the verification stopped.
    pub broken: Option<Break>,
}

/// An event that does not follow the one before it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Break {
    /// Its sequence number.
    pub seq: i64,
    /// The hash that its fields and the hash before it give.
    pub expected: String,
    /// The hash that is stored, cut at [`HASH_CHARS_MAX`] characters.
    pub found: String,
    /// What is wrong, in words for a person.
    pub detail: String,
}

/// Verifies a chain, event by event, in the order of their sequence numbers.
#[derive(Debug)]
pub struct Verifier {
    from: i64,
    previous_seq: Option<i64>,
    previous_hash: String,
    report: VerifyReport,
}

impl Verifier {
    /// Begins at event `from` (below 1: at the first).
    ///
    /// `previous` is the stored number and hash of the event before it, which is trusted. Without one, a
    /// verification from a later event than the first takes that event's number as given.
    pub fn new(from: i64, previous: Option<(i64, &str)>) -> Self {
        Self {
            from: from.max(1),
            previous_seq: previous.map(|(seq, _)| seq),
            previous_hash: previous.map(|(_, hash)| cut(hash).to_owned()).unwrap_or_default(),
            report: VerifyReport::default(),
        }
    }

    /// Gives the hash that the next event must follow, to begin a [`LinkHasher`] with.
    pub fn previous_hash(&self) -> &str {
        &self.previous_hash
    }

    /// Checks the next event, whose fields are at hand, against its stored hash.
    pub fn next(&mut self, event: &ChainedEvent<'_>, stored_hash: &str) -> Result<(), Break> {
        let expected = link(&self.previous_hash, event);
        self.next_link(event.seq, expected, stored_hash)
    }

    /// Checks the next event, whose hash was computed with a [`LinkHasher`], against its stored hash.
    ///
    /// After a break, nothing more is checked: each call gives the same break again.
    pub fn next_link(&mut self, seq: i64, expected: String, stored_hash: &str) -> Result<(), Break> {
        if let Some(broken) = &self.report.broken {
            return Err(broken.clone());
        }
        let found = cut(stored_hash);
        if self.report.checked == 0 {
            self.report.from = seq;
        }
        self.report.to = seq;
        self.report.checked += 1;
        found.clone_into(&mut self.report.hash);
        if let Some(detail) = self.fault(seq, &expected, found) {
            let broken = Break { seq, expected, found: found.to_owned(), detail };
            self.report.broken = Some(broken.clone());
            return Err(broken);
        }
        self.previous_seq = Some(seq);
        self.previous_hash = expected;
        Ok(())
    }

    /// Gives what was found so far.
    pub fn report(&self) -> &VerifyReport {
        &self.report
    }

    /// Ends the verification.
    pub fn finish(self) -> VerifyReport {
        self.report
    }

    fn fault(&self, seq: i64, expected: &str, found: &str) -> Option<String> {
        match self.previous_seq {
            Some(previous) if previous.checked_add(1) != Some(seq) => Some(format!(
                "event {seq} comes right after event {previous}: what stood between them is gone"
            )),
            None if self.from == 1 && seq != 1 => {
                Some(format!("the chain begins with event {seq}: what stood before it is gone"))
            }
            Some(_) | None if found != expected => Some(
                "the event's fields, or the hash before it, do not give the hash that is stored".to_owned(),
            ),
            Some(_) | None => None,
        }
    }
}

fn cut(hash: &str) -> &str {
    match hash.char_indices().nth(HASH_CHARS_MAX) {
        Some((end, _)) => &hash[..end],
        None => hash,
    }
}

/// A whole number's decimal text, held in place: each event needs eight of them.
struct Decimal {
    buffer: [u8; 20],
    start: usize,
}

impl Decimal {
    fn of(number: impl Into<i128>) -> Self {
        let number: i128 = number.into();
        let mut rest = number.unsigned_abs();
        let mut decimal = Self { buffer: [b'0'; 20], start: 20 };
        loop {
            decimal.start -= 1;
            // Always below 10.
            decimal.buffer[decimal.start] = b'0' + (rest % 10) as u8;
            rest /= 10;
            if rest == 0 {
                break;
            }
        }
        if number < 0 {
            decimal.start -= 1;
            decimal.buffer[decimal.start] = b'-';
        }
        decimal
    }

    fn as_bytes(&self) -> &[u8] {
        &self.buffer[self.start..]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The rule as it reads in the specification.
    fn naive(previous: &str, event: &ChainedEvent<'_>) -> String {
        let seq = event.seq.to_string();
        let mut text = String::new();
        for field in [previous, &seq, event.run_id, event.step_id, event.at, event.kind, event.payload_json] {
            text.push_str(&format!("{}:{field},", field.len()));
        }
        crate::hash::sha256_hex(text.as_bytes())
    }

    fn event(seq: i64, payload_json: &str) -> ChainedEvent<'_> {
        ChainedEvent { seq, run_id: "r", step_id: "", at: "2026-10-01T09:00:00Z", kind: "k", payload_json }
    }

    /// A chain of events with these payloads, each with its hash.
    fn chain<'a>(payloads: &[&'a str]) -> Vec<(ChainedEvent<'a>, String)> {
        let mut previous = String::new();
        let mut events = Vec::new();
        for (seq, payload) in (1..).zip(payloads) {
            let event = event(seq, payload);
            previous = link(&previous, &event);
            events.push((event, previous.clone()));
        }
        events
    }

    fn verify(events: &[(ChainedEvent<'_>, String)]) -> VerifyReport {
        let mut verifier = Verifier::new(0, None);
        for (event, hash) in events {
            if verifier.next(event, hash).is_err() {
                break;
            }
        }
        verifier.finish()
    }

    #[test]
    fn an_intact_chain_is_reported_with_its_head() {
        let events = chain(&["{}", "1", "2", "3"]);
        let report = verify(&events);
        assert_eq!((report.from, report.to, report.checked, report.broken), (1, 4, 4, None));
        assert_eq!(report.hash, events[3].1);
    }

    #[test]
    fn nothing_to_check_gives_an_empty_report() {
        assert_eq!(verify(&[]), VerifyReport::default());
    }

    #[test]
    fn an_altered_event_breaks_the_chain_where_it_stands() {
        let mut events = chain(&["{}", "1", "2"]);
        let stored = events[1].1.clone();
        events[1].0.payload_json = "9";
        let report = verify(&events);
        assert_eq!((report.to, report.checked), (2, 2));
        let broken = report.broken.unwrap();
        assert_eq!((broken.seq, &broken.found), (2, &stored));
        assert_eq!(broken.expected, link(&events[0].1, &events[1].0));
    }

    #[test]
    fn a_deleted_event_breaks_the_chain_at_the_next_one() {
        let mut events = chain(&["{}", "1", "2"]);
        events.remove(1);
        let broken = verify(&events).broken.unwrap();
        assert_eq!(broken.seq, 3);
        assert!(broken.detail.contains("event 3") && broken.detail.contains("event 1"), "{}", broken.detail);
    }

    #[test]
    fn a_deleted_first_event_breaks_the_chain_at_the_second() {
        let mut events = chain(&["{}", "1", "2"]);
        events.remove(0);
        let report = verify(&events);
        assert_eq!((report.from, report.broken.unwrap().seq), (2, 2));
    }

    #[test]
    fn two_swapped_events_break_the_chain_at_the_first_of_them() {
        let mut events = chain(&["{}", "1", "2", "3"]);
        let payload = events[1].0.payload_json;
        events[1].0.payload_json = events[2].0.payload_json;
        events[2].0.payload_json = payload;
        assert_eq!(verify(&events).broken.unwrap().seq, 2);
    }

    #[test]
    fn a_cut_tail_does_not_show_but_a_later_event_does() {
        let mut events = chain(&["{}", "1", "2", "3"]);
        let last = events.pop().unwrap();
        events.pop();
        assert_eq!(verify(&events).broken, None);
        events.push(last);
        assert_eq!(verify(&events).broken.unwrap().seq, 4);
    }

    #[test]
    fn a_later_start_trusts_the_hash_before_it() {
        let events = chain(&["{}", "1", "2", "3"]);
        let mut verifier = Verifier::new(3, Some((2, &events[1].1)));
        for (event, hash) in &events[2..] {
            verifier.next(event, hash).unwrap();
        }
        let report = verifier.finish();
        assert_eq!((report.from, report.to, report.checked), (3, 4, 2));

        let mut verifier = Verifier::new(3, Some((1, &events[0].1)));
        assert_eq!(verifier.next(&events[2].0, &events[2].1).unwrap_err().seq, 3);
    }

    #[test]
    fn a_stored_hash_of_any_length_is_cut_and_found_wrong() {
        let mut events = chain(&["{}"]);
        events[0].1 = "é".repeat(4000);
        let report = verify(&events);
        assert_eq!(report.hash.chars().count(), HASH_CHARS_MAX);
        assert_eq!(report.broken.unwrap().found, report.hash);
    }

    #[test]
    fn after_a_break_nothing_more_is_counted() {
        let events = chain(&["{}", "1"]);
        let mut verifier = Verifier::new(1, None);
        let broken = verifier.next(&events[0].0, "wrong").unwrap_err();
        assert_eq!(verifier.next(&events[1].0, &events[1].1).unwrap_err(), broken);
        assert_eq!(verifier.report().checked, 1);
    }

    proptest! {
        #[test]
        fn a_link_is_the_hash_of_the_seven_netstrings(
            seq: i64, previous: String, run_id: String, step_id: String, at: String, payload_json: String,
        ) {
            let event = ChainedEvent { seq, run_id: &run_id, step_id: &step_id, at: &at, kind: "run.started",
                payload_json: &payload_json };
            prop_assert_eq!(link(&previous, &event), naive(&previous, &event));
        }

        #[test]
        fn a_long_field_may_come_in_chunks(payload: Vec<u8>, chunk in 1_usize..9) {
            let mut whole = LinkHasher::new("p", 7);
            whole.field(&payload);
            let mut parts = LinkHasher::new("p", 7);
            parts.begin_field(payload.len() as u64);
            payload.chunks(chunk).for_each(|bytes| parts.chunk(bytes));
            parts.end_field();
            prop_assert_eq!(whole.finish(), parts.finish());
        }
    }
}
