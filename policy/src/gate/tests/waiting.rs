use super::*;

#[test]
fn the_queue_is_bounded_in_number_altogether_and_per_flow() {
    let mut bounded = settings([limit("each", Per::Repo, 1)]);
    bounded.queue.max_waiting = 3;
    bounded.queue.max_waiting_per_flow = 2;
    let mut gate = Gate::new(bounded);
    for repo in ["a", "b", "c"] {
        runs(&mut gate, clone_of(repo), 0);
    }
    waits(&mut gate, clone_of("a"), 0);
    waits(&mut gate, clone_of("a"), 0);
    assert_eq!(
        refused(&mut gate, clone_of("a"), 0).why,
        RefusalWhy::QueueFull
    );
    let leaver = waits(&mut gate, clone_of("b"), 0);
    assert_eq!(
        refused(&mut gate, clone_of("c"), 0).why,
        RefusalWhy::QueueFull
    );
    assert!(gate.release(leaver, Ended::ClientGone, at(0)));
    waits(&mut gate, clone_of("c"), 0);
}

#[test]
fn a_waiter_whose_time_is_up_is_refused_at_its_deadline_and_not_before() {
    let mut gate = Gate::new(settings([limit("all", Per::Global, 1)]));
    let running = runs(&mut gate, clone_of("a"), 0);
    let first = waits(&mut gate, clone_of("a"), 0);
    let second = waits(&mut gate, clone_of("a"), 1);
    assert_eq!(gate.next_deadline(), Some(at(60)));
    gate.advance(Moment(Duration::from_millis(59_999)));
    assert!(gate.next_event().is_none());
    gate.advance(at(60));
    let Some(Event::Refused(ticket, refusal)) = gate.next_event() else {
        panic!()
    };
    assert_eq!(
        (ticket, refusal.why, refusal.waiting),
        (first, RefusalWhy::Timeout, 1)
    );
    assert_eq!(gate.next_deadline(), Some(at(61)));
    assert_eq!(ends(&mut gate, running, 60), [second]);
    assert_eq!(gate.next_deadline(), None);
}

#[test]
fn who_has_less_patience_than_the_queue_is_refused_when_it_ends() {
    let one = || settings([limit("all", Per::Global, 1)]);
    let mut gate = Gate::new(one());
    let running = runs(&mut gate, clone_of("a"), 0);
    let patient = waits(&mut gate, clone_of("a"), 0);
    let seconds = Duration::from_secs;
    let Offer::Waiting(hasty) = gate.offer_for(clone_of("a"), seconds(30), at(1)) else {
        panic!()
    };
    assert_eq!(gate.next_deadline(), Some(at(31)));
    gate.reconfigure(one(), at(2));
    assert_eq!(gate.next_deadline(), Some(at(31)), "patience does not grow");
    gate.advance(at(31));
    let Some(Event::Refused(ticket, refusal)) = gate.next_event() else {
        panic!()
    };
    assert_eq!(
        (ticket, refusal.why, refusal.limit.as_deref()),
        (hasty, RefusalWhy::Timeout, Some("all"))
    );
    assert_eq!(gate.next_deadline(), Some(at(60)));

    let Offer::Refused(refusal) = gate.offer_for(clone_of("a"), Duration::ZERO, at(31)) else {
        panic!()
    };
    assert_eq!(refusal.why, RefusalWhy::Full, "it never waited");
    let Offer::Waiting(_) = gate.offer_for(clone_of("a"), seconds(90), at(31)) else {
        panic!()
    };
    assert_eq!(ends(&mut gate, running, 32), [patient]);
    assert_eq!(
        gate.next_deadline(),
        Some(at(91)),
        "nobody waits longer than the queue lets them"
    );
}

#[test]
fn cancelled_waiters_are_skipped() {
    let mut gate = Gate::new(settings([limit("all", Per::Global, 1)]));
    let running = runs(&mut gate, clone_of("a"), 0);
    let queued: Vec<_> = (0..50)
        .map(|_| waits(&mut gate, clone_of("a"), 0))
        .collect();
    for ticket in &queued[..49] {
        assert!(gate.release(*ticket, Ended::ClientGone, at(1)));
    }
    assert_eq!(ends(&mut gate, running, 2), [queued[49]]);
}

#[test]
fn a_cancelled_wide_waiter_lets_the_narrow_one_behind_it_run_at_once() {
    let mut gate = Gate::new(settings([limit("all", Per::Global, 2)]));
    let _running = runs(&mut gate, clone_of("a"), 0);
    let giant = waits(&mut gate, wide(2, clone_of("a")), 0);
    let behind = waits(&mut gate, clone_of("a"), 0);
    assert!(gate.release(giant, Ended::ClientGone, at(1)));
    assert_eq!(admitted(&mut gate), [behind]);
}

#[test]
fn flows_take_turns_however_many_wait_in_each() {
    let mut gate = Gate::new(settings([
        limit("all", Per::Global, 1),
        limit("u", Per::User, 9),
    ]));
    let mut running = runs(&mut gate, by("loud", clone_of("a")), 0);
    let loud: Vec<_> = (0..5)
        .map(|_| waits(&mut gate, by("loud", clone_of("a")), 0))
        .collect();
    let quiet: Vec<_> = (0..2)
        .map(|_| waits(&mut gate, by("quiet", clone_of("a")), 1))
        .collect();
    let positions = gate.snapshot(at(1)).waiting;
    let expected = [
        loud[0], quiet[0], loud[1], quiet[1], loud[2], loud[3], loud[4],
    ];
    assert_eq!(
        positions.iter().map(|view| view.ticket).collect::<Vec<_>>(),
        expected
    );
    assert_eq!(
        positions
            .iter()
            .map(|view| view.position)
            .collect::<Vec<_>>(),
        [1, 2, 3, 4, 5, 6, 7]
    );
    for (second, next) in (2..).zip(expected) {
        assert_eq!(ends(&mut gate, running, second), [next]);
        running = next;
    }
}

#[test]
fn turns_are_counted_in_seats() {
    let mut gate = Gate::new(settings([
        limit("all", Per::Global, 4),
        limit("u", Per::User, 9),
    ]));
    let mut running = runs(&mut gate, wide(4, by("x", clone_of("a"))), 0);
    let giants: Vec<_> = (0..2)
        .map(|_| waits(&mut gate, wide(4, by("wide", clone_of("a"))), 0))
        .collect();
    for _ in 0..8 {
        waits(&mut gate, by("narrow", clone_of("a")), 0);
    }
    let order = gate.snapshot(at(0)).waiting;
    let place = |ticket| order.iter().position(|view| view.ticket == ticket).unwrap();
    assert_eq!(
        (place(giants[0]), place(giants[1])),
        (3, 8),
        "a wide one for each four narrow ones"
    );
    let started = ends(&mut gate, running, 1);
    assert_eq!(
        started.len(),
        4,
        "what fits does not wait for what does not"
    );
    running = started[0];
    ends(&mut gate, running, 2);
}

#[test]
fn coming_again_and_again_is_no_way_to_the_front() {
    let mut gate = Gate::new(settings([
        limit("all", Per::Global, 1),
        limit("u", Per::User, 9),
    ]));
    let mut running = runs(&mut gate, by("x", clone_of("a")), 0);
    let mut served = HashMap::new();
    for second in 0..40 {
        for user in ["one-at-a-time", "patient", "third"] {
            let waiting = gate.snapshot(at(second)).waiting;
            let queued = |user: &str| {
                let of_user =
                    |view: &&WaitingView| &*view.demand.user.as_ref().unwrap().name == user;
                waiting.iter().filter(of_user).count()
            };
            if queued(user) == 0 || (user == "patient" && queued(user) < 10) {
                waits(&mut gate, by(user, clone_of("a")), second);
            }
        }
        running = ends(&mut gate, running, second)[0];
        let name = gate.snapshot(at(second)).running[0]
            .demand
            .user
            .clone()
            .unwrap()
            .name;
        *served.entry(name.to_string()).or_insert(0) += 1;
    }
    assert!(
        served.values().all(|count| (12..=14).contains(count)),
        "{served:?}"
    );
}
