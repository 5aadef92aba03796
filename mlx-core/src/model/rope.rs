//! Rotary position embedding (Su et al., 2021, arXiv:2104.09864).

mod config;
mod constants;
mod frequencies;
mod layers;
mod mrope_section;
mod rotary;

pub(super) use config::LONG;
pub use config::{RopeConfig, RopeDefaults, RopeScaling};
pub(super) use layers::Ropes;
pub use mrope_section::MropeSection;
pub(super) use rotary::{LongRows, Rotary};
