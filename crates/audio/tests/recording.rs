//! A recording is read in chunks that lose no sample, are bounded, and end in pauses.

use mlx_audio::{Limits, Recording, decode_samples, wav};

const RATE: usize = 16_000;

/// Returns the next random number.
fn random(state: &mut u64) -> u64 {
    *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    *state >> 33
}

/// Returns noise of this many samples.
fn noise(count: usize, state: &mut u64) -> Vec<f32> {
    (0..count).map(|_| random(state) as f32 / (1u64 << 30) as f32 - 1.0).collect()
}

/// Reads all chunks.
fn chunks(recording: &mut Recording, seconds: u32) -> Vec<Vec<f32>> {
    let mut all = Vec::new();
    loop {
        let chunk = recording.chunk(seconds).to_vec();
        if chunk.is_empty() {
            return all;
        }
        recording.advance(chunk.len());
        all.push(chunk);
    }
}

#[test]
fn chunks_are_bounded_and_hold_every_sample_once() {
    let mut state = 3;
    for round in 0..30 {
        let samples = noise(random(&mut state) as usize % (9 * RATE), &mut state);
        let seconds = 1 + random(&mut state) as u32 % 4;
        let mut recording = Recording::of_samples(samples.clone());
        let all = chunks(&mut recording, seconds);
        let most = seconds as usize * RATE;
        assert!(all.iter().all(|chunk| chunk.len() <= most), "{round}");
        let (_, early) = all.split_last().unwrap_or((&samples, &[]));
        assert!(early.iter().all(|chunk| chunk.len() >= most / 2), "{round}: no short chunks before the end");
        assert_eq!(all.concat(), samples, "{round}");
        assert!((recording.position() - recording.seconds()).abs() < 1e-9);
        assert!((recording.seconds() - samples.len() as f64 / RATE as f64).abs() < 1e-9);
        assert!(recording.bytes() <= samples.len(), "{round}: passed samples are released");
    }
}

#[test]
fn chunks_end_in_the_pauses_of_speech() {
    let mut state = 5;
    let mut samples = noise(70 * RATE, &mut state);
    // A pause before the last ten seconds of a chunk of 30, a short one in them, and a longer one after the chunk.
    for (start, end) in [(12.0, 13.0), (24.0, 24.12), (31.0, 33.0)] {
        samples[(start * RATE as f64) as usize..(end * RATE as f64) as usize].fill(0.0);
    }
    let all = chunks(&mut Recording::of_samples(samples.clone()), 30);
    let first = all[0].len() as f64 / RATE as f64;
    assert!((24.0..24.12).contains(&first), "{first}");
    let silent = chunks(&mut Recording::of_samples(vec![0.0; 70 * RATE]), 30);
    assert!(silent[0].len() > 29 * RATE, "of equal points, the last: {}", silent[0].len());
}

#[test]
fn a_file_has_the_samples_of_its_decoder_and_reports_their_memory() {
    let file = wav::of_samples(&noise(3 * RATE, &mut 7));
    let mut most = 0;
    let mut check = |bytes: usize| {
        most = most.max(bytes);
        Ok(())
    };
    let recording = Recording::of_file(&file, &Limits::default(), &mut check).expect("it is decoded");
    let expected = decode_samples(&file, &Limits::default(), &mut || Ok(())).expect("it is decoded");
    assert_eq!(recording.chunk(60), expected);
    assert_eq!(recording.bytes(), 4 * expected.len());
    assert!(most > 2 * expected.len(), "{most} bytes");
    let mut full = |bytes: usize| if bytes > 1000 { Err(mlx_audio::Error::Cancelled) } else { Ok(()) };
    assert!(Recording::of_file(&file, &Limits::default(), &mut full).is_err(), "the check ends it");
}
