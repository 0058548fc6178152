use super::*;

#[test]
fn the_narrowest_limit_without_room_is_named_with_its_numbers() {
    let mut queueing = settings([limit("all", Per::Global, 2), limit("each", Per::Repo, 2)]);
    queueing.queue.max_waiting_per_flow = 2;
    let mut gate = Gate::new(queueing);
    for _ in 0..2 {
        runs(&mut gate, clone_of("a"), 0);
    }
    for _ in 0..2 {
        waits(&mut gate, clone_of("a"), 0);
    }
    waits(&mut gate, clone_of("b"), 0);
    let refusal = refused(&mut gate, clone_of("a"), 0);
    assert_eq!(refusal.limit.as_deref(), Some("each"));
    assert_eq!((refusal.running, refusal.seats, refusal.waiting), (2, 2, 2));
}

#[test]
fn what_was_learned_says_when_a_seat_is_free() {
    let mut gate = Gate::new(refusing([limit("each", Per::Repo, 1)]));
    let first = runs(&mut gate, clone_of("a"), 0);
    let wait = |gate: &mut Gate, now| refused(gate, clone_of("a"), now).retry_after.as_secs();
    assert_eq!(wait(&mut gate, 0), 30, "nothing known: the default");
    ends(&mut gate, first, 100);
    let second = runs(&mut gate, clone_of("a"), 100);
    assert_eq!(wait(&mut gate, 140), 60);
    assert_eq!(wait(&mut gate, 140), 160);
    assert_eq!(wait(&mut gate, 150), 250);
    gate.release(second, Ended::ClientGone, at(160));
    let third = runs(&mut gate, clone_of("a"), 500);
    assert_eq!(
        wait(&mut gate, 500),
        100,
        "a client that left taught nothing"
    );
    ends(&mut gate, third, 500);
}

#[test]
fn the_first_lesson_counts_for_those_who_already_run() {
    let mut gate = Gate::new(refusing([limit("each", Per::Repo, 2)]));
    let first = runs(&mut gate, clone_of("a"), 0);
    runs(&mut gate, clone_of("a"), 60);
    ends(&mut gate, first, 100);
    runs(&mut gate, clone_of("a"), 100);
    assert_eq!(
        refused(&mut gate, clone_of("a"), 100).retry_after,
        Duration::from_secs(60)
    );
}

#[test]
fn those_who_wait_are_before_those_who_are_told_to_come_back() {
    let mut queueing = settings([limit("each", Per::Repo, 1)]);
    queueing.queue.timeout = Duration::from_secs(1000);
    queueing.queue.max_waiting = 2;
    let mut gate = Gate::new(queueing);
    let first = runs(&mut gate, clone_of("a"), 0);
    ends(&mut gate, first, 50);
    runs(&mut gate, clone_of("a"), 50);
    for _ in 0..2 {
        waits(&mut gate, clone_of("a"), 50);
    }
    assert_eq!(
        refused(&mut gate, clone_of("a"), 50).retry_after,
        Duration::from_secs(150)
    );
}

#[test]
fn a_herd_of_one_repository_takes_no_turns_from_another() {
    let mut gate = Gate::new(refusing([
        limit("all", Per::Global, 2),
        limit("each", Per::Repo, 1),
    ]));
    runs(&mut gate, clone_of("a"), 0);
    runs(&mut gate, clone_of("b"), 0);
    for _ in 0..100 {
        refused(&mut gate, clone_of("a"), 0);
    }
    assert_eq!(
        refused(&mut gate, clone_of("c"), 0).retry_after,
        Duration::from_secs(30)
    );
}

#[test]
fn draining_refuses_waiters_and_newcomers_but_not_what_is_exempt_or_runs() {
    let mut gate = Gate::new(settings([limit("all", Per::Global, 1)]));
    let running = runs(&mut gate, clone_of("a"), 0);
    let waiter = waits(&mut gate, clone_of("a"), 0);
    gate.drain(at(1));
    let Some(Event::Refused(ticket, refusal)) = gate.next_event() else {
        panic!()
    };
    assert_eq!(
        (ticket, refusal.why, &refusal.limit),
        (waiter, RefusalWhy::Draining, &None)
    );
    assert_eq!(refusal.retry_after, Duration::from_secs(5));
    assert!(gate.snapshot(at(1)).draining);
    ends(&mut gate, running, 2);
    assert_eq!(
        refused(&mut gate, clone_of("b"), 3).why,
        RefusalWhy::Draining
    );
    assert!(matches!(
        gate.offer(wide(0, clone_of("b")), at(3)),
        Offer::Exempt
    ));
    assert_eq!(gate.snapshot(at(3)).refused_last_hour, 2);
    assert!(gate.is_at_rest());
}

#[test]
fn refusals_of_the_last_hour_are_counted() {
    let mut gate = Gate::new(refusing([limit("all", Per::Global, 1)]));
    runs(&mut gate, clone_of("a"), 0);
    for minute in 0..90 {
        refused(&mut gate, clone_of("a"), minute * 60);
    }
    assert_eq!(gate.snapshot(at(89 * 60)).refused_last_hour, 60);
}
