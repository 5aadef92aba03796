//! What models that differ by their adapters have in common: parts that were loaded once.

use std::any::Any;
use std::cell::RefCell;
use std::collections::BTreeMap;

/// The parts of a model without an adapter, by their names, for models that adapt it. Arrays are handles, so that a clone of a part
/// holds no numbers of its own.
#[derive(Default)]
pub(crate) struct Shared(RefCell<BTreeMap<String, Box<dyn Any>>>);

impl Shared {
    /// A clone of the part that was put under this name.
    pub(super) fn get<T: Clone + 'static>(&self, name: &str) -> Option<T> {
        self.0.borrow().get(name)?.downcast_ref::<T>().cloned()
    }

    /// Keeps a clone of a part.
    pub(super) fn put<T: Clone + 'static>(&self, name: &str, part: &T) {
        self.0.borrow_mut().insert(name.to_owned(), Box::new(part.clone()));
    }
}
