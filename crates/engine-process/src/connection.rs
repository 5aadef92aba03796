//! The front's end of the socket to a child.

use std::io::Write;
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::sync::mpsc::{Sender, channel};
use std::thread::{Builder, JoinHandle};

use crate::frame::{self, FrameError};
use crate::message::ToChild;

/// Sends frames to a child. It never blocks, not even if the child has stopped.
pub(crate) struct Connection {
    frames: Option<Sender<Vec<u8>>>,
    socket: UnixStream,
    writer: Option<JoinHandle<()>>,
}

impl Connection {
    /// Starts the thread that writes to the socket.
    pub(crate) fn new(socket: &UnixStream) -> std::io::Result<Self> {
        let (frames, queued) = channel::<Vec<u8>>();
        let mut out = socket.try_clone()?;
        let write = move || {
            while let Ok(frames) = queued.recv() {
                // The child is gone; the thread that reads from it notices, too.
                if out.write_all(&frames).is_err() {
                    return;
                }
            }
        };
        let writer = Builder::new().name("engine-writer".into()).spawn(write)?;
        Ok(Self { frames: Some(frames), socket: socket.try_clone()?, writer: Some(writer) })
    }

    /// Sends frames. If the child is gone, they are lost, and a later child gets them again.
    pub(crate) fn send(&self, frames: Vec<u8>) {
        if let Some(sender) = &self.frames {
            sender.send(frames).ok();
        }
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        drop(self.frames.take());
        self.socket.shutdown(Shutdown::Both).ok();
        if let Some(writer) = self.writer.take() {
            writer.join().ok();
        }
    }
}

/// Returns the frame of a message.
pub(crate) fn frame(message: &ToChild) -> Result<Vec<u8>, FrameError> {
    let mut frames = Vec::new();
    frame::append(message, &mut frames)?;
    Ok(frames)
}
