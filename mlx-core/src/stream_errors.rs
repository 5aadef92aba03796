//! Where MLX reports the errors of its CPU streams. Invariant: only waits report them.

use std::sync::OnceLock;
use std::sync::mpsc;
use std::thread;

use mlx_rs::Array;

use crate::error::{Error, Result};

/// Makes MLX's scheduler on a thread that does nothing else, unless this was done before.
///
/// MLX reports an error of a stream to the next wait for it. The thread that made the scheduler is an exception: it gets the error when
/// it enqueues other work, and no wait reports it again, so a failed step would pass for a good one. That thread must therefore enqueue
/// nothing. It never ends either, because a later thread could get its id.
pub(crate) fn report_to_waits_only() -> Result<()> {
    static MADE: OnceLock<Option<String>> = OnceLock::new();
    match MADE.get_or_init(|| make().err()) {
        None => Ok(()),
        Some(error) => Err(Error::Mlx(format!("the scheduler cannot be started: {error}"))),
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
