//! A real browser: headless Chromium, driven over WebDriver, which is JSON over HTTP on loopback.
//!
//! Rejected: a client library for it. What is needed of the protocol is a dozen calls, each a POST
//! to a local server, and a library brings a TLS stack and a second HTTP client.

use crate::TIMEOUT;
use crate::process::Process;
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::Command;
use std::sync::Mutex;
use std::time::{Duration, Instant};
use tokio::time::sleep;

/// Between two looks at a page that cannot be watched.
const POLL_INTERVAL: Duration = Duration::from_millis(100);
/// What a browser says when interfaces of the machine come or go.
const NETWORK_CHANGED: &str = "ERR_NETWORK_CHANGED";
/// How often it may be sent to an address.
const MAX_NAVIGATIONS: usize = 20;
/// Why a click finds nothing to click, though it will.
const NOT_CLICKABLE_YET: [&str; 3] =
    ["element not interactable", "stale element reference", "element click intercepted"];
/// How WebDriver marks an element in JSON.
const ELEMENT: &str = "element-6066-11e4-a52e-4f735466cecf";

pub struct Browser {
    session: String,
    port: u16,
    /// Problems that were heard of and not asked for yet.
    console_messages: Mutex<Vec<String>>,
    _driver: Process,
}

/// A key that is no letter, as WebDriver writes it.
pub mod key {
    pub const TAB: &str = "\u{e004}";
    pub const ENTER: &str = "\u{e007}";
    pub const BACKSPACE: &str = "\u{e003}";
    pub const ESCAPE: &str = "\u{e00c}";
    pub const DOWN: &str = "\u{e015}";
    pub const RIGHT: &str = "\u{e014}";
    pub const SHIFT: &str = "\u{e008}";
    pub const CONTROL: &str = "\u{e009}";
    pub const PAGE_UP: &str = "\u{e00e}";
}

impl Browser {
    /// Starts one. Nothing where there is no Chromium and that may be, see [`crate::skip`].
    pub async fn open(log: &Path) -> Option<Browser> {
        for program in ["chromium", "chromedriver"] {
            if Command::new(program).arg("--version").output().is_err() {
                crate::skip(&format!("there is no {program}"));
                return None;
            }
        }
        let taken = TcpListener::bind("127.0.0.1:0").expect("loopback has a port");
        let port = taken.local_addr().expect("it has an address").port();
        drop(taken);
        let mut command = Command::new("chromedriver");
        command.arg(format!("--port={port}"));
        let driver = Process::start(command, log);
        let mut browser = Browser {
            session: String::new(),
            port,
            console_messages: Mutex::default(),
            _driver: driver,
        };
        browser.until("the driver listens", |b| b.call("GET", "/status", None).ok()).await;
        let options = json!({ "capabilities": { "alwaysMatch": {
            // A cell's certificates are of its own authority, which no browser knows.
            "acceptInsecureCerts": true,
            "goog:loggingPrefs": { "browser": "ALL" },
            "goog:chromeOptions": { "args": [
                "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
                "--hide-scrollbars", "--force-color-profile=srgb",
            ] },
        } } });
        let made = browser.call("POST", "/session", Some(&options)).expect("a session");
        browser.session = made["sessionId"].as_str().expect("its id").to_owned();
        Some(browser)
    }

    /// One request to the driver, below the session once there is one.
    fn call(&self, method: &str, path: &str, body: Option<&Value>) -> Result<Value, String> {
        let path = match self.session.as_str() {
            "" => path.to_owned(),
            session => format!("/session/{session}{path}"),
        };
        let text = body.map(Value::to_string).unwrap_or_default();
        let mut stream = TcpStream::connect(("127.0.0.1", self.port)).map_err(|e| e.to_string())?;
        let failed = |why: std::io::Error| format!("{method} {path}: {why}");
        stream.set_read_timeout(Some(TIMEOUT)).map_err(failed)?;
        let head = format!(
            "{method} {path} HTTP/1.1\r\nHost: 127.0.0.1:{}\r\nConnection: close\r\n\
             Content-Type: application/json\r\nContent-Length: {}\r\n\r\n{text}",
            self.port,
            text.len()
        );
        stream.write_all(head.as_bytes()).map_err(failed)?;
        let (status, body) = read(stream).map_err(failed)?;
        let body: Value = serde_json::from_slice(&body).map_err(|e| format!("{path}: {e}"))?;
        if status.contains(" 200 ") {
            Ok(body["value"].clone())
        } else {
            Err(format!("{method} {path}: {}", body["value"]))
        }
    }

    fn post(&self, path: &str, body: Value) -> Value {
        self.call("POST", path, Some(&body)).expect("the driver does as told")
    }

    /// A command of the browser's own protocol.
    pub fn devtools(&self, command: &str, parameters: Value) -> Value {
        self.post("/goog/cdp/execute", json!({ "cmd": command, "params": parameters }))
    }

    /// Width and height of the page, and whether it is a phone's.
    pub fn resize(&self, width: u32, height: u32) {
        let screen = json!({
            "width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 500,
        });
        self.devtools("Emulation.setDeviceMetricsOverride", screen);
    }

    /// `light` or `dark`, as the system would say.
    pub fn set_color_scheme(&self, scheme: &str) {
        let features = json!([{ "name": "prefers-color-scheme", "value": scheme }]);
        self.devtools("Emulation.setEmulatedMedia", json!({ "features": features }));
    }

    /// Goes to an address; the page has been loaded when this returns. A browser drops what it is
    /// loading when a network interface comes or goes anywhere on the machine, as tests with hosts
    /// of their own make them do: then it is sent there again.
    pub fn navigate(&self, url: &str) {
        for _ in 0..MAX_NAVIGATIONS {
            let went = self.call("POST", "/url", Some(&json!({ "url": url })));
            let loaded = "return document.readyState === 'complete' \
                          && !document.URL.startsWith('chrome-error') \
                          && !!document.querySelector('main')";
            match went {
                Ok(_) if !self.read_console() && self.run(loaded) == true => return,
                Ok(_) => {}
                Err(why) => assert!(why.contains(NETWORK_CHANGED), "{why}"),
            }
        }
        panic!("{url}: not loaded\n{}", self.failure_details());
    }

    /// What a piece of JavaScript returns.
    #[must_use]
    pub fn run(&self, script: &str) -> Value {
        self.post("/execute/sync", json!({ "script": script, "args": [] }))
    }

    /// What a promise in the page becomes; it is asked for once.
    #[must_use]
    pub fn await_promise(&self, promise: &str) -> Value {
        let script = format!("{promise}.then(arguments[arguments.length - 1])");
        self.post("/execute/async", json!({ "script": script, "args": [] }))
    }

    /// The text of the page as a person sees it.
    #[must_use]
    pub fn text(&self) -> String {
        self.run("return document.body.innerText").as_str().unwrap_or_default().to_owned()
    }

    /// Looks until there is something.
    pub async fn until<T>(&self, what: &str, mut look: impl FnMut(&Browser) -> Option<T>) -> T {
        let begin = Instant::now();
        loop {
            if let Some(found) = look(self) {
                return found;
            }
            assert!(
                begin.elapsed() < TIMEOUT,
                "{what}: not so in time\n{}",
                self.failure_details()
            );
            sleep(POLL_INTERVAL).await;
        }
    }

    fn failure_details(&self) -> String {
        match self.session.as_str() {
            "" => String::new(),
            _ => format!("{}\n{:?}", self.text(), self.problems()),
        }
    }

    /// Waits until the page says so.
    pub async fn wait_for_text(&self, words: &str) {
        self.until(words, |browser| browser.text().contains(words).then_some(())).await;
    }

    /// Waits until a script returns true.
    pub async fn wait_for_script(&self, script: &str) {
        self.until(script, |browser| (browser.run(script) == true).then_some(())).await;
    }

    /// Clicks what a CSS selector finds first, as a person would: once it is there to be clicked. A
    /// dialog is in the page before it is open, and what a page draws anew is another element.
    pub async fn click(&self, selector: &str) {
        let find = json!({ "using": "css selector", "value": selector });
        let clicked = |browser: &Browser| {
            let found = browser.call("POST", "/element", Some(&find)).ok()?;
            let id = found[ELEMENT].as_str().expect("an element has an id");
            match browser.call("POST", &format!("/element/{id}/click"), Some(&json!({}))) {
                Ok(_) => Some(()),
                Err(why) => {
                    assert!(NOT_CLICKABLE_YET.iter().any(|reason| why.contains(reason)), "{why}");
                    None
                }
            }
        };
        self.until(selector, clicked).await;
    }

    /// Presses keys, one after the other, wherever the focus is.
    pub fn press(&self, keys: &[&str]) {
        let strokes: Vec<Value> = keys
            .iter()
            .flat_map(|key| {
                [
                    json!({ "type": "keyDown", "value": key }),
                    json!({ "type": "keyUp", "value": key }),
                ]
            })
            .collect();
        let keyboard = json!({ "type": "key", "id": "keyboard", "actions": strokes });
        self.post("/actions", json!({ "actions": [keyboard] }));
    }

    /// Presses a key while another is held.
    pub fn press_with(&self, held: &str, key: &str) {
        let stroke = |kind: &str, value: &str| json!({ "type": kind, "value": value });
        let strokes = [("keyDown", held), ("keyDown", key), ("keyUp", key), ("keyUp", held)];
        let strokes: Vec<Value> = strokes.map(|(kind, value)| stroke(kind, value)).into();
        let keyboard = json!({ "type": "key", "id": "keyboard", "actions": strokes });
        self.post("/actions", json!({ "actions": [keyboard] }));
    }

    /// Types a text, wherever the focus is.
    pub fn type_text(&self, text: &str) {
        let letters: Vec<String> = text.chars().map(String::from).collect();
        let letters: Vec<&str> = letters.iter().map(String::as_str).collect();
        self.press(&letters);
    }

    /// What is wrong with the page, as the browser's console has it, since the last look.
    #[must_use]
    pub fn problems(&self) -> Vec<String> {
        self.read_console();
        std::mem::take(&mut *self.console_messages.lock().expect("nobody panicked"))
    }

    /// Takes in what the browser's console got; says whether a change of the machine's network got
    /// in the way.
    fn read_console(&self) -> bool {
        let entries = self.post("/se/log", json!({ "type": "browser" }));
        let entries = entries.as_array().cloned().unwrap_or_default();
        let bad =
            entries.iter().filter(|e| matches!(e["level"].as_str(), Some("SEVERE" | "WARNING")));
        let bad = bad.map(|entry| entry["message"].as_str().unwrap_or_default().to_owned());
        let (outside, own): (Vec<String>, Vec<String>) =
            bad.partition(|message| message.contains(NETWORK_CHANGED));
        self.console_messages.lock().expect("nobody panicked").extend(own);
        !outside.is_empty()
    }

    /// The page as a PNG file.
    pub fn screenshot(&self, file: &Path) {
        let taken = self.call("GET", "/screenshot", None).expect("a picture");
        let bytes = decode(taken.as_str().unwrap_or_default());
        assert!(bytes.starts_with(b"\x89PNG"), "no picture of {}", file.display());
        std::fs::write(file, bytes).expect("the picture can be kept");
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        // The driver ends its browser with the session; both are gone either way.
        let _ = self.call("DELETE", "", None);
    }
}

/// First line and body of an answer. The driver does not close connections when asked to.
fn read(stream: TcpStream) -> std::io::Result<(String, Vec<u8>)> {
    let mut reader = BufReader::new(stream);
    let mut status = String::new();
    reader.read_line(&mut status)?;
    let (mut length, mut line) = (0, String::new());
    while reader.read_line(&mut line)? > 2 {
        let (name, value) = line.split_once(':').unwrap_or_default();
        if name.eq_ignore_ascii_case("content-length") {
            length = value.trim().parse().unwrap_or(0);
        }
        line.clear();
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body)?;
    Ok((status, body))
}

/// Bytes from base64.
fn decode(text: &str) -> Vec<u8> {
    let mut out = Vec::with_capacity(text.len() / 4 * 3);
    let (mut held, mut bits) = (0u32, 0u32);
    for byte in text.bytes() {
        let value = match byte {
            b'A'..=b'Z' => byte - b'A',
            b'a'..=b'z' => byte - b'a' + 26,
            b'0'..=b'9' => byte - b'0' + 52,
            b'+' => 62,
            b'/' => 63,
            _ => continue,
        };
        held = (held << 6) | u32::from(value);
        bits += 6;
        if bits >= 8 {
            bits -= 8;
            out.push((held >> bits) as u8);
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base64_is_read() {
        assert_eq!(decode("aGVsbG8="), b"hello");
        assert_eq!(decode("aGVsbG8h"), b"hello!");
        assert_eq!(decode("/+8="), [0xff, 0xef]);
    }
}
