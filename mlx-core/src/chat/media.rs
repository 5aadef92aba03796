//! The pictures and audio of a conversation in the form that the model needs, and their placeholder tokens in its prompt.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, TryLockError};
use std::thread;
use std::time::Duration;

use chat_format::text::Pause;
use chat_format::{Audio, Image, Message, Part, Pixels};

use crate::engine::Engine;
use crate::error::{Error, Result};
use crate::processor::{AudioClip, AudioProcessor, Processor, ResizedPicture};

/// Held while a file is decoded, which takes far more memory than the file. So the memory for hostile files does not add up.
static DECODING: Mutex<()> = Mutex::new(());

/// The pause between two attempts to take the lock.
const WAIT: Duration = Duration::from_millis(5);

/// The pictures of a conversation, resized for the model, and the frames of its audio.
pub(super) struct Media<'a> {
    images: Option<&'a Processor>,
    audio: Option<&'a AudioProcessor>,
    /// Resized pictures by the hash of the picture: the latest pictures, as many as the context holds.
    resized: BTreeMap<[u8; 32], ResizedPicture>,
    /// Likewise, the frames of audio.
    clips: BTreeMap<[u8; 32], AudioClip>,
    /// Their rows, including the first item that does not fit.
    rows: usize,
}

/// A prompt with the placeholder tokens of its pictures and audio.
pub(super) enum ExpandedPrompt {
    /// The tokens, with one per row, the parts of all pictures, and all clips.
    Whole(Vec<u32>, Vec<Pixels>, Vec<AudioClip>),
    /// A lower bound of the rows, if they exceed the context.
    AtLeast(usize),
}

impl<'a> Media<'a> {
    /// Prepares the pictures and audio of a conversation; `None` if it has none. Calls `pause` between items, and while another one is decoded.
    pub(super) fn of(engine: &'a Engine, messages: &[Message], pause: Pause) -> Result<Option<Self>> {
        let mut media =
            Self { images: None, audio: None, resized: BTreeMap::new(), clips: BTreeMap::new(), rows: 0 };
        if messages.iter().any(|message| message.images().next().is_some()) {
            let processor = engine.image_processor().map_err(|error| match error {
                Error::Request { message, .. } => {
                    Error::request("content", format!("holds an image, which {message}"))
                }
                other => other,
            })?;
            media.images = Some(processor);
        }
        if messages.iter().any(|message| message.audio().next().is_some()) {
            media.audio = Some(engine.audio_processor()?);
        }
        if media.images.is_none() && media.audio.is_none() {
            return Ok(None);
        }
        let context = engine.spec().context_length;
        for part in numbered(messages).into_iter().rev() {
            pause()?;
            match part {
                (number, Part::Image(image)) => media.add_image(image, number, pause)?,
                (number, Part::Audio(audio)) => media.add_audio(audio, number, pause)?,
                _ => {}
            }
            if media.rows > context {
                break;
            }
        }
        Ok(Some(media))
    }

    fn add_image(&mut self, image: &Image, number: usize, pause: Pause) -> Result<()> {
        let Some(processor) = self.images else { return Ok(()) };
        let resized = if let Some(resized) = self.resized.get(image.hash()) {
            resized.clone()
        } else {
            let _one = lock_decoder(pause)?;
            processor.resized(image).map_err(|why| {
                let message = format!("holds an invalid image, number {number} in the conversation: {why}");
                Error::request("content", message)
            })?
        };
        for part in &resized.parts {
            self.rows += processor.rows(part)?;
        }
        self.resized.insert(*image.hash(), resized);
        Ok(())
    }

    fn add_audio(&mut self, audio: &Audio, number: usize, pause: Pause) -> Result<()> {
        let Some(processor) = self.audio else { return Ok(()) };
        let clip = match self.clips.get(audio.hash()) {
            Some(clip) => clip.clone(),
            None => decoded(processor, audio, number, pause)?,
        };
        self.rows += processor.rows(&clip)?;
        self.clips.insert(*audio.hash(), clip);
        Ok(())
    }

    /// Returns the tokens of a prompt for some of the messages, with one token per row of their pictures and audio.
    pub(super) fn placed(&self, mut tokens: Vec<u32>, messages: &[Message]) -> Result<ExpandedPrompt> {
        let images = messages.iter().flat_map(Message::images);
        let images: Option<Vec<ResizedPicture>> =
            images.map(|image| self.resized.get(image.hash()).cloned()).collect();
        let clips = messages.iter().flat_map(Message::audio);
        let clips: Option<Vec<AudioClip>> =
            clips.map(|audio| self.clips.get(audio.hash()).cloned()).collect();
        let Some((images, clips)) = images.zip(clips) else { return Ok(ExpandedPrompt::AtLeast(self.rows)) };
        if let Some(processor) = self.images {
            tokens = processor.expanded(tokens, &images)?;
        }
        if let Some(processor) = self.audio {
            tokens = processor.expanded(tokens, &clips)?;
        }
        let parts = images.into_iter().flat_map(|it| it.parts).collect();
        Ok(ExpandedPrompt::Whole(tokens, parts, clips))
    }
}

/// Returns the frames of a recording, the one with this number in the conversation.
fn decoded(processor: &AudioProcessor, audio: &Audio, number: usize, pause: Pause) -> Result<AudioClip> {
    let _one = lock_decoder(pause)?;
    // A client that has disconnected is no fault of the file.
    let mut stopped = None;
    let mut check = || {
        pause().map_err(|error| {
            stopped = Some(error);
            mlx_audio::Error::Cancelled
        })
    };
    let clip = processor.clip(audio, &mut check);
    if let Some(error) = stopped {
        return Err(error.into());
    }
    clip.map_err(|why| {
        let message = format!("is invalid, number {number} in the conversation: {why}");
        Error::request("input_audio", message)
    })
}

/// Returns the pictures and audio of a conversation. Those of each kind are numbered from 1.
fn numbered(messages: &[Message]) -> Vec<(usize, &Part)> {
    let parts = messages.iter().flat_map(|message| &message.parts);
    let (mut images, mut clips) = (1.., 1..);
    let mut number = |part: &Part| match part {
        Part::Image(_) => images.next(),
        Part::Audio(_) => clips.next(),
        _ => None,
    };
    parts.filter_map(|part| number(part).map(|number| (number, part))).collect()
}

/// Waits until no file is decoded. Stops waiting if the client has disconnected.
fn lock_decoder(pause: Pause) -> Result<MutexGuard<'static, ()>> {
    loop {
        match DECODING.try_lock() {
            Ok(turn) => return Ok(turn),
            Err(TryLockError::Poisoned(turn)) => return Ok(turn.into_inner()),
            Err(TryLockError::WouldBlock) => {
                pause()?;
                thread::sleep(WAIT);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_that_leaves_does_not_wait_for_the_pictures_of_others() {
        let other = lock_decoder(chat_format::text::NO_PAUSE).expect("a turn");
        let error =
            lock_decoder(&|| Err(chat_format::Error::Cancelled)).map(drop).expect_err("the client has left");
        assert!(matches!(error, Error::Cancelled));
        drop(other);
        drop(lock_decoder(chat_format::text::NO_PAUSE).expect("a turn"));
    }
}
