//! What happens to the process as a whole: it is given sockets, told to stop or to read its configuration again, and says how
//! it is.

pub mod drain;
pub mod manager;
pub mod reload;
pub mod run;
pub mod sockets;
