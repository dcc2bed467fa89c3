//! Tests of the configuration: what is accepted, what is refused, and by which words.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt as _;

use holdpoint_core::tool::SideEffect;

use super::*;

const MINIMAL: &str = r#"{"database":"runs.db","session":"s","servers":[{"name":"bank","command":["x"],"manifest":"m.json","rules":{"pay":{"side_effect":"remote_mutation"}}}]}"#;

fn parse(text: &str) -> Result<Config, ContentError> {
    Config::parse(text.as_bytes())
}

fn with(from: &str, to: &str) -> String {
    assert!(MINIMAL.contains(from));
    MINIMAL.replacen(from, to, 1)
}

#[test]
fn what_is_left_out_takes_its_default() {
    let config = parse(MINIMAL).unwrap();
    assert_eq!(config.hold, Duration::from_secs(15));
    assert_eq!(config.repeat_window, Duration::from_secs(600));
    assert_eq!(config.max_pending, 5);
    assert_eq!((config.approval_ttl, config.grant_ttl), (TTL_DEFAULT, TTL_DEFAULT));
    assert_eq!(config.status_tool, "gate_status");
    assert_eq!(config.lease_ttl, None);
    assert_eq!(config.servers[0].pid_namespace, None);
    assert_eq!(config.policy.outcome(SideEffect::RemoteMutation), Outcome::RequireApproval);
    assert_eq!(config.policy.outcome(SideEffect::Destructive), Outcome::Deny);
    let limits = config.limits();
    assert_eq!((limits.max_steps, limits.max_consecutive_tool_failures, limits.loop_threshold), (3, 3, 3));
    assert_eq!(limits.approval_ttl, 86_400_000_000_000);
    assert_eq!(
        parse(&with("\"session\"", "\"max_pending\":0,\"status_tool\":\"\",\"hold\":null,\"session\""))
            .unwrap(),
        config
    );
}

#[test]
fn every_field_is_read() {
    let text = r#"{"database":"/d/runs.db","session":"A-b_9","policy":{"read_only":"require_approval"},"hold":"0s",
        "repeat_window":"1h1m","max_pending":9,"approval_ttl":"2h","grant_ttl":"0s","status_tool":"st","lease_ttl":"3s",
        "servers":[{"name":"a","command":["x","y"],"env":["A=b"],"inherit_env":["C"],"connect_timeout":"5s",
            "default_timeout":"1.5s","manifest":"a.json","skip_path_check":true,"pid_namespace":false,
            "rules":{"t":{"side_effect":"read_only","timeout":"2s","terminal":false,"description":"d","deny":["p"],
                "fixed":{"q":1.50},"rename":"r","allow_hint_mismatch":true,"outcome":"deny","repeat_window":"0s"}}},
          {"name":"b","endpoint":"https://x","manifest":"b.json","rules":{}}]}"#;
    let config = parse(text).unwrap();
    assert_eq!((config.hold, config.grant_ttl), (Duration::ZERO, Duration::ZERO));
    assert_eq!(config.lease_ttl, Some(Duration::from_secs(3)));
    assert_eq!(config.policy.outcome(SideEffect::ReadOnly), Outcome::RequireApproval);
    let server = &config.servers[0];
    assert_eq!(server.default_timeout, Some(Duration::from_millis(1500)));
    assert!(server.skip_path_check);
    assert_eq!((server.pid_namespace, server.spec().pid_namespace), (Some(false), Some(false)));
    let rule = &server.rules["t"];
    assert_eq!((rule.outcome, rule.repeat_window), (Some(Outcome::Deny), Some(Duration::ZERO)));
    assert_eq!(rule.rule.fixed["q"].as_str(), "1.50");
    assert_eq!((config.window(Some(rule)), config.window(None)), (Duration::ZERO, Duration::from_secs(3660)));
    assert_eq!(config.servers[1].endpoint.as_deref(), Some("https://x"));
}

#[test]
fn what_is_unknown_or_unusable_is_refused() {
    let cases = [
        (with("\"session\"", "\"hold_for\":\"1s\",\"session\""), "hold_for"),
        (with("\"name\":\"bank\"", "\"name\":\"bank\",\"manifets\":\"x\""), "manifets"),
        (with("\"side_effect\"", "\"denny\":[\"to\"],\"side_effect\""), "denny"),
        (format!("{MINIMAL}{{}}"), "well-formed"),
        (with("\"session\"", "\"policy\":{\"read_only\":\"maybe\"},\"session\""), "maybe"),
        (with("\"session\"", "\"policy\":{\"read_only\":\"abort\"},\"session\""), "abort"),
        (with("\"session\"", "\"policy\":{\"writes\":\"allow\"},\"session\""), "writes"),
        (with("\"session\"", "\"hold\":15,\"session\""), "15"),
        (with("\"session\"", "\"hold\":\"15\",\"session\""), "hold"),
        (with("\"session\"", "\"hold\":\"-1s\",\"session\""), "negative"),
        (with("\"session\"", "\"max_pending\":-1,\"session\""), "max_pending"),
        (with("\"session\"", "\"max_pending\":1.5,\"session\""), "1.5"),
        (with("\"session\"", "\"lease_ttl\":\"1s\",\"session\""), "lease_ttl"),
        (with("\"session\"", "\"status_tool\":\"a b\",\"session\""), "status_tool"),
        (with("\"name\":\"bank\"", "\"name\":\"bank\",\"pid_namespace\":\"yes\""), "yes"),
        (with("\"side_effect\"", "\"outcome\":\"ask\",\"side_effect\""), "ask"),
        (with("\"side_effect\"", "\"timeout\":\"5\",\"side_effect\""), "timeout"),
        (with("\"side_effect\"", "\"repeat_window\":\"-5s\",\"side_effect\""), "negative"),
        (with("\"command\":[\"x\"]", "\"command\":[\"x\"],\"endpoint\":\"https://x\""), "exactly one"),
        (with("\"command\":[\"x\"],", ""), "exactly one"),
        (with("\"manifest\":\"m.json\",", ""), "manifest"),
        (with("\"name\":\"bank\",", ""), "name"),
        (with("\"database\":\"runs.db\",", ""), "database"),
        (r#"{"database":"d","session":"s","servers":[]}"#.to_owned(), "at least one"),
        (
            with(r#""servers":["#, r#""servers":[{"name":"bank","command":["y"],"manifest":"n.json"},"#),
            "twice",
        ),
    ];
    for (text, named) in cases {
        let error = parse(&text).unwrap_err().to_string();
        assert!(error.contains(named), "{text}: {error}");
    }
}

#[test]
fn a_value_of_another_kind_is_named_by_its_key_its_server_and_its_tool() {
    let top = |member: &str| with("\"session\"", &format!("{member},\"session\""));
    let server = |member: &str| with("\"name\":\"bank\"", &format!("{member},\"name\":\"bank\""));
    let rule = |member: &str| with("\"side_effect\"", &format!("{member},\"side_effect\""));
    let duration = "expected a text such as \"10s\"";
    let cases = [
        (top("\"hold\":5"), format!("hold: {duration}, found 5")),
        (top("\"hold\":{}"), format!("hold: {duration}, found an object")),
        (
            top("\"hold\":12345678901234567890123456789012345678901"),
            format!("hold: {duration}, found a number"),
        ),
        (
            with("\"session\":\"s\"", "\"session\":1"),
            "session: expected a text such as \"main\", found 1".into(),
        ),
        (top("\"max_pending\":\"5\""), "max_pending: expected a whole number such as 5, found \"5\"".into()),
        (top("\"max_pending\":1.5"), "max_pending: expected a whole number such as 5, found 1.5".into()),
        (top("\"policy\":[]"), "policy must be an object, not a list".into()),
        (
            top("\"policy\":{\"read_only\":5}"),
            "policy: read_only: expected a text such as \"allow\", found 5".into(),
        ),
        (server("\"connect_timeout\":5"), format!("server \"bank\": connect_timeout: {duration}, found 5")),
        (
            server("\"skip_path_check\":\"true\""),
            "server \"bank\": skip_path_check: expected true or false, found \"true\"".into(),
        ),
        (server("\"env\":\"A=secret\""), "server \"bank\": env: expected a list, found a text".into()),
        (
            server("\"env\":[\"A=b\",731]"),
            "server \"bank\": env[1]: expected a text such as \"NAME=value\", found a number".into(),
        ),
        (with("\"bank\"", "5"), "servers[0]: name: expected a text such as \"files\", found 5".into()),
        (
            with(r#""rules":{"pay":{"side_effect":"remote_mutation"}}"#, r#""rules":[]"#),
            "server \"bank\": rules must be an object, not a list".into(),
        ),
        (
            rule("\"repeat_window\":5"),
            format!("server \"bank\": tool \"pay\": repeat_window: {duration}, found 5"),
        ),
        (
            rule("\"outcome\":[]"),
            "server \"bank\": tool \"pay\": outcome: expected a text such as \"allow\", found a list".into(),
        ),
    ];
    for (text, message) in cases {
        assert_eq!(parse(&text).unwrap_err().to_string(), message, "{text}");
    }
}

#[test]
fn a_value_of_another_kind_in_the_second_server_names_the_second() {
    let second = r#""servers":[{"name":"files","command":["y"],"manifest":"n.json"},"#;
    let two = with(r#""servers":["#, second).replacen(
        "\"name\":\"bank\"",
        "\"name\":\"bank\",\"default_timeout\":5",
        1,
    );
    let error = parse(&two).unwrap_err().to_string();
    assert_eq!(error, "server \"bank\": default_timeout: expected a text such as \"10s\", found 5");
}

#[test]
fn an_unknown_key_is_named_with_its_server_and_beside_those_there_are() {
    let error = parse(&with("\"session\"", "\"Hold\":\"1s\",\"session\"")).unwrap_err().to_string();
    assert!(
        error.starts_with("unknown field \"Hold\": expected one of database, session, servers"),
        "{error}"
    );
    let error = parse(&with("\"command\"", "\"comand\"")).unwrap_err().to_string();
    assert!(
        error.starts_with("server \"bank\": unknown field \"comand\": expected one of name, "),
        "{error}"
    );
}

#[test]
fn a_rules_timeout_is_never_negative() {
    for negative in ["-1s", "-1ns", "-1h1m"] {
        let text = with("\"side_effect\"", &format!("\"timeout\":\"{negative}\",\"side_effect\""));
        let error = parse(&text).unwrap_err().to_string();
        assert_eq!(error, "server \"bank\": tool \"pay\": timeout: a duration can't be negative");
    }
    parse(&with("\"side_effect\"", "\"timeout\":\"0s\",\"side_effect\"")).unwrap();
}

#[test]
fn a_list_is_not_taken_for_an_object() {
    let server = r#"["bank",["x"],null,null,null,null,null,"m.json",{},null,null]"#;
    let whole = format!(r#"["runs.db","s",[{server}],{{}},"0s","10m",5,"24h","24h","gate_status","3s"]"#);
    let in_object = format!(r#"{{"database":"runs.db","session":"s","servers":[{server}]}}"#);
    let rule = with(r#"{"side_effect":"remote_mutation"}"#, r#"["remote_mutation"]"#);
    for (text, message) in [
        (whole.as_str(), "the configuration must be an object, not a list"),
        ("[]", "the configuration must be an object, not a list"),
        ("null", "the configuration must be an object, not null"),
        (&in_object, "servers[0] must be an object, not a list"),
        (&rule, "server \"bank\": tool \"pay\": a rule is a JSON object: not an object"),
    ] {
        assert_eq!(parse(text).unwrap_err().to_string(), message, "{text}");
    }
}

#[test]
fn what_could_be_read_in_two_ways_is_refused() {
    for text in [
        with("\"session\":\"s\"", "\"session\":\"s\",\"session\":\"t\""),
        with("\"side_effect\"", "\"side_effect\":\"read_only\",\"side_effect\""),
        with("\"session\"", "\"max_pending\":1e-10000000,\"session\""),
        with("\"session\":\"s\"", "\"session\":\"\\ud800\""),
    ] {
        assert!(matches!(parse(&text), Err(ContentError::Unusable(_))), "{text}");
    }
}

#[test]
fn malformed_json_is_pointed_at_by_line_and_column() {
    for (text, place) in [
        ("{\n  \"database\": \"x\",\n}", "line 3, column 1"),
        ("", "line 1, column 1"),
        ("{\"session\" \"s\"}", "line 1, column 12"),
        ("{\n", "line 2, column 1"),
    ] {
        let error = parse(text).unwrap_err().to_string();
        assert_eq!(error, format!("not well-formed JSON at {place}"), "{text}");
    }
}

#[test]
fn a_session_is_a_plain_name() {
    for session in ["", "a b", "../x", "a.b", "x;rm", "é", &"a".repeat(65)] {
        let error = parse(&with(r#""session":"s""#, &format!(r#""session":"{session}""#))).unwrap_err();
        assert!(error.to_string().contains("session"), "{session}: {error}");
    }
    parse(&with(r#""session":"s""#, &format!(r#""session":"{}""#, "a".repeat(64)))).unwrap();
}

#[test]
fn relative_paths_start_at_the_files_directory() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("proxy.json");
    fs::write(&path, MINIMAL).unwrap();
    fs::set_permissions(&path, Permissions::from_mode(0o600)).unwrap();
    let config = Config::load(&path).unwrap();
    assert_eq!(config.database, dir.path().join("runs.db"));
    assert_eq!(config.servers[0].manifest, dir.path().join("m.json"));
    fs::set_permissions(&path, Permissions::from_mode(0o666)).unwrap();
    let error = Config::load(&path).unwrap_err().to_string();
    assert!(error.contains(path.to_str().unwrap()), "{error}");
    assert!(matches!(Config::load(dir.path()), Err(ConfigError::File(OwnedError::NotRegular(_)))));
}

#[test]
fn a_server_that_reaches_the_gates_files_is_refused_unless_told_otherwise() {
    let dir = tempfile::tempdir().unwrap();
    let mut config = parse(MINIMAL).unwrap();
    config.database = dir.path().join("runs.db");
    config.servers[0].manifest = dir.path().join("m.json");
    config.servers[0].command = vec!["x".to_owned(), dir.path().to_str().unwrap().to_owned()];
    let protected = config.protected(PathBuf::from("/"), None);
    assert_eq!(config.check_reach(&protected).unwrap_err().server, "bank");
    config.servers[0].skip_path_check = true;
    config.check_reach(&protected).unwrap();
}

#[test]
fn the_policys_identity_covers_what_its_decisions_depend_on_and_nothing_else() {
    let id = |text: &str| parse(text).unwrap().policy_id();
    let base = id(MINIMAL);
    // The same value as the reference computes for this configuration.
    assert_eq!(base, format!("agentrt-proxy/sha256:{}", sha256_hex(br#"{"policy":{"destructive":"deny","local_mutation":"allow","read_only":"allow","remote_mutation":"require_approval"},"servers":[{"name":"bank","rules":{"pay":{"side_effect":"remote_mutation"}}}]}"#)));
    for same in [
        with("\"session\"", "\"policy\":{\"read_only\":\"allow\"},\"session\""),
        with("runs.db", "other.db"),
        with(
            "\"session\":\"s\"",
            "\"session\":\"t\",\"hold\":\"1s\",\"repeat_window\":\"0s\",\"max_pending\":1,\"grant_ttl\":\"1s\"",
        ),
        with("\"command\":[\"x\"]", "\"endpoint\":\"https://x\",\"connect_timeout\":\"1s\""),
        with(
            "\"side_effect\"",
            "\"timeout\":\"1s\",\"description\":\"d\",\"deny\":[\"x\"],\"repeat_window\":\"1s\",\"side_effect\"",
        ),
    ] {
        assert_eq!(id(&same), base, "{same}");
    }
    for other in [
        with("\"session\"", "\"policy\":{\"read_only\":\"deny\"},\"session\""),
        with("remote_mutation", "destructive"),
        with("\"side_effect\"", "\"outcome\":\"allow\",\"side_effect\""),
        with("\"side_effect\"", "\"rename\":\"p\",\"side_effect\""),
        with("\"side_effect\"", "\"fixed\":{\"a\":1.0},\"side_effect\""),
        with("\"side_effect\"", "\"fixed\":{\"a\":1},\"side_effect\""),
        with("\"name\":\"bank\"", "\"name\":\"bonk\""),
        with(r#""pay":{"side_effect":"remote_mutation"}"#, ""),
    ] {
        assert_ne!(id(&other), base, "{other}");
    }
}
