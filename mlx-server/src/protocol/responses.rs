//! OpenAI's Responses API.

pub(crate) mod conversation;
mod custom_tool;
pub(crate) mod item;
pub(crate) mod mcp_item;
pub(crate) mod mcp_tool;
pub(crate) mod object;
mod part;
mod reasoning;
pub(crate) mod request;
pub(crate) mod tools;
pub(crate) mod writer;
