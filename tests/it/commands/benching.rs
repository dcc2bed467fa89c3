//! `bench` as a process: files and folders in, Markdown or sums out, and what is refused.

use std::fs;
use std::path::Path;

use holdpoint::bench::{Class, Outcome, ResultFile, Taxonomy, Trial, UnixNanos};

use super::{HOSTILE, Ran, assert_harmless, bare};

fn write(folder: &Path, name: &str, commit: &str, mode: &str, outcome: &str) {
    let outcomes = [Outcome::new("good", Class::Success), Outcome::new("bad", Class::Unsafe)];
    let started = UnixNanos::parse("2026-10-01T09:00:00Z").unwrap();
    let mut file = ResultFile::new(Taxonomy::new("t", outcomes), started);
    file.commit = commit.to_owned();
    file.trials.push(Trial { reached: HOSTILE.to_owned(), ..Trial::judged("S1", mode, 1, outcome) });
    fs::write(folder.join(name), file.encode().unwrap()).unwrap();
}

fn run(line: &str) -> Ran {
    Ran::of(&mut bare(line))
}

#[test]
fn results_are_told_and_compared_and_nothing_in_them_reaches_the_terminal_as_it_is() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().display();
    write(folder.path(), "a.json", "c1", "scripted", "good");
    write(folder.path(), "b.json", "c1", "live", "bad");
    let told = run(&format!("bench summarize {path}/a.json {path}"));
    assert_eq!((told.status, told.err.as_str()), (0, ""));
    assert_eq!(told.out.matches("# Results: t").count(), 3, "{}", told.out);
    assert!(told.out.contains("**Disqualified: 1 unsafe.**"), "{}", told.out);
    assert_harmless(&told.out);
    let compared = run(&format!("bench compare {path} --order scripted --link-prefix results/"));
    assert_eq!((compared.status, compared.err.as_str()), (0, ""));
    let (first, second) =
        (compared.out.find("| scripted |").unwrap(), compared.out.find("| live (disqualified) |").unwrap());
    assert!(first < second && compared.out.contains("[b.json](results/b.json)"), "{}", compared.out);
    assert_harmless(&compared.out);
    let sums = run(&format!("--json bench summarize {path}/b.json"));
    let sums: serde_json::Value = serde_json::from_str(&sums.out).unwrap();
    assert_eq!((&sums[0]["file"], &sums[0]["summaries"][0]["unsafe"]), (&"b.json".into(), &1.into()));
}

#[test]
fn what_is_not_comparable_or_no_result_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().display();
    write(folder.path(), "a.json", "c1", "scripted", "good");
    write(folder.path(), "b.json", "c2", "live", "good");
    let mixed = run(&format!("bench compare {path}"));
    assert_eq!((mixed.status, mixed.code(), mixed.out.as_str()), (1, "bench.not_comparable", ""));
    assert!(mixed.err.contains("c1, c2"), "{}", mixed.err);
    let allowed = run(&format!("bench compare {path} --allow-mixed-commits"));
    assert!(
        allowed.status == 0 && allowed.out.starts_with("**These columns are of 2 commits"),
        "{}",
        allowed.out
    );
    let empty = tempfile::tempdir().unwrap();
    assert_eq!(run(&format!("bench compare {}", empty.path().display())).code(), "bench.not_comparable");
    fs::write(folder.path().join("c.json"), "{}").unwrap();
    let broken = run(&format!("bench summarize {path}"));
    assert_eq!((broken.status, broken.code(), broken.out.as_str()), (1, "bench.file", ""));
    assert!(broken.err.contains("c.json"), "{}", broken.err);
    assert_eq!(run("bench summarize no/such/file.json").code(), "bench.file");
    for line in ["bench", "bench summarize", "--json bench compare x", "--db a.db bench summarize x"] {
        assert_eq!(run(line).status, 2, "{line}");
    }
}
