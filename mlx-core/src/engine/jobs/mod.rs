//! Engines whose requests are independent jobs without cached rows: the texts of an encoder and the windows of a speech recognizer.

mod job_loop;
mod worker;

pub(super) use job_loop::{JobLoop, JobMemory};
pub(super) use worker::{Ended, Job, Jobs, Worker};
