//! The reporting of errors in MLX's CPU streams. Invariant: only waits report them.

use std::sync::OnceLock;
use std::sync::mpsc;
use std::thread;

use mlx_rs::Array;

use crate::error::{Error, Result};

/// Creates MLX's scheduler on a thread that does nothing else, unless it was already created.
///
/// MLX reports an error of a stream to the next wait for it, with one exception. The thread that created the scheduler gets the error when
/// it enqueues other work, and no wait reports it again. A failed step would then appear successful. Therefore that thread must not enqueue
/// anything. It never ends either, because a later thread could get its id.
pub(crate) fn report_to_waits_only() -> Result<()> {
    static MADE: OnceLock<Option<String>> = OnceLock::new();
    match MADE.get_or_init(|| make().err()) {
        None => Ok(()),
        Some(error) => Err(Error::Mlx(format!("cannot start the scheduler: {error}"))),
    }
}

fn make() -> Result<(), String> {
    let (sender, receiver) = mpsc::channel();
    let run = move || {
        let _ = sender.send(first_operation().map_err(|error| error.to_string()));
        loop {
            thread::park();
        }
    };
    thread::Builder::new().name("mlx-scheduler".into()).spawn(run).map_err(|error| error.to_string())?;
    receiver.recv().map_err(|error| error.to_string())?
}

fn first_operation() -> Result<()> {
    let one = Array::from_slice(&[1f32], &[1]);
    Ok(one.add(&one)?.eval()?)
}
