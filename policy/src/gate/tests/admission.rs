use super::*;

#[test]
fn a_waiter_holds_nothing_and_a_full_repository_delays_no_other() {
    let mut gate = Gate::new(settings([
        limit("all", Per::Global, 2),
        limit("each", Per::Repo, 1),
    ]));
    let first = runs(&mut gate, clone_of("a"), 0);
    let queued: Vec<_> = (0..6).map(|_| waits(&mut gate, clone_of("a"), 0)).collect();
    let other = runs(&mut gate, clone_of("b"), 1);
    assert_eq!(ends(&mut gate, other, 2), []);
    assert_eq!(ends(&mut gate, first, 3), [queued[0]]);
}

#[test]
fn a_demand_wider_than_its_limit_runs_alone() {
    let mut gate = Gate::new(settings([limit("all", Per::Global, 2)]));
    let small = runs(&mut gate, clone_of("a"), 0);
    let giant = waits(&mut gate, wide(5, clone_of("b")), 0);
    assert_eq!(ends(&mut gate, small, 1), [giant]);
    let next = waits(&mut gate, clone_of("c"), 1);
    assert_eq!(gate.limits()[0].in_use, 5);
    assert_eq!(ends(&mut gate, giant, 2), [next]);
}

#[test]
fn unknown_tickets_and_second_releases_are_ignored() {
    let mut gate = Gate::new(settings([limit("all", Per::Global, 1)]));
    let ticket = runs(&mut gate, clone_of("a"), 0);
    assert!(!gate.release(Ticket(77), Ended::Served, at(0)));
    assert!(gate.release(ticket, Ended::Failed, at(0)));
    assert!(!gate.release(ticket, Ended::Failed, at(0)));
    runs(&mut gate, clone_of("a"), 0);
    waits(&mut gate, clone_of("a"), 0);
}
