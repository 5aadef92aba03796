//! The pictures of a conversation in the size that the model wants, and their places in its prompt.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, TryLockError};
use std::thread;
use std::time::Duration;

use chat_format::text::Pause;
use chat_format::{Image, Message, Pixels};

use crate::engine::Engine;
use crate::error::{Error, Result};
use crate::processor::Processor;

/// Held while a picture is decoded, which takes far more memory than its file: hostile ones do not add up.
static DECODING: Mutex<()> = Mutex::new(());

/// Between two looks whether another picture is still decoded.
const WAIT: Duration = Duration::from_millis(5);

/// Pictures as a model takes them.
pub(super) struct Pictures<'a> {
    processor: &'a Processor,
    /// By the hashes of those in the conversation: the latest ones, as many as the context holds.
    resized: BTreeMap<[u8; 32], Pixels>,
    /// Their rows, with the first that are too many.
    rows: usize,
}

/// A prompt with the places of its pictures.
pub(super) enum Placed {
    /// The tokens, with one for each row, and the pictures.
    Whole(Vec<u32>, Vec<Pixels>),
    /// Its pictures alone have so many rows or more: more than the context holds.
    AtLeast(usize),
}

impl<'a> Pictures<'a> {
    /// Those of a conversation; `None` if it has none. `pause` is asked between two, and while another conversation's is decoded.
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
        let pixels = match self.resized.get(image.hash()) {
            Some(pixels) => pixels.clone(),
            None => self.resize(image, pause)?.map_err(|why| {
                let message = format!("holds an image, number {} of all, that is refused: {why}", place + 1);
                Error::request("content", message)
            })?,
        };
        self.rows += self.processor.rows(&pixels)?;
        self.resized.insert(*image.hash(), pixels);
        Ok(())
    }

    /// The picture in the model's size, or what is wrong with it; an error if the client has left.
    fn resize(&self, image: &Image, pause: Pause) -> Result<Result<Pixels, mlx_image::Error>> {
        let _one = turn(pause)?;
        Ok(self.processor.resized(image))
    }

    /// The tokens of a prompt of some of the messages, with a place for each row of their pictures.
    pub(super) fn placed(&self, tokens: Vec<u32>, messages: &[Message]) -> Result<Placed> {
        let images = messages.iter().flat_map(Message::images);
        let images: Option<Vec<Pixels>> =
            images.map(|image| self.resized.get(image.hash()).cloned()).collect();
        match images {
            Some(images) => {
                let tokens = self.processor.expanded(tokens, &images)?;
                Ok(Placed::Whole(tokens, images))
            }
            None => Ok(Placed::AtLeast(self.rows)),
        }
    }
}

/// Waits until no picture is decoded. One whose client has left does not wait.
fn turn(pause: Pause) -> Result<MutexGuard<'static, ()>> {
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
        let other = turn(chat_format::text::NO_PAUSE).expect("a turn");
        let error = turn(&|| Err(chat_format::Error::Cancelled)).map(drop).expect_err("the client has left");
        assert!(matches!(error, Error::Cancelled));
        drop(other);
        drop(turn(chat_format::text::NO_PAUSE).expect("a turn"));
    }
}
