//! The access log that packgate writes is one that `packgate simulate` reads.

use packgate_integration_tests::{Packgate, Request, held, pkt};

/// What `simulate` says of the access log of `packgate` under a policy with so many seats.
fn simulated(packgate: &Packgate, seats: u32) -> String {
    let policy = packgate.dir().join("policy.yaml");
    let yaml =
        format!("limits: [{{name: all, per: global, seats: {seats}}}]\nqueue: {{timeout: 60s}}\n");
    std::fs::write(&policy, yaml).unwrap();
    let policy = policy.to_str().unwrap();
    let output = Packgate::output(
        &["simulate", "--policy", policy, "--traffic", "-"],
        packgate.stdout().as_bytes(),
    );
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert_eq!(text(&output.stderr), "", "every line can be read");
    assert!(output.status.success());
    text(&output.stdout)
}

/// A column of the only row by the words of its heading.
fn column(page: &str, heading: &str) -> String {
    let mut lines = page.lines().rev();
    let (row, headings) = (lines.next().unwrap(), lines.next().unwrap());
    let end = headings.find(heading).expect("a column of this name") + heading.len();
    let cell = row[..end].rsplit("  ").next().unwrap();
    cell.trim().to_owned()
}

#[test]
fn a_log_of_clones_that_ran_waited_and_were_refused_is_read_back() {
    let (origin, latch, packgate) = held::gate("");
    let [mut ran, mut waited] = held::one_of_each(&origin, &packgate);
    latch.open();
    let chunked = [("Transfer-Encoding".into(), "chunked".into())];
    ran.read_body(&chunked, false).unwrap();
    assert_eq!(waited.read_response().unwrap().status, 200);
    let fetch = Request::upload_pack("a", pkt::incremental_v2());
    assert_eq!(packgate.ask(&fetch).status, 200);
    let log = packgate.until_logged(4);
    let decided = |decision: &str| log.iter().filter(|e| e["decision"] == decision).count();
    assert_eq!((decided("refused"), decided("exempt")), (1, 1), "{log:?}");

    let page = simulated(&packgate, 1);
    assert!(
        page.starts_with("standard input: 4 requests within "),
        "{page}"
    );
    assert!(page.contains("\n1 of them did not run there"), "{page}");
    assert_eq!(column(&page, "gated"), "3", "{page}");
    assert_eq!(column(&page, "refused"), "0", "all may wait: {page}");
    assert_eq!(column(&page, "seats most"), "1", "{page}");
    assert_eq!(column(&simulated(&packgate, 3), "wait p99"), "0s");
}
