//! URLs without their secrets, for people to read.

/// The URL as it may be shown: without the password, and without the values of options that hold secrets.
///
/// Works for URLs of every store, also for malformed ones, and hides too much rather than too little.
///
/// ```
/// # use leasehold::config::redacted;
/// assert_eq!(redacted("redis://app:hunter2@cache:6379/0"), "redis://app:***@cache:6379/0");
/// ```
pub fn redacted(url: &str) -> String {
    let url = url.trim();
    let (rest, fragment) = split_at_mark(url, '#');
    let (base, query) = split_at_mark(rest, '?');
    // A password with a raw `?`, `#` or `/` ends up in what looks like path or query.
    let hidden = hide_password(base).or_else(|| looks_cut(base).then(|| hide_password(url)).flatten());
    let (base, query, fragment) = match hidden {
        Some(shown) if hide_password(base).is_none() => (shown, "", ""),
        Some(shown) => (shown, query, fragment),
        None => (base.to_owned(), query, fragment),
    };
    let options: Vec<_> = query.trim_start_matches('?').split('&').map(hide_secret).collect();
    let mark = if query.is_empty() { "" } else { "?" };
    format!("{base}{mark}{}{fragment}", options.join("&"))
}

/// The text before the first `mark`, and the rest from the mark on.
pub(super) fn split_at_mark(text: &str, mark: char) -> (&str, &str) {
    text.split_at(text.find(mark).unwrap_or(text.len()))
}

/// Hides what stands between the first colon after the scheme and the last `@`; `None` if there is nothing to hide.
fn hide_password(text: &str) -> Option<String> {
    // A path from its first character on.
    if starts_with(text, "sqlite:///") {
        return None;
    }
    let start = match text.find("://") {
        Some(colon) => colon + 3,
        // Not a URL, or one of a local store, whose path may well hold these characters.
        None if ["sqlite:", "memory:", "noop:"].iter().any(|local| starts_with(text, local)) => {
            return None;
        }
        None => 0,
    };
    let end = start + text[start..].rfind('@')?;
    let colon = start + text[start..end].find(':')?;
    Some(format!("{}:***{}", &text[..colon], &text[end..]))
}

/// Whether a host's port is no number, as when a raw `?` or `#` has cut a password in two.
fn looks_cut(base: &str) -> bool {
    let Some((_, authority)) = base.split_once("://") else {
        return false;
    };
    let authority = authority.split('/').next().unwrap_or_default();
    let is_port = |port: &str| !port.is_empty() && port.bytes().all(|byte| byte.is_ascii_digit());
    authority.split(',').any(|host| {
        host.rsplit_once(':').is_some_and(|(name, port)| name.is_empty() || !is_port(port) && !host.ends_with(']'))
    })
}

fn hide_secret(option: &str) -> String {
    let Some((name, _)) = option.split_once('=') else {
        return option.to_owned();
    };
    let plain = name.to_ascii_lowercase();
    let is_secret = ["pass", "secret", "token"].iter().any(|word| plain.contains(word)) && !plain.ends_with("_file");
    if is_secret { format!("{name}=***") } else { option.to_owned() }
}

fn starts_with(text: &str, prefix: &str) -> bool {
    text.get(..prefix.len()).is_some_and(|start| start.eq_ignore_ascii_case(prefix))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_are_hidden() {
        for (url, shown) in [
            ("redis://u:pw@h:6379/0", "redis://u:***@h:6379/0"),
            ("redis://:pw@h", "redis://:***@h"),
            ("redis://u@h/0?a=b", "redis://u@h/0?a=b"),
            ("rediss://u:p@w/x@h:1/0", "rediss://u:***@h:1/0"),
            ("redis://u:p?w@h/0", "redis://u:***@h/0"),
            ("redis://u:p#w@h/0", "redis://u:***@h/0"),
            ("redis://h:6379/0?label=a@b", "redis://h:6379/0?label=a@b"),
            ("redis://[::1]:6379/0?label=a@b", "redis://[::1]:6379/0?label=a@b"),
            ("u:pw@h", "u:***@h"),
            ("postgres://h/db?Password=x&ttl=5s&sslpassword=y", "postgres://h/db?Password=***&ttl=5s&sslpassword=***"),
            ("postgres://h/db?password_file=/run/x", "postgres://h/db?password_file=/run/x"),
            ("sqlite:/home/a:b@c/x.db", "sqlite:/home/a:b@c/x.db"),
            ("sqlite:///home/a@b/x.db", "sqlite:///home/a@b/x.db"),
            ("sqlite:///a@b:c@d", "sqlite:///a@b:c@d"),
            ("sqlite://u:pw@h/x.db", "sqlite://u:***@h/x.db"),
            ("memory:", "memory:"),
            ("", ""),
        ] {
            assert_eq!(redacted(url), shown, "{url}");
        }
    }
}
