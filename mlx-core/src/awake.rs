//! Keeps a Mac from falling asleep while requests run. macOS has a program for that, which need not be linked with.

use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

/// macOS' own program. Other systems have none at this place.
const CAFFEINATE: &str = "/usr/bin/caffeinate";

/// For how long a call holds, and when it is renewed: before a Mac could fall asleep, which it does after a minute at the earliest.
const HOLD: Duration = Duration::from_mins(2);
const RENEW: Duration = Duration::from_mins(1);

/// Calls a program again and again while there is work.
pub(crate) struct Awake {
    /// The program and its arguments; `None` where nothing is to be called.
    command: Option<(String, Vec<String>)>,
    renew_at: Option<Instant>,
}

impl Awake {
    /// As this system does it.
    pub(crate) fn system() -> Self {
        // Against idle sleep alone (-i), for so long (-t), and no longer than this process lives (-w).
        let (seconds, process) = (HOLD.as_secs().to_string(), std::process::id().to_string());
        let arguments = ["-i", "-t", &seconds, "-w", &process].map(str::to_owned);
        let is_there = Path::new(CAFFEINATE).exists();
        Self::new(is_there.then(|| (CAFFEINATE.to_owned(), arguments.to_vec())))
    }

    fn new(command: Option<(String, Vec<String>)>) -> Self {
        Self { command, renew_at: None }
    }

    /// There is work now.
    pub(crate) fn hold(&mut self, now: Instant) {
        let Some((program, arguments)) = &self.command else { return };
        if self.renew_at.is_some_and(|at| now < at) {
            return;
        }
        self.renew_at = Some(now + RENEW);
        let mut command = Command::new(program);
        command.args(arguments).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        // Starting a program takes milliseconds, in which tokens could be drawn, and its end is to be waited for.
        let wait = move || match command.status() {
            Ok(_) => {}
            Err(error) => tracing::debug!(%error, "sleep cannot be held off"),
        };
        thread::Builder::new().name("awake".into()).spawn(wait).ok();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_program_is_called_while_there_is_work() {
        let folder = tempfile::tempdir().expect("there is room");
        let log = folder.path().join("log");
        let script = format!("echo called >> '{}'", log.display());
        let mut awake = Awake::new(Some(("/bin/sh".into(), vec!["-c".into(), script])));
        let called = || std::fs::read_to_string(&log).unwrap_or_default().lines().count();
        let start = Instant::now();
        for (seconds, calls) in [(0, 1), (1, 1), (59, 1), (60, 2), (61, 2), (300, 3)] {
            awake.hold(start + Duration::from_secs(seconds));
            let patience = Instant::now() + Duration::from_secs(30);
            while called() < calls && Instant::now() < patience {
                thread::sleep(Duration::from_millis(5));
            }
            assert_eq!(called(), calls, "after {seconds} s");
        }
    }

    #[test]
    fn a_missing_program_is_no_fault() {
        Awake::new(Some(("/nowhere/caffeinate".into(), Vec::new()))).hold(Instant::now());
        Awake::new(None).hold(Instant::now());
    }
}
