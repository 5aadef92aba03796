//! `mlx worker --hostfile` as a program: workers on other machines, with a script instead of ssh.

use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use mlx_tests::divisible::with_layers;
use mlx_tests::model_copy;
use serde_json::{Value, json};

use super::{KEY, MLX, SOON, free_port};

/// A script that replaces ssh: it prints a greeting in Latin 1 and runs the line locally; one machine is unreachable.
const SSH: &str = "#!/bin/sh
while [ \"$1\" != -- ]; do shift; done
printf 'gr\\374\\337e\\n' >&2
if [ \"$2\" = gone ]; then echo no route >&2; exit 255; fi
exec sh -c \"$3\"
";

/// Returns `mlx worker --hostfile` for these machines and their ports, with the script instead of ssh.
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
    if !more.contains(&"--worker-key-file") {
        command.arg("--worker-key-file").arg(folder.join("key"));
    }
    command.args(more);
    let path = format!("{}:/usr/bin:/bin", folder.display());
    command.env("PATH", path).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
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
        assert!(begun.elapsed() < SOON, "a worker still runs");
        thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn a_machine_that_ssh_does_not_reach_is_named_and_commands_can_be_printed() {
    let folder = model_copy("llama-f32");
    let gone = over_ssh(folder.path(), &[("gone", 1)], &[]).output().expect("it starts");
    let error = String::from_utf8(gone.stderr).expect("text");
    assert!(error.contains("gone: no route"), "{error}");
    assert!(
        error.contains("--hostfile could not start a worker on gone: ssh ended with exit status: 255"),
        "{error}"
    );
    let printed = over_ssh(folder.path(), &[("one", 7), ("two", 8)], &["--print-commands"]).output();
    let text = String::from_utf8(printed.expect("it starts").stdout).expect("text");
    let line = |name: &str, port: u16| {
        let (model, key) = (folder.path().display(), folder.path().join("key"));
        format!(
            "# on {name}\nenv 'NOTE=a b' {MLX} worker -m {model} --host 127.0.0.1 --port {port} --worker-key-file {}\n",
            key.display()
        )
    };
    let file = |name: &str| folder.path().join(name).display().to_string();
    let first = format!(
        "# on the first\nmlx serve -m {} --hostfile {} --worker-key-file {}\n",
        folder.path().display(),
        file("hosts.json"),
        file("key")
    );
    assert_eq!(text, line("one", 7) + &line("two", 8) + &first);
}

#[test]
fn printed_commands_have_whole_paths_and_only_what_flags_set() {
    let folder = model_copy("llama-f32");
    let print = |more: &[&str]| {
        let mut command = over_ssh(folder.path(), &[("one", 7)], &[more, &["--print-commands"]].concat());
        let output =
            command.current_dir(folder.path()).env("MLX_MEMORY_BUDGET", "1GB").output().expect("it starts");
        let text = |bytes| String::from_utf8(bytes).expect("text");
        (text(output.stdout), text(output.stderr))
    };
    let (text, _) = print(&["--worker-key-file", "key"]);
    assert_eq!(
        text.matches(&format!("--worker-key-file {}\n", folder.path().join("key").display())).count(),
        2
    );
    assert!(!text.contains("--memory-budget"), "{text}");
    let (text, _) = print(&["--memory-budget", "1GB"]);
    assert!(text.contains("--memory-budget 1000000000\n") && !text.contains("--device"), "{text}");
    let (text, _) = print(&["--device", "cpu"]);
    assert!(text.contains("--device cpu\n") && !text.contains("--memory-budget"), "{text}");
    std::fs::create_dir(folder.path().join("poems")).expect("it can be written");
    let (text, _) = print(&["--adapter", "poems"]);
    let adapter = folder.path().join("poems").display().to_string();
    assert!(text.contains(&format!("--adapter {adapter}\n")), "{text}");
    assert!(text.contains(&format!("--adapter poems={adapter}\n")), "{text}");
    let (text, error) = print(&["--worker-key-file", "-"]);
    assert!(text.is_empty() && error.contains("--worker-key-file is -"), "{error}");
}

#[test]
fn workers_over_ssh_have_a_key_from_standard_input() {
    let folder = model_copy("llama-f32");
    let mut command = over_ssh(folder.path(), &[("one", free_port())], &["--worker-key-file", "-"]);
    let mut starter = command.stdin(Stdio::piped()).spawn().expect("it starts");
    // Standard input ends here, but the workers do not.
    starter.stdin.take().expect("a pipe").write_all(format!("{KEY}\n").as_bytes()).expect("it reads");
    let lines = BufReader::new(starter.stderr.take().expect("a pipe")).lines().map_while(Result::ok);
    let said: Vec<String> = lines.take(2).collect();
    starter.kill().expect("it runs");
    starter.wait().expect("it ends");
    assert!(said[1].starts_with("one: listening on"), "{said:?}");
}
