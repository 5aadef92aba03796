//! The server itself, spoken to over HTTP.
