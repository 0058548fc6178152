//! Configurations inside Kubernetes manifests, as `helm template` and `kubectl get -o yaml` print them.
//!
//! Only `check` reads them: what will be mounted can then be checked before it is applied, without a second program that
//! cuts it out. `serve` gets the file as it is mounted. A configuration has neither `apiVersion` nor `kind`, so that the
//! two cannot be mistaken for each other.

use super::{
    ConfigErrors,
    raw::{self, Value},
    scalars::shown,
};

/// How the names of keys end that hold a configuration. The beginning is free: one ConfigMap may have several.
const KEY: &str = "packgate.yaml";

/// A configuration that a ConfigMap holds.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Embedded {
    /// The ConfigMap and the key, in words.
    pub(crate) place: String,
    /// The YAML under that key.
    pub(crate) document: String,
}

/// Every configuration in a stream of manifests. None if `document` is no such stream, and so perhaps a configuration.
///
/// # Errors
/// The stream breaks off, or no ConfigMap in it has a configuration.
pub(crate) fn in_manifests(document: &[u8]) -> Option<Result<Vec<Embedded>, ConfigErrors>> {
    let (documents, outcome) = raw::read_stream(std::str::from_utf8(document).ok()?);
    if !documents.iter().any(|document| kind(document).is_some()) {
        return None;
    }
    Some(
        outcome
            .and_then(|()| search(&documents))
            .map_err(ConfigErrors::of_file),
    )
}

fn search(documents: &[Value]) -> Result<Vec<Embedded>, String> {
    let objects: Vec<&Value> = documents.iter().flat_map(objects).collect();
    let mut found = Vec::new();
    for object in &objects {
        let Some(kind) = kind(object) else {
            return Err("a document among these Kubernetes manifests has no `apiVersion` and `kind`: give packgate either \
                 manifests or one configuration".to_owned());
        };
        let data = match object.get("data") {
            Some(Value::Map(data)) if kind == "ConfigMap" => data,
            _ => continue,
        };
        for (key, value) in data.iter().filter(|(key, _)| key.ends_with(KEY)) {
            let place = format!("ConfigMap {}, key {}", name(object), shown(key));
            let document = value.as_text().ok_or_else(|| {
                format!("{place}: must hold text; write `{KEY}: |` and the configuration below it, indented")
            })?.to_owned();
            found.push(Embedded { place, document });
        }
    }
    if found.is_empty() {
        return Err(format!(
            "none of its {} Kubernetes manifests is a ConfigMap with a key that ends in `{KEY}`, under which the configuration \
             stands as text",
            objects.len()
        ));
    }
    Ok(found)
}

/// The Kubernetes objects in one document: a `List` has several, what is empty has none.
fn objects(document: &Value) -> Vec<&Value> {
    match (kind(document), document.get("items")) {
        (None, _) if *document == Value::Null => Vec::new(),
        (Some("List"), Some(Value::List(items))) => items.iter().collect(),
        _ => vec![document],
    }
}

fn kind(object: &Value) -> Option<&str> {
    object.get("apiVersion")?;
    object.get("kind")?.as_text()
}

/// `name`, or `name in namespace`.
fn name(object: &Value) -> String {
    let metadata = |key| object.get("metadata")?.get(key)?.as_text();
    let name = metadata("name").map_or("without a name".to_owned(), shown);
    match metadata("namespace") {
        Some(namespace) => format!("{name} in {}", shown(namespace)),
        None => name,
    }
}
