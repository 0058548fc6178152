//! What a git upload-pack request asks for, told from the bytes of its body, and what a request line routes to.
//!
//! Pure: no I/O, no clock, no async, no configuration. [`Classifier`] is fed the raw body in whatever pieces the network
//! delivers and answers as soon as the answer is certain; [`classify`] is the same thing for a body held whole. The
//! guarantee that both agree, wherever the body is cut, is what lets the proxy decide before the body is complete.
//!
//! The layers, each ignorant of the one above:
//!
//! ```text
//! raw body -> Classifier (which encoding is it?) -> inflate -> scan (limit, verdict) -> pktline -> v0 | v2 -> verdict
//! ```
//!
//! A verdict is never an error. What cannot be understood is [`Shape::Unknown`] with a reason, and the caller decides
//! what to do about it. Returning `Result` was rejected: every caller would have to invent the same mapping from an
//! error to "let it pass", and one of them would get it wrong.
//!
//! The bytes come from anybody, so nothing here can panic on them: the lints below forbid the expressions that could.
#![cfg_attr(
    not(test),
    deny(
        clippy::indexing_slicing,
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::panic,
        clippy::arithmetic_side_effects
    )
)]

mod answer;
mod argument;
mod encoding;
mod inflate;
mod pktline;
mod route;
mod scan;
mod v0;
mod v2;
mod verdict;

pub use answer::{Answer, Fault};
pub use encoding::{Classifier, Encoding, classify};
pub use route::{Endpoint, Route, route};
pub use verdict::{Facts, FilterSpec, Shape, Verdict, Why};
