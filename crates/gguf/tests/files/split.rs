//! Split models.

use std::path::{Path, PathBuf};

use mlx_gguf::GgufFile;

use crate::writer::Writer;

/// Writes file `number` of a split model with one tensor.
fn write(folder: &Path, number: u16, count: u16, tensor: &str, total: i32) -> PathBuf {
    Writer::default()
        .key("split.no", 2, &(number - 1).to_le_bytes())
        .key("split.count", 2, &count.to_le_bytes())
        .key("split.tensors.count", 5, &total.to_le_bytes())
        .tensor(tensor, &[2], 0, [f32::from(number), 0.5].map(f32::to_le_bytes).concat())
        .write(folder, &format!("m-{number:05}-of-{count:05}.gguf"))
}

fn error(path: &Path) -> String {
    GgufFile::open(path).expect_err("an error").to_string()
}

#[test]
fn the_first_file_opens_all_files() {
    let folder = tempfile::tempdir().expect("a folder");
    let first = write(folder.path(), 1, 3, "a", 3);
    write(folder.path(), 2, 3, "b", 3);
    let third = write(folder.path(), 3, 3, "c", 3);
    let file = GgufFile::open(&first).expect("a complete model");
    let read = |index: usize| file.floats(&file.tensors()[index]).expect("floats");
    assert_eq!([read(0), read(1), read(2)].concat(), [1.0, 0.5, 2.0, 0.5, 3.0, 0.5]);
    let message = error(&third);
    assert!(message.contains("is file 3 of 3 of a split model; open"), "{message}");
    assert!(message.contains("m-00001-of-00003.gguf instead"), "{message}");
}

#[test]
fn missing_and_foreign_files_are_errors() {
    let folder = tempfile::tempdir().expect("a folder");
    let first = write(folder.path(), 1, 2, "a", 2);
    let message = error(&first);
    assert!(message.contains("m-00002-of-00002.gguf: No such file"), "{message}");

    write(folder.path(), 2, 2, "a", 2);
    let message = error(&first);
    assert!(message.ends_with("tensor a is in two files of the split model"), "{message}");

    write(folder.path(), 1, 2, "a", 3);
    write(folder.path(), 2, 2, "b", 3);
    let message = error(&first);
    assert!(message.ends_with("split.tensors.count is 3, but the files contain 2 tensors"), "{message}");

    let foreign = write(folder.path(), 1, 9, "b", 2);
    std::fs::rename(foreign, folder.path().join("m-00002-of-00002.gguf")).expect("a rename");
    let message = error(&first);
    assert!(message.contains("split.count must be 2"), "{message}");
}

#[test]
fn a_renamed_first_file_is_an_error() {
    let folder = tempfile::tempdir().expect("a folder");
    let renamed = folder.path().join("model.gguf");
    std::fs::rename(write(folder.path(), 1, 2, "a", 2), &renamed).expect("a rename");
    let message = error(&renamed);
    assert!(message.ends_with("the files must be named NAME-00001-of-00002.gguf and so on"), "{message}");
}
