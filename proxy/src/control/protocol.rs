//! What is said on the control socket: one JSON object a line, each with the version of this protocol.

use std::io;

use serde::{Deserialize, Serialize, de::DeserializeOwned};
use serde_json::Value;

use crate::lifecycle::sockets::Name;

/// Raised when an older packgate would misunderstand.
const VERSION: u64 = 1;

/// Bytes of one line at most: the names of as many sockets as can be handed over at once.
pub(super) const LONGEST: u64 = 64 * 1024;

/// What can be asked.
#[derive(Debug, Deserialize, PartialEq, Eq, Serialize)]
#[serde(tag = "command", rename_all = "kebab-case")]
pub enum Command {
    /// Drain. Answered by [`Reply::Draining`], again and again, and at the end by [`Reply::Drained`].
    Drain,
    /// Hand the listening sockets over. Answered by [`Reply::Sockets`]; nothing has changed until [`Command::Ready`].
    TakeOver,
    /// The successor serves, on the sockets at these places. Answered by [`Reply::Released`].
    Ready {
        /// Places in [`Reply::Sockets`].
        taken: Vec<usize>,
    },
}

/// What is answered.
#[derive(Debug, Deserialize, PartialEq, Eq, Serialize)]
#[serde(tag = "reply", rename_all = "kebab-case")]
pub enum Reply {
    /// The drain has begun.
    Draining {
        /// How many requests are being served.
        requests: usize,
    },
    /// It is over; the process waits for SIGTERM.
    Drained {
        /// How many requests `drain.timeout` has cut off.
        cut: usize,
    },
    /// The listening sockets; their file descriptors come with this line, in this order.
    Sockets {
        /// Their names.
        sockets: Vec<Name>,
    },
    /// The old process accepts nothing any more.
    Released,
    /// It will not be done.
    Refused {
        /// In a sentence for people.
        why: String,
    },
}

#[derive(Serialize)]
struct Line<'m, M> {
    version: u64,
    #[serde(flatten)]
    message: &'m M,
}

/// The line that says `message`.
pub(super) fn line(message: &impl Serialize) -> io::Result<Vec<u8>> {
    let version = VERSION;
    let mut line = serde_json::to_vec(&Line { version, message })?;
    line.push(b'\n');
    Ok(line)
}

/// What a line says, or why nobody can tell.
pub(super) fn read<M: DeserializeOwned>(line: &[u8]) -> Result<M, String> {
    let value: Value =
        serde_json::from_slice(line).map_err(|e| format!("this is not a line of JSON: {e}"))?;
    match value.get("version").and_then(Value::as_u64) {
        Some(VERSION) => {}
        Some(other) => {
            return Err(format!(
                "this is version {other} of the protocol, and only {VERSION} is spoken here: use the same packgate on both sides"
            ));
        }
        None => return Err(format!("it lacks `\"version\": {VERSION}`")),
    }
    serde_json::from_value(value).map_err(|e| e.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_back() {
        for command in [
            Command::Drain,
            Command::TakeOver,
            Command::Ready { taken: vec![0, 2] },
        ] {
            assert_eq!(read(&line(&command).expect("a line")), Ok(command));
        }
        let written = line(&Command::Drain).expect("a line");
        assert_eq!(written, b"{\"version\":1,\"command\":\"drain\"}\n");
    }

    #[test]
    fn what_is_not_understood_is_told_why() {
        for (text, why) in [
            ("", "not a line of JSON"),
            ("GET / HTTP/1.1", "not a line of JSON"),
            ("[]", "lacks `\"version\": 1`"),
            (r#"{"command":"drain"}"#, "lacks `\"version\": 1`"),
            (r#"{"version":-1,"command":"drain"}"#, "lacks"),
            (
                r#"{"version":2,"command":"drain"}"#,
                "version 2 of the protocol",
            ),
            (
                r#"{"version":1,"command":"dance"}"#,
                "unknown variant `dance`, expected one of `drain`",
            ),
            (r#"{"version":1}"#, "missing field `command`"),
            (
                r#"{"version":1,"command":"ready","taken":[-1]}"#,
                "invalid value",
            ),
        ] {
            let told = read::<Command>(text.as_bytes()).expect_err(text);
            assert!(told.contains(why), "{text}: {told}");
        }
    }
}
