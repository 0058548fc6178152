//! The way of one request.

pub mod admit;
mod body;
pub mod budget;
pub mod decide;
mod finish;
mod gate;
mod hop;
pub mod identity;
mod late;
mod owed;
mod peek;
mod release;
mod respond;
pub mod service;
pub mod shadow;
pub mod state;
mod wait;
mod xfcc;
