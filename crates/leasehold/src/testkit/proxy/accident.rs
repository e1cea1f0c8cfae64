//! What happens to single messages.

/// What happens once to a message that passes through a [`Proxy`](super::Proxy), and to its connection.
///
/// After it, the client is told by a RST, and the server by a FIN, so that it still carries out what it was sent; or
/// nobody is, if [`silent`](Self::silently).
#[derive(Clone, Debug)]
pub struct Accident {
    pub(super) loss: Lost,
    pub(super) silent: bool,
    content: Vec<u8>,
    after: usize,
}

/// From where on something is lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Lost {
    /// The request and all after it.
    Request,
    /// What the server sends after the request.
    Reply,
    /// This message of the server and all after it.
    Push,
}

impl Accident {
    /// The next request, and all after it on its connection, never arrive.
    pub const fn lose_request() -> Self {
        Self::new(Lost::Request)
    }

    /// The next request arrives, and nothing that the server sends on its connection afterwards does. The RST comes
    /// when the first of that would have, so that the request was carried out by then; unless earlier requests on the
    /// same connection were still unanswered, whose replies are lost, too.
    pub const fn lose_reply() -> Self {
        Self::new(Lost::Reply)
    }

    /// The next message of the server, whether asked for or not, and all after it on its connection, never arrive.
    pub const fn lose_push() -> Self {
        Self::new(Lost::Push)
    }

    /// Only messages that contain these bytes: of requests, for those that lose their reply, too.
    pub fn containing(mut self, bytes: impl Into<Vec<u8>>) -> Self {
        self.content = bytes.into();
        self
    }

    /// Not before this many others, that it would be for as well, have passed.
    pub const fn after(mut self, others: usize) -> Self {
        self.after = others;
        self
    }

    /// The connection stays open and says nothing more in that direction, for ever.
    pub const fn silently(mut self) -> Self {
        self.silent = true;
        self
    }

    const fn new(loss: Lost) -> Self {
        Self { loss, silent: false, content: Vec::new(), after: 0 }
    }

    fn concerns(&self, message: &[u8], is_request: bool) -> bool {
        let is_found = || message.windows(self.content.len()).any(|window| window == self.content);
        is_request == (self.loss != Lost::Push) && (self.content.is_empty() || is_found())
    }
}

/// Takes the accident that happens to this message, if one does.
pub(super) fn take(accidents: &mut Vec<Accident>, message: &[u8], is_request: bool) -> Option<Accident> {
    let at = accidents.iter().position(|accident| accident.concerns(message, is_request))?;
    match accidents[at].after.checked_sub(1) {
        None => Some(accidents.remove(at)),
        Some(others) => {
            accidents[at].after = others;
            None
        }
    }
}
