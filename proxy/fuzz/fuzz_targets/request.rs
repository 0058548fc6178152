//! Whatever bytes a client sends, in whatever pieces: no clone passes a full gate, what reaches the origin is a request,
//! the connection ends and everything is given back. The properties are the rig's; `cargo test` runs it on recorded
//! requests and on what was found here.
#![no_main]

#[path = "../../tests/request_path/rig.rs"]
mod rig;

use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use rig::{Rig, parse_input};

static RIG: LazyLock<Rig> = LazyLock::new(Rig::new);

fuzz_target!(|input: &[u8]| {
    if let Some((bytes, manner)) = parse_input(input) {
        let seen = RIG.send(bytes, manner);
        // The shortest request by HTTP/2 is a frame's head and one byte.
        assert!(seen.reached.len() <= bytes.len() / 10, "{:?}", seen.reached);
        // What a client reads is HTTP: a status line, or (with the preface sent) the head of a SETTINGS frame.
        let status = seen.response.starts_with(b"HTTP/1.1 ");
        let settings = seen.response.get(3) == Some(&4);
        assert!(
            status || settings || seen.response.is_empty(),
            "{}",
            seen.response.escape_ascii()
        );
    }
});
