//! Deliberately broken builds: each is wrong in one way, and is tied to the property that has to notice it.
//!
//! A broken build that nothing notices is a failure of the checker. The good build goes through the same stories.

use crate::cases::Story;
use crate::checker::Property;

/// A way of being wrong, a story in which it shows, and who has to notice.
pub(crate) struct Broken {
    pub(crate) name: &'static str,
    pub(crate) what: &'static str,
    pub(crate) story: Story,
    pub(crate) property: Property,
}

/// All of them.
pub(crate) fn all() -> Vec<Broken> {
    let proxy = |point: &str| Story::Proxy(point.to_owned());
    let broken = |name, what, story, property| Broken { name, what, story, property };
    vec![
        broken(
            "AnswerBeforeCommit",
            "acknowledges a write before it is committed",
            proxy("withheld/step.tool_finished:2:late"),
            Property::Acknowledged,
        ),
        broken(
            "AnswerBeforeCommit",
            "lets an effect go before its intent is committed",
            proxy("withheld/step.tool_started:2:late"),
            Property::Intent,
        ),
        broken(
            "StateApart",
            "commits a state and its event in two transactions",
            proxy("apart/step.tool_finished:2"),
            Property::Tables,
        ),
        broken(
            "OutcomeSkipped",
            "answers and never commits the outcome",
            Story::Calm,
            Property::Acknowledged,
        ),
        broken("IntentSkipped", "sends without committing the intent", Story::Calm, Property::Intent),
        broken("BlindRetry", "sends again what got no answer", Story::ServerDies("exit"), Property::Once),
        broken(
            "UnknownAsFailed",
            "tells an unknown outcome as a failure",
            Story::ServerDies("exit"),
            Property::Explained,
        ),
        broken("SyncOff", "syncs no commit", Story::PowerCut, Property::Acknowledged),
        broken("Unchained", "hashes events as if nothing came before", Story::Calm, Property::Chain),
        broken("EventDropped", "leaves an event out", Story::Calm, Property::Tables),
        broken("RowDropped", "leaves a step's row behind", Story::Calm, Property::Tables),
        broken("ArgsAltered", "sends what was not recorded", Story::Calm, Property::Intent),
        broken("QuestionAltered", "stores another question than it hashed", Story::Calm, Property::Question),
        broken("WindowIgnored", "takes a repeated call for a new one", Story::Calm, Property::Once),
        broken("PolicyIgnored", "allows what has to be asked", Story::Calm, Property::Once),
        broken("GroupKept", "leaves an ended server written down", Story::Calm, Property::Left),
        broken("LeaseKept", "keeps the lease of a run that is over", Story::Calm, Property::Left),
        broken(
            "FenceIgnored",
            "sends without looking whether the lease still stands",
            Story::StoppedPastItsLease,
            Property::Intent,
        ),
    ]
}
