//! The pictures of a conversation in the size that the model wants, and their places in its prompt.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use super::message::Message;
use crate::engine::Engine;
use crate::error::{Error, Result};
use crate::image::{Image, Pixels};
use crate::processor::Processor;
use crate::text::Pause;

/// Held while a picture is decoded, which takes far more memory than its file: hostile ones do not add up.
static DECODING: Mutex<()> = Mutex::new(());

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
    /// Those of a conversation; `None` if it has none. `pause` is asked between two.
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
            pictures.add(image, place)?;
            if pictures.rows > context {
                break;
            }
        }
        Ok(Some(pictures))
    }

    fn add(&mut self, image: &Image, place: usize) -> Result<()> {
        let pixels = match self.resized.get(image.hash()) {
            Some(pixels) => pixels.clone(),
            None => self.resize(image).map_err(|why| {
                let message = format!("holds an image, number {} of all, that is refused: {why}", place + 1);
                Error::request("content", message)
            })?,
        };
        self.rows += self.processor.rows(&pixels)?;
        self.resized.insert(*image.hash(), pixels);
        Ok(())
    }

    fn resize(&self, image: &Image) -> Result<Pixels, mlx_image::Error> {
        let _one = DECODING.lock().unwrap_or_else(PoisonError::into_inner);
        self.processor.resized(image)
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
