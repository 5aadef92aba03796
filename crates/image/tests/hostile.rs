//! Untrusted pictures: damaged files, wrong headers and decompression bombs must give a picture within the
//! limits or an error.

use std::io::Cursor;

use image::{DynamicImage, ImageFormat, Rgba, RgbaImage};
use mlx_image::{Error, Limits, decode};
use proptest::prelude::*;

const FORMATS: [ImageFormat; 4] = [ImageFormat::Png, ImageFormat::Jpeg, ImageFormat::WebP, ImageFormat::Gif];

fn encoded(format: ImageFormat, width: u32, height: u32) -> Vec<u8> {
    let color = |x: u32, y: u32| Rgba([(x * 40) as u8, (y * 50) as u8, 100, 255]);
    let made = DynamicImage::from(RgbaImage::from_fn(width, height, color));
    let made = if format == ImageFormat::Jpeg { made.into_rgb8().into() } else { made };
    let mut file = Cursor::new(Vec::new());
    made.write_to(&mut file, format).expect("the encoder takes it");
    file.into_inner()
}

/// Limits for tests, so that a wrong header cannot make a test slow.
fn small() -> Limits {
    Limits { bytes: 1 << 16, pixels: 1 << 16 }
}

#[test]
fn every_format_is_decoded() {
    for format in FORMATS {
        let picture = decode(&encoded(format, 12, 7), &Limits::default()).expect("a valid file");
        assert_eq!((picture.width(), picture.height()), (12, 7));
        let [red, green, blue] = picture.pixel(5, 3).expect("inside");
        // Gif quantizes colors, and jpeg rounds them.
        let near = |a: u8, b: u8| a.abs_diff(b) < 40;
        assert!(near(red, 200) && near(green, 150) && near(blue, 100), "{format:?}: {red} {green} {blue}");
        assert_eq!(picture.pixel(12, 0), None);
    }
}

#[test]
fn what_is_transparent_shows_white() {
    let shades = RgbaImage::from_fn(3, 1, |x, _| Rgba([200, 0, 50, [0, 128, 255][x as usize]]));
    let mut file = Cursor::new(Vec::new());
    shades.write_to(&mut file, ImageFormat::Png).expect("the encoder takes it");
    let picture = decode(file.get_ref(), &Limits::default()).expect("a valid file");
    assert_eq!(picture.pixels(), [255, 255, 255, 227, 127, 152, 200, 0, 50]);
}

#[test]
fn exif_turns_the_picture() {
    // An APP1 segment with one entry: orientation 6, rotated by 90° to the right.
    let mut exif = b"Exif\0\0II*\0\x08\0\0\0\x01\0\x12\x01\x03\0\x01\0\0\0\x06\0\0\0\0\0\0\0".to_vec();
    let mut segment = vec![0xff, 0xe1];
    segment.extend((exif.len() as u16 + 2).to_be_bytes());
    segment.append(&mut exif);
    let mut file = encoded(ImageFormat::Jpeg, 12, 7);
    file.splice(2..2, segment);
    let picture = decode(&file, &Limits::default()).expect("a valid file");
    assert_eq!((picture.width(), picture.height()), (7, 12));
}

#[test]
fn limits_have_reasons() {
    let file = encoded(ImageFormat::Png, 300, 300);
    let limits = Limits { bytes: 1 << 20, pixels: 300 * 300 - 1 };
    assert_eq!(decode(&file, &limits), Err(Error::Pixels { width: 300, height: 300, limit: 89_999 }));
    let limits = Limits { bytes: file.len() - 1, pixels: 1 << 20 };
    assert_eq!(decode(&file, &limits), Err(Error::Bytes { found: file.len(), limit: file.len() - 1 }));
    assert_eq!(decode(b"<svg/>", &Limits::default()), Err(Error::Format));
    assert_eq!(decode(b"", &Limits::default()), Err(Error::Format));
    assert_eq!(decode(b"BM but no bitmap is read", &Limits::default()), Err(Error::Format));
}

#[test]
fn a_header_that_claims_gigabytes_is_refused_unread() {
    let mut file = encoded(ImageFormat::Gif, 4, 4);
    file[6..10].copy_from_slice(&[0xff; 4]);
    let refused = decode(&file, &Limits::default());
    assert!(matches!(refused, Err(Error::Pixels { width: 65535, height: 65535, .. })), "{refused:?}");
}

#[test]
fn a_cut_file_is_refused() {
    for format in FORMATS {
        let file = encoded(format, 64, 48);
        for length in [file.len() / 2, file.len() * 9 / 10] {
            let cut = decode(&file[..length], &Limits::default());
            assert!(
                matches!(cut, Err(Error::Damaged(_))),
                "{format:?}, {length} of {} bytes: {cut:?}",
                file.len()
            );
        }
    }
    // The end marker of a thumbnail is not the end of the picture, and bytes after the end are ignored.
    let file = encoded(ImageFormat::Jpeg, 64, 48);
    let mut with_thumbnail = file.clone();
    with_thumbnail.splice(2..2, [&[0xff, 0xe1, 0, 8][..], &[0xff, 0xd8, 0xff, 0xd9, 0xff, 0xd9]].concat());
    let limits = Limits::default();
    assert_eq!(decode(&with_thumbnail, &limits), decode(&file, &limits));
    assert_eq!(decode(&[&file[..], b"trailing bytes"].concat(), &limits), decode(&file, &limits));
    with_thumbnail.truncate(file.len());
    assert!(decode(&with_thumbnail, &limits).is_err());
    assert!(decode(&file[..file.len() - 2], &limits).is_err());
}

#[test]
fn digests_know_the_shape() {
    let wide = mlx_image::Picture::new(4, 1, vec![7; 12]).expect("twelve bytes");
    let tall = mlx_image::Picture::new(1, 4, vec![7; 12]).expect("twelve bytes");
    assert_ne!(wide.digest(), tall.digest());
    assert_eq!(wide.digest(), wide.clone().digest());
    assert!(mlx_image::Picture::new(4, 1, vec![7; 11]).is_none());
    assert!(mlx_image::Picture::new(0, 1, vec![]).is_none());
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn damage_never_panics(
        format in 0_usize..4,
        edits in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..12),
        length in any::<prop::sample::Index>(),
        cut in any::<bool>(),
    ) {
        let mut file = encoded(FORMATS[format], 16, 11);
        for (place, byte) in edits {
            let place = place.index(file.len());
            file[place] = byte;
        }
        if cut {
            file.truncate(length.index(file.len()));
        }
        if let Ok(picture) = decode(&file, &small()) {
            prop_assert!(u64::from(picture.width()) * u64::from(picture.height()) <= small().pixels);
        }
    }
}
