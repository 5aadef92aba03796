//! The float type that a file is computed in.

use mlx_gguf::{Dtype, GgufFolder};

use crate::writer::{Writer, text};

#[test]
fn quantized_files_and_halves_of_large_activations_compute_in_bf16() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    // F32, F16, BF16, Q4_0, and their bytes for 32 numbers.
    for (kind, bytes, llama, gemma) in [
        (0, 128, None, None),
        (1, 64, None, Some(Dtype::BF16)),
        (30, 64, None, None),
        (2, 18, Some(Dtype::BF16), Some(Dtype::BF16)),
    ] {
        for (architecture, expected) in [("llama", llama), ("gemma3", gemma)] {
            let writer = Writer::default().key("general.architecture", 8, &text(architecture));
            let path = writer.tensor("w", &[32], kind, vec![0; bytes]).write(folder.path(), "m.gguf");
            let found = GgufFolder::open(&path).expect("a valid file").float_type();
            assert_eq!(found, expected, "{architecture} with type {kind}");
        }
    }
}
