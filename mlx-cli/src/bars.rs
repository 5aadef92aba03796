//! Bars of block characters that illustrate figures. Invariant: pure.

/// Draws a share from 0 to 1 as a bar in steps of an eighth of a character, padded with spaces to `columns`.
pub(crate) fn share(share: f64, columns: usize) -> String {
    let eighths = (share.clamp(0.0, 1.0) * 8.0 * columns as f64).round() as usize;
    let rest = ["", "▏", "▎", "▍", "▌", "▋", "▊", "▉"][eighths % 8];
    format!("{:<columns$}", format!("{}{rest}", "█".repeat(eighths / 8)))
}

/// Draws the parts of a whole in one bar, each with its letter; the remainder is dotted. Every part with a size gets at least one
/// column while columns remain.
pub(crate) fn parts(parts: &[(u64, char)], total: u64, columns: usize) -> String {
    let (mut bar, mut end) = (String::new(), 0);
    let mut written = 0;
    for (size, ch) in parts {
        end += size;
        let column = (end as f64 / total.max(1) as f64 * columns as f64).round() as usize;
        let column = column.max(written + usize::from(*size > 0)).min(columns);
        bar.extend(std::iter::repeat_n(*ch, column - written));
        written = column;
    }
    bar.extend(std::iter::repeat_n('·', columns - written));
    bar
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bars_have_one_length() {
        for part in [0.0, 0.001, 0.03, 0.5, 0.99, 1.0, 1.5] {
            assert_eq!(share(part, 10).chars().count(), 10, "{part}");
        }
        assert_eq!(share(1.0, 10), "█".repeat(10));
        assert!(share(0.5, 10).starts_with(&"█".repeat(5)) && share(0.5, 10).ends_with(' '));
    }

    #[test]
    fn every_part_is_seen() {
        assert_eq!(parts(&[(50, '#'), (1, '+'), (0, '-')], 100, 10), "#####+····");
        assert_eq!(parts(&[(90, '#'), (20, '+')], 100, 10), "#########+");
        assert_eq!(parts(&[(200, '#'), (20, '+')], 100, 10), "#".repeat(10));
    }
}
