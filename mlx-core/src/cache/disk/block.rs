//! The file format of a block: safetensors with one tensor per layer and a checksum over the file. Invariant: pure; [`Block::read`]
//! returns only what [`Block::write`] wrote for exactly the requested tokens.

use std::borrow::Cow;
use std::collections::HashMap;
use std::fmt;

use safetensors::tensor::{Dtype, Metadata, SafeTensors, View, serialize};
use xxhash_rust::xxh3::Xxh3;

/// Positions of a block. It divides the length of prompt chunks, so blocks and chunks are aligned.
pub(crate) const BLOCK: usize = 64;

const FORMAT: &str = "mlx prefix block 1";
const CHECKSUM: &str = "checksum";

/// A hash of the model and of all tokens up to the end of a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Key(u128);

impl Key {
    /// The key of the empty prefix of a model with this fingerprint.
    pub(crate) fn root(fingerprint: u128) -> Self {
        Self(fingerprint)
    }

    /// The key of a block of `tokens` that follows this one.
    pub(crate) fn then(self, tokens: &[u32]) -> Self {
        let mut hash = Xxh3::new();
        hash.update(&self.0.to_le_bytes());
        for token in tokens {
            hash.update(&token.to_le_bytes());
        }
        Self(hash.digest128())
    }

    /// The keys of all complete blocks of `tokens`, in order.
    pub(crate) fn chain(self, tokens: &[u32]) -> Vec<Self> {
        let (blocks, _) = tokens.as_chunks::<BLOCK>();
        let next = |key: &mut Self, block: &[u32; BLOCK]| {
            *key = key.then(block);
            Some(*key)
        };
        blocks.iter().scan(self, next).collect()
    }
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
pub(crate) struct Place {
    /// The key of the block before it, or of the model.
    pub(crate) parent: Key,
    /// The position of its first token.
    pub(crate) start: usize,
    /// Its tokens.
    pub(crate) tokens: Vec<u32>,
}

/// Why a file cannot be used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Damage(pub(crate) String);

impl Place {
    fn fields(&self) -> Vec<(&'static str, String)> {
        let tokens: Vec<String> = self.tokens.iter().map(u32::to_string).collect();
        vec![
            ("format", FORMAT.to_owned()),
            ("parent", self.parent.to_string()),
            ("start", self.start.to_string()),
            ("tokens", tokens.join(" ")),
        ]
    }

    /// The place in the header of a file, unverified: for listings only.
    pub(crate) fn claimed(header: &[u8]) -> Result<Self, Damage> {
        let header: Metadata =
            serde_json::from_slice(header).map_err(|error| Damage(format!("bad header: {error}")))?;
        let fields = header.metadata().clone().unwrap_or_default();
        let field = |name: &str| fields.get(name).ok_or_else(|| Damage(format!("has no {name}")));
        let bad = |name: &str| Damage(format!("{name} is not readable"));
        let parent = u128::from_str_radix(field("parent")?, 16).map_err(|_| bad("parent"))?;
        let tokens = field("tokens")?.split(' ').map(str::parse).collect::<Result<_, _>>();
        Ok(Self {
            parent: Key(parent),
            start: field("start")?.parse().map_err(|_| bad("start"))?,
            tokens: tokens.map_err(|_| bad("tokens"))?,
        })
    }
}

/// A block of a prefix.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Block {
    /// Its position in the text.
    pub(crate) place: Place,
    /// All layers in order.
    pub(crate) layers: Vec<Layer>,
}

impl Block {
    /// The bytes of the file.
    pub(crate) fn write(&self) -> Result<Vec<u8>, Damage> {
        let mut fields: HashMap<String, String> =
            self.place.fields().into_iter().map(|(name, value)| (name.to_owned(), value)).collect();
        let blank = "0".repeat(32);
        fields.insert(CHECKSUM.to_owned(), blank.clone());
        let layers = self.layers.iter().enumerate().map(|(index, layer)| (layer_name(index), layer));
        let mut bytes = serialize(layers, Some(fields)).map_err(|error| Damage(error.to_string()))?;
        let at = find_checksum(&bytes, &blank)?;
        let checksum = checksum(&bytes, at);
        bytes[at..at + 32].copy_from_slice(checksum.as_bytes());
        Ok(bytes)
    }

    /// Reads the file of the block at `place`. Any other contents are an error.
    pub(crate) fn read(bytes: &[u8], place: &Place) -> Result<Self, Damage> {
        let fields = checked_fields(bytes)?;
        for (name, value) in place.fields() {
            if fields.get(name) != Some(&value) {
                return Err(Damage(format!("{name} does not match the text")));
            }
        }
        let file = SafeTensors::deserialize(bytes).map_err(|error| Damage(error.to_string()))?;
        let layer = |index: usize| {
            let view = file.tensor(&layer_name(index)).map_err(|error| Damage(error.to_string()))?;
            // A checksum is no protection against forgery: check shapes before they reach the device.
            if !matches!(view.shape(), [1, _, positions, _] if *positions == place.tokens.len()) {
                return Err(Damage(format!("layer {index} does not match the number of tokens")));
            }
            let (shape, bytes) = (view.shape().to_vec(), view.data().to_vec());
            Ok(Layer { dtype: view.dtype(), shape, bytes })
        };
        let layers = (0..file.len()).map(layer).collect::<Result<_, _>>()?;
        Ok(Self { place: place.clone(), layers })
    }
}

fn layer_name(index: usize) -> String {
    format!("layer.{index:04}")
}

/// The header fields of a file with a valid checksum.
fn checked_fields(bytes: &[u8]) -> Result<HashMap<String, String>, Damage> {
    let (_, metadata) = SafeTensors::read_metadata(bytes).map_err(|error| Damage(error.to_string()))?;
    let fields = metadata.metadata().clone().unwrap_or_default();
    let claimed = fields.get(CHECKSUM).ok_or_else(|| Damage("has no checksum".into()))?;
    let at = find_checksum(bytes, claimed)?;
    if *claimed != checksum(bytes, at) {
        return Err(Damage("the checksum does not match; it is damaged".into()));
    }
    Ok(fields)
}

/// The position of the checksum in the header.
fn find_checksum(bytes: &[u8], value: &str) -> Result<usize, Damage> {
    let lost = || Damage("the checksum cannot be found".into());
    let wanted = format!("\"{CHECKSUM}\":\"{value}\"");
    let at = bytes.windows(wanted.len()).position(|window| window == wanted.as_bytes()).ok_or_else(lost)?;
    let start = at + wanted.len() - 1 - value.len();
    if value.len() == 32 { Ok(start) } else { Err(lost()) }
}

/// The checksum of all bytes except its own.
fn checksum(bytes: &[u8], at: usize) -> String {
    let mut hash = Xxh3::new();
    hash.update(&bytes[..at]);
    hash.update(&bytes[at + 32..]);
    format!("{:032x}", hash.digest128())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn block() -> Block {
        let parent = Key::root(7).then(&[1, 2]);
        let layer = |salt: u8| Layer {
            dtype: Dtype::F16,
            shape: vec![1, 2, 3, 4],
            bytes: (0..48).map(|place| place * 5 + salt).collect(),
        };
        let place = Place { parent, start: 64, tokens: vec![4, 5, 4_000_000_000] };
        Block { place, layers: (0..12).map(layer).collect() }
    }

    #[test]
    fn a_written_block_is_read_back() {
        let (block, bytes) = (block(), block().write().expect("it has a form"));
        assert_eq!(Block::read(&bytes, &block.place), Ok(block.clone()));
        let header = u64::from_le_bytes(bytes[..8].try_into().expect("eight bytes")) as usize;
        assert_eq!(Place::claimed(&bytes[8..8 + header]), Ok(block.place.clone()));
        for other in [
            Place { parent: Key::root(8), ..block.place.clone() },
            Place { start: 128, ..block.place.clone() },
            Place { tokens: vec![4, 5, 6], ..block.place.clone() },
        ] {
            assert!(Block::read(&bytes, &other).is_err(), "{other:?}");
        }
    }

    #[test]
    fn a_layer_of_a_wrong_shape_is_detected_despite_a_valid_checksum() {
        for shape in [vec![48 / 2], vec![2, 3, 4], vec![1, 2, 4, 3], vec![2, 1, 3, 4], vec![1, 1, 2, 3, 4]] {
            let mut block = block();
            block.layers[3].shape = shape;
            let bytes = block.write().expect("it has a form");
            assert!(Block::read(&bytes, &block.place).is_err());
        }
    }

    #[test]
    fn every_truncation_is_detected() {
        let (block, bytes) = (block(), block().write().expect("it has a form"));
        for length in 0..bytes.len() {
            assert!(Block::read(&bytes[..length], &block.place).is_err(), "{length} bytes");
        }
        assert!(Block::read(&[&bytes[..], &[0]].concat(), &block.place).is_err(), "a byte too many");
    }

    #[test]
    fn every_flipped_bit_is_detected() {
        let (block, mut bytes) = (block(), block().write().expect("it has a form"));
        for bit in 0..bytes.len() * 8 {
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert!(Block::read(&bytes, &block.place).is_err(), "bit {bit}");
            bytes[bit / 8] ^= 1 << (bit % 8);
        }
        assert!(Block::read(&bytes, &block.place).is_ok());
    }

    #[test]
    fn a_key_depends_on_everything_before_it() {
        let tokens: Vec<u32> = (0..200).collect();
        let chain = Key::root(1).chain(&tokens);
        assert_eq!(chain.len(), 3);
        assert_eq!(chain, Key::root(1).chain(&tokens[..192]));
        assert_ne!(chain, Key::root(2).chain(&tokens));
        let changed = Key::root(1).chain(&[&[9], &tokens[1..]].concat());
        assert!(chain.iter().zip(&changed).all(|(one, other)| one != other));
    }
}
