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
