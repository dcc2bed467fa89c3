//! stub
#![allow(missing_docs, clippy::all, dead_code, unused_variables, missing_debug_implementations)]
use crate::address::Address;
use holdpoint_core::{
    approval::*, attempt::Ending, event::Event, ids::*, run::*, step::*, time::UnixNanos, transition::*,
};
use ractor::{Actor, ActorProcessingErr, ActorRef};
use std::path::Path;
use std::time::{Duration, Instant};
#[derive(Debug)]
pub enum Msg {
    X,
}
#[derive(Debug, Clone, Copy)]
pub struct StoreWriter;
#[derive(Debug, Clone, Default)]
pub struct Options;
#[derive(Debug, Clone)]
pub struct Arguments;
#[derive(Debug, thiserror::Error)]
#[error("x")]
pub struct OpenError;
impl Arguments {
    pub fn open(p: &Path, o: Options) -> Result<Self, OpenError> {
        unimplemented!()
    }
}
#[derive(Debug, Clone, serde::Serialize)]
pub struct Observation {}
impl Actor for StoreWriter {
    type Msg = Msg;
    type State = ();
    type Arguments = Arguments;
    async fn pre_start(&self, _: ActorRef<Msg>, _: Arguments) -> Result<(), ActorProcessingErr> {
        Ok(())
    }
}
#[derive(Debug, Clone)]
pub struct StoreClient;
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lane {
    Intent,
    Outcome,
}
#[derive(Debug)]
pub struct CallPermit;
#[derive(Debug, thiserror::Error)]
#[error("x")]
pub struct Unavailable;
#[derive(Debug, thiserror::Error)]
#[error("x")]
pub struct NotApplied;
#[derive(Debug, thiserror::Error)]
#[error("x")]
pub struct ReadError;
#[derive(Debug, thiserror::Error)]
#[error("x")]
pub enum ApplyError {
    Refused(Refusal),
    NotApplied(NotApplied),
    InDoubt,
}
#[derive(Debug)]
pub struct Applied {
    pub events: Vec<Event>,
    pub lease_expires_at: Option<UnixNanos>,
    pub stamped_at: Instant,
    pub durability: Durability,
}
pub struct Reader;
impl Reader {
    pub fn run(&self, _: &RunId) -> Result<Option<Run>, ReadError> {
        todo!()
    }
    pub fn lease(&self, _: &RunId) -> Result<Option<Lease>, ReadError> {
        todo!()
    }
    pub fn steps(&self, _: &RunId) -> Result<Vec<Step>, ReadError> {
        todo!()
    }
    pub fn approvals(&self, _: &RunId) -> Result<Vec<Approval>, ReadError> {
        todo!()
    }
    pub fn approval(&self, _: &RunId, _: &ApprovalId) -> Result<Option<Approval>, ReadError> {
        todo!()
    }
    pub fn ending(&self, _: &StepId) -> Result<Option<Ending>, ReadError> {
        todo!()
    }
}
impl StoreClient {
    pub fn new(a: Address<Msg>, w: &Arguments) -> Result<Self, OpenError> {
        todo!()
    }
    pub async fn admit(&self) -> Result<CallPermit, Unavailable> {
        todo!()
    }
    pub async fn apply(&self, l: Lane, t: Transition) -> Result<Applied, ApplyError> {
        todo!()
    }
    pub async fn settle(&self, p: &Probe) -> Result<bool, ReadError> {
        todo!()
    }
    pub async fn observe(&self, d: Duration) -> Option<Observation> {
        todo!()
    }
    pub async fn read<T: Send + 'static>(
        &self,
        f: impl FnOnce(&Reader) -> Result<T, ReadError> + Send + 'static,
    ) -> Result<T, ReadError> {
        todo!()
    }
}
