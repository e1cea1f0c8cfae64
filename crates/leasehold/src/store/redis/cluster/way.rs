//! Where requests to a cluster go.

use std::pin::Pin;
use std::sync::Arc;

use redis::Value;

use super::super::fault::{self, Effect};
use super::super::link::{Answer, Link, Request};
use super::super::script::Call;
use super::super::side::slot;
use super::map::Map;

/// Where a request goes.
#[derive(Clone, Debug)]
pub(super) struct Way {
    pub(super) link: Arc<Link>,
    /// The key is on its way there.
    pub(super) is_asking: bool,
}

/// What a server, or a key that is on its way, answers: to which of the calls, and which way it went.
pub(super) type Part<'a> = Pin<Box<dyn Future<Output = Vec<(usize, Way, Answer)>> + Send + 'a>>;

impl Way {
    pub(super) const fn to(link: Arc<Link>) -> Self {
        Self { link, is_asking: false }
    }

    /// The way to whoever keeps the key now, if that is another server.
    pub(super) fn successor(&self, map: &Map, key: &str) -> Option<Self> {
        map.keeper(slot(key)).ok().filter(|keeper| !Arc::ptr_eq(keeper, &self.link)).map(Self::to)
    }

    pub(super) async fn send(&self, request: &Request<'_>) -> Answer {
        if self.is_asking { self.link.send_asking(request).await } else { self.link.send(request).await }
    }
}

/// One part for each server, and one for each key that is on its way.
pub(super) fn parts<'a>(calls: &'a [Call<'a>], ways: &[(usize, Way)]) -> Vec<Part<'a>> {
    let mut parts: Vec<Part<'a>> = Vec::new();
    let mut grouped: Vec<(Way, Vec<usize>)> = Vec::new();
    for (at, way) in ways {
        let group = grouped.iter_mut().find(|(known, _)| Arc::ptr_eq(&known.link, &way.link));
        match group.filter(|_| !way.is_asking) {
            Some((_, which)) => which.push(*at),
            None if way.is_asking => {
                let (at, way) = (*at, way.clone());
                parts.push(Box::pin(async move {
                    let answer = way.send(&Request::Run(calls[at])).await;
                    vec![(at, way, answer)]
                }));
            }
            None => grouped.push((way.clone(), vec![*at])),
        }
    }
    parts.extend(grouped.into_iter().map(|(way, which)| -> Part<'a> {
        Box::pin(async move {
            let calls: Vec<_> = which.iter().map(|at| calls[*at]).collect();
            let answers: Vec<Answer> = match way.link.run_all(&calls).await {
                Ok(Ok(answers)) if answers.len() == calls.len() => answers
                    .into_iter()
                    .map(|answer| match answer {
                        Value::ServerError(error) => Ok(Err(error.into())),
                        answer => Ok(Ok(answer)),
                    })
                    .collect(),
                Ok(Ok(_)) => calls.iter().map(|_| Err(fault::unexpected(Effect::Change))).collect(),
                Ok(Err(error)) => calls.iter().map(|_| Ok(Err(error.clone()))).collect(),
                Err(error) => calls.iter().map(|_| Err(error.clone())).collect(),
            };
            which.into_iter().zip(answers).map(|(at, answer)| (at, way.clone(), answer)).collect()
        })
    }));
    parts
}
