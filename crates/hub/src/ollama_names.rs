//! Short names of Ollama's library and similar models of the Hub in MLX's format, for suggestions.

/// The names and sizes of Ollama, and the models. The first size of a name is its default.
const MODELS: [(&str, &str, &str); 22] = [
    ("deepseek-r1", "8b", "mlx-community/DeepSeek-R1-0528-Qwen3-8B-4bit"),
    ("gemma2", "9b", "mlx-community/gemma-2-9b-it-4bit"),
    ("gemma2", "2b", "mlx-community/gemma-2-2b-it-4bit"),
    ("gemma3", "4b", "mlx-community/gemma-3-4b-it-4bit"),
    ("gemma3", "1b", "mlx-community/gemma-3-1b-it-4bit"),
    ("gemma3", "12b", "mlx-community/gemma-3-12b-it-4bit"),
    ("gemma3", "27b", "mlx-community/gemma-3-27b-it-4bit"),
    ("llama3", "8b", "mlx-community/Meta-Llama-3-8B-Instruct-4bit"),
    ("llama3.1", "8b", "mlx-community/Meta-Llama-3.1-8B-Instruct-4bit"),
    ("llama3.2", "3b", "mlx-community/Llama-3.2-3B-Instruct-4bit"),
    ("llama3.2", "1b", "mlx-community/Llama-3.2-1B-Instruct-4bit"),
    ("llama3.3", "70b", "mlx-community/Llama-3.3-70B-Instruct-4bit"),
    ("mistral", "7b", "mlx-community/Mistral-7B-Instruct-v0.3-4bit"),
    ("phi4", "14b", "mlx-community/phi-4-4bit"),
    ("qwen2.5", "7b", "mlx-community/Qwen2.5-7B-Instruct-4bit"),
    ("qwen2.5-coder", "7b", "mlx-community/Qwen2.5-Coder-7B-Instruct-4bit"),
    ("qwen3", "8b", "mlx-community/Qwen3-8B-4bit"),
    ("qwen3", "0.6b", "mlx-community/Qwen3-0.6B-4bit"),
    ("qwen3", "1.7b", "mlx-community/Qwen3-1.7B-4bit"),
    ("qwen3", "4b", "mlx-community/Qwen3-4B-4bit"),
    ("qwen3", "14b", "mlx-community/Qwen3-14B-4bit"),
    ("qwen3", "32b", "mlx-community/Qwen3-32B-4bit"),
];

/// Returns the model for a name such as `llama3.2` or `qwen3:4b`.
pub fn model_for_ollama(name: &str) -> Option<&'static str> {
    let lower = name.to_lowercase();
    let (name, tag) = lower.split_once(':').unwrap_or((&lower, "latest"));
    let fits = |(known, size, _): &&(&str, &str, &str)| {
        *known == name && (tag == "latest" || tag.split('-').next() == Some(*size))
    };
    MODELS.iter().find(fits).map(|(_, _, model)| *model)
}

#[cfg(test)]
mod tests {
    use crate::ModelName;

    use super::*;

    #[test]
    fn short_names_lead_to_models() {
        assert_eq!(model_for_ollama("llama3.2"), Some("mlx-community/Llama-3.2-3B-Instruct-4bit"));
        assert_eq!(model_for_ollama("Qwen3:4b-q4_K_M"), Some("mlx-community/Qwen3-4B-4bit"));
        assert_eq!(model_for_ollama("gemma3:latest"), Some("mlx-community/gemma-3-4b-it-4bit"));
        assert_eq!((model_for_ollama("qwen3:999b"), model_for_ollama("nothing")), (None, None));
        for (_, _, model) in MODELS {
            model.parse::<ModelName>().expect("a name of the Hub");
        }
    }
}
