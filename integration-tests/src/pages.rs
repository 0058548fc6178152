//! Pages below `docs/` that name the tests which prove them. A page that names a test nobody runs is worse than none.

use std::{collections::BTreeMap, fs, path::PathBuf};

/// A file of the repository.
pub fn read(path: &str) -> String {
    fs::read_to_string(root().join(path)).unwrap_or_else(|e| panic!("{path}: {e}"))
}

/// The tests that a line names in backquotes, as file and function.
pub fn tests_in(line: &str) -> Vec<(&str, &str)> {
    let quoted = line.split('`').skip(1).step_by(2);
    let named = quoted.filter_map(|words| words.split_once("::"));
    // The pages explain their notation with this one.
    named.filter(|named| *named != ("file", "test")).collect()
}

/// The tests that a page names and that are not there, and how many it names.
pub fn missing_tests(page: &str) -> (Vec<(&str, &str)>, usize) {
    let mut files = BTreeMap::new();
    let named: Vec<_> = page.lines().flat_map(tests_in).collect();
    let count = named.len();
    let missing = named
        .into_iter()
        .filter(|(file, test)| !exists(&mut files, file, test));
    (missing.collect(), count)
}

/// Whether the file of integration tests has this test, and it is not left out of a run.
fn exists(files: &mut BTreeMap<String, String>, file: &str, test: &str) -> bool {
    let path = root().join(format!("integration-tests/tests/{file}.rs"));
    let source = files
        .entry(file.to_owned())
        .or_insert_with(|| fs::read_to_string(path).unwrap_or_default());
    source.contains(&format!("#[test]\nfn {test}() {{"))
}

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("..")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_test_that_is_not_there_is_missing() {
        let page = "| x | `heads::no_such_test`, `heads::targets_pass_as_they_are` |";
        assert_eq!(missing_tests(page), (vec![("heads", "no_such_test")], 2));
    }
}
