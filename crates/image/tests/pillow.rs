//! Checks that resizing equals Pillow byte for byte, and that sizes equal those of transformers. `pillow.py`
//! writes the expected values.

use mlx_image::{Error, Filter, Picture, resize, sizes};
use serde::Deserialize;
use sha2::{Digest, Sha256};

/// Width, height, new width, new height, filter, smooth, and half the SHA-256 of the bytes.
type Resized = (u32, u32, u32, u32, String, bool, String);

fn picture(width: u32, height: u32, smooth: bool) -> Picture {
    let mut pixels = Vec::new();
    let mut state = 1_u32;
    for at in 0..width * height {
        let (x, y) = ((at % width) as i32, (at / width) as i32);
        if smooth {
            pixels.push(((x * 7 + y * 3) % 510 - 255).unsigned_abs() as u8);
            pixels.push(((x * 2 + y * 5) % 510 - 255).unsigned_abs() as u8);
            pixels.push((x * y / 16 % 256) as u8);
        } else {
            for _ in 0..3 {
                state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                pixels.push((state >> 24) as u8);
            }
        }
    }
    Picture::new(width, height, pixels).expect("three bytes a pixel")
}

#[test]
fn resizing_equals_pillow_byte_for_byte() {
    let cases: Vec<Resized> = serde_json::from_str(include_str!("pillow.json")).expect("the fixture");
    assert!(cases.len() >= 200);
    for (width, height, to_width, to_height, name, smooth, expected) in cases {
        let filter = match name.as_str() {
            "bilinear" => Filter::Bilinear,
            "bicubic" => Filter::Bicubic,
            _ => Filter::Lanczos,
        };
        let made = resize(&picture(width, height, smooth), to_width, to_height, filter);
        assert_eq!((made.width(), made.height()), (to_width, to_height));
        let digest = Sha256::digest(made.pixels());
        let number = digest[..16].iter().fold(0_u128, |number, byte| (number << 8) | u128::from(*byte));
        let digest = format!("{number:032x}");
        assert_eq!(
            digest, expected,
            "{width} x {height} to {to_width} x {to_height}, {name}, smooth: {smooth}"
        );
    }
}

#[derive(Deserialize)]
struct Sizes {
    size: sizes::Size,
    qwen3_vl: Option<sizes::Size>,
    qwen2_vl: Option<sizes::Size>,
    pixtral: Option<sizes::Size>,
    mistral3: Option<sizes::Size>,
    gemma4: Option<sizes::Size>,
    gemma4_70: Option<sizes::Size>,
}

#[test]
fn sizes_equal_transformers() {
    let cases: Vec<Sizes> = serde_json::from_str(include_str!("sizes.json")).expect("the fixture");
    for case in cases {
        let size = case.size;
        // For an empty side, transformers fails later and we fail here.
        let check = |name: &str, ours: Result<sizes::Size, Error>, theirs: Option<sizes::Size>| {
            assert_eq!(ours.ok(), theirs.filter(|size| size.0 > 0 && size.1 > 0), "{name} {size:?}");
        };
        check("qwen3_vl", sizes::qwen(size, 32, 65536, 16_777_216), case.qwen3_vl);
        check("qwen2_vl", sizes::qwen(size, 28, 3136, 1_003_520), case.qwen2_vl);
        check("pixtral", sizes::pixtral(size, 1024, 16), case.pixtral);
        check("mistral3", sizes::pixtral(size, 1540, 28), case.mistral3);
        check("gemma4", sizes::gemma4(size, 16, 280, 3), case.gemma4);
        check("gemma4_70", sizes::gemma4(size, 16, 70, 3), case.gemma4_70);
    }
}
