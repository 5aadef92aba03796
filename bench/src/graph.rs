//! How many operations the device is given for each layer: `graph FOLDER...`. The host's overhead grows with their number.

use std::path::Path;

use mlx_core::Result;
use mlx_core::array::write_graph;
use mlx_core::backend::Backend;
use mlx_core::cache::{SequenceState, Variant};
use mlx_core::model::{self, Batch, Model, Pass};
use mlx_core::weights::WeightPolicy;

use crate::figures::Figures;

const PROMPT: usize = 40;

/// Rows of a decode step.
const ROWS: [usize; 3] = [1, 8, 32];

/// The operations that the rows of a pass wait for.
fn operations(pass: &Pass) -> usize {
    let file = tempfile::NamedTempFile::new().expect("a temporary file");
    write_graph(pass.hidden(), file.path()).expect("the graph can be written");
    let text = std::fs::read_to_string(file.path()).expect("the graph is there");
    text.lines().filter(|line| line.contains("shape=rectangle")).count()
}

fn prompt() -> Vec<u32> {
    (5..).take(PROMPT).collect()
}

/// Operations of all layers of a pass, which is computed after they were counted.
fn of_layers(model: &dyn Model, batch: Batch, states: &mut [SequenceState]) -> usize {
    let mut states: Vec<&mut SequenceState> = states.iter_mut().collect();
    let mut pass = model.begin(batch).expect("a pass");
    let embedded = operations(&pass);
    model.advance(&mut pass, model.spec().num_layers, &mut states).expect("the layers run");
    let all = operations(&pass);
    pass.wait().expect("it computes");
    for state in states {
        state.eval().expect("it computes");
    }
    all - embedded
}

/// Operations of all layers of the second decode step of `rows` sequences.
fn of_step(model: &dyn Model, rows: usize) -> usize {
    let mut states: Vec<SequenceState> = (0..rows)
        .map(|_| {
            let mut state = model.new_state(Variant::default());
            model.forward(Batch::prompt(&prompt(), 0), &mut [&mut state]).expect("a pass");
            state.eval().expect("it computes");
            state
        })
        .collect();
    let step = |position: usize| Batch::decode(&vec![(7, position); rows]);
    of_layers(model, step(PROMPT), &mut states);
    of_layers(model, step(PROMPT + 1), &mut states)
}

pub(crate) fn measure(folders: &[String]) -> Result<Figures> {
    let mut figures = Figures::default();
    let detected = Backend::detect()?;
    for folder in folders {
        for (body, batched_decode) in [("row by row", false), ("rows at once", true)] {
            let policy = WeightPolicy::new(Backend { batched_decode, ..detected }, false);
            let model = model::load(Path::new(folder), policy, &mut |_, _| {})?;
            let (family, layers) = (&model.spec().family, model.spec().num_layers as f64);
            let of_layer = |count: usize| (count as f64 / layers).round();
            for rows in ROWS {
                let name = format!("{family}, a layer of a step of {rows}, {body}");
                figures.add(name, of_layer(of_step(model.as_ref(), rows)));
            }
            if !batched_decode {
                let chunk = Batch::prompt(&prompt(), 0);
                let mut states = [model.new_state(Variant::default())];
                let count = of_layers(model.as_ref(), chunk, &mut states);
                figures.add(format!("{family}, a layer of a chunk"), of_layer(count));
            }
        }
    }
    Ok(figures)
}
