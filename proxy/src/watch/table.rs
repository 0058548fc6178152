//! A table of names that others choose, of bounded size.
//!
//! A client can invent a repository for each request, so a table that keeps every name it hears of is a way to fill the
//! memory. When this one is full, its least row makes room for one that weighs more; what falls out, or never gets in, is
//! summed. So the heavy rows are there and their values are right (unless they fell out in between), and the sum over
//! all is always right. Forgetting the oldest was rejected: a flood of new names would wash out those that matter.

use std::{borrow::Cow, collections::HashMap, ops::AddAssign, sync::Arc};

use crate::telemetry::text;

/// The longest name that is kept; longer ones are cut. The access log, where disk is cheaper, has more of it.
const LONGEST_NAME: usize = 256;

/// A name of bounded length.
pub fn cut(name: &str) -> Cow<'_, str> {
    text::cut(name, LONGEST_NAME)
}

/// The same, without a copy where the name is short enough, as almost all are.
pub fn bounded(name: &Arc<str>) -> Arc<str> {
    match cut(name) {
        Cow::Borrowed(_) => name.clone(),
        Cow::Owned(cut) => cut.into(),
    }
}

/// Names with what they weigh. The order of `V` says which row matters more.
#[derive(Clone, Debug)]
pub struct Table<V> {
    rows: HashMap<Arc<str>, V>,
    others: Option<V>,
    bound: usize,
}

impl<V: Copy + Ord + AddAssign> Table<V> {
    /// A table of at most `bound` names.
    pub fn new(bound: usize) -> Table<V> {
        Table {
            rows: HashMap::new(),
            others: None,
            bound,
        }
    }

    /// Adds `value` to what the name has.
    pub fn add(&mut self, name: &Arc<str>, value: V) {
        if let Some(row) = self.rows.get_mut(name) {
            *row += value;
            return;
        }
        if self.rows.len() < self.bound {
            self.rows.insert(bounded(name), value);
            return;
        }
        let least = self.rows.iter().min_by_key(|(_, value)| **value);
        let least = least.map(|(name, value)| (name.clone(), *value));
        match least {
            Some((least, weight)) if weight < value => {
                self.rows.remove(&least);
                self.rows.insert(bounded(name), value);
                self.add_others(weight);
            }
            _ => self.add_others(value),
        }
    }

    /// Adds a value without a name.
    pub fn add_others(&mut self, value: V) {
        match &mut self.others {
            Some(others) => *others += value,
            None => self.others = Some(value),
        }
    }

    /// Adds all that `other` has.
    pub fn add_all(&mut self, other: &Table<V>) {
        for (name, value) in &other.rows {
            self.add(name, *value);
        }
        if let Some(others) = other.others {
            self.add_others(others);
        }
    }

    /// The `most` heaviest, the heaviest first, and the sum of all others if there are any.
    pub fn heaviest(&self, most: usize) -> (Vec<(Arc<str>, V)>, Option<V>) {
        let mut rows: Vec<_> = self
            .rows
            .iter()
            .map(|(name, value)| (name.clone(), *value))
            .collect();
        // Of equals the first by name, so that a page that shows them does not flicker.
        rows.sort_unstable_by(|(a, x), (b, y)| y.cmp(x).then_with(|| a.cmp(b)));
        let mut others = self.others;
        for (_, value) in rows.drain(most.min(rows.len())..) {
            match &mut others {
                Some(others) => *others += value,
                None => others = Some(value),
            }
        }
        (rows, others)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(table: &Table<u64>, most: usize) -> (Vec<(String, u64)>, Option<u64>) {
        let (rows, others) = table.heaviest(most);
        let rows = rows.into_iter().map(|(name, n)| (name.to_string(), n));
        (rows.collect(), others)
    }

    #[test]
    fn the_heaviest_come_first_and_the_rest_is_summed() {
        let mut table = Table::new(10);
        for (name, n) in [("b", 2), ("a", 2), ("c", 5), ("a", 1), ("d", 1)] {
            table.add(&name.into(), n);
        }
        let row = |name: &str, n| (name.to_owned(), n);
        assert_eq!(
            shown(&table, 2),
            (vec![row("c", 5), row("a", 3)], Some(2 + 1))
        );
        assert_eq!(shown(&table, 10).1, None);
    }

    #[test]
    fn a_flood_of_names_neither_grows_it_nor_washes_out_the_heavy() {
        let mut table = Table::new(8);
        table.add(&"heavy".into(), 100);
        for n in 0..20_000 {
            table.add(&format!("spoofed-{n}").into(), 1);
        }
        table.add(&"late-but-heavy".into(), 50);
        assert_eq!(table.rows.len(), 8);
        let (rows, others) = shown(&table, 2);
        assert_eq!(
            rows,
            [("heavy".to_owned(), 100), ("late-but-heavy".to_owned(), 50)]
        );
        assert_eq!(others, Some(20_000), "nothing is lost");
    }

    #[test]
    fn long_names_are_cut() {
        let mut table = Table::new(8);
        table.add(&"x".repeat(10_000).into(), 1);
        assert!(shown(&table, 1).0[0].0.len() < 300);
    }

    #[test]
    fn tables_add_up() {
        let mut sum = Table::new(2);
        for name in ["a", "b", "a"] {
            let mut one = Table::new(2);
            one.add(&name.into(), 1);
            one.add_others(1);
            sum.add_all(&one);
        }
        let row = |name: &str, n| (name.to_owned(), n);
        assert_eq!(shown(&sum, 2), (vec![row("a", 2), row("b", 1)], Some(3)));
    }
}
