//! Pictures: any file is decoded within its limits or rejected, and a decoded picture can be resized.
#![no_main]

use libfuzzer_sys::fuzz_target;
use mlx_fuzz::watch_panics;
use mlx_image::{Filter, Limits, decode, resize};

const LIMITS: Limits = Limits { bytes: 1 << 20, pixels: 1 << 20 };

fuzz_target!(init: watch_panics(), |data: &[u8]| {
    let Ok(picture) = decode(data, &LIMITS) else { return };
    assert!(u64::from(picture.width()) * u64::from(picture.height()) <= LIMITS.pixels);
    for filter in [Filter::Bilinear, Filter::Bicubic] {
        let small = resize(&picture, 33, 17, filter);
        assert_eq!(small.rows().len(), 17);
    }
});
