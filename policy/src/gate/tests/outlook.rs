use super::*;

/// When the waiters are expected to start, in the order of the queue.
fn starts(gate: &Gate, now: u64) -> Vec<Option<u64>> {
    let waiting = gate.snapshot(at(now)).waiting;
    let seconds = |view: &WaitingView| view.expected_start.map(|start| start.0.as_secs());
    waiting.iter().map(seconds).collect()
}

/// One clone of `repo` that takes so long.
fn teach(gate: &mut Gate, repo: &str, from: u64, took: u64) {
    let ticket = runs(gate, clone_of(repo), from);
    assert_eq!(ends(gate, ticket, from + took), []);
}

#[test]
fn nothing_is_told_while_nothing_is_known() {
    let mut gate = Gate::new(settings([limit("all", Per::Global, 1)]));
    runs(&mut gate, clone_of("a"), 0);
    waits(&mut gate, clone_of("b"), 1);
    let snapshot = gate.snapshot(at(1));
    assert_eq!(snapshot.running[0].expected_end, None);
    assert_eq!(snapshot.waiting[0].expected_start, None);
    assert_eq!(snapshot.waiting[0].deadline, at(61));
}

#[test]
fn a_running_clone_should_end_when_the_last_one_of_its_kind_did() {
    let mut gate = Gate::new(settings([limit("all", Per::Global, 2)]));
    teach(&mut gate, "a", 0, 40);
    runs(&mut gate, clone_of("a"), 100);
    runs(&mut gate, clone_of("b"), 100);
    let running = gate.snapshot(at(110)).running;
    let expected: Vec<_> = running.iter().map(|view| view.expected_end).collect();
    assert_eq!(expected, [Some(at(140)), None]);
}

#[test]
fn waiters_are_expected_one_behind_the_other() {
    let mut settings = settings([limit("all", Per::Global, 2)]);
    settings.queue.timeout = Duration::from_secs(1000);
    let mut gate = Gate::new(settings);
    teach(&mut gate, "a", 0, 40);
    runs(&mut gate, clone_of("a"), 100);
    runs(&mut gate, clone_of("a"), 120);
    for _ in 0..4 {
        waits(&mut gate, clone_of("a"), 125);
    }
    let expected = [140, 160, 180, 200].map(Some);
    assert_eq!(starts(&gate, 125), expected);
}

#[test]
fn who_should_have_ended_is_expected_to_end_any_moment() {
    let mut gate = Gate::new(settings([limit("all", Per::Global, 1)]));
    teach(&mut gate, "a", 0, 10);
    runs(&mut gate, clone_of("a"), 100);
    waits(&mut gate, clone_of("a"), 105);
    assert_eq!(starts(&gate, 105), [Some(110)]);
    assert_eq!(starts(&gate, 130), [Some(130)]);
}

#[test]
fn a_waiter_needs_room_in_all_of_its_limits() {
    let mut gate = Gate::new(settings([
        limit("all", Per::Global, 2),
        limit("each", Per::Repo, 1),
    ]));
    teach(&mut gate, "slow", 0, 50);
    teach(&mut gate, "fast", 60, 10);
    runs(&mut gate, clone_of("slow"), 100);
    runs(&mut gate, clone_of("fast"), 100);
    waits(&mut gate, clone_of("slow"), 101);
    waits(&mut gate, clone_of("fast"), 102);
    let waiting = gate.snapshot(at(102)).waiting;
    let names = |view: &WaitingView| view.waits_for.iter().map(|name| name.to_string()).collect();
    let names: Vec<Vec<String>> = waiting.iter().map(names).collect();
    assert_eq!(names, [["each", "all"], ["each", "all"]]);
    assert_eq!(starts(&gate, 102), [Some(150), Some(110)]);
}

#[test]
fn who_waits_behind_somebody_unknown_is_told_nothing() {
    let mut gate = Gate::new(settings([limit("all", Per::Global, 1)]));
    teach(&mut gate, "known", 0, 10);
    runs(&mut gate, clone_of("known"), 100);
    waits(&mut gate, clone_of("never-seen"), 101);
    waits(&mut gate, clone_of("known"), 102);
    assert_eq!(starts(&gate, 102), [Some(110), None]);
}

#[test]
fn nobody_is_expected_to_start_past_his_deadline() {
    let mut gate = Gate::new(settings([limit("all", Per::Global, 1)]));
    let first = runs(&mut gate, clone_of("a"), 0);
    let second = waits(&mut gate, clone_of("a"), 1);
    waits(&mut gate, clone_of("a"), 2);
    // Only now is it known how long one takes. The third one's turn would come at 80; it is refused at 62.
    assert_eq!(ends(&mut gate, first, 40), [second]);
    assert_eq!(starts(&gate, 40), [None]);
    gate.advance(at(62));
    assert!(matches!(gate.next_event(), Some(Event::Refused(..))));
}

#[test]
fn when_the_time_of_a_wide_one_is_up_the_narrow_one_behind_it_is_expected_to_start() {
    let mut patient = settings([limit("all", Per::Global, 2)]);
    patient.queue.timeout = Duration::from_secs(1000);
    let mut gate = Gate::new(patient.clone());
    teach(&mut gate, "a", 0, 400);
    runs(&mut gate, clone_of("a"), 1000);
    waits(&mut gate, wide(2, clone_of("a")), 1001);
    patient.queue.timeout = Duration::from_secs(60);
    gate.reconfigure(patient, at(1002));
    let narrow = waits(&mut gate, clone_of("a"), 1010);
    assert_eq!(gate.foretold(narrow), Some(at(1061)));
    assert_eq!(starts(&gate, 1010), [None, Some(1061)]);
    gate.advance(at(1061));
    assert!(matches!(gate.next_event(), Some(Event::Refused(..))));
    assert_eq!(admitted(&mut gate), [narrow]);
}

#[test]
fn what_is_computed_is_bounded() {
    let most = crate::outlook::LOOKED_AT;
    let mut settings = settings([limit("all", Per::Global, 1)]);
    settings.queue.timeout = Duration::from_secs(100_000);
    settings.queue.max_waiting = 10_000;
    settings.queue.max_waiting_per_flow = 10_000;
    let mut gate = Gate::new(settings);
    teach(&mut gate, "a", 0, 1);
    runs(&mut gate, clone_of("a"), 100);
    for _ in 0..most + 50 {
        waits(&mut gate, clone_of("a"), 100);
    }
    let starts = starts(&gate, 100);
    assert_eq!(starts.iter().flatten().count(), most);
    assert_eq!(starts[most - 1], Some(100 + most as u64));
    assert_eq!(starts.len(), most + 50);
}

#[test]
fn what_was_expected_happens_if_all_lasts_as_long_as_it_did() {
    let mut settings = settings([limit("all", Per::Global, 3), limit("each", Per::Repo, 2)]);
    settings.queue.timeout = Duration::from_secs(10_000);
    let mut gate = Gate::new(settings);
    let repos = [("a", 30), ("b", 70), ("c", 110)];
    for (n, (repo, took)) in (0..).zip(repos) {
        teach(&mut gate, repo, n * 200, took);
    }
    let took = |repo: &str| repos.iter().find(|(name, _)| *name == repo).unwrap().1;
    let mut ends = BTreeSet::new();
    for second in 1000..1012 {
        let repo = repos[second as usize % 3].0;
        match gate.offer(clone_of(repo), at(second)) {
            Offer::Running(ticket) => _ = ends.insert((second + took(repo), ticket)),
            Offer::Waiting(_) => {}
            other => panic!("{other:?}"),
        }
    }
    let waiting = gate.snapshot(at(1011)).waiting;
    assert_eq!(waiting.len(), 9);
    let mut started = HashMap::new();
    while let Some((second, ticket)) = ends.pop_first() {
        assert!(gate.release(ticket, Ended::Served, at(second)));
        for ticket in admitted(&mut gate) {
            let view = waiting.iter().find(|view| view.ticket == ticket).unwrap();
            started.insert(ticket, at(second));
            ends.insert((second + took(&view.demand.repo), ticket));
        }
    }
    for view in waiting {
        assert_eq!(
            view.expected_start,
            started.get(&view.ticket).copied(),
            "{view:?}"
        );
    }
}

#[test]
fn the_queue_has_room_where_somebody_may_wait() {
    let waiting = settings([limit("all", Per::Global, 1)]);
    assert_eq!(Gate::new(waiting.clone()).queue_limit(), 256);
    let shadow = Settings {
        mode: Mode::Shadow,
        ..waiting
    };
    assert_eq!(Gate::new(shadow).queue_limit(), 0);
    let mut gate = Gate::new(refusing([limit("all", Per::Global, 1)]));
    assert_eq!(gate.queue_limit(), 0);
    assert!(!gate.is_draining());
    gate.drain(at(0));
    assert!(gate.is_draining());
}

#[test]
fn limits_show_who_waits_and_what_they_refused() {
    let mut settings = settings([limit("all", Per::Global, 8), limit("each", Per::Repo, 1)]);
    settings.queue.max_waiting_per_flow = 1;
    let mut gate = Gate::new(settings);
    for repo in ["a", "b"] {
        runs(&mut gate, clone_of(repo), 0);
        waits(&mut gate, clone_of(repo), 0);
        refused(&mut gate, clone_of(repo), 0);
    }
    let snapshot = gate.snapshot(at(1));
    let shown = |view: &LimitView| (view.waiting, view.refused_last_hour);
    assert_eq!(
        snapshot.limits.iter().map(shown).collect::<Vec<_>>(),
        [(2, 0), (2, 2)]
    );
    assert_eq!(snapshot.refusals.len(), 1);
    let refusal = &snapshot.refusals[0];
    assert_eq!(
        (refusal.limit.as_deref(), refusal.why, refusal.count),
        (Some("each"), RefusalWhy::QueueFull, 2)
    );
}
