//! Commands to a running packgate, over a Unix socket: `packgate drain`, and `packgate serve --take-over`.
//!
//! It is no path of the admin listener because listening sockets go over it, which HTTP cannot carry. Whoever may open its
//! file (mode 0660) may drain: in a pod that is another container, with a user of its own and only the group in common, so
//! nothing is gained by looking at who it is. Listening sockets are handed only to packgate's own user and root: whoever
//! has them speaks for the git server.
//!
//! One conversation a connection, each in a task of its own; lines, silences and the number of conversations are bounded.

mod client;
mod hand_over;
mod protocol;
mod server;

pub use client::{Call, SILENCE};
pub use hand_over::{Predecessor, take_over};
pub use protocol::{Command, Reply};
pub use server::Control;
