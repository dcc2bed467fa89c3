//! The fake payment server, driven line by line.

use std::fs;
use std::sync::mpsc::{Receiver, Sender, channel};

use tempfile::TempDir;

use super::*;

/// An output that hands each answer to the test.
struct Wire(Sender<Value>);

impl Write for Wire {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut deep = serde_json::Deserializer::from_slice(bytes);
        deep.disable_recursion_limit();
        self.0.send(Value::deserialize(&mut deep).unwrap()).unwrap();
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

struct Bank {
    folder: TempDir,
    answers: Receiver<Value>,
    server: Server<Wire>,
}

impl Bank {
    fn new(mode: Option<Mode>) -> Bank {
        let folder = tempfile::tempdir().unwrap();
        let (sender, answers) = channel();
        let server = Server::new(folder.path().join("ledger"), mode, Wire(sender));
        Bank { folder, answers, server }
    }

    fn serve(&self, lines: &str) -> Ended {
        self.server.serve(lines.as_bytes()).unwrap()
    }

    fn call(&self, tool: &str, arguments: &str) -> Ended {
        self.serve(&format!(
            "{{\"jsonrpc\":\"2.0\",\"id\":7,\"method\":\"tools/call\",\"params\":{{\"name\":\"{tool}\",\"arguments\":{arguments}}}}}\n"
        ))
    }

    fn answer(&self) -> Value {
        self.answers.recv_timeout(Duration::from_secs(20)).unwrap()
    }

    fn no_answer(&self) -> bool {
        self.answers.try_recv().is_err()
    }

    fn ledger(&self) -> Vec<Value> {
        let text = fs::read_to_string(self.folder.path().join("ledger")).unwrap_or_default();
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }
}

#[test]
fn a_greeting_a_listing_and_an_unknown_method_are_answered_and_a_notification_is_not() {
    let bank = Bank::new(None);
    let ended = bank.serve(concat!(
        r#"{"jsonrpc":"2.0","id":"a","method":"initialize","params":{"protocolVersion":"2025-11-25"}}"#,
        "\n",
        r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#,
        "\nnonsense\n\n",
        r#"{"jsonrpc":"2.0","id":2,"method":"tools/list"}"#,
        "\n",
        r#"{"jsonrpc":"2.0","id":3,"method":"resources/list"}"#,
        "\n",
    ));
    assert_eq!(ended, Ended::InputEnded);
    let greeting = bank.answer();
    assert_eq!(
        (&greeting["id"], &greeting["result"]["protocolVersion"]),
        (&json!("a"), &json!("2025-11-25"))
    );
    let listing = bank.answer();
    let names: Vec<_> =
        listing["result"]["tools"].as_array().unwrap().iter().map(|tool| &tool["name"]).collect();
    assert_eq!(names, ["balance", "pay", "refund"]);
    assert_eq!(bank.answer()["error"]["code"], -32_601);
    assert!(bank.no_answer());
}

#[test]
fn the_modes_that_the_schema_offers_are_those_that_are_understood() {
    let modes = tools()[1]["inputSchema"]["properties"]["mode"]["enum"].clone();
    let expected = ["slow", "block", "error", "structured", "deep", "exit", "silent"];
    assert_eq!(modes, json!(expected));
    let parsed: Vec<Mode> = serde_json::from_value(modes).unwrap();
    assert_eq!(parsed, Mode::value_variants());
}

#[test]
fn a_read_leaves_no_line_and_each_payment_one_with_its_number_as_sent() {
    let bank = Bank::new(None);
    bank.call("balance", r#"{"account":"main"}"#);
    assert_eq!(bank.answer()["result"], text("account main holds 120.00 EUR"));
    assert!(bank.ledger().is_empty());
    bank.call("pay", r#"{"to":"alice","amount":12.50}"#);
    assert_eq!(bank.answer()["result"], text("paid 12.50 to alice"));
    bank.call("refund", r#"{"payment":"p1"}"#);
    assert_eq!(bank.answer()["result"], text("refunded"));
    let ledger = bank.ledger();
    assert_eq!(ledger.len(), 2);
    assert_eq!(ledger[0]["arguments"].to_string(), r#"{"to":"alice","amount":12.50}"#);
    assert_eq!(ledger[1]["tool"], "refund");
}

#[test]
fn what_is_no_payment_leaves_no_line() {
    let bank = Bank::new(None);
    for arguments in [r#"{"to":"alice"}"#, r#"{"to":"a","amount":1,"mode":"odd"}"#, "null"] {
        bank.call("pay", arguments);
        assert_eq!(bank.answer()["error"]["code"], INVALID_PARAMS, "{arguments}");
    }
    bank.call("steal", "{}");
    assert_eq!(bank.answer()["error"]["code"], INVALID_PARAMS);
    assert!(bank.ledger().is_empty());
}

#[test]
fn a_blocked_payment_is_answered_after_its_release_and_others_meanwhile() {
    let bank = Bank::new(None);
    bank.call("pay", r#"{"to":"alice","amount":1,"mode":"block"}"#);
    assert_eq!(bank.ledger().len(), 1);
    bank.call("balance", r#"{"account":"main"}"#);
    assert!(bank.answer()["result"]["content"][0]["text"].as_str().unwrap().starts_with("account"));
    fs::write(bank.folder.path().join("ledger.release"), "").unwrap();
    assert_eq!(bank.answer()["result"], text("paid 1 to alice"));
}

#[test]
fn each_other_mode_does_as_it_is_called_after_the_effect() {
    let bank = Bank::new(None);
    let mut lines = 0;
    let mut pay = |mode: &str| {
        let ended = bank.call("pay", &format!(r#"{{"to":"bob","amount":2,"mode":"{mode}"}}"#));
        lines += 1;
        assert_eq!(bank.ledger().len(), lines, "{mode}");
        ended
    };
    pay("slow");
    assert_eq!(bank.answer()["result"], text("paid 2 to bob"));
    pay("error");
    assert_eq!(bank.answer()["result"]["isError"], true);
    pay("structured");
    assert_eq!(bank.answer()["result"]["structuredContent"], json!({"to": "bob", "paid": 2}));
    pay("deep");
    let answer = bank.answer();
    let mut nested = &answer["result"]["structuredContent"]["nested"];
    for _ in 0..DEEP_LEVELS {
        nested = &nested[0];
    }
    assert_eq!(*nested, json!(2));
    assert_eq!(pay("silent"), Ended::InputEnded);
    assert_eq!(pay("exit"), Ended::ByPayment);
    assert!(bank.no_answer());
}

#[test]
fn a_mode_of_the_server_is_for_payments_that_name_none() {
    let bank = Bank::new(Some(Mode::Error));
    bank.call("pay", r#"{"to":"bob","amount":2}"#);
    assert_eq!(bank.answer()["result"]["isError"], true);
    bank.call("pay", r#"{"to":"bob","amount":2,"mode":"structured"}"#);
    assert!(bank.answer()["result"].get("isError").is_none());
}
