use super::*;

#[test]
fn a_lowered_limit_shrinks_as_its_permits_end() {
    let mut gate = Gate::new(settings([limit("all", Per::Global, 3)]));
    let running: Vec<_> = (0..3).map(|_| runs(&mut gate, clone_of("a"), 0)).collect();
    let waiter = waits(&mut gate, clone_of("a"), 0);
    gate.reconfigure(settings([limit("all", Per::Global, 1)]), at(1));
    assert_eq!((gate.running(), gate.waiting()), (3, 1));
    assert_eq!(ends(&mut gate, running[0], 2), []);
    assert_eq!(ends(&mut gate, running[1], 2), []);
    assert_eq!(ends(&mut gate, running[2], 2), [waiter]);
}

#[test]
fn a_new_limit_counts_those_who_run_already() {
    let mut gate = Gate::new(settings([limit("all", Per::Global, 9)]));
    runs(&mut gate, clone_of("a"), 0);
    gate.reconfigure(refusing([limit("each", Per::Repo, 1)]), at(1));
    let refusal = refused(&mut gate, clone_of("a"), 1);
    assert_eq!(refusal.limit.as_deref(), Some("each"));
    assert_eq!(gate.limits()[0].busiest, Some(("a".into(), 1)));
    runs(&mut gate, clone_of("b"), 1);
}

#[test]
fn a_raised_limit_admits_waiters_in_turn() {
    let mut gate = Gate::new(settings([
        limit("all", Per::Global, 1),
        limit("u", Per::User, 9),
    ]));
    runs(&mut gate, by("x", clone_of("a")), 0);
    let loud: Vec<_> = (0..4)
        .map(|_| waits(&mut gate, by("loud", clone_of("a")), 0))
        .collect();
    let quiet = waits(&mut gate, by("quiet", clone_of("a")), 0);
    gate.reconfigure(
        settings([limit("all", Per::Global, 4), limit("u", Per::User, 9)]),
        at(1),
    );
    assert_eq!(admitted(&mut gate), [loud[0], quiet, loud[1]]);
}

#[test]
fn deadlines_can_only_get_shorter() {
    let one = || [limit("all", Per::Global, 1)];
    let with_timeout = |seconds| {
        let mut settings = settings(one());
        settings.queue.timeout = Duration::from_secs(seconds);
        settings
    };
    let mut gate = Gate::new(with_timeout(60));
    runs(&mut gate, clone_of("a"), 0);
    waits(&mut gate, clone_of("a"), 10);
    gate.reconfigure(with_timeout(100), at(11));
    assert_eq!(gate.next_deadline(), Some(at(70)));
    gate.reconfigure(with_timeout(30), at(12));
    assert_eq!(gate.next_deadline(), Some(at(40)));
    gate.reconfigure(with_timeout(0), at(13));
    assert_eq!(gate.next_deadline(), Some(at(40)));
    assert_eq!(refused(&mut gate, clone_of("a"), 13).why, RefusalWhy::Full);
}

#[test]
fn leaving_enforce_admits_everybody_who_waits() {
    for mode in [Mode::Off, Mode::Shadow] {
        let mut gate = Gate::new(settings([limit("all", Per::Global, 1)]));
        let first = runs(&mut gate, clone_of("a"), 0);
        let waiters: Vec<_> = (0..3).map(|_| waits(&mut gate, clone_of("a"), 0)).collect();
        let mut other = settings([limit("all", Per::Global, 1)]);
        other.mode = mode;
        gate.reconfigure(other, at(1));
        assert_eq!(admitted(&mut gate), waiters);
        assert_eq!((gate.running(), gate.waiting()), (4, 0));
        gate.reconfigure(settings([limit("all", Per::Global, 1)]), at(2));
        assert_eq!(gate.limits()[0].in_use, 4);
        for ticket in waiters.into_iter().chain([first]) {
            ends(&mut gate, ticket, 3);
        }
        while gate.next_shadow_decision().is_some() {}
        assert!(gate.is_at_rest());
    }
}

#[test]
fn waiters_of_a_removed_limit_run() {
    let mut gate = Gate::new(settings([limit("all", Per::Global, 1)]));
    runs(&mut gate, clone_of("a"), 0);
    let waiter = waits(&mut gate, clone_of("a"), 0);
    gate.reconfigure(
        settings([matching(limit("b", Per::Repo, 1), only_repo("b"))]),
        at(1),
    );
    assert_eq!(admitted(&mut gate), [waiter]);
}
