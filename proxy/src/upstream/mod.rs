//! STUB
pub mod cgi;
