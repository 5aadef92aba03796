//! The charts of docs/benchmarks.md. `cargo xtask bench --svg` draws its tables, and `cargo xtask tidy` compares the result.

use std::fmt::Write;
use std::fs;

use anyhow::{Context, Result, bail};

use crate::workspace;

/// The page with the tables.
pub(crate) const PAGE: &str = "docs/benchmarks.md";

/// The charts.
pub(crate) const CHARTS: [Chart; 2] = [
    Chart {
        path: "docs/charts/one-stream.svg",
        title: "One chat: tokens per second, 153 M parameters in f32",
        section: "## One stream",
        table: "153 M, f32",
        rows: &[("answer of 128, tok/s", "answer"), ("prompt of 512, tok/s", "prompt")],
        columns: &[("ours", "mlx"), ("mlx-lm, same BLAS", "mlx-lm"), ("llama.cpp", "llama.cpp")],
        one_scale: false,
    },
    Chart {
        path: "docs/charts/many-sequences.svg",
        title: "Chats at once: tokens per second of all, 153 M parameters in f32",
        section: "## Many sequences at once",
        table: "153 M",
        rows: &[
            ("1 at once, tok/s", "1 chat"),
            ("8 at once, tok/s", "8 chats"),
            ("16 at once, tok/s", "16 chats"),
        ],
        columns: &[("ours", "mlx"), ("mlx-lm, same BLAS", "mlx-lm")],
        one_scale: true,
    },
];

const FOOTNOTE: &str = "2 cores of a shared x86_64 server, CPU backend; nothing here is about Metal";

/// A table of the page as bars: a group per row, a bar per column.
pub(crate) struct Chart {
    /// The path of the file in the repository.
    pub(crate) path: &'static str,
    title: &'static str,
    /// The beginning of the heading above the table.
    section: &'static str,
    /// The first header cell of the table.
    table: &'static str,
    /// The first cells of rows, and their labels in the chart.
    rows: &'static [(&'static str, &'static str)],
    /// The header cells of columns, and their labels in the chart.
    columns: &'static [(&'static str, &'static str)],
    /// True if all groups share one scale; otherwise each group has its own.
    one_scale: bool,
}

/// Writes all charts.
pub(crate) fn draw() -> Result<()> {
    let root = workspace::root()?;
    let page = fs::read_to_string(root.join(PAGE))?;
    for chart in &CHARTS {
        let path = root.join(chart.path);
        fs::create_dir_all(path.parent().context("a chart lies in a folder")?)?;
        fs::write(&path, chart.svg(&page)?)?;
        println!("{}", chart.path);
    }
    Ok(())
}

impl Chart {
    /// Returns the chart of the figures on the page.
    pub(crate) fn svg(&self, page: &str) -> Result<String> {
        let groups = self.figures(page)?;
        let largest = |figures: &[f64]| figures.iter().copied().fold(0.0, f64::max);
        let all = largest(&groups.concat());
        let height = 64 + groups.len() * (self.columns.len() * 22 + 16);
        let mut svg = head(self.title, height)?;
        let mut y = 48;
        for ((_, name), figures) in self.rows.iter().zip(&groups) {
            let whole = if self.one_scale { all } else { largest(figures) };
            writeln!(svg, r#"<text class="t" x="16" y="{}">{name}</text>"#, y + 14)?;
            for (index, ((_, column), figure)) in self.columns.iter().zip(figures).enumerate() {
                let width = figure / whole * 380.0;
                let class = if index == 0 { "a" } else { "b" };
                writeln!(
                    svg,
                    r#"<text x="176" y="{}" text-anchor="end">{column}</text><rect class="{class}" x="186" y="{y}" width="{width:.1}" height="18" rx="3"/><text x="{:.1}" y="{}">{figure}</text>"#,
                    y + 14,
                    194.0 + width,
                    y + 14
                )?;
                y += 22;
            }
            y += 16;
        }
        writeln!(svg, r#"<text class="f" x="16" y="{}">{FOOTNOTE}</text>"#, y + 6)?;
        svg.push_str("</svg>\n");
        Ok(svg)
    }

    /// Returns the figures of each row.
    fn figures(&self, page: &str) -> Result<Vec<Vec<f64>>> {
        let section =
            page.split_once(self.section).with_context(|| format!("no section {:?}", self.section))?.1;
        let mut lines = section.lines().map(cells);
        let head = lines.find(|cells| cells.first() == Some(&self.table));
        let head = head.with_context(|| format!("no table {:?}", self.table))?;
        let rows: Vec<Vec<&str>> = lines.take_while(|cells| cells.len() == head.len()).collect();
        let places = self.columns.iter().map(|(name, _)| {
            head.iter().position(|cell| cell == name).with_context(|| format!("no column {name:?}"))
        });
        let places = places.collect::<Result<Vec<usize>>>()?;
        let row = |(name, _): &(&str, &str)| {
            let Some(row) = rows.iter().find(|row| row[0] == *name) else { bail!("no row {name:?}") };
            places.iter().map(|place| Ok(row[*place].parse()?)).collect()
        };
        self.rows.iter().map(row).collect()
    }
}

/// Returns the cells of a table line; empty for other lines.
fn cells(line: &str) -> Vec<&str> {
    let inner = line.strip_prefix('|').and_then(|line| line.strip_suffix('|'));
    inner.map_or_else(Vec::new, |inner| inner.split('|').map(str::trim).collect())
}

/// Returns the beginning of the image: its size, its colors on light and dark pages, and its title.
fn head(title: &str, height: usize) -> Result<String> {
    let mut svg = String::new();
    writeln!(
        svg,
        r#"<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 640 {height}" width="640" height="{height}" role="img">
<title>{title}</title>
<style>text{{font:13px system-ui,-apple-system,'Segoe UI',sans-serif;fill:#24292f}}.t{{font-weight:600}}.f{{font-size:11px;fill:#57606a}}.a{{fill:#0b7285}}.b{{fill:#adb5bd}}
@media(prefers-color-scheme:dark){{text{{fill:#d8dce4}}.f{{fill:#9aa4b2}}.a{{fill:#3bc9db}}.b{{fill:#5c6670}}}}</style>
<text class="t" x="16" y="26">{title}</text>"#
    )?;
    Ok(svg)
}

#[cfg(test)]
mod tests {
    use super::*;

    const CHART: Chart = Chart {
        path: "",
        title: "a title",
        section: "## Second",
        table: "one",
        rows: &[("b, tok/s", "bee")],
        columns: &[("them", "they"), ("us", "we")],
        one_scale: true,
    };

    #[test]
    fn a_chart_shows_the_rows_and_columns_that_it_names() {
        let page = "## First\n| one | us |\n| b, tok/s | 9 |\n## Second\ntext\n| one | us | them |\n| - | - | - |\n| b, tok/s | 2 | 4.5 |\n";
        let svg = CHART.svg(page).expect("it is there");
        assert!(
            svg.contains(r#"width="380.0" height="18" rx="3"/><text x="574.0" y="62">4.5</text>"#),
            "{svg}"
        );
        assert!(svg.contains(">bee</text>") && svg.contains(">we</text>") && !svg.contains(">9<"), "{svg}");
        for gone in ["## Second", "b, tok/s", "them"] {
            assert!(CHART.svg(&page.replacen(gone, "x", 9)).is_err(), "{gone}");
        }
    }
}
