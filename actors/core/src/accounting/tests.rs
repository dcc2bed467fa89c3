//! The books: what may be sent, what is charged, how long is waited.

use std::time::Duration;

use super::*;
use crate::ids::RunId;
use crate::model::Price;
use crate::run::{Limits, ModelTotals, Reason, Run};

fn charge(input: i64, output: i64, cost_micros: i64) -> Charge {
    Charge {
        usage: Usage { input_tokens: input, output_tokens: output, cached_input_tokens: 0 },
        cost_micros,
    }
}

fn ask(projected: Charge) -> Ask<'static> {
    Ask { model: "m", priced: true, refuse_unpriced: true, capped: true, projected }
}

fn reason(limits: &Limits, totals: &ModelTotals, reserved: &Reserved, ask: &Ask<'_>) -> Option<Reason> {
    check(limits, totals, reserved, ask).err().map(|refused| refused.reason)
}

#[test]
fn a_request_is_projected_by_the_length_of_its_json_and_its_cap() {
    let request = ModelRequest { max_output_tokens: 7, ..ModelRequest::default() };
    assert_eq!(request.to_json(), r#"{"messages":[],"max_output_tokens":7}"#);
    let usage = project(&request);
    assert_eq!((usage.input_tokens, usage.output_tokens), (37 / 3 + 1, 7));
}

#[test]
fn what_is_in_flight_counts_until_it_is_recorded() {
    let limits = Limits { max_model_calls: 2, max_total_tokens: 100, ..Limits::default() };
    let totals =
        ModelTotals { model_calls: 1, input_tokens: 20, output_tokens: 20, ..ModelTotals::default() };
    let one = charge(10, 20, 0);
    let mut reserved = Reserved::default();
    assert_eq!(reason(&limits, &totals, &reserved, &ask(one)), None);
    reserved.hold(&one);
    assert_eq!(reason(&limits, &totals, &reserved, &ask(one)), Some(Reason::LimitModelCalls));
    let unlimited_calls = Limits { max_model_calls: 0, ..limits };
    assert_eq!(reason(&unlimited_calls, &totals, &reserved, &ask(one)), None, "exactly at the limit");
    reserved.hold(&charge(1, 0, 0));
    assert_eq!(reason(&unlimited_calls, &totals, &reserved, &ask(one)), Some(Reason::LimitTokens));
    reserved.release(&charge(1, 0, 0));
    reserved.release(&one);
    assert_eq!(reserved, Reserved::default());
}

#[test]
fn sums_beyond_every_number_are_refused_and_not_wrapped() {
    let limits =
        Limits { max_total_tokens: i64::MAX, max_estimated_cost_micros: i64::MAX, ..Limits::default() };
    let full = ModelTotals { input_tokens: i64::MAX, ..ModelTotals::default() };
    assert_eq!(
        reason(&limits, &full, &Reserved::default(), &ask(charge(1, 0, 0))),
        Some(Reason::LimitTokens)
    );
    let costly = ModelTotals { estimated_cost_micros: i64::MAX, ..ModelTotals::default() };
    assert_eq!(
        reason(&limits, &costly, &Reserved::default(), &ask(charge(0, 0, 1))),
        Some(Reason::LimitCost)
    );
}

#[test]
fn a_request_without_a_cap_is_refused_where_something_is_projected() {
    let uncapped = Ask { capped: false, ..ask(charge(1, 0, 0)) };
    let refused =
        |limits: Limits, ask: Ask<'_>| reason(&limits, &ModelTotals::default(), &Reserved::default(), &ask);
    let tokens = Limits { max_total_tokens: 1_000_000, ..Limits::default() };
    let cost = Limits { max_estimated_cost_micros: 1_000_000, ..Limits::default() };
    assert_eq!(refused(tokens, uncapped), Some(Reason::LimitTokens));
    assert_eq!(refused(cost.clone(), uncapped), Some(Reason::LimitCost));
    assert_eq!(refused(Limits { max_model_calls: 1, ..Limits::default() }, uncapped), None);
    let unpriced = Ask { priced: false, refuse_unpriced: false, ..uncapped };
    assert_eq!(refused(cost, unpriced), None, "what costs nothing on the books has no cost to bound");
}

#[test]
fn a_model_without_a_price_is_refused_where_cost_is_limited_unless_it_is_let_off() {
    let limits = Limits { max_estimated_cost_micros: 1, ..Limits::default() };
    let unpriced = Ask { priced: false, ..ask(charge(1, 1, 0)) };
    let refused = check(&limits, &ModelTotals::default(), &Reserved::default(), &unpriced).unwrap_err();
    assert_eq!(refused.reason, Reason::LimitCost);
    assert!(refused.detail.contains("\"m\" has no price"), "{}", refused.detail);
    let let_off = Ask { refuse_unpriced: false, ..unpriced };
    assert_eq!(reason(&limits, &ModelTotals::default(), &Reserved::default(), &let_off), None);
    assert_eq!(reason(&Limits::default(), &ModelTotals::default(), &Reserved::default(), &unpriced), None);
}

#[test]
fn each_end_has_its_row_its_charge_and_its_retry() {
    let price = Price { input: 1_000_000, output: 5_000_000, cached_input: 0 };
    let cost = |usage: &Usage| price.of(usage);
    let projected = charge(100, 10, 150);
    let reported = Usage { input_tokens: 3, output_tokens: 2, cached_input_tokens: 0 };
    let absurd = Usage { input_tokens: 1, output_tokens: 0, cached_input_tokens: 2 };
    let as_reported = Charge { usage: reported, cost_micros: 13 };
    let nothing = Charge::default();
    let text = || "w".to_owned();
    let after = Some(Duration::from_secs(3));
    for (ended, status, charged, retry) in [
        (Ended::Answered(reported), CallStatus::Ok, as_reported, false),
        (Ended::Answered(absurd), CallStatus::Error, projected, false),
        (Ended::Served { usage: reported, why: text() }, CallStatus::Error, as_reported, false),
        (Ended::Served { usage: absurd, why: text() }, CallStatus::Error, projected, false),
        (Ended::UnusableUsage(text()), CallStatus::Error, projected, false),
        (Ended::Abandoned, CallStatus::Ambiguous, projected, false),
        (Ended::Died(text()), CallStatus::Ambiguous, projected, false),
        (Ended::NoAnswer(text()), CallStatus::Ambiguous, projected, true),
        (Ended::Transient { why: text(), retry_after: after }, CallStatus::Error, nothing, true),
        (Ended::Permanent(text()), CallStatus::Error, nothing, false),
        (Ended::NotSent(text()), CallStatus::Error, nothing, false),
    ] {
        let verdict = judge(ended.clone(), projected, cost);
        assert_eq!((verdict.status, verdict.charge, verdict.retry), (status, charged, retry), "{ended:?}");
        assert_eq!(verdict.error.is_empty(), status == CallStatus::Ok, "{ended:?}");
        let asks = matches!(ended, Ended::Transient { .. });
        assert_eq!(verdict.retry_after, after.filter(|_| asks), "{ended:?}");
    }
}

const START: UnixNanos = UnixNanos::from_nanos(1_000_000_000_000);

fn run(limits: Limits) -> Run {
    Run::begun(RunId::from("r"), "g", limits, START)
}

fn wait(run: &Run, attempt: u32, asked: Option<u64>, left: Option<u64>) -> Result<u64, String> {
    let rules = RetryRules { backoff: Duration::from_secs(1), max_retry_after: Duration::from_secs(60) };
    let room = Room {
        run,
        step_started_at: START.plus(Duration::from_secs(10)),
        now: START.plus(Duration::from_secs(12)),
        left: left.map(Duration::from_secs),
    };
    retry_wait(&rules, attempt, asked.map(Duration::from_secs), &room).map(|wait| wait.as_secs())
}

#[test]
fn a_wait_doubles_with_each_attempt_and_is_never_shorter_than_the_provider_asks() {
    let run = run(Limits::default());
    assert_eq!([1, 2, 3, 4].map(|n| wait(&run, n, None, None).unwrap()), [1, 2, 4, 8]);
    assert_eq!(wait(&run, 1, Some(7), None), Ok(7));
    assert_eq!(wait(&run, 4, Some(7), None), Ok(8));
    assert_eq!(wait(&run, 1, Some(60), None), Ok(60));
    assert!(wait(&run, 1, Some(61), None).unwrap_err().contains("asks for a wait of 61s"));
    assert!(wait(&run, u32::MAX, None, Some(10)).is_err(), "a wait that no number holds is too long");
}

#[test]
fn a_wait_that_does_not_fit_is_not_begun() {
    let none = run(Limits::default());
    assert_eq!(wait(&none, 1, Some(5), Some(6)), Ok(5));
    assert!(wait(&none, 1, Some(5), Some(5)).unwrap_err().contains("deadline"));
    // Twelve seconds of the run have passed, and two of the step.
    let elapsed =
        |seconds: i64| run(Limits { max_elapsed_time: seconds * 1_000_000_000, ..Limits::default() });
    assert_eq!(wait(&elapsed(18), 1, Some(5), None), Ok(5));
    assert!(wait(&elapsed(17), 1, Some(5), None).unwrap_err().contains("elapsed"));
    let active = |seconds: i64| Run {
        active_ms: 4_000,
        ..run(Limits { max_active_time: seconds * 1_000_000_000, ..Limits::default() })
    };
    assert_eq!(wait(&active(12), 1, Some(5), None), Ok(5));
    assert!(wait(&active(11), 1, Some(5), None).unwrap_err().contains("active"));
}

#[test]
fn a_status_reads_back_as_it_was_written() {
    for status in CallStatus::ALL {
        assert_eq!(CallStatus::parse(status.as_str()), Some(status));
    }
    assert_eq!(CallStatus::parse("served"), None);
}
