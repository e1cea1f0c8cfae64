//! One extend of one claim, repeated while its outcome is unknown.

use std::time::Duration;

use crate::clock::Moment;
use crate::engine::Engine;
use crate::error::{Error, ErrorKind, Operation, Result};
use crate::store::{Claim, Grant};

/// Asks for at most `limit` a time, and answers with the moment at which the answered request was sent.
pub(crate) async fn extend(engine: &Engine, claim: &Claim<'_>, limit: Duration) -> (Moment, Result<Option<Grant>>) {
    let mut unsettled = 0;
    engine
        .settle(Operation::Extend, claim.key, limit, &mut unsettled, || async move {
            let answers = engine.store().extend(std::slice::from_ref(claim)).await?;
            answers.into_iter().next().unwrap_or_else(|| {
                Err(Error::new(ErrorKind::Indeterminate, "the store answered no claim although it was asked one"))
            })
        })
        .await
}
