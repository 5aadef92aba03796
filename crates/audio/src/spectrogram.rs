//! The mel spectrogram of a stream of samples: windows of 25 ms, every 10 ms.

use std::f64::consts::PI;
use std::sync::Arc;

use realfft::num_complex::Complex64;
use realfft::{RealFftPlanner, RealToComplex};

use crate::mel_filters::{MelFilters, MelScale};
use crate::rate::SAMPLE_RATE;

/// The samples of a window.
const WINDOW: usize = 400;
/// The samples between the starts of two windows.
pub(crate) const HOP: usize = 160;
/// A window is centered, so the first one begins this many samples before the stream.
const MARGIN: usize = WINDOW / 2;
/// The smallest power. Its logarithm is that of silence.
const SMALLEST: f64 = 1e-10;
/// The logarithm of the smallest power.
pub(crate) const SILENCE: f32 = -10.0;

/// Features below the loudest one by more than this are raised to that level, in powers of ten.
const RANGE: f32 = 8.0;

/// Returns the feature of a logarithm in a file whose largest one is `loudest`.
pub(crate) fn scaled(value: f32, loudest: f32) -> f32 {
    (value.max(loudest - RANGE) + 4.0) / 4.0
}

/// Computes the base-10 logarithms of the mel spectrogram.
pub(crate) struct Spectrogram {
    fft: Arc<dyn RealToComplex<f64>>,
    filters: MelFilters,
    taper: Vec<f64>,
    /// Samples from the start of the next window. Empty until the margin before the first sample is known.
    pending: Vec<f32>,
    is_started: bool,
    frame: Vec<f64>,
    spectrum: Vec<Complex64>,
    powers: Vec<f64>,
    scratch: Vec<Complex64>,
}

impl Spectrogram {
    /// Creates a spectrogram with this many mel bins.
    pub(crate) fn new(bins: usize) -> Self {
        let fft = RealFftPlanner::new().plan_fft_forward(WINDOW);
        // A Hann window.
        let taper = (0..WINDOW).map(|place| 0.5 - 0.5 * (2.0 * PI * place as f64 / WINDOW as f64).cos());
        Self {
            filters: MelFilters::new(MelScale::Slaney, bins, WINDOW / 2 + 1, f64::from(SAMPLE_RATE) / 2.0),
            taper: taper.collect(),
            pending: Vec::new(),
            is_started: false,
            frame: fft.make_input_vec(),
            spectrum: fft.make_output_vec(),
            powers: vec![0.0; WINDOW / 2 + 1],
            scratch: fft.make_scratch_vec(),
            fft,
        }
    }

    /// Adds samples. Appends each complete frame to `frames`.
    pub(crate) fn push(&mut self, samples: &[f32], frames: &mut Vec<f32>) {
        self.pending.extend_from_slice(samples);
        if !self.is_started {
            if self.pending.len() <= MARGIN {
                return;
            }
            self.start();
        }
        let mut start = 0;
        while start + WINDOW <= self.pending.len() {
            self.frame_at(start, frames);
            start += HOP;
        }
        self.pending.drain(..start);
    }

    /// Adds the frames whose windows reach beyond the end, as if silence followed.
    pub(crate) fn finish(&mut self, frames: &mut Vec<f32>) {
        self.push(&[0.0; WINDOW], frames);
    }

    /// Adds the frames whose windows reach beyond the end, as if the last samples followed in reverse order. There must be more samples than a
    /// window has.
    pub(crate) fn finish_mirrored(&mut self, frames: &mut Vec<f32>) {
        // A part of the last window is always pending, and its half is the margin.
        let mirrored: Vec<f32> = self.pending.iter().rev().skip(1).take(MARGIN).copied().collect();
        self.push(&mirrored, frames);
    }

    /// Mirrors the first samples, so that the first window is centered at the first sample.
    fn start(&mut self) {
        let mirrored: Vec<f32> = self.pending[1..=MARGIN].iter().rev().copied().collect();
        self.pending.splice(..0, mirrored);
        self.is_started = true;
    }

    fn frame_at(&mut self, start: usize, frames: &mut Vec<f32>) {
        let samples = &self.pending[start..start + WINDOW];
        for ((place, sample), factor) in self.frame.iter_mut().zip(samples).zip(&self.taper) {
            *place = f64::from(*sample) * factor;
        }
        self.fft
            .process_with_scratch(&mut self.frame, &mut self.spectrum, &mut self.scratch)
            .expect("the buffers have the lengths of the plan");
        for (power, value) in self.powers.iter_mut().zip(&self.spectrum) {
            *power = value.norm_sqr();
        }
        frames.extend(self.filters.apply(&self.powers).map(|power| power.max(SMALLEST).log10() as f32));
    }
}
