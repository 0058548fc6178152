//! Limits, and the conditions that limits and exemptions have in common.

use std::{collections::BTreeMap, num::NonZeroU32, sync::Arc};

use packgate_policy::{Limit, Match, MatchSpec, Mode, Per, SeatRange};

use super::{
    Identity, Overrides, keys,
    raw::Value,
    scalars::shown,
    walk::{Entry, Mistakes, Section, parsed, whole, word},
};

/// The shapes that never take a seat: what they ask for is not known, or nothing is generated for them.
pub(super) const FREE_SHAPES: &[&str] = &[
    "unknown",
    "probe",
    "ls-refs",
    "object-info",
    "bundle-uri",
    "other-command",
    "negotiation",
];

/// Those of them for which nothing is generated: they never cost anything either.
pub(super) fn shapes_without_pack() -> &'static [&'static str] {
    &FREE_SHAPES[1..]
}

const PERS: &[(&str, Per)] = &[
    ("global", Per::Global),
    ("repo", Per::Repo),
    ("user", Per::User),
    ("ip", Per::Ip),
];

/// What can be said of one limit or budget; `off` would be one that is not there.
const MODES: &[(&str, Mode)] = &[("enforce", Mode::Enforce), ("shadow", Mode::Shadow)];

/// A limit's name is a metric attribute and stands in the sentence a refused user reads.
const LONGEST_NAME: usize = 64;

/// The list of limits, with those of the flags.
pub(super) fn read(
    root: &Section<'_>,
    overrides: &Overrides,
    mode: Option<Mode>,
    identity: Option<&Identity>,
    mistakes: &mut Mistakes,
) -> Option<Vec<Limit>> {
    let entries = match root.get("limits") {
        Some(entry) => entry.items("a list of limits", mistakes)?,
        None => Vec::new(),
    };
    let mut names = Names::new();
    let mut limits = Some(Vec::new());
    for entry in entries {
        let limit = limit(&entry, mode, identity, &mut names, mistakes);
        limits = limits.zip(limit).map(|(mut limits, limit)| {
            limits.push(limit);
            limits
        });
    }
    let mut limits = limits?;
    let flags = [
        ("--clones", "all-clones", Per::Global, overrides.clones),
        (
            "--clones-per-repo",
            "each-repo",
            Per::Repo,
            overrides.clones_per_repo,
        ),
    ];
    for (flag, name, per, seats) in flags {
        if let Some(seats) = seats {
            put_flag(&mut limits, flag, name, per, seats, mistakes);
        }
    }
    Some(limits)
}

/// Puts the limit a flag asks for in place of the one of that name, else last; last, because what the file says about
/// single repositories must come before what the flag says about each.
fn put_flag(
    limits: &mut Vec<Limit>,
    flag: &str,
    name: &str,
    per: Per,
    seats: u32,
    mistakes: &mut Mistakes,
) {
    let Some(seats) = NonZeroU32::new(seats) else {
        return mistakes.add(flag, NO_SEATS);
    };
    let limit = Limit::new(name, per, seats);
    let place = match limits.iter().position(|other| &*other.name == name) {
        Some(place) => {
            limits[place] = limit;
            place
        }
        None => {
            limits.push(limit);
            limits.len() - 1
        }
    };
    if let Some(first) = limits[..place]
        .iter()
        .find(|other| other.per == per && !other.shadow && is_unconditional(&other.matches))
    {
        let taken = &first.name;
        mistakes.add(
            flag,
            format!("would change nothing: the limit `{taken}` of the file comes first and fits everything; name it \
                     `{name}` to have the flag replace it"),
        );
    }
}

const NO_SEATS: &str = "must be at least 1: with 0 seats nothing would ever be served; leave the limit out to have none, or exempt requests \
     with `seats` or `exempt`";

/// Whether every demand fits it.
pub(super) fn is_unconditional(matches: &Match) -> bool {
    conditions(matches.spec()).is_empty()
}

/// The conditions there are, with their keys.
pub(crate) fn conditions(spec: &MatchSpec) -> Vec<(&'static str, &str)> {
    let all = [
        ("repo", &spec.repo),
        ("user", &spec.user),
        ("ip", &spec.ip),
        ("shape", &spec.shape),
        ("user_agent", &spec.user_agent),
    ];
    all.into_iter()
        .filter_map(|(key, value)| Some((key, value.as_deref()?)))
        .collect()
}

/// The names that are taken, and by what.
pub(super) type Names = BTreeMap<Arc<str>, String>;

/// What limits and budgets have in common: a name, what is counted, and whom it is about.
pub(super) struct About {
    pub(super) name: Option<Arc<str>>,
    pub(super) per: Option<Per>,
    pub(super) matches: Option<Match>,
}

impl About {
    /// `never`: the shapes that it is never about.
    pub(super) fn read(
        section: &Section<'_>,
        identity: Option<&Identity>,
        never: &[&str],
        names: &mut Names,
        mistakes: &mut Mistakes,
    ) -> About {
        let name = section.required(
            "name",
            "a name for metrics and messages, such as `each-repo`",
            name,
            mistakes,
        );
        if let Some(name) = &name {
            match names.get(name) {
                Some(first) => {
                    mistakes.add(
                        section.path_of("name"),
                        format!(
                            "{} is already the name of {first}; names must differ",
                            shown(name)
                        ),
                    );
                }
                None => {
                    names.insert(name.clone(), section.path.clone());
                }
            }
        }
        let per = section.required(
            "per",
            "what it is counted per: global, repo, user or ip",
            word(PERS),
            mistakes,
        );
        if let (Some(Per::User), Some(identity)) = (per, identity)
            && identity.user.is_empty()
        {
            mistakes.add(
            section.path_of("per"),
            "nothing says who the user is, so this could never apply: fill `identity.user`, or count per ip",
        );
        }
        let matches = match section.get("match") {
            None => Some(Match::default()),
            Some(matches) => match conditions_of(matches, identity, never, mistakes) {
                Some(None) => {
                    mistakes.add(
                        &matches.path,
                        "has no condition: remove the key to match everything",
                    );
                    None
                }
                Some(Some(matches)) => Some(matches),
                None => None,
            },
        };
        About { name, per, matches }
    }
}

fn limit(
    entry: &Entry<'_>,
    mode: Option<Mode>,
    identity: Option<&Identity>,
    names: &mut Names,
    mistakes: &mut Mistakes,
) -> Option<Limit> {
    if let Value::Null = entry.value {
        mistakes.add(
            &entry.path,
            "is empty: give it a `name`, a `per` and `seats`, or remove it",
        );
        return None;
    }
    let before = mistakes.0.len();
    let section = Section::open(&entry.path, Some(entry.value), keys::LIMIT, mistakes);
    if !matches!(entry.value, Value::Map(_)) {
        return None;
    }
    let About { name, per, matches } =
        About::read(&section, identity, FREE_SHAPES, names, mistakes);
    let seats = section.required(
        "seats",
        "how many may run at once, at least 1",
        seats,
        mistakes,
    );
    let shadow = only_watches(&section, mode, mistakes);
    let (seats, adapts) = seats?;
    let limit = Limit {
        matches: matches?,
        adapts,
        shadow: shadow?,
        ..Limit::new(&name?, per?, seats)
    };
    (mistakes.0.len() == before).then_some(limit)
}

/// A number that stays, or the first of a range.
fn seats(entry: &Entry<'_>, mistakes: &mut Mistakes) -> Option<(NonZeroU32, Option<SeatRange>)> {
    let Value::Map(_) = entry.value else {
        return Some((number_of_seats(entry, mistakes)?, None));
    };
    let section = Section::open(&entry.path, Some(entry.value), keys::SEAT_RANGE, mistakes);
    let min = section.required("min", "the fewest seats", number_of_seats, mistakes);
    let start = section.optional("start", number_of_seats, mistakes);
    let max = section.required("max", "the most seats", number_of_seats, mistakes);
    let (min, max) = (min?, max?);
    let start = start?.unwrap_or(min);
    if min >= max {
        mistakes.add(
            &entry.path,
            format!("`min` must be below `max`; they are {min} and {max}. For a limit that stays write one number"),
        );
        return None;
    }
    if !(min..=max).contains(&start) {
        mistakes.add(
            section.path_of("start"),
            format!("must be from {min} to {max}, as `min` and `max` say"),
        );
        return None;
    }
    Some((start, Some(SeatRange { min, max })))
}

fn number_of_seats(entry: &Entry<'_>, mistakes: &mut Mistakes) -> Option<NonZeroU32> {
    match entry.value {
        Value::Int(0) => {
            mistakes.add(&entry.path, NO_SEATS);
            None
        }
        _ => whole(1..=u32::MAX)(entry, mistakes).and_then(NonZeroU32::new),
    }
}

/// Whether a limit or a budget is marked to watch only, in a configuration with this `mode`.
pub(super) fn only_watches(
    section: &Section<'_>,
    mode: Option<Mode>,
    mistakes: &mut Mistakes,
) -> Option<bool> {
    let own = section.optional("mode", word(MODES), mistakes)?;
    if own == Some(Mode::Enforce) && mode == Some(Mode::Shadow) {
        mistakes.add(
            section.path_of("mode"),
            "cannot hold while `mode: shadow` at the top says that nothing does: remove one of the two",
        );
        return None;
    }
    Some(own == Some(Mode::Shadow))
}

fn name(entry: &Entry<'_>, mistakes: &mut Mistakes) -> Option<Arc<str>> {
    parsed("a name", |text| {
        if text.trim().is_empty() || text.trim() != text {
            return Err(format!(
                "must be a name without spaces around it, not {}",
                shown(text)
            ));
        }
        if text.chars().any(char::is_control) || text.chars().count() > LONGEST_NAME {
            return Err(format!(
                "must be at most {LONGEST_NAME} printable characters, not {}",
                shown(text)
            ));
        }
        Ok(text.into())
    })(entry, mistakes)
}

/// The conditions of a `match` or of an exemption; `never`: the shapes that it is never about. `Some(None)`: there is none.
pub(super) fn conditions_of(
    entry: &Entry<'_>,
    identity: Option<&Identity>,
    never: &[&str],
    mistakes: &mut Mistakes,
) -> Option<Option<Match>> {
    let before = mistakes.0.len();
    let section = Section::open(&entry.path, Some(entry.value), keys::MATCH, mistakes);
    let mut text = |key: &str| {
        section.optional(
            key,
            parsed("a pattern", |text| Ok(text.to_owned())),
            mistakes,
        )
    };
    let read = [
        text("repo"),
        text("user"),
        text("ip"),
        text("shape"),
        text("user_agent"),
    ];
    let [repo, user, ip, shape, user_agent] = read.map(Option::flatten);
    if let (Some(_), Some(identity)) = (&user, identity)
        && identity.user.is_empty()
    {
        mistakes.add(
            section.path_of("user"),
            "nothing says who the user is, so this never fits: fill `identity.user`",
        );
    }
    let unfit = shape.as_deref().filter(|shape| never.contains(shape));
    if let Some(shape) = unfit {
        mistakes.add(
            section.path_of("shape"),
            format!(
                "{} never takes a seat, so this never fits; use {}",
                shown(shape),
                keys::SEATS.join(", ")
            ),
        );
    }
    let known = unfit.is_none();
    let spec = MatchSpec {
        repo,
        user,
        ip,
        shape,
        user_agent,
    };
    let empty = conditions(&spec).is_empty();
    let matches = match Match::new(&spec) {
        Ok(matches) => Some(matches),
        Err(errors) => {
            for error in errors
                .into_iter()
                .filter(|error| known || error.field != "shape")
            {
                mistakes.add(section.path_of(error.field), error.message);
            }
            None
        }
    };
    if mistakes.0.len() > before {
        return None;
    }
    Some(matches.filter(|_| !empty))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use packgate_classifier::Shape;

    use super::*;

    #[test]
    fn every_shape_of_the_classifier_either_has_seats_or_never_takes_one() {
        let shapes: BTreeSet<&str> = Shape::ALL.iter().map(|shape| shape.as_str()).collect();
        let known: BTreeSet<&str> = keys::SEATS.iter().chain(FREE_SHAPES).copied().collect();
        assert_eq!(shapes, known);
        assert_eq!(known.len(), keys::SEATS.len() + FREE_SHAPES.len());
    }
}
