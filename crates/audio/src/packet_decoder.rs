//! The decoders of packets: those of Symphonia, and one for Opus, which Symphonia lacks.

use ruopus::OpusDecoder;
use symphonia::core::audio::Channels;
use symphonia::core::codecs::audio::well_known;
use symphonia::core::codecs::audio::{AudioCodecId, AudioCodecParameters, AudioDecoder, AudioDecoderOptions};
use symphonia::core::errors::Error as Fault;
use symphonia::core::packet::Packet;

use crate::error::Error;

/// The sample rate of decoded Opus.
const OPUS_RATE: u32 = 48_000;

/// The length of the header of an Opus stream.
const OPUS_HEADER: usize = 19;

/// A decoder of the packets of a file.
pub(crate) enum PacketDecoder {
    Symphonia(Box<dyn AudioDecoder>),
    Opus(Box<Opus>),
}

/// The form of decoded samples.
pub(crate) struct Form {
    pub(crate) rate: u32,
    pub(crate) channels: usize,
}

/// A decoder of an Opus stream (RFC 6716 and 7845).
pub(crate) struct Opus {
    decoder: OpusDecoder,
    channels: usize,
    /// The factor of all samples.
    gain: f32,
    /// The samples per channel at the start that are not yet skipped.
    skip: usize,
}

impl PacketDecoder {
    /// Creates the decoder for these parameters.
    pub(crate) fn new(parameters: &AudioCodecParameters) -> Result<Self, Error> {
        if parameters.codec == well_known::CODEC_ID_OPUS {
            return Ok(Self::Opus(Box::new(Opus::new(parameters)?)));
        }
        let decoder =
            symphonia::default::get_codecs().make_audio_decoder(parameters, &AudioDecoderOptions::default());
        decoder.map(Self::Symphonia).map_err(|fault| match fault {
            Fault::Unsupported(_) => Error::Codec(codec_name(parameters)),
            fault => Error::Damaged(fault.to_string()),
        })
    }

    /// Returns the sample rate, if the headers have it.
    pub(crate) fn rate(&self) -> Option<u32> {
        match self {
            Self::Symphonia(decoder) => decoder.codec_params().sample_rate,
            Self::Opus(_) => Some(OPUS_RATE),
        }
    }

    /// Decodes a packet to interleaved samples.
    pub(crate) fn decode(&mut self, packet: &Packet, interleaved: &mut Vec<f32>) -> Result<Form, Fault> {
        match self {
            Self::Symphonia(decoder) => {
                let samples = decoder.decode(packet)?;
                samples.copy_to_vec_interleaved(interleaved);
                Ok(Form { rate: samples.spec().rate(), channels: samples.num_planes() })
            }
            Self::Opus(opus) => {
                *interleaved = opus.decode(&packet.data)?;
                Ok(Form { rate: OPUS_RATE, channels: opus.channels })
            }
        }
    }
}

impl Opus {
    fn new(parameters: &AudioCodecParameters) -> Result<Self, Error> {
        let header = parameters.extra_data.as_deref().and_then(|header| header.first_chunk::<OPUS_HEADER>());
        let header = header.ok_or_else(no_header)?;
        let (version, channels, family) = (header[8], header[9], header[18]);
        // Other families are for more than two channels, each stream with up to two of them.
        if family != 0 || !(1..=2).contains(&channels) {
            return Err(Error::Codec(format!("Opus in {channels} channels")));
        }
        let number = |at: usize| {
            let bytes = [header[at], header[at + 1]];
            // MP4 files have version 0 and another order of bytes.
            if version == 0 { u16::from_be_bytes(bytes) } else { u16::from_le_bytes(bytes) }
        };
        let channels = usize::from(channels);
        let decibels = f32::from(number(16).cast_signed()) / 256.0;
        Ok(Self {
            decoder: OpusDecoder::with_rate(OPUS_RATE, channels),
            channels,
            gain: 10f32.powf(decibels / 20.0),
            skip: usize::from(number(10)),
        })
    }

    /// Decodes a packet to interleaved samples.
    fn decode(&mut self, packet: &[u8]) -> Result<Vec<f32>, Fault> {
        if packet.is_empty() {
            return Err(Fault::DecodeError("an Opus packet is empty"));
        }
        let samples = self.decoder.decode_packet(packet);
        let mut samples = samples.map_err(|_| Fault::DecodeError("an Opus packet is damaged"))?;
        let skipped = self.skip.min(samples.len() / self.channels);
        self.skip -= skipped;
        samples.drain(..skipped * self.channels);
        for sample in &mut samples {
            *sample *= self.gain;
        }
        Ok(samples)
    }
}

fn no_header() -> Error {
    Error::Damaged("its Opus header is missing or too short".to_owned())
}

/// Returns the name of a codec that is not supported, or not in the form of this file.
fn codec_name(parameters: &AudioCodecParameters) -> String {
    const NAMES: [(AudioCodecId, &str); 5] = [
        (well_known::CODEC_ID_ALAC, "ALAC"),
        (well_known::CODEC_ID_AC3, "AC-3"),
        (well_known::CODEC_ID_EAC3, "E-AC-3"),
        (well_known::CODEC_ID_DCA, "DTS"),
        (well_known::CODEC_ID_WAVPACK, "WavPack"),
    ];
    if let Some(known) = symphonia::default::get_codecs().get_audio_decoder(parameters.codec) {
        let channels = parameters.channels.as_ref().map_or(0, Channels::count);
        let name = known.codec.info.short_name;
        return format!("a form of {name} (profile {:?}, {channels} channels)", parameters.profile);
    }
    let named = NAMES.iter().find(|(id, _)| *id == parameters.codec);
    named.map_or_else(|| "an unknown codec".to_owned(), |(_, name)| (*name).to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn opus(header: &[u8]) -> Result<Opus, Error> {
        let mut parameters = AudioCodecParameters::new();
        parameters.for_codec(well_known::CODEC_ID_OPUS).with_extra_data(header.into());
        Opus::new(&parameters)
    }

    #[test]
    fn headers_of_opus_have_two_orders_of_bytes() {
        let little = b"OpusHead\x01\x02\x38\x01\x80\xbb\0\0\0\xfa\0";
        let big = b"OpusHead\0\x02\x01\x38\0\0\xbb\x80\xfa\0\0";
        for header in [little, big] {
            let opus = opus(header).expect("it is valid");
            assert_eq!((opus.channels, opus.skip), (2, 312));
            assert!((opus.gain - 0.501).abs() < 1e-3, "-6 dB: {}", opus.gain);
        }
        for length in 0..little.len() {
            assert!(opus(&little[..length]).is_err(), "{length} bytes");
        }
    }
}
