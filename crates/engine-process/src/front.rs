//! The engine as its front ends see it, while children come and go.

use std::borrow::Cow;
use std::path::Path;
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::thread::{Builder, JoinHandle};

use mlx_core::distributed::Workers;
use mlx_core::engine::{
    Engine, EngineOptions, EngineStats, Exactness, Outage, PrefixMiss, RemoteEngine, RemoteRequest,
    RemoteSequence, RequestOptions, open_folder,
};
use mlx_core::{Error, Result};

use crate::connection::frame;
use crate::death::Kind;
use crate::message::{Reply, Request, ToChild};
use crate::program::Program;
use crate::sequence::Sequence as Record;
use crate::shared::Front;
use crate::state::{Notice, Phase};
use crate::submission::submit_message;
use crate::supervisor::{Supervisor, stamp};

/// Starts an engine in a child process. `progress` is called with the bytes read so far and the total. An engine with options that only
/// this process can use, such as a custom drafter, starts in this process.
pub fn start(
    program: &Program,
    folder: &Path,
    options: &EngineOptions,
    progress: impl FnMut(u64, u64) + Send + 'static,
) -> Result<Engine> {
    if !options.is_portable() {
        return Engine::start(folder, options, progress);
    }
    let workers = options.workers.clone().map(Workers::resolved).transpose()?;
    let options = &EngineOptions { workers, ..options.clone() };
    let (notices, inbox) = channel();
    let front = Arc::new(Front::new(notices));
    let (ready, loaded) = channel();
    let supervisor = Supervisor {
        front: Arc::clone(&front),
        program: program.clone(),
        folder: folder.to_owned(),
        options: options.clone(),
        stamp: stamp(folder, options),
        inbox,
        progress: Arc::new(Mutex::new(Box::new(progress))),
    };
    let stopped = |error: std::io::Error| Error::EngineStopped(format!("cannot start a thread: {error}"));
    // The kernel ends a child with the thread that started it, so this thread lives as long as the engine.
    let run = move || supervisor.run(&ready);
    let thread = Builder::new().name("engine-process".into()).spawn(run).map_err(stopped)?;
    let engine = Arc::new(ProcessEngine { front, supervisor: Some(thread) });
    // Reads the tokenizer while the child loads the model.
    let folder = open_folder(folder, options)?;
    let facts = loaded.recv().map_err(|_| Error::EngineStopped("its supervisor has ended".into()))??;
    Ok(Engine::remote(folder, options.exact, facts, engine))
}

/// An engine in a child process. Dropping it ends the process.
struct ProcessEngine {
    front: Arc<Front>,
    supervisor: Option<JoinHandle<()>>,
}

impl RemoteEngine for ProcessEngine {
    fn is_ready(&self) -> bool {
        !matches!(self.front.state().phase, Phase::Ended(_))
    }

    fn outage(&self) -> Option<Outage> {
        match &self.front.state().phase {
            Phase::Restarting(death) if death.kind == Kind::Machine => {
                Some(Outage::Machine(death.to_string()))
            }
            Phase::Restarting(death) => Some(Outage::Process(format!("{death}; it is being started again"))),
            Phase::Away(why) => Some(Outage::Machine(why.clone())),
            Phase::Starting | Phase::Running(_) | Phase::Ended(_) => None,
        }
    }

    fn stats(&self) -> EngineStats {
        self.front.state().stats()
    }

    fn last_miss(&self) -> Option<PrefixMiss> {
        let call = self.front.next();
        match self.front.call(call, &ToChild::LastMiss { call }) {
            Ok(Reply::LastMiss(miss)) => miss,
            _ => None,
        }
    }

    fn exactness(&self, adapter: usize) -> Result<Exactness> {
        let call = self.front.next();
        match self.front.call(call, &ToChild::Exactness { call, adapter })? {
            Reply::Exactness(level) => Ok(level),
            _ => Err(unexpected()),
        }
    }

    fn check(&self, adapter: usize, prompt: Vec<u32>, options: &RequestOptions) -> Result<RemoteRequest> {
        let call = self.front.next();
        let request = Request { adapter, prompt: Cow::Borrowed(&prompt), options: Cow::Borrowed(options) };
        match self.front.call(call, &ToChild::Check { call, request: Box::new(request) })? {
            Reply::Checked(checked) => Ok(RemoteRequest {
                adapter,
                options: Arc::new(options.clone()),
                seed: checked.seed,
                exactness: checked.exactness,
                prompt: Arc::new(prompt),
            }),
            _ => Err(unexpected()),
        }
    }

    fn submit(&self, sequences: Vec<RemoteSequence>) -> Result<()> {
        let call = self.front.next();
        let sequences: Vec<_> =
            sequences.into_iter().map(|it| (self.front.next(), Record::new(call, it))).collect();
        let records: Vec<_> = sequences.iter().map(|(id, sequence)| (*id, sequence)).collect();
        let frames = frame(&submit_message(call, false, &records));
        drop(records);
        let frames = frames.map_err(|error| Error::Internal(error.to_string()))?;
        match self.front.call_with(call, frames, sequences)? {
            Reply::Submitted => Ok(()),
            _ => Err(unexpected()),
        }
    }
}

impl Drop for ProcessEngine {
    fn drop(&mut self) {
        self.front.notify(Notice::Stop);
        if let Some(supervisor) = self.supervisor.take() {
            supervisor.join().ok();
        }
    }
}

fn unexpected() -> Error {
    Error::Internal("the engine's process sent another answer than that of the call".into())
}
