//! The README's quick start: short, and what it says loads; that it works on the real server is a scene of `tests/ring`. Its
//! first tool: short, and an example that is built.

use holdpoint::proxy::config::Config;

const LINES_MAX: usize = 10;

/// The first block of this kind in the section on the first two minutes.
fn block(kind: &str) -> String {
    let readme = concat!(env!("CARGO_MANIFEST_DIR"), "/README.md");
    let readme = std::fs::read_to_string(readme).expect("the README can be read");
    let (_, section) = readme.split_once("\n## Two minutes").expect("the section is there");
    let (section, _) = section.split_once("\n## ").expect("another section follows");
    let (_, block) = section.split_once(&format!("```{kind}\n")).expect("the section has such a block");
    let (block, _) = block.split_once("```").expect("the block ends");
    block.to_owned()
}

#[test]
fn the_quick_start_takes_ten_lines_at_most_and_its_configuration_loads() {
    let script = block("sh");
    let lines: Vec<&str> = script.lines().collect();
    assert!(lines.len() <= LINES_MAX, "it has {} lines", lines.len());
    assert!(lines.iter().all(|line| line.len() <= 150), "a line is too long to be read");
    let config = script.split("<<EOF\n").nth(1).unwrap().split("\nEOF\n").next().unwrap();
    let config = config.replace("$PWD", "/home/you/.holdpoint").replace("$HOME", "/home/you");
    let config = Config::parse(config.as_bytes()).unwrap();
    let server = &config.servers[0];
    assert_eq!((config.servers.len(), server.rules.len()), (1, 3));
    // What starts it is found whoever starts the proxy, and only the operator writes what it reads.
    assert!(server.command[1..].iter().all(|argument| argument.starts_with('/')), "{:?}", server.command);
    assert!(script.contains("chmod 600 holdpoint.json"));
}

#[test]
fn the_server_of_the_quick_start_is_the_one_that_the_ring_runs() {
    const PACKAGE: &str = "@modelcontextprotocol/server-filesystem";
    let ring = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/ring/npm/package.json");
    let ring: serde_json::Value = serde_json::from_slice(&std::fs::read(ring).unwrap()).unwrap();
    let version = ring["dependencies"][PACKAGE].as_str().unwrap();
    let install = format!("npm install --ignore-scripts {PACKAGE}@{version}\n");
    assert!(
        block("sh").contains(&install),
        "the README installs it by version, and runs no script of it: {install}"
    );
}

#[test]
fn the_hosts_snippet_is_json_and_names_both_files_in_full() {
    let snippet: serde_json::Value = serde_json::from_str(&block("json")).unwrap();
    let server = &snippet["mcpServers"]["gated"];
    assert!(server["command"].as_str().unwrap().starts_with('/'));
    assert_eq!((&server["args"][0], &server["args"][1]), (&"proxy".into(), &"--config".into()));
    assert!(server["args"][2].as_str().unwrap().starts_with('/'));
}

#[test]
fn the_first_tool_is_an_example_word_for_word_and_takes_less_than_thirty_lines() {
    let folder = env!("CARGO_MANIFEST_DIR");
    let readme = std::fs::read_to_string(format!("{folder}/README.md")).unwrap();
    let example = std::fs::read_to_string(format!("{folder}/examples/first_tool.rs")).unwrap();
    let (_, shown) = readme.split_once("```rust\n").unwrap();
    let (shown, _) = shown.split_once("```").unwrap();
    // What the tree's own lints want is not the reader's.
    let (_, example) = example.split_once("\n\n").unwrap();
    assert_eq!(shown, example);
    assert!(shown.lines().count() < 30, "it has {} lines", shown.lines().count());
}
