//! Thumbnails of attached pictures. The terminal is queried once, for the first picture.

use chat_format::Image;

use crate::exit_code::Failure;
use crate::thumbnail::{Protocol, thumbnail};
use crate::{keyboard, terminal};

pub(super) enum Thumbnails {
    /// The terminal has not been queried yet.
    Unknown,
    Known(Option<Protocol>),
}

impl Thumbnails {
    /// Creates the state; `allowed` is false if the terminal must not be queried.
    pub(super) fn new(allowed: bool) -> Self {
        if allowed { Self::Unknown } else { Self::Known(None) }
    }

    /// Shows each picture on its own line.
    pub(super) fn show<'a>(&mut self, images: impl Iterator<Item = &'a Image>) -> Result<(), Failure> {
        let mut images = images.peekable();
        if images.peek().is_none() {
            return Ok(());
        }
        let Some(protocol) = self.protocol()? else { return Ok(()) };
        for text in images.filter_map(|image| thumbnail(image, protocol)) {
            terminal::show_styled(&format!("{text}\n"))?;
        }
        Ok(())
    }

    fn protocol(&mut self) -> Result<Option<Protocol>, Failure> {
        if let Self::Known(protocol) = self {
            return Ok(*protocol);
        }
        let mut protocol = Protocol::from_environment();
        if protocol.is_none() {
            let answer = keyboard::query_terminal(Protocol::QUERY, Protocol::is_complete)?;
            protocol = answer.and_then(|answer| Protocol::from_reply(&answer));
        }
        *self = Self::Known(protocol);
        Ok(protocol)
    }
}
