//! The texts to embed: arguments, or the lines of standard input.

use std::io::{BufRead, IsTerminal, Lines, StdinLock, stdin};
use std::path::Path;

use mlx_core::Error;

use crate::exit_code::Failure;
use crate::model_args::ModelName;
use crate::model_choice;

/// The texts to embed.
pub(super) enum Texts {
    Given(Vec<String>),
    /// One text a line of standard input. Blank lines are skipped.
    Lines,
}

/// Returns the model and the texts. The first argument is the model unless a flag names one. A single argument is a text unless it looks
/// like a model.
pub(super) fn name_and_texts(name: &ModelName, texts: &[String]) -> Result<(ModelName, Texts), Failure> {
    let is_text =
        |word: &&Path| name.model.is_some() || texts.is_empty() && !model_choice::looks_like_model(word);
    let first = name.word().filter(is_text);
    let (name, mut given) = match first {
        None => (name.clone(), Vec::new()),
        Some(word) => {
            let text = word.to_str().ok_or_else(|| Failure::usage("TEXT", "is not UTF-8"))?;
            (name.clone().without_positional(), vec![text.to_owned()])
        }
    };
    given.extend_from_slice(texts);
    if given.iter().any(String::is_empty) {
        return Err(Failure::usage("TEXT", "is empty; give a text"));
    }
    if !given.is_empty() {
        return Ok((name, Texts::Given(given)));
    }
    if stdin().is_terminal() {
        return Err(Failure::usage("TEXT", "is missing; give texts, or pipe lines to standard input"));
    }
    Ok((name, Texts::Lines))
}

impl Texts {
    /// Returns true if there may be more than one text.
    pub(super) fn len_is_several(&self) -> bool {
        !matches!(self, Self::Given(given) if given.len() < 2)
    }

    /// Returns the texts in groups of at most `size`, in order.
    pub(super) fn groups(self, size: usize) -> Groups {
        match self {
            Self::Given(given) => Groups { given: given.into_iter(), lines: None, size },
            Self::Lines => {
                Groups { given: Vec::new().into_iter(), lines: Some(stdin().lock().lines()), size }
            }
        }
    }
}

/// An iterator of groups of texts.
pub(super) struct Groups {
    given: std::vec::IntoIter<String>,
    lines: Option<Lines<StdinLock<'static>>>,
    size: usize,
}

impl Groups {
    /// Returns the texts if they are one group. `None` if there are none.
    ///
    /// # Errors
    /// Fails if there are more texts, which are too many for a table.
    pub(super) fn only(&mut self) -> Result<Option<Vec<String>>, Failure> {
        let first = self.next().transpose()?;
        if self.next().transpose()?.is_some() {
            let message = format!(
                "has more texts than a table of similarities holds, {}; add --json, or redirect the output to a file",
                self.size
            );
            return Err(Failure::usage("TEXT", message));
        }
        Ok(first)
    }
}

impl Iterator for Groups {
    type Item = Result<Vec<String>, Failure>;

    fn next(&mut self) -> Option<Self::Item> {
        let failed = |source| Failure::from(Error::io("standard input", source));
        let is_blank = |line: &Result<String, _>| line.as_ref().is_ok_and(|line| line.trim().is_empty());
        let group: Result<Vec<String>, Failure> = match &mut self.lines {
            None => Ok(self.given.by_ref().take(self.size).collect()),
            Some(lines) => lines
                .filter(|line| !is_blank(line))
                .take(self.size)
                .map(|line| line.map_err(failed))
                .collect(),
        };
        match group {
            Ok(group) if group.is_empty() => None,
            group => Some(group),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_has_one_group_of_texts_and_json_lines_have_all() {
        let texts = |count: usize| Texts::Given((0..count).map(|number| number.to_string()).collect());
        assert_eq!(texts(256).groups(256).only().expect("they fit").map(|texts| texts.len()), Some(256));
        let refused =
            texts(257).groups(256).only().expect_err("they do not fit").message().unwrap_or_default();
        assert!(refused.contains("holds, 256; add --json"), "{refused}");
        let lines: usize = texts(600).groups(256).map(|group| group.expect("texts").len()).sum();
        assert_eq!(lines, 600);
    }
}
