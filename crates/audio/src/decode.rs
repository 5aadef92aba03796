//! Decodes audio files packet by packet. Files are untrusted: their length is limited, and memory does not depend on their headers.

use std::io::{Cursor, ErrorKind};
use std::panic::{AssertUnwindSafe, catch_unwind};

use symphonia::core::codecs::audio::{AudioCodecParameters, AudioDecoder, AudioDecoderOptions};
use symphonia::core::codecs::registry::CodecRegistry;
use symphonia::core::codecs::{CodecParameters, audio::well_known};
use symphonia::core::errors::Error as Fault;
use symphonia::core::formats::probe::Hint;
use symphonia::core::formats::{FormatOptions, FormatReader, TrackType};
use symphonia::core::io::{MediaSourceStream, MediaSourceStreamOptions};
use symphonia::core::meta::MetadataOptions;

use crate::error::Error;

/// Takes a block of samples and their rate.
pub type EachBlock<'a> = dyn FnMut(&[f32], u32) -> Result<(), Error> + 'a;

/// The sample rates that files may have, in Hz.
const RATES: std::ops::RangeInclusive<u32> = 4_000..=384_000;

/// The maximum number of channels of a file.
const MAX_CHANNELS: usize = 32;

/// The maximum length of an encoded packet. Longer packets appear only in damaged files.
const MAX_PACKET: usize = 16 << 20;

/// A file may have this many damaged packets, as players skip them too, or one in ten if that is more.
const DAMAGED_PACKETS: usize = 8;

/// The limits for one file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Limits {
    /// Maximum bytes of the file.
    pub bytes: usize,
    /// Maximum duration in seconds.
    pub seconds: u32,
}

impl Default for Limits {
    /// 1 GiB and four hours.
    fn default() -> Self {
        Self { bytes: 1 << 30, seconds: 4 * 3600 }
    }
}

/// Decodes a file: WAV, FLAC, MP3, M4A or MP4 with AAC, or OGG with Vorbis. Calls `each` with consecutive samples and their rate. The samples
/// are the mean of all channels, from -1 to 1.
///
/// # Errors
/// Fails if the file is not audio in one of these formats, is damaged or cut, or exceeds a limit, or if `each` fails.
pub fn decode(
    file: impl AsRef<[u8]> + Send + Sync,
    limits: &Limits,
    each: &mut EachBlock<'_>,
) -> Result<(), Error> {
    let found = file.as_ref().len();
    if found > limits.bytes {
        return Err(Error::Bytes { found, limit: limits.bytes });
    }
    // The parsers of damaged files are not ours. A panic in them must not end the caller's thread.
    let decoded = catch_unwind(AssertUnwindSafe(|| Reader::open(file, limits)?.read(each)));
    decoded.unwrap_or_else(|_| Err(Error::Damaged("its data is inconsistent".to_owned())))
}

/// A file while it is decoded.
struct Reader<'a> {
    format: Box<dyn FormatReader + 'a>,
    decoder: Box<dyn AudioDecoder>,
    track: u32,
    /// The number of frames that the header claims.
    claimed: Option<u64>,
    limit: u32,
    decoded: u64,
    damaged: usize,
    packets: usize,
    mono: Vec<f32>,
    interleaved: Vec<f32>,
}

impl<'a> Reader<'a> {
    fn open(file: impl AsRef<[u8]> + Send + Sync + 'a, limits: &Limits) -> Result<Self, Error> {
        let source = MediaSourceStream::new(Box::new(Cursor::new(file)), MediaSourceStreamOptions::default());
        let (format, metadata) = (FormatOptions::default(), MetadataOptions::default());
        let format = symphonia::default::get_probe()
            .probe(&Hint::new(), source, format, metadata)
            .map_err(|fault| if is_unknown(&fault) { Error::Format } else { damaged(&fault) })?;
        let track = format.default_track(TrackType::Audio).ok_or(Error::Empty)?;
        let Some(CodecParameters::Audio(parameters)) = &track.codec_params else {
            return Err(Error::Codec("an unknown codec".to_owned()));
        };
        let decoder = decoder(symphonia::default::get_codecs(), parameters)?;
        let (track, claimed) =
            (track.id, track.num_frames.filter(|frames| !is_open_ended(*frames, parameters)));
        let reader = Self {
            decoder,
            track,
            claimed,
            limit: limits.seconds,
            decoded: 0,
            damaged: 0,
            packets: 0,
            mono: Vec::new(),
            interleaved: Vec::new(),
            format,
        };
        if let (Some(claimed), Some(rate)) = (claimed, reader.decoder.codec_params().sample_rate) {
            reader.check_length(claimed, rate)?;
        }
        Ok(reader)
    }

    fn read(mut self, each: &mut EachBlock<'_>) -> Result<(), Error> {
        let mut known_rate = None;
        loop {
            let packet = match self.format.next_packet() {
                Ok(Some(packet)) => packet,
                Ok(None) => break,
                Err(Fault::IoError(fault)) if fault.kind() == ErrorKind::UnexpectedEof => break,
                Err(fault) => return Err(damaged(&fault)),
            };
            if packet.track_id != self.track {
                continue;
            }
            if packet.data.len() > MAX_PACKET {
                return Err(Error::Damaged(format!("a packet has {} bytes", packet.data.len())));
            }
            self.packets += 1;
            match self.decoder.decode(&packet) {
                Ok(samples) => {
                    let (rate, channels) = (samples.spec().rate(), samples.num_planes());
                    check_form(rate, channels)?;
                    if *known_rate.get_or_insert(rate) != rate {
                        return Err(Error::Damaged("its sample rate changes".to_owned()));
                    }
                    samples.copy_to_vec_interleaved(&mut self.interleaved);
                    mix(&self.interleaved, channels, &mut self.mono)?;
                }
                Err(Fault::DecodeError(_) | Fault::IoError(_)) => {
                    self.damaged += 1;
                    continue;
                }
                Err(fault) => return Err(damaged(&fault)),
            }
            let Some(rate) = known_rate else { continue };
            self.decoded += self.mono.len() as u64;
            self.check_length(self.decoded, rate)?;
            each(&self.mono, rate)?;
        }
        self.finish(known_rate)
    }

    /// Checks the end of a file.
    fn finish(&self, rate: Option<u32>) -> Result<(), Error> {
        let damaged = self.damaged > DAMAGED_PACKETS.max(self.packets / 10);
        if damaged || (self.decoded == 0 && self.damaged > 0) {
            return Err(Error::Damaged(format!("{} of {} packets are damaged", self.damaged, self.packets)));
        }
        let Some(rate) = rate.filter(|_| self.decoded > 0) else { return Err(Error::Empty) };
        // Codecs add or trim up to a few packets.
        let tolerance = u64::from(rate) / 4;
        match self.claimed {
            Some(claimed) if self.decoded + tolerance < claimed => {
                let seconds = |frames: u64| frames / u64::from(rate);
                Err(Error::Cut { found: seconds(self.decoded), claimed: seconds(claimed) })
            }
            _ => Ok(()),
        }
    }

    fn check_length(&self, frames: u64, rate: u32) -> Result<(), Error> {
        if frames > u64::from(self.limit) * u64::from(rate) {
            return Err(Error::Seconds { limit: self.limit });
        }
        Ok(())
    }
}

fn decoder(
    registry: &CodecRegistry,
    parameters: &AudioCodecParameters,
) -> Result<Box<dyn AudioDecoder>, Error> {
    if parameters.codec == well_known::CODEC_ID_OPUS {
        return Err(Error::Codec("Opus".to_owned()));
    }
    let decoder = registry.make_audio_decoder(parameters, &AudioDecoderOptions::default());
    decoder.map_err(|fault| match fault {
        Fault::Unsupported(_) => Error::Codec(parameters.codec.to_string()),
        fault => damaged(&fault),
    })
}

/// Returns true if a header claims the largest length that it can store. Programs that write to a pipe do so.
fn is_open_ended(frames: u64, parameters: &AudioCodecParameters) -> bool {
    let channels = parameters.channels.as_ref().map_or(1, |channels| channels.count().max(1)) as u64;
    let bytes = u64::from(parameters.bits_per_sample.unwrap_or(8)).div_ceil(8) * channels;
    frames.saturating_mul(bytes) >= u64::from(u32::MAX) - 1024
}

fn check_form(rate: u32, channels: usize) -> Result<(), Error> {
    if !RATES.contains(&rate) {
        return Err(Error::Damaged(format!("its sample rate is {rate} Hz")));
    }
    if !(1..=MAX_CHANNELS).contains(&channels) {
        return Err(Error::Damaged(format!("it has {channels} channels")));
    }
    Ok(())
}

/// Writes the mean of the channels.
fn mix(interleaved: &[f32], channels: usize, mono: &mut Vec<f32>) -> Result<(), Error> {
    mono.clear();
    let factor = (channels as f32).recip();
    mono.extend(interleaved.chunks_exact(channels).map(|frame| frame.iter().sum::<f32>() * factor));
    if !mono.iter().all(|sample| sample.is_finite()) {
        return Err(Error::Damaged("a sample is not a finite number".to_owned()));
    }
    for sample in mono {
        *sample = sample.clamp(-1.0, 1.0);
    }
    Ok(())
}

/// Returns true if no parser recognizes the file.
fn is_unknown(fault: &Fault) -> bool {
    match fault {
        Fault::Unsupported(_) => true,
        Fault::IoError(fault) => fault.kind() == ErrorKind::UnexpectedEof,
        _ => false,
    }
}

fn damaged(fault: &Fault) -> Error {
    Error::Damaged(fault.to_string())
}
