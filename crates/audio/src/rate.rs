//! The sample rate of all features.

/// The sample rate of all features, in Hz.
pub const SAMPLE_RATE: u32 = 16_000;
