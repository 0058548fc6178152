//! The requests for one repository meet at one gate, however its name is spelled.

use packgate_integration_tests::{Envoy, Gates, gates::REPOSITORIES};

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
