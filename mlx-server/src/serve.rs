//! Accepts connections, each with its time limits, until the server shuts down.

use std::sync::atomic::Ordering;
use std::time::Duration;

use axum::Router;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::task::TaskTracker;

use crate::config::{LimitConfig, StartError};
use crate::connection::WriteTimeout;
use crate::state::{AppState, Shutdown};

/// How long aborted answers may take to send their error event.
const ABORT_GRACE: Duration = Duration::from_secs(5);

/// Serves requests until a signal arrives.
pub(crate) async fn serve(state: AppState) -> Result<(), StartError> {
    let address = state.config.address();
    let listener = TcpListener::bind(address).await.map_err(|error| StartError::about(address, error))?;
    let address = listener.local_addr().map_err(|error| StartError::about("listening", error))?;
    tracing::info!(%address, "listening");
    watch_signals(&state.shutdown)?;
    tokio::spawn(state.models.clone().reap());
    let preload = tokio::spawn(preload(state.clone()));
    let connections = TaskTracker::new();
    accept(&listener, &state, &connections).await;
    drop(listener);
    connections.close();
    drain(&state, &connections).await;
    // The server ends if a preloaded model fails to load.
    match tokio::time::timeout(Duration::from_millis(100), preload).await {
        Ok(Ok(outcome)) => outcome,
        _ => Ok(()),
    }
}

async fn preload(state: AppState) -> Result<(), StartError> {
    if !state.config.models.preload {
        return Ok(());
    }
    let loaded = state.models.preload().await;
    match loaded {
        Ok(()) => {
            state.started.store(true, Ordering::Relaxed);
            tracing::info!("all models are loaded");
            Ok(())
        }
        Err(error) => {
            state.shutdown.draining.cancel();
            Err(StartError::about("--preload", error.response().error.message))
        }
    }
}

async fn accept(listener: &TcpListener, state: &AppState, connections: &TaskTracker) {
    let app = crate::app(state.clone());
    let draining = &state.shutdown.draining;
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = draining.cancelled() => return,
        };
        match accepted {
            Ok((stream, _)) => {
                let (limits, draining) = (state.config.limits.clone(), draining.clone());
                connections.spawn(answer(
                    stream,
                    app.clone(),
                    limits,
                    async move { draining.cancelled().await },
                ));
            }
            Err(error) => {
                // Most likely too many open files; some of them will be closed soon.
                tracing::warn!(%error, "accepting a connection failed");
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        }
    }
}

/// Serves the requests of one connection.
async fn answer(stream: TcpStream, app: Router, limits: LimitConfig, draining: impl Future<Output = ()>) {
    // Tokens are small; Nagle's algorithm would delay each of them.
    stream.set_nodelay(true).ok();
    let io = TokioIo::new(WriteTimeout::new(stream, limits.stream_idle_timeout.duration()));
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(limits.header_timeout.duration())
        .serve_connection(io, TowerToHyperService::new(app));
    let (mut connection, mut draining) = (std::pin::pin!(connection), std::pin::pin!(draining));
    let outcome = tokio::select! {
        outcome = connection.as_mut() => outcome,
        () = draining.as_mut() => {
            // A request in progress is finished.
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = outcome {
        tracing::debug!(%error, "a connection ended early");
    }
}

/// Waits for running answers, then aborts them, then waits for their error events.
async fn drain(state: &AppState, connections: &TaskTracker) {
    let Shutdown { forced, .. } = &state.shutdown;
    let patience = state.config.limits.shutdown_timeout.duration();
    tracing::info!(connections = connections.len(), "ending");
    tokio::select! {
        () = connections.wait() => return,
        () = tokio::time::sleep(patience) => forced.cancel(),
        () = forced.cancelled() => {}
    }
    if tokio::time::timeout(ABORT_GRACE, connections.wait()).await.is_err() {
        tracing::warn!(connections = connections.len(), "some connections were cut off");
    }
}

/// The first signal drains, the second aborts.
fn watch_signals(shutdown: &Shutdown) -> Result<(), StartError> {
    let listen = |kind| signal(kind).map_err(|error| StartError::about("signals", error));
    let mut terminate = listen(SignalKind::terminate())?;
    let mut interrupt = listen(SignalKind::interrupt())?;
    let Shutdown { draining, forced } = shutdown.clone();
    tokio::spawn(async move {
        for step in [draining, forced] {
            tokio::select! {
                _ = terminate.recv() => {}
                _ = interrupt.recv() => {}
            }
            step.cancel();
        }
    });
    Ok(())
}
