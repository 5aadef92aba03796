//! Starts children, watches their progress, and replaces those that died.

use std::io::BufReader;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::Child;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{JoinHandle, spawn};
use std::time::{Duration, Instant};

use mlx_core::engine::{EngineOptions, RemoteFacts};
use mlx_core::{Error, Result};

use crate::connection::{Connection, frame};
use crate::deadline::{Deadline, LOAD};
use crate::death::Death;
use crate::frame::{self as frames, FrameError};
use crate::message::{FromChild, ToChild};
use crate::program::Program;
use crate::shared::Front;
use crate::state::{Notice, Phase};

/// The number of children in a row that may fail before they have loaded the model.
const MAX_FAILED_LOADS: u32 = 3;

/// The time for a child to save prefixes and end.
const STOP: Duration = Duration::from_secs(30);

/// A function that receives the bytes of a model that were read, and the total.
pub(crate) type OnProgress = Arc<Mutex<Box<dyn FnMut(u64, u64) + Send>>>;

/// The thread that owns the child.
pub(crate) struct Supervisor {
    pub(crate) front: Arc<Front>,
    pub(crate) program: Program,
    pub(crate) folder: PathBuf,
    pub(crate) options: EngineOptions,
    pub(crate) inbox: Receiver<Notice>,
    pub(crate) progress: OnProgress,
}

/// A running child with its threads.
struct Life {
    child: Child,
    connection: Arc<Connection>,
    reader: JoinHandle<()>,
}

/// The end of a child.
enum End {
    Died(Death),
    /// It could not load the model.
    Failed(Error),
    /// The last handle was dropped.
    Stopped,
}

impl Supervisor {
    /// Runs until the last handle is dropped or no child can be started. Sends the facts about the model, or the reason why it cannot be
    /// loaded.
    pub(crate) fn run(&self, ready: &Sender<Result<RemoteFacts>>) {
        let (mut facts, mut failures) = (None, 0);
        loop {
            let begun = Instant::now();
            let (end, loaded) = self.live(&mut facts, ready);
            failures = if loaded { 0 } else { failures + 1 };
            let death = match end {
                End::Stopped => return,
                End::Failed(error) if facts.is_none() => {
                    ready.send(Err(error)).ok();
                    return self.front.state().end("its model cannot be loaded");
                }
                End::Failed(error) => return self.end(&format!("its model cannot be loaded again: {error}")),
                End::Died(death) if facts.is_none() && failures >= MAX_FAILED_LOADS => {
                    ready.send(Err(Error::EngineStopped(format!("{death} while it loaded the model")))).ok();
                    return self.front.state().end("its model cannot be loaded");
                }
                End::Died(death) if failures >= MAX_FAILED_LOADS => {
                    return self
                        .end(&format!("{death} while it loaded the model, {failures} times in a row"));
                }
                End::Died(death) => death,
            };
            let cause = death.to_string();
            let requests = self.front.state().mourn(death);
            tracing::warn!(
                folder = %self.folder.display(),
                cause,
                lived_seconds = begun.elapsed().as_secs(),
                requests,
                "an engine's process died; it is started again, and its requests continue"
            );
        }
    }

    fn end(&self, why: &str) {
        tracing::error!(folder = %self.folder.display(), why, "an engine's process cannot be started again");
        self.front.state().end(why);
    }

    /// Starts a child and serves until its end. Returns true if it has loaded the model.
    fn live(&self, facts: &mut Option<RemoteFacts>, ready: &Sender<Result<RemoteFacts>>) -> (End, bool) {
        let mut life = match self.start() {
            Ok(life) => life,
            Err(error) => {
                let path = self.program.path.clone();
                return (End::Failed(Error::io(path, error)), false);
            }
        };
        let mut loaded = false;
        let end = loop {
            let notice = match self.next_notice() {
                Ok(notice) => notice,
                Err(death) => break End::Died(death),
            };
            match notice {
                Notice::Work => {}
                Notice::Stop => {
                    self.stop(&mut life);
                    break End::Stopped;
                }
                Notice::Closed(Some(error)) => break End::Died(Death::garbage(error)),
                Notice::Closed(None) => break End::Died(Death::ended(exit_of(&mut life.child))),
                Notice::Loaded(Err(error)) => break End::Failed(error),
                Notice::Loaded(Ok(new)) => match facts {
                    Some(known) if *known != *new => {
                        let changed = "the files of the model have changed, so its requests cannot continue";
                        break End::Failed(Error::EngineStopped(changed.into()));
                    }
                    _ => {
                        loaded = true;
                        self.resume(&life, &new);
                        if facts.is_none() {
                            *facts = Some((*new).clone());
                            ready.send(Ok(*new)).ok();
                        }
                    }
                },
            }
        };
        self.bury(life);
        (end, loaded)
    }

    /// Waits for a notice, and for the deadline of the child's work.
    fn next_notice(&self) -> Result<Notice, Death> {
        loop {
            let left = {
                let mut state = self.front.state();
                let loads = !matches!(state.phase, Phase::Running(_));
                state.progress.supervisor_sleeps = !loads && !state.is_busy();
                if state.progress.supervisor_sleeps { None } else { Some(state.progress.left()?) }
            };
            let notice = match left {
                None => self.inbox.recv().map_err(|_| RecvTimeoutError::Disconnected),
                Some(left) => self.inbox.recv_timeout(left),
            };
            match notice {
                Ok(notice) => return Ok(notice),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return Ok(Notice::Stop),
            }
        }
    }

    fn start(&self) -> std::io::Result<Life> {
        let (child, socket) = self.program.spawn()?;
        let connection = Arc::new(Connection::new(&socket)?);
        let start = ToChild::Start { folder: self.folder.clone(), options: Box::new(self.options.clone()) };
        connection.send(frame(&start).map_err(std::io::Error::other)?);
        self.front.state().progress.reset(load_time(0));
        let (front, progress) = (Arc::clone(&self.front), Arc::clone(&self.progress));
        let reader = spawn(move || read(socket, &front, &progress));
        Ok(Life { child, connection, reader })
    }

    /// Hands calls and sequences to a child that has loaded the model.
    fn resume(&self, life: &Life, facts: &RemoteFacts) {
        let mut state = self.front.state();
        let weights = facts.specs.iter().map(|spec| spec.weight_bytes).max().unwrap_or(0);
        state.progress.deadline = Deadline::new(weights);
        state.progress.reset(Deadline::answer());
        state.phase = Phase::Running(Arc::clone(&life.connection));
        state.hand_over();
        let calls: Vec<u64> = state.calls.keys().copied().collect();
        for call in calls {
            state.send(call);
        }
    }

    /// Asks the child to end.
    fn stop(&self, life: &mut Life) {
        if let Ok(frames) = frame(&ToChild::Stop) {
            life.connection.send(frames);
        }
        let begun = Instant::now();
        // It closes the connection when it ends.
        while let Some(left) = STOP.checked_sub(begun.elapsed()) {
            match self.inbox.recv_timeout(left) {
                Ok(Notice::Closed(_)) | Err(_) => break,
                Ok(_) => {}
            }
        }
    }

    /// Ends what is left of a child and its threads.
    fn bury(&self, life: Life) {
        let Life { mut child, connection, reader } = life;
        child.kill().ok();
        child.wait().ok();
        // The reader needs the lock to end.
        if let phase @ Phase::Running(_) = &mut self.front.state().phase {
            *phase = Phase::Starting;
        }
        drop(connection);
        reader.join().ok();
        // Its last notices are of no interest, except that the last handle was dropped.
        let notices: Vec<Notice> = self.inbox.try_iter().collect();
        if notices.iter().any(|notice| matches!(notice, Notice::Stop)) {
            self.front.notify(Notice::Stop);
        }
    }
}

/// Returns the status of a child that has closed its connection, after it has ended.
fn exit_of(child: &mut Child) -> Option<std::process::ExitStatus> {
    let begun = Instant::now();
    while begun.elapsed() < Duration::from_secs(1) {
        if let Ok(Some(status)) = child.try_wait() {
            return Some(status);
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    None
}

/// The time for the next bytes of a model with `total` bytes.
fn load_time(total: u64) -> Duration {
    LOAD + Duration::from_secs(total / 50_000_000)
}

/// Reads the messages of a child.
fn read(socket: UnixStream, front: &Front, progress: &OnProgress) {
    let (mut socket, mut buffer) = (BufReader::with_capacity(1 << 16, socket), Vec::new());
    loop {
        match frames::read(&mut socket, &mut buffer) {
            Ok(FromChild::Loading { read, total }) => {
                front.state().progress.reset(load_time(total));
                progress.lock().unwrap_or_else(PoisonError::into_inner)(read, total);
            }
            Ok(FromChild::Ready(facts)) => front.notify(Notice::Loaded(Ok(facts))),
            Ok(FromChild::Failed(error)) => front.notify(Notice::Loaded(Err(error.into()))),
            Ok(message) => front.state().receive(message),
            Err(FrameError::Garbage(error)) => return front.notify(Notice::Closed(Some(error))),
            Err(FrameError::Closed | FrameError::Io(_)) => return front.notify(Notice::Closed(None)),
        }
    }
}
