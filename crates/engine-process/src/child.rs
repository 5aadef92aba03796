//! The child: runs an engine for the process at the other end of its standard input.

use std::io::{self, BufReader};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{Builder, sleep, spawn};

use mlx_core::Error;
use mlx_core::engine::{Engine, EngineOptions, EngineReport, StepMonitor, StepReport};

use crate::call::Calls;
use crate::fault::Faults;
use crate::frame::{self, FrameError};
use crate::memory::with_memory;
use crate::message::{FromChild, REPLACED, ToChild, VERSION};
use crate::outbox::{Output, write};
use crate::parent::{STOP, end, end_with_parent};

/// The number of bytes of a model between two reports of a load.
const LOAD_STEP: u64 = 16 << 20;

/// Runs the child. Returns once the parent has asked it to stop. It ends at once if the parent is gone.
///
/// # Errors
/// If standard input is not the socket of a parent.
pub fn run() -> Result<(), String> {
    let about = |error: io::Error| format!("standard input is no socket of a server: {error}");
    let socket = UnixStream::from(io::stdin().as_fd().try_clone_to_owned().map_err(about)?);
    socket.peer_addr().map_err(about)?;
    end_with_parent();
    // A service manager may signal all processes, but the server still lets its requests finish. The socket says when that is done.
    mlx_core::ignore_requests_to_end();
    let (outbox, outputs) = channel();
    let mut out = socket.try_clone().map_err(about)?;
    let writer = spawn(move || write(&mut out, &outputs));
    let mut socket = BufReader::new(socket);
    let version = frame::read::<String>(&mut socket, &mut Vec::new());
    let version = version.map_err(|error| format!("no server sends its version: {error}"))?;
    let (requests, inbox) = channel();
    let mut served = Ok(());
    let started = if version == VERSION {
        spawn(move || read(socket, &requests));
        let Ok(ToChild::Start { folder, options }) = inbox.recv() else {
            return Err("the first message is not that of a server".to_owned());
        };
        start(&folder, *options, &outbox)
    } else {
        Err(Error::EngineStopped(REPLACED.into()))
    };
    match started {
        Err(error) => drop(outbox.send(Output::Message(FromChild::Failed(error.into())))),
        Ok(engine) => {
            let facts = Box::new(engine.facts());
            outbox.send(Output::Message(FromChild::Ready(facts))).ok();
            let stats = with_memory(engine.stats());
            outbox.send(Output::Message(FromChild::Stats(stats))).ok();
            served = serve(&engine, &inbox, &outbox);
            // Saves prefixes and frees the device.
            drop(engine);
        }
    }
    drop(outbox);
    // All messages are written once every sender is dropped.
    writer.join().ok();
    served
}

/// Reads messages until the parent is gone or asks for the end.
fn read(mut socket: BufReader<UnixStream>, requests: &Sender<ToChild<'static>>) {
    let mut buffer = Vec::new();
    let mut stops = false;
    loop {
        match frame::read::<ToChild<'static>>(&mut socket, &mut buffer) {
            Ok(message) => {
                stops |= matches!(message, ToChild::Stop);
                if requests.send(message).is_err() {
                    return;
                }
            }
            Err(FrameError::Closed) if stops => {
                // It saves prefixes, but not for ever: nobody is left who would kill it.
                sleep(STOP);
                end();
            }
            Err(_) => end(),
        }
    }
}

fn start(folder: &Path, options: EngineOptions, outbox: &Sender<Output>) -> mlx_core::Result<Engine> {
    let (loading, steps, faults) = (outbox.clone(), outbox.clone(), Faults::from_environment());
    let mut reported = 0;
    let progress = move |read: u64, total: u64| {
        if read >= reported + LOAD_STEP || read == total {
            reported = read;
            loading.send(Output::Message(FromChild::Loading { read, total })).ok();
        }
    };
    let send = move |message| drop(steps.send(message));
    let monitor = StepMonitor::new(move |report| match report {
        EngineReport::LostMachine(message) => send(Output::Message(FromChild::LostMachine(message))),
        EngineReport::Step(report) => {
            let StepReport { is_step, expected, stats } = *report;
            send(Output::Message(FromChild::Step { is_step, expected, stats: with_memory(stats) }));
            if is_step {
                faults.occur(|| send(Output::Raw(b"\xc1 no message".repeat(64))));
            }
        }
    });
    let options = EngineOptions { step_monitor: Some(monitor), ..options };
    Engine::start(folder, &options, progress)
}

/// Answers calls until the parent asks for the end, or the engine has failed. Then the next child answers them.
fn serve(engine: &Engine, inbox: &Receiver<ToChild<'static>>, outbox: &Sender<Output>) -> Result<(), String> {
    let calls = Arc::new(Calls::new(engine.clone(), outbox.clone()));
    while let Ok(message) = inbox.recv() {
        if matches!(message, ToChild::Stop) {
            break;
        }
        if !engine.is_ready() {
            return Err("the engine has stopped".to_owned());
        }
        match message {
            ToChild::Stop | ToChild::Start { .. } => end(),
            ToChild::Check { call, request } if Calls::is_quick(&request) => calls.check(call, *request),
            ToChild::Check { call, request } => {
                in_thread(&calls, move |calls| calls.check(call, *request));
            }
            ToChild::Exactness { call, adapter } => {
                in_thread(&calls, move |calls| calls.exactness(call, adapter));
            }
            ToChild::LastMiss { call } => calls.last_miss(call),
            ToChild::Submit { call, is_resumed, requests, sequences } => {
                calls.submit(call, is_resumed, requests, sequences);
            }
            ToChild::Cancel { id } => calls.cancel(id),
        }
    }
    Ok(())
}

/// Answers a call in a separate thread, or in this one if the system has no memory for another.
fn in_thread(calls: &Arc<Calls>, answer: impl FnOnce(&Calls) + Send + 'static) {
    let answer = Arc::new(Mutex::new(Some(answer)));
    let (own, task) = (Arc::clone(calls), Arc::clone(&answer));
    if Builder::new().name("engine-call".into()).spawn(move || run_once(&task, &own)).is_err() {
        run_once(&answer, calls);
    }
}

/// Answers a call that no other thread has.
fn run_once(answer: &Mutex<Option<impl FnOnce(&Calls)>>, calls: &Calls) {
    let answer = answer.lock().unwrap_or_else(PoisonError::into_inner).take();
    if let Some(answer) = answer {
        answer(calls);
    }
}
