//! Starts children, watches their progress, and replaces dead ones.

use std::io::{BufReader, ErrorKind};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, ExitStatus};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

use mlx_core::distributed::GroupStart;
use mlx_core::engine::{EngineOptions, FolderStamp, RemoteFacts};
use mlx_core::{Error, Result};

use crate::connection::{Connection, frame};
use crate::deadline::{Deadline, LOAD};
use crate::death::{Death, Kind};
use crate::frame::{self as frames, FrameError};
use crate::group_file::GroupFile;
use crate::message::{FromChild, REPLACED, ToChild, VERSION};
use crate::parent::STOP;
use crate::pause::{BUSY_PAUSE, Pauses};
use crate::program::Program;
use crate::shared::Front;
use crate::state::{Notice, Phase};

/// The number of children in a row that may fail before they have loaded the model.
const MAX_FAILED_LOADS: u32 = 3;

/// The time for a child that was killed to end, before another one is started.
const KILL: Duration = Duration::from_secs(10);

/// The time for a child that has closed its connection to end.
const EXIT: Duration = Duration::from_secs(1);

/// The time between two attempts to load a model while another machine is away.
const AWAY_PAUSE: Duration = Duration::from_secs(1);

/// The time that sequences wait for a machine that is away.
const AWAY: Duration = Duration::from_mins(10);

/// A longer delay of a timer means that this process itself did not run.
const OVERSLEPT: Duration = Duration::from_secs(1);

/// A function that receives the bytes of a model that were read, and the total.
pub(crate) type OnProgress = Arc<Mutex<Box<dyn FnMut(u64, u64) + Send>>>;

/// The thread that owns the child.
pub(crate) struct Supervisor {
    pub(crate) front: Arc<Front>,
    pub(crate) program: Program,
    pub(crate) folder: PathBuf,
    pub(crate) options: EngineOptions,
    /// The state of the model's files. Only the same files can continue a sequence.
    pub(crate) stamp: Option<FolderStamp>,
    pub(crate) inbox: Receiver<Notice>,
    pub(crate) progress: OnProgress,
}

/// A running child with its threads.
struct Life {
    child: Child,
    connection: Arc<Connection>,
    reader: JoinHandle<()>,
    _group: Option<GroupFile>,
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
        let (mut facts, mut failures, mut pauses) = (None, 0, Pauses::default());
        let mut away: Option<Instant> = None;
        loop {
            let begun = Instant::now();
            let (end, loaded) = match self.live(&mut facts, ready) {
                // A machine that is lost during a load is away, and no request is at fault.
                (End::Died(death), false) if death.kind == Kind::Machine => {
                    (End::Failed(Error::Distributed(death.cause)), false)
                }
                end => end,
            };
            failures = if loaded { 0 } else { failures + 1 };
            away = away.filter(|_| !loaded);
            let death = match end {
                End::Stopped => return,
                End::Failed(error) if facts.is_none() => {
                    ready.send(Err(error)).ok();
                    return self.front.state().end("its model cannot be loaded");
                }
                End::Failed(Error::Distributed(why)) => {
                    failures = 0;
                    let since = *away.get_or_insert_with(Instant::now);
                    tracing::warn!(why, "a machine that holds a part of the model is away");
                    self.front.state().wait_for_machine(&why, since.elapsed() > AWAY);
                    if !self.pause(AWAY_PAUSE, AWAY_PAUSE) {
                        return;
                    }
                    continue;
                }
                End::Failed(error) => return self.end(&format!("its model cannot be loaded again: {error}")),
                End::Died(death) if facts.is_none() && failures >= MAX_FAILED_LOADS => {
                    let why = format!("{death} before it had loaded the model");
                    ready.send(Err(Error::EngineStopped(why))).ok();
                    return self.front.state().end("its model cannot be loaded");
                }
                End::Died(death) if failures >= MAX_FAILED_LOADS => {
                    return self
                        .end(&format!("{death} before it had loaded the model, {failures} times in a row"));
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
            let idle = pauses.after(begun.elapsed());
            let busy = idle.min(BUSY_PAUSE);
            if !self.pause(if facts.is_none() { busy } else { idle }, busy) {
                return;
            }
        }
    }

    /// Waits for `idle`, or with work for `busy`. Returns false if the last handle was dropped.
    fn pause(&self, idle: Duration, busy: Duration) -> bool {
        let (begun, mut pause) = (Instant::now(), idle);
        {
            let mut state = self.front.state();
            if state.is_busy() {
                pause = busy;
            } else {
                state.progress.supervisor_sleeps = true;
            }
        }
        while let Some(left) = pause.checked_sub(begun.elapsed()) {
            match self.inbox.recv_timeout(left) {
                Ok(Notice::Stop) | Err(RecvTimeoutError::Disconnected) => return false,
                Ok(Notice::Work) => pause = busy,
                Ok(_) => {}
                Err(RecvTimeoutError::Timeout) => break,
            }
        }
        self.front.state().progress.supervisor_sleeps = false;
        true
    }

    fn end(&self, why: &str) {
        tracing::error!(folder = %self.folder.display(), why, "an engine's process cannot be started again");
        self.front.state().end(why);
    }

    /// Starts a child and serves until its end. Returns true if it has loaded the model.
    fn live(&self, facts: &mut Option<RemoteFacts>, ready: &Sender<Result<RemoteFacts>>) -> (End, bool) {
        if stamp(&self.folder, &self.options) != self.stamp {
            return (End::Failed(Error::EngineStopped("the model's files have changed".into())), false);
        }
        let mut life = match self.start() {
            Ok(life) => life,
            Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::PermissionDenied) => {
                tracing::error!(program = %self.program.path.display(), %error, "an engine's program cannot be run");
                return (End::Failed(Error::EngineStopped(REPLACED.into())), false);
            }
            Err(error) => return (End::Died(Death::unstarted(&error)), false),
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
                    self.stop(&life);
                    break End::Stopped;
                }
                Notice::Closed(Some(death)) => break End::Died(death),
                Notice::Closed(None) => break End::Died(Death::ended(wait(&mut life.child, EXIT))),
                Notice::Loaded(Err(error)) => break End::Failed(error),
                Notice::Loaded(Ok(new)) => {
                    if let Some(error) = facts.as_ref().and_then(|known| known.difference(&new)) {
                        break End::Failed(error);
                    }
                    loaded = true;
                    self.resume(&life, &new);
                    if facts.is_none() {
                        *facts = Some((*new).clone());
                        ready.send(Ok(*new)).ok();
                    }
                }
            }
        };
        if let End::Died(death) = &end {
            // Its end may take a while. Meanwhile, nothing is sent to it.
            self.front.state().phase = Phase::Restarting(death.clone());
        }
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
            let begun = Instant::now();
            let notice = match left {
                None => self.inbox.recv().map_err(|_| RecvTimeoutError::Disconnected),
                Some(left) => self.inbox.recv_timeout(left),
            };
            // This process was stopped itself, perhaps with its child.
            if left.is_some_and(|left| begun.elapsed() > left + OVERSLEPT) {
                self.front.state().progress.touch();
            }
            match notice {
                Ok(notice) => return Ok(notice),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return Ok(Notice::Stop),
            }
        }
    }

    fn start(&self) -> std::io::Result<Life> {
        // The child of a divided model is rank 0.
        let group = self.options.workers.as_ref().map(|workers| -> std::io::Result<_> {
            let start = GroupStart::new(workers).map_err(std::io::Error::other)?;
            let file = GroupFile::new()?;
            Ok((file.environment(&start, 0), file))
        });
        let (environment, group) = group.transpose()?.unzip();
        let (mut child, socket) = self.program.spawn(environment.into_iter().flatten())?;
        match self.attend(socket) {
            Ok((connection, reader)) => Ok(Life { child, connection, reader, _group: group }),
            Err(error) => {
                child.kill().ok();
                child.wait().ok();
                Err(error)
            }
        }
    }

    /// Has a new child load the model. Returns its connection and the thread that reads from it.
    fn attend(&self, socket: UnixStream) -> std::io::Result<(Arc<Connection>, JoinHandle<()>)> {
        let connection = Arc::new(Connection::new(&socket)?);
        let start = ToChild::Start { folder: self.folder.clone(), options: Box::new(self.options.clone()) };
        let mut frames = Vec::new();
        frames::append(&VERSION, &mut frames).map_err(std::io::Error::other)?;
        frames::append(&start, &mut frames).map_err(std::io::Error::other)?;
        connection.send(frames);
        self.front.state().progress.reset(load_time(0));
        let (front, progress) = (Arc::clone(&self.front), Arc::clone(&self.progress));
        let read = move || read(socket, &front, &progress);
        let reader = Builder::new().name("engine-reader".into()).spawn(read)?;
        Ok((connection, reader))
    }

    /// Hands calls and sequences to a child that has loaded the model.
    fn resume(&self, life: &Life, facts: &RemoteFacts) {
        let mut state = self.front.state();
        let weights = facts.specs.iter().map(|spec| spec.weight_bytes).max().unwrap_or(0);
        let silence = self.options.workers.as_ref().map(|workers| workers.heartbeat_timeout);
        let deadline = Deadline::new(weights, silence.unwrap_or_default());
        state.progress.deadline = deadline;
        state.progress.reset(deadline.answer());
        state.phase = Phase::Running(Arc::clone(&life.connection));
        state.resume();
    }

    /// Asks the child to end. One that loads the model has nothing to save, and one that hangs cannot.
    fn stop(&self, life: &Life) {
        if !matches!(self.front.state().phase, Phase::Running(_)) {
            return;
        }
        if let Ok(frames) = frame(&ToChild::Stop) {
            life.connection.send(frames);
        }
        let begun = Instant::now();
        // It closes the connection when it ends.
        while let Some(left) = STOP.checked_sub(begun.elapsed()) {
            let step = {
                let state = self.front.state();
                if state.progress.is_in_step() { state.progress.left() } else { Ok(left) }
            };
            let Ok(step) = step else { return };
            match self.inbox.recv_timeout(step.min(left)) {
                Ok(Notice::Closed(_)) | Err(RecvTimeoutError::Disconnected) => return,
                Ok(_) | Err(RecvTimeoutError::Timeout) => {}
            }
        }
    }

    /// Ends what is left of a child and its threads.
    fn bury(&self, life: Life) {
        let Life { mut child, connection, reader, _group } = life;
        // The reader needs the lock to end.
        if let phase @ Phase::Running(_) = &mut self.front.state().phase {
            *phase = Phase::Starting;
        }
        child.kill().ok();
        if wait(&mut child, KILL).is_none() {
            // The kernel cannot end it yet, for example because a driver or a disk does not answer.
            tracing::warn!(process = child.id(), "an engine's process was killed and has not ended yet");
            Builder::new().name("engine-reaper".into()).spawn(move || child.wait()).ok();
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

/// Returns the status of a child once it has ended, if that is within `limit`.
fn wait(child: &mut Child, limit: Duration) -> Option<ExitStatus> {
    let begun = Instant::now();
    loop {
        match child.try_wait() {
            Ok(Some(status)) => return Some(status),
            _ if begun.elapsed() >= limit => return None,
            _ => std::thread::sleep(Duration::from_millis(1)),
        }
    }
}

/// Returns the state of the files of a model and its adapters.
pub(crate) fn stamp(folder: &Path, options: &EngineOptions) -> Option<FolderStamp> {
    FolderStamp::of(folder).and_then(|stamp| stamp.with(&options.adapters)).ok()
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
            // Its sequences are about to end with an error here, but continue in the next child.
            Ok(FromChild::LostMachine(message)) => {
                return front.notify(Notice::Closed(Some(Death::lost_machine(message))));
            }
            Ok(message) => front.state().receive(message),
            Err(FrameError::Garbage(error)) => {
                return front.notify(Notice::Closed(Some(Death::garbage(error))));
            }
            Err(FrameError::Closed | FrameError::Io(_)) => return front.notify(Notice::Closed(None)),
        }
    }
}
