//! A model that runs a script of the test in the middle of its passes, to fail, panic or wait.

use mlx_core::Result;
use mlx_core::backend::Backend;
use mlx_core::cache::{SequenceState, Variant};
use mlx_core::engine::{Engine, EngineOptions};
use mlx_core::model::{self, Batch, Model, ModelSpec, Pass};
use mlx_core::weights::WeightPolicy;
use mlx_rs::Array;

use crate::model_folder;

/// The script, called with the states of a pass.
type Script = Box<dyn Fn(&mut [&mut SequenceState]) -> Result<()> + Send>;

/// A function that replaces the logits of a pass.
type Twist = Box<dyn Fn(Array) -> Result<Array> + Send>;

struct Scripted {
    inner: Box<dyn Model>,
    script: Script,
    twist: Twist,
}

impl Model for Scripted {
    fn spec(&self) -> &ModelSpec {
        self.inner.spec()
    }

    fn new_state(&self, variant: Variant) -> SequenceState {
        self.inner.new_state(variant)
    }

    fn begin(&self, batch: Batch) -> Result<Pass> {
        self.inner.begin(batch)
    }

    fn advance(&self, pass: &mut Pass, layers: usize, caches: &mut [&mut SequenceState]) -> Result<()> {
        // Run after the first layer, so that a failure leaves the states in the middle of a pass.
        self.inner.advance(pass, 1, caches)?;
        (self.script)(caches)?;
        self.inner.advance(pass, layers.saturating_sub(1), caches)
    }

    fn shift(&self, cache: &mut SequenceState, keep: usize, dropped: usize) -> Result<()> {
        self.inner.shift(cache, keep, dropped)
    }

    fn normalized(&self, hidden: &Array) -> Result<Array> {
        self.inner.normalized(hidden)
    }

    fn logits(&self, hidden: &Array) -> Result<Array> {
        (self.twist)(self.inner.logits(hidden)?)
    }
}

/// Starts an engine on a tiny checkpoint that runs `script` in every pass.
///
/// # Panics
/// If the checkpoint does not load.
pub fn scripted(
    name: &str,
    script: impl Fn(&mut [&mut SequenceState]) -> Result<()> + Send + 'static,
) -> Engine {
    scripted_on(Backend::detect().expect("a device"), name, script)
}

/// Starts such an engine with this backend.
///
/// # Panics
/// If the checkpoint does not load.
pub fn scripted_on(
    backend: Backend,
    name: &str,
    script: impl Fn(&mut [&mut SequenceState]) -> Result<()> + Send + 'static,
) -> Engine {
    twisted_on(backend, name, script, Ok)
}

/// Starts such an engine with a function `twist` that may change all logits.
///
/// # Panics
/// If the checkpoint does not load.
pub fn twisted_on(
    backend: Backend,
    name: &str,
    script: impl Fn(&mut [&mut SequenceState]) -> Result<()> + Send + 'static,
    twist: impl Fn(Array) -> Result<Array> + Send + 'static,
) -> Engine {
    // The row check at load also runs passes, which the script must not affect.
    let options = EngineOptions { exact: false, backend: Some(backend), ..EngineOptions::default() };
    let folder = model_folder(name);
    let path = folder.clone();
    let load = move || {
        let inner = model::load(&path, WeightPolicy::new(backend, false), &mut |_, _| {})?;
        let scripted = Scripted { inner, script: Box::new(script), twist: Box::new(twist) };
        Ok(Box::new(scripted) as Box<dyn Model>)
    };
    Engine::start_with(&folder, &options, load).expect("the fixture loads")
}
