//! STUB
pub mod demo;
