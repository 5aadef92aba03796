//! The tests of the program `mlx`, one file each. They form one binary, so that MLX is linked once.

mod chat_servers;
mod chat_tools;
mod cli;
mod cli_input_audio;
mod cli_pictures;
mod cli_transcribe;
mod distributed;
mod distributed_options;
mod group_faults;
mod hostile_models;
mod http_bombs;
mod hub;
mod launch;
mod offers;
mod one_path;
mod ps;
mod replay;
mod structured_output;
mod tensor;
mod tensor_shares;
mod terminal;
mod text_paths;
mod tools;
mod worker_parts;
mod worker_refusals;
mod workers;
