//! The promises of the runtime, one file each. They are one binary, so that MLX is loaded once and tests can lock the
//! device with `mlx_tests::device()`.

mod adapters;
mod agents;
mod batch_draw;
mod borrowing;
mod choices;
mod constraints;
mod convert;
mod converted;
mod engine;
mod exactness;
mod experts;
mod failures;
mod families;
mod family_configs;
mod footprints;
mod halves;
mod hybrid_configs;
mod kv_bits;
mod loading;
mod long_chats;
mod memory;
mod mixture_configs;
mod packing;
mod prefixes;
mod prompt_cache;
mod quantized;
mod sampling;
mod scoring;
mod sessions;
mod sharing;
mod sliding;
mod spans;
mod template_bombs;
mod template_random;
mod text;
