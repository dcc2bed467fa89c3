"""What every program is put through: a story each, told once for all programs.

A story gets a `World`, drives hosts in it, and keeps answers and facts; what was recorded is read afterwards. The rules
that each story exercises are numbered as in the specification's section on deciding a call. Waiting is always for something
that can be seen (a line in the ledger, a row); real time passes only where a timeout, an expiry or a lease must run out.
"""
import re
import time

from mcp_host import PREFIXES
from program import until

STORIES = {}
ALICE = {"to": "alice", "amount": 12.5}
BOB = {"to": "bob", "amount": 7}
ALLOWED = {"pay": {"outcome": "allow"}}


def story(function):
    STORIES[function.__name__] = function
    return function


def mode(how, arguments=ALICE):
    return dict(arguments, mode=how)


def approval_in(answer):
    found = re.search(r"\b[0-9a-f]{32}\b", answer.text)
    return found.group(0) if found else None


@story
def a_read_runs_and_runs_again(w):
    w.configure()
    host = w.host()
    w.fact("tools", [t["name"] for t in host.tools()])
    w.fact("server", host.initialized["serverInfo"]["name"])
    for _ in range(2):
        answer = w.call("balance", host, "bank_balance", {"account": "main"})
        w.fact("text", answer.text)


@story
def a_payment_waits_is_approved_runs_once_and_is_then_a_duplicate(w):
    w.configure()
    host = w.host()
    first = w.call("pay", host, "bank_pay", ALICE)
    again = w.call("pay", host, "bank_pay", ALICE)
    w.fact("same approval", approval_in(first) is not None and approval_in(first) == approval_in(again))
    w.fact("nothing ran yet", w.effects())
    w.decide("approve")
    collected = w.call("pay", host, "bank_pay", ALICE)
    w.fact("text", collected.text)
    w.call("pay", host, "bank_pay", ALICE)


@story
def a_denied_call_runs_nothing(w):
    w.configure()
    host = w.host()
    w.call("refund", host, "bank_refund", {"payment": "p1"})
    w.call("refund", host, "bank_refund", {"payment": "p1"})


@story
def invalid_arguments_run_nothing(w):
    w.configure(ALLOWED)
    host = w.host()
    w.call("wrong type", host, "bank_pay", {"to": "alice", "amount": "twelve"})
    w.call("missing", host, "bank_pay", {"to": "alice"})
    w.call("unknown argument", host, "bank_pay", dict(ALICE, urgent=True))
    w.call("repeated key", host, "bank_pay", raw='{"to":"alice","to":"bob","amount":1}')
    w.call("huge exponent", host, "bank_pay", raw='{"to":"alice","amount":1e999999}')
    w.call("half a character", host, "bank_pay", raw='{"to":"\\ud800","amount":1}')


@story
def a_rejected_payment_is_not_asked_about_again(w):
    w.configure()
    host = w.host()
    w.call("pay", host, "bank_pay", ALICE)
    w.decide("reject", note="not this month")
    answer = w.call("pay", host, "bank_pay", ALICE)
    w.fact("note is quoted", "not this month" in answer.text)


@story
def a_cancelled_run_is_not_asked_about_again(w):
    w.configure()
    host = w.host()
    w.call("pay", host, "bank_pay", ALICE)
    run_id, _ = w.waiting()
    w.operate("cancel", run_id, "--by", "me", "--note", "wrong account")
    answer = w.call("pay", host, "bank_pay", ALICE)
    w.fact("note is quoted", "wrong account" in answer.text)


@story
def an_expired_approval_is_not_asked_about_again(w):
    w.configure(approval_ttl="1s")
    host = w.host()
    w.call("pay", host, "bank_pay", ALICE)
    time.sleep(1.3)
    w.call("pay", host, "bank_pay", ALICE)
    w.call("pay", host, "bank_pay", ALICE)


@story
def a_stale_grant_executes_nothing(w):
    w.configure(grant_ttl="1s")
    host = w.host()
    w.call("pay", host, "bank_pay", ALICE)
    w.decide("approve")
    time.sleep(1.3)
    w.call("pay", host, "bank_pay", ALICE)


@story
def a_window_of_zero_asks_again(w):
    w.configure(repeat_window="0s")
    host = w.host()
    first = w.call("pay", host, "bank_pay", ALICE)
    w.decide("approve")
    w.call("pay", host, "bank_pay", ALICE)
    second = w.call("pay", host, "bank_pay", ALICE)
    w.fact("another approval", approval_in(first) != approval_in(second))


@story
def the_number_as_written_is_part_of_the_request(w):
    w.configure()
    host = w.host()
    ids = [approval_in(w.call(raw, host, "bank_pay", raw=raw)) for raw in (
        '{"to":"alice","amount":10}',
        '{ "amount": 10, "to": "\\u0061lice" }',
        '{"to":"alice","amount":10.0}',
        '{"to":"alice","amount":1e1}',
    )]
    w.fact("same request", [ids.index(i) for i in ids])


@story
def the_cap_blocks_without_asking(w):
    w.configure(max_pending=2)
    host = w.host()
    for to in ("alice", "bob", "carol"):
        w.call(to, host, "bank_pay", {"to": to, "amount": 1})
    w.call("balance", host, "bank_balance", {"account": "main"})


@story
def approved_while_held_completes_in_one_call(w):
    w.configure(hold="20s")
    host = w.host()
    waiting = host.start("bank_pay", ALICE, token="hold-1")
    until("an approval", 10, lambda: w.rows("SELECT 1 FROM approvals") if _has_table(w) else None)
    w.fact("told while waiting", host.progress("hold-1", 5) is not None)
    w.decide("approve")
    w.keep("pay", waiting.answer())


def _has_table(w):
    return w.rows("SELECT 1 FROM sqlite_master WHERE name = 'approvals'")


@story
def the_status_tool_tells_and_never_executes(w):
    w.configure()
    host = w.host()
    w.call("nothing yet", host, "gate_status")
    asked = approval_in(w.call("pay", host, "bank_pay", ALICE))
    listed = w.call("list", host, "gate_status")
    w.fact("listed", asked in listed.text and "bank_pay" in listed.text)
    w.call("pending", host, "gate_status", {"approval_id": asked})
    w.decide("approve")
    w.call("approved", host, "gate_status", {"approval_id": asked})
    w.fact("nothing ran", w.effects())
    w.call("pay", host, "bank_pay", ALICE)
    w.call("executed", host, "gate_status", {"approval_id": asked})
    w.call("unknown id", host, "gate_status", {"approval_id": "0" * 32})
    w.call("wrong argument", host, "gate_status", {"run": "x"})


@story
def structured_content_comes_back_as_it_was(w):
    w.configure(ALLOWED)
    host = w.host()
    answer = w.call("pay", host, "bank_pay", mode("structured"))
    w.fact("structured", answer.structured)
    w.call("pay", host, "bank_pay", mode("structured"))


@story
def an_answer_too_deep_to_record_counts_as_executed(w):
    w.configure(ALLOWED)
    host = w.host()
    w.call("pay", host, "bank_pay", mode("deep"))
    w.call("pay", host, "bank_pay", mode("deep"))
    w.call("another", host, "bank_pay", BOB)


@story
def a_server_that_says_no_is_a_known_failure(w):
    w.configure(ALLOWED)
    host = w.host()
    answer = w.call("pay", host, "bank_pay", mode("error"))
    w.fact("its words", "declined" in answer.text)
    w.call("pay", host, "bank_pay", mode("error"))
    w.call("another", host, "bank_pay", BOB)


@story
def a_timeout_leaves_the_outcome_unknown_until_a_person_decides(w):
    w.configure({"pay": {"outcome": "allow", "timeout": "700ms"}})
    host = w.host()
    w.call("pay", host, "bank_pay", mode("block"))
    w.call("pay", host, "bank_pay", mode("block"))
    w.call("another", host, "bank_pay", BOB)
    w.call("balance", host, "bank_balance", {"account": "main"})
    w.fact("ran once so far", w.effects())
    w.release()
    w.decide("approve")
    w.call("pay", host, "bank_pay", mode("block"))
    w.call("pay", host, "bank_pay", mode("block"))
    w.call("another", host, "bank_pay", BOB)


@story
def a_rejected_unknown_outcome_unblocks_and_asks_again_after_the_window(w):
    w.configure({"pay": {"outcome": "allow", "timeout": "500ms"}}, repeat_window="1s")
    host = w.host()
    w.call("pay", host, "bank_pay", mode("silent"))
    w.decide("reject", note="seen in the bank's own list")
    w.call("pay", host, "bank_pay", mode("silent"))
    w.call("another", host, "bank_pay", BOB)
    time.sleep(1.3)
    w.call("pay", host, "bank_pay", mode("silent"))


@story
def three_unknown_outcomes_end_the_run_and_a_fresh_one_asks(w):
    w.configure({"pay": {"outcome": "allow", "timeout": "400ms"}})
    host = w.host()
    for turn in range(3):
        if turn:
            w.decide("approve")
        w.call("pay", host, "bank_pay", mode("silent"))
    w.call("another", host, "bank_pay", BOB)
    w.fact("effects before the fourth", w.effects())


@story
def a_server_that_dies_after_the_effect_leaves_the_outcome_unknown(w):
    w.configure(ALLOWED)
    host = w.host()
    began = time.monotonic()
    w.call("pay", host, "bank_pay", mode("exit"))
    w.fact("answered at once", time.monotonic() - began < 5)
    w.call("pay", host, "bank_pay", mode("exit"))


@story
def a_host_that_gives_up_does_not_stop_the_payment(w):
    w.configure(ALLOWED)
    host = w.host()
    waiting = host.start("bank_pay", mode("slow"))
    w.await_effects(1)
    host.cancel(waiting)
    w.call("pay", host, "bank_pay", mode("slow"))
    w.call_past_lease("pay, later", host, "bank_pay", mode("slow"))


@story
def a_host_that_leaves_lets_the_payment_be_recorded(w):
    w.configure(ALLOWED)
    host = w.host()
    host.start("bank_pay", mode("slow"))
    w.await_effects(1)
    w.fact("exit status", host.close())
    w.call("pay", w.host(), "bank_pay", mode("slow"))


@story
def two_proxies_share_one_session(w):
    w.configure(ALLOWED)
    one, two = w.host(), w.host()
    waiting = one.start("bank_pay", mode("slow"))
    w.await_effects(1)
    w.call("the same, elsewhere", two, "bank_pay", mode("slow"))
    w.call("another, elsewhere", two, "bank_pay", BOB)
    w.keep("the first", waiting.answer())
    w.call("the same, elsewhere", two, "bank_pay", mode("slow"))


@story
def an_approval_outlives_the_proxy_that_asked(w):
    w.configure()
    host = w.host()
    w.call("pay", host, "bank_pay", ALICE)
    host.kill()
    w.decide("approve")
    w.call("pay", w.host(), "bank_pay", ALICE)


@story
def a_policy_that_now_denies_stops_an_approved_payment(w):
    w.configure()
    host = w.host()
    w.call("pay", host, "bank_pay", ALICE)
    w.decide("approve")
    host.close()
    w.configure({"pay": {"outcome": "deny"}})
    w.call("pay", w.host(), "bank_pay", ALICE)


@story
def a_changed_fixed_value_asks_again(w):
    w.configure({"pay": {"fixed": {"currency": "EUR"}}})
    host = w.host()
    first = w.call("pay", host, "bank_pay", ALICE)
    w.decide("approve")
    host.close()
    w.configure({"pay": {"fixed": {"currency": "USD"}}})
    second = w.call("pay", w.host(), "bank_pay", ALICE)
    w.fact("another approval", approval_in(first) != approval_in(second))


def _crash(w):
    """A proxy killed inside a payment; returns the host that comes after it."""
    w.configure(ALLOWED, lease_ttl="3s")
    host = w.host()
    host.start("bank_pay", mode("block"))
    w.await_effects(1)
    host.kill()
    after = w.host()
    w.call("pay", after, "bank_pay", mode("block"))
    w.call_past_lease("pay, past the lease", after, "bank_pay", mode("block"))
    w.call("another", after, "bank_pay", BOB)
    return after


@story
def a_crash_then_an_approval_runs_it_once_more(w):
    after = _crash(w)
    w.release()
    w.decide("approve")
    w.call("pay", after, "bank_pay", mode("block"))
    w.call("pay", after, "bank_pay", mode("block"))
    w.call("another", after, "bank_pay", BOB)


@story
def a_crash_then_a_rejection_runs_nothing_and_unblocks(w):
    after = _crash(w)
    w.decide("reject", note="it went through")
    w.call("pay", after, "bank_pay", mode("block"))
    w.call("another", after, "bank_pay", BOB)


@story
def the_operators_command_lists_shows_and_verifies(w):
    w.configure()
    host = w.host()
    w.call("pay", host, "bank_pay", ALICE)
    run_id, approval = w.waiting()
    listed = w.operate("runs")
    w.fact("runs", [sorted(listed), listed["total"], listed["runs"][0]["pending_approval_id"] == approval])
    shown = w.operate("show", run_id)
    w.fact("show", [sorted(shown), shown["steps_total"], shown["run"]["status"]])
    verified = w.operate("verify")
    w.fact("verify", [sorted(verified), verified["intact"], verified["checked"] == verified["head"]["seq"]])
    decided = w.decide("approve")
    w.fact("approve", [sorted(decided), decided["approval"]["status"], decided["run"]["status"]])
    w.fact("prefixes are the thirteen", len(PREFIXES))
