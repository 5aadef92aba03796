//! A step of the gated delta rule as one operation of MLX. Invariant: a model uses it only after it matched plain operations on this
//! device, for heads of the model's shape.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use mlx_rs::ops::{abs, add, exp, matmul, multiply, negative, rsqrt, square, subtract};
use mlx_rs::random::{key, normal, uniform};
use mlx_rs::{Array, Dtype};

use super::gated_delta::GatedDeltaConfig;
use super::gated_delta::rule::Rows;
use crate::array::host;
use crate::backend::Backend;
use crate::error::Result;
use crate::mlx_sys::{DeltaRows, gated_delta_update};

/// The dimension of keys and of values for which MLX 0.32.4 has kernels, and the numbers of key heads and value heads. The names of its
/// kernels in mlx.metallib contain them. For other shapes, MLX uses plain operations, as this crate does.
const DIMENSIONS: usize = 128;
const HEADS: [[usize; 2]; 6] = [[16, 16], [16, 32], [16, 48], [16, 64], [24, 24], [32, 32]];

/// The largest allowed difference from plain operations, relative to the largest number. Sums of 128 products in another order differ by
/// about 1e-6.
const TOLERANCE: f32 = 1e-4;

/// The number of sequences in the check.
const SEQUENCES: i32 = 2;

/// Returns true if [`step`] may be used for layers of this shape: the backend has a kernel, and it passed the check. The first call for
/// each shape runs the check.
pub(super) fn is_usable(backend: Backend, config: &GatedDeltaConfig) -> bool {
    static CHECKED: Mutex<BTreeMap<[usize; 2], bool>> = Mutex::new(BTreeMap::new());
    let heads = [config.num_key_heads, config.num_value_heads];
    let has_kernel =
        [config.key_head_dim, config.value_head_dim] == [DIMENSIONS; 2] && HEADS.contains(&heads);
    if !backend.fused_gated_delta || !has_kernel {
        return false;
    }
    let mut checked = CHECKED.lock().unwrap_or_else(PoisonError::into_inner);
    *checked.entry(heads).or_insert_with(|| {
        let result = is_right(config);
        if !matches!(result, Ok(true)) {
            tracing::warn!("fused gated delta update disabled on this device; its check returned {result:?}");
        }
        result.unwrap_or(false)
    })
}

/// Runs one row of each of `n` sequences. Returns the outputs, `[n, Hk, G, Dv]`, and the memories after the rows, in the shape of `memory`.
/// The result is `None` if this build lacks the operation. The decay must be one number per head.
pub(super) fn step(rows: &Rows, memory: &Array) -> Result<Option<(Array, Array)>> {
    let [n, key_heads, group, value_size] = [0, 1, 2, 3].map(|axis| rows.value.dim(axis));
    let (heads, key_size) = (key_heads * group, rows.key.dim(3));
    let of_heads = |numbers: &Array| numbers.reshape(&[n, 1, heads]);
    let of_keys = |numbers: &Array| numbers.reshape(&[n, 1, key_heads, key_size]);
    let result = gated_delta_update(&DeltaRows {
        queries: &of_keys(&rows.query)?,
        keys: &of_keys(&rows.key)?,
        values: &rows.value.reshape(&[n, 1, heads, value_size])?,
        decays: &of_heads(&exp(&rows.log_decay)?)?,
        corrections: &of_heads(&rows.correction)?,
        memory: &memory.reshape(&[n, heads, value_size, key_size])?,
    })?;
    let Some((read, after)) = result else { return Ok(None) };
    Ok(Some((read.reshape(rows.value.shape())?, after.reshape(memory.shape())?)))
}

/// Compares [`step`] with plain operations on random rows.
fn is_right(config: &GatedDeltaConfig) -> Result<bool> {
    let (rows, memory) = random_rows(config, SEQUENCES)?;
    let Some((read, after)) = step(&rows, &memory)? else { return Ok(false) };
    let (expected, expected_after) = plain_step(&rows, &memory)?;
    Ok(is_close(&read, &expected)? && is_close(&after, &expected_after)?)
}

/// Computes the rule by its definition: a product of a matrix and a vector for each head.
fn plain_step(rows: &Rows, memory: &Array) -> Result<(Array, Array)> {
    let [query, key] = [&rows.query, &rows.key].map(|rows| rows.expand_dims(4));
    let (query, key) = (query?, key?);
    let memory = multiply(memory, exp(&rows.log_decay)?.expand_dims(4)?)?;
    let change = subtract(rows.value.expand_dims(4)?, matmul(&memory, &key)?)?;
    let change = multiply(change, rows.correction.reshape(&[memory.dim(0), memory.dim(1), -1, 1, 1])?)?;
    let memory = add(memory, matmul(change, key.swap_axes(3, 4)?)?)?;
    Ok((matmul(&memory, query)?.squeeze_axes(&[4])?, memory))
}

/// Returns a random row of each of `n` sequences and memories `[n, Hk, G, Dv, Dk]`, with numbers in the range of real layers.
fn random_rows(config: &GatedDeltaConfig, n: i32) -> Result<(Rows, Array)> {
    let [keys, values, key_size, value_size] =
        [config.num_key_heads, config.num_value_heads, config.key_head_dim, config.value_head_dim]
            .map(|size| size as i32);
    let group = values / keys;
    let random =
        |seed, shape: &[i32]| -> Result<Array> { Ok(normal::<f32>(shape, None, None, &key(seed)?)?) };
    let unit = |seed| -> Result<Array> {
        let rows = random(seed, &[n, keys, 1, key_size])?;
        Ok(multiply(&rows, rsqrt(square(&rows)?.sum_axis(-1, true)?)?)?)
    };
    let rows = Rows {
        query: unit(1)?,
        key: unit(2)?,
        value: random(3, &[n, keys, group, value_size])?,
        log_decay: negative(abs(random(4, &[n, keys, group, 1])?)?)?,
        correction: uniform::<_, f32>(0.0, 1.0, &[n, keys, group][..], &key(5)?)?,
    };
    Ok((rows, random(6, &[n, keys, group, value_size, key_size])?))
}

fn is_close(numbers: &Array, expected: &Array) -> Result<bool> {
    if numbers.shape() != expected.shape() || numbers.dtype() != Dtype::Float32 {
        return Ok(false);
    }
    let largest = |numbers: &Array| -> Result<f32> { Ok(host::<f32>(&abs(numbers)?.max(None)?)?[0]) };
    Ok(largest(&subtract(numbers, expected)?)? <= TOLERANCE * largest(expected)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device_lock::device;
    use crate::mlx_sys;
    use crate::model::gated_delta::GatedDeltaProjections;

    fn heads(keys: usize, values: usize, key_size: usize, value_size: usize) -> GatedDeltaConfig {
        GatedDeltaConfig {
            num_key_heads: keys,
            num_value_heads: values,
            key_head_dim: key_size,
            value_head_dim: value_size,
            taps: 4,
            projections: GatedDeltaProjections::Apart,
        }
    }

    /// Returns true if this build has the operation. A build from MLX's sources has MLX 0.32.2 and lacks it.
    fn is_built() -> bool {
        mlx_sys::version().expect("a version") != "0.32.2"
    }

    #[test]
    fn the_fused_update_gives_the_numbers_of_plain_operations() {
        let _turn = device();
        for config in [heads(1, 1, 32, 8), heads(2, 6, 32, 16), heads(16, 32, 128, 128)] {
            assert_eq!(is_right(&config).expect("it is computed"), is_built(), "{config:?}");
        }
    }

    #[test]
    fn sequences_do_not_change_each_other() {
        let _turn = device();
        let (rows, memory) = random_rows(&heads(2, 4, 32, 16), 3).expect("rows");
        let Some((read, after)) = step(&rows, &memory).expect("it is computed") else {
            return assert!(!is_built());
        };
        let part = |array: &Array| crate::array::slice_axis(array, 0, 1, 2).expect("the second");
        let one = Rows {
            query: part(&rows.query),
            key: part(&rows.key),
            value: part(&rows.value),
            log_decay: part(&rows.log_decay),
            correction: part(&rows.correction),
        };
        let alone = step(&one, &part(&memory)).expect("it is computed").expect("it is built");
        assert!(is_close(&alone.0, &part(&read)).expect("a number"));
        assert!(is_close(&alone.1, &part(&after)).expect("a number"));
    }

    #[test]
    fn wrong_numbers_are_noticed() {
        let _turn = device();
        let numbers = Array::from_slice(&[1.0f32, -2.0], &[2]);
        for (other, close) in [([1.0, -2.0], true), ([1.0, -2.001], false), ([f32::NAN, -2.0], false)] {
            let other = Array::from_slice(&other, &[2]);
            assert_eq!(is_close(&other, &numbers).expect("a number"), close);
        }
        assert!(!is_close(&numbers.reshape(&[1, 2]).expect("a shape"), &numbers).expect("a number"));
    }

    #[test]
    fn only_backends_and_shapes_with_a_kernel_use_it() {
        let _turn = device();
        let config = heads(16, 32, 128, 128);
        assert_eq!(is_usable(Backend::GPU, &config), is_built());
        assert!(!is_usable(Backend::CPU, &config));
        assert!(!is_usable(Backend::CUDA, &config));
        assert!(!is_usable(Backend::GPU, &heads(16, 32, 64, 128)));
        assert!(!is_usable(Backend::GPU, &heads(8, 16, 128, 128)));
    }
}
