//! What was asked of `run`, checked as far as it can be before anything is touched.

use std::ffi::OsString;
use std::time::Duration;

use leasehold::{Renew, Wait};
use rustix::process::Signal;

use crate::child::{Limits, OnLost};
use crate::cli::Run;
use crate::commands::grace::Room;
use crate::config::{self, Settings};
use crate::exit::{self, Failure};
use crate::output;
use crate::signals;

/// What was asked for, checked as far as it can be without the store.
#[derive(Debug)]
pub(in crate::commands) struct Request<'a> {
    pub(in crate::commands) name: &'a str,
    pub(in crate::commands) command: Vec<OsString>,
    pub(in crate::commands) wait: Wait,
    pub(in crate::commands) busy_code: u8,
    pub(in crate::commands) renew: Renew,
    pub(in crate::commands) kill_after: Option<Duration>,
    pub(in crate::commands) max_runtime: Option<Duration>,
    pub(in crate::commands) on_lost: OnLost,
    pub(in crate::commands) label: Option<String>,
    pub(in crate::commands) arguments: &'a Run,
}

impl<'a> Request<'a> {
    pub(in crate::commands) fn new(settings: &Settings, arguments: &'a Run) -> Result<Self, Failure> {
        let renew = match config::length("--renew-every", arguments.renew_every.as_deref())? {
            _ if arguments.no_renew => Renew::Off,
            Some(Duration::ZERO) => {
                return Err(Failure::new(exit::USAGE, "invalid --renew-every: it is zero: say --no-renew for never"));
            }
            Some(interval) => Renew::Every(interval),
            None => Renew::Automatic,
        };
        let max_runtime = config::length("--max-runtime", arguments.max_runtime.as_deref())?;
        if max_runtime == Some(Duration::ZERO) {
            return Err(Failure::new(exit::USAGE, "invalid --max-runtime: it is zero: leave it out for no limit"));
        }
        if let Some(label) = arguments.label.iter().find(|label| !label.contains('=') || label.starts_with('=')) {
            let label = output::clean(label);
            return Err(Failure::new(exit::USAGE, format!("invalid --label \"{label}\": write it as name=value")));
        }
        let command = match &arguments.script {
            Some(script) => vec!["sh".into(), "-c".into(), script.clone()],
            None => arguments.command.clone(),
        };
        Ok(Self {
            name: config::key_name(&arguments.key)?,
            command,
            wait: settings.wait(),
            busy_code: if arguments.skip_ok { 0 } else { arguments.conflict_exit_code.unwrap_or(exit::BUSY) },
            renew,
            kill_after: config::length("--kill-after", arguments.kill_after.as_deref())?,
            max_runtime,
            on_lost: on_lost(arguments.on_lost.as_deref())?,
            label: (!arguments.label.is_empty()).then(|| arguments.label.join(" ")),
            arguments,
        })
    }

    /// The limits of the job. The grace has to fit between the last renewal that can fail and the lease's end.
    pub(in crate::commands) fn limits(&self, ttl: Duration) -> Result<Limits, Failure> {
        let kill_after = Room::new(ttl, self.renew).grace(self.kill_after)?;
        Ok(Limits { kill_after, max_runtime: self.max_runtime, on_lost: self.on_lost })
    }
}

/// What is done to whoever works under a lease that is lost.
pub(in crate::commands) fn on_lost(text: Option<&str>) -> Result<OnLost, Failure> {
    match text {
        None | Some("term") => Ok(OnLost::Signal(Signal::TERM)),
        Some("continue") => Ok(OnLost::Continue),
        Some(text) => text.strip_prefix("signal:").and_then(signals::named).map(OnLost::Signal).ok_or_else(|| {
            let text = output::clean(text);
            let names = signals::NAMES.map(|(name, _)| name).join(" ");
            Failure::new(
                exit::USAGE,
                format!("invalid --on-lost \"{text}\": say term, continue, or signal:NAME with one of {names}"),
            )
        }),
    }
}
