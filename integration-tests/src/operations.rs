//! `docs/operations.md`, as far as tests compare it with what happens.

use std::collections::BTreeSet;

use crate::pages;

/// The page.
pub struct Page(String);

/// One of the rules by which a slow or failing server is told from what else it may be.
#[derive(Debug)]
pub struct Rule {
    /// Its heading.
    pub title: String,
    /// Its condition, in PromQL.
    pub condition: String,
}

impl Page {
    /// As it is in the repository.
    pub fn read() -> Page {
        Page(pages::read("docs/operations.md"))
    }

    /// All of it.
    pub fn text(&self) -> &str {
        &self.0
    }

    /// A section of the second level.
    pub fn section(&self, title: &str) -> &str {
        let (_, after) = self
            .0
            .split_once(&format!("\n## {title}\n"))
            .unwrap_or_else(|| panic!("docs/operations.md has no section {title:?}"));
        after.split("\n## ").next().unwrap_or(after)
    }

    /// The rows of the tables in a section, without their heads, as cells.
    pub fn rows(&self, title: &str) -> Vec<Vec<&str>> {
        let lines: Vec<&str> = self.section(title).lines().collect();
        // Above and at the line of dashes is the head.
        let is_dashes = |line: Option<&&str>| line.is_some_and(|line| line.starts_with("|---"));
        let rows = (0..lines.len()).filter(|n| {
            lines[*n].starts_with("| ")
                && !is_dashes(lines.get(*n))
                && !is_dashes(lines.get(*n + 1))
        });
        rows.map(|n| lines[n].trim_matches(['|', ' ']).split(" | ").collect())
            .collect()
    }

    /// What stands in the table of sizes for this: bytes and open files.
    pub fn sizes(&self, row: &str) -> (u64, u64) {
        let rows = self.rows("Sizing");
        let cells = rows.iter().find(|cells| cells[0] == row);
        let cells = cells.unwrap_or_else(|| panic!("no size of {row:?}"));
        let (number, unit) = cells[1].split_once(' ').expect("a number and a unit");
        let factor = match unit {
            "KiB" => 1 << 10,
            "MiB" => 1 << 20,
            unit => panic!("unit {unit}"),
        };
        let number: u64 = number.parse().expect("a whole number");
        (
            number * factor,
            cells[2].parse().expect("a number of files"),
        )
    }

    /// The rules of the section about diagnosis, in order.
    pub fn rules(&self) -> Vec<Rule> {
        let parts = self
            .section("Diagnosis before limits")
            .split("\n### ")
            .skip(1);
        parts
            .filter_map(|part| {
                let (title, rest) = part.split_once('\n')?;
                let (_, code) = rest.split_once("```promql\n")?;
                let (condition, _) = code.split_once("\n```")?;
                Some(Rule {
                    title: title.to_owned(),
                    condition: condition.to_owned(),
                })
            })
            .collect()
    }

    /// Every name of a metric that is anywhere on the page.
    pub fn metric_names(&self) -> BTreeSet<&str> {
        let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
        self.0
            .split(|c| !is_name(c))
            .filter(|word| word.starts_with("packgate_"))
            .collect()
    }
}
