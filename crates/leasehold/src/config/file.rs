//! Settings from files, and from whatever else serde reads.

use std::fmt;
use std::fs;
use std::io;
use std::path::Path;
use std::time::Duration;

use serde::de::{self, Deserialize, Deserializer, MapAccess, Visitor};

use super::source::{Said, Source};
use super::words::{length_or_off, switch};
use super::{Config, invalid, named, near, parse_wait, positive};
use crate::error::{Error, ErrorKind, Result};

const KEYS: [&str; 11] = [
    "breaker",
    "connect_timeout",
    "namespace",
    "op_timeout",
    "own_runtime",
    "password",
    "password_file",
    "retry",
    "store",
    "ttl",
    "wait",
];

impl Config {
    /// Settings from TOML.
    ///
    /// ```
    /// # use leasehold::config::Config;
    /// let config = Config::from_toml("store = 'memory:'\nttl = '1m'\nwait = 30")?;
    /// assert_eq!(config.resolve()?.ttl.as_secs(), 60);
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidConfig`] for malformed TOML and unknown keys, with the number of the line and never its
    /// text. A malformed value is an error of [`resolve`](Self::resolve), and only if nothing above overrides it.
    pub fn from_toml(text: &str) -> Result<Self> {
        toml::from_str(text).map_err(|error| {
            let line = error.span().map(|span| 1 + text.bytes().take(span.start).filter(|byte| *byte == b'\n').count());
            let line = line.map_or(String::new(), |line| format!("line {line}: "));
            invalid(format!("{line}{}", error.message().lines().collect::<Vec<_>>().join("; ")))
        })
    }

    /// Settings from a TOML file; `None` if there is no such file.
    ///
    /// # Errors
    ///
    /// As [`from_toml`](Self::from_toml), with the file's name; [`ErrorKind::InvalidConfig`] if it cannot be read.
    pub fn from_file(path: &Path) -> Result<Option<Self>> {
        let text = match fs::read_to_string(path) {
            Ok(text) => text,
            Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
                return Ok(None);
            }
            Err(error) => {
                let message = format!("cannot read the configuration {}: {error}", path.display());
                return Err(Error::new(ErrorKind::InvalidConfig, message).with_source(error));
            }
        };
        let config = Self::from_toml(&text)
            .map_err(|error| invalid(format!("configuration {}: {}", path.display(), error.message())))?;
        Ok(Some(config.said_by(&Source::File(path.into()))))
    }
}

/// A map with the keys that files have; lengths of time are text (`"30s"`) or a number of seconds.
impl<'de> Deserialize<'de> for Config {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(Keys)
    }
}

struct Keys;

impl<'de> Visitor<'de> for Keys {
    type Value = Config;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("settings")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Config, A::Error> {
        let mut config = Config::default();
        while let Some(Key(key)) = map.next_key()? {
            let is_repeated = match key {
                "store" => config.store.replace(said(Ok(map.next_value::<Text>()?.0))).is_some(),
                "namespace" => config.namespace.replace(said(Ok(map.next_value::<Text>()?.0))).is_some(),
                "ttl" => config.ttl.replace(said(length(&mut map)?)).is_some(),
                "op_timeout" => config.op_timeout.replace(said(length(&mut map)?)).is_some(),
                "connect_timeout" => config.connect_timeout.replace(said(length(&mut map)?)).is_some(),
                "wait" => config.wait.replace(said(parse_wait(&map.next_value::<Length>()?.0))).is_some(),
                "retry" => config.retry.replace(said(length_or_off(&map.next_value::<Length>()?.0))).is_some(),
                "breaker" => config.breaker.replace(said(length_or_off(&map.next_value::<Length>()?.0))).is_some(),
                "own_runtime" => config.own_runtime.replace(said(switch(&map.next_value::<Switch>()?.0))).is_some(),
                "password" => config.password.replace(said(Ok(map.next_value::<Text>()?.0))).is_some(),
                _ => {
                    let path = map.next_value::<Text>()?.0;
                    config.password_file.replace(said(Ok(path.into()))).is_some()
                }
            };
            if is_repeated {
                return Err(de::Error::duplicate_field(key));
            }
        }
        Ok(config)
    }
}

fn said<T: Clone>(value: Result<T>) -> Said<T> {
    Said::of(value, Source::Program)
}

fn length<'de, A: MapAccess<'de>>(map: &mut A) -> Result<Result<Duration>, A::Error> {
    map.next_value::<Length>().map(|text| positive(&text.0))
}

/// The name of a setting; an unknown one is an error where it stands.
struct Key(&'static str);

impl<'de> Deserialize<'de> for Key {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Name;

        impl Visitor<'_> for Name {
            type Value = Key;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("the name of a setting")
            }

            fn visit_str<E: de::Error>(self, name: &str) -> Result<Key, E> {
                KEYS.into_iter().find(|known| *known == name).map(Key).ok_or_else(|| {
                    let near = near(name, &KEYS);
                    let meant = near.map_or(": ".to_owned(), |near| format!("; did you mean {near:?}? "));
                    E::custom(format_args!("unknown key{}{meant}there are {}", named(name, near), KEYS.join(", ")))
                })
            }
        }

        deserializer.deserialize_identifier(Name)
    }
}

/// A text; a complaint about anything else does not repeat it, because it may be a password.
struct Text(String);

impl<'de> Deserialize<'de> for Text {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Written;

        impl Visitor<'_> for Written {
            type Value = Text;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a text in quotes")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Text, E> {
                Ok(Text(text.to_owned()))
            }

            fn visit_u64<E: de::Error>(self, _: u64) -> Result<Text, E> {
                Err(E::custom("a number, expected a text in quotes"))
            }

            fn visit_i64<E: de::Error>(self, _: i64) -> Result<Text, E> {
                Err(E::custom("a number, expected a text in quotes"))
            }

            fn visit_u128<E: de::Error>(self, _: u128) -> Result<Text, E> {
                Err(E::custom("a number, expected a text in quotes"))
            }

            fn visit_i128<E: de::Error>(self, _: i128) -> Result<Text, E> {
                Err(E::custom("a number, expected a text in quotes"))
            }

            fn visit_f64<E: de::Error>(self, _: f64) -> Result<Text, E> {
                Err(E::custom("a number, expected a text in quotes"))
            }
        }

        deserializer.deserialize_any(Written)
    }
}

/// On or off, as it was written.
struct Switch(String);

impl<'de> Deserialize<'de> for Switch {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Written;

        impl Visitor<'_> for Written {
            type Value = Switch;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("true or false")
            }

            fn visit_bool<E: de::Error>(self, is_on: bool) -> Result<Switch, E> {
                Ok(Switch(is_on.to_string()))
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Switch, E> {
                Ok(Switch(text.to_owned()))
            }
        }

        deserializer.deserialize_any(Written)
    }
}

/// A length of time as it was written.
struct Length(String);

impl<'de> Deserialize<'de> for Length {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Written;

        impl Visitor<'_> for Written {
            type Value = Length;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a length of time like \"30s\", or a number of seconds")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Length, E> {
                Ok(Length(text.to_owned()))
            }

            fn visit_u64<E: de::Error>(self, seconds: u64) -> Result<Length, E> {
                Ok(Length(seconds.to_string()))
            }

            fn visit_i64<E: de::Error>(self, seconds: i64) -> Result<Length, E> {
                Ok(Length(seconds.to_string()))
            }

            fn visit_f64<E: de::Error>(self, seconds: f64) -> Result<Length, E> {
                Ok(Length(seconds.to_string()))
            }
        }

        deserializer.deserialize_any(Written)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_read_strictly_and_without_telling_its_content() {
        for (text, says) in [
            ("tll = '5s'", "line 1: unknown key \"tll\"; did you mean \"ttl\"? there are breaker, connect_timeout"),
            ("ttl = '5s'\nttl = '6s'", "line 2: "),
            ("ttl = '5s'\n\n[redis]\nhost = 'hunter2'", "line 3: unknown key \"redis\": there are"),
            ("ttl = true", "line 1: "),
            ("password = 'hunter2'\nstore = ", "line 2: "),
            ("password = 'hunter2", "line 1: "),
            ("[store]\nurl = 'hunter2'", "line 1: "),
            ("password = ['hunter2']", "line 1: "),
            ("password = 1234567", "line 1: a number, expected a text in quotes"),
            ("password = 123.4567", "line 1: a number, expected a text in quotes"),
            ("password = 2026-11-29", "line 1: "),
        ] {
            let error = Config::from_toml(text).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidConfig, "{text}");
            let said = error.to_string();
            assert!(
                said.contains(says)
                    && !said.contains("hunter2")
                    && !said.contains("4567")
                    && !said.contains("2026")
                    && !said.contains('\n'),
                "{text}: {said}"
            );
        }
    }

    /// Formats other than TOML have numbers as long as that.
    #[test]
    fn a_long_number_is_not_repeated_either() {
        use serde::de::IntoDeserializer;
        type Refusal = de::value::Error;

        let unsigned: Result<Text, Refusal> =
            Text::deserialize(12_345_678_901_234_567_890_123_u128.into_deserializer());
        let signed: Result<Text, Refusal> =
            Text::deserialize((-12_345_678_901_234_567_890_123_i128).into_deserializer());
        for refused in [unsigned, signed] {
            assert_eq!(refused.err().unwrap().to_string(), "a number, expected a text in quotes");
        }
    }

    #[test]
    fn every_key_is_taken() {
        let text = "store = ' Memory '\nnamespace = ''\nttl = 20\nwait = 1.5\nop_timeout = '2s'\n\
                    connect_timeout = '1m'\nretry = 'off'\nbreaker = 10\nown_runtime = true\npassword_file = '/run/x'\npassword = 'x'";
        let resolved = Config::from_toml(text).unwrap().resolve().unwrap();
        assert_eq!((resolved.ttl.as_secs(), resolved.namespace.as_str()), (20, ""));
        assert_eq!(resolved.wait, crate::Wait::UpTo(Duration::from_millis(1500)));
        let in_front = (resolved.retry, resolved.breaker, resolved.own_runtime);
        assert_eq!(in_front, (None, Some(Duration::from_secs(10)), true));
    }

    #[test]
    fn a_file_that_is_not_there_is_none() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("config.toml");
        assert!(Config::from_file(&path).unwrap().is_none());
        assert!(Config::from_file(directory.path()).is_err());
        fs::write(&path, "store = 'memory:'\nttl = 'soon'").unwrap();
        let config = Config::from_file(&path).unwrap().unwrap();
        let said = config.resolve().unwrap_err().to_string();
        assert!(said.contains(&format!("invalid ttl in {}: ", path.display())), "{said}");
        assert!(Config::default().ttl(crate::DEFAULT_TTL).or(config).resolve().is_ok());
    }

    /// As part of what a program reads for itself.
    #[test]
    fn settings_stand_inside_of_others() {
        let service: std::collections::HashMap<String, Config> =
            toml::from_str("[locks]\nstore = ' MEMORY '\nown_runtime = 'off'").unwrap();
        assert_eq!(service["locks"].resolve().unwrap().store, " MEMORY ");
        assert!(toml::from_str::<std::collections::HashMap<String, Config>>("[locks]\nstroe = 'x'").is_err());
    }
}
