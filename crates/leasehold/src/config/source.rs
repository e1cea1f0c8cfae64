//! Values with the place where they were said, so that people can be told.

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use crate::error::{Error, ErrorKind, Result};

/// Where a setting was said.
#[non_exhaustive]
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Source {
    /// Nowhere: the default holds.
    Default,
    /// In the program, by a method of [`Config`](super::Config).
    Program,
    /// By a flag on the program's command line.
    Flag,
    /// By this variable of the environment.
    Environment(Arc<str>),
    /// In this file.
    File(Arc<Path>),
    /// By an option in the store's URL.
    Url,
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default => f.write_str("default"),
            Self::Program => f.write_str("program"),
            Self::Flag => f.write_str("flag"),
            Self::Environment(name) => write!(f, "${name}"),
            Self::File(path) => write!(f, "{}", path.display()),
            Self::Url => f.write_str("the store's URL"),
        }
    }
}

/// A setting as people may read it: secrets hidden, defaults included.
#[non_exhaustive]
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Setting {
    /// The name, as in files.
    pub name: &'static str,
    /// The value; `None` = not set, and there is no default.
    pub value: Option<String>,
    /// Where it was said.
    pub source: Source,
}

/// A value that was said somewhere. One that cannot be understood is an error only for those who use it.
#[derive(Clone)]
pub(super) struct Said<T> {
    pub(super) value: Result<T>,
    pub(super) source: Source,
    /// 0 is the highest; those of lower layers are overridden.
    pub(super) layer: usize,
}

impl<T: Clone> Said<T> {
    pub(super) fn of(value: Result<T>, source: Source) -> Self {
        Self { value, source, layer: 0 }
    }

    /// The value, or what is wrong with it and where it stands.
    pub(super) fn value(&self, name: &str, kind: ErrorKind) -> Result<T> {
        self.value.clone().map_err(|error| {
            let place = match &self.source {
                Source::Program | Source::Url | Source::Default => String::new(),
                source => format!(" in {source}"),
            };
            Error::new(kind, format!("invalid {name}{place}: {}", error.message()))
        })
    }
}
