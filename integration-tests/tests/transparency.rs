//! `docs/transparency.md` says of each deviation which test pins it.

use packgate_integration_tests::pages::{missing_tests, read, tests_in};

fn page() -> String {
    read("docs/transparency.md")
}

#[test]
fn every_test_that_the_page_names_exists() {
    let page = page();
    let (missing, named) = missing_tests(&page);
    assert!(named > 30, "{named}");
    assert!(missing.is_empty(), "named, but not there: {missing:?}");
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
    assert!(read("README.md").contains("](docs/transparency.md)"));
}
