//! The wire format of messages: lengths with their own checksum, a checksum of the body, a JSON header and a payload. Invariant: anything but
//! an intact message is an error, and reading never takes more memory than the longest message.

use serde::Serialize;
use serde::de::DeserializeOwned;
use xxhash_rust::xxh3::xxh3_64;

/// The first bytes of a frame.
const MAGIC: [u8; 4] = *b"MLXR";

/// Bytes under the checksum of the lengths: the magic and two lengths.
const LENGTHS: usize = 4 + 4 + 4;

/// Bytes before the header: the lengths, their checksum and the checksum of the body.
const PREFIX: usize = LENGTHS + 4 + 8;

/// The maximum length of a header.
const MAX_HEADER: usize = 4 << 20;

/// The maximum length of a payload in bytes. Measurements of a link and saved states send one.
pub(super) const MAX_PAYLOAD: usize = 64 << 20;

/// The maximum message length before the peer has proved that it has the key.
pub(super) const MAX_HANDSHAKE: usize = 4 << 10;

/// The maximum message length.
pub(super) const MAX_MESSAGE: usize = MAX_HEADER + MAX_PAYLOAD;

/// Returns a frame without a message, which shows that the sender is alive.
pub(super) fn heartbeat() -> Vec<u8> {
    of_parts(&[], &[])
}

/// Encodes a message and its payload.
pub(super) fn encode(message: &impl Serialize, payload: &[u8]) -> Result<Vec<u8>, String> {
    let header = serde_json::to_vec(message).map_err(|error| error.to_string())?;
    if header.len() > MAX_HEADER || payload.len() > MAX_PAYLOAD {
        return Err(format!(
            "a message of {} and {} bytes is too long to be sent",
            header.len(),
            payload.len()
        ));
    }
    Ok(of_parts(&header, payload))
}

fn of_parts(header: &[u8], payload: &[u8]) -> Vec<u8> {
    let mut frame = Vec::with_capacity(PREFIX + header.len() + payload.len());
    frame.extend(MAGIC);
    frame.extend((header.len() as u32).to_le_bytes());
    frame.extend((payload.len() as u32).to_le_bytes());
    frame.extend(lengths_checksum(&frame));
    frame.extend([0; 8]);
    frame.extend(header);
    frame.extend(payload);
    let sum = xxh3_64(&frame[PREFIX..]);
    frame[PREFIX - 8..PREFIX].copy_from_slice(&sum.to_le_bytes());
    frame
}

/// Returns the checksum of the lengths. Without it, a corrupt length would make the reader wait for bytes that never come.
fn lengths_checksum(frame: &[u8]) -> [u8; 4] {
    (xxh3_64(&frame[..LENGTHS]) as u32).to_le_bytes()
}

/// The first frame of a buffer.
#[derive(Debug, PartialEq)]
pub(super) enum Decoded<T> {
    /// An incomplete frame.
    Partial,
    /// A frame without a message, and its length in bytes.
    Heartbeat(usize),
    /// A message, its payload and the length of the frame in bytes.
    Message(T, Vec<u8>, usize),
}

/// Decodes the first frame of a buffer. A message longer than `limit` bytes fails as soon as its lengths have arrived.
pub(super) fn decode<T: DeserializeOwned>(buffer: &[u8], limit: usize) -> Result<Decoded<T>, String> {
    let known = buffer.len().min(MAGIC.len());
    if buffer[..known] != MAGIC[..known] {
        return Err("sent bytes that are not a message".into());
    }
    if buffer.len() < PREFIX {
        return Ok(Decoded::Partial);
    }
    let changed = || Err("sent a corrupt message".into());
    if lengths_checksum(buffer) != buffer[LENGTHS..LENGTHS + 4] {
        return changed();
    }
    let number = |at: usize| u32::from_le_bytes(buffer[at..at + 4].try_into().expect("four bytes")) as usize;
    let (header, payload) = (number(4), number(8));
    if header > MAX_HEADER || payload > MAX_PAYLOAD || header + payload > limit {
        return Err(format!("announced a message of {header} and {payload} bytes, which is too long"));
    }
    let whole = PREFIX + header + payload;
    let Some(frame) = buffer.get(..whole) else { return Ok(Decoded::Partial) };
    if xxh3_64(&frame[PREFIX..]).to_le_bytes() != frame[PREFIX - 8..PREFIX] {
        return changed();
    }
    let (header, payload) = frame[PREFIX..].split_at(header);
    if header.is_empty() {
        return Ok(Decoded::Heartbeat(whole));
    }
    let message =
        serde_json::from_slice(header).map_err(|error| format!("sent an unknown message: {error}"))?;
    Ok(Decoded::Message(message, payload.to_vec(), whole))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_comes_as_it_was_sent() {
        let mut bytes = encode(&"words", &[1, 2, 3]).expect("it is short");
        let whole = bytes.len();
        bytes.extend(heartbeat());
        let decode = |bytes: &[u8]| decode::<String>(bytes, MAX_MESSAGE);
        assert_eq!(decode(&bytes), Ok(Decoded::Message("words".to_owned(), vec![1, 2, 3], whole)));
        assert_eq!(decode(&bytes[whole..]), Ok(Decoded::Heartbeat(PREFIX)));
        for end in 0..whole {
            assert_eq!(decode(&bytes[..end]), Ok(Decoded::Partial), "{end} bytes");
        }
    }

    #[test]
    fn any_changed_byte_is_noticed_at_once() {
        let bytes = encode(&"words", &[1, 2, 3]).expect("it is short");
        for place in 0..bytes.len() {
            for bit in 0..8 {
                let mut changed = bytes.clone();
                changed[place] ^= 1 << bit;
                let found = decode::<String>(&changed, MAX_MESSAGE);
                assert!(found.is_err(), "byte {place}, bit {bit}: {found:?}");
            }
        }
    }

    #[test]
    fn a_message_above_the_limit_is_refused_by_its_prefix() {
        let bytes = encode(&"words", &[0; 100]).expect("it is short");
        assert_eq!(decode::<String>(&bytes[..PREFIX], 107), Ok(Decoded::Partial));
        let refused = decode::<String>(&bytes[..PREFIX], 106).expect_err("it has 107 bytes");
        assert_eq!(refused, "announced a message of 7 and 100 bytes, which is too long");
    }
}
