//! Joined, cut and large tensors.

use mlx_files::weight_files::SINGLE;
use safetensors::serialize;
use safetensors::tensor::TensorView;

use super::*;
use crate::array::to_bytes;
use crate::device_lock::device;
use crate::weights::cut::{AxisSelection, Slice};

#[test]
fn stacks_are_joined_matrix_by_matrix() {
    let _turn = device();
    let folder = tempfile::tempdir().expect("a temporary folder");
    let (gate, up): (Vec<u8>, Vec<u8>) = ((0..24).collect(), (100..112).collect());
    let view = |shape: [usize; 3], bytes| TensorView::new(Dtype::U8, shape.to_vec(), bytes);
    let tensors = [("gate", view([2, 4, 3], &gate)), ("up", view([2, 2, 3], &up))];
    let tensors = tensors.map(|(name, view)| (name, view.expect("its shape fits")));
    let bytes = serialize(tensors, None).expect("they are tensors");
    std::fs::write(folder.path().join(SINGLE), bytes).expect("it is written");
    let checkpoint = Checkpoint::open(folder.path()).expect("a checkpoint");
    let [gate, up] = ["gate", "up"].map(|name| checkpoint.entries()[name].clone());
    let joined = |entries: &[Entry]| {
        let (array, _) = checkpoint.array(entries).expect("it is there");
        (array.shape().to_vec(), to_bytes(&array).expect("it is there").1)
    };
    let rows = |first: u8, count: u8| first..first + 3 * count;
    let whole = [rows(0, 4), rows(100, 2), rows(12, 4), rows(106, 2)].into_iter().flatten().collect();
    assert_eq!(joined(&[gate.clone(), up.clone()]), (vec![2, 6, 3], whole));
    // The second half of the rows, for one of two machines.
    let half = |entry: &Entry| {
        let places = AxisSelection { of: 2, ranges: vec![1..2; 1] };
        let (shape, cut) = Slice::at(&entry.shape, entry.length, 2, &places).expect("its rows are even");
        entry.cut(shape, cut)
    };
    let cut = [rows(6, 2), rows(103, 1), rows(18, 2), rows(109, 1)].into_iter().flatten().collect();
    assert_eq!(joined(&[half(&gate), half(&up)]), (vec![2, 3, 3], cut));
}

/// Each side of a shape is an i32 on the device, but their product may be larger. The file is sparse.
#[test]
fn a_tensor_may_have_more_elements_than_an_i32_counts() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join(SINGLE);
    let shape = [262_144, 8_960];
    let size = 2 * (shape[0] * shape[1]) as u64;
    let header = format!(r#"{{"table":{{"dtype":"BF16","shape":{shape:?},"data_offsets":[0,{size}]}}}}"#);
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend(header.bytes());
    std::fs::write(&path, &bytes).expect("it is written");
    let file = File::options().write(true).open(&path).expect("it is there");
    file.set_len(bytes.len() as u64 + size).expect("it is sparse");
    std::os::unix::fs::FileExt::write_all_at(&file, &[7, 9], bytes.len() as u64 + size - 2).expect("writes");
    let mut checkpoint = Checkpoint::open(folder.path()).expect("a checkpoint");
    let entry = checkpoint.take("table", &shape, "the test").expect("its sides fit");
    let end = entry.length;
    assert_eq!(checkpoint.read_part(&entry, end - 4..end).expect("it is there"), [0, 0, 7, 9]);
    let last = entry.part(end - 2 * shape[1]..end);
    assert_eq!(checkpoint.read_part(&last, 2 * shape[1] - 1..2 * shape[1]).expect("it is there"), [9]);
}

#[test]
fn a_tensor_that_others_became_is_in_the_index() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let view = TensorView::new(Dtype::U8, vec![2], &[1, 2]).expect("its shape fits");
    let bytes = serialize([("packed", view.clone()), ("extra", view)], None).expect("they are tensors");
    std::fs::write(folder.path().join(SINGLE), bytes).expect("it is written");
    let index = format!(r#"{{"weight_map": {{"packed": "{SINGLE}"}}}}"#);
    std::fs::write(folder.path().join(mlx_files::weight_files::INDEX), index).expect("it is written");
    let mut checkpoint = Checkpoint::open(folder.path()).expect("a checkpoint");
    let packed = checkpoint.take("packed", &[2], "the test").expect("it is there");
    checkpoint.replace("replaced", packed.clone());
    let data = Arc::clone(&checkpoint.shards[packed.file]);
    checkpoint.add_computed("computed".to_owned(), Dtype::U8, vec![2], data);
    checkpoint.skip_unnamed();
    let left: Vec<&String> = checkpoint.entries().keys().collect();
    assert_eq!(left, ["computed", "replaced"]);
}
