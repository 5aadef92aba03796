//! The format of saved prefixes: safetensors with the position in a text and a checksum. Anything else in a file is an error.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap};
use std::fmt;

use safetensors::tensor::{Dtype, Metadata, SafeTensors, TensorView, View, serialize};
use xxhash_rust::xxh3::Xxh3;

/// The number of positions in a block. It divides the length of prompt chunks, so blocks and chunks are aligned.
pub(crate) const BLOCK: usize = 64;

const CHECKSUM: &str = "checksum";

/// A hash of the model and of all tokens up to the end of a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Key(u128);

impl Key {
    /// Returns the key of the empty prefix of a model with this fingerprint.
    pub(crate) fn root(fingerprint: u128) -> Self {
        Self(fingerprint)
    }

    /// Returns the key of a block of `tokens` that follows this one.
    pub(crate) fn then(self, tokens: &[u32]) -> Self {
        #[cfg(test)]
        HASHED.with(|hashed| hashed.set(hashed.get() + 1));
        let mut hash = Xxh3::new();
        hash.update(&self.0.to_le_bytes());
        for token in tokens {
            hash.update(&token.to_le_bytes());
        }
        Self(hash.digest128())
    }

    /// Returns the keys of all complete blocks of `tokens`, in order.
    pub(crate) fn chain(self, tokens: &[u32]) -> Vec<Self> {
        let (blocks, _) = tokens.as_chunks::<BLOCK>();
        let next = |key: &mut Self, block: &[u32; BLOCK]| {
            *key = key.then(block);
            Some(*key)
        };
        blocks.iter().scan(self, next).collect()
    }
}

#[cfg(test)]
thread_local! {
    static HASHED: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
}

/// The number of blocks that this thread has hashed.
#[cfg(test)]
pub(crate) fn hashed_blocks() -> usize {
    HASHED.with(std::cell::Cell::get)
}

impl fmt::Display for Key {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{:032x}", self.0)
    }
}

/// Keys and values of one layer, `[1, 2 H, positions, D]`.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Layer {
    /// Its float type.
    pub(crate) dtype: Dtype,
    /// Its shape.
    pub(crate) shape: Vec<usize>,
    /// Little-endian and row-major.
    pub(crate) bytes: Vec<u8>,
}

impl View for &Layer {
    fn dtype(&self) -> Dtype {
        self.dtype
    }

    fn shape(&self) -> &[usize] {
        &self.shape
    }

    fn data(&self) -> Cow<'_, [u8]> {
        Cow::Borrowed(&self.bytes)
    }

    fn data_len(&self) -> usize {
        self.bytes.len()
    }
}

/// The position of a block in a text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct BlockPosition {
    /// The key of the block before it, or of the model.
    pub(crate) parent: Key,
    /// The position of its first token.
    pub(crate) start: usize,
    /// Its tokens.
    pub(crate) tokens: Vec<u32>,
}

/// The reason why a file cannot be used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Invalid(pub(crate) String);

impl BlockPosition {
    fn fields(&self, format: &str) -> Vec<(&'static str, String)> {
        let tokens: Vec<String> = self.tokens.iter().map(u32::to_string).collect();
        vec![
            ("format", format.to_owned()),
            ("parent", self.parent.to_string()),
            ("start", self.start.to_string()),
            ("tokens", tokens.join(" ")),
        ]
    }

    /// Reads the position from a file header without verifying it. For listings only.
    pub(crate) fn claimed(header: &[u8]) -> Result<Self, Invalid> {
        let header: Metadata =
            serde_json::from_slice(header).map_err(|error| Invalid(format!("bad header: {error}")))?;
        let fields = header.metadata().clone().unwrap_or_default();
        let field = |name: &str| fields.get(name).ok_or_else(|| Invalid(format!("has no {name}")));
        let bad = |name: &str| Invalid(format!("{name} is not readable"));
        let parent = u128::from_str_radix(field("parent")?, 16).map_err(|_| bad("parent"))?;
        let tokens = field("tokens")?.split(' ').map(str::parse).collect::<Result<_, _>>();
        Ok(Self {
            parent: Key(parent),
            start: field("start")?.parse().map_err(|_| bad("start"))?,
            tokens: tokens.map_err(|_| bad("tokens"))?,
        })
    }
}

/// Returns the contents of a file of this format with these tensors.
pub(super) fn write<'a>(
    format: &str,
    place: &BlockPosition,
    tensors: impl Iterator<Item = (String, &'a Layer)>,
) -> Result<Vec<u8>, Invalid> {
    let mut fields: HashMap<String, String> =
        place.fields(format).into_iter().map(|(name, value)| (name.to_owned(), value)).collect();
    let blank = "0".repeat(32);
    fields.insert(CHECKSUM.to_owned(), blank.clone());
    let mut bytes = serialize(tensors, Some(fields)).map_err(|error| Invalid(error.to_string()))?;
    let at = find_checksum(&bytes, &blank)?;
    let checksum = checksum(&bytes, at);
    bytes[at..at + 32].copy_from_slice(checksum.as_bytes());
    Ok(bytes)
}

/// Reads the tensors of a file of this format for `place`, by name.
pub(super) fn read(
    bytes: &[u8],
    format: &str,
    place: &BlockPosition,
) -> Result<BTreeMap<String, Layer>, Invalid> {
    let fields = checked_fields(bytes)?;
    for (name, value) in place.fields(format) {
        if fields.get(name) != Some(&value) {
            return Err(Invalid(format!("{name} does not match the text")));
        }
    }
    let file = SafeTensors::deserialize(bytes).map_err(|error| Invalid(error.to_string()))?;
    let tensors = file.tensors().into_iter();
    let layer = |view: &TensorView| Layer {
        dtype: view.dtype(),
        shape: view.shape().to_vec(),
        bytes: view.data().to_vec(),
    };
    Ok(tensors.map(|(name, view)| (name, layer(&view))).collect())
}

/// Returns the header fields of a file with a valid checksum.
fn checked_fields(bytes: &[u8]) -> Result<HashMap<String, String>, Invalid> {
    let (_, metadata) = SafeTensors::read_metadata(bytes).map_err(|error| Invalid(error.to_string()))?;
    let fields = metadata.metadata().clone().unwrap_or_default();
    let claimed = fields.get(CHECKSUM).ok_or_else(|| Invalid("has no checksum".into()))?;
    let at = find_checksum(bytes, claimed)?;
    if *claimed != checksum(bytes, at) {
        return Err(Invalid("the checksum does not match; the file is damaged".into()));
    }
    Ok(fields)
}

/// Returns the offset of the checksum in the file.
fn find_checksum(bytes: &[u8], value: &str) -> Result<usize, Invalid> {
    let lost = || Invalid("the checksum cannot be found".into());
    let wanted = format!("\"{CHECKSUM}\":\"{value}\"");
    let at = bytes.windows(wanted.len()).position(|window| window == wanted.as_bytes()).ok_or_else(lost)?;
    let start = at + wanted.len() - 1 - value.len();
    if value.len() == 32 { Ok(start) } else { Err(lost()) }
}

/// Computes the checksum of all bytes except its own.
fn checksum(bytes: &[u8], at: usize) -> String {
    let mut hash = Xxh3::new();
    hash.update(&bytes[..at]);
    hash.update(&bytes[at + 32..]);
    format!("{:032x}", hash.digest128())
}
