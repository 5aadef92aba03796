//! The pictures of a conversation in the size that the model needs, and their placeholder tokens in its prompt.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, TryLockError};
use std::thread;
use std::time::Duration;

use chat_format::text::Pause;
use chat_format::{Image, Message, Pixels};

use crate::engine::Engine;
use crate::error::{Error, Result};
use crate::processor::{Processor, ResizedPicture};

/// Held while a picture is decoded, which takes far more memory than its file. So the memory for hostile pictures does not add up.
static DECODING: Mutex<()> = Mutex::new(());

/// The pause between two attempts to take the lock.
const WAIT: Duration = Duration::from_millis(5);

/// The pictures of a conversation, resized for the model.
pub(super) struct Pictures<'a> {
    processor: &'a Processor,
    /// Resized pictures by the hash of the picture: the latest pictures, as many as the context holds.
    resized: BTreeMap<[u8; 32], ResizedPicture>,
    /// Their rows, including the first picture that does not fit.
    rows: usize,
}

/// A prompt with the placeholder tokens of its pictures.
pub(super) enum ExpandedPrompt {
    /// The tokens, with one per picture row, and the parts of all pictures.
    Whole(Vec<u32>, Vec<Pixels>),
    /// A lower bound of the rows of the pictures, if they exceed the context.
    AtLeast(usize),
}

impl<'a> Pictures<'a> {
    /// Resizes the pictures of a conversation; `None` if it has none. Calls `pause` between pictures, and while another picture is decoded.
    pub(super) fn of(engine: &'a Engine, messages: &[Message], pause: Pause) -> Result<Option<Self>> {
        let images: Vec<&Image> = messages.iter().flat_map(Message::images).collect();
        if images.is_empty() {
            return Ok(None);
        }
        let processor = engine.image_processor().map_err(|error| match error {
            Error::Request { message, .. } => {
                Error::request("content", format!("holds an image, which {message}"))
            }
            other => other,
        })?;
        let context = engine.spec().context_length;
        let mut pictures = Self { processor, resized: BTreeMap::new(), rows: 0 };
        for (place, image) in images.iter().enumerate().rev() {
            pause()?;
            pictures.add(image, place, pause)?;
            if pictures.rows > context {
                break;
            }
        }
        Ok(Some(pictures))
    }

    fn add(&mut self, image: &Image, place: usize, pause: Pause) -> Result<()> {
        let resized = match self.resized.get(image.hash()) {
            Some(resized) => resized.clone(),
            None => self.resize(image, pause)?.map_err(|why| {
                let message =
                    format!("holds an invalid image, number {} in the conversation: {why}", place + 1);
                Error::request("content", message)
            })?,
        };
        for part in &resized.parts {
            self.rows += self.processor.rows(part)?;
        }
        self.resized.insert(*image.hash(), resized);
        Ok(())
    }

    /// Resizes a picture. The inner error is a fault of the picture; the outer one comes from `pause`, if the client has disconnected.
    fn resize(&self, image: &Image, pause: Pause) -> Result<Result<ResizedPicture, mlx_image::Error>> {
        let _one = lock_decoder(pause)?;
        Ok(self.processor.resized(image))
    }

    /// Returns the tokens of a prompt for some of the messages, with one token per row of their pictures.
    pub(super) fn placed(&self, tokens: Vec<u32>, messages: &[Message]) -> Result<ExpandedPrompt> {
        let images = messages.iter().flat_map(Message::images);
        let images: Option<Vec<ResizedPicture>> =
            images.map(|image| self.resized.get(image.hash()).cloned()).collect();
        match images {
            Some(images) => {
                let tokens = self.processor.expanded(tokens, &images)?;
                Ok(ExpandedPrompt::Whole(tokens, images.into_iter().flat_map(|it| it.parts).collect()))
            }
            None => Ok(ExpandedPrompt::AtLeast(self.rows)),
        }
    }
}

/// Waits until no picture is decoded. Stops waiting if the client has disconnected.
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
