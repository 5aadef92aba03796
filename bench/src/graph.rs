//! How many operations the device is given for each layer: `graph FOLDER...`. Their number is what the host's overhead grows with.

use std::path::Path;

use mlx_core::Result;
use mlx_core::array::write_graph;
use mlx_core::cache::Variant;
use mlx_core::model::{self, Batch, Model, Pass};
use mlx_core::weights::WeightPolicy;

use crate::figures::Figures;

const PROMPT: usize = 40;

/// The operations that the rows of a pass wait for.
fn operations(pass: &Pass) -> usize {
    let file = tempfile::NamedTempFile::new().expect("a temporary file");
    write_graph(pass.hidden(), file.path()).expect("the graph can be written");
    let text = std::fs::read_to_string(file.path()).expect("the graph is there");
    text.lines().filter(|line| line.contains("shape=rectangle")).count()
}

/// Operations of all layers of a pass, after `before` positions that have been computed.
fn of_layers(model: &dyn Model, batch: Batch, before: usize) -> usize {
    let mut cache = model.new_state(Variant::default());
    if before > 0 {
        let tokens: Vec<u32> = (5..).take(before).collect();
        let hidden = model.forward(Batch::prompt(&tokens, 0), &mut [&mut cache]).expect("a pass");
        hidden.eval().expect("it computes");
        cache.eval().expect("it computes");
    }
    let mut pass = model.begin(batch).expect("a pass");
    let embedded = operations(&pass);
    model.advance(&mut pass, model.spec().num_layers, &mut [&mut cache]).expect("the layers run");
    operations(&pass) - embedded
}

pub(crate) fn measure(folders: &[String]) -> Result<Figures> {
    let policy = WeightPolicy::for_device(false)?;
    let mut figures = Figures::default();
    for folder in folders {
        let model = model::load(Path::new(folder), policy, &mut |_, _| {})?;
        let spec = model.spec();
        let step = of_layers(model.as_ref(), Batch::decode(&[(7, PROMPT)]), PROMPT);
        let tokens: Vec<u32> = (5..).take(PROMPT).collect();
        let chunk = of_layers(model.as_ref(), Batch::prompt(&tokens, 0), 0);
        let each = |count: usize| (count as f64 / spec.num_layers as f64).round();
        figures.add(format!("{}, a layer of a step", spec.family), each(step));
        figures.add(format!("{}, a layer of a chunk", spec.family), each(chunk));
    }
    Ok(figures)
}
