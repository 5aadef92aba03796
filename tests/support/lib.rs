//! What the tests share: where the fixtures lie.
