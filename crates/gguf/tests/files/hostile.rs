//! Damaged files never panic.

use std::sync::Arc;

use mlx_gguf::{GgufFile, Placement, tensors};
use proptest::prelude::*;

use crate::writer::{Writer, text};

/// A valid file with values and tensors of several types.
fn valid() -> Vec<u8> {
    let list = [&8u32.to_le_bytes()[..], &2u64.to_le_bytes(), &text("a"), &text("bc")].concat();
    let nested = [&9u32.to_le_bytes()[..], &1u64.to_le_bytes(), &list].concat();
    Writer::default()
        .key("general.architecture", 8, &text("llama"))
        .key("general.alignment", 4, &32u32.to_le_bytes())
        .key("tokens", 9, &list)
        .key("nested", 9, &nested)
        .tensor("f", &[4, 2], 0, vec![7; 32])
        .tensor("q", &[32, 4], 2, vec![9; 72])
        .tensor("k", &[256], 14, vec![0x77; 210])
        .bytes()
}

/// Opens a file and reads all of its tensors.
fn read(bytes: &[u8]) -> mlx_gguf::Result<()> {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("model.gguf");
    std::fs::write(&path, bytes).expect("the folder is writable");
    let file = Arc::new(GgufFile::open(&path)?);
    let placement = |index: usize| (index, Placement::named(format!("t{index}.weight")));
    for tensor in tensors(&file, (0..file.tensors().len()).map(placement).collect())? {
        let mut bytes = vec![0; tensor.bytes() as usize];
        tensor.read_at(0, &mut bytes)?;
    }
    Ok(())
}

#[test]
fn every_cut_file_is_an_error() {
    let bytes = valid();
    read(&bytes).expect("a valid file");
    for length in 0..bytes.len() {
        assert!(read(&bytes[..length]).is_err(), "{length}");
    }
}

proptest! {
    #[test]
    fn a_damaged_file_never_panics(
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..8),
    ) {
        let mut bytes = valid();
        for (place, byte) in changes {
            let place = place.index(bytes.len());
            bytes[place] = byte;
        }
        let _ = read(&bytes);
    }

    #[test]
    fn a_large_field_never_panics(place in any::<prop::sample::Index>(), field in any::<u64>(), shift in 0u32..64) {
        let mut bytes = valid();
        let place = place.index(bytes.len() - 8);
        bytes[place..place + 8].copy_from_slice(&(field >> shift).to_le_bytes());
        let _ = read(&bytes);
    }
}
