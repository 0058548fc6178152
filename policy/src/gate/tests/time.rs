use super::*;

#[test]
fn time_that_goes_backwards_stands_still() {
    let mut gate = Gate::new(settings([limit("all", Per::Global, 1)]));
    let running = runs(&mut gate, clone_of("a"), 100);
    let waiter = waits(&mut gate, clone_of("a"), 50);
    assert_eq!(gate.next_deadline(), Some(at(160)));
    gate.advance(at(0));
    assert_eq!(ends(&mut gate, running, 10), [waiter]);
    gate.advance(Moment::MAX);
    assert_eq!(ends(&mut gate, waiter, 0), []);
    assert_eq!(gate.snapshot(at(0)).refused_last_hour, 0);
}

#[test]
fn memory_follows_what_runs_and_waits() {
    let mut gate = Gate::new(refusing([
        limit("each", Per::Repo, 1),
        limit("u", Per::User, 1),
    ]));
    for n in 0..20_000_u64 {
        let demand = by(&format!("u{n}"), clone_of(&format!("r{n}")));
        let ticket = runs(&mut gate, demand.clone(), n);
        refused(&mut gate, demand, n);
        gate.release(ticket, Ended::ClientGone, at(n));
        assert!(gate.buckets.is_empty() && gate.queue.is_empty());
    }
    gate.advance(at(40_000));
    assert!(gate.is_at_rest());
}
