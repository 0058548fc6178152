//! A TCP relay with a valve: it stands between a real client and packgate, keeps what the client sent, and stops passing
//! the response on after a given number of bytes. A clone "in mid-stream" is a clone whose valve is shut.

use std::{
    io::{Read, Write},
    net::{Shutdown, SocketAddr, TcpListener, TcpStream},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use crate::origin::Latch;

struct State {
    target: SocketAddr,
    pass: u64,
    valve: Latch,
    sent: Mutex<Vec<u8>>,
    passed: AtomicU64,
}

/// The relay; one thread per direction of each connection.
pub struct Relay {
    addr: SocketAddr,
    state: Arc<State>,
}

impl Relay {
    /// Passes everything.
    pub fn open(target: SocketAddr) -> Relay {
        Relay::start(target, u64::MAX)
    }

    /// Passes `bytes` of the responses of each connection, then nothing until [`Relay::release`].
    pub fn shut_after(target: SocketAddr, bytes: u64) -> Relay {
        Relay::start(target, bytes)
    }

    fn start(target: SocketAddr, pass: u64) -> Relay {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free loopback port");
        let addr = listener.local_addr().unwrap();
        let state = State {
            target,
            pass,
            valve: Latch::new(),
            sent: Mutex::default(),
            passed: AtomicU64::new(0),
        };
        let state = Arc::new(state);
        let shared = state.clone();
        std::thread::spawn(move || {
            while let Ok((client, _)) = listener.accept() {
                let state = shared.clone();
                std::thread::spawn(move || state.relay(client));
            }
        });
        Relay { addr, state }
    }

    /// Where clients connect.
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// `http://127.0.0.1:port`.
    pub fn url(&self) -> String {
        format!("http://{}", self.addr)
    }

    /// Opens the valve for good.
    pub fn release(&self) {
        self.state.valve.open();
    }

    /// Everything clients have sent, of all connections in order of arrival.
    pub fn sent(&self) -> Vec<u8> {
        self.state.sent.lock().unwrap().clone()
    }

    /// How many bytes that is.
    pub fn sent_bytes(&self) -> usize {
        self.state.sent.lock().unwrap().len()
    }

    /// Response bytes passed on so far.
    pub fn passed(&self) -> u64 {
        self.state.passed.load(Ordering::SeqCst)
    }
}

impl State {
    fn relay(self: Arc<Self>, client: TcpStream) {
        let Ok(server) = TcpStream::connect(self.target) else {
            return;
        };
        let _ = client.set_nodelay(true);
        let _ = server.set_nodelay(true);
        let (Ok(mut from_client), Ok(to_server)) = (client.try_clone(), server.try_clone()) else {
            return;
        };
        let state = self.clone();
        let gone = Arc::new(AtomicBool::new(false));
        let client_gone = gone.clone();
        let upward = std::thread::spawn(move || {
            let mut to_server = to_server;
            let mut piece = [0; 64 * 1024];
            while let Ok(read @ 1..) = from_client.read(&mut piece) {
                state.sent.lock().unwrap().extend(&piece[..read]);
                if to_server.write_all(&piece[..read]).is_err() {
                    break;
                }
            }
            // The client is gone: so are we, whatever waits at the valve.
            client_gone.store(true, Ordering::SeqCst);
            let _ = to_server.shutdown(Shutdown::Both);
        });
        self.downward(server, &client, &gone);
        let _ = client.shutdown(Shutdown::Both);
        let _ = upward.join();
    }

    fn downward(&self, mut server: TcpStream, mut client: &TcpStream, gone: &AtomicBool) {
        let mut piece = [0; 16 * 1024];
        let mut passed = 0;
        loop {
            if passed >= self.pass {
                while !self.valve.wait(Duration::from_millis(10)) {
                    // Closing with bytes unread sends a reset, as the kernel does for a client that was killed.
                    if gone.load(Ordering::SeqCst) {
                        return;
                    }
                }
            }
            let Ok(read @ 1..) = server.read(&mut piece) else {
                return;
            };
            if client.write_all(&piece[..read]).is_err() {
                let _ = server.shutdown(Shutdown::Both);
                return;
            }
            passed += read as u64;
            self.passed.fetch_add(read as u64, Ordering::SeqCst);
        }
    }
}
