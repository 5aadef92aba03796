//! Sends the messages of a child.

use std::io::Write;
use std::os::unix::net::UnixStream;
use std::sync::mpsc::Receiver;

use crate::frame;
use crate::message::FromChild;
use crate::parent::end;

/// The bytes of frames that are written at once.
const BATCH: usize = 1 << 16;

/// A message, or the bytes of the test hook.
#[expect(clippy::large_enum_variant, reason = "almost all are messages")]
pub(crate) enum Output {
    Message(FromChild),
    Raw(Vec<u8>),
}

/// Writes messages, as many at once as there are.
pub(crate) fn write(socket: &mut UnixStream, outputs: &Receiver<Output>) {
    let mut frames = Vec::new();
    while let Ok(output) = outputs.recv() {
        let mut next = Some(output);
        while let Some(output) = next {
            match output {
                Output::Raw(bytes) => frames.extend(bytes),
                Output::Message(message) if frame::append(&message, &mut frames).is_err() => end(),
                Output::Message(_) => {}
            }
            next = if frames.len() < BATCH { outputs.try_recv().ok() } else { None };
        }
        if socket.write_all(&frames).is_err() {
            end();
        }
        frames.clear();
        frames.shrink_to(BATCH);
    }
}
