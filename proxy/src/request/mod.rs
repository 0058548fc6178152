//! STUB
pub mod identity;
mod xfcc;
