//! A result file: what one run of a harness tried, how each trial was scored, and the sums that follow from that.
//!
//! Owns the format, which is the reference's, byte for byte. A file is refused rather than repaired: what is wrong in it may
//! be its numbers.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

use holdpoint_core::time::UnixNanos;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::value::RawValue;

use super::summary::{Summary, summaries};
use super::taxonomy::{Taxonomy, TaxonomyError};

/// Names the version of the format. No other is read.
pub const FORMAT: &str = "agent-runtime/bench/v1";

/// The longest file that is read: a million trials are shorter.
const FILE_BYTES_MAX: u64 = 512 << 20;

/// JSON that is carried as it is written.
pub(super) type Raw = BTreeMap<String, Box<RawValue>>;

/// One run of one scenario in one mode.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Trial {
    /// The scenario.
    pub scenario: String,
    /// Who tried: a baseline, a script, a model.
    pub mode: String,
    /// The model, where there is one.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub model: String,
    /// Which repetition it is, from 1.
    pub repeat: i64,
    /// The run in the record.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub run_id: String,
    /// The kind of answer that the scenario expects; what an outcome's `over` refers to.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub expect: String,
    /// The state that it ended in, in the harness's words and before it was scored.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub reached: String,
    /// The outcome's name; empty only where it was excluded.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub outcome: String,
    /// Why it was not judged. Such a trial is in no denominator.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub excluded: String,
    /// Steps.
    pub steps: i64,
    /// Tool calls.
    pub tool_calls: i64,
    /// Calls that the policy denied.
    pub policy_denials: i64,
    /// Model attempts.
    pub model_calls: i64,
    /// Tokens read.
    pub input_tokens: i64,
    /// Tokens written.
    pub output_tokens: i64,
    /// Millionths of a unit of money.
    pub cost_micros: i64,
    /// Nanoseconds that it took.
    pub wall_ns: i64,
    /// What went wrong.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub error: String,
    /// Remarks.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
    /// What this harness records beside, as JSON that is kept as it is. Whole numbers are summed up.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub extra: Raw,
}

impl Trial {
    /// A trial with an outcome; what it cost is zero until it is set.
    pub fn judged(
        scenario: impl Into<String>,
        mode: impl Into<String>,
        repeat: i64,
        outcome: impl Into<String>,
    ) -> Trial {
        let (scenario, mode, outcome) = (scenario.into(), mode.into(), outcome.into());
        Trial { scenario, mode, repeat, outcome, ..Trial::default() }
    }

    /// A trial that was not judged, and why.
    pub fn excluded(
        scenario: impl Into<String>,
        mode: impl Into<String>,
        repeat: i64,
        why: impl Into<String>,
    ) -> Trial {
        let (scenario, mode, excluded) = (scenario.into(), mode.into(), why.into());
        Trial { scenario, mode, repeat, excluded, ..Trial::default() }
    }

    pub(super) fn is_judged(&self) -> bool {
        !self.outcome.is_empty()
    }

    /// What must not be below zero.
    fn counts(&self) -> [i64; 8] {
        [
            self.steps,
            self.tool_calls,
            self.policy_denials,
            self.model_calls,
            self.input_tokens,
            self.output_tokens,
            self.cost_micros,
            self.wall_ns,
        ]
    }
}

/// One result file.
#[derive(Debug, Clone)]
pub struct ResultFile {
    /// The commit of the harness, empty when it is not known. All files without one share one unknown commit.
    pub commit: String,
    /// When it began.
    pub started_at: UnixNanos,
    /// The harness's settings.
    pub options: Raw,
    /// The outcomes.
    pub taxonomy: Taxonomy,
    /// The trials.
    pub trials: Vec<Trial>,
    /// Remarks about the whole.
    pub notes: Vec<String>,
    /// The name that it was read from; not a part of the file.
    pub source: String,
    /// The time as it was written, where it was read: an offset that somebody chose is kept.
    pub(super) written_time: Option<(UnixNanos, String)>,
}

/// Why a file is not one.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    /// Its outcomes can't be used.
    #[error(transparent)]
    Taxonomy(#[from] TaxonomyError),
    /// It is no JSON of this shape, or something follows it.
    #[error("it is no result file: {0}")]
    Shape(#[source] serde_json::Error),
    /// It is in another format.
    #[error("its format is {0:?}, and only {FORMAT:?} is read")]
    Format(String),
    /// A trial breaks a rule.
    #[error("trial {place} ({scenario}, {mode}, repeat {repeat}): {problem}")]
    Trial {
        /// Its place, from zero.
        place: usize,
        /// Its scenario.
        scenario: String,
        /// Its mode.
        mode: String,
        /// Its repetition.
        repeat: i64,
        /// What is wrong.
        problem: String,
    },
    /// Its summaries are not what its trials give.
    #[error("its summaries do not follow from its trials")]
    Summaries,
}

/// Why files were not read.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// The operating system refused.
    #[error("read {}: {source}", path.display())]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// It is longer than any such file.
    #[error("read {}: it is longer than {} MiB", .0.display(), FILE_BYTES_MAX >> 20)]
    TooLong(PathBuf),
    /// It is not one.
    #[error("read {}: {error}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        error: FileError,
    },
}

/// A file as it is written and read.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Written {
    format: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    commit: String,
    started_at: Time,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    options: Raw,
    taxonomy: Taxonomy,
    #[serde(deserialize_with = "list_or_null")]
    trials: Vec<Trial>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    notes: Vec<String>,
    #[serde(deserialize_with = "list_or_null")]
    summaries: Vec<Summary>,
}

/// A moment, and how it is written.
#[derive(Debug, Clone)]
struct Time {
    at: UnixNanos,
    text: String,
}

impl Serialize for Time {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.text)
    }
}

impl<'de> Deserialize<'de> for Time {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Time, D::Error> {
        let text = String::deserialize(deserializer)?;
        let at =
            UnixNanos::parse(&text).map_err(|error| D::Error::custom(format!("a start time: {error}")))?;
        Ok(Time { at, text })
    }
}

/// The reference writes a list that was never begun as `null`.
fn list_or_null<'de, D: Deserializer<'de>, T: Deserialize<'de>>(deserializer: D) -> Result<Vec<T>, D::Error> {
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}

impl ResultFile {
    /// A file without trials yet.
    pub fn new(taxonomy: Taxonomy, started_at: UnixNanos) -> ResultFile {
        ResultFile {
            commit: String::new(),
            started_at,
            options: Raw::new(),
            taxonomy,
            trials: Vec::new(),
            notes: Vec::new(),
            source: String::new(),
            written_time: None,
        }
    }

    /// The sums of each mode and model, in the order in which they first appear.
    pub fn summaries(&self) -> Vec<Summary> {
        summaries(self)
    }

    /// Writes the file, with the summaries that its trials give. It ends with a line feed.
    ///
    /// # Errors
    /// When it breaks a rule of the format.
    pub fn encode(&self) -> Result<String, FileError> {
        self.validate()?;
        let text = match &self.written_time {
            Some((at, text)) if *at == self.started_at => text.clone(),
            Some(_) | None => self.started_at.to_rfc3339(),
        };
        let written = Written {
            format: FORMAT.to_owned(),
            commit: self.commit.clone(),
            started_at: Time { at: self.started_at, text },
            options: self.options.clone(),
            taxonomy: self.taxonomy.clone(),
            trials: self.trials.clone(),
            notes: self.notes.clone(),
            summaries: self.summaries(),
        };
        let json = serde_json::to_string_pretty(&written).map_err(FileError::Shape)?;
        Ok(escape_html(&json) + "\n")
    }

    /// Reads a file, and refuses one that [`ResultFile::encode`] would not have written: another format, a field that is not
    /// known, something behind it, a broken rule, or summaries that its trials do not give.
    ///
    /// # Errors
    /// The first thing that is wrong.
    pub fn decode(bytes: &[u8]) -> Result<ResultFile, FileError> {
        // The format is looked at first: one that is not known may have any fields.
        #[derive(Deserialize)]
        struct Head {
            format: String,
        }
        let head: Head = serde_json::from_slice(bytes).map_err(FileError::Shape)?;
        if head.format != FORMAT {
            return Err(FileError::Format(head.format));
        }
        let written: Written = serde_json::from_slice(bytes).map_err(FileError::Shape)?;
        let file = ResultFile {
            commit: written.commit,
            started_at: written.started_at.at,
            options: written.options,
            taxonomy: written.taxonomy,
            trials: written.trials,
            notes: written.notes,
            source: String::new(),
            written_time: Some((written.started_at.at, written.started_at.text)),
        };
        file.validate()?;
        if file.summaries() == written.summaries { Ok(file) } else { Err(FileError::Summaries) }
    }

    /// Reads a file from the disk, and names it after that.
    ///
    /// # Errors
    /// When it can't be read or is no result file.
    pub fn read(path: &Path) -> Result<ResultFile, ReadError> {
        let failed = |source| ReadError::Io { path: path.to_owned(), source };
        let mut bytes = Vec::new();
        fs::File::open(path)
            .map_err(failed)?
            .take(FILE_BYTES_MAX + 1)
            .read_to_end(&mut bytes)
            .map_err(failed)?;
        if u64::try_from(bytes.len()).unwrap_or(u64::MAX) > FILE_BYTES_MAX {
            return Err(ReadError::TooLong(path.to_owned()));
        }
        let mut file =
            ResultFile::decode(&bytes).map_err(|error| ReadError::File { path: path.to_owned(), error })?;
        file.source = path.file_name().unwrap_or(path.as_os_str()).to_string_lossy().into_owned();
        Ok(file)
    }

    fn validate(&self) -> Result<(), FileError> {
        self.taxonomy.validate()?;
        let mut seen = BTreeSet::new();
        for (place, trial) in self.trials.iter().enumerate() {
            let wrong = |problem: String| {
                let (scenario, mode) = (trial.scenario.clone(), trial.mode.clone());
                Err(FileError::Trial { place, scenario, mode, repeat: trial.repeat, problem })
            };
            if trial.scenario.is_empty() || trial.mode.is_empty() || trial.repeat < 1 {
                return wrong("it needs a scenario, a mode, and a repeat from 1 on".to_owned());
            }
            if !seen.insert((&trial.scenario, &trial.mode, &trial.model, trial.repeat)) {
                return wrong("it is recorded twice".to_owned());
            }
            match (trial.is_judged(), !trial.excluded.is_empty()) {
                (true, true) => return wrong("it has an outcome and is excluded".to_owned()),
                (false, false) => return wrong("it has no outcome and is not excluded".to_owned()),
                (true, false) if self.taxonomy.outcome(&trial.outcome).is_none() => {
                    let (outcome, taxonomy) = (&trial.outcome, &self.taxonomy.name);
                    return wrong(format!("its outcome {outcome} is none of taxonomy {taxonomy}"));
                }
                (true, false) | (false, true) => {}
            }
            if trial.counts().iter().any(|count| *count < 0) {
                return wrong("one of its counts is below zero".to_owned());
            }
        }
        Ok(())
    }
}

/// Reads every `.json` file of a folder, in the order of their names.
///
/// # Errors
/// The first file that can't be read or is no result file.
pub fn read_folder(folder: &Path) -> Result<Vec<ResultFile>, ReadError> {
    let failed = |source| ReadError::Io { path: folder.to_owned(), source };
    let mut paths = Vec::new();
    for entry in fs::read_dir(folder).map_err(failed)? {
        let path = entry.map_err(failed)?.path();
        if path.extension().is_some_and(|ending| ending == "json") && !path.is_dir() {
            paths.push(path);
        }
    }
    paths.sort();
    paths.iter().map(|path| ResultFile::read(path)).collect()
}

/// Writes what HTML reads, and two line ends of JavaScript, as the reference does. In JSON they stand inside strings only.
fn escape_html(json: &str) -> String {
    let mut out = String::with_capacity(json.len());
    for c in json.chars() {
        match c {
            '<' | '>' | '&' | '\u{2028}' | '\u{2029}' => out.push_str(&format!("\\u{:04x}", u32::from(c))),
            _ => out.push(c),
        }
    }
    out
}
