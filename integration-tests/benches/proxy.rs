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

use packgate_integration_tests::{Packgate, Request, pkt, process::find_command, until};

const ROUNDS: usize = 3;
const LARGE: u64 = 512 * 1024 * 1024;
const SMALL: usize = 1024;
const ALONE: usize = 1_000;
const CONNECTIONS: usize = 16;
const EACH: usize = 500;

fn main() {
    // Cargo passes flags of its own harness.
    let origin = origin();
    let packgate = Packgate::start(&format!(
        "upstream: http://{origin}\nlimits: [{{name: all, per: global, seats: 64}}, {{name: each, per: repo, seats: 32}}]\n\
         telemetry: {{log: json}}\n"
    ));
    let nginx = Nginx::start(origin);
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
            pid: Some(nginx.process.0.id()),
        },
    ];
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

#[derive(Clone, Copy)]
struct Round {
    gigabytes_per_second: f64,
    cpu_per_gigabyte: f64,
    p50: f64,
    p99: f64,
    clone_p50: f64,
    requests_per_second: f64,
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
        Round {
            gigabytes_per_second: gigabytes / took,
            cpu_per_gigabyte,
            p50: percentile(&mut fetches, 0.5),
            p99: percentile(&mut fetches, 0.99),
            clone_p50: percentile(&mut clones, 0.5),
            requests_per_second: self.together(),
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
    process: Ended,
    _dir: tempfile::TempDir,
}

struct Ended(std::process::Child);

impl Drop for Ended {
    fn drop(&mut self) {
        // It has ended already, or ends now.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Nginx {
    fn start(origin: SocketAddr) -> Nginx {
        let dir = tempfile::tempdir().expect("a directory");
        let addr = TcpListener::bind("127.0.0.1:0")
            .and_then(|l| l.local_addr())
            .expect("a free port");
        let config = config(dir.path(), addr, origin);
        fs::write(dir.path().join("nginx.conf"), config).expect("its configuration");
        let child = Command::new(find_command("nginx"))
            .arg("-p")
            .arg(dir.path())
            .args(["-c", "nginx.conf", "-e", "error.log"])
            .stderr(Stdio::null())
            .spawn()
            .expect("nginx");
        until("nginx to listen", || TcpStream::connect(addr).ok());
        Nginx {
            addr,
            process: Ended(child),
            _dir: dir,
        }
    }
}

fn config(dir: &Path, addr: SocketAddr, origin: SocketAddr) -> String {
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
               proxy_buffering off;\n\
             }}\n\
           }}\n\
         }}\n"
    )
}

fn percentile(values: &mut [f64], part: f64) -> f64 {
    values.sort_by(f64::total_cmp);
    values[((values.len() - 1) as f64 * part) as usize]
}

/// Median and range over the rounds.
fn spread(rounds: &[Round], value: impl Fn(&Round) -> f64) -> (f64, f64, f64) {
    let mut values: Vec<f64> = rounds.iter().map(value).collect();
    let median = percentile(&mut values, 0.5);
    (values[0], median, values[values.len() - 1])
}

fn report(ways: &[Way], measured: &[Vec<Round>]) {
    type Column = (&'static str, fn(&Round) -> f64);
    let columns: [Column; 6] = [
        ("512 MiB, GB/s", |r| r.gigabytes_per_second),
        ("CPU s/GB", |r| r.cpu_per_gigabyte),
        ("fetch p50, us", |r| r.p50),
        ("fetch p99, us", |r| r.p99),
        ("clone p50, us", |r| r.clone_p50),
        ("16 conn., req/s", |r| r.requests_per_second),
    ];
    println!("median (lowest to highest) of {ROUNDS} rounds, taken in turns");
    for (title, column) in columns {
        println!("{title}");
        for (way, rounds) in ways.iter().zip(measured) {
            let (low, median, high) = spread(rounds, column);
            println!("  {:<10} {median:>10.2}  ({low:.2} to {high:.2})", way.name);
        }
    }
    let median = |way: usize, column: fn(&Round) -> f64| spread(&measured[way], column).1;
    println!("packgate against nginx");
    println!(
        "  throughput of 512 MiB  {:.2} times",
        median(1, columns[0].1) / median(2, columns[0].1)
    );
    println!(
        "  CPU per GB             {:.2} times",
        median(1, columns[1].1) / median(2, columns[1].1)
    );
    println!(
        "  requests per second    {:.2} times",
        median(1, columns[5].1) / median(2, columns[5].1)
    );
    println!("packgate against a direct connection");
    println!(
        "  a small fetch adds     {:.0} us at p50",
        median(1, columns[2].1) - median(0, columns[2].1)
    );
    println!(
        "  a small clone adds     {:.0} us at p50",
        median(1, columns[4].1) - median(0, columns[4].1)
    );
}
