//! Decodes audio files packet by packet. Files are untrusted: their length is limited, and memory does not depend on their headers.

use std::io::{Cursor, ErrorKind};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

use symphonia::core::codecs::CodecParameters;
use symphonia::core::codecs::audio::AudioCodecParameters;
use symphonia::core::errors::Error as Fault;
use symphonia::core::formats::probe::Hint;
use symphonia::core::formats::well_known::{FORMAT_ID_ADTS, FORMAT_ID_MP1, FORMAT_ID_MP2, FORMAT_ID_MP3};
use symphonia::core::formats::{FormatOptions, FormatReader, Track, TrackType};
use symphonia::core::io::{MediaSourceStream, MediaSourceStreamOptions};
use symphonia::core::meta::MetadataOptions;
use symphonia::core::units;

use crate::error::Error;
use crate::packet_decoder::{Form, PacketDecoder};

/// Takes a block of samples and their rate.
pub type EachBlock<'a> = dyn FnMut(&[f32], u32) -> Result<(), Error> + 'a;

/// Called before each packet. An error ends the work.
pub type Check<'a> = dyn FnMut() -> Result<(), Error> + 'a;

/// The sample rates that files may have, in Hz.
const RATES: std::ops::RangeInclusive<u32> = 4_000..=384_000;

/// The maximum number of channels of a file.
const MAX_CHANNELS: usize = 32;

/// The maximum length of an encoded packet. Longer packets appear only in damaged files.
const MAX_PACKET: usize = 16 << 20;

/// The number of damaged packets that a file may have. A tenth of its packets may be damaged if that is more. Players skip them too.
const DAMAGED_PACKETS: usize = 8;

/// The number of damaged packets after which a file is rejected at once if most of its packets are damaged.
const HOPELESS: usize = 64;

/// The seconds that a file may take besides those that it plays. Only files that are made to be slow take longer.
const PATIENCE: Duration = Duration::from_secs(30);

/// A data length in bytes that a header cannot mean, since it exceeds the limit of all files. Programs that write to a pipe claim 2 or 4 GiB.
const UNKNOWN_LENGTH: u64 = 0x7fff_0000;

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

/// Decodes a file: WAV, FLAC, MP3, M4A or MP4 with AAC, or OGG or WebM with Vorbis or Opus. Calls `check` before each packet, and `each`
/// with consecutive samples and their rate. The samples are the mean of all channels, from -1 to 1.
///
/// # Errors
/// Fails if the file is not audio in one of these formats, is damaged or cut, or exceeds a limit, or if `check` or `each` fails.
pub fn decode(
    file: impl AsRef<[u8]> + Send + Sync,
    limits: &Limits,
    check: &mut Check<'_>,
    each: &mut EachBlock<'_>,
) -> Result<(), Error> {
    open(file, limits, |reader| reader.read(check, each))
}

/// Reads the headers of a file.
///
/// # Errors
/// Fails if [`decode`] would fail because of the headers.
pub fn check_header(file: impl AsRef<[u8]> + Send + Sync, limits: &Limits) -> Result<(), Error> {
    open(file, limits, |_| Ok(()))
}

fn open<F: AsRef<[u8]> + Send + Sync>(
    file: F,
    limits: &Limits,
    work: impl FnOnce(Reader<'_>) -> Result<(), Error>,
) -> Result<(), Error> {
    let found = file.as_ref().len();
    if found > limits.bytes {
        return Err(Error::Bytes { found, limit: limits.bytes });
    }
    // The parsers of damaged files are not ours. A panic in them must not end the caller's thread.
    let done = catch_unwind(AssertUnwindSafe(|| work(Reader::open(file.as_ref(), limits)?)));
    done.unwrap_or_else(|_| Err(Error::Damaged("its data is inconsistent".to_owned())))
}

/// A file while it is decoded.
struct Reader<'a> {
    format: Box<dyn FormatReader + 'a>,
    decoder: PacketDecoder,
    track: u32,
    /// The number of frames that the header claims, if it is exact.
    claimed: Option<u64>,
    limit: u32,
    decoded: u64,
    damaged: usize,
    packets: usize,
    mono: Vec<f32>,
    interleaved: Vec<f32>,
}

impl<'a> Reader<'a> {
    fn open(file: &'a [u8], limits: &Limits) -> Result<Self, Error> {
        let source = MediaSourceStream::new(Box::new(Cursor::new(file)), MediaSourceStreamOptions::default());
        let (format, metadata) = (FormatOptions::default(), MetadataOptions::default());
        let format = symphonia::default::get_probe()
            .probe(&Hint::new(), source, format, metadata)
            .map_err(|fault| if is_unknown(&fault) { Error::Format } else { damaged(&fault) })?;
        let track = format.default_track(TrackType::Audio).ok_or(Error::Empty)?;
        let Some(CodecParameters::Audio(parameters)) = &track.codec_params else {
            return Err(Error::Codec("an unknown codec".to_owned()));
        };
        let decoder = PacketDecoder::new(parameters)?;
        let is_exact = has_exact_length(format.as_ref(), track);
        let claimed = track.num_frames.filter(|frames| is_exact && !is_open_ended(*frames, parameters));
        let track = track.id;
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
        if let (Some(claimed), Some(rate)) = (claimed, reader.decoder.rate()) {
            reader.check_length(claimed, rate)?;
        }
        Ok(reader)
    }

    fn read(mut self, check: &mut Check<'_>, each: &mut EachBlock<'_>) -> Result<(), Error> {
        let (mut known_rate, begin) = (None, Instant::now());
        loop {
            check()?;
            self.check_progress(known_rate, begin)?;
            let mut packet = match self.format.next_packet() {
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
            // The end of an estimated length is not the end of the file.
            if self.claimed.is_none() {
                packet.trim_end = units::Duration::ZERO;
            }
            match self.decoder.decode(&packet, &mut self.interleaved) {
                Ok(Form { rate, channels }) => {
                    check_form(rate, channels)?;
                    if *known_rate.get_or_insert(rate) != rate {
                        return Err(Error::Damaged("its sample rate changes".to_owned()));
                    }
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
            return Err(self.too_damaged());
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

    /// Rejects a file that is mostly damaged, or that takes much longer to decode than to play.
    fn check_progress(&self, rate: Option<u32>, begin: Instant) -> Result<(), Error> {
        if self.damaged >= HOPELESS && self.damaged > self.packets / 2 {
            return Err(self.too_damaged());
        }
        let played = rate.map_or(0, |rate| self.decoded / u64::from(rate));
        if begin.elapsed() > PATIENCE + Duration::from_secs(played) {
            return Err(Error::Damaged("it takes longer to decode than to play".to_owned()));
        }
        Ok(())
    }

    fn too_damaged(&self) -> Error {
        Error::Damaged(format!("{} of {} packets are damaged", self.damaged, self.packets))
    }

    fn check_length(&self, frames: u64, rate: u32) -> Result<(), Error> {
        if frames > u64::from(self.limit) * u64::from(rate) {
            return Err(Error::Seconds { limit: self.limit });
        }
        Ok(())
    }
}

/// Returns true if the length of a track is not estimated from the bit rate of its first packet.
fn has_exact_length(format: &dyn FormatReader, track: &Track) -> bool {
    match format.format_info().format {
        FORMAT_ID_ADTS => false,
        // A tag of the encoder has the exact length and the padding.
        FORMAT_ID_MP1 | FORMAT_ID_MP2 | FORMAT_ID_MP3 => track.padding.is_some(),
        _ => true,
    }
}

/// Returns true if a header claims a length that no file can have.
fn is_open_ended(frames: u64, parameters: &AudioCodecParameters) -> bool {
    let channels = parameters.channels.as_ref().map_or(1, |channels| channels.count().max(1)) as u64;
    let bytes = u64::from(parameters.bits_per_sample.unwrap_or(8)).div_ceil(8) * channels;
    frames.saturating_mul(bytes) >= UNKNOWN_LENGTH
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
