//! A decode step launches about as many GPU kernels for 32 sequences as for one, whatever their lengths.

use mlx_core::backend::Backend;
use mlx_core::model;
use mlx_core::operations::of_step;
use mlx_core::weights::WeightPolicy;
use mlx_tests::golden::FAMILIES;
use mlx_tests::{device, model_folder};

/// Returns the limit for a layer in a step of many sequences, from the operations of a layer in a step of one. Positions and masks, one per
/// width of a window, are made once a step; the few layers of a fixture share them.
fn most(one: f64) -> f64 {
    1.25 * one + 17.0
}

#[test]
fn a_step_of_32_sequences_has_the_operations_of_one() {
    let _turn = device();
    let lengths = [40, 60, 130, 260, 300];
    let mut wrong = Vec::new();
    for name in FAMILIES {
        let policy = WeightPolicy::new(Backend::GPU, false);
        let model = model::load(&model_folder(name), policy, &mut |_, _| {}).expect("the fixture loads");
        let count = |lengths: &[usize]| of_step(model.as_ref(), lengths).expect("the steps run");
        let one = count(&[40]);
        let many = count(&[40; 32]);
        let mixed = count(&lengths.into_iter().cycle().take(32).collect::<Vec<_>>());
        if many > most(one) || mixed > most(one) {
            wrong.push(format!("{name}: {one} for one, {many} for 32, {mixed} for 32 of several lengths"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
