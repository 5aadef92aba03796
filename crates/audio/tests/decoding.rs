//! Files in all formats become the same sound; damaged, cut and long files are errors.

use std::path::Path;

use mlx_audio::{Error, Limits, LogMel, check_header, decode, wav};

fn fixture(name: &str) -> Vec<u8> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden/audio");
    std::fs::read(folder.join(name)).expect("the fixture is in the repository")
}

fn samples(file: &[u8]) -> Result<(Vec<f32>, u32), Error> {
    let (mut samples, mut rate) = (Vec::new(), 0);
    decode(file, &Limits::default(), &mut || Ok(()), &mut |block, its_rate| {
        samples.extend_from_slice(block);
        rate = its_rate;
        Ok(())
    })?;
    Ok((samples, rate))
}

fn features(file: &[u8]) -> Result<LogMel, Error> {
    LogMel::of_file(file, 80, &Limits::default(), &mut |_| Ok(()))
}

#[test]
fn all_formats_give_the_same_tone() {
    for (name, rate) in [
        ("wav", 22_050),
        ("flac", 48_000),
        ("mp3", 44_100),
        ("m4a", 44_100),
        ("ogg", 48_000),
        ("opus", 48_000),
        ("webm", 48_000),
    ] {
        let file = fixture(&format!("tone.{name}"));
        let (samples, its_rate) = samples(&file).expect(name);
        assert_eq!(its_rate, rate, "{name}");
        let seconds = samples.len() as f64 / f64::from(rate);
        assert!((seconds - 0.5).abs() < 0.06, "{name}: {seconds} seconds");
        let middle = &samples[samples.len() / 4..samples.len() * 3 / 4];
        let crossings = middle.windows(2).filter(|pair| pair[0] < 0.0 && pair[1] >= 0.0).count();
        let hertz = crossings as f64 * f64::from(rate) / middle.len() as f64;
        assert!((hertz - 440.0).abs() < 8.0, "{name}: {hertz} Hz");
        let loudest = middle.iter().fold(0.0f32, |loudest, sample| loudest.max(sample.abs()));
        assert!((0.4..0.6).contains(&loudest), "{name}: {loudest}");
        let features = features(&file).expect(name);
        assert!(features.frames().abs_diff(50) <= 6, "{name}: {} frames", features.frames());
    }
}

#[test]
fn a_resampled_tone_has_the_features_of_the_tone_at_16_khz() {
    let sine = |hertz: f32| (0..8000).map(move |place| 0.5 * (440.0 * hertz * place as f32 / 16_000.0).sin());
    let tone: Vec<f32> = sine(std::f32::consts::TAU).collect();
    let direct = LogMel::of_samples(&tone, 80);
    for name in ["tone.wav", "tone.flac"] {
        let resampled = features(&fixture(name)).expect(name);
        assert_eq!(resampled.frames(), direct.frames(), "{name}");
        // The loudest bins of a frame in the middle.
        let (one, other) = (direct.window(0), resampled.window(0));
        for (one, other) in one[25 * 80..26 * 80].iter().zip(&other[25 * 80..26 * 80]) {
            assert!((one - other).abs() < 0.05 || (*one < 0.3 && *other < 0.3), "{name}: {one}, not {other}");
        }
    }
}

#[test]
fn formats_and_codecs_without_support_are_named() {
    // Three channels are two streams.
    let mut surround = fixture("tone.webm");
    let header = surround.windows(8).position(|bytes| bytes == b"OpusHead").expect("a header");
    surround[header + 9] = 3;
    let error = samples(&surround).expect_err("it is not supported").to_string();
    assert!(error.contains("Opus in 3 channels"), "{error}");
    for other in [&b"not audio at all"[..], b"", &[0; 4096], b"RIFF", b"<html></html>"] {
        let error = samples(other).expect_err("it is no audio");
        assert!(matches!(error, Error::Format | Error::Empty | Error::Damaged(_)), "{error}");
    }
}

#[test]
fn cut_files_are_errors() {
    for name in ["tone.wav", "tone.flac", "tone.m4a"] {
        let file = fixture(name);
        for share in [0.1, 0.3, 0.45] {
            let cut = &file[..(file.len() as f64 * share) as usize];
            assert!(samples(cut).is_err(), "{name} was cut to {share}");
        }
    }
    let file = wav::of_samples(&vec![0.1; 5 * 16_000]);
    let error = samples(&file[..file.len() / 2]).expect_err("it is cut");
    assert_eq!(error, Error::Cut { found: 2, claimed: 5 });
}

#[test]
fn a_length_that_a_pipe_could_not_know_is_ignored() {
    // The lengths that ffmpeg and sox write to a pipe.
    for length in [u32::MAX, 0x7fff_f000] {
        let mut file = wav::of_samples(&vec![0.1; 16_000]);
        file[4..8].copy_from_slice(&length.saturating_add(36).to_le_bytes());
        file[40..44].copy_from_slice(&length.to_le_bytes());
        assert_eq!(samples(&file).expect("it is audio").0.len(), 16_000, "{length:x}");
    }
}

#[test]
fn an_estimated_length_neither_cuts_nor_refuses_a_file() {
    let file = fixture("tone.mp3");
    let is_frame = |place: usize| file[place] == 0xff && file[place + 1] & 0xe0 == 0xe0;
    let tag = file.windows(4).position(|bytes| bytes == b"Info" || bytes == b"Xing").expect("a tag");
    let first = (tag..file.len() - 1).find(|place| is_frame(*place)).expect("a frame after the tag");
    let frames = &file[first..];
    let whole = samples(frames).expect("it is audio").0.len();
    // The estimate follows from the bit rate of the first frame and the length of the file.
    let longer = [frames, &vec![0; 50_000]].concat();
    assert_eq!(samples(&longer).expect("it is audio").0.len(), whole);
    let low = {
        // A higher bit rate in the first header damages this frame, and makes the estimate too short.
        let mut first = frames.to_vec();
        first[2] = (first[2] & 0x0f) | 0xe0;
        first
    };
    assert!(samples(&low).expect("it is audio").0.len() + 3 * 1152 >= whole);
}

#[test]
fn headers_are_checked_without_decoding() {
    let limits = Limits { seconds: 2, ..Limits::default() };
    let file = wav::of_samples(&vec![0.1; 3 * 16_000]);
    assert_eq!(check_header(&file, &Limits::default()), Ok(()));
    assert_eq!(check_header(&file, &limits), Err(Error::Seconds { limit: 2 }));
    assert_eq!(check_header(b"no audio at all", &limits), Err(Error::Format));
}

#[test]
fn limits_end_the_work() {
    let file = wav::of_samples(&vec![0.1; 3 * 16_000]);
    let read = |limits: Limits| LogMel::of_file(&file, 80, &limits, &mut |_| Ok(())).map(|it| it.frames());
    assert_eq!(
        read(Limits { bytes: 1000, seconds: 60 }),
        Err(Error::Bytes { found: file.len(), limit: 1000 })
    );
    assert_eq!(read(Limits { seconds: 2, ..Limits::default() }), Err(Error::Seconds { limit: 2 }));
    assert_eq!(read(Limits { seconds: 3, ..Limits::default() }), Ok(300));
    // A header that claims 14 hours is refused before a sample is decoded.
    let mut claims = file.clone();
    claims[4..8].copy_from_slice(&(36 + 2 * 16_000 * 50_000u32).to_le_bytes());
    claims[40..44].copy_from_slice(&(2 * 16_000 * 50_000u32).to_le_bytes());
    assert_eq!(samples(&claims), Err(Error::Seconds { limit: 4 * 3600 }));
    let cancelled = LogMel::of_file(&file, 80, &Limits::default(), &mut |_| Err(Error::Cancelled));
    assert_eq!(cancelled.err(), Some(Error::Cancelled));
}

#[test]
fn samples_that_are_no_numbers_are_refused() {
    let mut file = wav::of_samples(&[0.0; 800]);
    // 32-bit floats.
    file[20] = 3;
    file[28..32].copy_from_slice(&64_000u32.to_le_bytes());
    file[32] = 4;
    file[34] = 32;
    file[100..104].copy_from_slice(&f32::NAN.to_le_bytes());
    let error = samples(&file).expect_err("a sample is no number");
    assert!(error.to_string().contains("finite"), "{error}");
}

mod random {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..Default::default() })]

        #[test]
        fn damaged_files_never_panic(
            format in prop::sample::select(vec!["wav", "flac", "mp3", "m4a", "ogg", "opus", "webm"]),
            changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..20),
            end in any::<prop::sample::Index>(),
        ) {
            let mut file = fixture(&format!("tone.{format}"));
            for (place, value) in changes {
                let place = place.index(file.len());
                file[place] = value;
            }
            file.truncate(end.index(file.len()) + 1);
            let limits = Limits { bytes: 1 << 20, seconds: 60 };
            let _ = LogMel::of_file(&file, 80, &limits, &mut |_| Ok(()));
        }
    }
}
