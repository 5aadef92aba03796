//! Resampling to 16 kHz, block by block.

use rubato::audioadapter_buffers::direct::SequentialSlice;
use rubato::{Fft, FixedSync, Indexing, Resampler as _};

use crate::error::Error;
use crate::rate::SAMPLE_RATE;

/// The approximate number of samples that are resampled at once.
const BLOCK: usize = 4096;

/// Converts samples of one rate to 16 kHz.
pub(crate) struct Resampler {
    /// `None` if the samples have the rate already.
    conversion: Option<Conversion>,
}

struct Conversion {
    fft: Fft<f32>,
    ratio: f64,
    /// Samples that wait for a full block.
    pending: Vec<f32>,
    output: Vec<f32>,
    /// Samples at the start of the output that the filter's delay adds.
    delay: usize,
    read: u64,
    written: u64,
}

impl Resampler {
    /// Creates a resampler of samples at `rate` Hz.
    pub(crate) fn new(rate: u32) -> Result<Self, Error> {
        if rate == SAMPLE_RATE {
            return Ok(Self { conversion: None });
        }
        let fft = Fft::new(rate as usize, SAMPLE_RATE as usize, BLOCK, 1, FixedSync::Input)
            .map_err(|fault| Error::Damaged(format!("its sample rate is {rate} Hz: {fault}")))?;
        let conversion = Conversion {
            ratio: f64::from(SAMPLE_RATE) / f64::from(rate),
            pending: Vec::new(),
            output: vec![0.0; fft.output_frames_max()],
            delay: fft.output_delay(),
            read: 0,
            written: 0,
            fft,
        };
        Ok(Self { conversion: Some(conversion) })
    }

    /// Converts samples, and passes those that are complete to `each`.
    pub(crate) fn push(&mut self, samples: &[f32], each: &mut dyn FnMut(&[f32])) -> Result<(), Error> {
        let Some(conversion) = &mut self.conversion else {
            each(samples);
            return Ok(());
        };
        conversion.read += samples.len() as u64;
        conversion.pending.extend_from_slice(samples);
        let mut start = 0;
        while conversion.pending.len() - start >= conversion.fft.input_frames_next() {
            start += conversion.convert(start, None, u64::MAX, each)?;
        }
        conversion.pending.drain(..start);
        Ok(())
    }

    /// Passes the remaining samples to `each`.
    pub(crate) fn finish(mut self, each: &mut dyn FnMut(&[f32])) -> Result<(), Error> {
        let Some(conversion) = &mut self.conversion else { return Ok(()) };
        let total = (conversion.read as f64 * conversion.ratio).round() as u64;
        while conversion.written < total {
            let valid = conversion.pending.len();
            conversion.pending.resize(conversion.fft.input_frames_next(), 0.0);
            conversion.convert(0, Some(valid), total, each)?;
            conversion.pending.clear();
        }
        Ok(())
    }
}

impl Conversion {
    /// Converts one block from `start`, with `valid` samples if it is the last one. Passes at most `total` samples in all to `each`. Returns
    /// the number of samples read.
    fn convert(
        &mut self,
        start: usize,
        valid: Option<usize>,
        total: u64,
        each: &mut dyn FnMut(&[f32]),
    ) -> Result<usize, Error> {
        let fault = |fault: String| Error::Damaged(format!("it cannot be resampled: {fault}"));
        let count = self.fft.input_frames_next();
        let input = SequentialSlice::new(&self.pending[start..start + count], 1, count);
        let input = input.map_err(|error| fault(error.to_string()))?;
        let length = self.output.len();
        let mut output = SequentialSlice::new_mut(&mut self.output, 1, length);
        let output = output.as_mut().map_err(|error| fault(error.to_string()))?;
        let mut indexing = Indexing::new();
        indexing.partial_len = valid;
        let done = self.fft.process_into_buffer(&input, output, Some(&indexing));
        let (_, written) = done.map_err(|error| fault(error.to_string()))?;
        let skipped = self.delay.min(written);
        self.delay -= skipped;
        let most = usize::try_from(total - self.written).unwrap_or(usize::MAX);
        let samples = &self.output[skipped..written];
        let samples = &samples[..samples.len().min(most)];
        self.written += samples.len() as u64;
        each(samples);
        Ok(count)
    }
}
