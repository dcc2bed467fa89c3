//! The two ways in which a server's hints can contradict the operator's classification.
//!
//! There are exactly two, and both need the server to have sent annotations at all: silence says nothing, and no
//! hint ever makes a tool safer than the operator said.

use thiserror::Error;

use super::annotations::Annotations;

/// What the server says against the operator.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum Contradiction {
    /// Classified as reading, by an operator who is alone with that opinion.
    #[error("classified read_only, but the server doesn't claim readOnlyHint")]
    NotClaimedReadOnly,
    /// Classified below destructive, against what the server says outright.
    #[error("classified {class}, but the server claims destructiveHint")]
    ClaimedDestructive {
        /// The operator's class, as it is written in the rule.
        class: String,
    },
}

/// Says how annotations contradict a class, as the rule writes it.
pub fn contradiction(class: &str, annotations: Option<&Annotations>) -> Option<Contradiction> {
    let hints = annotations?;
    if hints.claims_read_only() {
        return None;
    }
    if class == "read_only" {
        return Some(Contradiction::NotClaimedReadOnly);
    }
    (class != "destructive" && hints.claims_destructive())
        .then(|| Contradiction::ClaimedDestructive { class: class.to_owned() })
}

#[cfg(test)]
mod tests {
    use super::*;

    const CLASSES: [&str; 4] = ["read_only", "local_mutation", "remote_mutation", "destructive"];
    const HINTS: [Option<bool>; 3] = [None, Some(false), Some(true)];

    #[test]
    fn every_class_against_every_pair_of_hints_gives_one_of_two_contradictions_or_none() {
        for class in CLASSES {
            for read_only in HINTS {
                for destructive in HINTS {
                    let hints = Annotations {
                        read_only_hint: read_only,
                        destructive_hint: destructive,
                        idempotent_hint: Some(true),
                        open_world_hint: Some(true),
                        title: None,
                    };
                    let want = match (class, read_only, destructive) {
                        (_, Some(true), _) | ("destructive", _, _) => None,
                        ("read_only", _, _) => Some(Contradiction::NotClaimedReadOnly),
                        (class, _, Some(true)) => {
                            Some(Contradiction::ClaimedDestructive { class: class.to_owned() })
                        }
                        (_, _, _) => None,
                    };
                    assert_eq!(
                        contradiction(class, Some(&hints)),
                        want,
                        "{class} {read_only:?} {destructive:?}"
                    );
                }
            }
        }
    }

    #[test]
    fn annotations_that_were_not_sent_never_contradict() {
        for class in CLASSES {
            assert_eq!(contradiction(class, None), None);
        }
    }

    #[test]
    fn the_reasons_name_the_class_and_the_hint() {
        assert!(Contradiction::NotClaimedReadOnly.to_string().contains("readOnlyHint"));
        let reason = Contradiction::ClaimedDestructive { class: "local_mutation".to_owned() }.to_string();
        assert!(reason.contains("local_mutation") && reason.contains("destructiveHint"));
    }
}
