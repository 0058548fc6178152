//! A changed certificate is shown without a restart and without dropping anybody; one that cannot be used is not.

use std::{
    fs,
    io::{Read, Write},
    os::unix::fs::symlink,
};

use packgate_integration_tests::{
    Origin, Packgate, Request, pkt,
    tls::{Authority, Pair, replace, shown},
    until,
};
use rustix::process::Signal;
use rustls::pki_types::CertificateDer;

fn start(listen: &str, origin: &Origin) -> Packgate {
    Packgate::start(&format!(
        "{listen}upstream: {}\nlimits: [{{name: all, per: global, seats: 1}}]\n",
        origin.upstream()
    ))
}

fn reloads(packgate: &Packgate, outcome: &str) -> f64 {
    packgate
        .metrics()
        .get("packgate_reloads_total", &[("outcome", outcome)])
}

fn shows(authority: &Authority, packgate: &Packgate) -> CertificateDer<'static> {
    shown(&authority.connect(packgate.addr()).expect("a handshake"))
}

fn until_another_is_shown(authority: &Authority, packgate: &Packgate, old: &CertificateDer<'_>) {
    until("the new certificate to be shown", || {
        (shows(authority, packgate) != *old).then_some(())
    });
}

#[test]
fn a_changed_certificate_is_shown_to_new_clients_and_drops_nobody() {
    let authority = Authority::new();
    let (origin, latch) = Origin::holding();
    let pair = authority.issue("gate");
    let packgate = start(&pair.listen(), &origin);
    let mut running = authority.connect(packgate.addr()).unwrap();
    let clone = Request::upload_pack("demo.git", pkt::clone_v2()).header("X-Hold", "1");
    running.write_all(&clone.bytes()).unwrap();
    packgate.until_counts(1, 0);

    // By rename without a signal, then in place with one.
    let first = shown(&running);
    pair.replace_with(&authority.issue("renewed"));
    until_another_is_shown(&authority, &packgate, &first);
    let second = shows(&authority, &packgate);
    let again = authority.issue("renewed again");
    fs::copy(&again.certificate, &pair.certificate).unwrap();
    fs::copy(&again.key, &pair.key).unwrap();
    packgate.signal(Signal::HUP);
    until_another_is_shown(&authority, &packgate, &second);

    latch.open();
    let mut answer = String::new();
    until("the rest of the clone", || {
        let mut piece = [0; 4096];
        let read = running.read(&mut piece).expect("the session goes on");
        answer += &String::from_utf8_lossy(&piece[..read]);
        answer.contains("the rest").then_some(())
    });
}

#[test]
fn a_secret_swap_is_noticed() {
    let authority = Authority::new();
    let (origin, _latch) = Origin::holding();
    // As the kubelet lays it out: tls.crt -> ..data/tls.crt, ..data -> a dated directory.
    let volume = tempfile::tempdir().unwrap();
    let at = |name: &str| volume.path().join(name);
    let lay_out = |name: &str, pair: &Pair| {
        fs::create_dir(at(name)).unwrap();
        fs::copy(&pair.certificate, at(name).join("tls.crt")).unwrap();
        fs::copy(&pair.key, at(name).join("tls.key")).unwrap();
        symlink(name, at("..data_tmp")).unwrap();
        fs::rename(at("..data_tmp"), at("..data")).unwrap();
    };
    lay_out("..2026_01", &authority.issue("first"));
    let mounted = Pair {
        certificate: at("tls.crt"),
        key: at("tls.key"),
    };
    symlink("..data/tls.crt", &mounted.certificate).unwrap();
    symlink("..data/tls.key", &mounted.key).unwrap();
    let packgate = start(&mounted.listen(), &origin);
    for name in ["..2026_02", "..2026_03"] {
        let old = shows(&authority, &packgate);
        lay_out(name, &authority.issue(name));
        until_another_is_shown(&authority, &packgate, &old);
    }
    assert_eq!(reloads(&packgate, "rejected"), 0.0, "the swap is atomic");
}

#[test]
fn a_certificate_that_cannot_be_used_is_reported_counted_and_the_old_one_stays() {
    let authority = Authority::new();
    let (origin, _latch) = Origin::holding();
    let pair = authority.issue("gate");
    let packgate = start(&pair.listen(), &origin);
    let good = shows(&authority, &packgate);
    let other = authority.issue("other");
    let breakages: [(&str, &dyn Fn()); 3] = [
        ("has no certificate", &|| {
            replace(&pair.certificate, b"garbage\n");
        }),
        ("is not the key of", &|| {
            replace(&pair.certificate, &fs::read(&other.certificate).unwrap());
        }),
        ("cannot be read", &|| fs::remove_file(&pair.key).unwrap()),
    ];
    for (said, break_it) in breakages {
        let before = reloads(&packgate, "rejected");
        break_it();
        until(said, || {
            let log = packgate.log();
            let counted = reloads(&packgate, "rejected") > before;
            (counted && log.contains(said) && log.contains("listen.tls.")).then_some(())
        });
        assert_eq!(shows(&authority, &packgate), good);
    }
    assert_eq!(reloads(&packgate, "applied"), 0.0);
    // What comes next is noticed all the same.
    pair.replace_with(&other);
    until_another_is_shown(&authority, &packgate, &good);
}

#[test]
fn an_expired_certificate_is_warned_of_and_shown() {
    let authority = Authority::new();
    let (origin, _latch) = Origin::holding();
    let packgate = start(&authority.issue_expired("gate").listen(), &origin);
    let log = packgate.until_said("expired on");
    assert!(log.contains("listen.tls.certificate"), "{log}");
}
