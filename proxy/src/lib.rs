//! packgate: the binary's parts.
pub mod admin;
pub mod cli;
pub mod config;
pub mod lifecycle;
pub mod request;
pub mod telemetry;
pub mod upstream;
