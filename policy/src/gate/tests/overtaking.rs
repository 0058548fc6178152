use super::*;

/// One narrow demand arrives whenever one ends, so that a limit is never idle of its own accord.
#[test]
fn a_wide_waiter_is_overtaken_as_often_as_there_are_seats_and_then_is_next() {
    let mut gate = Gate::new(settings([
        limit("all", Per::Global, 4),
        limit("u", Per::User, 9),
    ]));
    let mut running: VecDeque<_> = (0..3)
        .map(|_| runs(&mut gate, by("n", clone_of("a")), 0))
        .collect();
    let giant = waits(&mut gate, wide(4, by("w", clone_of("a"))), 0);
    let mut overtook = 0;
    loop {
        match gate.offer(by("n", clone_of("a")), at(1)) {
            Offer::Running(ticket) => {
                overtook += 1;
                running.push_back(ticket);
            }
            Offer::Waiting(_) => break,
            other => panic!("{other:?}"),
        }
        ends(&mut gate, running.pop_front().unwrap(), 1);
    }
    assert_eq!(overtook, 4);
    let mut started = Vec::new();
    while let Some(ticket) = running.pop_front() {
        assert!(started.is_empty());
        started = ends(&mut gate, ticket, 2);
    }
    assert_eq!(started, [giant]);
}

#[test]
fn a_reservation_does_not_idle_a_bucket_while_its_holder_is_blocked_elsewhere() {
    let mut gate = Gate::new(settings([
        limit("all", Per::Global, 4),
        limit("each", Per::Repo, 2),
    ]));
    let blocker = runs(&mut gate, clone_of("a"), 0);
    let mut running = runs(&mut gate, clone_of("b"), 0);
    waits(&mut gate, wide(2, clone_of("a")), 0);
    for second in 1..50 {
        let next = runs(&mut gate, clone_of("b"), second);
        ends(&mut gate, running, second);
        running = next;
    }
    ends(&mut gate, blocker, 50);
}

/// Two demands wide in two busy limits, which never have room for one in both at once of their own accord.
#[test]
fn two_wide_waiters_with_crossing_needs_both_run() {
    let mut patient = settings([limit("u", Per::User, 4), limit("each", Per::Repo, 4)]);
    patient.queue.timeout = Duration::from_secs(1_000_000);
    let mut gate = Gate::new(patient);
    let mut running = VecDeque::new();
    let narrow = |n: u64| match n % 4 {
        0 => by("u1", clone_of(&format!("x{n}"))),
        1 => by("u2", clone_of(&format!("x{n}"))),
        2 => by(&format!("y{n}"), clone_of("r1")),
        _ => by(&format!("y{n}"), clone_of("r2")),
    };
    for n in 0..16 {
        running.push_back(runs(&mut gate, narrow(n), 0));
    }
    let giants = [("u1", "r1"), ("u1", "r2"), ("u2", "r1"), ("u2", "r2")]
        .map(|(user, repo)| waits(&mut gate, wide(4, by(user, clone_of(repo))), 0));
    let mut started = Vec::new();
    for n in 16..400 {
        match gate.offer(narrow(n), at(n)) {
            Offer::Running(ticket) => running.push_back(ticket),
            Offer::Waiting(_) => {}
            other => panic!("{other:?}"),
        }
        if let Some(ticket) = running.pop_front() {
            let woken = ends(&mut gate, ticket, n);
            started.extend(
                woken
                    .iter()
                    .copied()
                    .filter(|ticket| giants.contains(ticket)),
            );
            running.extend(woken);
        }
    }
    started.sort_unstable();
    assert_eq!(started, giants);
}
