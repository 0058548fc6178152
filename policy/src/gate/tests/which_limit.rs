use super::*;

#[test]
fn nothing_is_gated_without_limits_or_seats_or_with_the_mode_off() {
    let mut gate = Gate::new(Settings::default());
    assert!(matches!(gate.offer(clone_of("a"), at(0)), Offer::Exempt));
    let mut gate = Gate::new(refusing([limit("all", Per::Global, 1)]));
    assert!(matches!(
        gate.offer(wide(0, clone_of("a")), at(0)),
        Offer::Exempt
    ));
    let mut gate = Gate::new(Settings {
        mode: Mode::Off,
        ..refusing([limit("all", Per::Global, 1)])
    });
    for _ in 0..3 {
        assert!(matches!(gate.offer(clone_of("a"), at(0)), Offer::Exempt));
    }
    assert!(gate.is_at_rest());
}

#[test]
fn the_first_limit_of_a_per_that_fits_applies_and_no_other() {
    let mut gate = Gate::new(refusing([
        matching(limit("java", Per::Repo, 1), only_repo("squareup/java")),
        limit("each-repo", Per::Repo, 2),
    ]));
    runs(&mut gate, clone_of("squareup/java"), 0);
    let refusal = refused(&mut gate, clone_of("squareup/java"), 0);
    assert_eq!(refusal.limit.as_deref(), Some("java"));
    runs(&mut gate, clone_of("other"), 0);
    runs(&mut gate, clone_of("other"), 0);
    assert_eq!(
        refused(&mut gate, clone_of("other"), 0).limit.as_deref(),
        Some("each-repo")
    );
    runs(&mut gate, clone_of("third"), 0);
}

#[test]
fn a_demand_without_a_fitting_limit_runs_and_is_shown() {
    let mut gate = Gate::new(refusing([matching(
        limit("a", Per::Repo, 1),
        only_repo("a"),
    )]));
    let tickets: Vec<_> = (0..5).map(|_| runs(&mut gate, clone_of("b"), 0)).collect();
    assert_eq!(gate.running(), 5);
    assert_eq!(gate.snapshot(at(0)).running.len(), 5);
    assert_eq!(gate.limits()[0].in_use, 0);
    for ticket in tickets {
        ends(&mut gate, ticket, 1);
    }
    assert!(gate.is_at_rest());
}

#[test]
fn a_demand_without_a_user_or_an_address_is_in_no_such_bucket() {
    let mut gate = Gate::new(refusing([limit("u", Per::User, 1), limit("i", Per::Ip, 1)]));
    for _ in 0..3 {
        runs(&mut gate, clone_of("a"), 0);
    }
    runs(&mut gate, by("bob", clone_of("a")), 0);
    let refusal = refused(&mut gate, by("bob", clone_of("b")), 0);
    assert_eq!(refusal.limit.as_deref(), Some("u"));
    runs(&mut gate, by("eve", clone_of("a")), 0);
}

#[test]
fn ipv6_clients_are_told_apart_by_prefix() {
    let from = |ip: &str| Demand {
        ip: Some(ip.parse().unwrap()),
        ..clone_of("a")
    };
    let mut gate = Gate::new(refusing([limit("ip", Per::Ip, 1)]));
    runs(&mut gate, from("2001:db8:0:1::1"), 0);
    refused(&mut gate, from("2001:db8:0:1:ffff::2"), 0);
    runs(&mut gate, from("2001:db8:0:2::1"), 0);
    runs(&mut gate, from("192.0.2.1"), 0);
    refused(&mut gate, from("::ffff:192.0.2.1"), 0);
    runs(&mut gate, from("192.0.2.2"), 0);
}

#[test]
fn an_exempt_rule_that_names_a_user_needs_proof() {
    let mut gate = Gate::new(Settings {
        exempt: vec![
            Match::new(&only_user("release-bot")).unwrap(),
            Match::new(&only_repo("tiny/*")).unwrap(),
        ],
        ..refusing([limit("all", Per::Global, 1)])
    });
    runs(&mut gate, clone_of("a"), 0);
    let claimed = by("release-bot", clone_of("a"));
    refused(&mut gate, claimed.clone(), 0);
    let proven = Demand {
        user: claimed.user.clone().map(|user| User {
            trusted: true,
            ..user
        }),
        ..claimed
    };
    assert!(matches!(gate.offer(proven, at(0)), Offer::Exempt));
    let tiny = by("anybody", clone_of("tiny/one"));
    assert!(matches!(gate.offer(tiny, at(0)), Offer::Exempt));
}
