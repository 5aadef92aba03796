//! Detects the picture protocol of a terminal, from environment variables or by a query.

use std::env;

/// A picture protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Protocol {
    /// kitty, Ghostty, Konsole.
    Kitty,
    /// iTerm2, WezTerm, mintty.
    Iterm,
    /// foot, xterm, Windows Terminal and others.
    Sixel,
}

impl Protocol {
    /// A query with a picture in kitty's protocol, followed by a request for the terminal's attributes, which nearly every terminal answers.
    pub(crate) const QUERY: &str = "\x1b_Gi=31,s=1,v=1,a=q,t=d,f=24;AAAA\x1b\\\x1b[c";

    /// Returns the protocol according to the environment. A multiplexer inherits variables of another terminal, so it is queried.
    pub(crate) fn from_environment() -> Option<Self> {
        let value = |name| env::var(name).unwrap_or_default();
        let within = value("TERM").starts_with("screen") || value("TERM").starts_with("tmux");
        let is_kind = ["iTerm.app", "WezTerm", "mintty"].contains(&value("TERM_PROGRAM").as_str());
        (!within && (is_kind || value("LC_TERMINAL") == "iTerm2")).then_some(Self::Iterm)
    }

    /// Returns the protocol according to the reply to [`Self::QUERY`].
    pub(crate) fn from_reply(answer: &str) -> Option<Self> {
        if answer.contains("\x1b_Gi=31;OK") {
            return Some(Self::Kitty);
        }
        // Attribute 4 means sixels.
        let attributes = attributes(answer)?.0;
        attributes.split(';').any(|it| it == "4").then_some(Self::Sixel)
    }

    /// Returns true if a reply to [`Self::QUERY`] is complete: the attributes come last.
    pub(crate) fn is_complete(answer: &str) -> bool {
        attributes(answer).is_some()
    }
}

fn attributes(answer: &str) -> Option<(&str, &str)> {
    answer.split_once("\x1b[?")?.1.split_once('c')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_of_terminals_are_read() {
        for (answer, expected) in [
            ("\x1b_Gi=31;OK\x1b\\\x1b[?62;c", Some(Protocol::Kitty)),
            ("\x1b_Gi=31;OK\x1b\\\x1b[?62;4c", Some(Protocol::Kitty)),
            ("\x1b_Gi=31;EINVAL\x1b\\\x1b[?62;22c", None),
            ("\x1b[?62;4;22c", Some(Protocol::Sixel)),
            ("\x1b[?64;14;42c", None),
            ("\x1b[?6c", None),
            ("", None),
            ("\x1b[?62;4", None),
        ] {
            assert_eq!(Protocol::from_reply(answer), expected, "{answer:?}");
        }
        assert!(!Protocol::is_complete("\x1b_Gi=31;OK\x1b\\\x1b[?62") && Protocol::is_complete("\x1b[?6c"));
    }
}
