//! packgate: the binary's parts.
pub mod admin;
pub mod app;
pub mod bounded;
pub mod cli;
pub mod config;
pub mod control;
pub mod lifecycle;
pub mod listen;
pub mod pressure;
pub mod request;
pub mod telemetry;
pub mod tls;
pub mod upstream;
pub mod watch;
