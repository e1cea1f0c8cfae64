//! A statement that was sent, and its answer: also where nobody reads that any more.

use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::task::{Context, Poll, Waker};

use futures_core::Stream;
use tokio_postgres::{Client, Error, SimpleQueryStream};

/// A statement without parameters that was sent. Unlike a request it can outlive who asked, and it keeps no connection.
pub(super) struct Sent(Pin<Box<SimpleQueryStream>>);

impl Sent {
    /// Sends at once; `None` = the connection has ended.
    pub(super) fn to(client: &Client, statement: &str) -> Option<Self> {
        // It has nothing to wait for.
        match pin!(client.simple_query_raw(statement)).poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(Ok(stream)) => Some(Self(Box::pin(stream))),
            _ => None,
        }
    }

    /// Waits for the answer. If dropped it can be waited for again.
    pub(super) async fn answered(&mut self) -> Result<(), Error> {
        while let Some(part) = poll_fn(|context| self.0.as_mut().poll_next(context)).await {
            part?;
        }
        Ok(())
    }
}
