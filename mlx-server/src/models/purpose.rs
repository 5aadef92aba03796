//! Checks that a model is made for the task of a request, before it is loaded for it.

use mlx_core::Abilities;

use crate::error::ApiError;

/// The task of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// Generates text.
    Generate,
    /// Computes embeddings. Models that generate text can do so, too.
    Embed,
    /// Ranks documents. Some models that generate text can do so, too.
    Rerank,
    /// Transcribes or translates audio.
    Transcribe,
}

impl Purpose {
    /// Rejects a model that is made for another task only. The error names the endpoint of that task.
    pub(super) fn check(self, name: &str, abilities: Abilities) -> Result<(), ApiError> {
        let Abilities { chats, embeds, reranks, transcribes } = abilities;
        let message = match self {
            Self::Transcribe if !transcribes => {
                "is no speech recognizer; use Whisper or Qwen3-ASR, or send input_audio in a chat to a model that hears"
            }
            Self::Transcribe => return Ok(()),
            _ if transcribes && !chats => {
                "is a speech recognizer and generates no other text; use POST /v1/audio/transcriptions"
            }
            Self::Generate if !chats && embeds => {
                "computes embeddings and generates no text; use POST /v1/embeddings or /api/embed"
            }
            Self::Generate if !chats && reranks => {
                "ranks documents and generates no text; use POST /v1/rerank"
            }
            Self::Embed if !chats && !embeds && reranks => {
                "ranks documents and computes no embeddings; use POST /v1/rerank"
            }
            Self::Rerank if !chats && !reranks && embeds => {
                "computes embeddings and is not a reranker; use POST /v1/embeddings, or another model"
            }
            _ => return Ok(()),
        };
        Err(ApiError::unsupported("model", format!("{name} {message}")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_model_of_another_task_is_refused_with_its_endpoint() {
        let chat = Abilities { chats: true, ..Abilities::default() };
        let embed = Abilities { embeds: true, ..Abilities::default() };
        let rerank = Abilities { reranks: true, ..Abilities::default() };
        let speech = Abilities { transcribes: true, ..Abilities::default() };
        let hears = Abilities { transcribes: true, ..chat };
        for purpose in [Purpose::Generate, Purpose::Embed, Purpose::Rerank] {
            assert_eq!(purpose.check("a", chat), Ok(()), "{purpose:?}");
            assert_eq!(purpose.check("a", hears), Ok(()), "{purpose:?}");
        }
        for (purpose, abilities, endpoint) in [
            (Purpose::Generate, embed, "/v1/embeddings"),
            (Purpose::Generate, rerank, "/v1/rerank"),
            (Purpose::Embed, rerank, "/v1/rerank"),
            (Purpose::Rerank, embed, "/v1/embeddings"),
            (Purpose::Generate, speech, "/v1/audio/transcriptions"),
            (Purpose::Embed, speech, "/v1/audio/transcriptions"),
            (Purpose::Transcribe, chat, "use Whisper"),
        ] {
            let error = purpose.check("a", abilities).expect_err(endpoint);
            assert_eq!(error.param(), Some("model"));
            assert!(error.message().starts_with("model: a ") && error.message().contains(endpoint));
        }
        assert_eq!(Purpose::Embed.check("a", embed), Ok(()));
        assert_eq!(Purpose::Rerank.check("a", rerank), Ok(()));
        assert_eq!(Purpose::Transcribe.check("a", speech), Ok(()));
        assert_eq!(Purpose::Transcribe.check("a", hears), Ok(()));
    }
}
