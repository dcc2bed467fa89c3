//! Tests of the rules across calls: one view of the index, one decision.

use std::collections::HashMap;

use proptest::prelude::*;

use super::*;
use crate::attempt::Ended;
use crate::ids::LeaseOwner;

const NOW: UnixNanos = UnixNanos::from_nanos(1_700_000_000_000_000_000);
const WINDOW: Duration = Duration::from_secs(600);

fn before(seconds: u64) -> UnixNanos {
    NOW.minus(Duration::from_secs(seconds))
}

fn after(seconds: u64) -> UnixNanos {
    NOW.plus(Duration::from_secs(seconds))
}

fn asked(class: SideEffect, outcome: Outcome) -> Asked {
    Asked {
        session: SessionName::from("s"),
        key: Some(RequestKey::from("k")),
        tool: "bank_pay".to_owned(),
        class,
        window: WINDOW,
        outcome,
        max_pending: 2,
        tools: Arc::new(HashMap::new()),
        now: NOW,
        wall: NOW,
    }
}

fn payment() -> Asked {
    asked(SideEffect::RemoteMutation, Outcome::RequireApproval)
}

fn read() -> Asked {
    asked(SideEffect::ReadOnly, Outcome::Allow)
}

fn attempt() -> Attempt {
    Attempt { run_id: "s.0".into(), step_id: "1".into(), started_at: before(5), ended: Ended::CutOff }
}

fn asking(status: ApprovalStatus) -> Asking {
    Asking { id: "a1".into(), interruption: false, status, expires_at: None, grant_until: None }
}

fn open(state: RunState) -> View {
    View {
        own: Own { open: Some(OpenRow { id: 7, run: "s.1".into(), state }), ..Own::default() },
        elsewhere: Some(Elsewhere::default()),
    }
}

fn waiting(asking: Asking) -> View {
    open(RunState::Waiting { approval: Some(asking) })
}

fn leased(until: UnixNanos) -> View {
    let lease = Lease { owner: LeaseOwner::from("o"), expires_at: until };
    open(RunState::Running { lease: Some(lease) })
}

fn finished(reason: Reason, outcome: AttemptOutcome) -> Finished {
    Finished {
        run: "s.1".into(),
        finished_at: Some(before(60)),
        reason: Some(reason),
        detail: "the note".into(),
        outcome,
        executed: (outcome == AttemptOutcome::Known).then(|| "1".into()),
        approval: Some(("a1".into(), "why".into())),
    }
}

fn after_runs(recent: Vec<Finished>, last: LastAttempt) -> View {
    let mut view = open(RunState::Finished);
    view.own.recent = recent;
    view.own.last = last;
    view
}

fn begin(closes: Option<i64>, rerun: Option<Attempt>) -> Ruling {
    Ruling::Begin(Begin { reuse: None, closes, rerun })
}

#[test]
fn arguments_that_no_rule_can_compare_begin_at_once() {
    let asked = Asked { key: None, ..payment() };
    let mut view = waiting(asking(ApprovalStatus::Pending));
    view.elsewhere = Some(Elsewhere { pending: 99, ..Elsewhere::default() });
    assert_eq!(decide(&asked, &view), begin(None, None));
}

#[test]
fn a_new_request_begins() {
    for asked in [payment(), read()] {
        assert_eq!(decide(&asked, &View::default()), begin(None, None));
    }
}

#[test]
fn a_row_that_nobody_began_is_begun_under_its_run() {
    let ruling = decide(&payment(), &open(RunState::Absent));
    assert_eq!(ruling, Ruling::Begin(Begin { reuse: Some("s.1".into()), ..Begin::default() }));
}

#[test]
fn rule_1_waits_with_the_request_that_waits() {
    let hold = Ruling::Hold { run: "s.1".into(), approval: "a1".into() };
    let pending = asking(ApprovalStatus::Pending);
    assert_eq!(decide(&payment(), &waiting(pending.clone())), hold);
    // Expiry counts from the moment after it.
    let mut at_its_end = pending.clone();
    at_its_end.expires_at = Some(NOW);
    assert_eq!(decide(&payment(), &waiting(at_its_end)), hold);
    let mut past = pending;
    past.expires_at = Some(before(1));
    assert_eq!(
        decide(&payment(), &waiting(past)),
        Ruling::Expire { run: "s.1".into(), approval: "a1".into() }
    );
}

#[test]
fn rule_1_collects_what_was_approved() {
    let collect = Ruling::Collect { run: "s.1".into() };
    let mut approved = asking(ApprovalStatus::Approved);
    approved.grant_until = Some(before(1));
    // The grant's age is judged where it is collected.
    assert_eq!(decide(&payment(), &waiting(approved)), collect);
    assert_eq!(decide(&read(), &waiting(asking(ApprovalStatus::Approved))), collect);
}

#[test]
fn rule_1_starts_nothing_on_a_record_that_it_does_not_understand() {
    for view in [
        open(RunState::Waiting { approval: None }),
        waiting(asking(ApprovalStatus::Rejected)),
        waiting(asking(ApprovalStatus::Expired)),
    ] {
        assert_eq!(decide(&payment(), &view), Ruling::InProgress);
    }
}

#[test]
fn rules_2_and_3_tell_a_held_run_from_an_abandoned_one() {
    assert_eq!(decide(&payment(), &leased(after(1))), Ruling::InProgress);
    let recover = Ruling::Recover { run: "s.1".into() };
    assert_eq!(decide(&payment(), &leased(NOW)), recover);
    assert_eq!(decide(&payment(), &open(RunState::Running { lease: None })), recover);
}

#[test]
fn rule_4_does_not_ask_again_what_a_person_or_time_has_answered() {
    let until = before(60).plus(WINDOW);
    let attempted = Attempted { run: "s.1".into(), outcome: AttemptOutcome::None, executed: None };
    let rejected =
        Refused::Rejected { approval: "a1".into(), note: "why".into(), until, attempted: attempted.clone() };
    let cases = [
        (Reason::ApprovalRejected, rejected),
        (Reason::ApprovalExpired, Refused::Expired { approval: "a1".into(), until }),
        (Reason::OperatorCancelled, Refused::Cancelled { note: "the note".into(), until, attempted }),
    ];
    for (reason, refused) in cases {
        let view = after_runs(vec![finished(reason, AttemptOutcome::None)], LastAttempt::None);
        assert_eq!(decide(&payment(), &view), Ruling::Refuse(refused.clone()));
        assert_eq!(decide(&read(), &view), Ruling::Refuse(refused));
    }
}

#[test]
fn rule_4_asks_again_when_an_expiry_left_the_outcome_unknown() {
    let view = after_runs(
        vec![
            finished(Reason::ApprovalExpired, AttemptOutcome::Unknown),
            finished(Reason::ApprovalRejected, AttemptOutcome::None),
        ],
        LastAttempt::Unknown(attempt()),
    );
    assert_eq!(decide(&payment(), &view), begin(Some(7), Some(attempt())));
}

#[test]
fn rule_5_refuses_what_executed_and_only_that() {
    let view = after_runs(vec![finished(Reason::GoalCompleted, AttemptOutcome::Known)], LastAttempt::Known);
    let duplicate = Refused::Duplicate { run: "s.1".into(), step: "1".into(), finished_at: before(60) };
    assert_eq!(decide(&payment(), &view), Ruling::Refuse(duplicate.clone()));
    assert_eq!(decide(&read(), &view), begin(Some(7), None));
    // Denied calls do not count, and hide no older one.
    let denied = finished(Reason::GoalFailed, AttemptOutcome::None);
    let known = finished(Reason::GoalFailed, AttemptOutcome::Known);
    let view = after_runs(vec![denied.clone(), known], LastAttempt::Known);
    assert_eq!(decide(&payment(), &view), Ruling::Refuse(duplicate));
    assert_eq!(decide(&payment(), &after_runs(vec![denied], LastAttempt::None)), begin(Some(7), None));
}

#[test]
fn rule_5_leaves_an_unknown_outcome_to_rule_6() {
    let unknown = finished(Reason::LimitSteps, AttemptOutcome::Unknown);
    let known = finished(Reason::GoalCompleted, AttemptOutcome::Known);
    let view = after_runs(vec![unknown, known], LastAttempt::Unknown(attempt()));
    assert_eq!(decide(&payment(), &view), begin(Some(7), Some(attempt())));
}

#[test]
fn outside_the_window_nothing_is_refused() {
    for reason in [Reason::ApprovalRejected, Reason::ApprovalExpired, Reason::GoalCompleted] {
        let mut old = finished(reason, AttemptOutcome::Known);
        old.finished_at = Some(NOW.minus(WINDOW));
        let refused = decide(&payment(), &after_runs(vec![old.clone()], LastAttempt::Known));
        assert!(matches!(refused, Ruling::Refuse(_)), "the window's first moment is in it");
        old.finished_at = Some(NOW.minus(WINDOW).minus(Duration::from_nanos(1)));
        assert_eq!(decide(&payment(), &after_runs(vec![old], LastAttempt::Known)), begin(Some(7), None));
    }
    let no_window = Asked { window: Duration::ZERO, ..payment() };
    let fresh = Finished { finished_at: Some(NOW), ..finished(Reason::GoalCompleted, AttemptOutcome::Known) };
    assert_eq!(decide(&no_window, &after_runs(vec![fresh], LastAttempt::Known)), begin(Some(7), None));
}

#[test]
fn rule_6_is_for_tools_that_change_something() {
    let view = after_runs(Vec::new(), LastAttempt::Unknown(attempt()));
    let allowed = asked(SideEffect::LocalMutation, Outcome::Allow);
    assert_eq!(decide(&allowed, &view), begin(Some(7), Some(attempt())));
    assert_eq!(decide(&read(), &view), begin(Some(7), None));
}

fn elsewhere(elsewhere: Elsewhere) -> View {
    View { own: Own::default(), elsewhere: Some(elsewhere) }
}

#[test]
fn an_obstacle_of_the_same_tool_comes_first() {
    let cases = [
        (
            Obstacle::Asked { approval: "a9".into() },
            Ruling::Blocked(Blocked::Unknown { approval: "a9".into() }),
        ),
        (
            Obstacle::Expired { run: "s.9".into(), approval: "a9".into() },
            Ruling::Expire { run: "s.9".into(), approval: "a9".into() },
        ),
        (Obstacle::Abandoned { run: "s.9".into() }, Ruling::Recover { run: "s.9".into() }),
    ];
    for (obstacle, ruling) in cases {
        let unresolved = Unresolved { run: "s.8".into(), key: "k8".into(), attempt: attempt() };
        let view =
            elsewhere(Elsewhere { obstacle: Some(obstacle), unresolved: Some(unresolved), pending: 9 });
        for outcome in [Outcome::Allow, Outcome::RequireApproval, Outcome::Deny] {
            assert_eq!(decide(&asked(SideEffect::Destructive, outcome), &view), ruling);
        }
        assert_eq!(decide(&read(), &view), begin(None, None));
    }
}

#[test]
fn an_unknown_outcome_with_nothing_waiting_is_asked_about() {
    let unresolved = Unresolved { run: "s.8".into(), key: "k8".into(), attempt: attempt() };
    let view = elsewhere(Elsewhere { unresolved: Some(unresolved.clone()), ..Elsewhere::default() });
    assert_eq!(decide(&payment(), &view), Ruling::Reask(unresolved));
    assert_eq!(decide(&asked(SideEffect::Destructive, Outcome::Deny), &view), begin(None, None));
    let asked_read = asked(SideEffect::ReadOnly, Outcome::RequireApproval);
    assert_eq!(decide(&asked_read, &view), begin(None, None));
}

#[test]
fn the_cap_counts_only_for_calls_that_a_person_must_see() {
    let cap = Ruling::Blocked(Blocked::Cap { max: 2 });
    let full = elsewhere(Elsewhere { pending: 2, ..Elsewhere::default() });
    assert_eq!(decide(&payment(), &full), cap);
    assert_eq!(decide(&asked(SideEffect::ReadOnly, Outcome::RequireApproval), &full), cap);
    assert_eq!(decide(&asked(SideEffect::LocalMutation, Outcome::Allow), &full), begin(None, None));
    assert_eq!(decide(&asked(SideEffect::Destructive, Outcome::Deny), &full), begin(None, None));
    let room = elsewhere(Elsewhere { pending: 1, ..Elsewhere::default() });
    assert_eq!(decide(&payment(), &room), begin(None, None));
    // A repeat of an unknown outcome asks a person whatever the policy allows.
    let mut rerun = after_runs(Vec::new(), LastAttempt::Unknown(attempt()));
    rerun.elsewhere = full.elsewhere;
    assert_eq!(decide(&asked(SideEffect::LocalMutation, Outcome::Allow), &rerun), cap);
}

#[test]
fn a_question_of_the_proxys_own_needs_a_finished_request_in_doubt() {
    let doubt = LastAttempt::Unknown(attempt());
    let own = |state, last| View { own: Own { last, ..open(state).own }, ..View::default() }.own;
    let ask = |own: Own| ask_again(&payment(), &own);
    assert_eq!(
        ask(own(RunState::Finished, doubt.clone())),
        Some(Begin { reuse: None, closes: Some(7), rerun: Some(attempt()) })
    );
    assert_eq!(ask(own(RunState::Absent, doubt.clone())).unwrap().reuse, Some("s.1".into()));
    assert_eq!(ask(own(RunState::Finished, LastAttempt::Known)), None);
    assert_eq!(ask(own(RunState::Running { lease: None }, doubt.clone())), None);
    assert_eq!(ask(own(RunState::Waiting { approval: None }, doubt)), None);
}

#[test]
fn an_admission_holds_only_for_the_same_beginning() {
    let admission = |begin: Begin, question| Admission { asked: payment(), begin, question };
    let closing = Begin { closes: Some(7), ..Begin::default() };
    let view = after_runs(Vec::new(), LastAttempt::None);
    assert!(holds(&admission(closing.clone(), false), &view));
    assert!(!holds(&admission(Begin::default(), false), &view));
    assert!(!holds(&admission(closing.clone(), false), &leased(after(1))));
    assert!(!holds(&admission(closing, true), &view));
}

#[test]
fn a_row_is_opened_or_reused() {
    let run = RunId::from("s.2");
    let opened = Begin { closes: Some(7), ..Begin::default() }.index_write(&payment(), &run);
    assert!(matches!(opened, IndexWrite::Open { closes: Some(7), ref key, .. } if key.as_str() == "k"));
    let reused = Begin { reuse: Some(run.clone()), ..Begin::default() }.index_write(&payment(), &run);
    assert_eq!(reused, IndexWrite::Unsettle { run_id: run.clone() });
    let keyless = Begin::default().index_write(&Asked { key: None, ..payment() }, &run);
    assert!(matches!(keyless, IndexWrite::Open { ref key, .. } if key.as_str() == "invalid:s.2"));
}

// ---- the arrangement of open calls, against the plainest reading of the same rows

fn row(id: i64, key: &str, tool: &str, state: OpenState) -> OpenCall {
    OpenCall { id, key: key.into(), tool: tool.into(), run: RunId::from(format!("s.{id}")), state }
}

fn interruption(status: ApprovalStatus, expires_at: Option<UnixNanos>) -> OpenState {
    let id = ApprovalId::from("ai");
    let asking = Asking { id, interruption: true, status, expires_at, grant_until: Some(after(9)) };
    OpenState::Waiting { approval: Some(asking) }
}

#[test]
fn the_oldest_obstacle_of_the_tool_is_found() {
    let mut calls = OpenCalls::new();
    calls.put(row(1, "k1", "bank_refund", interruption(ApprovalStatus::Pending, None)));
    calls.put(row(2, "k", "bank_pay", interruption(ApprovalStatus::Pending, None)));
    calls.put(row(3, "k3", "bank_pay", OpenState::Running { until: Some(after(1)) }));
    calls.put(row(5, "k5", "bank_pay", OpenState::Running { until: Some(before(1)) }));
    calls.put(row(6, "k6", "bank_pay", interruption(ApprovalStatus::Pending, None)));
    let found = calls.elsewhere(&payment());
    assert_eq!(found.obstacle, Some(Obstacle::Abandoned { run: "s.5".into() }));
    assert_eq!(found.pending, 2, "one of the four is the request's own, and the count stops at the cap");
    calls.put(row(4, "k4", "bank_pay", interruption(ApprovalStatus::Pending, Some(before(1)))));
    let found = calls.elsewhere(&payment());
    assert_eq!(found.obstacle, Some(Obstacle::Expired { run: "s.4".into(), approval: "ai".into() }));
    calls.put(row(4, "k4", "bank_pay", OpenState::Running { until: Some(after(1)) }));
    calls.remove(&"s.5".into());
    let found = calls.elsewhere(&payment());
    assert_eq!(found.obstacle, Some(Obstacle::Asked { approval: "ai".into() }));
}

#[test]
fn a_doubt_is_unresolved_until_an_attempt_or_a_person_answers_it() {
    let doubt = |by_person| OpenState::Finished {
        outcome: AttemptOutcome::Unknown,
        attempt: Some(attempt()),
        by_person,
    };
    let known = OpenState::Finished { outcome: AttemptOutcome::Known, attempt: None, by_person: false };
    let none = OpenState::Finished { outcome: AttemptOutcome::None, attempt: None, by_person: false };
    let mut calls = OpenCalls::new();
    calls.put(row(1, "k1", "bank_pay", doubt(false)));
    assert_eq!(calls.elsewhere(&payment()).unresolved.unwrap().run.as_str(), "s.1");
    assert_eq!(calls.elsewhere(&Asked { key: Some("k1".into()), ..payment() }).unresolved, None);
    assert_eq!(calls.elsewhere(&Asked { tool: "bank_refund".into(), ..payment() }).unresolved, None);
    calls.put(row(2, "k1", "bank_pay", none));
    assert!(calls.elsewhere(&payment()).unresolved.is_some(), "a denied call answers nothing");
    for state in [known, doubt(true), OpenState::Running { until: Some(after(1)) }] {
        calls.put(row(2, "k1", "bank_pay", state));
        assert_eq!(calls.elsewhere(&payment()).unresolved, None);
    }
    calls.put(row(2, "k1", "bank_pay", doubt(false)));
    assert_eq!(calls.elsewhere(&payment()).unresolved.unwrap().run.as_str(), "s.2");
}

#[test]
fn a_newer_attempt_drops_what_was_finished_before_it() {
    let doubt =
        OpenState::Finished { outcome: AttemptOutcome::Unknown, attempt: Some(attempt()), by_person: false };
    let mut calls = OpenCalls::new();
    calls.put(row(1, "k1", "bank_pay", doubt.clone()));
    calls.put(row(2, "k1", "bank_pay", OpenState::Absent));
    calls.put(row(9, "k9", "bank_pay", doubt));
    calls.supersede(&"k1".into(), 3);
    assert_eq!((calls.len(), calls.contains(&"s.1".into())), (2, false));
    assert_eq!(calls.elsewhere(&payment()).unresolved.unwrap().run.as_str(), "s.9");
}

fn any_asking() -> impl Strategy<Value = Asking> {
    let status = prop::sample::select(ApprovalStatus::ALL.to_vec());
    let time = || prop::option::of((-3_i64..3).prop_map(|s| UnixNanos::from_nanos(NOW.as_nanos() + s)));
    (any::<bool>(), status, time(), time()).prop_map(|(interruption, status, expires_at, grant_until)| {
        Asking { id: "a1".into(), interruption, status, expires_at, grant_until }
    })
}

fn any_state() -> impl Strategy<Value = RunState> {
    prop_oneof![
        Just(RunState::Absent),
        Just(RunState::Finished),
        prop::option::of(any_asking()).prop_map(|approval| RunState::Waiting { approval }),
        prop::option::of(-3_i64..3).prop_map(|end| RunState::Running {
            lease: end.map(|s| Lease {
                owner: LeaseOwner::from("o"),
                expires_at: UnixNanos::from_nanos(NOW.as_nanos() + s),
            }),
        }),
    ]
}

fn any_finished() -> impl Strategy<Value = Finished> {
    let reason = prop::sample::select(vec![
        Reason::GoalCompleted,
        Reason::GoalFailed,
        Reason::ApprovalRejected,
        Reason::ApprovalExpired,
        Reason::OperatorCancelled,
    ]);
    let outcome =
        prop::sample::select(vec![AttemptOutcome::None, AttemptOutcome::Known, AttemptOutcome::Unknown]);
    (reason, outcome, prop::option::of(0_u64..1200)).prop_map(|(reason, outcome, age)| Finished {
        finished_at: age.map(before),
        ..finished(reason, outcome)
    })
}

fn any_open_call() -> impl Strategy<Value = OpenCall> {
    let finished = (any::<bool>(), any::<bool>(), any::<bool>()).prop_map(|(unknown, known, by_person)| {
        let outcome = match (unknown, known) {
            (true, _) => AttemptOutcome::Unknown,
            (false, true) => AttemptOutcome::Known,
            (false, false) => AttemptOutcome::None,
        };
        OpenState::Finished { outcome, attempt: unknown.then(attempt), by_person }
    });
    let state = prop_oneof![
        Just(OpenState::Absent),
        prop::option::of(any_asking()).prop_map(|approval| OpenState::Waiting { approval }),
        prop::option::of(-3_i64..3).prop_map(|end| OpenState::Running {
            until: end.map(|s| UnixNanos::from_nanos(NOW.as_nanos() + s)),
        }),
        finished,
    ];
    (0_i64..12, 0_u8..4, any::<bool>(), state).prop_map(|(id, key, other, state)| {
        let key = if key == 0 { "k".to_owned() } else { format!("k{key}") };
        row(id, &key, if other { "bank_refund" } else { "bank_pay" }, state)
    })
}

fn any_asked() -> impl Strategy<Value = Asked> {
    let outcome = prop::sample::select(vec![Outcome::Allow, Outcome::RequireApproval, Outcome::Deny]);
    (prop::sample::select(SideEffect::ALL.to_vec()), outcome, any::<bool>()).prop_map(
        |(class, outcome, windowless)| Asked {
            window: if windowless { Duration::ZERO } else { WINDOW },
            ..asked(class, outcome)
        },
    )
}

/// The same answer as [`OpenCalls::elsewhere`], by looking at every row.
fn plainly(rows: &[OpenCall], asked: &Asked) -> Elsewhere {
    let mut rows: Vec<&OpenCall> = rows.iter().filter(|row| Some(&row.key) != asked.key.as_ref()).collect();
    rows.sort_by_key(|row| row.id);
    let mut found = Elsewhere::default();
    for row in &rows {
        if let OpenState::Waiting { approval: Some(asking) } = &row.state
            && asking.is_pending(asked.now)
            && found.pending < asked.max_pending
        {
            found.pending += 1;
        }
        if &*row.tool != asked.tool.as_str() || found.obstacle.is_some() {
            continue;
        }
        found.obstacle = match &row.state {
            OpenState::Running { until } if until.is_none_or(|until| until <= asked.now) => {
                Some(Obstacle::Abandoned { run: row.run.clone() })
            }
            OpenState::Waiting { approval: Some(asking) } if asking.interruption => {
                let approval = asking.id.clone();
                match asking.status {
                    _ if asking.is_live(asked.now) => Some(Obstacle::Asked { approval }),
                    ApprovalStatus::Pending | ApprovalStatus::Approved => {
                        Some(Obstacle::Expired { run: row.run.clone(), approval })
                    }
                    ApprovalStatus::Rejected | ApprovalStatus::Expired => None,
                }
            }
            OpenState::Absent
            | OpenState::Running { .. }
            | OpenState::Waiting { .. }
            | OpenState::Finished { .. } => None,
        };
    }
    found.unresolved = rows.iter().filter(|row| &*row.tool == asked.tool.as_str()).find_map(|row| {
        let same: Vec<_> = rows.iter().filter(|other| other.key == row.key).collect();
        let unfinished = same
            .iter()
            .any(|other| matches!(other.state, OpenState::Running { .. } | OpenState::Waiting { .. }));
        let newest = same.iter().rfind(|other| {
            matches!(&other.state, OpenState::Finished { outcome, .. } if *outcome != AttemptOutcome::None)
        })?;
        match &row.state {
            OpenState::Finished { attempt: Some(attempt), by_person: false, .. }
                if !unfinished && newest.id == row.id =>
            {
                Some(Unresolved { run: row.run.clone(), key: row.key.clone(), attempt: attempt.clone() })
            }
            OpenState::Absent
            | OpenState::Running { .. }
            | OpenState::Waiting { .. }
            | OpenState::Finished { .. } => None,
        }
    });
    found
}

proptest! {
    #[test]
    fn the_arrangement_answers_as_a_plain_scan_does(
        puts in prop::collection::vec(any_open_call(), 0..24),
        removed in prop::collection::vec(0_i64..12, 0..4),
        asked in any_asked(),
    ) {
        let mut calls = OpenCalls::new();
        let mut plain: HashMap<i64, OpenCall> = HashMap::new();
        for call in puts {
            // A key has one tool, as the hash of both says.
            let tool: Arc<str> = if call.key.as_str() == "k3" { "bank_refund".into() } else { "bank_pay".into() };
            let call = OpenCall { tool, ..call };
            plain.insert(call.id, call.clone());
            calls.put(call);
        }
        for id in removed {
            plain.remove(&id);
            calls.remove(&RunId::from(format!("s.{id}")));
        }
        let rows: Vec<OpenCall> = plain.into_values().collect();
        prop_assert_eq!(calls.len(), rows.len());
        prop_assert_eq!(calls.elsewhere(&asked), plainly(&rows, &asked));
    }

    #[test]
    fn nothing_begins_while_the_request_is_unfinished_or_the_tool_in_doubt(
        state in prop::option::of(any_state()),
        recent in prop::collection::vec(any_finished(), 0..3),
        in_doubt in any::<bool>(),
        rows in prop::collection::vec(any_open_call(), 0..12),
        asked in any_asked(),
    ) {
        let mut calls = OpenCalls::new();
        let mut by_run = HashMap::new();
        for call in rows {
            by_run.insert(call.run.clone(), call.clone());
            calls.put(call);
        }
        let elsewhere = calls.elsewhere(&asked);
        let last = if in_doubt { LastAttempt::Unknown(attempt()) } else { LastAttempt::None };
        let open = state.map(|state| OpenRow { id: 7, run: "s.77".into(), state });
        let unfinished = open.as_ref().is_some_and(|open| {
            matches!(open.state, RunState::Waiting { .. } | RunState::Running { .. })
        });
        let view = View { own: Own { open, recent, last }, elsewhere: Some(elsewhere.clone()) };
        let Ruling::Begin(begin) = decide(&asked, &view) else { return Ok(()) };
        prop_assert!(!unfinished);
        if asked.class.is_read() { return Ok(()); }
        prop_assert_eq!(begin.rerun.is_some(), in_doubt);
        if asked.outcome != Outcome::Deny {
            prop_assert_eq!(elsewhere.unresolved, None);
        }
        for call in by_run.values().filter(|call| &*call.tool == "bank_pay" && call.key.as_str() != "k") {
            let blocks = match &call.state {
                OpenState::Waiting { approval: Some(asking) } => asking.interruption && asking.is_live(asked.now),
                OpenState::Running { until } => until.is_none_or(|until| until <= asked.now),
                OpenState::Absent | OpenState::Waiting { .. } | OpenState::Finished { .. } => false,
            };
            prop_assert!(!blocks, "began past {call:?}");
        }
    }
}
