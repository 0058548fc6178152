//! The memory: the share of it that is in use and cannot be taken back without harm.
//!
//! A git server reads packs, and the kernel keeps what was read for as long as there is room: the memory of a busy group is
//! always full. So what the kernel would drop first (`inactive_file`) does not count; on the host, what it calls available.

use std::path::Path;

use super::{
    Unreadable,
    files::{self, Text, number, required},
};
use crate::config::Scope;

/// What the kernel says at one moment.
pub(super) struct Look {
    group: Option<Group>,
    /// `/proc/meminfo`.
    host: Text,
}

struct Group {
    current: Text,
    max: Text,
    stat: Text,
}

pub(super) fn look(scope: &Scope) -> Look {
    let group = match scope {
        Scope::Host => None,
        Scope::Cgroup(path) => Some(Group {
            current: files::read(path, "memory.current"),
            max: files::read(path, "memory.max"),
            stat: files::read(path, "memory.stat"),
        }),
    };
    Look {
        group,
        host: files::read(Path::new("/proc"), "meminfo"),
    }
}

/// The share in use. A group without a limit of its own has that of the host.
pub(super) fn share(look: &Look) -> Result<f64, Unreadable> {
    let Some(group) = &look.group else {
        return of_host(&look.host);
    };
    let current = whole(
        required(&group.current, "memory.current")?,
        "memory.current",
    )?;
    let max = required(&group.max, "memory.max")?;
    let cache = number(
        required(&group.stat, "memory.stat")?,
        "inactive_file",
        "memory.stat",
    )?;
    match max.trim_end() {
        "max" => of_host(&look.host),
        max => Ok(part(
            current.saturating_sub(cache),
            whole(max, "memory.max")?,
        )),
    }
}

fn of_host(meminfo: &Text) -> Result<f64, Unreadable> {
    let text = required(meminfo, "/proc/meminfo")?;
    let total = number(text, "MemTotal:", "/proc/meminfo")?;
    let available = number(text, "MemAvailable:", "/proc/meminfo")?;
    Ok(part(total.saturating_sub(available), total))
}

fn whole(text: &str, name: &str) -> Result<u64, Unreadable> {
    let number = text.trim_end().parse();
    number.map_err(|_| format!("{name} is no number"))
}

/// All of nothing is in use.
fn part(used: u64, of: u64) -> f64 {
    match of {
        0 => 1.0,
        of => (used as f64 / of as f64).min(1.0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn group(current: &str, max: &str, stat: &str) -> Look {
        let text = |text: &str| Ok(Some(text.to_owned()));
        Look {
            group: Some(Group {
                current: text(current),
                max: text(max),
                stat: text(stat),
            }),
            host: text(include_str!("fixtures/meminfo")),
        }
    }

    const STAT: &str = include_str!("fixtures/memory.stat");

    #[test]
    fn the_cache_that_would_be_dropped_first_does_not_count() {
        // 3.5 GiB of 4 GiB, of which 2 GiB are cache.
        let look = group("3758096384\n", "4294967296\n", STAT);
        assert_eq!(share(&look), Ok(0.375));
        // Numbers of different moments can contradict each other.
        assert_eq!(share(&group("1\n", "4294967296\n", STAT)), Ok(0.0));
        assert_eq!(share(&group("9000000000\n", "4294967296\n", STAT)), Ok(1.0));
        assert_eq!(share(&group("9000000000\n", "0\n", STAT)), Ok(1.0));
    }

    #[test]
    fn without_a_limit_it_is_the_hosts_memory() {
        let host = Look {
            group: None,
            ..group("", "", "")
        };
        assert_eq!(share(&host), Ok(0.25));
        assert_eq!(share(&group("3758096384\n", "max\n", STAT)), Ok(0.25));
    }

    #[test]
    fn what_cannot_be_understood_is_unreadable() {
        let cut = &STAT[..STAT.find("inactive_file").unwrap() + 10];
        for (current, max, stat, why) in [
            ("", "1\n", STAT, "memory.current is no number"),
            ("-5\n", "1\n", STAT, "memory.current is no number"),
            ("5\n", "\n", STAT, "memory.max is no number"),
            ("5\n", "maximum\n", STAT, "memory.max is no number"),
            (
                "5\n",
                "1\n",
                "",
                "memory.stat does not tell `inactive_file`",
            ),
            (
                "5\n",
                "1\n",
                cut,
                "memory.stat does not tell `inactive_file`",
            ),
        ] {
            assert_eq!(share(&group(current, max, stat)), Err(why.to_owned()));
        }
        let mut look = group("5\n", "5\n", STAT);
        look.group.as_mut().unwrap().current = Ok(None);
        assert_eq!(share(&look), Err("there is no memory.current".to_owned()));
        look.group = None;
        look.host = Ok(Some("MemTotal: 16 kB\n".to_owned()));
        assert!(share(&look).unwrap_err().contains("`MemAvailable:`"));
    }

    #[test]
    fn this_machine_can_be_read() {
        let share = share(&look(&Scope::Host)).unwrap();
        assert!(share > 0.0 && share < 1.0, "{share}");
    }
}
