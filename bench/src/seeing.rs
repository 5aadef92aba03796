//! Measures pictures: `seeing MODEL`, with a model of bench/seeing_model.py. The time to the first token of a question about a picture of one
//! megapixel, for a new picture and for one that was already asked about.

use std::time::Instant;

use chat_format::Image;
use mlx_core::engine::{EngineOptions, RequestOptions, Speculate};
use mlx_core::{Error, Result};

use crate::figures::{Figures, median};
use crate::load::{argument, engine_with, greedy, milliseconds, moments_of, prompt};

const SIDE: u32 = 1024;
/// Side in pixels of the square that becomes one token.
const PIXELS: u32 = 32;
const QUESTION: usize = 24;
const TIMES: usize = 3;

pub(crate) fn measure(arguments: &[String]) -> Result<Figures> {
    let options = EngineOptions { speculate: Speculate::Off, ..EngineOptions::default() };
    let engine = engine_with(&argument::<String>(arguments, 0, "MODEL")?, &options)?;
    let vocabulary = engine.spec().vocab_size;
    let [image, start, end] = [3, 2, 1].map(|place| (vocabulary - place) as u32);
    let first_token = |file: &[u8], question: usize| -> Result<f64> {
        let begin = Instant::now();
        let mut tokens = vec![start];
        tokens.extend(vec![image; (SIDE / PIXELS).pow(2) as usize]);
        tokens.push(end);
        tokens.extend(prompt(question, QUESTION, vocabulary));
        let image = unreadable(Image::file(file.to_vec()).pixels())?;
        let options = RequestOptions { images: vec![image], ..greedy(1) };
        let times = moments_of(1, engine.submit(engine.request(tokens, &options)?)?)?;
        Ok(milliseconds(begin, times[0]))
    };
    let (mut unknown, mut known) = (Vec::new(), Vec::new());
    first_token(&picture(TIMES)?, 0)?;
    for turn in 0..TIMES {
        let file = picture(turn)?;
        unknown.push(first_token(&file, 1)?);
        known.push(first_token(&file, 2)?);
    }
    let mut figures = Figures::default();
    figures.add("first token, a new picture, ms", median(&unknown));
    figures.add("first token, a known picture, ms", median(&known));
    Ok(figures)
}

/// Returns a PNG file that differs in every `turn`.
fn picture(turn: usize) -> Result<Vec<u8>> {
    let place = |index: u32| (index % SIDE, index / SIDE);
    let color = |(x, y): (u32, u32)| [x / 4, y / 4, (x * y / 512 + 37 * turn as u32) % 256];
    let rgb = (0..SIDE * SIDE).flat_map(|index| color(place(index)).map(|it| it as u8)).collect();
    Ok(unreadable(Image::new(SIDE, SIDE, rgb)?.pixels())?.to_png())
}

fn unreadable<T, E: ToString>(picture: std::result::Result<T, E>) -> Result<T> {
    picture.map_err(|error| Error::request("the picture", error.to_string()))
}
