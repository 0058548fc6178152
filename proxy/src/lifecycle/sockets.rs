//! The sockets the process listens on: bound, passed by systemd, or inherited from the process before, and handed on to the
//! next one. Those of systemd are not: it passes them to the next one itself.
//!
//! A socket is known by what it is for and by its address as the configuration writes it, not as the system sees it: so
//! port 0 of the new process is the port that port 0 of the old one was given. Of several with one name the first goes to
//! the first, and so on.

use std::{
    io,
    os::fd::{AsFd, OwnedFd},
    sync::{Arc, Weak},
};

use serde::{Deserialize, Serialize};

use crate::{
    config::Address,
    listen::{Listener, Passed, Socket},
};

/// What a socket is known by to both sides of a hand-over.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq, Serialize)]
pub struct Name {
    /// `proxy`, `admin`, `health` or `control`.
    pub r#for: String,
    /// As the configuration writes it.
    pub address: String,
}

/// Every listening socket of this process.
#[derive(Default)]
pub struct Sockets {
    inherited: Vec<(Name, Option<OwnedFd>)>,
    passed: Passed,
    /// Not kept open from here: a listener that is closed is closed.
    open: Vec<(Name, Weak<Socket>)>,
}

impl Sockets {
    /// What the process before has handed over; none, if there was none.
    pub fn inheriting(sockets: Vec<(Name, OwnedFd)>) -> Sockets {
        Sockets {
            inherited: sockets
                .into_iter()
                .map(|(name, socket)| (name, Some(socket)))
                .collect(),
            ..Sockets::default()
        }
    }

    /// Adds what systemd has passed.
    pub fn with(self, passed: Passed) -> Sockets {
        Sockets { passed, ..self }
    }

    /// Listens at `address`, by the passed or inherited socket if there is one. One that is bound gets the permissions `mode` if it is
    /// a Unix socket.
    ///
    /// # Errors
    /// What the system says, with the address in front.
    pub fn listen(&mut self, r#for: &str, address: &Address, mode: u32) -> io::Result<Listener> {
        let listener = match address {
            Address::Systemd(name) => self.passed.take(name)?,
            Address::Tcp(_) | Address::Unix(_) => self.inherit_or_bind(r#for, address, mode)?,
        };
        tracing::info!(r#for, addr = %listener.address(), "listening");
        Ok(listener)
    }

    fn inherit_or_bind(
        &mut self,
        r#for: &str,
        address: &Address,
        mode: u32,
    ) -> io::Result<Listener> {
        let name = Name {
            r#for: r#for.to_owned(),
            address: address.to_string(),
        };
        let same =
            |(other, socket): &&mut (Name, Option<OwnedFd>)| *other == name && socket.is_some();
        let inherited = self.inherited.iter_mut().find(same);
        let listener = match inherited.and_then(|(_, socket)| socket.take()) {
            Some(socket) => Listener::adopt(address, socket)?,
            None => Listener::bind(address, mode)?,
        };
        self.open.push((name, Arc::downgrade(listener.socket())));
        Ok(listener)
    }

    /// The names of what systemd has passed and nobody listens on; None if there is nothing.
    pub fn left(&self) -> Option<String> {
        self.passed.left()
    }

    /// Closes what was inherited and is not listened on, and says which were taken, by their places.
    pub fn taken(&mut self) -> Vec<usize> {
        let places = self.inherited.drain(..).enumerate();
        places
            .filter(|(_, (_, left))| left.is_none())
            .map(|(place, _)| place)
            .collect()
    }

    /// Duplicates for the next process, in the order of their places.
    ///
    /// # Errors
    /// A listener is closed already, or there are no file descriptors left.
    pub fn duplicates(&self) -> io::Result<(Vec<Name>, Vec<OwnedFd>)> {
        let mut all = (Vec::new(), Vec::new());
        for (name, socket) in &self.open {
            let Some(socket) = socket.upgrade() else {
                let why = format!("{} for {} is closed", name.address, name.r#for);
                return Err(io::Error::new(io::ErrorKind::NotConnected, why));
            };
            all.0.push(name.clone());
            all.1.push(socket.as_fd().try_clone_to_owned()?);
        }
        Ok(all)
    }

    /// Says for the files of all Unix sockets here that they are this process's own.
    pub fn own_files(&self) {
        let sockets = self.open.iter().filter_map(|(_, socket)| socket.upgrade());
        sockets.for_each(|socket| socket.own_file(true));
    }

    /// Says for those at these places that they are the next process's.
    pub fn hand_on_files(&self, taken: &[usize]) {
        let sockets = taken.iter().filter_map(|place| self.open.get(*place));
        let sockets = sockets.filter_map(|(_, socket)| socket.upgrade());
        sockets.for_each(|socket| socket.own_file(false));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn any() -> Address {
        Address::Tcp("127.0.0.1:0".parse().expect("an address"))
    }

    fn heir(of: &Sockets) -> Sockets {
        let (names, sockets) = of.duplicates().expect("open sockets");
        Sockets::inheriting(names.into_iter().zip(sockets).collect())
    }

    #[tokio::test]
    async fn ports_chosen_by_the_system_are_inherited_by_purpose_and_order() {
        let mut old = Sockets::default();
        let at = |sockets: &mut Sockets, purpose: &str| {
            sockets.listen(purpose, &any(), 0).expect("a socket")
        };
        let [first, second, admin] = ["proxy", "proxy", "admin"].map(|p| at(&mut old, p));
        let mut new = heir(&old);
        // A third listener, and the order of purposes changed: everybody keeps their port.
        let [admin_2, first_2, second_2, third] =
            ["admin", "proxy", "proxy", "proxy"].map(|p| at(&mut new, p));
        assert_eq!(admin_2.address(), admin.address());
        assert_eq!(first_2.address(), first.address());
        assert_eq!(second_2.address(), second.address());
        assert!(
            [&first, &second, &admin]
                .iter()
                .all(|old| old.address() != third.address())
        );
        assert_eq!(new.taken(), [0, 1, 2]);
    }

    #[tokio::test]
    async fn what_is_not_listened_on_is_closed_and_its_file_left_to_the_old_process() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = |name: &str| Address::Unix(folder.path().join(name));
        let mut old = Sockets::default();
        let listeners = ["kept", "left"].map(|name| {
            let listener = old.listen("proxy", &path(name), 0o666);
            listener.expect("a socket")
        });
        let mut new = heir(&old);
        let kept = new.listen("proxy", &path("kept"), 0o666);
        let taken = new.taken();
        assert_eq!(taken, [0]);
        new.own_files();
        old.hand_on_files(&[0, 7]);
        drop(listeners);
        let exists = |name: &str| folder.path().join(name).exists();
        assert_eq!((exists("kept"), exists("left")), (true, false));
        drop(kept);
        assert!(!exists("kept"));
    }

    #[tokio::test]
    async fn a_closed_listener_is_not_handed_over() {
        let mut old = Sockets::default();
        drop(old.listen("admin", &any(), 0).expect("a socket"));
        let why = old.duplicates().expect_err("closed").to_string();
        assert_eq!(why, "127.0.0.1:0 for admin is closed");
    }
}
