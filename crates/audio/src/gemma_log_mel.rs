//! The log-mel features of Gemma 4's audio tower: the logarithm of the magnitudes under HTK's filters, in windows of 20 ms every 10 ms.

use std::f64::consts::PI;
use std::sync::Arc;

use realfft::num_complex::Complex64;
use realfft::{RealFftPlanner, RealToComplex};

use crate::mel_filters::{MelFilters, MelScale};
use crate::rate::SAMPLE_RATE;

/// The samples of a window.
const WINDOW: usize = 320;
/// The samples between the starts of two windows.
const HOP: usize = 160;
/// The first window is centered at the first sample, so it begins with as many zeros.
const MARGIN: usize = WINDOW / 2;
/// The samples that a window is padded to for the transform.
const TRANSFORM: usize = 512;
/// The number that is added to a magnitude before its logarithm.
const FLOOR: f64 = 1e-3;

/// Returns the number of frames of this many samples. A frame exists if its window and the sample after it are within the samples.
pub const fn gemma_frames(samples: usize) -> usize {
    samples.div_ceil(HOP).saturating_sub(1)
}

/// Returns the features of samples at 16 kHz, frame by frame, with `bins` numbers each.
pub fn gemma_log_mel(samples: &[f32], bins: usize) -> Vec<f32> {
    let filters = MelFilters::new(MelScale::Htk, bins, TRANSFORM / 2 + 1, f64::from(SAMPLE_RATE) / 2.0);
    let mut transform = Transform::new();
    let padded: Vec<f64> =
        std::iter::repeat_n(0.0, MARGIN).chain(samples.iter().map(|sample| f64::from(*sample))).collect();
    let mut features = Vec::with_capacity(gemma_frames(samples.len()) * bins);
    for window in padded.windows(WINDOW + 1).step_by(HOP) {
        let sums = filters.apply(transform.magnitudes(&window[..WINDOW]));
        features.extend(sums.map(|sum| (sum + FLOOR).ln() as f32));
    }
    features
}

/// The transform of a window, with its buffers.
struct Transform {
    fft: Arc<dyn RealToComplex<f64>>,
    taper: Vec<f64>,
    frame: Vec<f64>,
    spectrum: Vec<Complex64>,
    scratch: Vec<Complex64>,
    magnitudes: Vec<f64>,
}

impl Transform {
    fn new() -> Self {
        let fft = RealFftPlanner::new().plan_fft_forward(TRANSFORM);
        // A Hann window.
        let taper = (0..WINDOW).map(|place| 0.5 - 0.5 * (2.0 * PI * place as f64 / WINDOW as f64).cos());
        Self {
            taper: taper.collect(),
            frame: fft.make_input_vec(),
            spectrum: fft.make_output_vec(),
            scratch: fft.make_scratch_vec(),
            magnitudes: vec![0.0; TRANSFORM / 2 + 1],
            fft,
        }
    }

    /// Returns the magnitudes of the frequencies of a window.
    fn magnitudes(&mut self, window: &[f64]) -> &[f64] {
        self.frame.fill(0.0);
        for ((place, sample), factor) in self.frame.iter_mut().zip(window).zip(&self.taper) {
            *place = sample * factor;
        }
        self.fft
            .process_with_scratch(&mut self.frame, &mut self.spectrum, &mut self.scratch)
            .expect("the buffers have the lengths of the plan");
        for (magnitude, value) in self.magnitudes.iter_mut().zip(&self.spectrum) {
            *magnitude = value.norm();
        }
        &self.magnitudes
    }
}
