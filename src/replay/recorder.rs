//! A model whose answers are kept.
//!
//! Owns the count of each key in its session. Never keeps a failure, and never changes what the model answered.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use async_trait::async_trait;
use holdpoint_actors::model::{Model, ModelError};
use holdpoint_core::model::{ModelRequest, ModelResponse};

use super::{files, key};

/// Passes requests on to a model and records every exchange that succeeds.
///
/// Identical requests are recorded in sequence. The first of them in this recorder's life replaces whatever an earlier
/// recorder left under their key. Two recorders must not share a folder at the same time.
pub struct Recorder {
    inner: Arc<dyn Model>,
    kept: Arc<Kept>,
}

struct Kept {
    folder: PathBuf,
    /// How many exchanges of each key this recorder has recorded.
    counts: Mutex<BTreeMap<String, u64>>,
}

impl Recorder {
    /// Records what `inner` answers into `folder`, which is made when it is missing.
    pub fn new(inner: Arc<dyn Model>, folder: impl Into<PathBuf>) -> Recorder {
        let kept = Kept { folder: folder.into(), counts: Mutex::default() };
        Recorder { inner, kept: Arc::new(kept) }
    }
}

impl fmt::Debug for Recorder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Recorder")
            .field("model", &self.inner.name())
            .field("folder", &self.kept.folder)
            .finish()
    }
}

impl Kept {
    fn put(&self, model: &str, request: &ModelRequest, response: &ModelResponse) -> std::io::Result<()> {
        let key = key(model, request);
        let text = files::text(model, request, response);
        // Held while the file is written: a sequence has no gaps and is replaced by one writer.
        let mut counts = self.counts.lock().unwrap_or_else(PoisonError::into_inner);
        let n = counts.get(&key).map_or(1, |count| count + 1);
        files::put(&self.folder, &key, n, &text)?;
        counts.insert(key, n);
        Ok(())
    }
}

#[async_trait]
impl Model for Recorder {
    fn name(&self) -> &str {
        self.inner.name()
    }

    /// Gives what the model answers, once it is on the disk.
    ///
    /// # Errors
    /// The model's own; and [`ModelError::Served`] when its answer can't be recorded, since it was billed.
    async fn generate(&self, request: &ModelRequest) -> Result<ModelResponse, ModelError> {
        let response = self.inner.generate(request).await?;
        let (kept, name) = (Arc::clone(&self.kept), self.inner.name().to_owned());
        let (asked, answered) = (request.clone(), response.clone());
        let written = tokio::task::spawn_blocking(move || kept.put(&name, &asked, &answered)).await;
        match written {
            Ok(Ok(())) => Ok(response),
            Ok(Err(problem)) => Err(self.unrecorded(&response, &problem)),
            Err(panic) => Err(self.unrecorded(&response, &panic)),
        }
    }
}

impl Recorder {
    fn unrecorded(&self, response: &ModelResponse, why: &dyn fmt::Display) -> ModelError {
        let why =
            format!("{}: the answer can't be recorded in {}: {why}", self.name(), self.kept.folder.display());
        ModelError::Served { usage: response.usage, why }
    }
}
