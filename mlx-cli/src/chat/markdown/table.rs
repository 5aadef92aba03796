//! Tables: columns as wide as their widest cells, narrowed to fit the terminal. Invariant: pure.

use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

/// The minimum width of a column.
const MIN_WIDTH: usize = 3;

/// The alignment of a column.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Align {
    Left,
    Middle,
    Right,
}

/// Formats rows as a table; `None` if they are no table.
pub(super) fn lines(rows: &[String], columns: usize) -> Option<Vec<String>> {
    let [head, rule, body @ ..] = rows else { return None };
    let aligns: Vec<Align> = cells(rule).iter().map(|cell| align(cell)).collect::<Option<_>>()?;
    let rows: Vec<Vec<String>> = std::iter::once(head).chain(body).map(|row| cells(row)).collect();
    let widths = widths(&rows, aligns.len(), columns);
    let mut lines = Vec::new();
    for (index, row) in rows.iter().enumerate() {
        lines.extend(row_lines(row, &widths, &aligns));
        if index == 0 {
            let rules: Vec<String> = widths.iter().map(|width| "─".repeat(*width)).collect();
            lines.push(rules.join("─┼─"));
        }
    }
    Some(lines)
}

/// Splits a row into its cells. An escaped bar is text.
fn cells(row: &str) -> Vec<String> {
    let row = row.trim();
    let row = row.strip_prefix('|').unwrap_or(row);
    let mut cells = vec![String::new()];
    let mut escaped = false;
    for ch in row.chars() {
        if ch == '|' && !escaped {
            cells.push(String::new());
        } else if let Some(cell) = cells.last_mut() {
            if ch == '|' {
                cell.pop();
            }
            cell.push(ch);
        }
        escaped = ch == '\\';
    }
    if cells.len() > 1 && cells.last().is_some_and(|last| last.trim().is_empty()) {
        cells.pop();
    }
    cells.into_iter().map(|cell| plain(cell.trim())).collect()
}

/// Returns a cell's text without Markdown markers, since a cell has one look.
fn plain(cell: &str) -> String {
    let spans = super::inline::take_spans(
        &mut cell.to_owned(),
        &mut None,
        &super::inline::TextStyle::default(),
        true,
    );
    spans.into_iter().map(|span| span.text).collect()
}

fn align(cell: &str) -> Option<Align> {
    let dashes = cell.trim_start_matches(':').trim_end_matches(':');
    let is_rule = !dashes.is_empty() && dashes.chars().all(|ch| ch == '-');
    is_rule.then_some(match (cell.starts_with(':'), cell.ends_with(':')) {
        (true, true) => Align::Middle,
        (false, true) => Align::Right,
        _ => Align::Left,
    })
}

/// Returns the column widths: those of the widest cells, with the widest columns narrowed until all fit.
fn widths(rows: &[Vec<String>], count: usize, columns: usize) -> Vec<usize> {
    let cell_width = |row: &Vec<String>, index: usize| row.get(index).map_or(0, |cell| cell.width());
    let widest = |index| rows.iter().map(|row| cell_width(row, index)).max().unwrap_or(0).max(MIN_WIDTH);
    let mut widths: Vec<usize> = (0..count).map(widest).collect();
    let room = columns.saturating_sub(3 * count.saturating_sub(1));
    while widths.iter().sum::<usize>() > room {
        let Some(widest) = widths.iter_mut().max().filter(|width| **width > MIN_WIDTH) else { break };
        *widest -= 1;
    }
    widths
}

/// Returns the lines of one row; wide cells are wrapped.
fn row_lines(row: &[String], widths: &[usize], aligns: &[Align]) -> Vec<String> {
    let empty = String::new();
    let wrapped: Vec<Vec<String>> = widths
        .iter()
        .enumerate()
        .map(|(index, width)| wrapped(row.get(index).unwrap_or(&empty), *width))
        .collect();
    let height = wrapped.iter().map(Vec::len).max().unwrap_or(0);
    let line = |at: usize| {
        let cells: Vec<String> = wrapped
            .iter()
            .zip(widths)
            .zip(aligns)
            .map(|((cell, width), align)| padded(cell.get(at).unwrap_or(&empty), *width, *align))
            .collect();
        cells.join(" │ ").trim_end().to_owned()
    };
    (0..height).map(line).collect()
}

fn padded(text: &str, width: usize, align: Align) -> String {
    let spare = width.saturating_sub(text.width());
    let before = match align {
        Align::Left => 0,
        Align::Middle => spare / 2,
        Align::Right => spare,
    };
    format!("{}{text}{}", " ".repeat(before), " ".repeat(spare - before))
}

/// Wraps a text to this width, between words where possible.
fn wrapped(text: &str, width: usize) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in text.split_whitespace() {
        let line = lines.last_mut().expect("there is one");
        if line.is_empty() || line.width() + 1 + word.width() <= width {
            if !line.is_empty() {
                line.push(' ');
            }
        } else {
            lines.push(String::new());
        }
        for ch in word.chars() {
            let line = lines.last_mut().expect("there is one");
            if line.width() + ch.width().unwrap_or(0) > width && !line.is_empty() {
                lines.push(ch.into());
            } else {
                line.push(ch);
            }
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(text: &str, columns: usize) -> Vec<String> {
        let rows: Vec<String> = text.lines().map(str::to_owned).collect();
        lines(&rows, columns).expect("it is a table")
    }

    #[test]
    fn columns_are_aligned() {
        let text = "| name | **size** | n |\n|:--|--:|:-:|\n| a | 1 GB | x |\n| 漢字 b | 12 MB | a\\|b |";
        assert_eq!(
            table(text, 60),
            ["name   │  size │  n", "───────┼───────┼────", "a      │  1 GB │  x", "漢字 b │ 12 MB │ a|b",]
        );
    }

    #[test]
    fn a_wide_table_is_narrowed_and_its_cells_wrapped() {
        let text = "| key | description |\n|---|---|\n| one | a text of several words |\n| two |";
        let lines = table(text, 21);
        assert_eq!(
            lines,
            ["key │ description", "────┼────────────────", "one │ a text of", "    │ several words", "two │",]
        );
        assert!(table(text, 5).iter().all(|line| line.width() <= 9), "no column is narrower than three");
    }

    #[test]
    fn rows_without_a_rule_are_no_table() {
        let rows = ["| a | b |".to_owned(), "| c | d |".to_owned()];
        assert_eq!(lines(&rows, 60), None);
        assert_eq!(lines(&rows[..1], 60), None);
    }
}
