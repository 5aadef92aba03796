//! The rule that the charts of docs/benchmarks.md show its figures.

use super::files::SourceFile;
use super::violation::Violation;
use crate::charts::{CHARTS, PAGE};

pub(super) fn check(files: &[SourceFile]) -> Vec<Violation> {
    let Some(page) = files.iter().find(|file| file.path == PAGE) else { return Vec::new() };
    let old = |chart: &&crate::charts::Chart| {
        let drawn = files.iter().find(|file| file.path == chart.path).map(|file| file.text.as_str());
        chart.svg(&page.text).ok().as_deref() != drawn
    };
    let violation = |chart: &crate::charts::Chart| {
        Violation::new(page, 0, format!("{} shows other figures: run `cargo xtask bench --svg`", chart.path))
    };
    CHARTS.iter().filter(old).map(violation).collect()
}
