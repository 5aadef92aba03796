//! Thumbnails of pictures for terminals that support them. Invariant: returns text and prints nothing.

mod protocol;
mod sixel;

use std::fmt::Write;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use chat_format::Image;

pub(crate) use protocol::Protocol;

/// The maximum width and height in pixels: about eight lines of text.
const SIZE: (u32, u32) = (320, 160);
/// The maximum number of base64 bytes per command of kitty's protocol.
const CHUNK: usize = 4096;

/// Returns a picture in the terminal's protocol. `None` if it cannot be decoded; the model's processor reports that error.
pub(crate) fn thumbnail(image: &Image, protocol: Protocol) -> Option<String> {
    let small = image.thumbnail(SIZE.0, SIZE.1).ok()?;
    Some(match protocol {
        Protocol::Kitty => kitty(&STANDARD.encode(small.to_png())),
        Protocol::Iterm => iterm(&small.to_png()),
        Protocol::Sixel => sixel::encoded(&small),
    })
}

/// Returns a png file in chunks, shown at once; `q=2` suppresses the terminal's reply.
fn kitty(base64: &str) -> String {
    let mut text = String::new();
    let mut rest = base64;
    let mut keys = "a=T,f=100,q=2,";
    while !rest.is_empty() {
        let (chunk, after) = rest.split_at(rest.len().min(CHUNK));
        let more = u8::from(!after.is_empty());
        // Writing to a string cannot fail.
        write!(text, "\x1b_G{keys}m={more};{chunk}\x1b\\").ok();
        (rest, keys) = (after, "");
    }
    text
}

fn iterm(png: &[u8]) -> String {
    format!("\x1b]1337;File=inline=1;size={}:{}\x07", png.len(), STANDARD.encode(png))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_picture_is_sent_to_kitty_in_chunks() {
        let base64 = "A".repeat(CHUNK + 4);
        let first_chunk = "A".repeat(CHUNK);
        assert_eq!(
            kitty(&base64),
            format!("\x1b_Ga=T,f=100,q=2,m=1;{first_chunk}\x1b\\\x1b_Gm=0;AAAA\x1b\\")
        );
        assert_eq!(kitty("AAAA"), "\x1b_Ga=T,f=100,q=2,m=0;AAAA\x1b\\");
    }

    #[test]
    fn a_picture_that_cannot_be_decoded_has_no_thumbnail() {
        assert_eq!(thumbnail(&Image::file(b"GIF89a".to_vec()), Protocol::Kitty), None);
    }
}
