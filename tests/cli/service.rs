//! `mlx service`: the calls of the service manager, which a script stands in for, and the run of the server with its log.

use std::fs::OpenOptions;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use mlx_tests::piped;

use super::{model, stderr, stdout};

/// Records its calls, and answers as the service manager of each system does. A start writes the line of a server that listens.
const MANAGER: &str = r#"#!/bin/sh
echo "$(basename "$0") $*" >> "$HOME/calls"
case "$*" in
*restart*|bootstrap*)
    touch "$HOME/runs"
    mkdir -p "$HOME/.local/state/mlx"
    echo '{"address":"127.0.0.1:4242","https":false,"message":"listening"}' >> "$HOME/.local/state/mlx/serve.log" ;;
*disable*|bootout*) rm -f "$HOME/runs" ;;
*is-active*) if [ -e "$HOME/runs" ]; then echo active; else echo inactive; exit 3; fi ;;
print*) if [ -e "$HOME/runs" ]; then echo "	state = running"; else exit 113; fi ;;
esac
"#;

/// A home folder with a service manager.
struct Home(tempfile::TempDir);

impl Home {
    fn new() -> Self {
        let home = tempfile::tempdir().expect("a temporary folder");
        for name in ["systemctl", "launchctl"] {
            let path = home.path().join(name);
            std::fs::write(&path, MANAGER).expect("it can be written");
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).expect("it is ours");
        }
        Self(home)
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_mlx"));
        let path = std::env::var("PATH").unwrap_or_default();
        command.arg("service").args(arguments).current_dir(self.0.path());
        command.env("HOME", self.0.path()).env("PATH", format!("{}:{path}", self.0.path().display()));
        for name in ["XDG_CONFIG_HOME", "XDG_STATE_HOME", "MLX_API_KEY", "MLX_MODEL", "HF_HOME"] {
            command.env_remove(name);
        }
        command
    }

    fn run(&self, arguments: &[&str]) -> Output {
        piped(self.command(arguments), "")
    }

    fn calls(&self) -> String {
        std::fs::read_to_string(self.0.path().join("calls")).unwrap_or_default()
    }

    fn log(&self) -> std::path::PathBuf {
        self.0.path().join(".local/state/mlx/serve.log")
    }
}

fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_default()
}

#[test]
fn a_service_is_installed_seen_replaced_and_removed() {
    let home = Home::new();
    let status = home.run(&["status"]);
    assert_eq!((status.status.code(), stdout(&status).as_str()), (Some(1), "state    not installed\n"));
    let folder = model("llama-f32");
    let mut install = home.command(&["install", "--", &folder, "--port", "0", "--alias", "a b=llama-f32"]);
    install.env("HF_HOME", "/a & b").env("HF_TOKEN", "secret");
    let output = piped(install, "");
    assert!(output.status.success(), "{}", stderr(&output));
    assert!(stderr(&output).contains("the server listens at http://127.0.0.1:4242"), "{}", stderr(&output));
    let status = home.run(&["status"]);
    let shown = stdout(&status);
    assert!(status.status.success() && shown.contains("state    running\n"), "{shown}");
    assert!(shown.contains("address  http://127.0.0.1:4242\n") && shown.contains("serve.log\n"), "{shown}");
    let file = shown.lines().find_map(|line| line.strip_prefix("file     ")).expect("a file").to_owned();
    let text = read(Path::new(&file));
    assert!(text.contains(&folder) && text.contains("a b=llama-f32") && text.contains("HF_HOME"), "{text}");
    assert!(!text.contains("secret"), "{text}");
    assert_eq!(Path::new(&file).metadata().expect("a file").permissions().mode() & 0o077, 0);
    assert!(stdout(&home.run(&["logs", "-n", "1"])).contains("\"listening\""));

    let replaced = home.run(&["install", "--", "guide", "-v"]);
    assert!(replaced.status.success(), "{}", stderr(&replaced));
    assert!(!read(Path::new(&file)).contains("llama-f32"));
    let removed = home.run(&["uninstall"]);
    assert!(removed.status.success() && !Path::new(&file).exists(), "{}", stderr(&removed));
    assert!(home.log().exists(), "the log stays");
    assert!(stderr(&home.run(&["uninstall"])).contains("is not installed"));
    let calls = home.calls();
    let verbs: &[&str] = if calls.contains("launchctl") {
        &["bootstrap", "bootout", "bootstrap", "bootout"]
    } else {
        &["enable", "restart", "disable", "enable", "restart", "disable", "daemon-reload"]
    };
    let mut rest = calls.as_str();
    for verb in verbs {
        let at = rest.find(verb).unwrap_or_else(|| panic!("{verb} is missing in {calls}"));
        rest = &rest[at..];
    }
}

#[test]
fn mistakes_are_reported_before_anything_is_installed() {
    let home = Home::new();
    for (arguments, expected) in [
        (&["install", "--", "--prot", "1"][..], "SERVE_FLAGS: unexpected argument '--prot'"),
        (&["install", "--", "--port", "many"], "SERVE_FLAGS: invalid value 'many' for '--port"),
        (&["install", "--", "--host", "0.0.0.0"], "--host: accepts connections from other machines"),
        (&["install", "--", "--keys", "a\nb"], "control characters are not allowed"),
        (&["install", "--", "--print-config"], "--print-config prints and serves nothing"),
        (&["install", "MODEL"], "unexpected argument 'MODEL'"),
    ] {
        let output = home.run(arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {}", stderr(&output));
        assert!(stderr(&output).contains(expected), "{arguments:?}: {}", stderr(&output));
    }
    let mut with_key = home.command(&["install", "--", "guide"]);
    with_key.env("MLX_API_KEY", "0123456789abcdef");
    let output = piped(with_key, "");
    assert!(stderr(&output).contains("--api-key-file") && output.status.code() == Some(2));
    let shown = home.run(&["install", "--print", "--", "guide"]);
    assert!(shown.status.success() && stdout(&shown).contains("guide"), "{}", stderr(&shown));
    assert_eq!(home.calls(), "", "nothing was installed");
    // A manager that refuses leaves no file.
    std::fs::write(home.0.path().join("systemctl"), "#!/bin/sh\necho no bus >&2\nexit 1\n").expect("a file");
    std::fs::write(home.0.path().join("launchctl"), "#!/bin/sh\necho no bus >&2\nexit 1\n").expect("a file");
    let refused = home.run(&["install", "--", "guide"]);
    assert!(refused.status.code() == Some(2) && stderr(&refused).contains("no bus"), "{}", stderr(&refused));
    assert_eq!(stdout(&home.run(&["status"])), "state    not installed\n");
}

#[test]
fn the_log_is_followed_across_a_rotation() {
    let home = Home::new();
    let missing = home.run(&["logs"]);
    assert!(
        missing.status.code() == Some(1) && stderr(&missing).contains("serve.log"),
        "{}",
        stderr(&missing)
    );
    std::fs::create_dir_all(home.log().parent().expect("a folder")).expect("it can be made");
    std::fs::write(home.log(), "one\ntwo\nthree\n").expect("it can be written");
    assert_eq!(stdout(&home.run(&["logs", "-n", "2"])), "two\nthree\n");
    let mut follow = home.command(&["logs", "-n", "1", "--follow"]);
    let mut follow = follow.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().expect("it starts");
    let mut lines = BufReader::new(follow.stdout.take().expect("a pipe")).lines().map_while(Result::ok);
    assert_eq!(lines.next().as_deref(), Some("three"));
    let mut log = OpenOptions::new().append(true).open(home.log()).expect("it exists");
    log.write_all(b"four\n").expect("it can be written");
    assert_eq!(lines.next().as_deref(), Some("four"));
    std::fs::rename(home.log(), home.log().with_extension("log.1")).expect("the same folder");
    std::fs::write(home.log(), "five\n").expect("it can be written");
    assert_eq!(lines.next().as_deref(), Some("five"));
    follow.kill().and_then(|()| follow.wait()).expect("it ends");
    // Lines of the renamed file come first.
    assert_eq!(stdout(&home.run(&["logs", "-n", "3"])), "three\nfour\nfive\n");
}

/// The command that the service file names.
fn start(home: &Home, serve: &[&str]) -> Child {
    let log = home.log().display().to_string();
    let mut command = home.command(&[&["run", "--log", &log, "--"], serve].concat());
    command.env("MLX_ALL_MODELS", "false").stdin(Stdio::null()).spawn().expect("it starts")
}

#[test]
fn the_server_runs_until_it_is_asked_to_end_and_its_output_is_in_the_log() {
    let home = Home::new();
    let mut server = start(&home, &[&model("llama-f32"), "--port", "0", "--preload"]);
    let begin = Instant::now();
    while !read(&home.log()).contains("\"all models are loaded\"") {
        assert!(begin.elapsed() < Duration::from_mins(1), "{}", read(&home.log()));
        std::thread::sleep(Duration::from_millis(20));
    }
    let id = server.id().to_string();
    assert!(Command::new("kill").args(["-TERM", &id]).status().expect("kill runs").success());
    assert!(server.wait().expect("it ends").success(), "{}", read(&home.log()));
    let log = read(&home.log());
    assert!(log.contains("\"listening\"") && log.contains("\"ending\""), "{log}");
    assert_eq!(home.log().metadata().expect("a file").permissions().mode() & 0o077, 0);
    // A failure is one for the service manager too, and the log has its reason.
    let mut failing = start(&home, &["no-such-folder", "--port", "0"]);
    assert_eq!(failing.wait().expect("it ends").code(), Some(1));
    assert!(read(&home.log()).contains("no-such-folder"), "{}", read(&home.log()));
}
