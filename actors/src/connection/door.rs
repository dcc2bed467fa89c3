//! The way into a connection's mailbox for calls: bounded, and certain to answer.

use std::sync::Arc;
use std::time::Duration;

use ractor::ActorRef;
use tokio::sync::Semaphore;
use tokio::time::{Instant, timeout};

use super::ending::{CallEnding, CallName, Reply};
use super::{Msg, QueuedCall};

/// Calls that one server may have in flight, those in the mailbox included.
///
/// Each may hold an argument and a result of the largest size, 16 MiB both; more calls than this at once, to one server
/// on one machine, is not work but a loop.
pub const MAX_CALLS_IN_FLIGHT: usize = 64;
/// How long a call waits for a place before it is refused unsent.
const PLACE_WAIT: Duration = Duration::from_secs(5);
/// How far past its own timeout a call's ending may be, before the actor is taken to be stuck.
const GRACE: Duration = Duration::from_secs(10);

/// One call as the executor asks for it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CallRequest {
    /// The server's own name for the tool.
    pub tool: String,
    /// The arguments, a JSON object as text. They leave as they are, white space between tokens aside. An empty text
    /// and `null` stand for `{}`.
    pub arguments: String,
    /// How long an answer is waited for.
    pub timeout: Duration,
    /// The call leaves before this moment or not at all.
    pub fence: Option<Instant>,
}

/// Bounds the calls to one server. Clones share the bound; it outlives the actor behind it.
#[derive(Debug, Clone)]
pub struct Door {
    server: String,
    places: Arc<Semaphore>,
}

impl Door {
    /// Makes the door of one server.
    #[must_use]
    pub fn new(server: &str) -> Self {
        Self { server: server.to_owned(), places: Arc::new(Semaphore::new(MAX_CALLS_IN_FLIGHT)) }
    }

    /// Calls a tool and waits for the ending. Whatever happens to the actor or the server, there is one.
    ///
    /// Dropping the future withdraws a call that the actor has not taken yet; one that it took runs on unheard.
    pub async fn call(&self, connection: ActorRef<Msg>, request: CallRequest) -> CallEnding {
        let name = CallName { server: self.server.clone(), tool: request.tool.clone() };
        let wait = PLACE_WAIT.min(request.timeout);
        let Ok(Ok(permit)) = timeout(wait, self.places.clone().acquire_owned()).await else {
            return name.not_sent(format_args!("{MAX_CALLS_IN_FLIGHT} calls are in flight already"));
        };
        let backstop = request.timeout.saturating_add(GRACE);
        let (reply, ending) = Reply::new(name.clone());
        let call = QueuedCall { request, reply, permit };
        // When the actor is gone the message is dropped, and its reply answers for it: so nobody may be held on to.
        connection.send_message(Msg::Call(Box::new(call))).ok();
        drop(connection);
        match timeout(backstop, ending).await {
            Ok(Ok(ending)) => ending,
            Ok(Err(_)) => name.no_answer("the connection's actor ended"),
            Err(_) => name.no_answer("the connection's actor does not answer"),
        }
    }
}
