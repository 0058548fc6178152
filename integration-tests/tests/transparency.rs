//! `docs/transparency.md` says of each deviation which test pins it. A page that names a test nobody runs is worse than
//! none.

use std::{collections::BTreeMap, fs, path::PathBuf};

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn page() -> String {
    fs::read_to_string(root().join("docs/transparency.md")).expect("docs/transparency.md")
}

/// What stands between backquotes in a line.
fn quoted(line: &str) -> impl Iterator<Item = &str> {
    line.split('`').skip(1).step_by(2)
}

/// The tests that a line names, as file and function.
fn tests_in(line: &str) -> Vec<(&str, &str)> {
    let named = quoted(line).filter_map(|words| words.split_once("::"));
    // The page explains its notation with this one.
    named.filter(|named| *named != ("file", "test")).collect()
}

/// Whether the file of integration tests has this test, and it is not left out of a run.
fn exists(files: &mut BTreeMap<String, String>, file: &str, test: &str) -> bool {
    let path = root().join(format!("integration-tests/tests/{file}.rs"));
    let source = files
        .entry(file.to_owned())
        .or_insert_with(|| fs::read_to_string(path).unwrap_or_default());
    source.contains(&format!("#[test]\nfn {test}() {{"))
}

#[test]
fn every_test_that_the_page_names_exists() {
    let page = page();
    let mut files = BTreeMap::new();
    let named: Vec<_> = page.lines().flat_map(tests_in).collect();
    assert!(named.len() > 30, "{named:?}");
    let missing: Vec<_> = named
        .iter()
        .filter(|(file, test)| !exists(&mut files, file, test))
        .collect();
    assert!(missing.is_empty(), "named, but not there: {missing:?}");
    assert!(!exists(&mut files, "heads", "no_such_test"));
}

#[test]
fn every_line_of_its_tables_names_a_test() {
    let page = page();
    let rows = page
        .lines()
        .filter(|line| line.starts_with("| "))
        .filter(|line| {
            // The heads of the tables end with the word for the column.
            !line.ends_with("| test |")
        });
    let bare: Vec<_> = rows
        .clone()
        .filter(|line| tests_in(line).is_empty())
        .collect();
    assert!(rows.count() > 30);
    assert!(bare.is_empty(), "without a test: {bare:#?}");
}

#[test]
fn the_readme_leads_to_the_page() {
    let readme = fs::read_to_string(root().join("README.md")).expect("README.md");
    assert!(readme.contains("](docs/transparency.md)"));
}
