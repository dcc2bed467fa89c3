//! The ids of traces and spans: derived, so that whoever exports a run, and however often, tells one story of it.
//!
//! The derivations are the reference's, byte for byte: two exporters over one record give the same ids.

use holdpoint_core::hash::sha256_hex;
use opentelemetry::trace::{SpanId, TraceId};

/// What a span stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SpanOf {
    /// A run, by its id.
    Run,
    /// A step, by its id.
    Step,
    /// A model attempt, by its call's id.
    Model,
    /// The wait for an approval, by its id.
    Approval,
    /// What a tool returned to a run that was over, by the step's id.
    Late,
    /// An event of a kind that is not known here, by its number.
    Event,
}

impl SpanOf {
    const fn as_str(self) -> &'static str {
        match self {
            SpanOf::Run => "run",
            SpanOf::Step => "step",
            SpanOf::Model => "model",
            SpanOf::Approval => "approval",
            SpanOf::Late => "late",
            SpanOf::Event => "event",
        }
    }
}

/// Gives the id of a run's trace: the first 16 bytes of the SHA-256 of `agentrt/trace`, a NUL, and the run's id.
pub fn trace_id(run: &str) -> TraceId {
    let hash = sha256_hex(format!("agentrt/trace\0{run}").as_bytes());
    match TraceId::from_hex(&hash[..32]) {
        Ok(id) if id != TraceId::INVALID => id,
        Ok(_) | Err(_) => TraceId::from_bytes(1_u128.to_be_bytes()),
    }
}

/// Gives the id of a span: the first 8 bytes of the SHA-256 of `agentrt/span`, a NUL, what it stands for, a NUL, and that
/// one's id.
pub fn span_id(of: SpanOf, id: &str) -> SpanId {
    let hash = sha256_hex(format!("agentrt/span\0{}\0{id}", of.as_str()).as_bytes());
    match SpanId::from_hex(&hash[..16]) {
        Ok(id) if id != SpanId::INVALID => id,
        Ok(_) | Err(_) => SpanId::from_bytes(1_u64.to_be_bytes()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_the_reference_s() {
        assert_eq!(trace_id("run-1").to_string(), "93afafd5ba988f2a2bebf175c7cde8d6");
        assert_eq!(span_id(SpanOf::Run, "run-1").to_string(), "d925db6dbbd9dfb1");
        assert_ne!(span_id(SpanOf::Step, "a"), span_id(SpanOf::Run, "a"));
        assert_ne!(span_id(SpanOf::Step, "a"), span_id(SpanOf::Step, "b"));
    }
}
