//! A listening socket: bound here, or adopted from whoever bound it.
//!
//! A process that takes over from another, or that systemd starts, is given sockets that exist already. From then on they
//! are like any other, but for the file of a Unix socket: it is removed only by the process that it belongs to, or
//! the old one would take it away from its successor.

use std::{
    fs,
    io::{self, ErrorKind},
    net::SocketAddr,
    os::{
        fd::{AsFd, BorrowedFd, OwnedFd},
        unix::fs::{FileTypeExt, MetadataExt, PermissionsExt},
    },
    path::{Path, PathBuf},
    sync::atomic::{AtomicBool, Ordering},
};

use rustix::{
    io::{FdFlags, fcntl_setfd},
    net::{AddressFamily, SocketType, sockopt},
};
use tokio::net;

use crate::config::Address;

/// Pending connections the kernel keeps for us; it clamps the value to `net.core.somaxconn`.
const BACKLOG: u32 = 4096;

/// A bound socket. Dropped, it is closed, and its file removed if that is ours.
#[derive(Debug)]
pub struct Socket {
    kind: Kind,
    bound: Address,
}

#[derive(Debug)]
enum Kind {
    Tcp(net::TcpListener),
    Unix(net::UnixListener, SocketFile),
}

/// A connection that was accepted.
pub enum Accepted {
    /// By TCP, with the address of the other side.
    Tcp(net::TcpStream, SocketAddr),
    /// By a Unix socket.
    Unix(net::UnixStream),
}

impl Socket {
    /// Binds `address`; port 0 takes a free one. A Unix socket gets the permissions `mode`. Must be called within a tokio
    /// runtime.
    ///
    /// # Errors
    /// What the system says, with the address in front.
    pub fn bind(address: &Address, mode: u32) -> io::Result<Socket> {
        let bound = match address {
            Address::Tcp(address) => listen_tcp(*address).and_then(Socket::tcp),
            Address::Unix(path) => listen_unix(path, mode).map(|socket| Socket {
                kind: Kind::Unix(socket, SocketFile::new(path, true)),
                bound: address.clone(),
            }),
            Address::Systemd(_) => Err(io::Error::other("only systemd binds it")),
        };
        bound.map_err(|e| io::Error::new(e.kind(), format!("cannot listen on {address}: {e}")))
    }

    /// Takes a socket over that somebody else has bound for `address`. If it is a Unix socket its file stays theirs until
    /// [`Socket::own_file`]. Must be called within a tokio runtime.
    ///
    /// # Errors
    /// It is no listening stream socket of the family of `address`, or the system refuses.
    pub fn adopt(address: &Address, socket: OwnedFd) -> io::Result<Socket> {
        let refused = |why: String| {
            io::Error::new(
                ErrorKind::InvalidInput,
                format!("the socket passed for {address} cannot be used: {why}"),
            )
        };
        let family = listening_family(&socket).map_err(refused)?;
        let adopted = match (address, family) {
            (Address::Tcp(SocketAddr::V4(_)), AddressFamily::INET)
            | (Address::Tcp(SocketAddr::V6(_)), AddressFamily::INET6) => {
                let listener = std::net::TcpListener::from(socket);
                let listener = listener
                    .set_nonblocking(true)
                    .and_then(|()| net::TcpListener::from_std(listener));
                listener.and_then(Socket::tcp)
            }
            (Address::Unix(path), AddressFamily::UNIX) => {
                let listener = std::os::unix::net::UnixListener::from(socket);
                let listener = listener
                    .set_nonblocking(true)
                    .and_then(|()| net::UnixListener::from_std(listener));
                listener.map(|listener| Socket {
                    kind: Kind::Unix(listener, SocketFile::new(path, false)),
                    bound: address.clone(),
                })
            }
            _ => return Err(refused("it is of another kind of address".to_owned())),
        };
        adopted.map_err(|e| refused(e.to_string()))
    }

    fn tcp(listener: net::TcpListener) -> io::Result<Socket> {
        let bound = Address::Tcp(listener.local_addr()?);
        let kind = Kind::Tcp(listener);
        Ok(Socket { kind, bound })
    }

    /// The address in use, with the port that was chosen.
    pub fn address(&self) -> &Address {
        &self.bound
    }

    /// The next connection. Nothing is lost if the future is dropped.
    ///
    /// # Errors
    /// What the system says; a later call may go well.
    pub async fn accept(&self) -> io::Result<Accepted> {
        match &self.kind {
            Kind::Tcp(listener) => {
                let (stream, peer) = listener.accept().await?;
                // Failing to switch Nagle's algorithm off costs latency, not correctness.
                let _ = stream.set_nodelay(true);
                Ok(Accepted::Tcp(stream, peer))
            }
            Kind::Unix(listener, _) => {
                let (stream, _) = listener.accept().await?;
                Ok(Accepted::Unix(stream))
            }
        }
    }

    /// Says whether the file of a Unix socket is ours, to be removed when the socket goes.
    pub fn own_file(&self, ours: bool) {
        if let Kind::Unix(_, file) = &self.kind {
            file.ours.store(ours, Ordering::Relaxed);
        }
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match &self.kind {
            Kind::Tcp(listener) => listener.as_fd(),
            Kind::Unix(listener, _) => listener.as_fd(),
        }
    }
}

/// The file of a Unix socket. Removed with it if it is ours; unless another process has put its own there meanwhile.
#[derive(Debug)]
struct SocketFile {
    path: PathBuf,
    identity: Option<(u64, u64)>,
    ours: AtomicBool,
}

impl SocketFile {
    fn new(path: &Path, ours: bool) -> SocketFile {
        SocketFile {
            path: path.to_owned(),
            identity: identity_of(path),
            ours: AtomicBool::new(ours),
        }
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        let ours = *self.ours.get_mut() && self.identity.is_some();
        if ours && identity_of(&self.path) == self.identity {
            // A file that somebody removed already is as gone as it should be.
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// What tells one file from another: its device and number.
fn identity_of(path: &Path) -> Option<(u64, u64)> {
    let file = fs::symlink_metadata(path).ok()?;
    Some((file.dev(), file.ino()))
}

/// The family of a stream socket that listens; it is closed by `exec` from now on.
fn listening_family(socket: &OwnedFd) -> Result<AddressFamily, String> {
    let not_a_socket = |e: rustix::io::Errno| format!("it is no socket ({e})");
    if sockopt::socket_type(socket).map_err(not_a_socket)? != SocketType::STREAM {
        return Err("it is no stream socket".to_owned());
    }
    if !sockopt::socket_acceptconn(socket).map_err(not_a_socket)? {
        return Err("it does not listen".to_owned());
    }
    fcntl_setfd(socket, FdFlags::CLOEXEC).map_err(|e| e.to_string())?;
    sockopt::socket_domain(socket).map_err(not_a_socket)
}

fn listen_tcp(address: SocketAddr) -> io::Result<net::TcpListener> {
    let socket = match address {
        SocketAddr::V4(_) => net::TcpSocket::new_v4()?,
        SocketAddr::V6(_) => net::TcpSocket::new_v6()?,
    };
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

/// A socket file that an earlier process left behind is replaced; one that somebody still listens on is not.
fn listen_unix(path: &Path, mode: u32) -> io::Result<net::UnixListener> {
    let is_socket = fs::symlink_metadata(path).is_ok_and(|m| m.file_type().is_socket());
    if is_socket {
        let answer = std::os::unix::net::UnixStream::connect(path);
        if answer.is_err_and(|e| e.kind() == ErrorKind::ConnectionRefused) {
            fs::remove_file(path)?;
        }
    }
    let listener = net::UnixListener::bind(path)?;
    fs::set_permissions(path, fs::Permissions::from_mode(mode))?;
    Ok(listener)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn unix(path: &Path) -> Address {
        Address::Unix(path.to_owned())
    }

    fn tcp(address: &str) -> Address {
        Address::Tcp(address.parse().expect("an address"))
    }

    fn duplicate(socket: &Socket) -> OwnedFd {
        socket.as_fd().try_clone_to_owned().expect("a duplicate")
    }

    #[tokio::test]
    async fn a_unix_socket_has_its_permissions_and_goes_with_its_listener() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("admin.sock");
        let address = unix(&path);
        let socket = Socket::bind(&address, 0o660).expect("a socket");
        let mode = fs::metadata(&path).expect("its file").permissions().mode();
        assert_eq!(mode & 0o777, 0o660);
        assert!(
            Socket::bind(&address, 0o660).is_err(),
            "somebody listens there"
        );
        drop(socket);
        assert!(!path.exists());
    }

    #[tokio::test]
    async fn a_socket_file_left_behind_is_replaced_and_any_other_file_is_not() {
        let folder = tempfile::tempdir().expect("a folder");
        let left = folder.path().join("left.sock");
        drop(std::os::unix::net::UnixListener::bind(&left).expect("a socket"));
        assert!(left.exists());
        Socket::bind(&unix(&left), 0o666).expect("the place of a dead process");

        let precious = folder.path().join("precious");
        fs::write(&precious, "data").expect("a file");
        assert!(
            Socket::bind(&unix(&precious), 0o666).is_err(),
            "not a socket"
        );
        assert_eq!(fs::read_to_string(precious).expect("the file"), "data");
    }

    #[tokio::test]
    async fn a_socket_file_that_another_process_has_put_there_stays() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("gate.sock");
        let old = Socket::bind(&unix(&path), 0o666).expect("a socket");
        fs::remove_file(&path).expect("the operator removes it");
        let _new = Socket::bind(&unix(&path), 0o666).expect("the successor");
        drop(old);
        std::os::unix::net::UnixStream::connect(&path).expect("the successor is reached");
    }

    #[tokio::test]
    async fn port_0_takes_a_free_port_and_tells_which() {
        let any = tcp("127.0.0.1:0");
        let socket = Socket::bind(&any, 0).expect("a socket");
        assert_ne!(socket.address(), &any);
        let taken = Socket::bind(socket.address(), 0).expect_err("it is taken");
        assert!(
            taken.to_string().contains(&socket.address().to_string()),
            "{taken}"
        );
    }

    #[tokio::test]
    async fn an_adopted_socket_accepts_what_was_meant_for_the_first_one() {
        let any = tcp("127.0.0.1:0");
        let old = Socket::bind(&any, 0).expect("a socket");
        let Address::Tcp(at) = *old.address() else {
            unreachable!("bound by TCP")
        };
        let new = Socket::adopt(&any, duplicate(&old)).expect("the same socket");
        assert_eq!(new.address(), old.address());
        drop(old);
        let _client = std::net::TcpStream::connect(at).expect("it still listens");
        new.accept().await.expect("a connection");
    }

    #[tokio::test]
    async fn the_file_of_an_adopted_socket_belongs_to_who_was_told_so() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("gate.sock");
        let old = Socket::bind(&unix(&path), 0o666).expect("a socket");
        let vain = Socket::adopt(&unix(&path), duplicate(&old)).expect("the same socket");
        drop(vain);
        assert!(path.exists(), "a successor that never became ready");
        let new = Socket::adopt(&unix(&path), duplicate(&old)).expect("the same socket");
        new.own_file(true);
        old.own_file(false);
        drop(old);
        std::os::unix::net::UnixStream::connect(&path).expect("the successor is reached");
        drop(new);
        assert!(!path.exists());
    }

    #[tokio::test]
    async fn what_is_no_listening_socket_of_the_right_kind_is_not_adopted() {
        let any = tcp("127.0.0.1:0");
        let refusal = |address: &Address, fd: OwnedFd| {
            let error = Socket::adopt(address, fd).expect_err("not to be used");
            error.to_string()
        };
        let file = fs::File::open("/dev/null").expect("a file");
        assert!(refusal(&any, file.into()).contains("no socket"));
        let datagrams = std::net::UdpSocket::bind("127.0.0.1:0").expect("a port");
        assert!(refusal(&any, datagrams.into()).contains("no stream socket"));
        let (one, _other) = std::os::unix::net::UnixStream::pair().expect("a pair");
        assert!(refusal(&any, one.into()).contains("does not listen"));
        let socket = Socket::bind(&any, 0).expect("a socket");
        for address in [unix(Path::new("/run/x")), tcp("[::1]:0")] {
            let told = refusal(&address, duplicate(&socket));
            assert!(told.contains("another kind of address"), "{told}");
            assert!(told.contains(&address.to_string()), "{told}");
        }
    }
}
