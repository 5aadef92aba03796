//! Accepts connections and serves each within its time limits, until the server shuts down.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::net::TcpListener;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::task::TaskTracker;

use crate::batches;
use crate::config::StartError;
use crate::connection::{self, TimeLimits};
use crate::error::ApiError;
use crate::open_files;
use crate::responses::run;
use crate::routes;
use crate::signals;
use crate::state::{AppState, Shutdown};
use crate::traces::Traces;

/// The time for aborted answers to send their error event.
const ABORT_GRACE: Duration = Duration::from_secs(5);
/// The time between two attempts to load a divided model.
const RELOAD_INTERVAL: Duration = Duration::from_secs(1);
/// The maximum number of connections beyond the limit that are rejected with a response at the same time. Others are closed.
const MAX_REJECTIONS: usize = 64;

/// Serves requests until a signal arrives.
pub(crate) async fn serve(state: AppState) -> Result<(), StartError> {
    let address = state.config.address();
    open_files::raise_limit(state.config.limits.max_connections);
    let listener = TcpListener::bind(address).await.map_err(|error| bind_error(address, &error))?;
    let address = listener.local_addr().map_err(|error| StartError::new("listening", error))?;
    let models = state.models.all();
    let model = models.first().map_or("", |entry| entry.name());
    let (key, https) = (state.config.network.has_keys(), state.tls.is_some());
    tracing::info!(%address, model, key, https, "listening");
    signals::watch(&state.shutdown)?;
    tokio::spawn(state.models.clone().reap());
    let mcp = Arc::clone(&state.mcp);
    tokio::spawn(async move { mcp.tools().await });
    let of_keys = state.clone();
    tokio::spawn(async move { of_keys.keys.watch().await });
    tokio::spawn(state.models.clone().watch_profiles());
    if let Some(tls) = &state.tls {
        tokio::spawn(Arc::clone(tls).watch());
    }
    let preload = tokio::spawn(preload(state.clone()));
    run::resume(&state).await;
    batches::run::resume(&state, &routes::inner_router(&state));
    let connections = TaskTracker::new();
    accept(&listener, &state, &connections).await;
    drop(listener);
    connections.close();
    drain(&state, &connections).await;
    if state.traces.is_some() {
        let of_traces = state.clone();
        let close = move || of_traces.traces.as_ref().map(Traces::close);
        tokio::task::spawn_blocking(close).await.ok();
    }
    // The server ends if a preloaded model fails to load.
    match tokio::time::timeout(Duration::from_millis(100), preload).await {
        Ok(Ok(outcome)) => outcome,
        _ => Ok(()),
    }
}

fn bind_error(address: SocketAddr, error: &std::io::Error) -> StartError {
    if error.kind() == std::io::ErrorKind::AddrInUse {
        let port = address.port();
        return StartError::new(
            address,
            format_args!("another program uses port {port}; --port 0 picks a free one"),
        );
    }
    StartError::new(address, error)
}

async fn preload(state: AppState) -> Result<(), StartError> {
    if state.models.is_distributed() {
        return keep_loaded(&state).await;
    }
    if !state.config.models.preload {
        return Ok(());
    }
    match state.models.load_all().await {
        Ok(()) => {
            state.started.store(true, Ordering::Relaxed);
            tracing::info!("all models are loaded");
            Ok(())
        }
        Err(error) => Err(start_error(&state, "--preload", &error)),
    }
}

/// Loads a divided model as soon as its workers are available, and again after its engine has ended. `/ready` reports the state of the workers,
/// and only an engine monitors them.
async fn keep_loaded(state: &AppState) -> Result<(), StartError> {
    let mut was_loaded = false;
    loop {
        match state.models.load_all().await {
            Ok(()) => {
                was_loaded = true;
                state.started.store(true, Ordering::Relaxed);
            }
            Err(error) if !was_loaded && state.models.outage().is_none() => {
                return Err(start_error(state, "--hostfile", &error));
            }
            Err(_) => {}
        }
        tokio::time::sleep(RELOAD_INTERVAL).await;
    }
}

/// Stops the server after its model failed to load.
fn start_error(state: &AppState, flag: &str, error: &ApiError) -> StartError {
    state.shutdown.draining.cancel();
    StartError::new(flag, error.response().error.message)
}

async fn accept(listener: &TcpListener, state: &AppState, connections: &TaskTracker) {
    let app = crate::app(state.clone());
    let draining = &state.shutdown.draining;
    let permits = Arc::new(Semaphore::new(state.config.limits.max_connections));
    let rejections = Arc::new(Semaphore::new(MAX_REJECTIONS));
    let limits = TimeLimits {
        header: state.config.limits.header_timeout.duration(),
        write: state.config.limits.stream_idle_timeout.duration(),
    };
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = draining.cancelled() => return,
        };
        match accepted {
            Ok((stream, peer)) => {
                // Tokens are small; Nagle's algorithm would delay each of them.
                stream.set_nodelay(true).ok();
                if let Ok(permit) = Arc::clone(&permits).try_acquire_owned() {
                    let (app, client, draining) = (app.clone(), state.client_at(peer.ip()), draining.clone());
                    let tls = state.tls.as_ref().map(|tls| tls.acceptor());
                    connections.spawn(async move {
                        match tls {
                            None => {
                                connection::serve(stream, app, client, limits, draining.cancelled()).await;
                            }
                            Some(tls) => {
                                let handshake = tokio::time::timeout(limits.header, tls.accept(stream));
                                let accepted = tokio::select! {
                                    accepted = handshake => accepted,
                                    () = draining.cancelled() => return,
                                };
                                match accepted {
                                    Ok(Ok(stream)) => {
                                        connection::serve(stream, app, client, limits, draining.cancelled())
                                            .await;
                                    }
                                    Ok(Err(error)) => tracing::debug!(%error, "a TLS handshake failed"),
                                    Err(_) => tracing::debug!("a TLS handshake took too long"),
                                }
                            }
                        }
                        drop(permit);
                    });
                } else if let Some(permit) = rejection(state, &rejections) {
                    state.metrics.record_response("none", 503, Duration::ZERO);
                    connections.spawn(async move {
                        connection::reject(stream).await;
                        drop(permit);
                    });
                }
            }
            Err(error) => {
                // The process probably has too many open files, and some will be closed soon.
                tracing::warn!(%error, "accepting a connection failed");
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        }
    }
}

/// Waits for running answers, then aborts them, then waits for their error events.
async fn drain(state: &AppState, connections: &TaskTracker) {
    let Shutdown { forced, .. } = &state.shutdown;
    let timeout = state.config.limits.shutdown_timeout.duration();
    tracing::info!(connections = connections.len(), "ending");
    tokio::select! {
        () = connections.wait() => return,
        () = tokio::time::sleep(timeout) => forced.cancel(),
        () = forced.cancelled() => {}
    }
    if tokio::time::timeout(ABORT_GRACE, connections.wait()).await.is_err() {
        tracing::warn!(
            connections = connections.len(),
            "closed some connections before their requests ended"
        );
    }
}

/// Returns a permit to reject a connection with a response. A client that expects TLS could not read one.
fn rejection(state: &AppState, rejections: &Arc<Semaphore>) -> Option<OwnedSemaphorePermit> {
    state.tls.is_none().then(|| Arc::clone(rejections).try_acquire_owned().ok()).flatten()
}
