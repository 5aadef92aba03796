//! The signals that end the server: the first drains, the second aborts.

use std::process::{Command, Stdio};

use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::config::StartError;
use crate::state::Shutdown;

/// Watches for SIGTERM, SIGINT, and SIGHUP of a terminal that closes.
pub(crate) fn watch(shutdown: &Shutdown) -> Result<(), StartError> {
    let listen = |kind| signal(kind).map_err(|error| StartError::about("signals", error));
    let mut terminate = listen(SignalKind::terminate())?;
    let mut interrupt = listen(SignalKind::interrupt())?;
    let mut hangup = if ignores_hangup() { None } else { Some(listen(SignalKind::hangup())?) };
    let Shutdown { draining, forced } = shutdown.clone();
    tokio::spawn(async move {
        for step in [draining, forced] {
            tokio::select! {
                _ = terminate.recv() => {}
                _ = interrupt.recv() => {}
                () = receive(hangup.as_mut()) => {}
            }
            step.cancel();
        }
    });
    Ok(())
}

async fn receive(signal: Option<&mut Signal>) {
    match signal {
        Some(signal) => drop(signal.recv().await),
        None => std::future::pending().await,
    }
}

/// Whether the program was started to outlive its terminal, as by nohup: then SIGHUP was ignored from the start, and stays so.
fn ignores_hangup() -> bool {
    let id = std::process::id().to_string();
    let output = Command::new("ps").args(["-o", "ignored=", "-p", &id]).stderr(Stdio::null()).output();
    let mask = output.ok().and_then(|output| String::from_utf8(output.stdout).ok());
    let mask = mask.and_then(|mask| u128::from_str_radix(mask.trim(), 16).ok());
    // SIGHUP is signal 1, the lowest bit.
    mask.is_some_and(|mask| mask & 1 == 1)
}
