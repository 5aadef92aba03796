//! `mlx serve --hostfile` and `mlx worker` as programs: a worker is killed and stopped in the middle of answers.

use std::io::{BufRead, BufReader};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use mlx_tests::server::Server;
use mlx_tests::worker_process::WorkerProcess;
use mlx_tests::workers::with_layers;
use mlx_tests::{model_copy, model_folder};
use serde_json::{Value, json};

const MLX: &str = env!("CARGO_BIN_EXE_mlx");
const KEY: &str = "0123456789abcdef0123456789abcdef";

/// Within this time an answer ends, and a worker that is back is used again.
const SOON: Duration = Duration::from_secs(30);

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

/// Does `fault` once an answer is being written; the error that ends it.
fn error_of_a_stream(server: &Server, fault: impl FnOnce()) -> String {
    let chunks = thread::scope(|scope| {
        let stream = scope.spawn(|| server.stream("/v1/completions", &request(4000, true)));
        server.wait_for("mlx_requests_running", 1);
        fault();
        stream.join().expect("a stream")
    });
    let last = chunks.last().expect("a chunk");
    last["error"]["message"].as_str().unwrap_or_else(|| panic!("{last}")).to_owned()
}

fn wait_until_ready(server: &Server) {
    let begun = Instant::now();
    while server.get("/ready").status != 200 {
        assert!(begun.elapsed() < SOON, "the worker is not used again");
        thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn an_answer_ends_with_an_error_when_a_worker_is_killed_or_stopped_and_the_server_goes_on() {
    endure("pipeline");
}

#[test]
fn so_it_does_where_each_machine_has_a_part_of_every_layer() {
    endure("tensor");
}

fn endure(how: &str) {
    let folder = with_layers("llama-f32", 4);
    let config = folder.path().join("config.json");
    let mut object: Value = serde_json::from_slice(&std::fs::read(&config).expect("a config")).expect("json");
    object["max_position_embeddings"] = 8192.into();
    std::fs::write(&config, object.to_string()).expect("it can be written");
    std::fs::write(folder.path().join("key"), KEY).expect("it can be written");
    let mut worker = WorkerProcess::start(MLX, folder.path(), "0");
    let hosts = json!([{ "ips": ["127.0.0.1"] }, { "ips": [format!("localhost:{}", worker.port)] }]);
    std::fs::write(folder.path().join("hosts.json"), hosts.to_string()).expect("it can be written");
    let path = |name: &str| folder.path().join(name).to_str().expect("utf-8").to_owned();
    let (hosts, key) = (path("hosts.json"), path("key"));
    let flags = ["--parallel", how, "--worker-timeout", "2", "--preload"];
    let arguments = [&["--hostfile", &hosts, "--worker-key-file", &key], &flags[..]].concat();
    let server = Server::start_on(&[MLX, "serve"], folder.path(), &arguments);
    wait_until_ready(&server);
    let expected = answer(&server);

    let message = error_of_a_stream(&server, || worker.signal("KILL"));
    assert!(message.contains("rank 1"), "{message}");
    assert_eq!(server.get("/ready").status, 503);
    let refused = server.post("/v1/completions", &request(5, false));
    assert_eq!((refused.status, &refused.body["error"]["code"]), (503, &json!("machine_away")));
    assert!(refused.find("retry-after").is_some());
    worker = WorkerProcess::start(MLX, folder.path(), &worker.port.clone());
    wait_until_ready(&server);
    assert_eq!(answer(&server), expected, "the worker was started again");

    let begun = Instant::now();
    let message = error_of_a_stream(&server, || worker.signal("STOP"));
    assert!(message.contains("rank 1") && begun.elapsed() < SOON, "{message}");
    assert_eq!(server.get("/ready").status, 503);
    worker.signal("CONT");
    wait_until_ready(&server);
    assert_eq!(answer(&server), expected, "the worker goes on");
    server.wait_for("mlx_requests_running", 0);
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
    // It may still have parts of each layer for so many.
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
    assert!(text.contains("layers cannot be divided: --ranks is 4"), "{text}");
    assert!(text.contains("with tensor"), "{text}");
}

/// Stands in for ssh: runs the line here, and knows one machine that is not there.
const SSH: &str = "#!/bin/sh
while [ \"$1\" != -- ]; do shift; done
if [ \"$2\" = gone ]; then echo no route >&2; exit 255; fi
exec sh -c \"$3\"
";

/// `mlx worker --hostfile` with these machines and their ports, and a program in place of ssh.
fn over_ssh(folder: &Path, machines: &[(&str, u16)], more: &[&str]) -> Command {
    let ssh = folder.join("ssh");
    std::fs::write(&ssh, SSH).expect("it can be written");
    std::fs::set_permissions(&ssh, std::fs::Permissions::from_mode(0o755)).expect("it is ours");
    std::fs::write(folder.join("key"), KEY).expect("it can be written");
    let others =
        machines.iter().map(|(name, port)| json!({ "ssh": name, "ips": [format!("127.0.0.1:{port}")] }));
    let hosts: Vec<Value> = std::iter::once(json!({ "ssh": "first" })).chain(others).collect();
    let settings = json!({ "envs": ["NOTE=a b"], "hosts": hosts });
    std::fs::write(folder.join("hosts.json"), settings.to_string()).expect("it can be written");
    let mut command = Command::new(MLX);
    command.args(["worker", "-m"]).arg(folder).args(["--remote-mlx", MLX]);
    command.arg("--hostfile").arg(folder.join("hosts.json"));
    command.arg("--worker-key-file").arg(folder.join("key")).args(more);
    let path = format!("{}:/usr/bin:/bin", folder.display());
    command.env("PATH", path).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").and_then(|it| it.local_addr()).expect("a free port").port()
}

#[test]
fn workers_that_were_started_over_ssh_end_with_their_command() {
    let folder = with_layers("llama-f32", 4);
    let ports = [free_port(), free_port()];
    let mut command = over_ssh(folder.path(), &[("one", ports[0]), ("two", ports[1])], &[]);
    let mut starter = command.spawn().expect("it starts");
    let lines = BufReader::new(starter.stderr.take().expect("a pipe")).lines().map_while(Result::ok);
    let (said, listening) = std::sync::mpsc::channel();
    thread::spawn(move || {
        for line in lines.filter(|line| line.contains(": listening on")) {
            said.send(line).ok();
        }
    });
    let first: Vec<String> =
        (0..2).map(|_| listening.recv_timeout(SOON).expect("both workers listen")).collect();
    assert!(first.iter().any(|line| line.starts_with("one: ")), "{first:?}");
    let generate = |more: &[&str]| {
        let mut command = Command::new(MLX);
        command.args([
            "generate",
            "--prompt-ids",
            "1,9,30",
            "--max-tokens",
            "20",
            "--temperature",
            "0",
            "-m",
        ]);
        let output = command.arg(folder.path()).args(more).stdin(Stdio::null()).output().expect("it starts");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        output.stdout
    };
    let path = |name: &str| folder.path().join(name).to_str().expect("utf-8").to_owned();
    let alone = generate(&[]);
    assert_eq!(generate(&["--hostfile", &path("hosts.json"), "--worker-key-file", &path("key")]), alone);
    starter.kill().expect("it runs");
    starter.wait().expect("it ends");
    let begun = Instant::now();
    while ports.iter().any(|port| TcpStream::connect(("127.0.0.1", *port)).is_ok()) {
        assert!(begun.elapsed() < SOON, "a worker is left behind");
        thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn a_machine_that_ssh_does_not_reach_is_named_and_commands_can_be_printed() {
    let folder = model_copy("llama-f32");
    let gone = over_ssh(folder.path(), &[("gone", 1)], &[]).output().expect("it starts");
    let error = String::from_utf8(gone.stderr).expect("text");
    assert!(error.contains("gone: no route"), "{error}");
    assert!(error.contains("--hostfile got no worker on gone: ssh ended with exit status: 255"), "{error}");
    let printed = over_ssh(folder.path(), &[("one", 7), ("two", 8)], &["--print-commands"]).output();
    let text = String::from_utf8(printed.expect("it starts").stdout).expect("text");
    let line = |name: &str, port: u16| {
        let (model, key) = (folder.path().display(), folder.path().join("key"));
        format!(
            "# on {name}\nenv 'NOTE=a b' {MLX} worker -m {model} --host 127.0.0.1 --port {port} --worker-key-file {}\n",
            key.display()
        )
    };
    assert_eq!(text, line("one", 7) + &line("two", 8));
}
