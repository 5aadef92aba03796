//! The number of random cases of a test: few by default, more in `cargo xtask test --full`.

/// Returns the number of cases to try: `few` times `MLX_TEST_SCALE`, which is 1 unless it is set.
///
/// # Panics
/// If `MLX_TEST_SCALE` is not a number.
pub fn cases(few: usize) -> usize {
    few * scale()
}

/// Returns true if `MLX_TEST_SCALE` requests more cases than the default.
///
/// # Panics
/// If `MLX_TEST_SCALE` is not a number.
pub fn is_full() -> bool {
    scale() > 1
}

fn scale() -> usize {
    let text = std::env::var("MLX_TEST_SCALE").unwrap_or_else(|_| "1".to_owned());
    text.parse().ok().filter(|&scale| scale > 0).expect("MLX_TEST_SCALE is a number from 1")
}
