//! A table of what is learned of each kind of demand.
//!
//! A kind is a repository and a shape: a clone of one repository is much like the last one of it, and nothing like one of
//! another. Names of repositories come from clients, so the table is bounded, and forgets the kind that was not taught for
//! longest. Who waits looks its kind up again and again; so each has a place that is found once by name.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

use slab::Slab;

/// Enough for the repositories a CI fleet hammers; at about 250 bytes each a table stays well below 1 MiB.
pub(crate) const MOST: usize = 1024;

type Kind = (Arc<str>, &'static str);

/// What is known of a kind, to be looked up often. It is void once that is forgotten.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Known {
    place: usize,
    since: u64,
}

#[derive(Clone, Debug)]
struct Entry<T> {
    learned: T,
    /// Which lesson was the first, and which the last.
    since: u64,
    taught: u64,
}

#[derive(Clone, Debug)]
pub(crate) struct Lessons<T> {
    places: HashMap<Kind, usize>,
    entries: Slab<Entry<T>>,
    by_age: BTreeMap<u64, Kind>,
    count: u64,
}

impl<T> Default for Lessons<T> {
    fn default() -> Lessons<T> {
        Lessons {
            places: HashMap::new(),
            entries: Slab::new(),
            by_age: BTreeMap::new(),
            count: 0,
        }
    }
}

impl<T> Lessons<T> {
    /// Where it is known what was learned of this kind.
    pub(crate) fn find(&self, repo: &Arc<str>, shape: &'static str) -> Option<Known> {
        let place = *self.places.get(&(repo.clone(), shape))?;
        let since = self.entries.get(place)?.since;
        Some(Known { place, since })
    }

    /// What was learned, if that is still known.
    pub(crate) fn get(&self, known: Known) -> Option<&T> {
        let entry = self.entries.get(known.place)?;
        (entry.since == known.since).then_some(&entry.learned)
    }

    /// Teaches something of a kind: `first` if nothing is known of it, else `again` changes what is. Whether it was the first.
    pub(crate) fn teach(
        &mut self,
        repo: &Arc<str>,
        shape: &'static str,
        first: T,
        again: impl FnOnce(&mut T),
    ) -> bool {
        let kind = (repo.clone(), shape);
        self.count = self.count.saturating_add(1);
        let taught = self.count;
        let place = self.places.get(&kind);
        let known = place.and_then(|place| self.entries.get_mut(*place));
        let is_first = known.is_none();
        if let Some(entry) = known {
            again(&mut entry.learned);
            self.by_age.remove(&entry.taught);
            entry.taught = taught;
        } else {
            let place = self.entries.insert(Entry {
                learned: first,
                since: taught,
                taught,
            });
            self.places.insert(kind.clone(), place);
        }
        self.by_age.insert(taught, kind);
        if self.entries.len() > MOST
            && let Some((_, oldest)) = self.by_age.pop_first()
            && let Some(place) = self.places.remove(&oldest)
        {
            self.entries.try_remove(place);
        }
        is_first
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn teach(lessons: &mut Lessons<u32>, repo: &str) -> bool {
        lessons.teach(&repo.into(), "clone", 1, |times| *times += 1)
    }

    fn times(lessons: &Lessons<u32>, repo: &str) -> Option<u32> {
        let known = lessons.find(&repo.into(), "clone")?;
        lessons.get(known).copied()
    }

    #[test]
    fn each_kind_is_learned_apart() {
        let mut lessons = Lessons::default();
        assert!(teach(&mut lessons, "a"));
        assert!(!teach(&mut lessons, "a"));
        assert!(teach(&mut lessons, "b"));
        assert_eq!(
            (times(&lessons, "a"), times(&lessons, "b")),
            (Some(2), Some(1))
        );
        assert_eq!(times(&lessons, "c"), None);
        assert!(lessons.find(&"a".into(), "shallow").is_none());
    }

    #[test]
    fn the_table_is_bounded_and_drops_what_was_not_taught_for_longest() {
        let mut lessons = Lessons::default();
        let name = |n: usize| format!("r{n}");
        for n in (0..MOST).chain([0, MOST]) {
            teach(&mut lessons, &name(n));
        }
        let sizes = [
            lessons.places.len(),
            lessons.entries.len(),
            lessons.by_age.len(),
        ];
        assert_eq!(sizes, [MOST; 3]);
        let known = |n| times(&lessons, &name(n));
        assert_eq!([0, 1, 2].map(known), [Some(2), None, Some(1)]);
        assert_eq!(known(MOST), Some(1));
    }

    #[test]
    fn what_is_known_is_void_once_it_is_forgotten() {
        let mut lessons = Lessons::default();
        teach(&mut lessons, "a");
        let known = lessons.find(&"a".into(), "clone").unwrap();
        assert_eq!(lessons.get(known), Some(&1));
        for n in 0..MOST {
            teach(&mut lessons, &format!("r{n}"));
        }
        assert_eq!(lessons.get(known), None);
        teach(&mut lessons, "b");
        assert_eq!(lessons.get(known), None, "its place is taken by another");
    }
}
