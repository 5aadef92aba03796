//! Encodes sixels: bands of six pixel rows, one color at a time. The palette is a cube of 6 x 6 x 6 with ordered dithering, which fits the
//! color registers of every sixel terminal.

use std::fmt::Write;

use chat_format::Pixels;

/// Levels each of red, green and blue.
const STEPS: usize = 6;
/// The ordered dither matrix: rounding thresholds in sixteenths of a level.
const DITHER: [[usize; 4]; 4] = [[0, 8, 2, 10], [12, 4, 14, 6], [3, 11, 1, 9], [15, 7, 13, 5]];

/// Encodes a picture.
pub(super) fn encoded(pixels: &Pixels) -> String {
    let (width, height) = (pixels.width() as usize, pixels.height() as usize);
    let mut text = format!("\x1bP0;1;0q\"1;1;{width};{height}");
    for color in 0..STEPS.pow(3) {
        let percent = |step: usize| 100 * step / (STEPS - 1);
        let [red, green, blue] = [color / 36, color / 6 % 6, color % 6].map(percent);
        write!(text, "#{color};2;{red};{green};{blue}").ok();
    }
    let rows: Vec<Vec<usize>> =
        (0..height).map(|y| (0..width).map(|x| color(pixels, x, y)).collect()).collect();
    for band in rows.chunks(6) {
        let mut used: Vec<usize> = band.iter().flatten().copied().collect();
        used.sort_unstable();
        used.dedup();
        for color in used {
            write!(text, "#{color}").ok();
            let has =
                |x: usize| band.iter().enumerate().map(move |(y, row)| u8::from(row[x] == color) << y).sum();
            push_runs(&mut text, (0..width).map(has));
            text.push('$');
        }
        text.push('-');
    }
    text + "\x1b\\"
}

/// Returns the palette index of a pixel.
fn color(pixels: &Pixels, x: usize, y: usize) -> usize {
    let at = 3 * (y * pixels.width() as usize + x);
    let threshold = DITHER[y % 4][x % 4];
    pixels.rgb()[at..at + 3].iter().fold(0, |color, &level| {
        let scaled = usize::from(level) * (STEPS - 1);
        color * STEPS + scaled / 255 + usize::from(scaled % 255 * 16 > threshold * 255 + 127)
    })
}

/// Writes columns of six pixels, run-length encoded.
fn push_runs(text: &mut String, columns: impl Iterator<Item = u8>) {
    let mut columns = columns.peekable();
    while let Some(column) = columns.next() {
        let mut count = 1;
        while columns.next_if_eq(&column).is_some() {
            count += 1;
        }
        let ch = char::from(b'?' + column);
        match count {
            1..=3 => text.extend(std::iter::repeat_n(ch, count)),
            _ => drop(write!(text, "!{count}{ch}")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_picture_is_drawn_band_by_band() {
        // Two columns of seven rows: a red one, and a blue one with a white end.
        let rgb =
            (0..7).flat_map(|y| [255, 0, 0, if y == 6 { 255 } else { 0 }, if y == 6 { 255 } else { 0 }, 255]);
        let pixels = Pixels::new(2, 7, rgb.collect()).expect("a picture");
        let text = encoded(&pixels);
        assert!(text.starts_with("\x1bP0;1;0q\"1;1;2;7#0;2;0;0;0#1;2;0;0;20"), "{text:?}");
        assert!(text.ends_with("#215;2;100;100;100#5?~$#180~?$-#180@?$#215?@$-\x1b\\"), "{text:?}");
    }

    #[test]
    fn equal_columns_are_counted() {
        let mut text = String::new();
        push_runs(&mut text, [0, 0, 0, 63, 63, 63, 63, 1].into_iter());
        assert_eq!(text, "???!4~@");
    }
}
