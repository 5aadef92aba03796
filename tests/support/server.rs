//! Starts a server for a test, with a minimal client. Every error panics.

use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use mlx_core::backend::DEVICE;
use serde_json::Value;
use ureq::Agent;

use crate::skipped::needed;
use crate::{model_copy, model_folder};

/// The variables of the tests' environment that a server gets: the device, and the place of the engines.
const INHERITED: [&str; 2] = [DEVICE, "MLX_IN_PROCESS"];

/// A running server; it ends with the test.
pub struct Server {
    child: Child,
    address: String,
    agent: Agent,
    log: Arc<Mutex<String>>,
}

/// A complete response.
pub struct Reply {
    /// The status code.
    pub status: u16,
    headers: ureq::http::HeaderMap,
    /// The body, if it is JSON.
    pub body: Value,
}

impl Reply {
    /// Returns a header, which must be present.
    ///
    /// # Panics
    /// If it is missing.
    pub fn header(&self, name: &str) -> &str {
        self.headers[name].to_str().expect("text")
    }
}

impl Reply {
    /// Returns a header if it is present.
    pub fn find(&self, name: &str) -> Option<&str> {
        self.headers.get(name).and_then(|value| value.to_str().ok())
    }
}

impl Server {
    /// Serves a tiny checkpoint under the name `tiny`. `program` is the command that starts the server.
    ///
    /// # Panics
    /// If the server does not start.
    pub fn start(program: &[&str], arguments: &[&str]) -> Self {
        Self::start_on(program, &model_folder("llama-f32"), arguments)
    }

    /// Serves a tiny checkpoint with a long context, so that an answer takes a while.
    ///
    /// # Panics
    /// If the server does not start.
    pub fn start_slow(program: &[&str], arguments: &[&str]) -> Self {
        let copy = model_copy("llama-f32");
        let path = copy.path().join("config.json");
        let mut config: Value = serde_json::from_slice(&std::fs::read(&path).expect("a file")).expect("json");
        config["max_position_embeddings"] = 8192.into();
        std::fs::write(&path, config.to_string()).expect("it can be written");
        let server = Self::start_on(program, copy.path(), &[arguments, &["--preload"]].concat());
        while server.get("/ready").status != 200 {
            std::thread::sleep(Duration::from_millis(20));
        }
        server
    }

    /// Serves this folder under the name `tiny`.
    ///
    /// # Panics
    /// If the server does not start.
    pub fn start_on(program: &[&str], folder: &Path, arguments: &[&str]) -> Self {
        let mut command = Command::new(program[0]);
        command.args(&program[1..]);
        // Remove the user's settings.
        for (name, _) in std::env::vars_os() {
            if name.to_string_lossy().starts_with("MLX_") && INHERITED.iter().all(|it| name != *it) {
                command.env_remove(name);
            }
        }
        // Only the models of the test.
        command.env("MLX_ALL_MODELS", "false");
        let mut child = command
            .args(["--port", "0", "-m", &format!("tiny={}", folder.display())])
            .args(arguments)
            .stderr(Stdio::piped())
            .spawn()
            .expect("the program starts");
        let mut log = BufReader::new(child.stderr.take().expect("a pipe"));
        let address = loop {
            let mut line = String::new();
            assert_ne!(log.read_line(&mut line).expect("a log"), 0, "the server ended");
            let object: Value = serde_json::from_str(&line).unwrap_or_else(|_| panic!("{line}"));
            if object["message"] == "listening" {
                break object["address"].as_str().expect("an address").to_owned();
            }
        };
        let lines = Arc::new(Mutex::new(String::new()));
        let log_lines = Arc::clone(&lines);
        // Read the log to its end, so that a full pipe does not block the server.
        std::thread::spawn(move || {
            for line in log.lines().map_while(Result::ok) {
                *log_lines.lock().expect("no holder of the lock panics") += &(line + "\n");
            }
        });
        let agent = Agent::config_builder().http_status_as_error(false).build().into();
        Self { child, address, agent, log: lines }
    }

    /// Returns the server's address, as `ADDRESS:PORT`.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// Returns the ids of the server's child processes.
    ///
    /// # Panics
    /// If they cannot be listed.
    pub fn children(&self) -> Vec<u32> {
        let id = self.child.id().to_string();
        let listed = Command::new("pgrep").args(["-P", &id]).output().expect("pgrep runs").stdout;
        String::from_utf8_lossy(&listed).lines().filter_map(|line| line.parse().ok()).collect()
    }

    /// Returns the peak memory of the server in bytes. Checks of it are skipped without /proc.
    pub fn peak_memory(&self) -> Option<u64> {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).ok();
        let status = needed(status, "/proc/PID/status")?;
        let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
        let kilobytes = peak.and_then(|peak| peak.trim().strip_suffix(" kB")?.parse::<u64>().ok());
        needed(kilobytes, "VmHWM in /proc/PID/status").map(|kilobytes| kilobytes * 1024)
    }

    /// Sends a GET request.
    ///
    /// # Panics
    /// If the request fails.
    pub fn get(&self, path: &str) -> Reply {
        read(self.agent.get(self.url(path)).call())
    }

    /// Sends a POST request.
    ///
    /// # Panics
    /// If the request fails.
    pub fn post(&self, path: &str, request: &Value) -> Reply {
        read(self.agent.post(self.url(path)).send(request.to_string()))
    }

    /// Sends a POST request with this API key.
    ///
    /// # Panics
    /// If the request fails.
    pub fn post_as(&self, key: &str, path: &str, request: &Value) -> Reply {
        let request = self.agent.post(self.url(path)).header("x-api-key", key).send(request.to_string());
        read(request)
    }

    /// Sends a POST request with this body and returns the response text.
    ///
    /// # Panics
    /// If the request fails.
    pub fn exchange(&self, path: &str, body: &str) -> String {
        let mut response = self.agent.post(self.url(path)).send(body).expect("an answer");
        response.body_mut().read_to_string().expect("text")
    }

    /// Sends a GET request and returns the response text.
    ///
    /// # Panics
    /// If the request fails.
    pub fn text(&self, path: &str) -> String {
        let mut response = self.agent.get(self.url(path)).call().expect("an answer");
        response.body_mut().read_to_string().expect("text")
    }

    /// Returns the chunks of a streamed answer.
    ///
    /// # Panics
    /// If the request fails.
    pub fn stream(&self, path: &str, request: &Value) -> Vec<Value> {
        let mut response = self.agent.post(self.url(path)).send(request.to_string()).expect("an answer");
        let text = response.body_mut().read_to_string().expect("text");
        let data: Vec<&str> = text.lines().filter_map(|line| line.strip_prefix("data: ")).collect();
        let (last, chunks) = data.split_last().expect("events");
        assert_eq!(*last, "[DONE]");
        chunks.iter().map(|chunk| serde_json::from_str(chunk).expect("json")).collect()
    }

    /// Returns the events of a streamed answer that ends without `[DONE]`, as the lines of the stream and as objects.
    ///
    /// # Panics
    /// If the request fails.
    pub fn named_events(&self, path: &str, request: &Value) -> (String, Vec<Value>) {
        named(self.agent.post(self.url(path)).send(request.to_string()))
    }

    /// Returns the events of such an answer to a request with this API key.
    ///
    /// # Panics
    /// If the request fails.
    pub fn events_as(&self, key: &str, path: &str, request: &Value) -> Vec<Value> {
        named(self.agent.post(self.url(path)).header("x-api-key", key).send(request.to_string())).1
    }

    /// Returns the events of a stream that a GET request opens.
    ///
    /// # Panics
    /// If the request fails.
    pub fn get_events(&self, path: &str) -> (String, Vec<Value>) {
        named(self.agent.get(self.url(path)).call())
    }

    /// Sends a DELETE request.
    ///
    /// # Panics
    /// If the request fails.
    pub fn delete(&self, path: &str) -> Reply {
        read(self.agent.delete(self.url(path)).call())
    }

    /// Sends a request with these headers.
    ///
    /// # Panics
    /// If the request fails.
    pub fn send(&self, method: &str, path: &str, headers: &[(&str, &str)], request: &Value) -> Reply {
        let body = if request.is_null() { String::new() } else { request.to_string() };
        self.send_text(method, path, headers, &body)
    }

    /// Sends a request with these headers and this body.
    ///
    /// # Panics
    /// If the request fails.
    pub fn send_text(&self, method: &str, path: &str, headers: &[(&str, &str)], body: &str) -> Reply {
        let builder = ureq::http::Request::builder().method(method).uri(self.url(path));
        let builder = headers.iter().fold(builder, |builder, (name, value)| builder.header(*name, *value));
        read(self.agent.run(builder.body(body.to_owned()).expect("a request")))
    }

    /// Sends a form with a file and other parts. Returns the status and the text of the response.
    ///
    /// # Panics
    /// If the request fails.
    pub fn form(&self, path: &str, file: Option<&[u8]>, parts: &[(&str, &str)]) -> (u16, String) {
        const BOUNDARY: &str = "a-boundary-of-a-test";
        let head = |name: &str| format!("--{BOUNDARY}\r\nContent-Disposition: form-data; name=\"{name}\"");
        let mut body = Vec::new();
        for (name, text) in parts {
            body.extend(format!("{}\r\n\r\n{text}\r\n", head(name)).bytes());
        }
        if let Some(file) = file {
            body.extend(format!("{}; filename=\"talk.wav\"\r\n\r\n", head("file")).bytes());
            body.extend(file);
            body.extend(b"\r\n");
        }
        body.extend(format!("--{BOUNDARY}--\r\n").bytes());
        let request = self.agent.post(self.url(path));
        let request = request.content_type(format!("multipart/form-data; boundary={BOUNDARY}"));
        let mut response = request.send(body.as_slice()).expect("an answer");
        (response.status().as_u16(), response.body_mut().read_to_string().expect("text"))
    }

    /// Opens a connection and sends nothing.
    ///
    /// # Panics
    /// If the connection fails.
    pub fn connect_bare(&self) -> TcpStream {
        TcpStream::connect(&self.address).expect("it listens")
    }

    /// Opens a connection and sends a request.
    ///
    /// # Panics
    /// If the connection fails.
    pub fn connect(&self, path: &str, request: &Value) -> TcpStream {
        let mut connection = self.connect_bare();
        let body = request.to_string();
        let (host, length) = (&self.address, body.len());
        write!(connection, "POST {path} HTTP/1.1\r\nHost: {host}\r\nContent-Length: {length}\r\n\r\n{body}")
            .expect("it is sent");
        connection
    }

    /// Returns the page of metrics.
    ///
    /// # Panics
    /// If the request fails.
    pub fn metrics(&self) -> String {
        self.text("/metrics")
    }

    /// Returns a metric of the model `tiny`.
    ///
    /// # Panics
    /// If the metric is missing.
    pub fn figure(&self, name: &str) -> u64 {
        let page = self.metrics();
        let label = format!("{name}{{model=\"tiny\"}} ");
        let line = page.lines().find_map(|line| line.strip_prefix(&label));
        line.and_then(|number| number.parse().ok()).unwrap_or_else(|| panic!("{name} is missing: {page}"))
    }

    /// Waits until a metric has this value.
    ///
    /// # Panics
    /// If it does not reach the value in time.
    pub fn wait_for(&self, name: &str, value: u64) {
        let begin = Instant::now();
        while self.figure(name) != value {
            assert!(begin.elapsed() < Duration::from_secs(30), "{name} is not {value}: {}", self.metrics());
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Returns the log of the server since it started to listen.
    ///
    /// # Panics
    /// If a thread panicked while it held the log.
    pub fn log(&self) -> String {
        self.log.lock().expect("no holder of the lock panics").clone()
    }

    /// Sends SIGTERM.
    ///
    /// # Panics
    /// If the signal cannot be sent.
    pub fn terminate(&self) {
        self.signal("TERM");
    }

    /// Sends a signal by its name.
    ///
    /// # Panics
    /// If the signal cannot be sent.
    pub fn signal(&self, name: &str) {
        let id = self.child.id().to_string();
        assert!(Command::new("kill").args(["-s", name, &id]).status().expect("kill runs").success());
    }

    /// Waits for the server to exit.
    ///
    /// # Panics
    /// If waiting fails.
    pub fn wait(&mut self) -> ExitStatus {
        self.child.wait().expect("it ends")
    }

    fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

fn named(response: Result<ureq::http::Response<ureq::Body>, ureq::Error>) -> (String, Vec<Value>) {
    let text = response.expect("an answer").body_mut().read_to_string().expect("text");
    let data = text.lines().filter_map(|line| line.strip_prefix("data: "));
    let events = data.map(|data| serde_json::from_str(data).expect("json")).collect();
    (text, events)
}

fn read(response: Result<ureq::http::Response<ureq::Body>, ureq::Error>) -> Reply {
    let mut response = response.expect("an answer");
    let text = response.body_mut().read_to_string().expect("text");
    let body = serde_json::from_str(&text).unwrap_or(Value::Null);
    Reply { status: response.status().as_u16(), headers: response.headers().clone(), body }
}

/// Returns the text of all chunks of a completion.
pub fn events(chunks: &[Value]) -> String {
    chunks.iter().filter_map(|chunk| chunk["choices"][0]["text"].as_str()).collect()
}
