//! Tests of what is read and of what is said about it.

use super::*;
use crate::options::MAX_TTL;

#[tokio::test]
async fn what_is_wrong_is_said_with_what_there_is() {
    for (url, says) in [
        ("", "no store is named: choose one of memory: noop:"),
        ("  \n", "no store is named"),
        ("nats://u:hunter2@h", "unknown store \"nats\": choose one of"),
        ("memry:", "unknown store \"memry\"; did you mean memory:? choose one of"),
        ("Sqlit:///x", "did you mean sqlite:?"),
        ("/tmp/hunter2.db", "the store has no scheme: choose one of"),
        ("/tmp/hunter2.db", "a file is sqlite:///path"),
        ("hunter2", "the store has no scheme"),
        ("u@hunter2:6379", "the store has no scheme"),
        ("memory:hunter2", "\"memory\" takes nothing but options"),
        ("noop://hunter2", "\"noop\" takes nothing but options"),
        (
            "memory:?tll=5s",
            "unknown option \"tll\"; did you mean \"ttl\"? there are breaker, connect_timeout, namespace",
        ),
        ("memory:?password=hunter2", "unknown option \"password\": there are breaker, connect_timeout, namespace"),
        ("memory:?ttl=soon", "option \"ttl\": invalid duration \"soon\": write it like 30s"),
        ("memory:?ttl=", "option \"ttl\": invalid duration"),
        ("memory:?ttl=0", "option \"ttl\": it must be longer than zero"),
        ("memory:?ttl=-5s", "option \"ttl\": invalid duration"),
        ("memory:?op_timeout=0s", "option \"op_timeout\": it must be longer than zero"),
        ("memory:?ttl=5s&ttl=6s", "option \"ttl\" is given twice"),
        ("memory:?retry=-1s", "option \"retry\": invalid duration"),
        ("memory:?breaker=10s&breaker=off", "option \"breaker\" is given twice"),
        ("memory:?own_runtime=perhaps", "option \"own_runtime\": neither on nor off"),
        ("memory:?namespace=a:b", "invalid namespace"),
        ("memory:#hunter2", "write %23"),
        ("hunter2:x", "unknown store: choose one of"),
        ("memory:?hunter2", "unknown option: there are breaker, connect_timeout, namespace"),
        ("memory:?password%3Dhunter2", "unknown option: there are breaker, connect_timeout, namespace"),
        ("memory://u:a?hunter2@h", "an option is unknown or malformed, and not repeated"),
        ("memory://u:a?hunter@h", "write '?' as %3F"),
        ("memory://u:a?ttl=hunter2@h", "an option is unknown or malformed, and not repeated"),
        ("memory://u:a?namespace=hunter2:&x@h", "an option is unknown or malformed, and not repeated"),
        ("memory:?ttl=a-very-long-text-hunter2", "invalid duration \"a-very-long-text\": write"),
    ] {
        let error = open(url).await.err().unwrap_or_else(|| panic!("{url} was taken"));
        assert_eq!(error.kind(), ErrorKind::InvalidConfig, "{url}");
        let text = error.to_string();
        assert!(text.contains(says), "{url}: {text}");
        assert!(!text.contains("hunter2") && !text.contains('\n'), "{url}: {text}");
    }
}

#[tokio::test]
async fn stores_are_named_by_scheme() {
    for url in ["memory:", " MEMORY:// ", "noop:", "memory:?ttl=30&namespace=&op_timeout=1.5s&connect_timeout=2m"] {
        assert!(open(url).await.is_ok(), "{url}");
    }
}

#[cfg(feature = "redis")]
#[tokio::test]
async fn a_quorum_is_named_by_its_nodes() {
    for (url, kind, says) in [
        ("redlock:", ErrorKind::InvalidConfig, "write redlock://host1,host2,host3"),
        ("redlock://", ErrorKind::InvalidConfig, "write redlock://host1,host2,host3"),
        ("redlock://u:hunter2@a,b", ErrorKind::InvalidConfig, "needs 3 stores"),
        ("redlock://a,b,", ErrorKind::InvalidConfig, "has no name"),
        ("redlock://a,b,A:6379", ErrorKind::InvalidConfig, "named twice"),
        ("redlock://a,b,c?node_timeout=0", ErrorKind::InvalidConfig, "option \"node_timeout\": it must be longer"),
        ("redlock://a,b,c?max_tll=5s", ErrorKind::InvalidConfig, "did you mean \"max_ttl\"?"),
        ("redlock://u:hunter2@127.0.0.1:1,127.0.0.1:2,127.0.0.1:3", ErrorKind::Unavailable, "127.0.0.1:2: unavailable"),
    ] {
        let error = open(url).await.unwrap_err();
        assert_eq!(error.kind(), kind, "{url}: {error}");
        let text = error.to_string();
        assert!(text.contains(says) && !text.contains("hunter2"), "{url}: {text}");
    }
}

#[cfg(feature = "sqlite")]
#[tokio::test]
async fn a_file_may_have_any_name() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("a b?.db");
    let url = format!("SQLite://{}?ttl=10s", path.display().to_string().replace(' ', "%20").replace('?', "%3F"));
    drop(open(&url).await.unwrap());
    assert!(path.is_file());
}

#[test]
fn durations_are_read_as_people_write_them() {
    for (text, ms) in [("30", 30_000), ("1.5", 1500), ("1.5s", 1500), ("2m", 120_000), ("250ms", 250), ("0", 0)] {
        assert_eq!(parse_duration(text).unwrap(), Duration::from_millis(ms), "{text}");
    }
    for text in ["", " ", ".", "1.2.3", "-1", "-1s", "inf", "nan", "1e400", "5 parsecs", &"9".repeat(400)] {
        assert_eq!(parse_duration(text).unwrap_err().kind(), ErrorKind::InvalidConfig, "{text}");
    }
}

fn from(variables: &[(&str, &str)]) -> Config {
    Config::from_variables("APP", |name| {
        let found = variables.iter().find(|(known, _)| *known == name);
        found.map(|(_, value)| value.into())
    })
}

#[test]
fn layers_override_each_other() {
    let second = Duration::from_secs(1);
    let top = Config::default().ttl(second * 7);
    let env = from(&[("APP_STORE", " Memory:?ttl=8s&namespace=url "), ("APP_WAIT", "0")]);
    let file = Config::from_url("noop:?op_timeout=1s").namespace("file").wait(Wait::Forever);
    let config = top.clone().or(env.clone()).or(file.clone());
    let resolved = config.resolve().unwrap();
    assert_eq!(
        (resolved.ttl, resolved.namespace.as_str(), resolved.wait, resolved.op_timeout),
        (second * 7, "url", Wait::No, MAX_OPERATION_LIMIT)
    );
    // The same, put together from below.
    assert_eq!(top.or(env.or(file)).describe(), config.describe());
    let same = from(&[("APP_STORE", "memory:?ttl=8s"), ("APP_TTL", "9s")]);
    assert_eq!(same.resolve().unwrap().ttl, second * 9);
    let above = Config::from_url("memory:?ttl=8s").or(from(&[("APP_TTL", "9s")]));
    assert_eq!(above.resolve().unwrap().ttl, second * 8);
}

#[test]
fn every_setting_is_described_without_secrets() {
    let config = from(&[
        ("APP_STORE", "memory:?ttl=8s&password=hunter2"),
        ("APP_PASSWORD", "hunter2"),
        ("APP_NAMESPACE", ""),
        ("APP_CONNECT_TIMEOUT", ""),
        ("APP_OP_TIMEOUT", "hunter2"),
        ("APP_BREAKER", "10s"),
        ("APP_OWN_RUNTIME", " On "),
    ]);
    let text: Vec<_> = config
        .describe()
        .into_iter()
        .map(|setting| format!("{}={} {}", setting.name, setting.value.unwrap_or_default(), setting.source))
        .collect();
    assert_eq!(
        text,
        [
            "store=memory:?ttl=8s&password=*** $APP_STORE",
            "namespace= $APP_NAMESPACE",
            "ttl=30s default",
            "wait=forever default",
            "op_timeout=invalid $APP_OP_TIMEOUT",
            "connect_timeout= default",
            "retry=off default",
            "breaker=10s $APP_BREAKER",
            "own_runtime=on $APP_OWN_RUNTIME",
            "password=*** $APP_PASSWORD",
            "password_file= default",
        ]
    );
    assert!(!format!("{config:?}").contains("hunter2"));
}

#[test]
fn only_what_is_used_is_checked() {
    let bad = from(&[("APP_TTL", "soon"), ("APP_PASSWORD_FILE", "/no/such/file"), ("APP_STORE", "nosuch:")]);
    let good = Config::from_url("memory:").ttl(DEFAULT_TTL);
    assert!(good.clone().or(bad.clone()).resolve().is_ok());
    for (config, kind, says) in [
        (Config::default(), ErrorKind::InvalidConfig, "no store is named: choose one of memory: noop:"),
        (bad.clone(), ErrorKind::InvalidConfig, "unknown store \"nosuch\""),
        (
            Config::from_url("memory").or(bad),
            ErrorKind::InvalidInput,
            "invalid ttl in $APP_TTL: invalid duration \"soon\"",
        ),
        (
            Config::from_url("memory").ttl(MAX_TTL * 2),
            ErrorKind::InvalidInput,
            "invalid ttl: 172800s is not between 10ms and 24h",
        ),
        (Config::from_url("memory").namespace("a b"), ErrorKind::InvalidConfig, "invalid namespace"),
        (
            Config::from_url("memory").or(from(&[("APP_WAIT", "-1")])),
            ErrorKind::InvalidConfig,
            "invalid wait in $APP_WAIT",
        ),
        (
            from(&[("APP_STORE", "memory:"), ("APP_STORE_FILE", "/x")]),
            ErrorKind::InvalidConfig,
            "invalid store in $APP_STORE_FILE: APP_STORE is set as well",
        ),
    ] {
        let error = config.resolve().unwrap_err();
        assert_eq!(error.kind(), kind, "{error}");
        assert!(error.to_string().contains(says), "{error}");
    }
}

#[test]
fn secrets_come_from_files() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("secret");
    let name = path.to_str().unwrap();
    std::fs::write(&path, "memory:\nnext line").unwrap();
    assert_eq!(from(&[("APP_STORE_FILE", name)]).resolve().unwrap().store, "memory:");
    let file = from(&[("APP_PASSWORD_FILE", name)]);
    assert_eq!(file.read_password().unwrap().as_deref(), Some("memory:"));
    assert_eq!(
        file.clone().or(Config::default().password("low")).read_password().unwrap(),
        file.read_password().unwrap()
    );
    let above = Config::default().password("high").or(file.clone());
    assert_eq!(above.read_password().unwrap().as_deref(), Some("high"));
    assert!(file.password("same place").read_password().is_err());
    std::fs::write(&path, "").unwrap();
    assert!(from(&[("APP_STORE_FILE", name)]).resolve().is_err());
    assert_eq!(Config::default().read_password().unwrap(), None);
}

/// A usual slip: the secret itself where the file that holds it is to be named.
#[test]
fn a_secret_in_the_place_of_its_file_is_not_shown() {
    let url = from(&[("APP_STORE_FILE", "redis://u:hunter2@h")]).resolve().unwrap_err();
    let mut said = vec![url.to_string()];
    for text in ["hunter2", "run/hunter2", "/hunter2", "/W3/hunter2=="] {
        let config = Config::default().password_file(text);
        said.push(config.read_password().unwrap_err().to_string());
        said.extend(config.describe().into_iter().filter_map(|setting| setting.value));
    }
    for text in said {
        assert!(!text.contains("hunter2"), "{text}");
    }
    // What can only be a path helps to find it.
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x").display().to_string();
    let error = Config::default().password_file(&path).read_password().unwrap_err();
    assert!(error.to_string().contains(&format!("cannot read {path}: ")), "{error}");
    let error = from(&[("APP_STORE_FILE", &path)]).resolve().unwrap_err();
    assert!(error.to_string().contains(&format!("cannot read {path}: ")), "{error}");
}

#[cfg(feature = "redis")]
#[tokio::test]
async fn a_secret_in_the_place_of_its_file_is_not_shown_by_options() {
    for url in [
        "redis://h?password_file=hunter2",
        "redis+sentinel://h/x?sentinel_password_file=hunter2",
        "redlock://a,b,c?password_file=hunter2",
    ] {
        let text = open(url).await.unwrap_err().to_string();
        assert!(text.contains("cannot read the file that it names: ") && !text.contains("hunter2"), "{url}: {text}");
    }
}

#[cfg(feature = "redis")]
#[test]
fn a_password_that_the_url_makes_needless_is_not_read() {
    let missing = from(&[("APP_PASSWORD_FILE", "/nowhere/secret")]);
    for url in ["redis://u:p@h", "redis://:p@h/1", "redis://h?password_file=/other", "redlock://u:p@a,b,c", "memory:"] {
        missing.clone().or(Config::from_url(url)).resolve().unwrap();
    }
    for url in ["redis://h", "redis://u@h", "redis://h/a:b@c", "redis+unix:///a:b@c"] {
        assert!(missing.clone().or(Config::from_url(url)).resolve().is_err(), "{url}");
    }
}

#[tokio::test]
async fn a_manager_gets_what_was_said() {
    let config = Config::from_url(" MEMORY ").namespace("app").ttl(Duration::from_secs(3)).wait(Wait::No);
    let locks = config.connect().await.unwrap();
    assert_eq!((locks.namespace(), locks.ttl()), ("app", Duration::from_secs(3)));
}

#[tokio::test]
async fn a_manager_of_settings_names_its_store_or_says_which_there_are() {
    let locks = LockManager::from_config(&Config::from_url("\t Memory :?breaker=10s".trim_end())).await;
    assert!(locks.is_ok(), "{locks:?}");
    for url in ["", "  ", "rediss-cluster", "mysql://h"] {
        let text = LockManager::from_config(&Config::from_url(url)).await.unwrap_err().to_string();
        assert!(text.contains("choose one of memory: noop:"), "{url}: {text}");
    }
}

#[test]
fn what_stands_in_front_of_a_store_is_off_unless_asked_for() {
    let second = Duration::from_secs(1);
    let plain = Config::from_url("memory").resolve().unwrap();
    assert_eq!((plain.retry, plain.breaker, plain.own_runtime), (None, None, false));
    let config = Config::from_url("memory:?retry=2s&breaker=10&own_runtime=true");
    let asked = config.resolve().unwrap();
    assert_eq!((asked.retry, asked.breaker, asked.own_runtime), (Some(second * 2), Some(second * 10), true));
    // A higher place can switch off what a lower one asks for.
    for lower in [config, Config::from_url("memory").retry(second).breaker(second).own_runtime(true)] {
        let off = from(&[("APP_RETRY", "off"), ("APP_BREAKER", "0"), ("APP_OWN_RUNTIME", "no")]);
        let resolved = off.or(lower).resolve().unwrap();
        assert_eq!((resolved.retry, resolved.breaker, resolved.own_runtime), (None, None, false));
    }
    let error = from(&[("APP_STORE", "memory"), ("APP_BREAKER", "soon")]).resolve().unwrap_err();
    assert!(error.to_string().contains("invalid breaker in $APP_BREAKER"), "{error}");
}
