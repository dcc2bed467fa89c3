//! The golden values of canonical JSON, the event chain and the approval hash, as files.

use holdpoint_core::chain::{ChainedEvent, Verifier, link};
use holdpoint_core::hash::{content_hash, content_hash_of};
use holdpoint_core::json::{canonical, canonical_trusted, check, policy_form};
use serde::Deserialize;

#[derive(Deserialize)]
struct CanonicalFile {
    vectors: Vec<CanonicalVector>,
    refused: Vec<Refused>,
    accepted_by_the_boundary_check: Vec<Accepted>,
}

#[derive(Deserialize)]
struct CanonicalVector {
    input: String,
    canonical: String,
    policy_form: String,
    sha256: String,
}

#[derive(Deserialize)]
struct Refused {
    input: String,
    reason: String,
}

#[derive(Deserialize)]
struct Accepted {
    input: String,
}

#[derive(Deserialize)]
struct ChainFile {
    events: Vec<ChainVector>,
}

#[derive(Deserialize)]
struct ChainVector {
    previous: String,
    seq: i64,
    run_id: String,
    step_id: String,
    at: String,
    r#type: String,
    payload_json: String,
    hash: String,
}

impl ChainVector {
    fn event(&self) -> ChainedEvent<'_> {
        ChainedEvent {
            seq: self.seq,
            run_id: &self.run_id,
            step_id: &self.step_id,
            at: &self.at,
            kind: &self.r#type,
            payload_json: &self.payload_json,
        }
    }
}

#[derive(Deserialize)]
struct ApprovalFile {
    approval: HashVector,
    spec: HashVector,
}

#[derive(Deserialize)]
struct HashVector {
    input: Option<String>,
    canonical: String,
    sha256: String,
}

fn canonical_file() -> CanonicalFile {
    serde_json::from_str(include_str!("vectors/canonical-json.json")).expect("the file has this shape")
}

#[test]
fn each_document_has_its_canonical_form_its_policy_form_and_its_hash() {
    let vectors = canonical_file().vectors;
    assert!(!vectors.is_empty());
    for vector in vectors {
        assert_eq!(canonical(&vector.input).as_deref(), Ok(&*vector.canonical));
        assert_eq!(policy_form(&vector.input).as_deref(), Ok(&*vector.policy_form));
        assert_eq!(content_hash_of(&vector.input), vector.sha256, "{}", vector.input);
        assert_eq!(content_hash(&vector.canonical), vector.sha256, "{}", vector.input);
        assert_eq!(policy_form(&vector.canonical).as_deref(), Ok(&*vector.policy_form));
    }
}

#[test]
fn each_refused_document_is_refused_for_its_reason() {
    for refused in canonical_file().refused {
        let error = check(refused.input.as_bytes()).unwrap_err().to_string();
        // The file's reasons are words about the rule; these are ours for it.
        let ours = match refused.reason.as_str() {
            reason if reason.starts_with("repeated key") => "duplicate key",
            "unpaired surrogate" => "unpaired surrogate",
            "trailing data" | "not one value" | "not JSON" => "not one well-formed JSON value",
            // In a container the number is already beyond a float, which is the earlier rule.
            "exponent" if refused.input.starts_with('[') => "beyond the range",
            "exponent" => "exponent beyond",
            "nested deeper than 256 levels" => "nested deeper than 256 levels",
            "number longer than 10,000" => "longer than 10000 bytes",
            reason => panic!("a reason that is new: {reason}"),
        };
        assert!(error.contains(ours), "{} gave {error}", refused.reason);
    }
}

#[test]
fn each_accepted_document_is_accepted() {
    for accepted in canonical_file().accepted_by_the_boundary_check {
        assert_eq!(check(accepted.input.as_bytes()), Ok(()));
    }
}

#[test]
fn each_event_has_its_link_and_the_chain_verifies() {
    let file: ChainFile = serde_json::from_str(include_str!("vectors/event-chain.json")).unwrap();
    let mut verifier = Verifier::new(1, None);
    for vector in &file.events {
        assert_eq!(link(&vector.previous, &vector.event()), vector.hash);
        verifier.next(&vector.event(), &vector.hash).unwrap();
    }
    let report = verifier.finish();
    assert_eq!((report.from, report.to, report.checked), (1, 3, 3));
}

#[test]
fn approvals_and_specifications_have_their_hashes() {
    let file: ApprovalFile = serde_json::from_str(include_str!("vectors/approval-hash.json")).unwrap();
    for vector in [file.approval, file.spec] {
        let input = vector.input.as_deref().unwrap_or(&vector.canonical);
        assert_eq!(canonical_trusted(input), vector.canonical);
        assert_eq!(content_hash_of(input), vector.sha256);
    }
}
