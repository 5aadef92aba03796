//! The bytes that clips take on the device, computed only from the sizes of the tower.

use crate::model::vision::VisionFootprint;
use crate::processor::{AudioClip, CHUNK_FRAMES, ClipFrames};

/// The sizes of a tower that determine the memory for a clip.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ClipCosts {
    pub(super) frames: ClipFrames,
    /// The numbers in a row of features.
    pub(super) row_width: usize,
    /// Temporary numbers in the tower per frame and per row.
    pub(super) numbers: (usize, usize),
    /// The maximum number of frames that the tower computes at once. `None`: all frames.
    pub(super) frames_at_once: Option<usize>,
}

/// The memory of an audio tower.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AudioFootprint {
    /// Bytes of the weights of the tower and the projector.
    pub weight_bytes: u64,
    frames: ClipFrames,
    /// Bytes per frame that all frames take at once.
    bytes_per_frame: u64,
    /// Temporary bytes per frame and per row in the tower.
    bytes: (u64, u64),
    frames_at_once: Option<usize>,
    /// Bytes per row of features.
    bytes_per_row: u64,
}

impl AudioFootprint {
    /// Computes the footprint for features with numbers of `size` bytes.
    pub(super) fn new(costs: ClipCosts, weight_bytes: u64, size: u64) -> Self {
        let ClipCosts { frames, row_width, numbers, frames_at_once } = costs;
        // The tower computes partly in f32. A frame exists as f32, in the type of the weights, and as one more copy.
        let bytes_per_row = row_width as u64 * size;
        Self {
            weight_bytes,
            frames,
            bytes_per_frame: 3 * frames.width() as u64 * 4,
            frames_at_once,
            bytes: (numbers.0 as u64 * 4, numbers.1 as u64 * 4 + 2 * bytes_per_row),
            bytes_per_row,
        }
    }

    /// Returns the bytes of the features of a clip.
    pub fn features(&self, clip: &AudioClip) -> u64 {
        self.frames.rows(clip.frames()) as u64 * self.bytes_per_row
    }

    /// Returns the bytes that the tower takes for a clip in addition to its weights, including the features.
    pub fn pass(&self, clip: &AudioClip) -> u64 {
        self.pass_of(clip.frames())
    }

    /// Returns the bytes of a request with one clip of this many frames, including their numbers.
    pub(crate) fn clip(&self, frames: usize) -> u64 {
        let numbers = (frames * self.frames.width()) as u64;
        self.frames.rows(frames) as u64 * self.bytes_per_row + self.pass_of(frames) + 4 * numbers
    }

    fn pass_of(&self, frames: usize) -> u64 {
        let rows = self.frames.rows(frames);
        // A tower that computes some frames at once fills up the last ones.
        let at_once =
            self.frames_at_once.map_or(frames, |most| most.min(frames.next_multiple_of(CHUNK_FRAMES)));
        frames as u64 * self.bytes_per_frame + at_once as u64 * self.bytes.0 + rows as u64 * self.bytes.1
    }

    /// Returns the bytes of the clips of a request: all features, and the tower's memory for the longest clip. The tower computes one clip at
    /// a time.
    pub fn request<'a>(&self, clips: impl Iterator<Item = &'a AudioClip> + Clone) -> u64 {
        let features: u64 = clips.clone().map(|clip| self.features(clip)).sum();
        features + clips.map(|clip| self.pass(clip)).max().unwrap_or(0)
    }
}

/// The memory of a model's towers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct TowerFootprints {
    /// The vision tower.
    pub vision: Option<VisionFootprint>,
    /// The audio tower.
    pub audio: Option<AudioFootprint>,
}

impl TowerFootprints {
    /// Returns the bytes of the weights of all towers.
    pub fn weight_bytes(&self) -> u64 {
        self.vision.map_or(0, |it| it.weight_bytes) + self.audio.map_or(0, |it| it.weight_bytes)
    }
}
