//! The page of the admin listener in a real browser.

use std::net::SocketAddr;

use packgate_integration_tests::{
    Browser, Connection, Git, Latch, NginxGit, Origin, Packgate, Relay, Reply, Request, pkt,
    repos::Sample, until,
};
use serde_json::json;

/// Two seats, two may wait, the next is refused.
const NARROW: &str = "limits: [{name: all-clones, per: global, seats: 2}, {name: each-repo, per: repo, seats: 4}]\n\
     queue: {timeout: 10m, max_waiting: 2}\nidentity: {user: [{header: x-user}], trusted_proxies: [127.0.0.1]}\n";

const LIVE: &str = "document.querySelector('#link').textContent === 'live'";

fn rows(table: &str) -> String {
    format!("document.querySelectorAll('#{table} tbody tr').length")
}

/// The repositories listed in a table, in order.
fn repos(browser: &mut Browser, table: &str) -> Vec<String> {
    browser.texts(&format!("#{table} tbody .repo"))
}

/// A server each of whose repositories is held by a latch of its own, and clones of them that say who they are.
struct Held {
    packgate: Packgate,
    latches: Vec<(&'static str, Latch)>,
    clones: Vec<Connection>,
    _origin: Origin,
}

impl Held {
    fn start(names: &[&'static str], config: &str) -> Held {
        let latches: Vec<_> = names.iter().map(|name| (*name, Latch::new())).collect();
        let script = latches.clone();
        let origin = Origin::start(move |request| {
            let named =
                |(name, _): &&(&str, Latch)| request.target().starts_with(&format!("/{name}/"));
            match script.iter().find(named) {
                Some((_, latch)) => Reply::Held(latch.clone(), b"first".to_vec()),
                None => Reply::Now(200, Vec::new()),
            }
        });
        let packgate = Packgate::start(&format!("upstream: {}\n{config}", origin.upstream()));
        Held {
            packgate,
            latches,
            clones: Vec::new(),
            _origin: origin,
        }
    }

    /// Starts a clone; `counts` run and wait then.
    fn clone(&mut self, repo: &str, counts: (usize, usize)) {
        let mut clone = self.packgate.connect();
        clone.send(
            &Request::upload_pack(repo, pkt::clone_v2())
                .header("User-Agent", "git/2.47.3")
                .header("X-User", "anna"),
        );
        self.clones.push(clone);
        self.packgate.until_counts(counts.0, counts.1);
    }

    /// Lets the clones of a repository end.
    fn release(&self, repo: &str) {
        let latch = self.latches.iter().find(|(name, _)| *name == repo);
        latch.expect("a repository with a latch").1.open();
    }

    fn browse(&self, path: &str) -> Browser {
        let mut browser = Browser::open(self.packgate.admin_addr(), path, "light", 1280);
        browser.until(LIVE);
        browser
    }
}

#[test]
fn a_storm_of_git_clones_is_seen_from_its_beginning_to_its_end() {
    let server = NginxGit::start(&[(Sample::Heavy, "squareup/java.git")]);
    let packgate = Packgate::start(&format!(
        "upstream: {}\n{NARROW}storm: {{clones: 3}}\n",
        server.upstream()
    ));
    let admin = packgate.admin_addr();
    let mut browser = Browser::open(admin, "/", "light", 1280);
    browser.until(LIVE);
    assert_eq!(browser.text("#headline"), "Nothing runs and nobody waits.");

    let git = Git::newest();
    let dir = tempfile::tempdir().unwrap();
    // Each clone has a relay of its own, so that each can be held and let go by itself.
    let relays: Vec<_> = (0..4)
        .map(|_| Relay::shut_after(packgate.addr(), 1 << 20))
        .collect();
    let start = |to: SocketAddr, user: &str| {
        let (name, url) = (
            format!("http.extraHeader=X-User: {user}"),
            format!("http://{to}/squareup/java.git"),
        );
        git.spawn(
            dir.path(),
            ["-c", &name, "clone", "--quiet", "--mirror", &url, user],
        )
    };
    let mut clones = Vec::new();
    for (n, relay) in relays.iter().enumerate() {
        clones.push(start(relay.addr(), &format!("user-{n}")));
        packgate.until_counts((n + 1).min(2), (n + 1).saturating_sub(2));
    }
    let refused = start(packgate.addr(), "user-4").finish();
    assert!(refused.stderr.contains("429"), "{}", refused.stderr);

    browser.until(&format!(
        "{} === 2 && {} === 2 && {} === 1",
        rows("running"),
        rows("waiting"),
        rows("refusals")
    ));
    browser.until("document.querySelector('#headline').textContent === '2 clones run, 2 wait; 1 was refused in the last hour.'");
    assert_eq!(repos(&mut browser, "running"), ["squareup/java"; 2]);
    assert_eq!(browser.texts("#waiting tbody .place"), ["1", "2"]);
    let who = browser.texts("#waiting tbody .who");
    assert!(
        who[0].starts_with("user-2, 127.0.0.1") && who[1].starts_with("user-3"),
        "{who:?}"
    );
    assert_eq!(browser.texts("#waiting tbody .limits"), ["all-clones"; 2]);
    assert_eq!(
        browser.texts("#refusals tbody td"),
        ["all-clones", "full, and so is the queue", "1"]
    );

    let story = "(document.querySelector('#storms .story')?.textContent ?? '').replace(/ in .*;/, ' in some time;')";
    browser.until(&format!(
        "{story} === '5 clones of squareup/java by 5 users in some time; 2 run, 2 wait, 1 refused'"
    ));
    let names = browser.text("#storms .names");
    for name in ["user-0", "user-4", "programs: git", "networks: 127.0.0."] {
        assert!(names.contains(name), "{names}");
    }

    // The same numbers as /metrics has.
    let metrics = packgate.metrics();
    let limit = [("limit", "all-clones")];
    let seats = format!(
        "{} of {} seats",
        metrics.get("packgate_seats_in_use", &limit),
        metrics.get("packgate_seats_limit", &limit)
    );
    assert_eq!(browser.texts("#limits li b")[0], seats);
    assert_eq!(
        browser.eval("document.querySelectorAll('#limits li:first-child i.taken').length"),
        metrics.get("packgate_seats_in_use", &limit) as u64
    );
    assert_eq!(
        browser.text("#waiting .count"),
        metrics.get("packgate_queue_waiting", &[]).to_string()
    );
    assert_eq!(
        browser.text("#refusals .count"),
        metrics.get("packgate_refusals_total", &limit).to_string()
    );
    assert_eq!(
        packgate.running().to_string(),
        browser.text("#running .count")
    );
    // Bytes are those sent so far.
    browser.until("[...document.querySelectorAll('#running tbody .bytes')].every((e) => /^[1-9].* MiB$/.test(e.textContent))");

    // One ends: the first that waited has its place, as the same row, and the other is next.
    relays[0].release();
    packgate.until_counts(2, 1);
    browser.until(&format!("{} === 1", rows("waiting")));
    browser.until("[...document.querySelectorAll('#running tbody .who')].map((e) => e.textContent.split(',')[0]).join() === 'user-1,user-2'");
    assert_eq!(browser.texts("#waiting tbody .place"), ["1"]);
    assert_eq!(browser.axe(), [""; 0]);

    for relay in &relays {
        relay.release();
    }
    for clone in clones {
        assert_eq!(clone.finish().code, Some(0));
    }
    browser.until(&format!(
        "{} === 0 && {} === 0",
        rows("running"),
        rows("waiting")
    ));
    browser.until("document.querySelector('#headline').textContent === 'Nothing runs and nobody waits; 1 was refused in the last hour.'");
    browser.until("document.querySelector('#repos tbody .clones')?.textContent === '4'");
    assert_eq!(browser.text("#repos tbody .name"), "squareup/java");
    let clones = browser.texts("#users tbody .clones");
    assert_eq!(clones.iter().filter(|n| *n == "1").count(), 4, "{clones:?}");
    browser.assert_quiet(admin);
}

#[test]
fn both_themes_and_a_phone_are_usable_in_a_storm_and_idle() {
    let mut held = Held::start(
        &["a-repository-with-quite-a-long-name/and-a-longer-one", "b"],
        NARROW,
    );
    let admin = held.packgate.admin_addr();
    let mut browser = held.browse("/");
    for storm in [false, true] {
        if storm {
            held.clone(
                "a-repository-with-quite-a-long-name/and-a-longer-one",
                (1, 0),
            );
            held.clone("b", (2, 0));
            held.clone("b", (2, 1));
            held.clone("b", (2, 2));
            held.clone("b", (2, 2));
        }
        for scheme in ["light", "dark"] {
            for width in [360, 1280] {
                browser.visit(admin, "/", scheme, width);
                browser.until(LIVE);
                browser.until(&format!(
                    "{} === {}",
                    rows("waiting"),
                    if storm { 2 } else { 0 }
                ));
                let place = format!("{scheme}, {width}, storm: {storm}");
                assert_eq!(browser.axe(), [""; 0], "{place}");
                assert_eq!(
                    browser.eval("document.documentElement.scrollWidth"),
                    width,
                    "{place}"
                );
                let fits = "[...document.querySelectorAll('.scroll:not([hidden])')].every((e) => e.scrollWidth <= e.clientWidth)";
                assert_eq!(browser.eval(fits), true, "{place}");
                // What can be touched is large enough.
                let filter = browser
                    .eval("document.querySelector('#filter').getBoundingClientRect().height");
                assert!(filter.as_f64() >= Some(24.0), "{place}: {filter}");
                let paper =
                    browser.eval("getComputedStyle(document.documentElement).backgroundColor");
                assert_eq!(paper == "rgb(19, 21, 23)", scheme == "dark", "{paper}");
            }
        }
        let empty = "#running .empty:not([hidden])";
        assert_eq!(browser.texts(empty).len(), usize::from(!storm));
        if !storm {
            assert!(
                browser
                    .text(empty)
                    .contains("Clone something through the gate")
            );
        }
    }
    browser.assert_quiet(admin);
}

#[test]
fn nothing_moves_under_the_pointer_or_the_keyboard() {
    let mut held = Held::start(&["a", "b", "c"], NARROW);
    held.clone("a", (1, 0));
    held.clone("b", (2, 0));
    let mut browser = held.browse("/");
    browser.until(&format!("{} === 2", rows("running")));
    let place = "(() => { const { x, y } = document.querySelector('#running tbody tr:last-child').getBoundingClientRect(); return `${x} ${y}`; })()";

    let at = browser.eval(place);
    browser.point("#running tbody tr:last-child");
    browser.until("document.querySelector('#held').textContent !== ''");
    held.release("a");
    held.packgate.until_counts(1, 0);
    held.clone("c", (2, 0));
    browser.until("document.querySelector('#held').textContent === 'Held still while you look: 1 new, 1 gone.'");
    assert_eq!(repos(&mut browser, "running"), ["a", "b"]);
    assert_eq!(browser.texts("#running tr.ended .repo"), ["a"]);
    assert_eq!(browser.eval(place), at);
    // Numbers go on all the same.
    let age = browser.text("#running tbody tr:last-child .age");
    until("the age to grow", || {
        (browser.text("#running tbody tr:last-child .age") != age).then_some(())
    });
    browser.tell(json!({"command": "away"}));
    browser.until("document.querySelector('#held').textContent === ''");
    assert_eq!(repos(&mut browser, "running"), ["b", "c"]);

    // With the keyboard in the table.
    browser.eval("document.querySelector('#filter').focus()");
    browser.press("Tab");
    browser.until("document.activeElement.closest('#running') !== null");
    held.release("b");
    held.packgate.until_counts(1, 0);
    browser.until("document.querySelectorAll('#running tr.ended').length === 1");
    assert_eq!(repos(&mut browser, "running"), ["b", "c"]);
    browser.press("Shift+Tab");
    browser.until("document.activeElement.id === 'filter'");
    browser.until(&format!("{} === 1", rows("running")));
    browser.assert_quiet(held.packgate.admin_addr());
}

#[test]
fn the_keyboard_reaches_everything_and_the_filter_is_in_the_address() {
    let mut held = Held::start(&["team/a", "team/b"], NARROW);
    held.clone("team/a", (1, 0));
    held.clone("team/b", (2, 0));
    held.clone("team/b", (2, 1));
    let mut browser = held.browse("/");
    browser.until(&format!("{} === 1", rows("waiting")));

    let mut reached = Vec::new();
    for _ in 0..12 {
        browser.press("Tab");
        let name = "(document.activeElement.id || document.activeElement.getAttribute('aria-label') || document.activeElement.textContent)";
        reached.push(browser.eval(name).as_str().unwrap_or_default().to_owned());
    }
    for name in [
        "Skip to running clones",
        "filter",
        "Running clones",
        "Waiting clones",
        "Repositories by cost",
        "team/a",
        "Users by cost",
    ] {
        assert!(
            reached.iter().any(|reached| reached == name),
            "{name}: {reached:?}"
        );
    }

    // Whoever filters wants the rows to change, wherever the pointer is.
    browser.point("#running tbody tr:last-child");
    browser.eval("document.querySelector('#filter').focus()");
    browser.tell(json!({"command": "type", "text": "TEAM/A"}));
    browser.until(&format!(
        "{} === 1 && {} === 0",
        rows("running"),
        rows("waiting")
    ));
    assert_eq!(browser.text("#running .count"), "1 of 2");
    assert!(
        browser
            .text("#waiting .empty")
            .contains("None of them fits the filter")
    );
    assert_eq!(browser.eval("location.hash"), "#filter=TEAM%2FA");
    browser.tell(json!({"command": "reload"}));
    browser.until(&format!("{} === 1", rows("running")));
    assert_eq!(
        browser.eval("document.querySelector('#filter').value"),
        "TEAM/A"
    );
    // By a user, from a link.
    browser.visit(held.packgate.admin_addr(), "/#filter=anna", "light", 1280);
    browser.until(&format!("{} === 2", rows("running")));
    browser.visit(held.packgate.admin_addr(), "/#filter=%zz", "light", 1280);
    browser.until(&format!("{} === 2", rows("running")));
    browser.assert_quiet(held.packgate.admin_addr());
}

#[test]
fn names_are_text_whatever_they_are() {
    const EVIL: &str = "<img src=x onerror=alert(1)>";
    let (origin, _latch) = Origin::holding();
    let packgate = Packgate::start(&format!(
        "upstream: {}\nlimits: [{{name: '{EVIL}', per: user, seats: 1}}]\nidentity: {{user: [basic]}}\n\
         queue: {{timeout: 60s, max_waiting: 1}}\n\
         quotas: [{{name: '{EVIL}!', per: repo, resource: requests, rate: 1/1h, burst: 9}}]\n",
        origin.upstream()
    ));
    let evil = || {
        Request::upload_pack(
            "%3Cimg%20src=x%20onerror=alert(1)%3E%E2%80%AE",
            pkt::clone_v2(),
        )
        .header("User-Agent", EVIL)
        // The same as the user name.
        .header(
            "Authorization",
            "Basic PGltZyBzcmM9eCBvbmVycm9yPWFsZXJ0KDEpPjp4",
        )
        .header("X-Hold", "1")
    };
    let mut clones = [packgate.connect(), packgate.connect()];
    for (n, clone) in clones.iter_mut().enumerate() {
        clone.send(&evil());
        packgate.until_counts(1, n);
    }
    assert_eq!(packgate.ask(&evil()).status, 429);

    let mut browser = Browser::open(
        packgate.admin_addr(),
        "/#filter=%3Cimg%20src=x%3E",
        "light",
        1280,
    );
    browser.until(LIVE);
    browser.visit(packgate.admin_addr(), "/", "light", 1280);
    browser.until(&format!(
        "{} === 1 && {} === 1",
        rows("waiting"),
        rows("refusals")
    ));
    assert_eq!(
        repos(&mut browser, "running"),
        [format!("{EVIL}\\u{{202e}}")]
    );
    assert!(browser.text("#running tbody .who").starts_with(EVIL));
    assert_eq!(browser.text("#refusals .limit"), EVIL);
    assert_eq!(browser.text("#users tbody .name"), EVIL);
    assert_eq!(browser.text("#quotas tbody .name span"), format!("{EVIL}!"));
    assert_eq!(
        browser.text("#quotas tbody .account"),
        format!("{EVIL}\\u{{202e}}")
    );
    assert!(browser.text("#limits .name").starts_with(EVIL));
    assert_eq!(
        browser.eval("document.querySelectorAll('img, script:not([src])').length"),
        0
    );
    browser.assert_quiet(packgate.admin_addr());
}

#[test]
fn what_is_stale_says_so_until_it_is_live_again() {
    // An address at which nobody else listens, so that the port is still free when it comes back.
    let mut held = Held::start(&["a"], &format!("admin: 127.0.76.1:0\n{NARROW}"));
    held.clone("a", (1, 0));
    let mut browser = held.browse("/");
    browser.until(&format!("{} === 1", rows("running")));
    let admin = held.packgate.admin_addr();
    drop(held);
    browser.until("document.querySelector('#link').textContent.startsWith('stale since ')");
    assert_eq!(
        repos(&mut browser, "running"),
        ["a"],
        "what was known stays"
    );

    let again = Packgate::start(&format!(
        "admin: {admin}\nupstream: http://127.0.0.1:1\nlimits: [{{name: one, per: global, seats: 1}}]\n"
    ));
    browser.until(LIVE);
    browser.until(&format!("{} === 0", rows("running")));
    assert_eq!(browser.texts("#limits li b"), ["0 of 1 seat"]);
    drop(again);
}

#[test]
fn the_page_asks_for_the_token_and_keeps_it_for_the_tab() {
    const TOKEN: &str = "0123456789abcdef0123";
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("token");
    std::fs::write(&file, TOKEN).unwrap();
    let token = format!("admin_token_file: {}\n", file.display());
    let mut held = Held::start(
        &["a"],
        &format!("{NARROW}{token}admin_hide_identities: true\n"),
    );
    held.clone("a", (1, 0));
    let mut browser = Browser::open(held.packgate.admin_addr(), "/", "light", 1280);
    browser.until("document.activeElement.id === 'token'");
    assert_eq!(browser.axe(), [""; 0]);
    assert_eq!(browser.eval("document.querySelector('#view').hidden"), true);
    let enter = |browser: &mut Browser, token: &str| {
        browser.tell(json!({"command": "type", "text": token}));
        browser.press("Enter");
    };
    enter(&mut browser, "not-the-token-at-all");
    browser
        .until("document.querySelector('#unlock-error').textContent === 'That is not the token.'");
    enter(&mut browser, TOKEN);
    browser.until(LIVE);
    browser.until(&format!("{} === 1", rows("running")));
    // Nobody is named.
    assert_eq!(browser.texts("#running tbody .who"), ["–"]);
    assert!(browser.text("#users .empty").contains("hidden here"));
    browser.tell(json!({"command": "reload"}));
    browser.until(LIVE);
    assert_eq!(browser.eval("document.cookie + localStorage.length"), "0");
}

#[test]
fn a_limit_that_only_watches_says_so_and_what_would_be() {
    let mut held = Held::start(
        &["a", "b"],
        "limits: [{name: all, per: global, seats: 1, mode: shadow}]\nqueue: {timeout: 10m}\n",
    );
    held.clone("a", (1, 0));
    held.clone("b", (2, 0));
    let mut browser = Browser::open(held.packgate.admin_addr(), "/", "light", 1280);
    browser.until(LIVE);
    browser.until(&format!("{} === 2", rows("running")));
    assert_eq!(browser.texts("#limits .per"), ["only watches; in all"]);
    assert_eq!(browser.texts("#limits li b"), ["1 of 1 seat"]);
    assert_eq!(
        browser.text("#limits .shadow"),
        "In shadow 1 clone would run, 1 would wait; 0 would have been refused in the last hour."
    );
    assert_eq!(browser.axe(), [""; 0]);
}

#[test]
fn budgets_and_ranges_are_shown_in_both_themes_and_on_a_phone() {
    let origin = Origin::start(|_| Reply::Now(200, vec![b'x'; 3000]));
    let packgate = Packgate::start(&format!(
        "upstream: {}\nlimits: [{{name: all, per: global, seats: {{min: 2, start: 5, max: 16}}}}]\n\
         adaptive: {{tick: 1m, memory: {{cgroup: host, calm: 0.0001}}}}\nquotas:\n  \
         - {{name: egress-of-each-repository, per: repo, resource: bytes, rate: 1/1h, burst: 1KiB}}\n  \
         - {{name: asked, per: global, resource: requests, rate: 90/1m, burst: 1000, mode: shadow}}\n  \
         - {{name: ci, per: ip, match: {{repo: 'ci/*'}}, resource: requests, rate: 1/1s, burst: 7}}\n",
        origin.upstream()
    ));
    let admin = packgate.admin_addr();
    let repo = "a-repository-with-quite-a-long-name/and-a-longer-one";
    let clone = Request::upload_pack(repo, pkt::clone_v2());
    assert_eq!(packgate.ask(&clone).status, 200);
    let mut browser = Browser::open(admin, "/", "light", 1280);
    browser.until(LIVE);
    browser.until("document.querySelector('#quotas .left')?.textContent === '−1.9 KiB'");
    assert_eq!(packgate.ask(&clone).status, 429);
    for (scheme, width) in [
        ("light", 360),
        ("dark", 360),
        ("light", 1280),
        ("dark", 1280),
    ] {
        browser.visit(admin, "/", scheme, width);
        browser.until(LIVE);
        browser.until(&format!("{} === 3", rows("quotas")));
        assert_eq!(browser.axe(), [""; 0], "{scheme}, {width}");
        let wide = "[document.documentElement, ...document.querySelectorAll('.scroll:not([hidden])')].every((e) => e.scrollWidth <= e.clientWidth)";
        assert_eq!(browser.eval(wide), true, "{scheme}, {width}");
    }
    assert_eq!(
        browser.texts("#quotas tbody .name span"),
        ["egress-of-each-repository", "asked", "ci"]
    );
    assert_eq!(
        browser.texts("#quotas small"),
        [
            "bytes per repo, up to 1.0 KiB",
            "only watches; requests in all, up to 1000",
            "requests per ip, up to 7"
        ]
    );
    assert_eq!(browser.texts("#quotas .income"), ["0 B", "90", "60"]);
    assert_eq!(
        browser.texts("#quotas .account"),
        [repo, "–", "all are full"]
    );
    assert_eq!(browser.texts("#quotas .left")[2], "7");
    assert_eq!(browser.texts("#quotas .refused-text"), ["−1.9 KiB"]);
    assert_eq!(
        browser.texts("#refusals tbody td"),
        ["egress-of-each-repository", "budget used up", "1"]
    );
    assert_eq!(browser.texts("#limits li b"), ["0 of 5 seats"]);
    assert_eq!(
        browser.texts("#limits .per"),
        ["in all; adapts: 5 of 2 to 16 seats"]
    );

    let only = |what: &str| format!("upstream: {}\n{what}\n", origin.upstream());
    let says = "#limits .empty:not([hidden])";
    assert_eq!(browser.texts(says), [""; 0]);
    let budget = "{name: ci, per: ip, resource: requests, rate: 1/1s}";
    packgate.write_config(&only(&format!("quotas: [{budget}]")));
    browser.until(&format!("{} === 1", rows("quotas")));
    let none = "No limit is configured: only budgets refuse clones.";
    assert_eq!(browser.texts(says), [none]);
    packgate.write_config(&only("limits: [{name: all, per: global, seats: 5}]"));
    browser.until("document.querySelector('#quotas').hidden");
    assert_eq!(browser.texts("#limits .per"), ["in all"]);
    assert_eq!(browser.texts(says), [""; 0]);
    browser.assert_quiet(admin);
}
