//! Runs one command with limits on time and output, in its own process group, so that it can be ended as a whole.

use std::fmt::Write as _;
use std::io::{self, Read};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use mlx_mcp::{Clipped, SECRET_VARIABLES};
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process_group, waitid};

/// The interval of checks for the end of a command.
const POLL_INTERVAL: Duration = Duration::from_millis(10);
/// The time between SIGTERM and SIGKILL, and the time to read the output after a command ended.
const GRACE_PERIOD: Duration = Duration::from_millis(500);

/// The limits of a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Limits {
    pub(super) time: Duration,
    /// Bytes kept of each output stream.
    pub(super) bytes: usize,
}

/// The result of a command.
#[derive(Debug)]
pub(super) struct Outcome {
    pub(super) end: End,
    output: String,
    errors: String,
}

/// The way a command ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum End {
    Exited(ExitStatus),
    /// It exceeded this time limit.
    TimedOut(Duration),
    /// The user stopped it.
    Stopped,
}

/// Runs a command to its end, or until `stop` is set. Processes that it started end with it.
pub(super) fn run(mut command: Command, limits: Limits, stop: &AtomicBool) -> io::Result<Outcome> {
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0);
    for name in SECRET_VARIABLES {
        command.env_remove(name);
    }
    let mut child = command.spawn()?;
    let group = Pid::from_child(&child);
    let output = Reader::start(child.stdout.take(), limits.bytes);
    let errors = Reader::start(child.stderr.take(), limits.bytes);
    let start = Instant::now();
    let early = loop {
        if has_ended(group) {
            break None;
        } else if stop.load(Ordering::Relaxed) {
            break Some(End::Stopped);
        } else if start.elapsed() >= limits.time {
            break Some(End::TimedOut(limits.time));
        }
        thread::sleep(POLL_INTERVAL);
    };
    if early.is_some() {
        kill_process_group(group, Signal::TERM).ok();
        let terminated = Instant::now();
        while !has_ended(group) && terminated.elapsed() < GRACE_PERIOD {
            thread::sleep(POLL_INTERVAL);
        }
    }
    let status = end_group(&mut child, group)?;
    Ok(Outcome { end: early.unwrap_or(End::Exited(status)), output: output.text(), errors: errors.text() })
}

/// Returns true if the process has ended. It stays a zombie, so that its id, which is also the group's, cannot be reused.
fn has_ended(pid: Pid) -> bool {
    let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
    // An error means that there is no such child.
    waitid(WaitId::Pid(pid), options).map_or(true, |status| status.is_some())
}

fn end_group(child: &mut Child, group: Pid) -> io::Result<ExitStatus> {
    kill_process_group(group, Signal::KILL).ok();
    child.wait()
}

/// Reads an output stream to its end in the background.
struct Reader {
    clipped: Arc<Mutex<Clipped>>,
    thread: JoinHandle<()>,
}

impl Reader {
    fn start(pipe: Option<impl Read + Send + 'static>, bytes: usize) -> Self {
        let clipped = Arc::new(Mutex::new(Clipped::new(bytes)));
        let shared = clipped.clone();
        let thread = thread::spawn(move || {
            let (Some(mut pipe), mut buffer) = (pipe, vec![0; 64 << 10]) else { return };
            while let Ok(count @ 1..) = pipe.read(&mut buffer) {
                shared.lock().unwrap_or_else(PoisonError::into_inner).push(&buffer[..count]);
            }
        });
        Self { clipped, thread }
    }

    /// Returns the output so far. A process that left the group may hold the pipe open forever, so the wait is limited.
    fn text(self) -> String {
        let start = Instant::now();
        while !self.thread.is_finished() && start.elapsed() < GRACE_PERIOD {
            thread::sleep(POLL_INTERVAL);
        }
        self.clipped.lock().unwrap_or_else(PoisonError::into_inner).text()
    }
}

impl Outcome {
    /// Returns the result for the model: the output, then stderr and the exit status, if not empty.
    pub(super) fn text(&self) -> String {
        let mut text = self.output.clone();
        let mut section = |name: &str, body: &str| {
            let gap = if text.is_empty() || text.ends_with('\n') { "" } else { "\n" };
            // Writing to a string cannot fail.
            write!(text, "{gap}[{name}]{body}").ok();
        };
        if !self.errors.is_empty() {
            section("standard error", &format!("\n{}", self.errors));
        }
        match self.end {
            End::Exited(status) if status.success() => {
                if self.output.is_empty() && self.errors.is_empty() {
                    section("no output", "");
                }
            }
            End::Exited(status) => section(&status_text(status), ""),
            End::TimedOut(limit) => section(&format!("ended after {} seconds", limit.as_secs_f64()), ""),
            End::Stopped => section("stopped by the user", ""),
        }
        text
    }
}

fn status_text(status: ExitStatus) -> String {
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("exit status {code}"),
        (None, Some(signal)) => format!("ended by signal {signal}"),
        (None, None) => "ended".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: Limits = Limits { time: Duration::from_secs(20), bytes: 1024 };

    fn shell(line: &str, limits: Limits) -> Outcome {
        let mut command = Command::new("sh");
        command.args(["-c", line]);
        run(command, limits, &AtomicBool::new(false)).expect("there is a shell")
    }

    #[test]
    fn output_errors_and_status_are_one_text() {
        assert_eq!(shell("echo a", LIMITS).text(), "a\n");
        assert_eq!(shell("true", LIMITS).text(), "[no output]");
        let all = shell("printf a; echo b >&2; exit 3", LIMITS).text();
        assert_eq!(all, "a\n[standard error]\nb\n[exit status 3]");
        assert_eq!(shell("kill -9 $$", LIMITS).text(), "[ended by signal 9]");
        // Standard input is empty.
        assert_eq!(shell("cat", LIMITS).text(), "[no output]");
    }

    #[test]
    fn an_endless_output_stays_within_its_bytes() {
        let limits = Limits { time: Duration::from_millis(300), bytes: 64 };
        let text = shell("yes", limits).text();
        assert!(text.len() < 200 && text.contains("bytes were left out"), "{text}");
        assert!(text.ends_with("[ended after 0.3 seconds]"), "{text}");
    }

    /// Returns a line that starts a background process, and the file that this process creates after a second unless it is ended.
    fn background(folder: &tempfile::TempDir) -> (String, std::path::PathBuf) {
        let file = folder.path().join("alive");
        (format!("(sleep 1; touch '{}') &", file.display()), file)
    }

    fn assert_gone(file: &std::path::Path) {
        thread::sleep(Duration::from_millis(1500));
        assert!(!file.exists(), "what the command has started still runs");
    }

    #[test]
    fn what_a_command_has_started_ends_with_it() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let (line, file) = background(&folder);
        let outcome = shell(&format!("{line} echo done"), LIMITS);
        assert_eq!(outcome.text(), "done\n");
        assert_gone(&file);
        // A command that ignores SIGTERM is killed.
        let limits = Limits { time: Duration::from_millis(100), ..LIMITS };
        let late = shell(&format!("trap '' TERM; {line} wait; sleep 1000"), limits);
        assert_eq!(late.end, End::TimedOut(limits.time));
        assert_gone(&file);
    }

    #[test]
    fn a_command_that_is_stopped_ends_at_once() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let (line, file) = background(&folder);
        let stop = Arc::new(AtomicBool::new(false));
        let setter = stop.clone();
        let setter = thread::spawn(move || {
            thread::sleep(Duration::from_millis(100));
            setter.store(true, Ordering::Relaxed);
        });
        let mut command = Command::new("sh");
        command.args(["-c", &format!("{line} sleep 1000")]);
        let outcome = run(command, LIMITS, &stop).expect("there is a shell");
        setter.join().expect("it ends");
        assert_eq!(outcome.end, End::Stopped);
        assert_gone(&file);
    }
}
