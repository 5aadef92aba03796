//! Messages as bytes: lengths, a checksum, a header in JSON and numbers behind it. Invariant: bytes that are not a whole message as it was
//! sent are an error, and never more memory than a message may have.

use serde::Serialize;
use serde::de::DeserializeOwned;
use xxhash_rust::xxh3::xxh3_64;

/// What every frame begins with.
const MAGIC: [u8; 4] = *b"MLXR";

/// Bytes before the header: what it begins with, two lengths and the checksum.
const PREFIX: usize = 4 + 4 + 4 + 8;

/// The longest header.
const MOST_HEADER: usize = 4 << 20;

/// The most numbers behind it, in bytes: 8192 rows of a model of width 32768 in f32.
const MOST_PAYLOAD: usize = 1 << 30;

/// A frame that says nothing but that its sender is there.
pub(super) fn alive() -> Vec<u8> {
    of_parts(&[], &[])
}

/// A message with numbers behind it.
pub(super) fn encode(message: &impl Serialize, payload: &[u8]) -> Result<Vec<u8>, String> {
    let header = serde_json::to_vec(message).map_err(|error| error.to_string())?;
    if header.len() > MOST_HEADER || payload.len() > MOST_PAYLOAD {
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
    frame.extend([0; 8]);
    frame.extend(header);
    frame.extend(payload);
    let sum = checksum(&frame);
    frame[PREFIX - 8..PREFIX].copy_from_slice(&sum.to_le_bytes());
    frame
}

/// Of the lengths and all that is behind the checksum.
fn checksum(frame: &[u8]) -> u64 {
    let lengths = u64::from_le_bytes(frame[4..12].try_into().expect("eight bytes"));
    xxh3_64(&frame[PREFIX..]) ^ lengths.wrapping_mul(0x9E37_79B9_7F4A_7C15)
}

/// What a buffer begins with.
#[derive(Debug, PartialEq)]
pub(super) enum Decoded<T> {
    /// Not yet a whole frame.
    Partial,
    /// A frame that says nothing, of so many bytes.
    Alive(usize),
    /// A message with the numbers behind it, of so many bytes.
    Message(T, Vec<u8>, usize),
}

/// Reads the frame that a buffer begins with.
pub(super) fn decode<T: DeserializeOwned>(buffer: &[u8]) -> Result<Decoded<T>, String> {
    let known = buffer.len().min(MAGIC.len());
    if buffer[..known] != MAGIC[..known] {
        return Err("sent what is no message".into());
    }
    if buffer.len() < PREFIX {
        return Ok(Decoded::Partial);
    }
    let number = |at: usize| u32::from_le_bytes(buffer[at..at + 4].try_into().expect("four bytes")) as usize;
    let (header, payload) = (number(4), number(8));
    if header > MOST_HEADER || payload > MOST_PAYLOAD {
        return Err(format!("announced a message of {header} and {payload} bytes, which is too long"));
    }
    let whole = PREFIX + header + payload;
    let Some(frame) = buffer.get(..whole) else { return Ok(Decoded::Partial) };
    if checksum(frame).to_le_bytes() != frame[PREFIX - 8..PREFIX] {
        return Err("sent a message that was changed on the way".into());
    }
    let (header, payload) = frame[PREFIX..].split_at(header);
    if header.is_empty() {
        return Ok(Decoded::Alive(whole));
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
        bytes.extend(alive());
        assert_eq!(decode(&bytes), Ok(Decoded::Message("words".to_owned(), vec![1, 2, 3], whole)));
        assert_eq!(decode::<String>(&bytes[whole..]), Ok(Decoded::Alive(PREFIX)));
        for end in 0..whole {
            assert_eq!(decode::<String>(&bytes[..end]), Ok(Decoded::Partial), "{end} bytes");
        }
    }

    #[test]
    fn any_changed_byte_is_noticed() {
        let bytes = encode(&"words", &[1, 2, 3]).expect("it is short");
        for place in 0..bytes.len() {
            for bit in 0..8 {
                let mut changed = bytes.clone();
                changed[place] ^= 1 << bit;
                // A length that grew waits for more, and then the sum is another one.
                changed.extend([0; 512]);
                let found = decode::<String>(&changed);
                assert!(matches!(found, Err(_) | Ok(Decoded::Partial)), "byte {place}, bit {bit}: {found:?}");
            }
        }
    }
}
