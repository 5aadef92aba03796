//! The benchmark card: an SVG picture of the figures. Invariant: pure.

use mlx_files::size;
use serde_json::Value;

use super::measure::Measurement;

/// Returns a picture of 1200 by 630, the size that link previews expect.
pub(super) fn svg(about: &Value, measured: &Measurement) -> String {
    let text = |key: &str| escaped(about[key].as_str().unwrap_or_default());
    let weights = size(about["weight_bytes"].as_u64().unwrap_or_default());
    let debug = if about["debug_build"] == true { " · debug build" } else { "" };
    let case = measured.case;
    let lines = [
        format!("{} · {weights} of weights in {}", text("family"), text("dtype")),
        format!("{} · {} threads · MLX {}", text("system"), about["threads"], text("mlx_version")),
        format!("prompts of {} tokens, {} at once · {}{debug}", case.length, case.batch, text("exactness")),
    ];
    let line =
        |(line, y): (&String, i32)| format!("<text x=\"80\" y=\"{y}\" class=\"small\">{line}</text>\n");
    let lines = lines.iter().zip([455, 500, 545]).map(line).collect::<Vec<_>>().concat();
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 1200 630\" role=\"img\" aria-label=\"{name}: {decode:.1} tokens per second\">\n\
         <style>text{{font-family:ui-sans-serif,system-ui,sans-serif;fill:#f4f4f5}}.small{{font-size:30px;fill:#a1a1aa}}.big{{font-size:120px;font-weight:700}}.unit{{font-size:36px;fill:#a1a1aa}}.name{{font-size:52px;font-weight:600}}</style>\n\
         <rect width=\"1200\" height=\"630\" fill=\"#18181b\"/>\n\
         <text x=\"80\" y=\"120\" class=\"name\">{name}</text>\n\
         <text x=\"80\" y=\"300\" class=\"big\">{decode:.1}</text><text x=\"80\" y=\"352\" class=\"unit\">answer, tok/s</text>\n\
         <text x=\"640\" y=\"300\" class=\"big\">{prefill:.0}</text><text x=\"640\" y=\"352\" class=\"unit\">prompt, tok/s</text>\n\
         {lines}<text x=\"1120\" y=\"590\" class=\"small\" text-anchor=\"end\">mlx {} ({})</text>\n</svg>\n",
        text("tool"),
        text("commit"),
        name = text("model"),
        decode = measured.decode.median,
        prefill = measured.prefill.median,
    )
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use mlx_core::engine::DraftCounts;
    use serde_json::json;

    use super::super::measure::{Case, Spread};
    use super::*;

    #[test]
    fn the_figures_stand_on_the_card_and_names_are_no_markup() {
        let spread = |value: f64| Spread::from_values(vec![value]);
        let case = Case { length: 128, batch: 1, generate: 64 };
        let measured = Measurement {
            case,
            prefill: spread(987.6),
            decode: spread(54.3),
            first: spread(0.1),
            peak: 1 << 30,
            worker_peaks: Vec::new(),
            drafts: DraftCounts::default(),
        };
        let svg = svg(&json!({ "model": "a<b>&\"c\"", "exactness": "bit-exact" }), &measured);
        assert!(svg.contains(">54.3<") && svg.contains(">988<") && svg.contains("bit-exact"), "{svg}");
        assert!(svg.contains("a&lt;b>&amp;&quot;c&quot;") && !svg.contains("<b>"), "{svg}");
    }
}
