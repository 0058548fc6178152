//! A file from `examples/`, as it is shipped but for what a test has to put in: addresses, and the one setting that it is
//! about. What is replaced must be there, so that an example cannot move away from its test unnoticed.

use std::{fs, path::Path};

use serde_json::Value;

/// The text of an example.
#[derive(Clone, Debug)]
pub struct Shipped {
    file: String,
    text: String,
}

impl Shipped {
    /// `examples/FILE`.
    pub fn example(file: &str) -> Shipped {
        let examples = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples");
        let text = fs::read_to_string(examples.join(file));
        Shipped {
            file: file.to_owned(),
            text: text.unwrap_or_else(|e| panic!("examples/{file}: {e}")),
        }
    }

    /// The same with `to` in place of `from`, which stands there once.
    #[track_caller]
    pub fn with(self, from: &str, to: &str) -> Shipped {
        let found = self.text.matches(from).count();
        assert_eq!(found, 1, "examples/{}: {from:?}", self.file);
        Shipped {
            text: self.text.replace(from, to),
            ..self
        }
    }

    /// The text.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Its only YAML document.
    pub fn document(&self) -> Value {
        serde_yaml::from_str(&self.text).unwrap_or_else(|e| panic!("examples/{}: {e}", self.file))
    }
}

/// A duration as packgate, Envoy and Istio write it, in seconds: `30s`, `65m`.
pub fn seconds(duration: &Value) -> u64 {
    let text = duration.as_str().unwrap_or_default();
    let units = [('s', 1), ('m', 60), ('h', 3600)];
    let parsed = units.iter().find_map(|(unit, length)| {
        let number: u64 = text.strip_suffix(*unit)?.parse().ok()?;
        Some(number * length)
    });
    parsed.unwrap_or_else(|| panic!("not a duration: {duration}"))
}
