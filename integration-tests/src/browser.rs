//! A real Chromium, driven by a script (`browser/driver.mjs`) that does what the test says and nothing else.

use std::{
    io::{BufRead, BufReader, Write},
    net::SocketAddr,
    path::Path,
    process::{ChildStdin, ChildStdout, Command, Stdio},
};

use serde_json::{Value, json};

use crate::{
    process::{Daemon, find_command},
    wait::until,
};

/// A browser with one page open.
pub struct Browser {
    // Closed first: the driver ends with its input, and its browser with it.
    input: ChildStdin,
    output: BufReader<ChildStdout>,
    _driver: Daemon,
}

impl Browser {
    /// Opens `path` of the server at `address`, in a window of this width.
    pub fn open(address: SocketAddr, path: &str, scheme: &str, width: u32) -> Browser {
        let here = Path::new(env!("CARGO_MANIFEST_DIR"));
        let tools = here.join("../.tools/browser");
        assert!(
            tools.join("installed.json").is_file(),
            "the browser's driver is not installed: run `tools/install test` (`make test` does)"
        );
        let mut driver = Command::new(find_command("node"))
            .arg(here.join("browser/driver.mjs"))
            .arg(tools)
            .arg(find_command("chromium"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("node runs");
        let mut browser = Browser {
            input: driver.stdin.take().expect("piped"),
            output: BufReader::new(driver.stdout.take().expect("piped")),
            _driver: Daemon::new(driver),
        };
        browser.visit(address, path, scheme, width);
        browser
    }

    /// The same browser with nothing kept of what it had open.
    pub fn visit(&mut self, address: SocketAddr, path: &str, scheme: &str, width: u32) {
        let url = format!("http://{address}{path}");
        self.tell(
            json!({"command": "open", "url": url, "scheme": scheme, "width": width, "height": 900}),
        );
    }

    /// Does what `browser/driver.mjs` has a command for.
    #[track_caller]
    pub fn tell(&mut self, command: Value) -> Value {
        writeln!(self.input, "{command}").expect("the driver lives");
        let mut line = String::new();
        self.output.read_line(&mut line).expect("the driver lives");
        let answer: Value = serde_json::from_str(&line)
            .unwrap_or_else(|e| panic!("{command}: the driver said {line:?}: {e}"));
        assert!(answer["error"].is_null(), "{command}: {}", answer["error"]);
        answer["value"].clone()
    }

    /// The value of an expression.
    #[track_caller]
    pub fn eval(&mut self, script: &str) -> Value {
        self.tell(json!({"command": "eval", "script": script}))
    }

    /// Waits until an expression is true.
    #[track_caller]
    pub fn until(&mut self, script: &str) {
        until(&format!("{script} in the browser"), || {
            (self.eval(script) == true).then_some(())
        });
    }

    /// The texts of all elements that a selector finds.
    #[track_caller]
    pub fn texts(&mut self, selector: &str) -> Vec<String> {
        let script = format!(
            "[...document.querySelectorAll({})].map((e) => e.textContent)",
            json!(selector)
        );
        let texts = self.eval(&script);
        serde_json::from_value(texts).expect("a list of texts")
    }

    /// The text of the only element that a selector finds.
    #[track_caller]
    pub fn text(&mut self, selector: &str) -> String {
        let mut texts = self.texts(selector);
        assert_eq!(texts.len(), 1, "{selector}");
        texts.remove(0)
    }

    /// Presses a key, as Playwright names it.
    pub fn press(&mut self, key: &str) {
        self.tell(json!({"command": "press", "key": key}));
    }

    /// Puts the pointer over an element.
    pub fn point(&mut self, selector: &str) {
        self.tell(json!({"command": "point", "selector": selector}));
    }

    /// What axe-core finds wrong with the page as it is.
    pub fn axe(&mut self) -> Vec<String> {
        let found = self.tell(json!({"command": "axe"}));
        serde_json::from_value(found).expect("a list of texts")
    }

    /// Asserts that nothing was written to the console and nobody but `address` was asked for anything.
    #[track_caller]
    pub fn assert_quiet(&mut self, address: SocketAddr) {
        let seen = self.tell(json!({"command": "seen"}));
        assert_eq!(seen["console"], json!([]));
        let own = format!("http://{address}/");
        for request in seen["requests"].as_array().expect("a list") {
            let url = request.as_str().expect("a URL");
            assert!(url.starts_with(&own) || url.starts_with("data:"), "{url}");
        }
    }
}
