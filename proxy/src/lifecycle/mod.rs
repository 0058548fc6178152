//! What happens to the process as a whole: it is given sockets, told to stop, or to read its configuration again.

pub mod drain;
pub mod reload;
pub mod sockets;
