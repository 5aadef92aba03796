//! The file of a prefix block: keys and values of 64 tokens in the layers that keep every position.

use super::file::{BlockPosition, Invalid, Layer, read, write};

const FORMAT: &str = "mlx prefix block 1";

/// A block of a prefix.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Block {
    /// Its position in the text.
    pub(crate) place: BlockPosition,
    /// The layers that keep every position, in order.
    pub(crate) layers: Vec<Layer>,
}

impl Block {
    /// Returns the contents of the file.
    pub(crate) fn write(&self) -> Result<Vec<u8>, Invalid> {
        let layers = self.layers.iter().enumerate().map(|(index, layer)| (layer_name(index), layer));
        write(FORMAT, &self.place, layers)
    }

    /// Parses the file of the block at `place`. Any other content is an error.
    pub(crate) fn read(bytes: &[u8], place: &BlockPosition) -> Result<Self, Invalid> {
        let mut tensors = read(bytes, FORMAT, place)?;
        let count = tensors.len();
        let layer = |index: usize| {
            let layer = tensors.remove(&layer_name(index));
            let layer = layer.ok_or_else(|| Invalid(format!("has no layer {index}")))?;
            // A checksum does not protect against forgery: check shapes before they reach the device.
            if !matches!(layer.shape[..], [1, _, positions, _] if positions == place.tokens.len()) {
                return Err(Invalid(format!("layer {index} does not match the number of tokens")));
            }
            Ok(layer)
        };
        let layers = (0..count).map(layer).collect::<Result<_, _>>()?;
        Ok(Self { place: place.clone(), layers })
    }
}

fn layer_name(index: usize) -> String {
    format!("layer.{index:04}")
}

#[cfg(test)]
mod tests {
    use safetensors::Dtype;

    use super::super::file::Key;
    use super::*;

    fn block() -> Block {
        let parent = Key::root(7).then(&[1, 2]);
        let layer = |salt: u8| Layer {
            dtype: Dtype::F16,
            shape: vec![1, 2, 3, 4],
            bytes: (0..48).map(|place| place * 5 + salt).collect(),
        };
        let place = BlockPosition { parent, start: 64, tokens: vec![4, 5, 4_000_000_000] };
        Block { place, layers: (0..12).map(layer).collect() }
    }

    #[test]
    fn a_written_block_is_read_back() {
        let (block, bytes) = (block(), block().write().expect("it has a form"));
        assert_eq!(Block::read(&bytes, &block.place), Ok(block.clone()));
        let header = u64::from_le_bytes(bytes[..8].try_into().expect("eight bytes")) as usize;
        assert_eq!(BlockPosition::claimed(&bytes[8..8 + header]), Ok(block.place.clone()));
        for other in [
            BlockPosition { parent: Key::root(8), ..block.place.clone() },
            BlockPosition { start: 128, ..block.place.clone() },
            BlockPosition { tokens: vec![4, 5, 6], ..block.place.clone() },
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
