//! What this process tells about itself to people who look at its leases.

use std::path::Path;

use crate::store::HolderInfo;

/// The longest text of each kind, in bytes; longer ones are cut.
const MAX_LEN: usize = 256;

/// Host, process id and program name of this process.
pub(crate) fn this_process() -> HolderInfo {
    let program = std::env::args_os().next();
    let program = program.as_deref().and_then(|program| Path::new(program).file_name());
    HolderInfo {
        host: Some(tidy(&rustix::system::uname().nodename().to_string_lossy())),
        pid: Some(std::process::id()),
        command: program.map(|program| tidy(&program.to_string_lossy())),
        label: None,
        reason: None,
    }
}

pub(crate) fn with_reason(info: &HolderInfo, reason: &str) -> HolderInfo {
    HolderInfo { reason: Some(tidy(reason)), ..info.clone() }
}

pub(crate) fn with_label(info: &HolderInfo, label: &str) -> HolderInfo {
    HolderInfo { label: Some(tidy(label)), ..info.clone() }
}

pub(crate) fn tidied(info: HolderInfo) -> HolderInfo {
    let tidy = |text: Option<String>| text.map(|text| tidy(&text));
    HolderInfo {
        host: tidy(info.host),
        pid: info.pid,
        command: tidy(info.command),
        label: tidy(info.label),
        reason: tidy(info.reason),
    }
}

/// Without control characters, which could forge lines on a terminal, and of bounded length.
fn tidy(text: &str) -> String {
    let mut end = text.len().min(MAX_LEN);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    text[..end].chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_bounded_and_has_no_control_characters() {
        assert_eq!(tidy("a\x1b[2J\nb"), "a [2J b");
        assert_eq!(tidy(&"ä".repeat(200)).len(), 256);
    }
}
