//! The instruments of the integration tests: real git clients, real git servers, the real `packgate` binary, and
//! recording stand-ins for both ends where a test has to hold a byte in its hand.
//!
//! Everything blocks, on threads. An async harness would share its runtime (and its HTTP crates) with the thing under
//! test; here bytes are written and read as they are, by code that knows nothing of pingora or hyper.
//!
//! Rules that keep the tests honest and parallel:
//!
//! - every port is 0 and every path is in a fresh temporary directory;
//! - nothing sleeps and hopes: [`wait::until`] polls a condition against a deadline;
//! - concurrency is proven by counting at the origin, and "while a clone runs" means while a test holds a [`Latch`]
//!   or a [`Relay`] valve shut;
//! - a tool that is missing fails the test and names the remedy.

pub mod activation;
pub mod browser;
pub mod client;
pub mod collector;
pub mod control;
pub mod dice;
pub mod envoy;
pub mod front;
pub mod gates;
pub mod git;
pub mod h2;
pub mod haproxy;
pub mod held;
pub mod helm;
pub mod http;
pub mod image;
pub mod istio;
pub mod metrics;
pub mod nginx;
pub mod nobody;
pub mod operations;
pub mod origin;
pub mod packgate;
pub mod packs;
pub mod pages;
pub mod pkt;
pub mod process;
pub mod promql;
pub mod relay;
pub mod repos;
pub mod scripted;
pub mod server;
pub mod shipped;
pub mod tls;
pub mod unread;
pub mod wait;

pub use activation::NotifySocket;
pub use browser::Browser;
pub use client::Client;
pub use collector::Collector;
pub use control::Controlled;
pub use dice::Dice;
pub use envoy::Envoy;
pub use front::{Behind, Front};
pub use gates::Gates;
pub use git::Git;
pub use h2::H2;
pub use haproxy::Haproxy;
pub use http::{Connection, Endpoint, Request, Response};
pub use metrics::Metrics;
pub use nginx::{Nginx, NginxFront};
pub use nobody::Nobody;
pub use origin::{Latch, Origin, Received, Reply};
pub use packgate::Packgate;
pub use packs::PackCount;
pub use relay::Relay;
pub use scripted::Scripted;
pub use server::NginxGit;
pub use shipped::Shipped;
pub use wait::{until, within};
