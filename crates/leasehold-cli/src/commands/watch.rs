//! `--watch`: the same answer again and again, until somebody ends it.

use std::io::{self, IsTerminal, Write};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::config;
use crate::exit::{self, Failure};
use crate::output;

/// The shortest interval: more would be load without use.
const SHORTEST: Duration = Duration::from_millis(100);

/// Prints what `look` answers, once or at an interval, and answers with the last code.
///
/// On a terminal each look takes the place of the one before. A look that fails ends a watch only if it is the first:
/// people watch to see an outage end.
pub(super) async fn watch(
    interval: Option<&str>,
    look: impl AsyncFn() -> Result<(String, u8), Failure>,
) -> Result<u8, Failure> {
    let Some(interval) = config::length("--watch", interval)? else {
        let (text, code) = look().await?;
        return output::print(&text).map(|()| code);
    };
    if interval < SHORTEST {
        return Err(Failure::new(exit::USAGE, "invalid --watch: it must be at least 100ms"));
    }
    let clear = if io::stdout().is_terminal() { "\x1b[H\x1b[2J" } else { "" };
    let mut is_first = true;
    loop {
        match look().await {
            Ok((text, _)) => {
                let mut stdout = io::stdout().lock();
                match write!(stdout, "{clear}{text}").and_then(|()| stdout.flush()) {
                    // A reader that has gone away has seen enough.
                    Err(error) if error.kind() == io::ErrorKind::BrokenPipe => return Ok(exit::DONE),
                    Err(error) => return Err(Failure::new(exit::IO, format!("cannot write to stdout: {error}"))),
                    Ok(()) => {}
                }
            }
            Err(failure) if is_first => return Err(failure),
            Err(failure) => output::tell(&failure.message),
        }
        is_first = false;
        tokio::time::sleep(interval).await;
        if is_unread() {
            return Ok(exit::DONE);
        }
    }
}

/// Whether the reader of stdout has gone away; one of an answer that is empty would not be missed otherwise.
fn is_unread() -> bool {
    let stdout = rustix::stdio::stdout();
    let mut files = [PollFd::new(&stdout, PollFlags::empty())];
    poll(&mut files, Some(&Timespec::default())).is_ok_and(|ready| ready > 0)
        && files[0].revents().contains(PollFlags::ERR)
}
