use std::num::NonZeroU32;

use super::*;
use crate::{Limit, LimitView, Match, MatchSpec, Mode, Per, User, WaitingView};

fn at(seconds: u64) -> Moment {
    Moment(Duration::from_secs(seconds))
}

fn limit(name: &str, per: Per, seats: u32) -> Limit {
    Limit::new(name, per, NonZeroU32::new(seats).unwrap())
}

fn matching(limit: Limit, spec: MatchSpec) -> Limit {
    Limit {
        matches: Match::new(&spec).unwrap(),
        ..limit
    }
}

fn only_repo(pattern: &str) -> MatchSpec {
    MatchSpec {
        repo: Some(pattern.into()),
        ..MatchSpec::default()
    }
}

fn only_user(pattern: &str) -> MatchSpec {
    MatchSpec {
        user: Some(pattern.into()),
        ..MatchSpec::default()
    }
}

/// Waits for up to 60 s.
fn settings(limits: impl IntoIterator<Item = Limit>) -> Settings {
    let mut settings = Settings {
        limits: limits.into_iter().collect(),
        ..Settings::default()
    };
    settings.queue.timeout = Duration::from_secs(60);
    settings
}

fn refusing(limits: impl IntoIterator<Item = Limit>) -> Settings {
    let mut settings = settings(limits);
    settings.queue.timeout = Duration::ZERO;
    settings
}

fn clone_of(repo: &str) -> Demand {
    Demand {
        repo: repo.into(),
        user: None,
        ip: None,
        shape: "clone",
        user_agent: None,
        seats: 1,
    }
}

fn by(user: &str, demand: Demand) -> Demand {
    let user = Some(User {
        name: user.into(),
        trusted: false,
    });
    Demand { user, ..demand }
}

fn wide(seats: u32, demand: Demand) -> Demand {
    Demand { seats, ..demand }
}

#[track_caller]
fn runs(gate: &mut Gate, demand: Demand, now: u64) -> Ticket {
    match gate.offer(demand, at(now)) {
        Offer::Running(ticket) => ticket,
        other => panic!("{other:?}"),
    }
}

#[track_caller]
fn waits(gate: &mut Gate, demand: Demand, now: u64) -> Ticket {
    match gate.offer(demand, at(now)) {
        Offer::Waiting(ticket) => ticket,
        other => panic!("{other:?}"),
    }
}

#[track_caller]
fn refused(gate: &mut Gate, demand: Demand, now: u64) -> Refusal {
    match gate.offer(demand, at(now)) {
        Offer::Refused(refusal) => refusal,
        other => panic!("{other:?}"),
    }
}

/// The tickets admitted since the last time; any other event is a failure.
#[track_caller]
fn admitted(gate: &mut Gate) -> Vec<Ticket> {
    let events = std::iter::from_fn(|| gate.next_event());
    events
        .map(|event| match event {
            Event::Admitted(ticket) => ticket,
            Event::Refused(..) => panic!("{event:?}"),
        })
        .collect()
}

#[track_caller]
fn ends(gate: &mut Gate, ticket: Ticket, now: u64) -> Vec<Ticket> {
    assert!(gate.release(ticket, Ended::Served, at(now)));
    admitted(gate)
}

mod which_limit {
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
}

mod admission {
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
}

mod waiting {
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
}

mod overtaking {
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
}

mod reconfiguring {
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
}

mod refusing_and_draining {
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
}

mod time {
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
}

#[test]
fn the_gate_can_be_sent_between_threads() {
    fn is_send<T: Send>(_: &T) {}
    is_send(&Gate::new(Settings::default()));
}

#[test]
fn limits_are_summed_over_their_keys_and_the_busiest_is_named() {
    let mut gate = Gate::new(settings([
        limit("all", Per::Global, 9),
        limit("each", Per::Repo, 3),
    ]));
    assert!(
        gate.limits()
            .iter()
            .all(|view| view.in_use == 0 && view.busiest.is_none())
    );
    for repo in ["b", "a", "c", "c"] {
        runs(&mut gate, clone_of(repo), 0);
    }
    let views = gate.limits();
    assert_eq!(
        (views[0].in_use, &views[0].busiest),
        (4, &Some(("*".into(), 4)))
    );
    assert_eq!(
        (views[1].in_use, &views[1].busiest),
        (4, &Some(("c".into(), 2)))
    );
    assert_eq!(
        (&*views[1].name, views[1].per, views[1].seats),
        ("each", Per::Repo, 3)
    );
}

mod outlook {
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
        let names =
            |view: &WaitingView| view.waits_for.iter().map(|name| name.to_string()).collect();
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
}
