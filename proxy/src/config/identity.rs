//! Who a client is, and whose word on it is taken.

use std::path::PathBuf;

use super::{
    Identity, UserSource, keys,
    raw::Value,
    scalars,
    walk::{Entry, Mistakes, Section, did_you_mean, parsed, whole},
};

/// The section `identity`.
pub(super) fn read(root: &Section<'_>, mistakes: &mut Mistakes) -> Option<Identity> {
    let section = root.section("identity", keys::IDENTITY, mistakes);
    let proxies = distinct(
        &section,
        "trusted_proxies",
        "a list of networks such as `10.0.0.0/8`",
        mistakes,
        |entry, mistakes| {
            parsed("a network such as `10.0.0.0/8`", scalars::network)(entry, mistakes)
        },
    );
    let user = distinct(
        &section,
        "user",
        "a list of sources such as `[{header: x-forwarded-user}, basic]`",
        mistakes,
        source,
    );
    let ipv6_prefix = section.read("ipv6_prefix", 64, whole(0..=128), mistakes);
    let path = parsed("the path of a file", scalars::absolute_path);
    let hash_key_file: Option<Option<PathBuf>> = section.optional("hash_key_file", path, mistakes);
    if let (Some(user), Some([])) = (&user, proxies.as_deref()) {
        for (n, source) in user.iter().enumerate() {
            if matches!(source, UserSource::Header(_) | UserSource::Xfcc) {
                mistakes.add(
                    format!("{}[{n}]", section.path_of("user")),
                    "a header counts only when a trusted proxy sent it: name the proxies in `identity.trusted_proxies`, or \
                     remove this source",
                );
            }
        }
    }
    Some(Identity {
        user: user?,
        trusted_proxies: proxies?,
        ipv6_prefix: u8::try_from(ipv6_prefix?).ok()?,
        hash_key_file: hash_key_file?,
    })
}

/// A list in which nothing is named twice.
fn distinct<T: PartialEq>(
    section: &Section<'_>,
    key: &str,
    must_be: &str,
    mistakes: &mut Mistakes,
    read: impl Fn(&Entry<'_>, &mut Mistakes) -> Option<T>,
) -> Option<Vec<T>> {
    let Some(entry) = section.get(key) else {
        return Some(Vec::new());
    };
    let mut all = Some(Vec::new());
    for item in entry.items(must_be, mistakes)? {
        match (read(&item, mistakes), &mut all) {
            (Some(value), Some(values)) if values.contains(&value) => {
                mistakes.add(&item.path, "is given twice; keep one");
            }
            (Some(value), Some(values)) => values.push(value),
            (Some(_), None) => {}
            (None, _) => all = None,
        }
    }
    all
}

fn source(entry: &Entry<'_>, mistakes: &mut Mistakes) -> Option<UserSource> {
    const SOURCES: &str = "`{header: NAME}`, basic, credential or xfcc";
    if let Value::Map(_) = entry.value {
        let section = Section::open(&entry.path, Some(entry.value), keys::USER_SOURCE, mistakes);
        let name = section.required(
            "header",
            "the name of a header such as `x-forwarded-user`",
            parsed("the name of a header", scalars::user_header),
            mistakes,
        );
        return name.map(UserSource::Header);
    }
    let text = entry.text(SOURCES, mistakes)?;
    match text {
        "basic" => Some(UserSource::Basic),
        "credential" => Some(UserSource::Credential),
        "xfcc" => Some(UserSource::Xfcc),
        _ => {
            let hint = match text {
                "header" => ", write `{header: x-forwarded-user}`".to_owned(),
                _ => did_you_mean(keys::closest(text, &["basic", "credential", "xfcc"])),
            };
            mistakes.add(
                &entry.path,
                format!("must be {SOURCES}, not {}{hint}", scalars::shown(text)),
            );
            None
        }
    }
}
