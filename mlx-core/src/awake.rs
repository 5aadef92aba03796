//! Prevents a Mac from sleeping while engines work. The process runs one system program for this, so no library needs to be linked.

use std::io;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Condvar, LazyLock, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

/// The program on macOS. Other systems have no program at this path.
const CAFFEINATE: &str = "/usr/bin/caffeinate";

/// The time from the last request to the end of the program, so that consecutive requests share it. A Mac sleeps after at least one idle minute.
const LINGER: Duration = Duration::from_secs(5);

/// The keeper of this process.
static SYSTEM: LazyLock<Arc<Keeper>> = LazyLock::new(|| {
    // Prevents only idle sleep (-i), and ends with this process (-w).
    let words = [CAFFEINATE, "-i", "-w", &std::process::id().to_string()].map(str::to_owned);
    let command = Path::new(CAFFEINATE).exists().then(|| words.to_vec());
    Keeper::new(command, LINGER)
});

/// A hold of one engine on the program. Dropping it releases the hold.
pub(crate) struct Awake {
    keeper: Arc<Keeper>,
    is_held: bool,
}

impl Awake {
    /// Creates a hold on the program that all engines of this process share.
    pub(crate) fn system() -> Self {
        Self::new(Arc::clone(&SYSTEM))
    }

    fn new(keeper: Arc<Keeper>) -> Self {
        Self { keeper, is_held: false }
    }

    /// Reports that the engine has work.
    pub(crate) fn hold(&mut self) {
        if !self.is_held {
            self.is_held = true;
            self.keeper.add();
        }
    }

    /// Reports that the engine has no work.
    pub(crate) fn release(&mut self) {
        if self.is_held {
            self.is_held = false;
            self.keeper.remove();
        }
    }
}

impl Drop for Awake {
    fn drop(&mut self) {
        self.release();
    }
}

/// Runs the program while engines hold it, on a thread that the first engine starts.
struct Keeper {
    /// The program and its arguments; `None` on systems without it.
    command: Option<Vec<String>>,
    linger: Duration,
    holders: Mutex<Holders>,
    changed: Condvar,
}

#[derive(Default)]
struct Holders {
    count: usize,
    has_thread: bool,
}

impl Keeper {
    fn new(command: Option<Vec<String>>, linger: Duration) -> Arc<Self> {
        Arc::new(Self { command, linger, holders: Mutex::default(), changed: Condvar::new() })
    }

    fn holders(&self) -> MutexGuard<'_, Holders> {
        self.holders.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn add(self: &Arc<Self>) {
        let mut holders = self.holders();
        holders.count += 1;
        if let (Some(command), false) = (self.command.clone(), holders.has_thread) {
            let keeper = Arc::clone(self);
            let run = move || keeper.run(&command);
            holders.has_thread = thread::Builder::new().name("awake".into()).spawn(run).is_ok();
        }
        drop(holders);
        self.changed.notify_all();
    }

    fn remove(&self) {
        self.holders().count -= 1;
        self.changed.notify_all();
    }

    /// Starts the program when work begins, and ends it after `linger` without work.
    fn run(&self, command: &[String]) {
        loop {
            drop(self.wait_while(|holders| holders.count == 0));
            let child = start(command);
            self.wait_for_rest();
            match child {
                Ok(mut child) => drop(child.kill().and_then(|()| child.wait())),
                Err(error) => tracing::debug!(%error, "cannot prevent the system from sleeping"),
            }
        }
    }

    fn wait_while(&self, condition: impl Fn(&Holders) -> bool) -> MutexGuard<'_, Holders> {
        let wait = self.changed.wait_while(self.holders(), |holders| condition(holders));
        wait.unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until no engine has had work for `linger`.
    fn wait_for_rest(&self) {
        loop {
            let holders = self.wait_while(|holders| holders.count > 0);
            let rest = self.changed.wait_timeout_while(holders, self.linger, |holders| holders.count == 0);
            if rest.unwrap_or_else(PoisonError::into_inner).1.timed_out() {
                return;
            }
        }
    }
}

fn start(command: &[String]) -> io::Result<Child> {
    let mut words = Command::new(&command[0]);
    words.args(&command[1..]).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn()
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::PathBuf;
    use std::time::Instant;

    use super::*;

    /// A stand-in for the program of macOS. It writes its process id to a file.
    fn fake(folder: &Path, linger: Duration) -> (PathBuf, Arc<Keeper>) {
        let log = folder.join("log");
        let script = format!("echo $$ >> '{}'; exec sleep 600", log.display());
        let command = ["/bin/sh", "-c", &script].map(str::to_owned).to_vec();
        (log, Keeper::new(Some(command), linger))
    }

    fn started(log: &Path) -> Vec<String> {
        fs::read_to_string(log).unwrap_or_default().lines().map(str::to_owned).collect()
    }

    fn runs(process: &str) -> bool {
        let asked = Command::new("kill").args(["-0", process]).stderr(Stdio::null()).status();
        asked.expect("kill runs").success()
    }

    fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
        let patience = Instant::now() + Duration::from_secs(30);
        while !is_so() {
            assert!(Instant::now() < patience, "{what}");
            thread::sleep(Duration::from_millis(5));
        }
    }

    #[test]
    fn engines_share_one_program_that_ends_with_the_last_work() {
        let folder = tempfile::tempdir().expect("there is room");
        let (log, keeper) = fake(folder.path(), Duration::from_millis(20));
        let mut engines: Vec<Awake> = (0..50).map(|_| Awake::new(Arc::clone(&keeper))).collect();
        for engine in &mut engines {
            engine.hold();
            engine.hold();
        }
        wait_until("the program starts", || !started(&log).is_empty());
        let last = engines.pop().expect("fifty");
        engines[0].release();
        drop(engines);
        thread::sleep(Duration::from_millis(200));
        let [process] = &started(&log)[..] else { panic!("{:?}", started(&log)) };
        assert!(runs(process), "one engine has work");
        drop(last);
        wait_until("the program ends", || !runs(process));

        let mut again = Awake::new(keeper);
        again.hold();
        wait_until("it starts again", || started(&log).len() == 2);
        again.release();
        wait_until("it ends again", || !runs(&started(&log)[1]));
    }

    #[test]
    fn requests_in_a_row_share_a_program() {
        let folder = tempfile::tempdir().expect("there is room");
        let (log, keeper) = fake(folder.path(), Duration::from_mins(10));
        let mut engine = Awake::new(keeper);
        for _ in 0..20 {
            engine.hold();
            wait_until("the program starts", || !started(&log).is_empty());
            engine.release();
        }
        thread::sleep(Duration::from_millis(50));
        let [process] = &started(&log)[..] else { panic!("{:?}", started(&log)) };
        assert!(Command::new("kill").arg(process).status().expect("kill runs").success());
    }

    #[test]
    fn a_missing_program_is_no_fault() {
        for command in [None, Some(vec!["/nowhere/caffeinate".to_owned()])] {
            Awake::new(Keeper::new(command, Duration::ZERO)).hold();
        }
    }
}
