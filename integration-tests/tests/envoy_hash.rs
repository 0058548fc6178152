//! The requests for one repository meet at one gate, however its name is spelled.

use packgate_integration_tests::{Envoy, Gates, Request, gates::REPOSITORIES, pkt};

#[test]
fn every_repository_has_its_gate_and_both_gates_are_used() {
    let gates = Gates::start();
    let envoy = Envoy::start(&gates.gates);
    gates.meet(&envoy);
}

#[test]
fn without_the_rewrite_they_do_not_meet() {
    let gates = Gates::start();
    let config = Envoy::shipped().with("(?:info/refs|git-upload-pack|git-receive-pack)", "nothing");
    let envoy = Envoy::start_with(config, &gates.gates);
    assert!(gates.repositories_that_meet(&envoy) < REPOSITORIES);
}

/// packgate decodes a path before it counts, Envoy does not before it hashes. Nobody's git writes such a URL by itself.
#[test]
fn a_name_with_escapes_is_the_same_to_packgate_and_may_be_another_to_the_hash() {
    let gates = Gates::start();
    let envoy = Envoy::start(&gates.gates);
    for n in 0..REPOSITORIES {
        for spelling in [format!("team-{n}"), format!("te%61m-{n}")] {
            let fetch = Request::upload_pack(&spelling, pkt::incremental_v2());
            assert_eq!(envoy.status_of(&fetch), 200);
        }
    }
    let [as_sent, other_half] = gates.received("/te%61m-");
    assert_eq!(as_sent + other_half, REPOSITORIES, "the paths were changed");
    let [one, other] = gates.repositories();
    assert_eq!(one.union(&other).count(), REPOSITORIES);
    assert!(!one.is_disjoint(&other));
}
