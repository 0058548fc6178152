//! YAML text to a tree of plain values: the only place that knows serde_yaml.
//!
//! serde_yaml is archived; whatever replaces it replaces this file. The tree is built by hand rather than through
//! `serde_yaml::Value` because that type refuses a duplicate key on the spot, and every mistake is to be reported at
//! once, with its key path. Nothing is judged here: a duplicate key stays in the list, a tag stays a tag.

use std::fmt;

use serde::de::{
    Deserialize, Deserializer, EnumAccess, IgnoredAny, MapAccess, SeqAccess, VariantAccess, Visitor,
};

/// A YAML value as it was written. Keys that are not text are kept as the text they look like: all are unknown anyway.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Value {
    Null,
    Bool(bool),
    Int(i128),
    Float(f64),
    Text(String),
    List(Vec<Value>),
    Map(Vec<(String, Value)>),
    /// A value with a tag of its own (`!name …`), which packgate gives no meaning.
    Tagged(String),
}

/// Parses one YAML document; an empty one is [`Value::Null`].
///
/// # Errors
/// What the YAML parser found wrong, with line and column. It stops at its first complaint: behind a syntax error
/// nothing is known to mean anything. Nesting and alias expansion are bounded by serde_yaml.
pub(super) fn read(text: &str) -> Result<Value, String> {
    serde_yaml::from_str(without_mark(text)).map_err(not_yaml)
}

/// Parses the documents of a stream, up to the first complaint if there is one.
pub(super) fn read_stream(text: &str) -> (Vec<Value>, Result<(), String>) {
    let mut documents = Vec::new();
    for document in serde_yaml::Deserializer::from_str(without_mark(text)) {
        match Value::deserialize(document) {
            Ok(value) => documents.push(value),
            Err(error) => return (documents, Err(not_yaml(error))),
        }
    }
    (documents, Ok(()))
}

/// Without the byte order mark that editors and shells of Windows write, and serde_yaml takes for a document.
fn without_mark(text: &str) -> &str {
    text.strip_prefix('\u{feff}').unwrap_or(text)
}

fn not_yaml(error: serde_yaml::Error) -> String {
    format!("this is not YAML: {error}").replace(['\n', '\r'], " ")
}

impl<'de> Deserialize<'de> for Value {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(Builder)
    }
}

struct Builder;

impl<'de> Visitor<'de> for Builder {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a YAML value")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_none<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(Value::Bool(value))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(Value::Int(value.into()))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(Value::Int(value.into()))
    }

    fn visit_i128<E>(self, value: i128) -> Result<Value, E> {
        Ok(Value::Int(value))
    }

    fn visit_u128<E>(self, value: u128) -> Result<Value, E> {
        Ok(Value::Int(i128::try_from(value).unwrap_or(i128::MAX)))
    }

    fn visit_f64<E>(self, value: f64) -> Result<Value, E> {
        Ok(Value::Float(value))
    }

    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(Value::Text(value.to_owned()))
    }

    fn visit_string<E>(self, value: String) -> Result<Value, E> {
        Ok(Value::Text(value))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Value, A::Error> {
        let mut list = Vec::new();
        while let Some(item) = items.next_element()? {
            list.push(item);
        }
        Ok(Value::List(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Value, A::Error> {
        let mut map = Vec::new();
        while let Some((key, value)) = entries.next_entry::<Value, Value>()? {
            map.push((key.as_key(), value));
        }
        Ok(Value::Map(map))
    }

    fn visit_enum<A: EnumAccess<'de>>(self, tagged: A) -> Result<Value, A::Error> {
        let (tag, value) = tagged.variant::<String>()?;
        value.newtype_variant::<IgnoredAny>()?;
        Ok(Value::Tagged(tag))
    }
}

impl Value {
    /// The value under `key`, if this is a mapping that has it.
    pub(super) fn get(&self, key: &str) -> Option<&Value> {
        let Value::Map(entries) = self else {
            return None;
        };
        let (_, value) = entries.iter().find(|(name, _)| name == key)?;
        Some(value)
    }

    pub(super) fn as_text(&self) -> Option<&str> {
        match self {
            Value::Text(text) => Some(text),
            _ => None,
        }
    }

    fn as_key(&self) -> String {
        match self {
            Value::Null => "null".to_owned(),
            Value::Bool(value) => value.to_string(),
            Value::Int(value) => value.to_string(),
            Value::Float(value) => value.to_string(),
            Value::Text(value) => value.clone(),
            Value::List(_) => "[…]".to_owned(),
            Value::Map(_) => "{…}".to_owned(),
            Value::Tagged(tag) => format!("!{tag}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_duplicate_key_is_kept_for_the_walk_to_report() {
        let text = |s: &str| Value::Text(s.to_owned());
        assert_eq!(
            read("a: x\na: y\n"),
            Ok(Value::Map(vec![
                ("a".to_owned(), text("x")),
                ("a".to_owned(), text("y"))
            ]))
        );
    }

    #[test]
    fn scalars_keep_their_type() {
        let yaml = "[~, true, -1, 18446744073709551616, 1.5, yes, '7', !odd {a: 1}]";
        let expected = [
            Value::Null,
            Value::Bool(true),
            Value::Int(-1),
            Value::Int(1 << 64),
            Value::Float(1.5),
            Value::Text("yes".to_owned()),
            Value::Text("7".to_owned()),
            Value::Tagged("odd".to_owned()),
        ];
        assert_eq!(read(yaml), Ok(Value::List(expected.to_vec())));
    }

    #[test]
    fn no_document_is_null_and_a_syntax_error_names_its_line() {
        assert_eq!(read(""), Ok(Value::Null));
        assert_eq!(read("# only a comment\n"), Ok(Value::Null));
        assert!(
            read("listen: x\n  admin: y\n")
                .unwrap_err()
                .contains("line 2")
        );
        assert!(
            read("a: 1\n---\nb: 2\n")
                .unwrap_err()
                .contains("more than one document")
        );
    }

    #[test]
    fn a_byte_order_mark_is_no_document() {
        assert_eq!(read("\u{feff}a: 1\nb: 2\n"), read("a: 1\nb: 2\n"));
        assert_eq!(read_stream("\u{feff}a: 1\nb: 2\n").0.len(), 1);
    }

    #[test]
    fn a_stream_is_read_up_to_the_first_complaint() {
        let (documents, outcome) = read_stream("a: 1\n---\n# nothing\n---\nb: 2\n");
        assert_eq!(documents.len(), 3, "{documents:?}");
        assert_eq!(documents[1], Value::Null);
        assert_eq!(outcome, Ok(()));
        let (documents, outcome) = read_stream("a: 1\n---\nb: [\n---\nc: 3\n");
        assert_eq!(documents[0].get("a"), Some(&Value::Int(1)));
        assert_eq!(documents.len(), 1);
        assert!(outcome.unwrap_err().contains("line 4"));
    }

    #[test]
    fn deep_nesting_and_alias_bombs_end_in_an_error() {
        assert!(read(&"[".repeat(1_000)).is_err());
        let mut bomb = String::from("a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n");
        for n in 1..12 {
            let before = n - 1;
            let items = vec![format!("*a{before}"); 10].join(", ");
            bomb.push_str(&format!("a{n}: &a{n} [{items}]\n"));
        }
        assert!(read(&bomb).is_err());
    }
}
