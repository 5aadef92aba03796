//! The signals that stop the server. The first one drains, the second one aborts.

use mlx_core::ignores_hangup;
use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::config::StartError;
use crate::state::Shutdown;

/// Handles SIGTERM, SIGINT, and the SIGHUP of a closing terminal. A server started by nohup continues to ignore SIGHUP.
pub(crate) fn watch(shutdown: &Shutdown) -> Result<(), StartError> {
    let listen = |kind| signal(kind).map_err(|error| StartError::new("signals", error));
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
