//! Headers: values of every type, and errors that name the problem.

use std::path::Path;

use mlx_gguf::{GgufFile, List, TensorType, Value};

use crate::writer::{Writer, text};

fn open(bytes: &[u8]) -> mlx_gguf::Result<GgufFile> {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("model.gguf");
    std::fs::write(&path, bytes).expect("the folder is writable");
    GgufFile::open(&path)
}

/// Returns the message of the error, after the path.
fn error(bytes: &[u8]) -> String {
    let message = open(bytes).expect_err("an error").to_string();
    message.split_once(".gguf: ").expect("the path").1.to_owned()
}

#[test]
fn a_file_of_the_reference_package_reads_as_written() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/header.gguf");
    let file = GgufFile::open(&path).expect("a valid file");
    let get = |key: &str| file.metadata().get(key).cloned().expect(key);
    for (key, number) in [
        ("test.u8", 200),
        ("test.i8", -100),
        ("test.u16", 60_000),
        ("test.i16", -30_000),
        ("test.u32", 4_000_000_000),
        ("test.i32", -2_000_000_000),
        ("test.u64", (1 << 64) - 1),
        ("test.i64", -(1 << 63)),
    ] {
        assert_eq!(get(key), Value::Integer(number), "{key}");
    }
    assert_eq!(get("test.f32"), Value::Float(0.5));
    assert_eq!(get("test.f64"), Value::Float(0.1));
    assert_eq!(get("test.bool"), Value::Bool(true));
    assert_eq!(get("test.string"), Value::Text("häß 😀".into()));
    assert_eq!(get("test.integers"), Value::List(List::Integers(vec![1, -2, 3])));
    assert_eq!(get("test.floats"), Value::List(List::Floats(vec![0.25, -1.5])));
    assert_eq!(get("test.bools"), Value::List(List::Bools(vec![true, false])));
    assert_eq!(get("test.strings"), Value::List(List::Texts(vec!["a".into(), String::new(), "ß".into()])));
    let [matrix, halves, q4] = file.tensors() else { panic!("three tensors") };
    assert_eq!((matrix.name.as_str(), &*matrix.shape, matrix.kind), ("matrix", &[2, 3][..], TensorType::F32));
    assert_eq!(file.floats(matrix).expect("floats"), [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]);
    assert_eq!(file.floats(halves).expect("floats"), [1.5, -2.0]);
    assert_eq!((&*q4.shape, q4.kind, q4.length), (&[2, 64][..], TensorType::Q4_0, 72));
    assert!(file.floats(q4).is_err());
    assert!(file.read(q4, 70, &mut [0; 3]).is_err());
}

#[test]
fn foreign_files_are_rejected_by_name() {
    assert_eq!(error(b"{}"), "the file ends inside the magic number: download it again");
    assert_eq!(error(b"ggjt\x03\0\0\0"), "not a GGUF file: it does not begin with `GGUF`");
    let version = |version: u32| [b"GGUF".as_slice(), &version.to_le_bytes(), &[0; 16]].concat();
    assert!(open(&version(2)).is_ok());
    assert_eq!(error(&version(1)), "GGUF version 1 is not supported; convert the model again");
    assert_eq!(error(&version(4)), "GGUF version 4; supported versions are 2 and 3");
    assert_eq!(
        error(&version(0x0300_0000)),
        "the file is big-endian; convert the model again for a little-endian machine"
    );
}

#[test]
fn counts_are_checked_against_the_bytes_that_are_left() {
    let counts = |tensors: u64, keys: u64| {
        [b"GGUF\x03\0\0\0".as_slice(), &tensors.to_le_bytes(), &keys.to_le_bytes()].concat()
    };
    assert_eq!(error(&counts(u64::MAX, 0)), "the file ends inside the tensors: download it again");
    assert_eq!(error(&counts(0, 1 << 60)), "the file ends inside the metadata: download it again");
    let list = |kind: u32, count: u64| [&kind.to_le_bytes()[..], &count.to_le_bytes(), &[0; 64]].concat();
    for kind in [0, 4, 8, 9, 12] {
        let file = Writer::default().key("k", 9, &list(kind, u64::MAX / 2));
        assert_eq!(error(&file.bytes()), "the file ends inside k: download it again");
    }
    let string = Writer::default().key("k", 8, &[&(1u64 << 40).to_le_bytes()[..], b"abc"].concat());
    assert_eq!(error(&string.bytes()), "the file ends inside k: download it again");
}

#[test]
fn messages_with_damaged_names_are_short_and_of_one_line() {
    let message = error(&Writer::default().key(&"a\n\0".repeat(1000), 13, &[0; 8]).bytes());
    assert!(message.starts_with("a\u{fffd}\u{fffd}a") && message.ends_with("has the unknown value type 13"));
    assert!(message.chars().count() < 650 && !message.contains(char::is_control), "{message:?}");
}

#[test]
fn values_of_unknown_types_and_deep_lists_are_errors() {
    assert_eq!(error(&Writer::default().key("k", 13, &[0; 8]).bytes()), "k has the unknown value type 13");
    assert_eq!(error(&Writer::default().key("k", 7, &[2]).bytes()), "k is the boolean 2; it must be 0 or 1");
    let level = [&9u32.to_le_bytes()[..], &1u64.to_le_bytes()].concat();
    let nested = |depth| Writer::default().key("k", 9, &level.repeat(depth)).key("z", 7, &[0]);
    assert_eq!(error(&nested(1000).bytes()), "k nests lists more than 8 deep");
    let list = [level.repeat(2), [&8u32.to_le_bytes()[..], &1u64.to_le_bytes()].concat(), text("a")].concat();
    let file = open(&Writer::default().key("k", 9, &list).key("z", 7, &[1]).bytes()).expect("a valid file");
    assert_eq!(file.metadata().get("k"), Some(&Value::List(List::Nested)));
    assert_eq!(file.metadata().get("z"), Some(&Value::Bool(true)));
}

#[test]
fn tensors_that_cannot_exist_are_errors() {
    let file = |shape: &[u64], kind| error(&Writer::default().tensor("t", shape, kind, vec![0; 64]).bytes());
    assert_eq!(file(&[], 0), "tensor t has 0 dimensions; the number must be from 1 to 4");
    assert_eq!(file(&[1; 5], 0), "tensor t has 5 dimensions; the number must be from 1 to 4");
    assert_eq!(file(&[0, 4], 0), "tensor t has the impossible shape [4, 0]");
    assert_eq!(file(&[1 << 32, 1 << 32], 0), "tensor t has the impossible shape [4294967296, 4294967296]");
    assert_eq!(file(&[48], 2), "tensor t has rows of 48 elements; rows of Q4_0 must be a multiple of 32");
    assert_eq!(
        file(&[32], 77),
        "tensor t has the unknown type 77; use another quantization of this model, such as Q4_K_M or Q8_0"
    );
    assert_eq!(file(&[17], 0), "tensor t ends after the end of the file: download it again");
}

#[test]
fn duplicates_and_overlaps_are_errors() {
    let twice = Writer::default().key("k", 7, &[0]).key("k", 7, &[1]);
    assert_eq!(error(&twice.bytes()), "k occurs twice");
    let tensor = |writer: Writer, name| writer.tensor(name, &[8], 0, vec![0; 32]);
    assert_eq!(error(&tensor(tensor(Writer::default(), "t"), "t").bytes()), "tensor t occurs twice");
    let mut bytes = tensor(tensor(Writer::default(), "t"), "u").bytes();
    // The start of the second tensor is the last field of the header.
    let place = 24 + 2 * 33 - 8;
    assert_eq!(bytes[place], 32);
    bytes[place] = 0;
    assert_eq!(error(&bytes), "tensors t and u overlap");
    bytes[place] = 1;
    assert_eq!(error(&bytes), "tensor u starts at 1, which is not a multiple of general.alignment 32");
}

#[test]
fn an_alignment_is_a_power_of_two() {
    for alignment in [0u32, 3, 48] {
        let file = Writer::default().key("general.alignment", 4, &alignment.to_le_bytes());
        assert_eq!(
            error(&file.bytes()),
            format!("general.alignment is {alignment}; it must be a power of two")
        );
    }
}
