//! The engine of a speech recognizer: windows of 30 seconds of audio become text. A window runs in short steps, between which others have
//! their turn.

mod aligning;
mod attempt;
mod capacity;
mod listening_worker;
mod window;

pub(super) use capacity::ListeningCapacity;
pub(super) use listening_worker::{ListeningWorker, MAX_RUNNING};
