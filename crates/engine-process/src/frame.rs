//! Frames on the socket: a length of four bytes, then a message in MessagePack. Whatever arrives, reading returns a message or an error.

use std::io::{self, ErrorKind, Read};

use serde::Serialize;
use serde::de::DeserializeOwned;

/// The maximum length of a frame in bytes. The largest messages contain pictures.
const MAX_LENGTH: u32 = 1 << 30;

/// The reason why no further message can be read.
#[derive(Debug, thiserror::Error)]
pub(crate) enum FrameError {
    /// The other side has closed the socket.
    #[error("the connection was closed")]
    Closed,
    /// The socket failed.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// The bytes are not a message.
    #[error("a message is invalid: {0}")]
    Garbage(String),
}

/// Appends the frame of a message.
pub(crate) fn append<T: Serialize>(message: &T, frames: &mut Vec<u8>) -> Result<(), FrameError> {
    let garbage = |error: &dyn std::fmt::Display| FrameError::Garbage(error.to_string());
    let start = frames.len();
    frames.extend([0; 4]);
    rmp_serde::encode::write(frames, message).map_err(|error| garbage(&error))?;
    let length = u32::try_from(frames.len() - start - 4).map_err(|error| garbage(&error))?;
    frames[start..start + 4].copy_from_slice(&length.to_le_bytes());
    Ok(())
}

/// Reads the next message. `buffer` is reused.
pub(crate) fn read<T: DeserializeOwned>(
    socket: &mut impl Read,
    buffer: &mut Vec<u8>,
) -> Result<T, FrameError> {
    let mut length = [0; 4];
    socket.read_exact(&mut length).map_err(closed)?;
    let length = u32::from_le_bytes(length);
    if length > MAX_LENGTH {
        return Err(FrameError::Garbage(format!("its length is {length}; at most {MAX_LENGTH} is allowed")));
    }
    buffer.clear();
    // Grows with the bytes that arrive, so that a wrong length takes no memory.
    socket.by_ref().take(length.into()).read_to_end(buffer).map_err(closed)?;
    if buffer.len() < length as usize {
        return Err(FrameError::Closed);
    }
    let message = rmp_serde::from_slice(buffer).map_err(|error| FrameError::Garbage(error.to_string()));
    // A rare large message must not keep its memory.
    if buffer.capacity() > 1 << 20 {
        *buffer = Vec::new();
    }
    message
}

fn closed(error: io::Error) -> FrameError {
    match error.kind() {
        ErrorKind::UnexpectedEof | ErrorKind::ConnectionReset | ErrorKind::BrokenPipe => FrameError::Closed,
        _ => FrameError::Io(error),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::message::{FromChild, ToChild};

    #[test]
    fn messages_arrive_unchanged_and_in_order() {
        let mut frames = Vec::new();
        append(&FromChild::Loading { read: 5, total: 1 << 40 }, &mut frames).expect("it fits");
        append(&FromChild::Lost { id: 7 }, &mut frames).expect("it fits");
        let (mut socket, mut buffer) = (frames.as_slice(), Vec::new());
        let first = read(&mut socket, &mut buffer).expect("a message");
        assert!(matches!(first, FromChild::Loading { read: 5, total: 0x0100_0000_0000 }));
        assert!(matches!(read(&mut socket, &mut buffer), Ok(FromChild::Lost { id: 7 })));
        assert!(matches!(read::<FromChild>(&mut socket, &mut buffer), Err(FrameError::Closed)));
    }

    proptest! {
        #[test]
        fn garbage_is_an_error_and_takes_little_memory(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            let (mut socket, mut buffer) = (bytes.as_slice(), Vec::new());
            while read::<FromChild>(&mut socket, &mut buffer).is_ok() {}
            let mut socket = bytes.as_slice();
            while read::<ToChild>(&mut socket, &mut buffer).is_ok() {}
            prop_assert!(buffer.capacity() < 1 << 16);
        }
    }
}
