//! `packgate demo`: from nothing to a refused clone in one minute, with git and nothing else installed.
//!
//! It serves two repositories made on the spot through the same code and a configuration of the same kind as anyone's. The
//! sample is shaped so that cloning it costs git some seconds of the work the gate is about (see [`sample`]): a clone that
//! is over at once leaves nobody time to be refused. Slowing the demo down artificially was rejected: what one sees here
//! is what happens.

mod sample;

use std::{
    fmt::Write as _,
    io::{self, IsTerminal},
    net::{SocketAddr, TcpListener},
    path::PathBuf,
    process::ExitCode,
    time::Instant,
};

use clap::Args;

/// Where the demo is served and kept.
#[derive(Args, Clone, Debug)]
pub struct DemoArgs {
    /// Where git clients connect
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:8080")]
    pub listen: SocketAddr,
    /// Where status and metrics are
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:9901")]
    pub admin: SocketAddr,
    /// Keep the sample repositories in this directory [default: a temporary one, removed at the end]
    #[arg(long, value_name = "DIR")]
    pub dir: Option<PathBuf>,
}

/// Runs the demo until it is interrupted. Fails, having said why and what to do, if git is missing, an address is taken
/// or the directory cannot be written. `serve` runs packgate on a configuration, given as YAML, and returns at its end.
pub fn run(args: DemoArgs, serve: impl FnOnce(&str) -> ExitCode) -> ExitCode {
    match prepare(&args) {
        Ok(demo) => {
            print!("{}", guide(&demo, io::stdout().is_terminal()));
            serve(&config(&demo))
        }
        Err(reason) => {
            eprintln!("packgate demo: {reason}");
            ExitCode::FAILURE
        }
    }
}

/// Ready to be served.
struct Demo {
    listen: SocketAddr,
    admin: SocketAddr,
    root: PathBuf,
    /// The newest commit of the larger repository.
    head: String,
    /// Removes the repositories at the end.
    temporary: Option<tempfile::TempDir>,
}

fn prepare(args: &DemoArgs) -> Result<Demo, String> {
    let listen = free("--listen", args.listen)?;
    let admin = free("--admin", args.admin)?;
    let (root, temporary) = match &args.dir {
        Some(directory) => (directory.clone(), None),
        None => {
            let made = tempfile::Builder::new().prefix("packgate-demo-").tempdir();
            let made = made.map_err(|error| {
                let place = std::env::temp_dir();
                format!(
                    "cannot make a directory in {}: {error}; choose another with --dir",
                    place.display()
                )
            })?;
            (made.path().to_owned(), Some(made))
        }
    };
    let started = Instant::now();
    eprintln!("Making two sample repositories in {} ...", root.display());
    let head = sample::make("git".as_ref(), &root)?;
    let root = root
        .canonicalize()
        .map_err(|error| format!("{}: {error}", root.display()))?;
    eprintln!("... done in {:.1} s.", started.elapsed().as_secs_f32());
    Ok(Demo {
        listen,
        admin,
        root,
        head,
        temporary,
    })
}

/// The address, with port 0 replaced by a free port, so that the guide can name it. Tried before anything is made: a
/// taken port is the likeliest mistake.
fn free(option: &str, address: SocketAddr) -> Result<SocketAddr, String> {
    let tried = TcpListener::bind(address).and_then(|listener| listener.local_addr());
    tried.map_err(|error| match error.kind() {
        io::ErrorKind::AddrInUse => {
            format!(
                "something else listens on {address}; choose another with {option} {}:0",
                address.ip()
            )
        }
        _ => format!("cannot listen on {address}: {error}; choose another with {option}"),
    })
}

fn config(demo: &Demo) -> String {
    // A JSON string is a YAML string, whatever the path holds.
    let root = serde_json::Value::from(demo.root.to_string_lossy());
    format!(
        "listen: \"{}\"\n\
         admin: \"{}\"\n\
         upstream: {{cgi: {{root: {root}}}}}\n\
         limits:\n  \
           - {{name: all-clones, per: global, seats: 2}}\n  \
           - {{name: each-repo, per: repo, seats: 1}}\n\
         drain: {{delay: 0s, timeout: 10s}}\n\
         telemetry: {{log: text}}\n",
        demo.listen, demo.admin
    )
}

/// What to try. `colours`: whether headings may stand out.
fn guide(demo: &Demo, colours: bool) -> String {
    let (bold, plain) = if colours {
        ("\x1b[1m", "\x1b[0m")
    } else {
        ("", "")
    };
    let (git, admin, head) = (
        format!("http://{}", demo.listen),
        format!("http://{}", demo.admin),
        &demo.head,
    );
    let fate = match &demo.temporary {
        Some(_) => "Ctrl-C ends the demo and removes the repositories.".to_owned(),
        None => format!(
            "Ctrl-C ends the demo; the repositories stay in {}.",
            demo.root.display()
        ),
    };
    let mut text = String::new();
    let mut say = |line: &str| {
        let _ = writeln!(text, "{line}");
    };
    say("");
    say(&format!(
        "{bold}packgate stands in front of two git repositories now.{plain}"
    ));
    say("One clone per repository may run at a time, two in all. Nobody queues here: who finds no");
    say("seat is refused at once. Everything that is cheap always passes.");
    say("");
    say(&format!(
        "{bold}1. A clone storm.{plain} One of five gets through, four get `HTTP 429`. Try it without fear:"
    ));
    say("");
    say("     cd \"$(mktemp -d)\"");
    say(&format!(
        "     for i in 1 2 3 4 5; do git clone {git}/payments.git storm-$i & done; wait"
    ));
    say("");
    say(&format!(
        "{bold}2. Two terminals.{plain} Start a clone in one (it takes git some seconds of work) ..."
    ));
    say("");
    say(&format!("     git clone {git}/payments.git slow"));
    say("");
    say("   ... and meanwhile, in the other:");
    say("");
    say(&format!(
        "     git clone {git}/payments.git second      # refused: its repository is busy"
    ));
    say(&format!(
        "     git clone {git}/website.git              # passes: another repository"
    ));
    say(&format!(
        "     git ls-remote {git}/payments.git         # passes: costs nothing"
    ));
    say("");
    say("   What a refused client is told (git shows only the 429):");
    say("");
    say(&format!(
        "     printf '0011command=fetch00010032want {head}\\n0009done\\n0000' |"
    ));
    say(
        "       curl -si -H 'Git-Protocol: version=2' -H 'Content-Type: application/x-git-upload-pack-request' \\",
    );
    say(&format!(
        "         --data-binary @- {git}/payments.git/git-upload-pack | head -c 700"
    ));
    say("");
    say(&format!(
        "{bold}3. Daily work{plain} is never in the way, however full the gate is: push, then fetch it elsewhere."
    ));
    say("");
    say(&format!(
        "     git clone {git}/website.git other; cd website"
    ));
    say(
        "     git -c user.name=me -c user.email=me@example.org commit --allow-empty -m 'Hello' && git push",
    );
    say("     git -C ../other pull");
    say("");
    say(&format!(
        "{bold}4. Watch:{plain} {admin}/ in a browser, and"
    ));
    say("");
    say(&format!("     curl {admin}/status.json"));
    say(&format!("     curl -s {admin}/metrics | grep ^packgate"));
    say("");
    say(&fate);
    say("");
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn demo(root: &str) -> Demo {
        Demo {
            listen: "127.0.0.1:8080".parse().unwrap(),
            admin: "[::1]:9901".parse().unwrap(),
            root: root.into(),
            head: "1".repeat(40),
            temporary: None,
        }
    }

    #[test]
    fn the_configuration_is_yaml_whatever_the_directory_is_called() {
        for root in ["/srv/git", "/a: b/{x}/#\"q\"\\"] {
            let value: serde_yaml::Value = serde_yaml::from_str(&config(&demo(root))).unwrap();
            assert_eq!(value["upstream"]["cgi"]["root"], root);
            assert_eq!(value["listen"], "127.0.0.1:8080");
            assert_eq!(value["admin"], "[::1]:9901");
            assert_eq!(value["limits"][1]["per"], "repo");
        }
    }

    #[test]
    fn the_guide_names_what_is_there() {
        let plain = guide(&demo("/kept"), false);
        for part in [
            "http://127.0.0.1:8080/payments.git",
            "http://[::1]:9901/status.json",
            "stay in /kept",
        ] {
            assert!(plain.contains(part), "{part}");
        }
        assert!(!plain.contains('\x1b') && guide(&demo("/kept"), true).contains('\x1b'));
    }

    #[test]
    fn the_request_in_the_guide_is_well_formed() {
        let text = guide(&demo("/x"), false);
        let body = text
            .split("printf '")
            .nth(1)
            .and_then(|rest| rest.split('\'').next())
            .unwrap()
            .replace("\\n", "\n");
        let mut rest = body.as_str();
        let mut lines = Vec::new();
        while !rest.is_empty() {
            let length = usize::from_str_radix(&rest[..4], 16).unwrap().max(4);
            lines.push(&rest[4..length]);
            rest = &rest[length..];
        }
        assert_eq!(
            lines,
            [
                "command=fetch",
                "",
                &format!("want {}\n", "1".repeat(40)),
                "done\n",
                ""
            ]
        );
    }

    #[test]
    fn a_taken_address_is_told_with_the_way_out() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let error = free("--admin", listener.local_addr().unwrap()).unwrap_err();
        assert!(
            error.contains("something else listens") && error.contains("--admin 127.0.0.1:0"),
            "{error}"
        );
        assert_ne!(
            free("--listen", "127.0.0.1:0".parse().unwrap())
                .unwrap()
                .port(),
            0
        );
    }
}
