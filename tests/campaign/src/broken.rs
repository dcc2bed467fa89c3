//! Deliberately broken builds: each is wrong in one way, and is tied to the property that has to notice it.
//!
//! A broken build that nothing notices is a failure of the checker. The good build goes through the same stories.

use crate::cases::{IMAGES, Story};
use crate::checker::Property;
use crate::inside::Layer;

/// A way of being wrong, a story in which it shows, and who has to notice.
pub(crate) struct Broken {
    pub(crate) name: &'static str,
    pub(crate) what: &'static str,
    pub(crate) story: Story,
    pub(crate) property: Property,
}

/// All of them. Longer than other functions by one entry for each.
pub(crate) fn all() -> Vec<Broken> {
    let proxy = |point: &str| Story::Proxy(point.to_owned());
    let inside = |name| Story::Inside(Layer { name, count: 400 });
    let broken = |name, what, story, property| Broken { name, what, story, property };
    vec![
        // What is noticed by waiting for it, first: the others wait meanwhile.
        broken("LeaseNotRenewed", "renews no lease", Story::LongerThanItsLease, Property::Explained),
        broken("NothingRecovered", "leaves what others left to itself", Story::Held("after"), Property::Left),
        broken(
            "FirstRecovered",
            "recovers one run of those that others left",
            Story::SeveralCutOff,
            Property::Left,
        ),
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
        broken("SyncOff", "syncs no commit", Story::PowerCut(IMAGES), Property::Acknowledged),
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
        broken(
            "FailedSyncTaken",
            "takes a failed sync for success",
            Story::FailingSyncs,
            Property::Acknowledged,
        ),
        broken(
            "RetryAfterFailedSync",
            "tries again after a failed sync",
            Story::FailingSyncs,
            Property::SyncEnds,
        ),
        broken("BatchTwice", "applies a replayed batch twice", Story::Calm, Property::Tables),
        broken(
            "RecoveryMarksDone",
            "takes a call that was cut off for one that succeeded",
            Story::Recovery("committed/approval.requested:1".to_owned()),
            Property::Tables,
        ),
        broken(
            "QuestionNarrowed",
            "asks about a tool and not about its arguments",
            Story::Calm,
            Property::Once,
        ),
        broken(
            "PolicyNotAskedAgain",
            "collects a grant without asking the policy again",
            Story::PolicyChanged,
            Property::Allowed,
        ),
        // Not of a payment: with no index to stop it, each try of a call would ask a person anew.
        broken(
            "IndexDropped",
            "keeps no index of its calls",
            Story::Idle("flush.committed:1".to_owned()),
            Property::Tables,
        ),
        broken("ExpiryIgnored", "lets a grant last for ever", Story::AnHourLater, Property::Allowed),
        broken(
            "LeaseUnchecked",
            "starts a call under a lease that has run out",
            inside("replay"),
            Property::Model,
        ),
        broken(
            "EpochIgnored",
            "takes an outcome from whoever held the run once",
            inside("replay"),
            Property::Model,
        ),
        broken("LiveTakenOver", "takes over a run whose holder is alive", inside("replay"), Property::Model),
        broken(
            "ReadsUnsynced",
            "never syncs what it wrote for reads",
            Story::PowerCut(IMAGES),
            Property::Acknowledged,
        ),
        broken(
            "CheckpointUnsynced",
            "copies the log without a sync",
            Story::PowerCut(IMAGES),
            Property::Whole,
        ),
        broken("BlindRetry", "sends again what was not answered in time", Story::LateAnswer, Property::Once),
        broken(
            "BentTaken",
            "uses a grant whatever has become of it",
            Story::Bent("request_json"),
            Property::Allowed,
        ),
        broken(
            "SeenIgnored",
            "takes a run over as it was read, whoever held it meanwhile",
            Story::TakenOverMeanwhile,
            Property::Course,
        ),
        broken(
            "SettledAsKnown",
            "settles every attempt in its index as one whose outcome is known",
            Story::Refused,
            Property::Tables,
        ),
        broken("GrantTwice", "uses a grant twice", Story::Held("after"), Property::Tables),
        broken(
            "SupersededTaken",
            "uses a grant that a newer question has replaced",
            Story::Superseded,
            Property::Course,
        ),
        broken(
            "QuestionForEver",
            "stores a question without its end",
            Story::NobodyAnswers,
            Property::Allowed,
        ),
        broken("OwnerMistaken", "writes down somebody else as who holds a run", Story::Calm, Property::Ends),
        broken(
            "SettleForgotten",
            "leaves a run that is over unsettled in its index",
            Story::Calm,
            Property::Tables,
        ),
        broken(
            "DecidedAgain",
            "lets somebody else decide once more",
            Story::DecidedTwice,
            Property::Decision,
        ),
        broken(
            "ShownNarrowed",
            "shows a person another question than they grant",
            Story::Calm,
            Property::Question,
        ),
        broken("NoteDropped", "loses what a person noted", Story::Calm, Property::Decision),
        broken("TimesRunBack", "tells an outcome as of before its call", Story::Calm, Property::Times),
    ]
}
