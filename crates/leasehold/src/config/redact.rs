//! URLs without their secrets, for people to read.

use std::borrow::Cow;
use std::path::Path;

use url::form_urlencoded;

use super::words::is_surely_a_path;

/// Schemes whose user name, where it stands alone, is no secret. Elsewhere it may be a token.
const NAMED_USERS: [&str; 6] = ["redis", "rediss", "redlock", "postgres", "postgresql", "mysql"];

/// What the names of options that hold secrets contain.
const SECRETS: [&str; 11] = ["pass", "pwd", "secret", "token", "key", "sig", "cred", "auth", "jwt", "seed", "private"];

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
    let base = if is_local(base) {
        base.to_owned()
    } else {
        match without_password(base, &url[base.len()..]) {
            Some(base) => base,
            None => return beginning(url),
        }
    };
    let options: Vec<_> = query.trim_start_matches('?').split('&').map(without_secret).collect();
    let mark = if query.is_empty() { "" } else { "?" };
    let fragment = if fragment.is_empty() { "" } else { "#***" };
    format!("{base}{mark}{}{fragment}", options.join("&"))
}

/// The text before the first `mark`, and the rest from the mark on.
pub(super) fn split_at_mark(text: &str, mark: char) -> (&str, &str) {
    text.split_at(text.find(mark).unwrap_or(text.len()))
}

/// Whether it names a store of this machine, whose path may well hold characters that set a password apart elsewhere.
fn is_local(base: &str) -> bool {
    let Some((scheme, place)) = base.split_once(':') else {
        return false;
    };
    match &*scheme.to_ascii_lowercase() {
        "memory" | "noop" => matches!(place, "" | "//"),
        "sqlite" => !place.starts_with("//") || place.starts_with("///"),
        _ => false,
    }
}

/// The URL up to its options; `None` where it cannot be told for sure where a password begins and ends.
fn without_password(base: &str, rest: &str) -> Option<String> {
    let (scheme, place) = base.split_once("://")?;
    // A password with a raw `?` or `#` ends up in what looks like an option.
    if !is_scheme(scheme) || rest.contains('@') || base.contains(char::is_whitespace) {
        return None;
    }
    let Some((user, host)) = place.rsplit_once('@') else {
        let authority = place.split('/').next().unwrap_or_default();
        return authority.split(',').all(is_host).then(|| base.to_owned());
    };
    let user = match user.split_once(':') {
        Some((name, _)) => format!("{name}:***"),
        None if NAMED_USERS.contains(&&*scheme.to_ascii_lowercase()) => user.to_owned(),
        None => "***".to_owned(),
    };
    Some(format!("{scheme}://{user}@{host}"))
}

/// Whether it is a host that may have a port, and surely no user with a password.
fn is_host(text: &str) -> bool {
    let is_address = |name: &str| name.starts_with('[') && name.ends_with(']');
    match text.rsplit_once(':') {
        None => true,
        Some(_) if is_address(text) => true,
        Some((name, port)) => {
            let is_name = !name.is_empty() && (is_address(name) || !name.contains(':'));
            is_name && port.bytes().all(|byte| byte.is_ascii_digit()) && port.parse::<u16>().is_ok()
        }
    }
}

/// As much of a doubtful text as is surely no secret: up to the first colon that ends no scheme, or to the value of
/// the first secret.
fn beginning(text: &str) -> String {
    let start = match text.split_once("://") {
        Some((scheme, _)) if is_scheme(scheme) => scheme.len() + 3,
        _ => 0,
    };
    if text.contains('@') {
        return format!("{}***", &text[..start]);
    }
    let ends_name = |char: char| char.is_whitespace() || matches!(char, ';' | '&' | '?' | '#');
    let is_end = |&(at, char): &(usize, char)| match char {
        ':' => at >= start,
        '=' => text[..at].trim_end().rsplit(ends_name).next().is_some_and(is_secret),
        _ => false,
    };
    match text.char_indices().find(is_end) {
        Some((at, _)) => format!("{}***", &text[..=at]),
        None => text.to_owned(),
    }
}

fn without_secret(option: &str) -> Cow<'_, str> {
    match option.split_once('=') {
        None if option.is_empty() => option.into(),
        // It may be a value as well as a name.
        None => "***".into(),
        Some((name, value)) if is_secret(name) || decoded(value).contains([':', '@']) => format!("{name}=***").into(),
        Some((name, value)) if names_secret(name) && !is_surely_a_path(Path::new(&*decoded(value))) => {
            format!("{name}=***").into()
        }
        Some(_) => option.into(),
    }
}

fn is_secret(name: &str) -> bool {
    names_secret(name) && !decoded(name).to_ascii_lowercase().ends_with("_file")
}

/// The same, or the name of a file that holds one.
fn names_secret(name: &str) -> bool {
    let name = decoded(name).to_ascii_lowercase();
    SECRETS.iter().any(|word| name.contains(word))
}

fn decoded(text: &str) -> String {
    // As a name without a value, whatever it holds.
    form_urlencoded::parse(text.replace(['&', '='], " ").as_bytes()).map(|(name, _)| name).collect()
}

pub(super) fn is_scheme(text: &str) -> bool {
    text.starts_with(|first: char| first.is_ascii_alphabetic())
        && text.chars().all(|char| char.is_ascii_alphanumeric() || matches!(char, '+' | '-' | '.'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_are_hidden() {
        for (url, shown) in [
            ("redis://u:hunter2@h:6379/0", "redis://u:***@h:6379/0"),
            ("redis://:hunter2@h", "redis://:***@h"),
            ("redis://u@h/0?a=b", "redis://u@h/0?a=b"),
            ("rediss://u:hun@ter2/x@h:1/0", "rediss://u:***@h:1/0"),
            ("redis://h:6379/0?label=a", "redis://h:6379/0?label=a"),
            ("redis://[::1]:6379,[::2],h/0?a=b", "redis://[::1]:6379,[::2],h/0?a=b"),
            ("redlock://u:hunter2@h:1,h:2,h:3?max_ttl=5s", "redlock://u:***@h:1,h:2,h:3?max_ttl=5s"),
            ("nats://hunter2@h:4222", "nats://***@h:4222"),
            ("nats://u:hunter2@h:4222", "nats://u:***@h:4222"),
            ("redis://u:hunter2/0", "redis://u:***"),
            ("redis://:hunter2", "redis://:***"),
            ("redis://:123", "redis://:***"),
            ("redis://u:hunter2%40h:6379", "redis://u:***"),
            ("redis://h,u:hunter2:1/0", "redis://h,u:***"),
            ("redis://u:1234567/0", "redis://u:***"),
            ("redis:hunter2", "redis:***"),
            ("hunter2@redis://h", "***"),
            ("u:hunter2@h", "***"),
            ("hunter2@h", "***"),
            ("memory:hunter2", "memory:***"),
            ("sqlite://u:hunter2@h/0", "sqlite://u:***@h/0"),
            ("sqlite:/home/a:b@c/x.db", "sqlite:/home/a:b@c/x.db"),
            ("sqlite:///home/a@b/x.db?ttl=5s", "sqlite:///home/a@b/x.db?ttl=5s"),
            ("/home/x.db", "/home/x.db"),
            ("memory:", "memory:"),
            ("", ""),
        ] {
            assert_eq!(redacted(url), shown, "{url}");
        }
    }

    #[test]
    fn a_password_that_is_cut_in_two_hides_all() {
        for password in ["hun?ter2", "hun#ter2", "12?34", "12#34", "1/2?x=", "1/2?x=3&", "a@12?34", "1?a#b"] {
            assert_eq!(redacted(&format!("redis://u:{password}@h/0")), "redis://***", "{password}");
        }
    }

    #[test]
    fn options_that_may_hold_secrets_are_hidden() {
        for (options, shown) in [
            ("?Password=hunter2&ttl=5s&sslpassword=hunter2", "?Password=***&ttl=5s&sslpassword=***"),
            ("?password_file=/run/x", "?password_file=/run/x"),
            ("?password_file=%2Frun%2Fx", "?password_file=%2Frun%2Fx"),
            ("?password_file=hunter2&ca_file=ca.pem", "?password_file=***&ca_file=ca.pem"),
            ("?p%61ssword=hunter2", "?p%61ssword=***"),
            ("?password%3Dhunter2", "?***"),
            ("?hunter2&ttl=5s", "?***&ttl=5s"),
            ("?pwd=hunter2&api_key=hunter2", "?pwd=***&api_key=***"),
            ("?access_key=hunter2&sig=hunter2", "?access_key=***&sig=***"),
            ("?creds=hunter2&user=u:hunter2&who=u%3ahunter2", "?creds=***&user=***&who=***"),
            ("#password=hunter2", "#***"),
            ("?ttl=5s#hunter2", "?ttl=5s#***"),
        ] {
            for base in ["mysql://h/db", "sqlite:///x.db", "memory:"] {
                assert_eq!(redacted(&format!("{base}{options}")), format!("{base}{shown}"));
            }
        }
    }

    #[test]
    fn text_that_is_no_url_shows_no_password() {
        for (text, shown) in [
            ("host=h user=u password=hunter2", "host=h user=u password=***"),
            ("host=h password = 'hunter2' user=u", "host=h password =***"),
            ("Server=h;Pwd=hunter2;ttl=5s", "Server=h;Pwd=***"),
            ("h?p%61ss=hunter2", "h?p%61ss=***"),
            ("redis://h password=hunter2", "redis://h password=***"),
        ] {
            assert_eq!(redacted(text), shown);
        }
    }
}
