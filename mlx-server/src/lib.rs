//! The HTTP front end: it will turn OpenAI-style requests into engine requests. Invariant: only this crate knows HTTP.
