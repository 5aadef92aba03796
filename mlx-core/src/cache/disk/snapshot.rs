//! The file of a checkpoint, next to the blocks: the contents of the layers that do not keep every position.

use super::file::{BlockPosition, Invalid, Layer, read, write};

const FORMAT: &str = "mlx prefix state 1";

/// The contents of these layers at the end of a block.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Snapshot {
    /// The last block of the text.
    pub(crate) place: BlockPosition,
    /// The arrays of each of these layers, in order.
    pub(crate) layers: Vec<Vec<Layer>>,
}

impl Snapshot {
    /// Returns the contents of the file.
    pub(crate) fn write(&self) -> Result<Vec<u8>, Invalid> {
        let of_layer = |(index, arrays): (usize, &'_ Vec<Layer>)| -> Vec<String> {
            (0..arrays.len()).map(|array| name(index, array)).collect()
        };
        let names = self.layers.iter().enumerate().flat_map(of_layer);
        write(FORMAT, &self.place, names.zip(self.layers.iter().flatten()))
    }

    /// Parses the file of the checkpoint at the end of `place`. Any other content is an error.
    pub(crate) fn read(bytes: &[u8], place: &BlockPosition) -> Result<Self, Invalid> {
        let mut tensors = read(bytes, FORMAT, place)?;
        let mut layers: Vec<Vec<Layer>> = Vec::new();
        while !tensors.is_empty() {
            let arrays: Vec<Layer> =
                (0..).map_while(|array| tensors.remove(&name(layers.len(), array))).collect();
            if arrays.is_empty() {
                return Err(Invalid(format!("has no layer {}", layers.len())));
            }
            layers.push(arrays);
        }
        Ok(Self { place: place.clone(), layers })
    }
}

fn name(layer: usize, array: usize) -> String {
    format!("layer.{layer:04}.{array}")
}

#[cfg(test)]
mod tests {
    use safetensors::Dtype;

    use super::super::file::Key;
    use super::*;

    #[test]
    fn a_written_checkpoint_is_read_back_and_nothing_else() {
        let place = BlockPosition { parent: Key::root(7), start: 64, tokens: vec![4, 5] };
        let array = |salt: u8| Layer { dtype: Dtype::F32, shape: vec![2, 3], bytes: vec![salt; 24] };
        let layers = vec![vec![array(1), array(2)], vec![array(3)], vec![array(4), array(5)]];
        let snapshot = Snapshot { place: place.clone(), layers };
        let mut bytes = snapshot.write().expect("it has a form");
        assert_eq!(Snapshot::read(&bytes, &place), Ok(snapshot));
        assert!(Snapshot::read(&bytes, &BlockPosition { start: 128, ..place.clone() }).is_err());
        assert!(super::super::block::Block::read(&bytes, &place).is_err(), "it is no block");
        let last = bytes.len() - 1;
        bytes[last] ^= 1;
        assert!(Snapshot::read(&bytes, &place).is_err(), "it is damaged");
    }
}
