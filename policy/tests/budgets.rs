//! Budgets, rule by rule, and seats by weight.

#[path = "support/mod.rs"]
mod support;

use std::{
    collections::{BTreeSet, HashMap},
    num::NonZeroU32,
    time::Duration,
};

use packgate_policy::{
    Demand, Ended, Event, Gate, Match, MatchSpec, Mode, Moment, Offer, Per, Quota, RateRange,
    Refusal, RefusalWhy, Resource, Settings, Spent, Ticket, Weigh,
};
use support::{demand, limit, only_shape, quota};

fn at(seconds: u64) -> Moment {
    Moment(Duration::from_secs(seconds))
}

fn bytes(bytes: u64) -> Spent {
    Spent {
        bytes,
        ..Spent::default()
    }
}

fn budgets(quotas: impl IntoIterator<Item = Quota>) -> Settings {
    Settings {
        quotas: quotas.into_iter().collect(),
        ..Settings::default()
    }
}

/// One budget of bytes for all: 1 a second, 100 at most.
fn egress() -> Quota {
    quota("egress", Per::Global, Resource::Bytes, 1.0, 100.0)
}

fn priced(price: f64, quota: Quota) -> Quota {
    Quota {
        prices: vec![("clone", price)],
        ..quota
    }
}

fn all_shapes(quota: Quota) -> Quota {
    Quota {
        all_shapes: true,
        ..quota
    }
}

/// A request that takes no seat.
fn seatless(shape: &'static str) -> Demand {
    Demand {
        shape,
        seats: 0,
        ..demand("r", None)
    }
}

#[track_caller]
fn runs(gate: &mut Gate, demand: Demand, now: u64) -> Ticket {
    match gate.offer(demand, at(now)) {
        Offer::Running(ticket) | Offer::Metered(ticket) => ticket,
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

fn ends(gate: &mut Gate, ticket: Ticket, spent: Spent, now: u64) {
    gate.release(ticket, Ended::Served, at(now));
    gate.charge(ticket, spent, at(now));
}

/// Runs one and charges it, all at once.
#[track_caller]
fn costs(gate: &mut Gate, demand: Demand, cost: u64, now: u64) {
    let ticket = runs(gate, demand, now);
    ends(gate, ticket, bytes(cost), now);
}

/// What is left in the worst account of the budget of this name.
fn left(gate: &Gate, name: &str, now: u64) -> f64 {
    let mut quotas = gate.quotas(at(now)).into_iter();
    let view = quotas.find(|view| &*view.name == name).unwrap();
    view.worst.map_or(view.burst, |(_, left)| left)
}

#[test]
fn whoever_has_something_left_gets_in_and_pays_what_it_cost() {
    let mut gate = Gate::new(budgets([egress()]));
    costs(&mut gate, demand("r", None), 99, 0);
    costs(&mut gate, demand("r", None), 501, 0);
    assert_eq!(left(&gate, "egress", 0), -500.0);
    let refusal = refused(&mut gate, demand("r", None), 400);
    assert_eq!(refusal.why, RefusalWhy::Quota);
    assert_eq!(refusal.limit.as_deref(), Some("egress"));
    assert_eq!(
        refused(&mut gate, demand("r", None), 500).why,
        RefusalWhy::Quota,
        "zero is not positive"
    );
    runs(&mut gate, demand("r", None), 501);
}

#[test]
fn nobody_waits_for_money_even_where_one_waits_for_seats() {
    let mut settings = budgets([egress()]);
    settings.limits.push(limit("all", Per::Global, 1));
    settings.queue.timeout = Duration::from_secs(600);
    let mut gate = Gate::new(settings);
    costs(&mut gate, demand("r", None), 101, 0);
    refused(&mut gate, demand("r", None), 0);
    assert_eq!((gate.running(), gate.waiting()), (0, 0));
}

#[test]
fn the_time_to_come_back_is_when_the_balance_is_positive_and_a_herd_is_spread_by_what_one_costs() {
    let mut gate = Gate::new(budgets([priced(30.0, egress())]));
    let first = runs(&mut gate, demand("r", None), 0);
    let second = runs(&mut gate, demand("r", None), 0);
    gate.release(first, Ended::Failed, at(0));
    gate.release(second, Ended::Failed, at(0));
    gate.charge(first, bytes(120), at(0));
    gate.charge(second, bytes(0), at(0));
    let told: Vec<_> = (0..4)
        .map(|_| refused(&mut gate, demand("r", None), 0))
        .map(|refusal| refusal.retry_after.as_secs())
        .collect();
    assert_eq!(told, [21, 51, 81, 111]);
    refused(&mut gate, demand("r", None), 20);
    runs(&mut gate, demand("r", None), 21);
}

#[test]
fn the_longest_of_several_debts_counts_and_is_named() {
    for (known, unknown, named) in [(60, 0, "user"), (30, 80, "repo")] {
        let repo = quota("repo", Per::Repo, Resource::Bytes, 1.0, 10.0);
        let user = quota("user", Per::User, Resource::Bytes, 0.5, 10.0);
        let mut gate = Gate::new(budgets([repo, user]));
        let one = runs(&mut gate, demand("r", Some("ann")), 0);
        let other = runs(&mut gate, demand("r", None), 0);
        ends(&mut gate, one, bytes(known), 0);
        ends(&mut gate, other, bytes(unknown), 0);
        let refusal = refused(&mut gate, demand("r", Some("ann")), 0);
        assert_eq!(refusal.limit.as_deref(), Some(named));
        assert_eq!(refusal.retry_after.as_secs(), 101, "not 51, not 41");
    }
}

#[test]
fn an_estimate_is_held_until_the_charge() {
    let mut gate = Gate::new(budgets([priced(40.0, egress())]));
    let tickets: Vec<_> = (0..3)
        .map(|_| runs(&mut gate, demand("r", None), 0))
        .collect();
    assert_eq!(left(&gate, "egress", 0), -20.0);
    refused(&mut gate, demand("r", None), 0);
    gate.release(tickets[0], Ended::Served, at(1));
    assert_eq!(left(&gate, "egress", 1), -20.0, "what it cost is not known");
    gate.charge(tickets[0], bytes(7), at(2));
    assert_eq!(left(&gate, "egress", 2), 13.0);
    gate.charge(tickets[0], bytes(7), at(2));
    assert_eq!(left(&gate, "egress", 2), 13.0, "charged once");
}

#[test]
fn who_waits_holds_an_estimate_until_it_leaves_is_refused_or_is_charged() {
    let mut settings = budgets([priced(10.0, egress())]);
    settings.limits.push(limit("all", Per::Global, 1));
    settings.queue.timeout = Duration::from_secs(60);
    let mut gate = Gate::new(settings);
    let running = runs(&mut gate, demand("r", None), 0);
    let waits = |gate: &mut Gate| match gate.offer(demand("r", None), at(0)) {
        Offer::Waiting(ticket) => ticket,
        other => panic!("{other:?}"),
    };
    let (leaves, served) = (waits(&mut gate), waits(&mut gate));
    waits(&mut gate);
    assert_eq!(left(&gate, "egress", 0), 60.0);
    gate.release(leaves, Ended::ClientGone, at(0));
    assert_eq!(left(&gate, "egress", 0), 70.0);
    ends(&mut gate, running, bytes(10), 0);
    assert!(matches!(gate.next_event(), Some(Event::Admitted(ticket)) if ticket == served));
    assert_eq!(left(&gate, "egress", 0), 70.0, "two held, one paid");
    gate.advance(at(60));
    assert!(matches!(gate.next_event(), Some(Event::Refused(..))));
    assert_eq!(left(&gate, "egress", 60), 90.0);
    ends(&mut gate, served, bytes(10), 60);
    assert_eq!(left(&gate, "egress", 60), 90.0);
    gate.advance(at(400));
    assert!(gate.is_at_rest());
}

#[test]
fn an_estimate_is_what_those_of_the_repository_and_shape_cost_else_the_price_else_nothing() {
    let held = |gate: &mut Gate, demand: Demand| {
        let before = left(gate, "egress", 0);
        let ticket = runs(gate, demand, 0);
        let held = before - left(gate, "egress", 0);
        gate.release(ticket, Ended::Failed, at(0));
        gate.charge(ticket, bytes(0), at(0));
        held
    };
    let plenty = Quota {
        burst: 1e6,
        ..priced(20.0, egress())
    };
    let mut gate = Gate::new(budgets([plenty]));
    let shallow = Demand {
        shape: "shallow",
        ..demand("r", None)
    };
    assert_eq!(held(&mut gate, demand("r", None)), 20.0);
    assert_eq!(held(&mut gate, shallow), 0.0);
    costs(&mut gate, demand("r", None), 100, 0);
    assert_eq!(held(&mut gate, demand("r", None)), 100.0);
    costs(&mut gate, demand("r", None), 200, 0);
    assert_eq!(held(&mut gate, demand("r", None)), 125.0);
    assert_eq!(held(&mut gate, demand("other", None)), 20.0);
}

#[test]
fn only_whole_answers_teach_a_price_and_the_others_are_charged_all_the_same() {
    for (ended, before_release) in [
        (Ended::Failed, false),
        (Ended::ClientGone, false),
        (Ended::Served, true),
    ] {
        let mut gate = Gate::new(budgets([priced(20.0, egress())]));
        let ticket = runs(&mut gate, demand("r", None), 0);
        if before_release {
            gate.charge(ticket, bytes(90), at(0));
        }
        assert!(gate.release(ticket, ended, at(0)));
        gate.charge(ticket, bytes(90), at(0));
        assert_eq!(left(&gate, "egress", 0), 10.0, "{ended:?}");
        runs(&mut gate, demand("r", None), 0);
        assert_eq!(left(&gate, "egress", 0), -10.0, "{ended:?}");
    }
}

#[test]
fn each_resource_counts_its_own_and_what_is_not_known_costs_nothing() {
    let of = |resource: Resource| quota(resource.as_str(), Per::Global, resource, 1.0, 1000.0);
    let mut gate = Gate::new(budgets([
        of(Resource::CpuSeconds),
        of(Resource::MemorySeconds),
        of(Resource::Bytes),
        of(Resource::Requests),
    ]));
    let ticket = runs(&mut gate, demand("r", None), 0);
    let spent = Spent {
        bytes: 300,
        cpu: Some(Duration::from_millis(2500)),
        memory_seconds: Some(40.0),
    };
    ends(&mut gate, ticket, spent, 0);
    let missing = |gate: &Gate| {
        ["cpu_seconds", "memory_seconds", "bytes", "requests"]
            .map(|name| 1000.0 - left(gate, name, 0))
    };
    assert_eq!(missing(&gate), [2.5, 40.0, 300.0, 1.0]);
    for memory_seconds in [None, Some(f64::NAN), Some(-1.0)] {
        let ticket = runs(&mut gate, demand("r", None), 0);
        let spent = Spent {
            memory_seconds,
            ..Spent::default()
        };
        ends(&mut gate, ticket, spent, 0);
    }
    assert_eq!(missing(&gate), [2.5, 40.0, 300.0, 4.0]);
}

#[test]
fn all_budgets_are_asked_before_any_is_held_and_all_before_the_seats() {
    let each = quota("each", Per::Repo, Resource::Bytes, 1.0, 5.0);
    let mut settings = budgets([priced(10.0, egress()), priced(10.0, each)]);
    settings.limits.push(limit("all", Per::Global, 1));
    let mut gate = Gate::new(settings);
    runs(&mut gate, demand("r", None), 0);
    assert_eq!(left(&gate, "egress", 0), 90.0);
    let refusal = refused(&mut gate, demand("r", None), 0);
    assert_eq!(refusal.limit.as_deref(), Some("each"), "before the seats");
    assert_eq!(
        left(&gate, "egress", 0),
        90.0,
        "refused by the other budget"
    );
    let refusal = refused(&mut gate, demand("s", None), 0);
    assert_eq!(refusal.why, RefusalWhy::Full);
    assert_eq!(left(&gate, "egress", 0), 90.0, "refused for want of a seat");
}

#[test]
fn the_first_that_fits_of_those_that_count_the_same_applies() {
    let shallow = Quota {
        matches: only_shape("shallow"),
        ..quota("shallow", Per::Global, Resource::Bytes, 1.0, 100.0)
    };
    let requests = quota("requests", Per::Global, Resource::Requests, 1.0, 100.0);
    let by_user = quota("user", Per::User, Resource::Bytes, 1.0, 100.0);
    let mut gate = Gate::new(budgets([shallow, egress(), requests, by_user]));
    let small = Demand {
        shape: "shallow",
        ..demand("r", Some("ann"))
    };
    costs(&mut gate, small, 10, 0);
    costs(&mut gate, demand("r", None), 20, 0);
    let left = ["shallow", "egress", "requests", "user"].map(|name| left(&gate, name, 0));
    assert_eq!(left, [90.0, 80.0, 98.0, 90.0]);
}

#[test]
fn accounts_are_per_key() {
    let mut gate = Gate::new(budgets([quota(
        "each",
        Per::Repo,
        Resource::Bytes,
        1.0,
        100.0,
    )]));
    costs(&mut gate, demand("r", None), 150, 0);
    costs(&mut gate, demand("s", None), 10, 0);
    refused(&mut gate, demand("r", None), 0);
    runs(&mut gate, demand("s", None), 0);
    let worst = gate.quotas(at(0))[0].worst.clone();
    assert_eq!(worst, Some(("r".to_owned(), -50.0)));
}

#[test]
fn a_budget_for_all_shapes_is_charged_for_what_needs_no_seat_and_refuses_it_in_debt() {
    for shape in ["incremental", "filtered", "deepening", "unknown"] {
        let mut gate = Gate::new(budgets([all_shapes(egress())]));
        let Offer::Metered(ticket) = gate.offer(seatless(shape), at(0)) else {
            panic!("{shape}")
        };
        assert_eq!(gate.running(), 0);
        assert!(gate.release(ticket, Ended::Served, at(0)));
        assert!(
            !gate.release(ticket, Ended::Served, at(0)),
            "released twice"
        );
        gate.charge(ticket, bytes(130), at(0));
        let refusal = refused(&mut gate, seatless(shape), 0);
        assert_eq!(refusal.retry_after, Duration::from_secs(31));
        assert_eq!(gate.snapshot(at(0)).refused_last_hour, 1);
        runs(&mut gate, seatless(shape), 31);
    }
}

#[test]
fn what_brings_no_pack_is_never_charged_and_neither_is_what_a_budget_is_not_about() {
    let mut gate = Gate::new(budgets([all_shapes(egress())]));
    let ticket = runs(&mut gate, demand("r", None), 0);
    ends(&mut gate, ticket, bytes(1000), 0);
    for shape in [
        "probe",
        "ls-refs",
        "object-info",
        "bundle-uri",
        "other-command",
        "negotiation",
    ] {
        assert!(matches!(gate.offer(seatless(shape), at(0)), Offer::Exempt));
    }
    let mut gated = Gate::new(budgets([egress()]));
    let offer = gated.offer(seatless("incremental"), at(0));
    assert!(matches!(offer, Offer::Exempt));
}

#[test]
fn exempt_rules_are_never_charged() {
    let rule = MatchSpec {
        repo: Some("free".into()),
        ..MatchSpec::default()
    };
    let mut settings = budgets([all_shapes(egress())]);
    settings.exempt.push(Match::new(&rule).unwrap());
    let mut gate = Gate::new(settings);
    costs(&mut gate, demand("r", None), 1000, 0);
    let free = |demand: Demand| Demand {
        repo: "free".into(),
        ..demand
    };
    for demand in [free(demand("r", None)), free(seatless("incremental"))] {
        assert!(matches!(gate.offer(demand, at(0)), Offer::Exempt));
    }
}

#[test]
fn a_gate_that_drains_says_so_to_those_in_debt_as_well() {
    let mut gate = Gate::new(budgets([egress()]));
    costs(&mut gate, demand("r", None), 1000, 0);
    gate.drain(at(0));
    let refusal = refused(&mut gate, demand("r", None), 0);
    assert_eq!((refusal.why, refusal.limit), (RefusalWhy::Draining, None));
}

#[test]
fn a_budget_that_only_watches_refuses_nobody_and_shows_what_would_be_left() {
    for shadow_all in [false, true] {
        let mut settings = budgets([Quota {
            shadow: !shadow_all,
            ..egress()
        }]);
        if shadow_all {
            settings.mode = Mode::Shadow;
        }
        let mut gate = Gate::new(settings);
        costs(&mut gate, demand("r", None), 1000, 0);
        costs(&mut gate, demand("r", None), 1000, 0);
        // The second would have been refused, and cost nothing.
        assert_eq!(left(&gate, "egress", 0), -900.0);
    }
}

#[test]
fn a_budget_that_is_put_in_force_begins_full() {
    let watching = Quota {
        shadow: true,
        ..egress()
    };
    let mut gate = Gate::new(budgets([watching]));
    costs(&mut gate, demand("r", None), 1000, 0);
    assert_eq!(left(&gate, "egress", 0), -900.0, "as it would be");
    gate.reconfigure(budgets([egress()]), at(0));
    assert_eq!(left(&gate, "egress", 0), 100.0);
}

#[test]
fn new_settings_keep_balances_by_name_and_holds_by_ticket() {
    let plenty = Quota {
        burst: 1000.0,
        ..priced(10.0, egress())
    };
    let mut gate = Gate::new(budgets([plenty.clone()]));
    let running = runs(&mut gate, demand("r", None), 0);
    costs(&mut gate, demand("s", None), 700, 0);
    assert_eq!(left(&gate, "egress", 0), 290.0);

    // Another place in the list, another burst, another price.
    let other = quota("other", Per::Global, Resource::Requests, 1.0, 10.0);
    let smaller = Quota {
        burst: 500.0,
        ..priced(25.0, egress())
    };
    gate.reconfigure(budgets([other, smaller]), at(0));
    assert_eq!(left(&gate, "egress", 0), 275.0);
    assert_eq!(left(&gate, "other", 0), 9.0, "one runs");
    ends(&mut gate, running, bytes(100), 0);
    assert_eq!(left(&gate, "egress", 0), 200.0);

    // What is counted in something else begins anew.
    let requests = quota("egress", Per::Global, Resource::Requests, 1.0, 10.0);
    gate.reconfigure(budgets([requests]), at(0));
    assert_eq!(left(&gate, "egress", 0), 10.0);
    gate.reconfigure(Settings::default(), at(0));
    assert!(gate.is_at_rest());
}

#[test]
fn what_arrived_before_there_were_budgets_is_not_charged() {
    let mut settings = Settings::default();
    settings.limits.push(limit("all", Per::Global, 9));
    let mut gate = Gate::new(settings.clone());
    let running = runs(&mut gate, demand("r", None), 0);
    settings.quotas.push(egress());
    gate.reconfigure(settings, at(0));
    ends(&mut gate, running, bytes(1000), 0);
    assert_eq!(left(&gate, "egress", 0), 100.0);
    assert!(gate.is_at_rest());
}

#[test]
fn a_rate_that_scales_doubles_halves_and_holds_between_its_bounds() {
    let scaling = Quota {
        rate: 2.0,
        scales: Some(RateRange { min: 1.0, max: 5.0 }),
        ..egress()
    };
    let mut gate = Gate::new(budgets([
        scaling.clone(),
        quota("fixed", Per::Global, Resource::Requests, 3.0, 1.0),
    ]));
    let mut now = 0;
    let mut rate_at = |gate: &mut Gate, load| {
        now += 1;
        gate.scale_budgets(load, at(now));
        let rates: Vec<_> = gate.quotas(at(now)).iter().map(|view| view.rate).collect();
        assert_eq!(rates[1], 3.0);
        rates[0]
    };
    for (load, rate) in [
        (Some(0.49), 4.0),
        (Some(0.1), 5.0),
        (Some(0.0), 5.0),
        (Some(0.5), 5.0),
        (Some(0.8), 5.0),
        (None, 5.0),
        (Some(f64::NAN), 5.0),
        (Some(0.81), 2.5),
        (Some(1.0), 1.25),
        (Some(7.0), 1.0),
        (Some(0.9), 1.0),
        (Some(0.3), 2.0),
    ] {
        assert_eq!(rate_at(&mut gate, load), rate, "at {load:?}");
    }

    // A balance grows at the rate of each second.
    costs(&mut gate, demand("r", None), 100, 20);
    assert_eq!(left(&gate, "egress", 21), 2.0);
    gate.scale_budgets(Some(0.0), at(21));
    assert_eq!(left(&gate, "egress", 22), 6.0);

    // A reload keeps it, within new bounds.
    let narrower = Quota {
        scales: Some(RateRange { min: 1.0, max: 3.0 }),
        ..scaling.clone()
    };
    gate.reconfigure(budgets([narrower]), at(22));
    assert_eq!(gate.quotas(at(22))[0].rate, 3.0);
    assert_eq!(left(&gate, "egress", 23), 9.0);
    gate.reconfigure(budgets([egress()]), at(23));
    assert_eq!(gate.quotas(at(23))[0].rate, 1.0);
}

#[test]
fn a_demand_takes_the_seats_that_its_kind_was_seen_to_cost() {
    let mut settings = Settings::default();
    settings.limits.push(limit("all", Per::Global, 20));
    settings.weigh = Some(Weigh {
        per: Resource::CpuSeconds,
        unit: 60.0,
        max: NonZeroU32::new(4).unwrap(),
    });
    for (cpu, asked, seats) in [
        (1, 1, 1),
        (60, 1, 1),
        (61, 1, 2),
        (240, 1, 4),
        (90_000, 1, 4),
        (1, 3, 3),
        (90_000, 6, 6),
    ] {
        let mut gate = Gate::new(settings.clone());
        let clone = Demand {
            seats: asked,
            ..demand("java", None)
        };
        let first = runs(&mut gate, clone.clone(), 0);
        assert_eq!(gate.seats_of(first), asked, "nothing is known yet");
        let spent = Spent {
            cpu: Some(Duration::from_secs(cpu)),
            ..Spent::default()
        };
        ends(&mut gate, first, spent, 0);
        let second = runs(&mut gate, clone.clone(), 0);
        assert_eq!(gate.seats_of(second), seats, "{cpu} s asked as {asked}");
        assert_eq!(gate.limits()[0].in_use, u64::from(seats));
        let other = Demand {
            repo: "other".into(),
            ..clone
        };
        let third = runs(&mut gate, other, 0);
        assert_eq!(gate.seats_of(third), asked);
        gate.release(second, Ended::Served, at(0));
        assert_eq!(gate.seats_of(second), 0);
        assert_eq!(gate.limits()[0].in_use, u64::from(asked));
    }
}

#[test]
fn what_needs_no_seat_is_not_weighed() {
    let mut settings = budgets([all_shapes(egress())]);
    settings.limits.push(limit("all", Per::Global, 10));
    settings.weigh = Some(Weigh {
        per: Resource::Bytes,
        unit: 1.0,
        max: NonZeroU32::new(4).unwrap(),
    });
    let mut gate = Gate::new(settings);
    costs(&mut gate, seatless("incremental"), 50, 0);
    let ticket = runs(&mut gate, seatless("incremental"), 0);
    assert_eq!(gate.seats_of(ticket), 0);
    assert_eq!(gate.limits()[0].in_use, 0);
}

/// Ten clients claim to have something and are sent everything, again and again: the moment one is answered it asks for more,
/// and the moment it may come back it does. Limits do not see them, for they take no seat.
#[test]
fn made_up_haves_get_no_more_than_the_budget_and_one_answer_each() {
    const HOUR: u64 = 3600;
    let (rate, burst, clients, service, cost) = (10.0, 1000.0, 10, 30, 1000);
    let spent_in_an_hour = |quotas: Vec<Quota>| {
        let mut gate = Gate::new(budgets(quotas));
        let mut events: BTreeSet<(u64, usize)> = (0..clients).map(|client| (0, client)).collect();
        let mut running: HashMap<usize, Ticket> = HashMap::new();
        let mut spent = 0;
        while let Some((now, client)) = events.pop_first()
            && now < HOUR
        {
            if let Some(ticket) = running.remove(&client) {
                ends(&mut gate, ticket, bytes(cost), now);
                spent += cost;
            }
            let again = match gate.offer(seatless("incremental"), at(now)) {
                Offer::Metered(ticket) => {
                    running.insert(client, ticket);
                    now + service
                }
                Offer::Refused(refusal) => now + refusal.retry_after.as_secs(),
                Offer::Exempt => {
                    spent += cost;
                    now + service
                }
                other => panic!("{other:?}"),
            };
            events.insert((again, client));
            let honest = Demand {
                repo: "other".into(),
                ..seatless("incremental")
            };
            let passes = matches!(
                gate.offer(honest, at(now)),
                Offer::Metered(_) | Offer::Exempt
            );
            assert!(passes, "another repository pays for it");
        }
        spent as f64
    };
    let each = all_shapes(quota("each", Per::Repo, Resource::Bytes, rate, burst));
    let bounded = spent_in_an_hour(vec![each.clone()]);
    let income = burst + rate * HOUR as f64;
    let in_flight = (clients as u64 * cost) as f64;
    assert!(
        (income / 2.0..=income + in_flight).contains(&bounded),
        "{bounded}"
    );
    let gated = Quota {
        all_shapes: false,
        ..each
    };
    assert!(spent_in_an_hour(vec![gated]) > 20.0 * bounded);
}
