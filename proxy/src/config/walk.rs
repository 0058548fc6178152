//! Walking the tree: every value knows its key path, every mistake is collected, nothing stops at the first.
//!
//! Readers return `None` for "wrong, and said so". A check that compares two values asks for both to be `Some`, so one
//! mistake is reported once and not again as its own consequence. Deriving serde's `Deserialize` for the configuration
//! was rejected for stopping at the first mistake and for messages that name Rust types.

use std::{fmt::Display, ops::RangeInclusive, time::Duration};

use super::{
    errors::ConfigError,
    keys,
    raw::Value,
    scalars::{self, shown},
};

/// The mistakes found so far.
#[derive(Default)]
pub(super) struct Mistakes(pub(super) Vec<ConfigError>);

impl Mistakes {
    pub(super) fn add(&mut self, path: impl Into<String>, message: impl Display) {
        let message = message.to_string().replace(['\n', '\r'], " ");
        self.0.push(ConfigError {
            path: path.into(),
            message,
        });
    }
}

/// A value and where it stands. The place may be a flag (`--listen`): flags replace values before they are read.
#[derive(Clone)]
pub(super) struct Entry<'v> {
    pub(super) path: String,
    pub(super) value: &'v Value,
}

/// How a value of one kind is read; the reader reports what is wrong itself.
pub(super) trait Read<T>: Fn(&Entry<'_>, &mut Mistakes) -> Option<T> {}
impl<T, F: Fn(&Entry<'_>, &mut Mistakes) -> Option<T>> Read<T> for F {}

impl<'v> Entry<'v> {
    /// Reports that this is not what it must be.
    fn wrong_type(&self, must_be: &str, mistakes: &mut Mistakes) {
        let found = match self.value {
            Value::Null => {
                return mistakes.add(
                    &self.path,
                    format!("has no value: give it {must_be}, or remove the key"),
                );
            }
            Value::Bool(value) => value.to_string(),
            Value::Int(value) => format!("the number {value}"),
            Value::Float(value) => format!("the number {value}"),
            Value::Text(value) => format!("the text {}", shown(value)),
            Value::List(_) => "a list".to_owned(),
            Value::Map(_) => "a mapping".to_owned(),
            Value::Tagged(tag) => format!("a value with the YAML tag {}", shown(tag)),
        };
        mistakes.add(&self.path, format!("must be {must_be}, not {found}"));
    }

    pub(super) fn text(&self, must_be: &str, mistakes: &mut Mistakes) -> Option<&'v str> {
        match self.value {
            Value::Text(text) => Some(text),
            Value::Int(_) | Value::Float(_) | Value::Bool(_) => {
                self.wrong_type(&format!("{must_be} (text: put it in quotes)"), mistakes);
                None
            }
            _ => {
                self.wrong_type(must_be, mistakes);
                None
            }
        }
    }

    /// The items of a list; of no value, none.
    pub(super) fn items(&self, must_be: &str, mistakes: &mut Mistakes) -> Option<Vec<Entry<'v>>> {
        match self.value {
            Value::Null => Some(Vec::new()),
            Value::List(items) => {
                let at = |n: usize| format!("{}[{n}]", self.path);
                Some(
                    items
                        .iter()
                        .enumerate()
                        .map(|(n, value)| Entry { path: at(n), value })
                        .collect(),
                )
            }
            _ => {
                self.wrong_type(must_be, mistakes);
                None
            }
        }
    }
}

/// `true` or `false`.
pub(super) fn flag(entry: &Entry<'_>, mistakes: &mut Mistakes) -> Option<bool> {
    match entry.value {
        Value::Bool(value) => Some(*value),
        _ => {
            entry.wrong_type("true or false", mistakes);
            None
        }
    }
}

/// A share of the whole, from 0 to 1.
pub(super) fn share(entry: &Entry<'_>, mistakes: &mut Mistakes) -> Option<f64> {
    number(0.0..=1.0)(entry, mistakes)
}

/// A number within `range`, which holds neither infinity nor what is no number.
pub(super) fn number(range: RangeInclusive<f64>) -> impl Read<f64> {
    move |entry, mistakes| {
        let number = match *entry.value {
            Value::Int(value) => u32::try_from(value).ok().map(f64::from),
            Value::Float(value) => Some(value),
            _ => None,
        };
        let number = number.filter(|number| range.contains(number));
        if number.is_none() {
            let (least, most) = (range.start(), range.end());
            let must_be = format!("a number from {least} to {most}, such as {}", least + 0.1);
            entry.wrong_type(&must_be, mistakes);
        }
        number
    }
}

/// A whole number within `range`.
pub(super) fn whole(range: RangeInclusive<u32>) -> impl Read<u32> {
    move |entry, mistakes| {
        let must_be = match *range.end() {
            u32::MAX => format!("a whole number, at least {}", range.start()),
            end => format!("a whole number from {} to {end}", range.start()),
        };
        let number = match entry.value {
            Value::Int(value) => u32::try_from(*value)
                .ok()
                .filter(|value| range.contains(value)),
            _ => None,
        };
        if number.is_none() {
            entry.wrong_type(&must_be, mistakes);
        }
        number
    }
}

/// A duration of at least `least`. A bare 0 needs no unit; every other number does.
pub(super) fn duration(least: Duration) -> impl Read<Duration> {
    move |entry, mistakes| {
        let parsed = match entry.value {
            Value::Int(0) => Ok(Duration::ZERO),
            Value::Text(text) => scalars::duration(text),
            Value::Int(number) => Err(format!(
                "needs a unit: `{number}s` for seconds, `{number}m` for minutes"
            )),
            _ => {
                entry.wrong_type("a duration such as `30s` or `5m`", mistakes);
                return None;
            }
        };
        let checked = parsed.and_then(|value| match value < least {
            true => Err(format!(
                "must be at least {}",
                humantime::format_duration(least)
            )),
            false => Ok(value),
        });
        checked
            .map_err(|message| mistakes.add(&entry.path, message))
            .ok()
    }
}

/// A number of bytes, at least `least`.
pub(super) fn size(least: u64) -> impl Read<u64> {
    move |entry, mistakes| {
        let parsed = match entry.value {
            Value::Int(number) => scalars::size(&number.to_string()),
            Value::Text(text) => scalars::size(text),
            _ => {
                entry.wrong_type(
                    "a size such as `1MiB`, `64KiB` or a number of bytes",
                    mistakes,
                );
                return None;
            }
        };
        let checked = parsed.and_then(|value| match value < least {
            true => Err(format!("must be at least {}", scalars::show_size(least))),
            false => Ok(value),
        });
        checked
            .map_err(|message| mistakes.add(&entry.path, message))
            .ok()
    }
}

/// One of a few words.
pub(super) fn word<T: Copy>(words: &'static [(&'static str, T)]) -> impl Read<T> {
    move |entry, mistakes| {
        let names: Vec<&str> = words.iter().map(|(name, _)| *name).collect();
        let text = entry.text(&one_of(&names), mistakes)?;
        let found = words
            .iter()
            .find(|(name, _)| *name == text)
            .map(|(_, value)| *value);
        if found.is_none() {
            let hint = did_you_mean(keys::closest(text, &names));
            mistakes.add(
                &entry.path,
                format!("must be {}, not {}{hint}", one_of(&names), shown(text)),
            );
        }
        found
    }
}

/// Text that `parse` understands; `must_be` says what it must be.
pub(super) fn parsed<T>(
    must_be: &'static str,
    parse: impl Fn(&str) -> Result<T, String>,
) -> impl Read<T> {
    move |entry, mistakes| {
        let text = entry.text(must_be, mistakes)?;
        parse(text)
            .map_err(|message| mistakes.add(&entry.path, message))
            .ok()
    }
}

/// A mapping whose keys are known beforehand.
pub(super) struct Section<'v> {
    pub(super) path: String,
    entries: Vec<(&'v str, Entry<'v>)>,
}

impl<'v> Section<'v> {
    /// Opens a mapping and reports every key it must not have. Absent or without a value it is an empty one; so it is,
    /// once reported, when it is no mapping at all.
    pub(super) fn open(
        path: &str,
        value: Option<&'v Value>,
        known: &'static [&'static str],
        mistakes: &mut Mistakes,
    ) -> Section<'v> {
        let mut section = Section {
            path: path.to_owned(),
            entries: Vec::new(),
        };
        let map = match value {
            None | Some(Value::Null) => return section,
            Some(Value::Map(map)) => map,
            Some(value) => {
                let must_be = format!("a mapping with the keys {}", known.join(", "));
                Entry {
                    path: section.path.clone(),
                    value,
                }
                .wrong_type(&must_be, mistakes);
                return section;
            }
        };
        for (key, value) in map {
            let path = section.path_of(key);
            if !known.contains(&key.as_str()) {
                mistakes.add(section.path_of(&printable(key)), unknown(key, known));
            } else if section.get(key).is_some() {
                mistakes.add(path, "is given twice in the same mapping; keep one");
            } else {
                section.entries.push((key, Entry { path, value }));
            }
        }
        section
    }

    pub(super) fn path_of(&self, key: &str) -> String {
        match self.path.as_str() {
            "" => key.to_owned(),
            path => format!("{path}.{key}"),
        }
    }

    pub(super) fn get(&self, key: &str) -> Option<&Entry<'v>> {
        self.entries
            .iter()
            .find(|(name, _)| *name == key)
            .map(|(_, entry)| entry)
    }

    /// Puts a value that was given elsewhere, at `path`, in the place of whatever `key` has.
    pub(super) fn replace(&mut self, key: &'static str, path: &str, value: &'v Value) {
        self.entries.retain(|(name, _)| *name != key);
        self.entries.push((
            key,
            Entry {
                path: path.to_owned(),
                value,
            },
        ));
    }

    /// Opens the mapping under `key`.
    pub(super) fn section(
        &self,
        key: &str,
        known: &'static [&'static str],
        mistakes: &mut Mistakes,
    ) -> Section<'v> {
        Section::open(
            &self.path_of(key),
            self.get(key).map(|entry| entry.value),
            known,
            mistakes,
        )
    }

    /// The value under `key`, or `default` without one; `None` if what is there is wrong.
    pub(super) fn read<T>(
        &self,
        key: &str,
        default: T,
        read: impl Read<T>,
        mistakes: &mut Mistakes,
    ) -> Option<T> {
        match self.get(key) {
            Some(entry) => read(entry, mistakes),
            None => Some(default),
        }
    }

    /// The value under `key`, which must be there: `what` it is, for the message. `None` if it is missing or wrong.
    pub(super) fn required<T>(
        &self,
        key: &str,
        what: &str,
        read: impl Read<T>,
        mistakes: &mut Mistakes,
    ) -> Option<T> {
        let value = self.optional(key, read, mistakes)?;
        if value.is_none() {
            mistakes.add(self.path_of(key), format!("is missing: {what}"));
        }
        value
    }

    /// The value under `key`, if there is one; the outer `None` if what is there is wrong.
    pub(super) fn optional<T>(
        &self,
        key: &str,
        read: impl Read<T>,
        mistakes: &mut Mistakes,
    ) -> Option<Option<T>> {
        match self.get(key) {
            Some(entry) => read(entry, mistakes).map(Some),
            None => Some(None),
        }
    }
}

fn unknown(key: &str, known: &[&str]) -> String {
    if let Some(close) = keys::closest(key, known) {
        return format!("unknown key, did you mean `{close}`?");
    }
    match keys::home_of(key) {
        Some(home) => format!("unknown key here, did you mean `{home}`?"),
        None => format!("unknown key; known here: {}", known.join(", ")),
    }
}

/// ", did you mean …?", or nothing.
pub(super) fn did_you_mean(close: Option<&str>) -> String {
    close
        .map(|close| format!(", did you mean `{close}`?"))
        .unwrap_or_default()
}

/// "a, b or c"
pub(super) fn one_of(names: &[&str]) -> String {
    match names {
        [] => String::new(),
        [only] => (*only).to_owned(),
        [first @ .., last] => format!("{} or {last}", first.join(", ")),
    }
}

/// A key as part of a path: short, and nothing that would disturb a terminal.
fn printable(key: &str) -> String {
    let quoted = shown(key);
    quoted.trim_matches('`').to_owned()
}
