//! Samples of a file at 16 kHz.

use crate::decode::{Check, Limits, decode};
use crate::error::Error;
use crate::resample::Resampler;

/// Decodes a file to samples at 16 kHz, from -1 to 1. Calls `check` before each packet.
///
/// # Errors
/// Fails like [`decode`].
pub fn decode_samples(
    file: impl AsRef<[u8]> + Send + Sync,
    limits: &Limits,
    check: &mut Check<'_>,
) -> Result<Vec<f32>, Error> {
    let mut all = Vec::new();
    decode_resampled(file, limits, check, &mut |samples| all.extend_from_slice(samples))?;
    Ok(all)
}

/// Decodes a file, and passes its samples at 16 kHz to `each`, block by block.
pub(crate) fn decode_resampled(
    file: impl AsRef<[u8]> + Send + Sync,
    limits: &Limits,
    check: &mut Check<'_>,
    each: &mut dyn FnMut(&[f32]),
) -> Result<(), Error> {
    let mut resampler: Option<Resampler> = None;
    decode(file, limits, check, &mut |samples, rate| {
        if resampler.is_none() {
            resampler = Some(Resampler::new(rate)?);
        }
        let Some(resampler) = &mut resampler else { return Ok(()) };
        resampler.push(samples, each)
    })?;
    resampler.map_or(Ok(()), |resampler| resampler.finish(each))
}
