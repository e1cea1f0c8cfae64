//! stub
use crate::{LockManagerBuilder, Result};
pub(crate) async fn open(_url: &str) -> Result<LockManagerBuilder> {
    todo!()
}
