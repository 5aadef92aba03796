//! `mlx serve --hostfile` and `mlx worker` as programs: at random moments during answers a worker is killed or stopped, or its connection cut,
//! silent or damaged.
//! `MLX_TEST_SCALE=25` makes a long run.

mod workers_over_ssh;

use std::net::TcpListener;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use mlx_tests::divisible::with_layers;
use mlx_tests::proxy::{Fault, Proxy};
use mlx_tests::scale::cases;
use mlx_tests::server::{Server, events};
use mlx_tests::worker_process::WorkerProcess;
use mlx_tests::{Dice, model_folder};
use serde_json::{Value, json};
use tempfile::TempDir;

const MLX: &str = env!("CARGO_BIN_EXE_mlx");
const KEY: &str = "0123456789abcdef0123456789abcdef";

/// The time within which an answer ends, and a returned worker is used again.
const SOON: Duration = Duration::from_secs(30);

/// The faults: signals to a worker, and what happens to its connection.
const FAULTS: [&str; 5] = ["KILL", "STOP", "cut", "stall", "garbage"];

/// The prompts of the answers during which faults happen.
const PROMPTS: [&str; 4] = ["The waves", "The keeper", "A lamp", "Go"];

/// Tokens of the answers during which faults happen.
const LONG: usize = 300;

fn request(tokens: usize, stream: bool) -> Value {
    json!({
        "model": "tiny", "prompt": "The waves", "max_tokens": tokens, "temperature": 0,
        "ignore_eos": true, "stream": stream,
    })
}

fn answer(server: &Server) -> Value {
    let reply = server.post("/v1/completions", &request(30, false));
    assert_eq!(reply.status, 200, "{}", reply.body);
    reply.body["choices"][0]["text"].clone()
}

/// Streams long answers to all prompts while `fault` runs. Returns their texts.
pub(crate) fn streams_during(server: &Server, fault: impl FnOnce()) -> Vec<String> {
    let stream = |prompt: &str| {
        let mut request = request(LONG, true);
        request["prompt"] = prompt.into();
        let chunks = server.stream("/v1/completions", &request);
        let error = chunks.iter().find(|chunk| !chunk["error"].is_null());
        assert_eq!(error, None, "{}", server.log());
        events(&chunks)
    };
    thread::scope(|scope| {
        let streams = PROMPTS.map(|prompt| scope.spawn(move || stream(prompt)));
        server.wait_for("mlx_requests_running", PROMPTS.len() as u64);
        fault();
        streams.map(|stream| stream.join().expect("a stream")).to_vec()
    })
}

pub(crate) fn wait_until_ready(server: &Server) {
    let begun = Instant::now();
    while server.get("/ready").status != 200 {
        assert!(begun.elapsed() < SOON, "the engine does not use the returned worker");
        thread::sleep(Duration::from_millis(50));
    }
}

fn wait_until_away(server: &Server) {
    let begun = Instant::now();
    while server.get("/ready").status == 200 {
        assert!(begun.elapsed() < SOON, "the engine does not notice the lost worker");
        thread::sleep(Duration::from_millis(50));
    }
}

/// Returns a model of four layers for long answers, with the key of its workers.
pub(crate) fn long_model() -> TempDir {
    let folder = with_layers("llama-f32", 4);
    let config = folder.path().join("config.json");
    let mut object: Value = serde_json::from_slice(&std::fs::read(&config).expect("a config")).expect("json");
    object["max_position_embeddings"] = 8192.into();
    std::fs::write(&config, object.to_string()).expect("it can be written");
    std::fs::write(folder.path().join("key"), KEY).expect("it can be written");
    folder
}

/// Starts `mlx serve` with a worker on this port.
fn serve(folder: &Path, port: &str, more: &[&str]) -> Server {
    let hosts = json!([{ "ips": ["127.0.0.1"] }, { "ips": [format!("localhost:{port}")] }]);
    std::fs::write(folder.join("hosts.json"), hosts.to_string()).expect("it can be written");
    let path = |name: &str| folder.join(name).to_str().expect("utf-8").to_owned();
    let (hosts, key) = (path("hosts.json"), path("key"));
    let flags =
        ["--hostfile", &hosts, "--worker-key-file", &key, "--worker-timeout", "2", "--speculate", "off"];
    Server::start_on(&[MLX, "serve"], folder, &[&flags[..], more].concat())
}

/// Checks that both `/ready` and a request report this worker as lost.
fn expect_away(server: &Server, port: &str) {
    let asked = [server.get("/ready"), server.post("/v1/completions", &request(5, false))];
    for refused in asked {
        assert_eq!((refused.status, &refused.body["error"]["code"]), (503, &json!("worker_unavailable")));
        assert_eq!(refused.find("retry-after"), Some("1"));
        let message = refused.body["error"]["message"].as_str().expect("a text");
        assert!(message.contains(&format!("rank 1 (localhost:{port})")), "{message}");
    }
}

fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").and_then(|it| it.local_addr()).expect("a free port").port()
}

#[test]
fn the_server_loads_the_model_when_its_worker_is_there_and_says_until_then_that_it_is_away() {
    let folder = long_model();
    let port = free_port().to_string();
    let server = serve(folder.path(), &port, &[]);
    assert_eq!(server.get("/ready").status, 503, "no model is loaded yet");
    let begun = Instant::now();
    while server.get("/ready").body["error"]["code"] != "worker_unavailable" {
        assert!(begun.elapsed() < SOON, "{}", server.log());
        thread::sleep(Duration::from_millis(50));
    }
    expect_away(&server, &port);
    let worker = WorkerProcess::start(MLX, folder.path(), &port);
    wait_until_ready(&server);
    assert_ne!(answer(&server), "");
    drop(worker);
    wait_until_away(&server);
    expect_away(&server, &port);
}

#[test]
fn streams_continue_after_a_worker_was_killed_or_stopped_or_its_connection_cut() {
    endure("pipeline");
}

#[test]
fn so_they_do_where_each_machine_has_a_part_of_every_layer() {
    endure("tensor");
}

fn endure(how: &str) {
    let folder = long_model();
    let mut worker = WorkerProcess::start(MLX, folder.path(), "0");
    let proxy = Proxy::start(([127, 0, 0, 1], worker.port.parse().expect("a port")).into());
    let port = proxy.address.port().to_string();
    let server = serve(folder.path(), &port, &["--parallel", how, "--exact", "--max-running", "4"]);
    wait_until_ready(&server);
    let begun = Instant::now();
    let expected = streams_during(&server, || ());
    let duration = begun.elapsed();
    let rounds = cases(FAULTS.len());
    let mut dice = Dice::new(how.len() as u64);
    for round in 0..rounds {
        let kind = FAULTS[round % FAULTS.len()];
        let pause = duration.mul_f64(dice.below(800) as f64 / 1000.0);
        let fault = || {
            thread::sleep(pause);
            match kind {
                "cut" => proxy.set(Fault::Cut),
                "stall" => proxy.set(Fault::Stall),
                "garbage" => proxy.set(Fault::Garbage),
                "STOP" => worker.signal_rank("STOP"),
                signal => worker.signal(signal),
            }
            wait_until_away(&server);
            expect_away(&server, &port);
            match kind {
                "cut" | "stall" | "garbage" => proxy.set(Fault::None),
                // The worker ends the stopped process.
                "STOP" => {}
                _ => worker = WorkerProcess::start(MLX, folder.path(), &worker.port),
            }
            wait_until_ready(&server);
        };
        let found = streams_during(&server, fault);
        assert_eq!(found, expected, "{how}, round {round}, {kind} after {pause:?}: {}", server.log());
    }
    server.wait_for("mlx_requests_running", 0);
    assert!(
        server.figure("mlx_requests_resumed_total") > 0,
        "{how}: no fault was in the middle of an answer"
    );
    let lost = r#"mlx_engine_restarts_total{model="tiny",reason="worker"}"#;
    let page = server.metrics();
    let count = page.lines().find_map(|line| line.strip_prefix(lost)?.trim().parse::<usize>().ok());
    assert_eq!(count, Some(rounds), "{page}");
    let cause = format!(r#""cause":"rank 1 (localhost:{port})"#);
    assert_eq!(server.log().matches(&cause).count(), rounds, "{}", server.log());
}

#[test]
fn flags_of_workers_need_a_hosts_file_and_variables_are_ignored_without_one() {
    let folder = model_folder("llama-f32");
    let run = |arguments: &[&str], variable: Option<&str>| {
        let mut command = Command::new(MLX);
        command.args(["generate", "--prompt-ids", "1,9,30", "--max-tokens", "1", "-m"]).arg(&folder);
        command.args(arguments).envs(variable.map(|value| ("MLX_WORKER_KEY_FILE", value)));
        let output = command.stdin(Stdio::null()).output().expect("it starts");
        (output.status.code(), String::from_utf8(output.stderr).expect("text"))
    };
    for flag in ["--worker-key-file", "--worker-timeout"] {
        let (code, error) = run(&[flag, "10"], None);
        assert!(code == Some(2) && error.contains(&format!("{flag} is for")), "{code:?}: {error}");
    }
    let (code, error) = run(&[], Some("no-such-file"));
    assert_eq!(code, Some(0), "{error}");
}

#[test]
fn a_model_is_divided_among_no_more_machines_than_it_has_layers() {
    for ranks in ["1", "3", "3000000000"] {
        let output = Command::new(MLX)
            .args(["inspect", "--ranks", ranks, "-m"])
            .arg(model_folder("llama-f32"))
            .output()
            .expect("it starts");
        let error = String::from_utf8(output.stderr).expect("text");
        assert!(error.contains(&format!("--ranks is {ranks}; a model of 2 layers")), "{error}");
    }
    // Each layer can still be split over this many machines.
    let inspect = |more: &[&str]| {
        let mut command = Command::new(MLX);
        command.args(["inspect", "--ranks", "4", "-m"]).arg(model_folder("llama-f32")).args(more);
        let output = command.output().expect("it starts");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).expect("text")
    };
    let found: Value = serde_json::from_str(&inspect(&["--json"])).expect("json");
    let found = &found["distributed"];
    let refusal = found["refusal"].as_str().expect("a text");
    assert!(refusal.contains("--ranks is 4; a model of 2 layers"), "{refusal}");
    assert_eq!(found["tensor"]["ranks"].as_array().map(Vec::len), Some(4), "{found}");
    let text = inspect(&[]);
    assert!(text.contains("layers cannot be split: --ranks is 4"), "{text}");
    assert!(text.contains("with tensor"), "{text}");
}
