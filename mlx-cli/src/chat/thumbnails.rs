//! Thumbnails of attached pictures. The terminal is asked once, when the first picture is attached.

use chat_format::Image;

use crate::exit_code::Failure;
use crate::thumbnail::{Protocol, thumbnail};
use crate::{keyboard, terminal};

pub(super) enum Thumbnails {
    /// It is not known yet whether the terminal shows pictures.
    Unknown,
    Known(Option<Protocol>),
}

impl Thumbnails {
    /// Of a chat whose terminal may show them.
    pub(super) fn new(allowed: bool) -> Self {
        if allowed { Self::Unknown } else { Self::Known(None) }
    }

    /// Shows each picture on a line of its own.
    pub(super) fn show(&mut self, images: &[Image]) -> Result<(), Failure> {
        if images.is_empty() {
            return Ok(());
        }
        let Some(protocol) = self.protocol()? else { return Ok(()) };
        for text in images.iter().filter_map(|image| thumbnail(image, protocol)) {
            terminal::show_styled(&format!("{text}\n"))?;
        }
        Ok(())
    }

    fn protocol(&mut self) -> Result<Option<Protocol>, Failure> {
        if let Self::Known(protocol) = self {
            return Ok(*protocol);
        }
        let mut protocol = Protocol::of_environment();
        if protocol.is_none() {
            let answer = keyboard::answer_of_terminal(Protocol::QUERY, Protocol::is_whole)?;
            protocol = answer.and_then(|answer| Protocol::of_answer(&answer));
        }
        *self = Self::Known(protocol);
        Ok(protocol)
    }
}
