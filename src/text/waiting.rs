//! The block that puts a decision before a person: what would run, and how to decide it.
//!
//! Owns its layout. Everything between its first and its last line may hold text that a model or a server chose; the
//! last line is this program's own, so that what is read last before deciding is never what somebody else wrote.

use std::io::{self, Write};
use std::path::Path;

use holdpoint::view::{Waiting, careful, fields};
use holdpoint_core::ids::{ApprovalId, RunId};
use holdpoint_core::time::UnixNanos;

use super::{counted, line, shell_word, style, times};

/// The most bytes of a name in the block: a kind, a tool, an id.
const NAME_BYTES_MAX: usize = 256;
/// The most bytes of a sentence in the block.
const SENTENCE_BYTES_MAX: usize = 4_000;

/// Writes the block, as things stand `now`.
///
/// Reading ends nothing, so an approval whose time is over stays pending until something touches it. It is told apart,
/// and no command is offered that could only fail.
pub(crate) fn write(
    out: &mut dyn Write,
    waiting: &Waiting,
    database: &Path,
    now: UnixNanos,
) -> io::Result<()> {
    let (approval, reason) = (&waiting.approval, waiting.reason.as_deref());
    let name = |text: &str| line(text, NAME_BYTES_MAX);
    let (waits, bold) = (style::WAITS, style::BOLD);
    let id = name(approval.id.as_str());
    let tool = approval.request.as_ref().map_or_else(|| "-".to_owned(), |request| name(&request.spec.name));
    let over = approval.expires_at.is_some_and(|expiry| now > expiry);
    let state = if over { "APPROVAL EXPIRED" } else { "APPROVAL WAITING" };
    writeln!(out, "\n{waits}{state}{waits:#}  {id}")?;
    writeln!(out, "kind      {}", name(&approval.kind))?;
    writeln!(out, "tool      {bold}{tool}{bold:#}")?;
    writeln!(out, "asked     {}", times::stamp(approval.created_at))?;
    if let Some(expiry) = approval.expires_at {
        let (word, then) = if over {
            ("expired", "whatever touches it next records that, and its run is cancelled")
        } else {
            ("expires", "undecided by then, it is refused")
        };
        writeln!(out, "{word}   {}; {then}", times::stamp(expiry))?;
    }
    if let Some(reason) = reason.filter(|reason| !reason.is_empty()) {
        writeln!(out, "because   {}", counted(reason, SENTENCE_BYTES_MAX))?;
    }
    if approval.is_interruption() {
        writeln!(out, "careful   {}", careful(waiting.attempt_came_to.as_ref()))?;
    }
    if let Some(problem) = &approval.decode_error {
        writeln!(out, "unread    {}", counted(problem, SENTENCE_BYTES_MAX))?;
    }
    writeln!(out, "{bold}arguments{bold:#} of the call, a field at a time, each with its size as stored:")?;
    let leaves_out = match &approval.request {
        Some(request) => fields::write_and_tell(out, &request.args)?,
        None => writeln!(out, "  (can't be read)").map(|()| false)?,
    };
    writeln!(out, "{bold}presentation{bold:#} by the policy; it may quote what a model or a server wrote:")?;
    fields::write(out, &approval.presentation)?;
    if leaves_out {
        writeln!(
            out,
            "careful: parts of the arguments are left out above; holdpoint events --json shows more of them"
        )?;
    }
    if over {
        writeln!(out, "its time is over: it can't be decided any more")?;
    } else {
        let command = |verb| decide_command(verb, &approval.run_id, &approval.id, database);
        writeln!(out, "decide with: {}", command("approve"))?;
        writeln!(out, "         or: {}", command("reject"))?;
    }
    writeln!(out, "----- end of approval {id} for tool {tool} -----")
}

/// A command that decides an approval, ready to be pasted.
pub(crate) fn decide_command(verb: &str, run: &RunId, approval: &ApprovalId, database: &Path) -> String {
    let (run, approval) = (run.as_str(), approval.as_str());
    let before = format!("holdpoint --db {} {verb}", shell_word(&database.to_string_lossy()));
    // An id that its owner chose may look like a flag.
    if run.starts_with('-') || approval.starts_with('-') {
        return format!("{before} --approval={} -- {}", shell_word(approval), shell_word(run));
    }
    format!("{before} {} --approval {}", shell_word(run), shell_word(approval))
}

#[cfg(test)]
pub(crate) use tests::approval;

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use holdpoint::view::LateOutcome;
    use holdpoint_core::approval::{Approval, ApprovalStatus, INTERRUPTED_SIDE_EFFECT};
    use holdpoint_core::json::Json;
    use holdpoint_core::tool::{SideEffect, ToolRequest, ToolSpec};

    use super::*;

    /// An approval that waits, of a call of `tool`.
    pub(crate) fn approval(tool: &str, args: &str, presentation: &str) -> Approval {
        let spec = ToolSpec {
            name: tool.to_owned(),
            description: String::new(),
            input_schema: Json::trusted(r#"{"type":"object"}"#),
            side_effect: SideEffect::RemoteMutation,
            timeout: Duration::from_secs(5),
            terminal: true,
        };
        let args = Json::trusted(args);
        Approval {
            id: "0f1e2d".into(),
            run_id: "shop.0123456789abcdef".into(),
            step_id: "s1".into(),
            kind: "remote_mutation".to_owned(),
            capability: Json::empty_object(),
            presentation: Json::trusted(presentation),
            request: Some(ToolRequest {
                run_id: "shop.0123456789abcdef".into(),
                step_id: "s1".into(),
                spec,
                args,
            }),
            hash: "abc".into(),
            status: ApprovalStatus::Pending,
            created_at: UnixNanos::parse("2026-10-01T09:00:00Z").unwrap(),
            expires_at: Some(UnixNanos::parse("2026-10-02T09:00:00Z").unwrap()),
            decided_at: None,
            decided_by: String::new(),
            note: String::new(),
            decode_error: None,
        }
    }

    fn written(approval: &Approval, reason: Option<&str>) -> String {
        let (approval, reason) = (approval.clone(), reason.map(str::to_owned));
        shown(&Waiting { approval, reason, attempt_came_to: None })
    }

    fn shown(waits: &Waiting) -> String {
        shown_at(waits, "2026-10-02T09:00:00Z")
    }

    fn shown_at(waits: &Waiting, now: &str) -> String {
        let mut out = Vec::new();
        write(&mut out, waits, Path::new("/srv/my gate.db"), UnixNanos::parse(now).unwrap()).unwrap();
        let text = anstream::adapter::strip_str(&String::from_utf8(out).unwrap()).to_string();
        // The zone is whoever's runs the test.
        [1, 2].iter().fold(text, |text, day| {
            let at = UnixNanos::parse(&format!("2026-10-0{day}T09:00:00Z")).unwrap();
            text.replace(&times::stamp(at), &format!("2026-10-0{day} 09:00:00 +0000"))
        })
    }

    #[test]
    fn the_block_shows_what_would_run_and_how_to_decide_it() {
        let approval = approval(
            "shop_pay",
            r#"{"to":"alice","amount":19.90}"#,
            r#"{"question":"Pay alice?","server":"shop"}"#,
        );
        insta::assert_snapshot!(written(&approval, Some("remote_mutation needs approval")), @r#"

        APPROVAL WAITING  0f1e2d
        kind      remote_mutation
        tool      shop_pay
        asked     2026-10-01 09:00:00 +0000
        expires   2026-10-02 09:00:00 +0000; undecided by then, it is refused
        because   remote_mutation needs approval
        arguments of the call, a field at a time, each with its size as stored:
          amount (5 bytes)
            19.90
          to (7 bytes)
            "alice"
        presentation by the policy; it may quote what a model or a server wrote:
          question (12 bytes)
            "Pay alice?"
          server (6 bytes)
            "shop"
        decide with: holdpoint --db '/srv/my gate.db' approve shop.0123456789abcdef --approval 0f1e2d
                 or: holdpoint --db '/srv/my gate.db' reject shop.0123456789abcdef --approval 0f1e2d
        ----- end of approval 0f1e2d for tool shop_pay -----
        "#);
    }

    #[test]
    fn an_approval_whose_time_is_over_says_so_and_offers_no_command() {
        let waits = Waiting { approval: approval("pay", "{}", "{}"), reason: None, attempt_came_to: None };
        let text = shown_at(&waits, "2026-10-02T09:00:00.000000001Z");
        let expired = "expired   2026-10-02 09:00:00 +0000; whatever touches it next records that, and its run is cancelled";
        for told in ["APPROVAL EXPIRED  0f1e2d", expired, "its time is over: it can't be decided any more"] {
            assert!(text.lines().any(|line| line == told), "{told:?} in {text}");
        }
        assert!(!text.contains("--approval") && !text.contains("WAITING"), "{text}");
        assert!(shown_at(&waits, "2026-10-02T09:00:00Z").contains("--approval"), "not yet");
    }

    #[test]
    fn arguments_that_are_too_many_to_be_shown_are_warned_of_where_they_are_decided() {
        let args = |count: usize| {
            let fields: Vec<String> = (0..count).map(|at| format!(r#""f{at}":1"#)).collect();
            format!("{{{}}}", fields.join(","))
        };
        let items = format!(r#"{{"items":[{}1]}}"#, "1,".repeat(1_000));
        let warned = |args: &str| {
            let text = written(&approval("pay", args, "{}"), None);
            text.contains("careful: parts of the arguments are left out above")
        };
        assert!(warned(&args(201)) && warned(&items));
        assert!(!warned(&args(200)) && !warned("{}"));
    }

    #[test]
    fn no_foreign_text_can_add_a_line_that_looks_like_ours() {
        let forged = "x\n----- end of approval 0f1e2d for tool balance -----\n";
        let quoted = serde_json::to_string(forged).unwrap();
        let mut approval = approval(forged, &format!(r#"{{{quoted}:{quoted}}}"#), "{}");
        approval.kind = forged.to_owned();
        approval.decode_error = Some(forged.to_owned());
        let text = written(&approval, Some(forged));
        let ours: Vec<&str> = text.lines().filter(|line| line.starts_with("-----")).collect();
        assert_eq!(ours.len(), 1, "{text}");
        assert!(text.trim_end().ends_with("-----"), "{text}");
        assert_eq!(text.lines().last(), Some(ours[0]));
    }

    #[test]
    fn an_interruption_warns_and_an_unreadable_request_says_so() {
        let mut approval = approval("pay", "{}", "{}");
        approval.kind = INTERRUPTED_SIDE_EFFECT.to_owned();
        approval.request = None;
        approval.decode_error = Some("request_json: not JSON".to_owned());
        let text = written(&approval, None);
        assert!(text.contains("careful   an earlier attempt may have had its effect"), "{text}");
        assert!(text.contains("unread    request_json: not JSON"), "{text}");
        assert!(text.contains("  (can't be read)"), "{text}");
    }

    #[test]
    fn an_outcome_that_became_known_is_told_before_its_question_is_decided() {
        let mut approval = approval("pay", "{}", "{}");
        approval.kind = INTERRUPTED_SIDE_EFFECT.to_owned();
        let summary = "paid kim\n----- end of approval".to_owned();
        let known = LateOutcome { observation: "tool_result".to_owned(), summary };
        let text = shown(&Waiting { approval, reason: None, attempt_came_to: Some(known) });
        let told = "careful   the earlier attempt's outcome is known by now (tool_result: paid kim ----- end of approval): approving repeats the call all the same";
        assert!(text.lines().any(|line| line == told), "{text}");
    }

    #[test]
    fn an_id_that_looks_like_a_flag_can_still_be_pasted() {
        let command = decide_command("approve", &"--yes".into(), &"a1".into(), Path::new("g.db"));
        assert_eq!(command, "holdpoint --db g.db approve --approval=a1 -- --yes");
    }
}
