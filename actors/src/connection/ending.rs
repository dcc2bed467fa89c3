//! How a call ended, as a type: nothing downstream reads it back from a text.
//!
//! [`Reply`] is the promise behind every call: whoever holds it answers, and if nobody does (an actor is killed, a task
//! is aborted, a message is dropped unread), dropping it answers with what is known.

use tokio::sync::oneshot;

/// How one `tools/call` ended. The texts are what the record shows; what they quote of a server is escaped.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CallEnding {
    /// The server answered with a result, whose text this is: a JSON object without a repeated key at its top, nested
    /// at most one level deeper than a record may be. Whether it reports an error is for its reader to say.
    Answered {
        /// The bytes that the server sent, numbers and order of keys included.
        raw_result: String,
    },
    /// Refused before sending, for a reason that lies in the call itself; the same call would be refused again.
    KnownFailure {
        /// The reason.
        text: String,
    },
    /// Sent, and no answer came in its time: what it did is unknown.
    TimedOut {
        /// The reason.
        text: String,
    },
    /// Sent, and no answer can be learnt: the connection ended, or the answer was a protocol error or unreadable.
    NoAnswer {
        /// The reason.
        text: String,
    },
    /// The server answered with a result that cannot be recorded: it ran.
    Unrecordable {
        /// Why it cannot be recorded.
        reason: String,
        /// The bytes that the server sent.
        raw: String,
    },
    /// Not sent: known not to have run.
    NotSent {
        /// The reason.
        text: String,
    },
}

/// Names a call in its texts: `mcp: server "S": tool "T": ...`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct CallName {
    pub(crate) server: String,
    pub(crate) tool: String,
}

impl CallName {
    pub(crate) fn text(&self, what: impl std::fmt::Display) -> String {
        format!("mcp: server {:?}: tool {:?}: {what}", self.server, self.tool)
    }

    pub(crate) fn not_sent(&self, why: impl std::fmt::Display) -> CallEnding {
        CallEnding::NotSent { text: self.text(why) }
    }

    pub(crate) fn no_answer(&self, why: impl std::fmt::Display) -> CallEnding {
        CallEnding::NoAnswer { text: self.text(why) }
    }
}

/// The promise to answer a call once.
#[derive(Debug)]
pub(crate) struct Reply {
    name: CallName,
    caller: Option<oneshot::Sender<CallEnding>>,
    /// The call was handed to the wire, so it may have left.
    handed_over: bool,
}

impl Reply {
    pub(crate) fn new(name: CallName) -> (Self, oneshot::Receiver<CallEnding>) {
        let (caller, ending) = oneshot::channel();
        (Self { name, caller: Some(caller), handed_over: false }, ending)
    }

    pub(crate) fn name(&self) -> &CallName {
        &self.name
    }

    /// Whether nobody waits for the ending any more.
    pub(crate) fn caller_gone(&self) -> bool {
        self.caller.as_ref().is_none_or(oneshot::Sender::is_closed)
    }

    /// From here on, being dropped means that no answer can be learnt.
    pub(crate) fn handed_over(&mut self) {
        self.handed_over = true;
    }

    pub(crate) fn answer(mut self, ending: CallEnding) {
        self.send(ending);
    }

    fn send(&mut self, ending: CallEnding) {
        if let Some(caller) = self.caller.take() {
            // A caller that is gone wants no answer.
            caller.send(ending).ok();
        }
    }
}

impl Drop for Reply {
    fn drop(&mut self) {
        let why = "the connection's actor ended";
        let ending = if self.handed_over { self.name.no_answer(why) } else { self.name.not_sent(why) };
        self.send(ending);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reply() -> (Reply, oneshot::Receiver<CallEnding>) {
        Reply::new(CallName { server: "pay".to_owned(), tool: "p\u{202e}".to_owned() })
    }

    #[test]
    fn a_dropped_reply_says_what_is_known() {
        let (unsent, mut ending) = reply();
        drop(unsent);
        let text = "mcp: server \"pay\": tool \"p\\u{202e}\": the connection's actor ended".to_owned();
        assert_eq!(ending.try_recv(), Ok(CallEnding::NotSent { text: text.clone() }));

        let (mut sent, mut ending) = reply();
        sent.handed_over();
        drop(sent);
        assert_eq!(ending.try_recv(), Ok(CallEnding::NoAnswer { text }));
    }

    #[test]
    fn an_answer_is_given_once() {
        let (reply, mut ending) = reply();
        let answered = CallEnding::Answered { raw_result: "{}".to_owned() };
        reply.answer(answered.clone());
        assert_eq!(ending.try_recv(), Ok(answered));
    }
}
