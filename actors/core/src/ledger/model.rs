//! The two transitions of an attempt to ask a model: it is dispatched, and its outcome is recorded.
//!
//! Owns what each needs: a dispatch is an effect, so it needs a live lease and is synced before the request leaves; an
//! outcome needs nothing, because what was spent was spent.

use std::sync::Arc;

use crate::accounting::ModelCall;
use crate::event::NewEvent;
use crate::ids::LeaseOwner;
use crate::transition::{Durability, Guard, ModelCallWrite, Transition};

/// Records that a model is about to be asked (T10).
pub fn dispatch(call: Arc<ModelCall>, owner: LeaseOwner) -> Transition {
    let mut t = Transition::of(call.run_id.clone(), Durability::Synced);
    t.guards.push(Guard::Held { owner, live: true });
    t.events.push(NewEvent::model_dispatched(&call));
    t.model_call = Some(ModelCallWrite::Dispatch(call));
    t
}

/// Records what came of it and charges the run (T11).
pub fn end(call: Arc<ModelCall>) -> Transition {
    let mut t = Transition::of(call.run_id.clone(), Durability::Written);
    t.events.push(NewEvent::model_ended(&call));
    t.model_call = Some(ModelCallWrite::Complete(call));
    t
}
