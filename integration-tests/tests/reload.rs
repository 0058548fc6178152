//! SIGHUP, a changed file and a ConfigMap's swap reload; what is invalid is reported and ignored; nobody is dropped.

use std::{
    fs,
    io::{BufRead, BufReader},
    os::unix::fs::symlink,
    process::{Command, Stdio},
    time::Duration,
};

use packgate_integration_tests::{
    Connection, Latch, Origin, Packgate, Reply, Request, packgate::binary, pkt, process::signal,
    until, wait::stays,
};
use rustix::process::Signal;

struct Scene {
    origin: Origin,
    latch: Latch,
}

impl Scene {
    fn new() -> Scene {
        let latch = Latch::new();
        let held = latch.clone();
        Scene {
            origin: Origin::start(move |_| Reply::Held(held.clone(), b"first".to_vec())),
            latch,
        }
    }

    fn config(&self, seats: u32) -> String {
        format!(
            "upstream: {}\nlimits: [{{name: all, per: global, seats: {seats}}}]\nqueue: {{timeout: 60s}}\n",
            self.origin.upstream()
        )
    }
}

fn clone(packgate: &Packgate) -> Connection {
    let mut connection = packgate.connect();
    connection.send(&Request::upload_pack("demo.git", pkt::clone_v2()));
    connection
}

fn until_limit(packgate: &Packgate, seats: f64) {
    until(&format!("a limit of {seats}"), || {
        (packgate
            .metrics()
            .get("packgate_seats_limit", &[("limit", "all")])
            == seats)
            .then_some(())
    });
}

#[test]
fn a_raised_limit_admits_waiters_at_once_and_a_lowered_one_drops_nobody() {
    let scene = Scene::new();
    let packgate = Packgate::start(&scene.config(1));
    let mut clones: Vec<Connection> = Vec::new();
    for n in 0..4 {
        clones.push(clone(&packgate));
        packgate.until_counts(1, n);
    }
    packgate.write_config(&scene.config(3));
    packgate.signal(Signal::HUP);
    packgate.until_counts(3, 1);
    scene.origin.wait_for(3);

    packgate.write_config(&scene.config(2));
    packgate.signal(Signal::HUP);
    until_limit(&packgate, 2.0);
    packgate.until_counts(3, 1);
    assert_eq!(scene.origin.count(), 3);

    scene.latch.open();
    for clone in &mut clones {
        assert_eq!(clone.read_response().unwrap().text(), "firstthe rest");
    }
    packgate.until_counts(0, 0);
}

/// A process that has not asked for SIGHUP is ended by it; this one has asked before anybody can know that it is there.
#[test]
fn a_hangup_is_welcome_as_soon_as_the_process_says_that_it_listens() {
    let scene = Scene::new();
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("packgate.yaml");
    let listen = "listen: 127.0.0.1:0\nadmin: 127.0.0.1:0\n";
    fs::write(&file, listen.to_owned() + &scene.config(1)).unwrap();
    for _ in 0..10 {
        let mut packgate = Command::new(binary())
            .args(["serve", "--config"])
            .arg(&file)
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut log = BufReader::new(packgate.stderr.take().unwrap()).lines();
        let mut until_said = |words: &str| log.any(|line| line.unwrap().contains(words));
        assert!(until_said("listening"));
        signal(packgate.id(), Signal::HUP);
        assert!(until_said("configuration reloaded"), "it has ended");
        packgate.kill().unwrap();
        packgate.wait().unwrap();
    }
}

#[test]
fn a_changed_file_is_noticed_without_a_signal() {
    let scene = Scene::new();
    let packgate = Packgate::start(&scene.config(1));
    let (_running, _waiting) = (clone(&packgate), clone(&packgate));
    packgate.until_counts(1, 1);
    // By rename, as editors do, then in place.
    packgate.write_config(&scene.config(2));
    packgate.until_counts(2, 0);
    let file = packgate.dir().join("packgate.yaml");
    let text = fs::read_to_string(&file).unwrap();
    fs::write(&file, text.replace("seats: 2", "seats: 5")).unwrap();
    until_limit(&packgate, 5.0);
}

#[test]
fn a_configmap_swap_is_noticed() {
    let scene = Scene::new();
    // As the kubelet lays it out: packgate.yaml -> ..data/packgate.yaml, ..data -> a dated directory.
    let volume = tempfile::tempdir().unwrap();
    let at = |name: &str| volume.path().join(name);
    let listen = "listen: 127.0.0.1:0\nadmin: 127.0.0.1:0\n";
    fs::create_dir(at("..2026_01")).unwrap();
    fs::write(
        at("..2026_01/packgate.yaml"),
        listen.to_owned() + &scene.config(1),
    )
    .unwrap();
    symlink("..2026_01", at("..data")).unwrap();
    symlink("..data/packgate.yaml", at("packgate.yaml")).unwrap();
    let packgate =
        Packgate::start_command(&["serve", "--config", at("packgate.yaml").to_str().unwrap()]);
    until_limit(&packgate, 1.0);

    for (number, seats) in [("..2026_02", 2), ("..2026_03", 3)] {
        fs::create_dir(at(number)).unwrap();
        fs::write(
            at(number).join("packgate.yaml"),
            listen.to_owned() + &scene.config(seats),
        )
        .unwrap();
        symlink(number, at("..data_tmp")).unwrap();
        fs::rename(at("..data_tmp"), at("..data")).unwrap();
        until_limit(&packgate, f64::from(seats));
    }
}

#[test]
fn an_invalid_configuration_is_reported_counted_and_ignored() {
    let scene = Scene::new();
    let packgate = Packgate::start(&scene.config(1));
    let (_running, mut waiting) = (clone(&packgate), clone(&packgate));
    packgate.until_counts(1, 1);
    let reloads = |outcome: &str| {
        packgate
            .metrics()
            .get("packgate_reloads_total", &[("outcome", outcome)])
    };
    let all = || packgate.metrics().get("packgate_reloads_total", &[]);
    let before = all();

    let broken = scene.config(7).replace("seats: 7", "seats: 0") + "no_such_key: 1\n";
    packgate.write_config(&broken);
    packgate.signal(Signal::HUP);
    until("the reload to be counted", || {
        (all() > before).then_some(())
    });
    until("the mistakes to be reported", || {
        let log = packgate.log() + &packgate.stdout();
        (log.contains("no_such_key") && log.contains("limits[0].seats")).then_some(())
    });
    packgate.until_counts(1, 1);
    until_limit(&packgate, 1.0);
    stays(Duration::from_millis(100), "the waiter waits on", || {
        packgate.waiting() == 1
    });

    // A later valid one applies, and the waiter has not been dropped meanwhile.
    packgate.write_config(&scene.config(2));
    packgate.signal(Signal::HUP);
    packgate.until_counts(2, 0);
    assert_eq!(waiting.read_response_head().unwrap().0, 200);
    assert!(all() > before + 0.5, "{}", reloads("applied"));
}

#[test]
fn limits_can_be_added_renamed_and_taken_away_under_load() {
    let scene = Scene::new();
    let packgate = Packgate::start(&scene.config(1));
    let (_running, _waiting) = (clone(&packgate), clone(&packgate));
    packgate.until_counts(1, 1);
    let upstream = scene.origin.upstream();
    packgate.write_config(&format!(
        "upstream: {upstream}\nlimits: [{{name: all, per: global, seats: 9}}, {{name: each, per: repo, seats: 1}}]\n\
         queue: {{timeout: 60s}}\n"
    ));
    packgate.signal(Signal::HUP);
    until_limit(&packgate, 9.0);
    // The new limit counts the one that runs already.
    packgate.until_counts(1, 1);
    assert_eq!(
        packgate
            .metrics()
            .get("packgate_seats_in_use", &[("limit", "each")]),
        1.0
    );
    packgate.write_config(&format!("upstream: {upstream}\n"));
    packgate.signal(Signal::HUP);
    until("the waiter to run, as there is no limit any more", || {
        (scene.origin.count() == 2).then_some(())
    });
    scene.latch.open();
    packgate.until_counts(0, 0);
}
