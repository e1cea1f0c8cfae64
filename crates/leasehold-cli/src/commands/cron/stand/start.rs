//! This program again, for one tick.

use std::process::Stdio;

use leasehold::schedule::Tick;

use super::{Fleet, Turn};
use crate::child;
use crate::cli::{Global, LogFormat, Overlap, Reach};
use crate::output;

impl Fleet<'_> {
    pub(super) fn start(&mut self, index: usize, tick: Tick, again: bool, lost: Vec<Tick>) {
        let plan = &self.plans[index];
        let mut command = child::helper("cron");
        command.args(self.globals()).arg(&plan.name);
        let own = &plan.arguments;
        command.args(["--tick", &tick.to_string(), "--parent", &std::process::id().to_string()]);
        command.args(["--tz", &own.tz, "--claim", &own.claim]);
        command.args(own.schedule.iter().flat_map(|expression| ["--schedule", expression]));
        command.args(if own.overlap == Overlap::Allow { ["--overlap", "allow"] } else { ["--overlap", "forbid"] });
        command.args(again.then_some("--again"));
        let running = &own.running;
        for (option, value) in
            [("--ttl", &running.ttl), ("--kill-after", &running.kill_after), ("--max-runtime", &own.max_runtime)]
        {
            command.args(value.iter().map(|value| format!("{option}={value}")));
        }
        command.args(running.label.iter().map(|label| format!("--label={label}")));
        command.args(running.no_holder_info.then_some("--no-holder-info"));
        command.args(running.require_fencing.then_some("--require-fencing"));
        command.args(running.require_scope.map(|scope| match scope {
            Reach::Host => "--require-scope=host",
            Reach::Network => "--require-scope=network",
        }));
        match &running.script {
            Some(script) => command.arg("-c").arg(script),
            None => command.arg("--").args(&running.command),
        };
        command.envs(plan.environment.iter().map(|(name, value)| (name, value)));
        // Not the terminal, which several could not share.
        command.stdin(Stdio::null()).env_remove("LEASEHOLD_LOST_TICKS");
        if !lost.is_empty() {
            let told: Vec<_> = lost.iter().map(ToString::to_string).collect();
            command.env("LEASEHOLD_LOST_TICKS", told.join(" "));
        }
        match command.spawn() {
            Ok(child) => self.running.push(Turn { child, index, tick, lost, again }),
            Err(error) => {
                output::tell(&format!("warning: \"{}\" at {tick} cannot be started here: {error}", plan.name));
                if again {
                    self.again[index].push(tick);
                }
            }
        }
    }

    /// What was said for every command is said again.
    fn globals(&self) -> Vec<std::ffi::OsString> {
        let Global { store, namespace, config, quiet, verbose, log_format } = self.global;
        let mut options = Vec::new();
        let mut option = |name: &str, value: &std::ffi::OsStr| options.extend([name.into(), value.to_owned()]);
        store.iter().for_each(|store| option("--store", store.as_ref()));
        namespace.iter().for_each(|namespace| option("--namespace", namespace.as_ref()));
        config.iter().for_each(|config| option("--config", config.as_ref()));
        if *log_format == LogFormat::Json {
            option("--log-format", "json".as_ref());
        }
        options.extend(quiet.then(|| "--quiet".into()));
        options.extend(verbose.then(|| "--verbose".into()));
        options
    }
}
