//! How long `packgate simulate` takes for a log of a million lines, from the first byte read to the table.
//!
//! Not by criterion: one run says it, and takes as long as a hundred samples of anything else.

use std::{
    io::{self, BufWriter, Write},
    process::{Command, Stdio},
    time::{Duration, Instant, UNIX_EPOCH},
};

const POLICY: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../examples/typical.yaml");

/// Lines as the access log has them, a day of them: of four, one is a clone.
fn write_log(lines: u64, to: impl Write) -> io::Result<()> {
    let mut to = BufWriter::new(to);
    for n in 0..lines {
        let dice = n.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
        let at = UNIX_EPOCH + Duration::from_millis(1_700_000_000_000 + 86_400_000 * n / lines);
        let shape = if n.is_multiple_of(4) {
            "clone"
        } else {
            "incremental"
        };
        writeln!(
            to,
            "{{\"time\":\"{}\",\"repo\":\"team-{}/repo-{}\",\"user\":\"ci-{}\",\"ip\":\"192.0.2.{}\",\"agent\":\"git/2.47.3\",\
             \"shape\":\"{shape}\",\"why\":null,\"seats\":1,\"decision\":\"admitted\",\"limit\":null,\"wait_s\":null,\
             \"first_byte_s\":0.0312,\"duration_s\":{},\"status\":200,\"request_bytes\":182,\"response_bytes\":{},\
             \"cpu_s\":null,\"outcome\":\"served\",\"trace_id\":null}}",
            humantime::format_rfc3339_millis(at),
            dice % 17,
            dice % 50,
            dice % 200,
            dice % 250,
            dice as f64 % 6.0,
            dice * 1000,
        )?;
    }
    to.flush()
}

fn main() {
    let measured = std::env::args().any(|arg| arg == "--bench");
    let lines = if measured { 1_000_000 } else { 1000 };
    let start = Instant::now();
    let mut child = Command::new(env!("CARGO_BIN_EXE_packgate"))
        .args(["simulate", "--policy", POLICY, "--traffic", "-"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("the binary runs");
    let input = child.stdin.take().expect("piped");
    write_log(lines, input).expect("it reads to the end");
    let output = child.wait_with_output().expect("it ends");
    print!("{}", String::from_utf8_lossy(&output.stdout));
    assert!(output.status.success());
    println!("{lines} lines: {:.2} s", start.elapsed().as_secs_f64());
}
