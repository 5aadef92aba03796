//! Finds the rows of pictures and audio clips in a prompt. Each kind has its own placeholder token.

use std::vec::IntoIter;

use super::Medium;
use crate::error::{Error, Result};

/// The items of one kind, in order, with their numbers of rows.
pub(super) struct Queue {
    /// The request's field, for errors.
    field: &'static str,
    /// The placeholder token.
    token: u32,
    rows: usize,
    items: IntoIter<(Medium, usize)>,
}

impl Queue {
    pub(super) fn new(field: &'static str, token: u32, items: Vec<(Medium, usize)>) -> Self {
        let rows = items.iter().map(|(_, rows)| rows).sum();
        Self { field, token, rows, items: items.into_iter() }
    }

    fn error(&self, message: String) -> Error {
        Error::request(self.field, message)
    }
}

/// The items of all kinds in the order of their rows.
pub(super) struct Placed {
    pub(super) items: Vec<Medium>,
    /// The end of each item's rows among the rows of all items.
    pub(super) ends: Vec<usize>,
    /// The position of every row in the prompt.
    pub(super) positions: Vec<usize>,
}

/// Assigns the placeholder tokens of a prompt to the items of their kind. The rows of an item must not be between those of another one.
pub(super) fn place(prompt: &[u32], mut queues: Vec<Queue>) -> Result<Placed> {
    for queue in &queues {
        let (rows, token) = (queue.rows, queue.token);
        let found = prompt.iter().filter(|it| **it == token).count();
        if found != rows {
            let message = format!(
                "have {rows} rows, but the prompt has {found} placeholder tokens (id {token}); it needs one for each row"
            );
            return Err(queue.error(message));
        }
    }
    let mut placed = Placed { items: Vec::new(), ends: Vec::new(), positions: Vec::new() };
    // The placeholder of the latest item.
    let mut latest = None;
    for (position, token) in prompt.iter().enumerate() {
        let Some(queue) = queues.iter_mut().find(|queue| queue.token == *token) else { continue };
        let end = placed.ends.last().copied().unwrap_or(0);
        if placed.positions.len() == end {
            let Some((item, rows)) = queue.items.next() else {
                return Err(queue.error("have fewer items than rows".to_owned()));
            };
            placed.items.push(item);
            placed.ends.push(end + rows);
            latest = Some(*token);
        } else if latest != Some(*token) {
            let message = format!("have a row at position {position}, between the rows of another item");
            return Err(queue.error(message));
        }
        placed.positions.push(position);
    }
    Ok(placed)
}

#[cfg(test)]
mod tests {
    use chat_format::Pixels;

    use super::*;
    use crate::processor::AudioClip;

    fn queues(pictures: &[usize], clips: &[usize]) -> Vec<Queue> {
        let picture =
            |rows: &usize| (Medium::Picture(Pixels::new(1, 1, vec![0; 3]).expect("a picture")), *rows);
        let clip = |rows: &usize| (Medium::Clip(AudioClip::new(1, vec![0.0])), *rows);
        vec![
            Queue::new("images", 8, pictures.iter().map(picture).collect()),
            Queue::new("audio", 9, clips.iter().map(clip).collect()),
        ]
    }

    #[test]
    fn items_have_the_order_of_their_rows() {
        let prompt = [1, 9, 9, 2, 8, 3, 9, 8, 8, 4];
        let placed = place(&prompt, queues(&[1, 2], &[2, 1])).expect("all rows are there");
        assert_eq!((placed.ends, placed.positions), (vec![2, 3, 4, 6], vec![1, 2, 4, 6, 7, 8]));
        let kinds: Vec<bool> = placed.items.iter().map(|item| item.clip().is_some()).collect();
        assert_eq!(kinds, [true, false, true, false]);
    }

    #[test]
    fn rows_are_neither_missing_nor_mixed() {
        for (prompt, wrong) in [
            (&[9, 9][..], "images"),
            (&[8, 8, 9], "audio"),
            (&[8, 9, 8, 9], "audio"),
            (&[9, 8, 9, 8], "images"),
        ] {
            let error = place(prompt, queues(&[2], &[2])).err().expect(wrong);
            assert!(matches!(error, Error::Request { field, .. } if field == wrong), "{error}");
        }
    }
}
