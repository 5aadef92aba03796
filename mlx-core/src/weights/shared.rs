//! Modules that models with different adapters share, so that they load once.

use std::any::Any;
use std::cell::RefCell;
use std::collections::BTreeMap;

/// The loaded modules of a base model by name, for models that adapt it. Arrays are handles, so a clone of a module shares its data.
#[derive(Default)]
pub(crate) struct Shared(RefCell<BTreeMap<String, Box<dyn Any>>>);

impl Shared {
    /// Returns a clone of the module stored under this name.
    pub(super) fn get<T: Clone + 'static>(&self, name: &str) -> Option<T> {
        self.0.borrow().get(name)?.downcast_ref::<T>().cloned()
    }

    /// Stores a clone of a module.
    pub(super) fn put<T: Clone + 'static>(&self, name: &str, part: &T) {
        self.0.borrow_mut().insert(name.to_owned(), Box::new(part.clone()));
    }
}
