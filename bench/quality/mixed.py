"""1 000 mixed texts for the comparison of tokenizers: languages, code, emoji, whitespace, numbers and control-like strings."""

import random

PARTS = {
    "english": ["The quick fox isn't here, it's gone.", "WE'LL see you'd better go!", "state-of-the-art", "Mr. O'Neill's co-operation"],
    "german": ["Größe", "Straßenbahnhaltestelle", "Übergang für Fußgänger"],
    "french": ["l'été à la plage", "où est-ce qu'il va ?", "cœur"],
    "spanish": ["¿Dónde está el niño?", "¡Qué sueño!"],
    "turkish": ["İstanbul'da ığdır", "çalışıyor"],
    "russian": ["Привет, как дела?", "Ёлка и подъезд"],
    "greek": ["Καλημέρα κόσμε", "ελληνικά"],
    "arabic": ["مرحبا بالعالم", "كيف حالك؟"],
    "hebrew": ["שלום עולם"],
    "hindi": ["नमस्ते दुनिया", "हिन्दी में लिखें"],
    "thai": ["สวัสดีชาวโลก", "ภาษาไทย"],
    "chinese": ["你好，世界！", "机器学习很有趣"],
    "japanese": ["こんにちは世界", "カタカナとひらがな"],
    "korean": ["안녕하세요 세계", "한국어"],
    "code": ["for (int i = 0; i < n; ++i) {\n\treturn a[i];\n}", "def f(x):\n    return x ** 2  # square", "SELECT * FROM t WHERE a != 'b';", "<div class=\"x\">&nbsp;</div>", "fn main() { println!(\"{}\", 1_000); }", "\\frac{a}{b}"],
    "emoji": ["😀", "👩‍👩‍👧‍👦", "🇩🇪🇫🇷", "👍🏽", "❤️", "☃"],
    "space": [" ", "  ", "\n", "\n\n", "\t", "\r\n", "\u00a0", "\u3000", "\u200b", "   \n  ", "\n\n\n\n"],
    "number": ["1234567890", "3.14159", "1,000,000", "0x1F", "2026-11-29", "١٢٣", "½", "1e-5"],
    "control": ["<|im_start|>", "<|im_end|>", "<|endoftext|>", "<bos>", "<eos>", "<start_of_turn>", "<end_of_turn>", "<unused7>", "<0x0A>", "<pad>", "[INST]", "</s>", "<|im_start", "im_end|>", "<mask>", "<table>", "<h1>", "<repo_name>", "▁", "▁▁"],
    "rare": ["e\u0301", "Å", "ﬁ", "\ufeff", "\u0000", "\u0007", "𝔘𝔫𝔦", "\U0010ffff", "ǅ", "ẞ", "…", "—", "“”", "™®", "����"],
}  # fmt: skip


def texts(count=1000):
    draw = random.Random(65)
    kinds = list(PARTS)
    # Every part once, then mixtures.
    single = [part for parts in PARTS.values() for part in parts]
    return single + [mixture(draw, kinds) for _ in range(count - len(single))]


def mixture(draw, kinds):
    parts = []
    for _ in range(draw.randint(2, 12)):
        parts.append(draw.choice(PARTS[draw.choice(kinds)]))
        parts.append(draw.choice(["", " ", " ", "\n", "  "]))
    return "".join(parts)
