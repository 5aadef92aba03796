//! The child: runs an engine for the process at the other end of its standard input.

use std::io::{self, BufReader};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::spawn;

use mlx_core::engine::{Engine, EngineOptions, StepMonitor, StepReport};

use crate::call::Calls;
use crate::fault::Faults;
use crate::frame::{self, FrameError};
use crate::message::{FromChild, ToChild};
use crate::outbox::{Output, write};
use crate::parent::{end, end_with_parent};

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
    let (outbox, outputs) = channel();
    let mut out = socket.try_clone().map_err(about)?;
    let writer = spawn(move || write(&mut out, &outputs));
    let (requests, inbox) = channel();
    spawn(move || read(socket, &requests));
    let Ok(ToChild::Start { folder, options }) = inbox.recv() else {
        return Err("the first message is not that of a server".to_owned());
    };
    match start(&folder, *options, &outbox) {
        Err(error) => drop(outbox.send(Output::Message(FromChild::Failed(error.into())))),
        Ok(engine) => {
            let facts = Box::new(engine.facts());
            outbox.send(Output::Message(FromChild::Ready(facts))).ok();
            serve(&engine, &inbox, &outbox);
            // Saves prefixes and frees the device.
            drop(engine);
        }
    }
    drop(outbox);
    // All messages are written once every sender is dropped.
    writer.join().ok();
    Ok(())
}

/// Reads messages until the parent is gone or asks for the end.
fn read(socket: UnixStream, requests: &Sender<ToChild<'static>>) {
    let (mut socket, mut buffer) = (BufReader::new(socket), Vec::new());
    let mut stops = false;
    loop {
        match frame::read::<ToChild<'static>>(&mut socket, &mut buffer) {
            Ok(message) => {
                stops |= matches!(message, ToChild::Stop);
                if requests.send(message).is_err() {
                    return;
                }
            }
            Err(FrameError::Closed) if stops => return,
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
    let monitor = StepMonitor::new(move |StepReport { is_step, expected, stats }| {
        steps.send(Output::Message(FromChild::Step { is_step, expected, stats })).ok();
        if is_step {
            faults.occur(|| drop(steps.send(Output::Raw(b"\xc1 no message".repeat(64)))));
        }
    });
    let options = EngineOptions { step_monitor: Some(monitor), ..options };
    Engine::start(folder, &options, progress)
}

/// Answers calls until the parent asks for the end.
fn serve(engine: &Engine, inbox: &Receiver<ToChild<'static>>, outbox: &Sender<Output>) {
    let calls = Arc::new(Calls::new(engine.clone(), outbox.clone()));
    while let Ok(message) = inbox.recv() {
        match message {
            ToChild::Stop => return,
            ToChild::Start { .. } => end(),
            ToChild::Check { call, request } if Calls::is_quick(&request) => calls.check(call, *request),
            ToChild::Check { call, request } => {
                let calls = Arc::clone(&calls);
                spawn(move || calls.check(call, *request));
            }
            ToChild::Exactness { call, adapter } => {
                let calls = Arc::clone(&calls);
                spawn(move || calls.exactness(call, adapter));
            }
            ToChild::LastMiss { call } => calls.last_miss(call),
            ToChild::Submit { call, is_resumed, requests, sequences } => {
                calls.submit(call, is_resumed, requests, sequences);
            }
            ToChild::Cancel { id } => calls.cancel(id),
        }
    }
}
