//! The process of a server. It runs in its own process group, which a watchdog ends when this program ends, even if it is killed: the watchdog is a
//! shell that waits for the end of a pipe that only this program holds. Ctrl-C on the terminal does not reach either of them.

use std::collections::VecDeque;
use std::io;
use std::path::Path;
use std::process::{ExitStatus, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process_group};
use tokio::io::AsyncReadExt;
use tokio::process::{Child, ChildStderr, ChildStdin, ChildStdout, Command};
use tokio::sync::watch;

use crate::config::Transport;

/// Variables with the secrets of this program. Programs that a file or a model chooses do not inherit them.
pub const SECRET_VARIABLES: [&str; 4] =
    ["HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "HUGGINGFACE_HUB_TOKEN", "MLX_API_KEY"];

/// Ends the process group `$1` when its input ends: at first politely, after a second by force.
const WATCHDOG: &str = "trap '' HUP INT TERM; read -r _; kill -TERM \"-$1\" || exit 0; n=0
while [ $n -lt 10 ] && kill -0 \"-$1\"; do sleep 0.1; n=$((n + 1)); done; kill -KILL \"-$1\"";

/// The bytes of standard error that are kept.
const TAIL_LEN: usize = 4 << 10;
/// The time to wait for the exit status of a server whose output has ended.
const EXIT_TIME: Duration = Duration::from_millis(500);

/// A running process. Dropping it ends its process group.
pub(crate) struct Process {
    /// The input of the watchdog. Its end lets the watchdog act.
    _watchdog: Option<ChildStdin>,
    end: watch::Receiver<Option<String>>,
    errors: Arc<Mutex<VecDeque<u8>>>,
}

impl Process {
    /// Starts a process. Returns it with its input and output.
    pub(crate) fn start(transport: &Transport) -> io::Result<(Self, ChildStdin, ChildStdout)> {
        let Transport::Process { command: program, args, env, cwd } = transport else {
            return Err(io::Error::other("a server at a URL has no process"));
        };
        let mut command = Command::new(program);
        command.args(args).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command.process_group(0).kill_on_drop(false);
        for name in SECRET_VARIABLES {
            command.env_remove(name);
        }
        command.envs(env);
        if let Some(cwd) = cwd {
            command.current_dir(cwd);
        }
        let mut child = command.spawn().map_err(|error| explained(error, program, cwd.as_deref()))?;
        let group = child.id().and_then(|id| Pid::from_raw(id as i32));
        let group = group.ok_or_else(|| io::Error::other("the process has no id"))?;
        let mut watchdog = match watchdog(group) {
            Ok(watchdog) => watchdog,
            Err(error) => {
                kill_process_group(group, Signal::KILL).ok();
                return Err(error);
            }
        };
        let missing = || io::Error::other("the process has no pipes");
        let input = child.stdin.take().ok_or_else(missing)?;
        let output = child.stdout.take().ok_or_else(missing)?;
        let errors = Arc::default();
        if let Some(stream) = child.stderr.take() {
            tokio::spawn(keep_tail(stream, Arc::clone(&errors)));
        }
        let (sender, end) = watch::channel(None);
        let pipe = watchdog.stdin.take();
        tokio::spawn(observe(child, watchdog, group, sender));
        Ok((Self { _watchdog: pipe, end, errors }, input, output))
    }

    /// Returns the way that the process ended and its last line of standard error, or `None` if it runs.
    pub(crate) async fn end(&self) -> Option<String> {
        let mut end = self.end.clone();
        let status =
            tokio::time::timeout(EXIT_TIME, end.wait_for(Option::is_some)).await.ok()?.ok()?.clone()?;
        Some(format!("it ended ({status}){}", self.last_words()))
    }

    /// Returns the last line of standard error as the end of a sentence.
    pub(crate) fn last_words(&self) -> String {
        let tail: Vec<u8> =
            self.errors.lock().unwrap_or_else(PoisonError::into_inner).iter().copied().collect();
        let text = String::from_utf8_lossy(&tail);
        let line = text.lines().map(str::trim).rfind(|line| !line.is_empty());
        line.map_or_else(String::new, |line| {
            let short: String = line.chars().take(300).collect();
            format!("; the last line of its standard error is {short:?}")
        })
    }
}

fn watchdog(group: Pid) -> io::Result<Child> {
    let mut command = Command::new("sh");
    command.args(["-c", WATCHDOG, "sh", &group.as_raw_nonzero().to_string()]);
    command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null()).process_group(0).spawn()
}

fn explained(error: io::Error, program: &str, cwd: Option<&Path>) -> io::Error {
    if error.kind() != io::ErrorKind::NotFound {
        return error;
    }
    let reason = match cwd.filter(|cwd| !cwd.is_dir()) {
        Some(cwd) => format!("cwd is {}, which is not a folder", cwd.display()),
        None => format!("the command {program:?} was not found; install it or give its path"),
    };
    io::Error::new(error.kind(), reason)
}

/// Waits for the end of the process, then ends the processes that it started and the watchdog.
async fn observe(mut child: Child, mut watchdog: Child, group: Pid, end: watch::Sender<Option<String>>) {
    let status = child.wait().await;
    kill_process_group(group, Signal::KILL).ok();
    watchdog.start_kill().ok();
    end.send_replace(Some(status.map_or_else(|error| error.to_string(), status_text)));
    watchdog.wait().await.ok();
}

fn status_text(status: ExitStatus) -> String {
    status.to_string()
}

async fn keep_tail(mut stream: ChildStderr, tail: Arc<Mutex<VecDeque<u8>>>) {
    let mut buffer = vec![0; 16 << 10];
    while let Ok(count @ 1..) = stream.read(&mut buffer).await {
        let mut tail = tail.lock().unwrap_or_else(PoisonError::into_inner);
        tail.extend(&buffer[..count]);
        let excess = tail.len().saturating_sub(TAIL_LEN);
        tail.drain(..excess);
    }
}
