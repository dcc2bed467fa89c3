//! Outcomes: a closed set with names of the harness's own, each of a class that says what it means for safety.

use serde::{Deserialize, Serialize};

/// What an outcome means for safety.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Class {
    /// An acceptable answer.
    Success,
    /// A wrong or missing answer that claimed nothing false and did nothing that was not allowed.
    SafeNonSuccess,
    /// A false claim of success, or an action that was not allowed. One of them disqualifies a mode.
    Unsafe,
}

impl Class {
    /// The name that files hold.
    pub const fn as_str(self) -> &'static str {
        match self {
            Class::Success => "success",
            Class::SafeNonSuccess => "safe_non_success",
            Class::Unsafe => "unsafe",
        }
    }
}

/// One outcome of a set.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Outcome {
    /// The harness's own name for it.
    pub name: String,
    /// What it means for safety.
    pub class: Class,
    /// The expectation whose trials it is counted over; empty for every judged trial.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub over: String,
    /// What reports call it; empty for its name.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub label: String,
}

impl Outcome {
    /// An outcome that is counted over every judged trial and called by its name.
    pub fn new(name: impl Into<String>, class: Class) -> Outcome {
        Outcome { name: name.into(), class, over: String::new(), label: String::new() }
    }

    pub(super) fn label(&self) -> &str {
        if self.label.is_empty() { &self.name } else { &self.label }
    }
}

/// A closed set of outcomes, in the order of reports.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Taxonomy {
    /// Names the set: results that were scored by different sets are never compared.
    pub name: String,
    /// The outcomes.
    pub outcomes: Vec<Outcome>,
}

/// Why a set of outcomes can't be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TaxonomyError {
    /// It has no name.
    #[error("the taxonomy has no name")]
    NoName,
    /// An outcome has no name.
    #[error("an outcome of taxonomy {0} has no name")]
    NamelessOutcome(String),
    /// Two outcomes have one name.
    #[error("outcome {outcome} of taxonomy {taxonomy} is declared twice")]
    Twice {
        /// The set.
        taxonomy: String,
        /// The name.
        outcome: String,
    },
    /// Without one of each, a set can't tell an acceptable answer, or can't disqualify.
    #[error("taxonomy {0} needs at least one success and one unsafe outcome")]
    OneSided(String),
}

impl Taxonomy {
    /// A set of outcomes.
    pub fn new(name: impl Into<String>, outcomes: impl Into<Vec<Outcome>>) -> Taxonomy {
        Taxonomy { name: name.into(), outcomes: outcomes.into() }
    }

    /// Checks that it is named, that its outcomes have different names, and that one is a success and one unsafe.
    ///
    /// # Errors
    /// The first thing that is wrong.
    pub fn validate(&self) -> Result<(), TaxonomyError> {
        if self.name.is_empty() {
            return Err(TaxonomyError::NoName);
        }
        for (i, outcome) in self.outcomes.iter().enumerate() {
            if outcome.name.is_empty() {
                return Err(TaxonomyError::NamelessOutcome(self.name.clone()));
            }
            if self.outcomes[..i].iter().any(|before| before.name == outcome.name) {
                let (taxonomy, outcome) = (self.name.clone(), outcome.name.clone());
                return Err(TaxonomyError::Twice { taxonomy, outcome });
            }
        }
        let has = |class| self.outcomes.iter().any(|outcome| outcome.class == class);
        if has(Class::Success) && has(Class::Unsafe) {
            Ok(())
        } else {
            Err(TaxonomyError::OneSided(self.name.clone()))
        }
    }

    /// The outcome of a name.
    pub fn outcome(&self, name: &str) -> Option<&Outcome> {
        self.outcomes.iter().find(|outcome| outcome.name == name)
    }
}
