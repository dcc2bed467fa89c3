//! The scenes. Each tells what happens and stops the story where it does not: answers are looked at, and then the
//! ledger on disk, which has the last word.

use std::time::Duration;

use holdpoint_actors::clock::monotonic;
use serde_json::{Value, json};

use super::error::{Error, ensure};
use super::host::{Answer, Host};
use super::process::{is_running, kill};
use super::teller::{Teller, took};
use super::world::{HOLD, LEASE_TTL, World, until};

/// How long the host of the fourth scene waits for an answer that is held back until it has given up.
const HOST_PATIENCE: Duration = Duration::from_millis(500);
/// How soon the gate answers a call whose server has died.
const AT_ONCE: Duration = Duration::from_secs(5);
/// Who decides in this story.
const OPERATOR: &str = "demo";

/// The story: who tells it, and where it takes place.
pub(super) struct Story<'a> {
    pub(super) teller: Teller<'a>,
    pub(super) world: World,
}

impl Story<'_> {
    /// Tells everything, from the pins to the end of the last process. `scene` is left at the scene that was begun last.
    pub(super) async fn tell(&mut self, scene: &mut usize) -> Result<(), Error> {
        let mut host = self.set_up().await?;
        *scene = 1;
        self.a_read_runs(&mut host).await?;
        *scene = 2;
        self.a_payment_waits(&mut host).await?;
        *scene = 3;
        self.a_duplicate_is_refused(&mut host).await?;
        *scene = 4;
        self.a_response_is_lost(&mut host).await?;
        *scene = 5;
        let mut host = self.the_gate_is_killed(host).await?;
        *scene = 6;
        self.a_server_is_killed(&mut host).await?;
        *scene = 7;
        self.an_actor_is_killed().await?;
        *scene = 8;
        self.the_record_is_verified(host).await
    }

    async fn set_up(&mut self) -> Result<Host, Error> {
        self.teller
            .say(
                "A fake payment server, the real gate in front of it, and a scripted host in place of an agent.",
            )
            .await?;
        self.teller
            .say(
                "Every payment leaves a line in a ledger on disk, and the ledger has the last word in every scene.\n",
            )
            .await?;
        self.teller.line("operator", "$ holdpoint pin --config config.json").await?;
        self.world.pin().await?;
        self.teller
            .line(
                "",
                "The tools are pinned as they are now. bank_pay waits for a person; petty_pay needs nobody.",
            )
            .await?;
        self.teller.line("host", "$ holdpoint proxy --config config.json").await?;
        let mut host = self.world.host_of_proxy().await?;
        let tools = host.tools().await?;
        let expected = ["bank_balance", "bank_pay", "petty_balance", "petty_pay", "gate_status"];
        ensure(tools == expected, || format!("the host is offered {tools:?}"))?;
        self.teller.line("", &format!("It is offered {}.", tools.join(", "))).await?;
        Ok(host)
    }

    async fn a_read_runs(&mut self, host: &mut Host) -> Result<(), Error> {
        self.teller.scene(1, "A read runs at once").await?;
        let answer = self.call(host, "bank_balance", &json!({"account": "main"}), "").await?;
        self.is_result(&answer, "account main holds")?;
        self.paid("bank", &[]).await
    }

    async fn a_payment_waits(&mut self, host: &mut Host) -> Result<(), Error> {
        self.teller.scene(2, "A payment waits for a person, and runs once").await?;
        let payment = json!({"to": "alice", "amount": 40});
        let held = self.call(host, "bank_pay", &payment, "Nothing").await?;
        let approval = self.asks(&held, "PENDING_APPROVAL")?;
        ensure(held.took >= HOLD, || format!("the call was held for {:?}", held.took))?;
        self.paid("bank", &[]).await?;
        self.decide("approve", &approval, None).await?;
        self.paid("bank", &[]).await?;
        self.teller
            .line("", "An approval runs nothing by itself: the host makes the same call again.")
            .await?;
        let answer = self.call(host, "bank_pay", &payment, "").await?;
        self.is_result(&answer, "paid 40 to alice")?;
        self.paid("bank", &["40 to alice"]).await
    }

    async fn a_duplicate_is_refused(&mut self, host: &mut Host) -> Result<(), Error> {
        self.teller.scene(3, "The same payment again is a duplicate").await?;
        let answer = self.call(host, "bank_pay", &json!({"amount": 40, "to": "alice"}), "paid 40").await?;
        self.is_verdict(&answer, "DUPLICATE")?;
        ensure(answer.text.contains("paid 40 to alice"), || {
            format!("the duplicate does not tell what came of the payment: {}", answer.text)
        })?;
        self.paid("bank", &["40 to alice"]).await
    }

    async fn a_response_is_lost(&mut self, host: &mut Host) -> Result<(), Error> {
        self.teller.scene(4, "A host loses the response and tries again").await?;
        let payment = json!({"to": "bob", "amount": 7, "mode": "block"});
        self.teller
            .line("", "First straight to the server, no gate (\"block\": it pays and keeps its answer back):")
            .await?;
        let mut straight = self.world.host_of_server("straight").await?;
        self.lose_the_response(&mut straight, "straight", "pay", &payment).await?;
        self.world.ledger("straight").release()?;
        let answer = self.call(&mut straight, "pay", &payment, "").await?;
        self.is_result(&answer, "paid 7 to bob")?;
        self.paid("straight", &["7 to bob", "7 to bob"]).await?;
        straight.leave().await?;
        self.teller.line("", "Paid twice. Now the same through Holdpoint:").await?;
        self.lose_the_response(host, "petty", "petty_pay", &payment).await?;
        let again = self.call(host, "petty_pay", &payment, "Nothing").await?;
        self.is_verdict(&again, "IN_PROGRESS")?;
        self.teller.line("", "Now the payment server answers, to nobody.").await?;
        self.world.ledger("petty").release()?;
        let answer = self.call_while_in_progress(host, "petty_pay", &payment, "paid 7").await?;
        self.world.ledger("petty").hold()?;
        self.is_verdict(&answer, "DUPLICATE")?;
        ensure(answer.text.contains("paid 7 to bob"), || {
            format!("the lost response is not told: {}", answer.text)
        })?;
        self.paid("petty", &["7 to bob"]).await?;
        self.teller.line("", "Paid once, and the second try learnt what came of the first.").await?;
        Ok(())
    }

    async fn the_gate_is_killed(&mut self, mut host: Host) -> Result<Host, Error> {
        self.teller.scene(5, "The gate is killed in the middle of a payment").await?;
        let payment = json!({"to": "carol", "amount": 15, "mode": "block"});
        self.announce("petty_pay", &payment).await?;
        host.send("petty_pay", &payment).await?;
        self.world.ledger("petty").reaches(2).await?;
        self.paid("petty", &["7 to bob", "15 to carol"]).await?;
        let server = self.world.server_seen("petty").await?.process;
        let server =
            server.ok_or_else(|| Error::NotAsTold("the payment server has no process".to_owned()))?;
        self.teller.line("", "The server has paid and not answered yet, and:").await?;
        self.teller.line("crash", &format!("$ kill -9 {}    (holdpoint proxy)", host.process_id())).await?;
        drop(host);
        until("the end of the payment server", async || Ok((!is_running(server)).then_some(()))).await?;
        self.teller.found("", "No process is left: its servers ended with it.").await?;
        self.teller.line("host", "$ holdpoint proxy --config config.json").await?;
        let mut host = self.world.host_of_proxy().await?;
        let mut answer = self.call(&mut host, "petty_pay", &payment, "Nothing").await?;
        // On a busy machine the lease may have run out before the new proxy serves.
        if answer.is("IN_PROGRESS") {
            let lease = took(LEASE_TTL);
            self.teller
                .line("", &format!("The dead process's lease stands for {lease} from its last renewal."))
                .await?;
            answer = self.call_while_in_progress(&mut host, "petty_pay", &payment, "Nothing").await?;
        }
        let approval = self.asks(&answer, "INTERRUPTED")?;
        self.teller
            .line("", "Only a person can find out. The operator looks at the bank's statement:")
            .await?;
        let note = "the statement shows it: it went through";
        self.decide("reject", &approval, Some(note)).await?;
        let answer = self.call(&mut host, "petty_pay", &payment, note).await?;
        self.is_verdict(&answer, "REJECTED")?;
        ensure(answer.text.contains(note), || format!("the operator's note is not told: {}", answer.text))?;
        self.paid("petty", &["7 to bob", "15 to carol"]).await?;
        Ok(host)
    }

    async fn a_server_is_killed(&mut self, host: &mut Host) -> Result<(), Error> {
        self.teller.scene(6, "A server dies in the middle of a payment, and the call is answered").await?;
        let payment = json!({"to": "dave", "amount": 5, "mode": "block"});
        self.announce("petty_pay", &payment).await?;
        let sent = host.send("petty_pay", &payment).await?;
        self.world.ledger("petty").reaches(3).await?;
        let before = self.world.server_seen("petty").await?;
        let server = before.process.filter(|id| is_running(*id));
        let server =
            server.ok_or_else(|| Error::NotAsTold("the payment server has no process".to_owned()))?;
        self.teller.line("crash", &format!("$ kill -9 {server}    (petty's payment server)")).await?;
        ensure(kill(server), || format!("process {server} can't be killed"))?;
        let answer = host.answer(sent).await?;
        self.teller.answer(&answer, "approval").await?;
        self.asks(&answer, "UNKNOWN_OUTCOME")?;
        ensure(answer.took < AT_ONCE, || format!("the answer took {:?}", answer.took))?;
        self.paid("petty", &["7 to bob", "15 to carol", "5 to dave"]).await?;
        self.teller
            .line(
                "",
                "It may have been paid (it was), so nobody is told that it failed. The connection starts the server \
                 again and checks its pins before it offers a tool:",
            )
            .await?;
        until("the server's second life", async || {
            let after = self.world.server_seen("petty").await?;
            let is_back =
                after.restarts > before.restarts && after.is_ready && after.process != before.process;
            Ok(is_back.then_some(()))
        })
        .await?;
        let answer = self.call(host, "petty_balance", &json!({"account": "petty cash"}), "").await?;
        self.is_result(&answer, "account petty cash holds")?;
        self.teller
            .line("", "Reads go on; another payment by the same tool has to wait for the answer:")
            .await?;
        let other = self.call(host, "petty_pay", &json!({"to": "erin", "amount": 3}), "Nothing").await?;
        self.is_verdict(&other, "BLOCKED")?;
        self.paid("petty", &["7 to bob", "15 to carol", "5 to dave"]).await
    }

    async fn the_record_is_verified(&mut self, host: Host) -> Result<(), Error> {
        self.teller.scene(8, "The record is complete and unaltered").await?;
        let ended = host.leave().await?;
        ensure(ended.success(), || format!("the proxy ended with {ended}"))?;
        self.teller.line("operator", "$ holdpoint verify").await?;
        let verified = self.world.operate(&["verify"]).await?;
        let (checked, head) = (verified["checked"].as_i64(), verified["head"]["seq"].as_i64());
        ensure(verified["intact"] == true && checked == head && checked > Some(0), || {
            format!("verify found {verified}")
        })?;
        let hash = verified["head"]["hash"].as_str().unwrap_or_default();
        let text = format!("intact: {} events, head {hash}", checked.unwrap_or_default());
        self.teller.found("", &text).await?;
        let runs = self.world.operate(&["runs", "--limit", "0"]).await?;
        let waiting = runs["runs"].as_array().into_iter().flatten();
        let waiting = waiting.filter(|run| run["status"] == "WAITING_FOR_APPROVAL").count();
        ensure(waiting == 1, || format!("{waiting} runs wait, and only dave's payment should"))?;
        let total = &runs["total"];
        self.teller
            .line(
                "",
                &format!("{total} runs are on record; one question waits for an operator: dave's payment."),
            )
            .await?;
        self.paid("bank", &["40 to alice"]).await?;
        self.paid("petty", &["7 to bob", "15 to carol", "5 to dave"]).await
    }

    /// Makes a call that the teller announces, and tells its answer: of the gate's own, what has `words` in it.
    async fn call(
        &mut self,
        host: &mut Host,
        tool: &str,
        arguments: &Value,
        words: &str,
    ) -> Result<Answer, Error> {
        self.announce(tool, arguments).await?;
        let answer = host.call(tool, arguments).await?;
        self.teller.answer(&answer, words).await?;
        Ok(answer)
    }

    async fn announce(&mut self, tool: &str, arguments: &Value) -> Result<(), Error> {
        Ok(self.teller.line("host", &format!("{tool} {arguments}")).await?)
    }

    /// Repeats a call while it is in progress, and tells the answer that ends this, and how long it all took.
    async fn call_while_in_progress(
        &mut self,
        host: &mut Host,
        tool: &str,
        arguments: &Value,
        words: &str,
    ) -> Result<Answer, Error> {
        // Said before, or whoever reads along would wonder what is waited for.
        self.teller.line("host", "the same call, until it is no longer in progress").await?;
        let began = monotonic();
        let mut answer = until("an end of what is in progress", async || {
            let answer = host.call(tool, arguments).await?;
            Ok((!answer.is("IN_PROGRESS")).then_some(answer))
        })
        .await?;
        answer.took = began.elapsed();
        self.teller.answer(&answer, words).await?;
        Ok(answer)
    }

    /// Makes the first payment of a server's ledger, whose answer does not come before the host gives up.
    async fn lose_the_response(
        &mut self,
        host: &mut Host,
        server: &str,
        tool: &str,
        payment: &Value,
    ) -> Result<(), Error> {
        self.announce(tool, payment).await?;
        let mut sent = host.send(tool, payment).await?;
        let early = host.answer_within(&mut sent, HOST_PATIENCE).await?;
        ensure(early.is_none(), || format!("the blocked payment was answered at once: {early:?}"))?;
        self.world.ledger(server).reaches(1).await?;
        host.give_up(sent).await?;
        let text = format!("no answer within {}: the host gives up, and tries again", took(HOST_PATIENCE));
        Ok(self.teller.line("", &text).await?)
    }

    /// Decides with the operator's command, in another process.
    async fn decide(&mut self, verdict: &str, approval: &str, note: Option<&str>) -> Result<(), Error> {
        let run = self.world.run_that_waits_for(approval).await?;
        let mut words = vec![verdict, &run, "--approval", approval, "--by", OPERATOR];
        words.extend(note.iter().flat_map(|note| ["--note", note]));
        let noted = note.map_or(String::new(), |note| format!(" --note '{note}'"));
        let typed = format!("$ holdpoint {verdict} {run} --approval {approval} --by {OPERATOR}{noted}");
        self.teller.line("operator", &typed).await?;
        let decided = self.world.operate(&words).await?;
        let expected = if verdict == "approve" { "approved" } else { "rejected" };
        let status = decided["approval"]["status"].as_str().unwrap_or_default();
        ensure(status.eq_ignore_ascii_case(expected), || format!("{verdict} left the approval {status:?}"))?;
        Ok(())
    }

    /// Looks at a ledger, and tells what it says.
    pub(super) async fn paid(&mut self, server: &str, expected: &[&str]) -> Result<(), Error> {
        let paid = self.world.ledger(server).payments()?;
        ensure(paid == expected, || format!("{server}'s ledger has {paid:?}, and not {expected:?}"))?;
        let count = match paid.len() {
            0 => "no payments".to_owned(),
            1 => format!("1 payment: {}", paid[0]),
            many => format!("{many} payments: {}", paid.join(", ")),
        };
        Ok(self.teller.found("ledger", &format!("{server} has {count}")).await?)
    }

    fn is_result(&self, answer: &Answer, text: &str) -> Result<(), Error> {
        ensure(!answer.is_error && answer.text.starts_with(text), || {
            format!("{text:?} was expected, and the answer is {:?}", answer.text)
        })
    }

    fn is_verdict(&self, answer: &Answer, word: &str) -> Result<(), Error> {
        ensure(answer.is(word), || format!("{word} was expected, and the answer is {:?}", answer.text))
    }

    /// Checks that an answer says that a person is asked, and returns the approval.
    fn asks(&self, answer: &Answer, word: &str) -> Result<String, Error> {
        self.is_verdict(answer, word)?;
        let approval = answer.approval().map(str::to_owned);
        approval.ok_or_else(|| Error::NotAsTold(format!("the answer names no approval: {:?}", answer.text)))
    }
}
