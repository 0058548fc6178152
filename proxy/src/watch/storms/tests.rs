use packgate_policy::User;

use super::*;

const RULE: Rule = Rule {
    clones: 3,
    within: Duration::from_secs(60),
};

fn at(seconds: u64) -> Moment {
    Moment(Duration::from_secs(seconds))
}

fn clone(repo: &str, user: &str, ip: &str) -> Demand {
    Demand {
        repo: repo.into(),
        user: Some(User {
            name: user.into(),
            trusted: false,
        }),
        ip: Some(ip.parse().unwrap()),
        shape: "clone",
        user_agent: Some("git/2.47.3".into()),
        seats: 1,
    }
}

fn ask(storms: &mut Storms, repo: &str, now: u64) -> Number {
    storms.asked(&clone(repo, "ci", "10.1.2.3"), RULE, at(now))
}

/// What is new: repository, whether it is over, clones, refused.
fn news(storms: &mut Storms) -> Vec<(String, bool, u64, u64)> {
    let shown = |storm: Storm| {
        (
            storm.repo.to_string(),
            storm.over,
            storm.clones,
            storm.refused,
        )
    };
    storms.news().into_iter().map(shown).collect()
}

fn rows(table: &Table<u64>) -> Vec<(String, u64)> {
    let (rows, others) = table.heaviest(10);
    assert_eq!(others, None);
    rows.into_iter()
        .map(|(name, n)| (name.to_string(), n))
        .collect()
}

#[test]
fn it_begins_with_the_clone_that_makes_it_one_and_is_told_once() {
    let mut storms = Storms::default();
    ask(&mut storms, "java", 0);
    ask(&mut storms, "java", 30);
    ask(&mut storms, "other", 31);
    assert_eq!(news(&mut storms), []);
    ask(&mut storms, "java", 60);
    assert_eq!(news(&mut storms), [("java".to_owned(), false, 3, 0)]);
    for second in 61..100 {
        ask(&mut storms, "java", second);
    }
    assert_eq!(news(&mut storms), []);
    let all = storms.all();
    assert_eq!((all.len(), all[0].clones), (1, 42));
    assert_eq!((all[0].started, all[0].last), (at(0), at(99)));
}

#[test]
fn clones_too_far_apart_are_no_storm() {
    let mut storms = Storms::default();
    for n in 0..100 {
        ask(&mut storms, "java", n * 31);
    }
    assert_eq!(news(&mut storms), []);
    assert_eq!(storms.recent.len(), 2);
}

#[test]
fn it_is_over_when_nothing_came_for_as_long_and_the_next_is_another() {
    let mut storms = Storms::default();
    for second in 0..3 {
        ask(&mut storms, "java", second);
    }
    news(&mut storms);
    storms.advance(RULE, at(62));
    assert_eq!(news(&mut storms), []);
    storms.advance(RULE, at(63));
    assert_eq!(news(&mut storms), [("java".to_owned(), true, 3, 0)]);
    for second in 100..103 {
        ask(&mut storms, "java", second);
    }
    assert_eq!(news(&mut storms), [("java".to_owned(), false, 3, 0)]);
    let shown: Vec<_> = storms
        .all()
        .iter()
        .map(|storm| (storm.started, storm.over))
        .collect();
    assert_eq!(shown, [(at(100), false), (at(0), true)], "the newest first");
    storms.advance(RULE, at(3700));
    assert!(storms.all().iter().all(|storm| storm.started == at(100)));
}

#[test]
fn it_knows_who_took_part() {
    let mut storms = Storms::default();
    for (user, ip) in [
        ("ci", "10.1.2.3"),
        ("alice", "10.1.2.99"),
        ("ci", "2001:db8:1:2::3"),
    ] {
        storms.asked(&clone("java", user, ip), RULE, at(0));
    }
    let storm = &storms.all()[0];
    let row = |name: &str, n| (name.to_owned(), n);
    assert_eq!(rows(&storm.users), [row("ci", 2), row("alice", 1)]);
    assert_eq!(rows(&storm.programs), [row("git", 3)]);
    assert_eq!(
        rows(&storm.networks),
        [row("10.1.2.0/24", 2), row("2001:db8:1::/48", 1)]
    );
}

#[test]
fn refusals_count_before_it_began_and_while_it_lasts_and_keep_it_going() {
    let mut storms = Storms::default();
    let repo: Arc<str> = "java".into();
    let first = ask(&mut storms, "java", 0);
    let other = ask(&mut storms, "other", 0);
    let second = ask(&mut storms, "java", 1);
    storms.refused(&repo, first, at(1));
    storms.refused(&"other".into(), other, at(1));
    ask(&mut storms, "java", 2);
    assert_eq!(news(&mut storms), [("java".to_owned(), false, 3, 1)]);
    storms.refused(&repo, second, at(50));
    storms.advance(RULE, at(100));
    assert_eq!(news(&mut storms), []);
    storms.advance(RULE, at(111));
    assert_eq!(news(&mut storms), [("java".to_owned(), true, 3, 2)]);
    // Nobody counts it any more.
    storms.refused(&repo, second, at(112));
}

#[test]
fn a_refusal_of_a_clone_before_the_storm_is_not_its() {
    let mut storms = Storms::default();
    let early = ask(&mut storms, "java", 0);
    for second in 100..103 {
        ask(&mut storms, "java", second);
    }
    storms.refused(&"java".into(), early, at(103));
    assert_eq!(news(&mut storms), [("java".to_owned(), false, 3, 0)]);
    assert_eq!(storms.all()[0].refused, 0);
}

#[test]
fn memory_does_not_grow_with_spoofed_names() {
    let mut storms = Storms::default();
    let long = "x".repeat(10_000);
    for n in 0..20_000 {
        let name = format!("{long}{n}");
        let ip = format!("10.{}.{}.1", n / 250, n % 250);
        storms.asked(&clone(&format!("spoofed-{n}"), &name, &ip), RULE, at(0));
        storms.asked(&clone("java", &format!("user-{n}"), &ip), RULE, at(0));
    }
    assert_eq!(storms.recent.len(), RECENT);
    assert!(storms.counts.len() <= RECENT);
    assert!(
        storms
            .recent
            .iter()
            .all(|asked| asked.user.as_ref().unwrap().len() < 300)
    );
    let storm = &storms.all()[0];
    assert_eq!((&*storm.repo, storm.clones), ("java", 20_000));
    let (users, others) = storm.users.heaviest(usize::MAX);
    assert_eq!((users.len(), others), (NAMES, Some(20_000 - 64)));

    // And storms of spoofed repositories.
    for n in 0..20_000 {
        ask(&mut storms, &format!("storm-{}", n / 3), 1);
    }
    assert_eq!(storms.lasting.len(), AT_ONCE);
    storms.advance(RULE, at(100));
    assert_eq!((storms.lasting.len(), storms.over.len()), (0, KEPT));
    assert!(storms.recent.is_empty() && storms.counts.is_empty());
}

#[test]
fn programs_go_without_their_versions() {
    for (agent, name) in [
        ("git/2.47.3", "git"),
        ("git/2.39.5 (Apple Git-154)", "git"),
        ("git/dulwich/0.22.1", "git/dulwich"),
        ("JGit/6.7.0.202309050840-r", "JGit"),
        ("go-git/5.x", "go-git"),
        ("custom", "custom"),
        ("", ""),
        ("/", "/"),
        ("é/1", "é"),
    ] {
        assert_eq!(&*program(agent), name, "{agent}");
    }
}

#[test]
fn networks_are_those_of_a_fleet() {
    for (ip, name) in [
        ("192.0.2.77", "192.0.2.0/24"),
        ("::ffff:192.0.2.77", "192.0.2.0/24"),
        ("2001:db8:1:2:3::4", "2001:db8:1::/48"),
    ] {
        assert_eq!(&*network(ip.parse().unwrap()), name);
    }
}
