//! The approval's machine against the table of the specification, its hash against the golden value, and its times.

use super::ApprovalStatus::{Approved, Expired};
use super::*;
use crate::tool::{SideEffect, ToolSpec};

/// The columns are the statuses in the order of [`ApprovalStatus::ALL`]: pending, approved, rejected, expired.
const TABLE: &[(ApprovalEvent, [Option<ApprovalStatus>; 4])] = &[
    (ApprovalEvent::Approved, [Some(Approved), None, None, None]),
    (ApprovalEvent::Rejected, [Some(ApprovalStatus::Rejected), None, None, None]),
    (ApprovalEvent::Expired, [Some(Expired), Some(Expired), None, None]),
];

#[test]
fn every_move_of_an_approval_is_the_one_in_the_table_or_refused() {
    for (event, row) in TABLE {
        for (from, to) in ApprovalStatus::ALL.into_iter().zip(row) {
            let expected = to.ok_or(IllegalApprovalMove { from, event: *event });
            assert_eq!(from.after(*event), expected, "{from} by {event:?}");
        }
    }
}

#[test]
fn the_names_of_the_statuses_are_those_of_the_record() {
    for (status, name) in ApprovalStatus::ALL.into_iter().zip(["pending", "approved", "rejected", "expired"])
    {
        assert_eq!(status.to_string(), name);
        assert_eq!(ApprovalStatus::parse(name), Some(status));
    }
    assert_eq!(ApprovalStatus::parse("granted"), None);
}

fn golden_request() -> ToolRequest {
    ToolRequest {
        run_id: RunId::from("r1"),
        step_id: StepId::from("s1"),
        spec: ToolSpec {
            name: "push".to_owned(),
            description: "push <main> & tag".to_owned(),
            input_schema: Json::trusted(r#"{"type":"object"}"#),
            side_effect: SideEffect::RemoteMutation,
            timeout: Duration::from_secs(30),
            terminal: false,
        },
        args: Json::trusted(r#"{"n":7,"ref":"refs/heads/main"}"#),
    }
}

const GOLDEN: &str = "175bcfc7a7e3cdab6b98d7b50caf9f2a8e59d5208211b97de39a4b027c7fa0b2";

fn golden() -> Approval {
    let capability = Json::trusted(r#"{"tool":"push","args":{"n":7}}"#);
    let presentation = Json::trusted(r#"{"title":"Publish <PR> & tag","lines":1.0}"#);
    let request = golden_request();
    Approval {
        hash: Approval::hash_of("remote_mutation", &capability, &presentation, &request),
        id: ApprovalId::from("a1"),
        run_id: RunId::from("r1"),
        step_id: StepId::from("s1"),
        kind: "remote_mutation".to_owned(),
        capability,
        presentation,
        request: Some(request),
        status: ApprovalStatus::Pending,
        created_at: UnixNanos::from_nanos(100),
        expires_at: None,
        decided_at: None,
        decided_by: String::new(),
        note: String::new(),
        decode_error: None,
    }
}

#[test]
fn the_hash_of_typed_fields_is_the_golden_one() {
    assert_eq!(golden().hash.as_str(), GOLDEN);
    assert!(golden().is_intact());
}

#[test]
fn the_hash_does_not_see_how_the_json_was_written() {
    let mut other = golden_request();
    other.args = Json::trusted(" {\"ref\":\"refs\\/heads\\/main\", \"n\":7}\n");
    let capability = Json::trusted("{\"args\":{\"n\":7},\n\"tool\":\"push\"}");
    let presentation = Json::trusted("{\"lines\":1.0,\"title\":\"Publish \\u003cPR\\u003e & tag\"}");
    let hash = Approval::hash_of("remote_mutation", &capability, &presentation, &other);
    assert_eq!(hash.as_str(), GOLDEN);
}

#[test]
fn any_change_of_what_was_asked_or_shown_is_another_hash() {
    type Change = fn(&mut Approval);
    let request = |approval: &mut Approval, change: fn(&mut ToolRequest)| {
        change(approval.request.as_mut().unwrap());
    };
    let changes: [Change; 12] = [
        |a| a.kind = "destructive".to_owned(),
        |a| a.capability = Json::empty_object(),
        |a| a.presentation = Json::trusted(r#"{"title":"Publish <PR> & tag","lines":1}"#),
        |a| a.request.as_mut().unwrap().args = Json::trusted(r#"{"n":7.0,"ref":"refs/heads/main"}"#),
        |a| a.request.as_mut().unwrap().run_id = RunId::from("r2"),
        |a| a.request.as_mut().unwrap().step_id = StepId::from("s2"),
        |a| a.request.as_mut().unwrap().spec.name = "pull".to_owned(),
        |a| a.request.as_mut().unwrap().spec.description = String::new(),
        |a| a.request.as_mut().unwrap().spec.input_schema = Json::trusted("{}"),
        |a| a.request.as_mut().unwrap().spec.side_effect = SideEffect::Destructive,
        |a| a.request.as_mut().unwrap().spec.timeout = Duration::from_secs(31),
        |a| a.request.as_mut().unwrap().spec.terminal = true,
    ];
    for (at, change) in changes.into_iter().enumerate() {
        let mut approval = golden();
        change(&mut approval);
        assert!(!approval.is_intact(), "change {at} went unnoticed");
    }
    let mut unhashed = golden();
    unhashed.id = ApprovalId::from("a2");
    unhashed.note = "fine".to_owned();
    unhashed.decided_by = "ana".to_owned();
    unhashed.status = Approved;
    unhashed.expires_at = Some(UnixNanos::from_nanos(1));
    assert!(unhashed.is_intact(), "who decides, and when, is not what was asked");
    request(&mut unhashed, |r| r.args = Json::empty_object());
    assert!(!unhashed.is_intact());
}

#[test]
fn absent_json_hashes_as_an_empty_object() {
    let (blank, empty) = (Json::trusted(" \n"), Json::empty_object());
    let request = golden_request();
    assert_eq!(
        Approval::hash_of("k", &blank, &blank, &request),
        Approval::hash_of("k", &empty, &empty, &request)
    );
}

#[test]
fn an_approval_that_cannot_be_read_is_not_intact() {
    let mut unreadable = golden();
    unreadable.decode_error = Some("bad".to_owned());
    assert!(!unreadable.is_intact());
    let mut requestless = golden();
    requestless.request = None;
    assert!(!requestless.is_intact());
}

#[test]
fn an_undecided_approval_expires_strictly_after_its_time() {
    let mut approval = golden();
    assert!(!approval.is_past_expiry(UnixNanos::from_nanos(i64::MAX)), "without a time it never does");
    approval.expires_at = Some(UnixNanos::from_nanos(500));
    assert!(approval.is_open(UnixNanos::from_nanos(500)));
    assert!(!approval.is_open(UnixNanos::from_nanos(501)));
    approval.status = Approved;
    assert!(!approval.is_open(UnixNanos::from_nanos(1)), "a decided one waits for nobody");
}

#[test]
fn a_grant_ages_from_its_decision_and_never_without_a_limit() {
    let mut grant = golden();
    grant.status = Approved;
    grant.decided_at = Some(UnixNanos::from_nanos(1_000));
    let at = UnixNanos::from_nanos;
    assert!(!grant.is_stale_grant(50, at(1_050)));
    assert!(grant.is_stale_grant(50, at(1_051)));
    assert!(!grant.is_stale_grant(0, at(i64::MAX)));
    assert!(!grant.is_stale_grant(-1, at(i64::MAX)));
    grant.status = ApprovalStatus::Pending;
    assert!(!grant.is_stale_grant(50, at(2_000)), "only a grant ages");
}

#[test]
fn only_the_latest_approval_of_a_step_counts() {
    struct Ref<'a>(&'a Approval);
    impl AsRef<Approval> for Ref<'_> {
        fn as_ref(&self) -> &Approval {
            self.0
        }
    }
    let (first, mut second, mut other) = (golden(), golden(), golden());
    second.id = ApprovalId::from("a2");
    other.step_id = StepId::from("s2");
    let all = [Ref(&first), Ref(&second), Ref(&other)];
    assert_eq!(latest_of(&all, &StepId::from("s1")).map(|a| a.id.as_str()), Some("a2"));
    assert!(latest_of(&all, &StepId::from("s3")).is_none());
}

#[derive(Debug, PartialEq, serde::Serialize, serde::Deserialize)]
struct Shown {
    title: String,
    lines: u32,
}

fn shown(presentation: &str) -> Result<Shown, PresentationError> {
    let mut approval = golden();
    approval.presentation = Json::trusted(presentation);
    approval.presentation_as()
}

#[test]
fn what_was_shown_reads_back_as_the_type_that_it_was_made_of() {
    let made = Shown { title: "Publish <it>".to_owned(), lines: 3 };
    let presentation = Json::of(&made).unwrap();
    assert_eq!(presentation.as_str(), r#"{"title":"Publish <it>","lines":3}"#);
    assert_eq!(shown(presentation.as_str()), Ok(made));
}

#[test]
fn a_presentation_that_is_another_one_says_what_is_wrong() {
    let nothing = shown(" ").unwrap_err().to_string();
    assert!(
        nothing.starts_with("read the presentation of approval ") && nothing.ends_with(": there is none")
    );
    let other = shown(r#"{"title":1,"lines":3}"#).unwrap_err().to_string();
    assert!(other.contains("invalid type"), "{other}");
}

#[test]
fn a_value_without_a_faithful_json_form_is_refused() {
    let keys = std::collections::BTreeMap::from([((1, 2), 3)]);
    assert!(Json::of(&keys).unwrap_err().to_string().starts_with("encode a value as JSON: "));
    let deep = (0..257).fold(serde_json::Value::Null, |inner, _| serde_json::Value::Array(vec![inner]));
    assert!(matches!(Json::of(&deep), Err(crate::json::EncodeError::Refused(_))));
}
