//! Which of the server's processes holds an advisory lock, as far as it tells.

use std::sync::Arc;

use tokio_postgres::Row;
use tokio_postgres::types::Type;

use super::answer;
use super::fault::{self, Effect};
use super::link::Link;
use crate::error::{Error, ErrorKind, Result};
use crate::store::{Holder, HolderInfo};
use crate::types::OwnerToken;

/// The process that holds a lock.
pub(super) struct Backend {
    pid: i32,
    /// How many advisory locks it holds beside this one.
    others: i64,
    name: String,
    host: String,
}

impl Backend {
    /// Whoever holds the lock of this number.
    pub(super) async fn holding(link: &Arc<Link>, lock: i64) -> Result<Option<Self>> {
        let rows = link.look(include_str!("sql/holding_backend.sql"), &[(&lock, Type::INT8)]).await?;
        rows.first().map(Self::read).transpose()
    }

    fn read(row: &Row) -> Result<Self> {
        let text = |at| Ok::<_, Error>(answer::get::<&str>(row, at, Effect::Look)?.to_owned());
        Ok(Self {
            pid: answer::get(row, 0, Effect::Look)?,
            others: answer::get::<i64>(row, 3, Effect::Look)? - 1,
            name: text(1)?,
            host: text(2)?,
        })
    }

    pub(super) const fn pid(&self) -> i32 {
        self.pid
    }

    /// The server knows the process, not the owner.
    pub(super) fn into_holder(self) -> Result<Holder> {
        let Self { pid, name, host, .. } = self;
        let owner =
            OwnerToken::from_bytes(format!("backend {pid}").as_bytes()).map_err(|_| fault::unexpected_look())?;
        let label = format!("backend {pid} {name}").trim_end().to_owned();
        let host = Some(host).filter(|host| !host.is_empty());
        Ok(Holder::new(owner).info(HolderInfo { host, label: Some(label), ..HolderInfo::default() }))
    }

    /// Why nobody but the process gives the lock back.
    pub(super) fn keeps_it(&self) -> Error {
        let Self { pid, others, .. } = self;
        Error::new(
            ErrorKind::Unsupported,
            format!(
                "only its session can give it back: SELECT pg_terminate_backend({pid}) would end that session, and free \
                 {others} other locks"
            ),
        )
    }
}
