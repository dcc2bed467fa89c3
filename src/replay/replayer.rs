//! A model that is served from recordings.
//!
//! Owns the count of what it has served. Never reaches a provider, and never makes an answer up.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::{fs, io};

use async_trait::async_trait;
use holdpoint_actors::model::{Model, ModelError};
use holdpoint_core::model::{ModelRequest, ModelResponse};

use super::{files, key};

/// How much of a key an error names: enough to find the file.
const KEY_SHOWN: usize = 12;

/// Serves recorded answers. Identical requests get them in the order in which they were recorded.
///
/// A request that was made more often than it was recorded has no answer: the session has left the recorded one.
#[derive(Debug, Clone)]
pub struct Replayer {
    name: String,
    served: Arc<Served>,
}

#[derive(Debug)]
struct Served {
    folder: PathBuf,
    /// How many answers of each key were served.
    counts: Mutex<BTreeMap<String, u64>>,
}

/// Why a request has no recorded answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ReplayError {
    /// There is no recording for it, or none left.
    #[error("replay: nothing is recorded for this request (key {key}){}", past_the_first(*.recorded, *.requested))]
    NotRecorded {
        /// The first twelve digits of its key.
        key: String,
        /// How many answers to it were recorded.
        recorded: u64,
        /// The how manieth request this is, from one.
        requested: u64,
    },
    /// There is a file in its place, and it can't be read as a recording.
    #[error("replay: {} can't be read as a recording: {why}", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// Why.
        why: String,
    },
}

fn past_the_first(recorded: u64, requested: u64) -> String {
    if recorded == 0 { String::new() } else { format!(": recorded {recorded} times, requested {requested}") }
}

impl From<ReplayError> for ModelError {
    fn from(error: ReplayError) -> ModelError {
        ModelError::Permanent { why: error.to_string() }
    }
}

impl Replayer {
    /// Serves what the model `name` answered, from `folder`.
    pub fn new(name: impl Into<String>, folder: impl Into<PathBuf>) -> Replayer {
        let served = Served { folder: folder.into(), counts: Mutex::default() };
        Replayer { name: name.into(), served: Arc::new(served) }
    }

    /// Serves the next recorded answer to `request`. Reads one file, so it blocks for that long.
    ///
    /// # Errors
    /// When there is none, or it can't be read. Neither counts as served.
    pub fn serve(&self, request: &ModelRequest) -> Result<ModelResponse, ReplayError> {
        let key = key(&self.name, request);
        let mut counts = self.served.counts.lock().unwrap_or_else(PoisonError::into_inner);
        let recorded = counts.get(&key).copied().unwrap_or(0);
        let path = files::path(&self.served.folder, &key, recorded + 1);
        let text = match fs::read_to_string(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let key = key[..KEY_SHOWN].to_owned();
                return Err(ReplayError::NotRecorded { key, recorded, requested: recorded + 1 });
            }
            Err(error) => return Err(ReplayError::Unreadable { path, why: error.to_string() }),
        };
        let response = files::response(&text)
            .map_err(|error| ReplayError::Unreadable { path, why: error.to_string() })?;
        counts.insert(key, recorded + 1);
        Ok(response)
    }
}

#[async_trait]
impl Model for Replayer {
    fn name(&self) -> &str {
        &self.name
    }

    /// Serves as [`Replayer::serve`] does.
    ///
    /// # Errors
    /// [`ModelError::Permanent`] with the text of the [`ReplayError`].
    async fn generate(&self, request: &ModelRequest) -> Result<ModelResponse, ModelError> {
        let (replayer, asked) = (self.clone(), request.clone());
        match tokio::task::spawn_blocking(move || replayer.serve(&asked)).await {
            Ok(served) => Ok(served?),
            Err(panic) => Err(ModelError::Permanent { why: format!("replay: {panic}") }),
        }
    }
}
