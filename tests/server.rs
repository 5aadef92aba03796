//! The tests of the program `mlx-server`, one file each. They form one binary, so that MLX is linked once.

mod batches;
mod embedding_errors;
mod embeddings;
mod engine_deaths;
mod engine_process;
mod greedy;
mod http;
mod http_audio;
mod http_clients;
mod http_input_audio;
mod http_load;
mod http_pictures;
mod http_transcripts;
mod image_urls;
mod mcp_http;
mod mcp_responses;
mod messages;
mod rerank;
mod responses;
mod tool_calls;
