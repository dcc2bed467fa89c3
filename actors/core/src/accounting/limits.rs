//! Whether an attempt may be sent: the run's limits against what is recorded, what is in flight, and what it may cost.

use super::Charge;
use crate::run::{Limits, ModelTotals, Reason};

/// Why an attempt may not be sent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refused {
    /// The reason with which the run ends for it.
    pub reason: Reason,
    /// In words.
    pub detail: String,
}

/// Attempts that are in flight: they count before they are recorded, so that several at once can't pass a limit together.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Reserved {
    calls: i128,
    tokens: i128,
    cost_micros: i128,
}

impl Reserved {
    /// Counts an attempt in flight.
    pub fn hold(&mut self, projected: &Charge) {
        self.add(projected, 1);
    }

    /// Counts it no more: its outcome is in the totals now.
    pub fn release(&mut self, projected: &Charge) {
        self.add(projected, -1);
    }

    fn add(&mut self, projected: &Charge, sign: i128) {
        self.calls += sign;
        self.tokens += sign * tokens_of(projected);
        self.cost_micros += sign * i128::from(projected.cost_micros);
    }
}

fn tokens_of(charge: &Charge) -> i128 {
    i128::from(charge.usage.input_tokens) + i128::from(charge.usage.output_tokens)
}

/// An attempt that asks to be sent.
#[derive(Debug, Clone, Copy)]
pub struct Ask<'a> {
    /// The model, by the name under which it is priced.
    pub model: &'a str,
    /// Whether it has a price. One of zero is a price: the model is free.
    pub priced: bool,
    /// Whether one without a price is refused where cost is limited.
    pub refuse_unpriced: bool,
    /// Whether its output is capped.
    pub capped: bool,
    /// What it is projected to cost.
    pub projected: Charge,
}

/// Judges the limits in their order: calls, what can't be projected, tokens, cost.
///
/// # Errors
/// The first limit that sending it could pass.
pub fn check(
    limits: &Limits,
    totals: &ModelTotals,
    reserved: &Reserved,
    ask: &Ask<'_>,
) -> Result<(), Refused> {
    let refuse = |reason, detail| Err(Refused { reason, detail });
    let made = i128::from(totals.model_calls) + reserved.calls;
    if limits.max_model_calls > 0 && made >= i128::from(limits.max_model_calls) {
        let detail = format!("{made} model calls were made, and the limit is {}", limits.max_model_calls);
        return refuse(Reason::LimitModelCalls, detail);
    }
    let limits_cost = limits.max_estimated_cost_micros > 0;
    if !ask.capped {
        let detail = "the request has no output cap, so what it may cost is not bounded; cap it, or set \
                      max_output_tokens_per_call";
        if limits.max_total_tokens > 0 {
            return refuse(Reason::LimitTokens, detail.to_owned());
        }
        if limits_cost && ask.priced {
            return refuse(Reason::LimitCost, detail.to_owned());
        }
    }
    if limits_cost && !ask.priced && ask.refuse_unpriced {
        let detail = format!(
            "the model {:?} has no price, so what it costs can't be limited; give it one, zero if it is free",
            ask.model
        );
        return refuse(Reason::LimitCost, detail);
    }
    let recorded = i128::from(totals.input_tokens) + i128::from(totals.output_tokens);
    let tokens = recorded + reserved.tokens + tokens_of(&ask.projected);
    if limits.max_total_tokens > 0 && tokens > i128::from(limits.max_total_tokens) {
        let detail =
            format!("it could come to {tokens} tokens, and the limit is {}", limits.max_total_tokens);
        return refuse(Reason::LimitTokens, detail);
    }
    let cost = i128::from(totals.estimated_cost_micros)
        + reserved.cost_micros
        + i128::from(ask.projected.cost_micros);
    if limits_cost && cost > i128::from(limits.max_estimated_cost_micros) {
        let limit = limits.max_estimated_cost_micros;
        return refuse(Reason::LimitCost, format!("it could cost {cost} micros, and the limit is {limit}"));
    }
    Ok(())
}
