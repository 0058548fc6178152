//! What a server has received and not read yet, by the system's table of sockets: nobody else knows.

use std::{
    fs,
    net::{IpAddr, SocketAddr},
};

use crate::http::{Connection, Stream};

impl Connection {
    /// Bytes of this connection that `server`, on this machine, has received and not read. IPv4 only.
    pub fn unread_by(&self, server: SocketAddr) -> u64 {
        let Stream::Tcp(stream) = self.stream() else {
            panic!("a TCP connection");
        };
        let hex = |addr: SocketAddr| match addr.ip() {
            IpAddr::V4(ip) => format!(
                "{:08X}:{:04X}",
                u32::from_le_bytes(ip.octets()),
                addr.port()
            ),
            IpAddr::V6(ip) => panic!("{ip} is in another table"),
        };
        let (local, remote) = (hex(server), hex(stream.local_addr().unwrap()));
        let table = fs::read_to_string("/proc/net/tcp").unwrap();
        let fields = table
            .lines()
            .map(|line| line.split_whitespace().collect::<Vec<_>>())
            .find(|fields| fields[1] == local && fields[2] == remote)
            .expect("the server's side of the connection");
        let (_, unread) = fields[4].split_once(':').expect("two queues");
        u64::from_str_radix(unread, 16).expect("hex digits")
    }
}
