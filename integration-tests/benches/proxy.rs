//! What packgate costs: the same requests to the same origin directly, through packgate and through nginx, in turns and in
//! one run, so that the ratios hold whatever the machine is doing. `PACKGATE_BIN` names the optimised binary.
//!
//! Nothing is asserted here: a figure that depends on the machine is no test.

use std::{
    fs,
    io::{self, BufRead, BufReader, Read, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    path::Path,
    process::{Command, Stdio},
    thread,
    time::Instant,
};

use packgate_integration_tests::{
    Packgate, Request, pkt,
    process::{Daemon, find_command},
    until,
};

const ROUNDS: usize = 5;
const LARGE: u64 = 512 * 1024 * 1024;
const SMALL: usize = 1024;
const ALONE: usize = 1_000;
const CONNECTIONS: usize = 16;
const EACH: usize = 500;

/// Unbuffered, nginx reads into one buffer of `proxy_buffer_size`: 4 or 8 KiB unless told otherwise. pingora's has 64 KiB,
/// and without this second nginx the size of a buffer would pass for the merit of a proxy.
const ROOMY: &str = "proxy_buffer_size 64k; proxy_buffers 8 64k; proxy_busy_buffers_size 128k;";

fn main() {
    // Cargo passes flags of its own harness.
    let origin = origin();
    let packgate = Packgate::start(&format!(
        "upstream: http://{origin}\nlimits: [{{name: all, per: global, seats: 64}}, {{name: each, per: repo, seats: 32}}]\n\
         telemetry: {{log: json}}\n"
    ));
    let nginx = Nginx::start(origin, "");
    let roomy = Nginx::start(origin, ROOMY);
    let ways = [
        Way {
            name: "direct",
            addr: origin,
            pid: None,
        },
        Way {
            name: "packgate",
            addr: packgate.addr(),
            pid: Some(packgate.pid()),
        },
        Way {
            name: "nginx",
            addr: nginx.addr,
            pid: Some(nginx.pid),
        },
        Way {
            name: "nginx, 64 KiB",
            addr: roomy.addr,
            pid: Some(roomy.pid),
        },
    ];
    eprintln!("load average before: {}", load_average());
    let mut measured: Vec<Vec<Round>> = vec![Vec::new(); ways.len()];
    for round in 0..=ROUNDS {
        for (way, results) in ways.iter().zip(&mut measured) {
            let result = way.measure();
            eprintln!(
                "round {round}, {}: 512 MiB at {:.2} GB/s, a fetch in {:.0} us",
                way.name, result.gigabytes_per_second, result.p50
            );
            // The first is for warming up.
            if round > 0 {
                results.push(result);
            }
        }
    }
    report(&ways, &measured);
}

/// What else the machine is doing: more than a little, and the latencies are those of its queue.
fn load_average() -> String {
    fs::read_to_string("/proc/loadavg")
        .unwrap_or_default()
        .trim_end()
        .to_owned()
}

#[derive(Clone, Copy)]
struct Round {
    gigabytes_per_second: f64,
    cpu_per_gigabyte: f64,
    p50: f64,
    p99: f64,
    clone_p50: f64,
    requests_per_second: f64,
    cpu_per_request: f64,
}

struct Way {
    name: &'static str,
    addr: SocketAddr,
    pid: Option<u32>,
}

impl Way {
    fn measure(&self) -> Round {
        let cpu = self.cpu();
        let begin = Instant::now();
        let mut connection = Caller::connect(self.addr);
        let received = connection.call(&Request::upload_pack("large", pkt::clone_v2()).bytes());
        let took = begin.elapsed().as_secs_f64();
        let gigabytes = received as f64 / 1e9;
        let cpu_per_gigabyte = (self.cpu() - cpu) / gigabytes;

        let mut fetches =
            self.one_at_a_time(&Request::upload_pack("small", pkt::incremental_v2()).bytes());
        let mut clones =
            self.one_at_a_time(&Request::upload_pack("small", pkt::clone_v2()).bytes());
        let cpu = self.cpu();
        let requests_per_second = self.together();
        Round {
            gigabytes_per_second: gigabytes / took,
            cpu_per_gigabyte,
            p50: percentile(&mut fetches, 0.5),
            p99: percentile(&mut fetches, 0.99),
            clone_p50: percentile(&mut clones, 0.5),
            requests_per_second,
            cpu_per_request: (self.cpu() - cpu) * 1e6 / (CONNECTIONS * EACH) as f64,
        }
    }

    fn one_at_a_time(&self, request: &[u8]) -> Vec<f64> {
        let mut connection = Caller::connect(self.addr);
        let one = |_| {
            let begin = Instant::now();
            connection.call(request);
            begin.elapsed().as_secs_f64() * 1e6
        };
        (0..ALONE).map(one).collect()
    }

    fn together(&self) -> f64 {
        let request = Request::upload_pack("small", pkt::incremental_v2()).bytes();
        let begin = Instant::now();
        thread::scope(|scope| {
            for _ in 0..CONNECTIONS {
                scope.spawn(|| {
                    let mut connection = Caller::connect(self.addr);
                    for _ in 0..EACH {
                        connection.call(&request);
                    }
                });
            }
        });
        (CONNECTIONS * EACH) as f64 / begin.elapsed().as_secs_f64()
    }

    /// CPU seconds of the process and its children so far.
    fn cpu(&self) -> f64 {
        let Some(pid) = self.pid else { return 0.0 };
        let ticks: u64 = fs::read_dir("/proc")
            .expect("/proc")
            .filter_map(|entry| fs::read_to_string(entry.ok()?.path().join("stat")).ok())
            .filter_map(|stat| ticks_of(&stat, pid))
            .sum();
        ticks as f64 / rustix::param::clock_ticks_per_second() as f64
    }
}

/// User and system time in a line of /proc/PID/stat, if it is the process or a child of it (proc_pid_stat(5)).
fn ticks_of(stat: &str, pid: u32) -> Option<u64> {
    let own: u32 = stat.split(' ').next()?.parse().ok()?;
    let fields: Vec<&str> = stat.rsplit_once(") ")?.1.split(' ').collect();
    let parent: u32 = fields.get(1)?.parse().ok()?;
    let ticks = |n: usize| fields.get(n)?.parse::<u64>().ok();
    (own == pid || parent == pid)
        .then(|| Some(ticks(11)? + ticks(12)?))
        .flatten()
}

/// A client that does as little as possible.
struct Caller {
    stream: TcpStream,
    buffer: Vec<u8>,
}

impl Caller {
    fn connect(addr: SocketAddr) -> Caller {
        let stream = TcpStream::connect(addr).expect("a connection");
        stream.set_nodelay(true).expect("TCP_NODELAY");
        Caller {
            stream,
            buffer: vec![0; 256 * 1024],
        }
    }

    /// Sends a request and reads its response, which has a length; returns the body's length.
    fn call(&mut self, request: &[u8]) -> u64 {
        self.stream.write_all(request).expect("the request is sent");
        let mut filled = 0;
        let end = loop {
            filled += read(&mut self.stream, &mut self.buffer[filled..]);
            let head = &self.buffer[..filled];
            if let Some(end) = head.windows(4).position(|four| four == b"\r\n\r\n") {
                break end + 4;
            }
        };
        let head = String::from_utf8_lossy(&self.buffer[..end]).to_ascii_lowercase();
        assert!(head.starts_with("http/1.1 200"), "{head}");
        let length = head
            .split("content-length: ")
            .nth(1)
            .and_then(|rest| rest.split("\r\n").next());
        let length: u64 = length
            .and_then(|length| length.parse().ok())
            .expect("a length");
        let mut left = length - (filled - end) as u64;
        while left > 0 {
            left -= read(&mut self.stream, &mut self.buffer) as u64;
        }
        length
    }
}

fn read(stream: &mut TcpStream, buffer: &mut [u8]) -> usize {
    let read = stream.read(buffer).expect("a response");
    assert_ne!(read, 0, "the response breaks off");
    read
}

/// A server from memory: `/large…` is 512 MiB, everything else 1 KiB.
fn origin() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let addr = listener.local_addr().expect("its address");
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            // A client that goes is the end of its connection, and of nothing else.
            thread::spawn(move || answer_all(stream));
        }
    });
    addr
}

fn answer_all(stream: TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let mut writer = stream.try_clone()?;
    let mut reader = BufReader::new(stream);
    let piece = vec![b'x'; 1024 * 1024];
    loop {
        let mut head = String::new();
        while !head.ends_with("\r\n\r\n") {
            if reader.read_line(&mut head)? == 0 {
                return Ok(());
            }
        }
        let head = head.to_ascii_lowercase();
        let length = head
            .split("content-length: ")
            .nth(1)
            .and_then(|rest| rest.split("\r\n").next());
        let length: u64 = length.and_then(|length| length.parse().ok()).unwrap_or(0);
        io::copy(&mut (&mut reader).take(length), &mut io::sink())?;
        let mut left = if head.starts_with("post /large") {
            LARGE
        } else {
            SMALL as u64
        };
        let mut response = format!(
            "HTTP/1.1 200 OK\r\nContent-Type: application/x-git-upload-pack-result\r\nContent-Length: {left}\r\n\r\n"
        )
        .into_bytes();
        if left == SMALL as u64 {
            response.extend(&piece[..SMALL]);
            left = 0;
        }
        writer.write_all(&response)?;
        while left > 0 {
            let n = left.min(piece.len() as u64);
            writer.write_all(&piece[..n as usize])?;
            left -= n;
        }
    }
}

struct Nginx {
    addr: SocketAddr,
    pid: u32,
    // Ended with its workers: a master that is killed leaves them behind, with our standard output open.
    _process: Daemon,
    _dir: tempfile::TempDir,
}

impl Nginx {
    fn start(origin: SocketAddr, settings: &str) -> Nginx {
        let dir = tempfile::tempdir().expect("a directory");
        let addr = TcpListener::bind("127.0.0.1:0")
            .and_then(|l| l.local_addr())
            .expect("a free port");
        let config = config(dir.path(), addr, origin, settings);
        fs::write(dir.path().join("nginx.conf"), config).expect("its configuration");
        let child = Command::new(find_command("nginx"))
            .arg("-p")
            .arg(dir.path())
            .args(["-c", "nginx.conf", "-e", "error.log"])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("nginx");
        until("nginx to listen", || TcpStream::connect(addr).ok());
        Nginx {
            addr,
            pid: child.id(),
            _process: Daemon::new(child),
            _dir: dir,
        }
    }
}

fn config(dir: &Path, addr: SocketAddr, origin: SocketAddr, settings: &str) -> String {
    let dir = dir.display();
    format!(
        "daemon off; worker_processes auto; pid nginx.pid; error_log error.log;\n\
         events {{ worker_connections 1024; }}\n\
         http {{\n\
           access_log off; keepalive_requests 1000000; client_max_body_size 0;\n\
           client_body_temp_path {dir}/body; proxy_temp_path {dir}/proxy; fastcgi_temp_path {dir}/fcgi;\n\
           uwsgi_temp_path {dir}/uwsgi; scgi_temp_path {dir}/scgi;\n\
           upstream origin {{ server {origin}; keepalive 32; keepalive_requests 1000000; }}\n\
           server {{\n\
             listen {addr};\n\
             location / {{\n\
               proxy_pass http://origin; proxy_http_version 1.1; proxy_set_header Connection '';\n\
               proxy_buffering off; {settings}\n\
             }}\n\
           }}\n\
         }}\n"
    )
}

fn percentile(values: &mut [f64], part: f64) -> f64 {
    values.sort_by(f64::total_cmp);
    values[((values.len() - 1) as f64 * part) as usize]
}

/// Median, lowest and highest.
fn spread(values: impl Iterator<Item = f64>) -> (f64, f64, f64) {
    let mut values: Vec<f64> = values.collect();
    let median = percentile(&mut values, 0.5);
    (median, values[0], values[values.len() - 1])
}

type Column = fn(&Round) -> f64;

fn report(ways: &[Way], measured: &[Vec<Round>]) {
    let columns: [(&str, Column); 7] = [
        ("512 MiB, GB/s", |r| r.gigabytes_per_second),
        ("512 MiB, CPU s/GB", |r| r.cpu_per_gigabyte),
        ("small fetch, one at a time, p50 us", |r| r.p50),
        ("small fetch, one at a time, p99 us", |r| r.p99),
        ("small clone, one at a time, p50 us", |r| r.clone_p50),
        ("16 connections, requests/s", |r| r.requests_per_second),
        ("16 connections, CPU us/request", |r| r.cpu_per_request),
    ];
    println!("median (lowest to highest) of {ROUNDS} rounds, taken in turns");
    for (title, column) in columns {
        println!("{title}");
        for (way, rounds) in ways.iter().zip(measured) {
            print(way.name, spread(rounds.iter().map(column)));
        }
    }

    let ([direct, packgate, nginx @ ..], [_, _, names @ ..]) = (measured, ways) else {
        return;
    };
    // Round by round: what disturbs one of a pair has probably disturbed the other.
    for (nginx, way) in nginx.iter().zip(names) {
        let times = |title, column: Column| {
            let pairs = packgate.iter().zip(nginx);
            print(title, spread(pairs.map(|(a, b)| column(a) / column(b))));
        };
        println!("packgate, times {}", way.name);
        times("throughput", |r| r.gigabytes_per_second);
        times("CPU per GB", |r| r.cpu_per_gigabyte);
        times("requests/s", |r| r.requests_per_second);
        times("CPU/request", |r| r.cpu_per_request);
    }
    println!("added to a direct connection, p50 us");
    for (way, rounds) in ways.iter().zip(measured).skip(1) {
        let added = |column: Column| {
            spread(
                rounds
                    .iter()
                    .zip(direct)
                    .map(|(a, b)| column(a) - column(b)),
            )
        };
        print(&format!("fetch, {}", way.name), added(|r| r.p50));
        print(&format!("clone, {}", way.name), added(|r| r.clone_p50));
    }
    println!("load average after: {}", load_average());
}

fn print(name: &str, (median, low, high): (f64, f64, f64)) {
    println!("  {name:<20} {median:>10.2}  ({low:.2} to {high:.2})");
}
