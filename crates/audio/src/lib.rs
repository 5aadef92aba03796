//! Preprocessing of audio for models: decoding with limits, resampling to 16 kHz, and the log-mel features of
//! Whisper, Gemma and Qwen3-ASR.
//!
//! ```
//! use mlx_audio::{Limits, LogMel, wav};
//!
//! let second = vec![0.0; 16_000];
//! let features = LogMel::of_file(wav::of_samples(&second), 80, &Limits::default(), &mut |_| Ok(()))?;
//! assert_eq!(features.frames(), 100);
//! # Ok::<(), mlx_audio::Error>(())
//! ```

mod decode;
mod error;
mod gemma_log_mel;
mod log_mel;
mod mel_filters;
mod packet_decoder;
mod qwen_log_mel;
mod rate;
mod recording;
mod resample;
mod samples;
mod spectrogram;
pub mod wav;

pub use decode::{Check, EachBlock, Limits, check_header, decode};
pub use error::Error;
pub use gemma_log_mel::{gemma_frames, gemma_log_mel};
pub use log_mel::{FRAMES_PER_SECOND, LogMel, WINDOW_FRAMES};
pub use qwen_log_mel::qwen_log_mel;
pub use rate::SAMPLE_RATE;
pub use recording::Recording;
pub use samples::decode_samples;
