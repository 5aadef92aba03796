"""Libraries for search over documents, unmodified: python embedding_libraries.py BASE_URL. Run by `cargo xtask clients`, which sets
MLX_SERVER. It starts a server of its own, with an embedding model and a reranker; BASE_URL is not used.

OpenAI's and Ollama's SDKs, LangChain and LlamaIndex embed the same texts, and LangChain and LlamaIndex rank the same documents through the
APIs of Cohere, Jina and text-embeddings-inference. All get the same numbers."""

import importlib.metadata
import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import langchain_cohere
import langchain_ollama
import langchain_openai
import ollama
import openai
from llama_index.core.schema import NodeWithScore, QueryBundle, TextNode
from llama_index.embeddings.ollama import OllamaEmbedding
from llama_index.embeddings.openai_like import OpenAILikeEmbedding
from llama_index.postprocessor.jinaai_rerank import JinaRerank
from llama_index.postprocessor.tei_rerank import TextEmbeddingInference

MODELS = Path(__file__).parent.parent / "golden" / "encoders"
EMBEDS, RANKS = MODELS / "bert-f32", MODELS / "bert-classify-f32"
TEXTS = ["The keeper counts the waves.", "Bread is baked at six.", "A cat sleeps."]
QUERY = "Who counts the waves?"


class Server:
    """A server with both models. The reranker comes first, since requests in the form of text-embeddings-inference name no model."""

    def __enter__(self):
        command = [os.environ["MLX_SERVER"], "--port", "0", "-m", f"ranks={RANKS}", "-m", f"embeds={EMBEDS}"]
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        for line in self.process.stderr:
            entry = json.loads(line)
            if entry.get("message") == "listening":
                break
        # Reads the log to its end, so that a full pipe does not block the server.
        threading.Thread(target=lambda: [None for _ in self.process.stderr], daemon=True).start()
        return "http://" + entry["address"]

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()


def same(one, other):
    """Returns true if two vectors are equal but for the rounding of their text."""
    return len(one) == len(other) and max(abs(a - b) for a, b in zip(one, other)) < 1e-5


def expect_same(name, vectors, expected):
    assert len(vectors) == len(expected) and all(map(same, vectors, expected)), name


def test_openai(base):
    client = openai.OpenAI(base_url=base + "/v1", api_key="unused", max_retries=0)
    answer = client.embeddings.create(model="embeds", input=TEXTS)
    vectors = [item.embedding for item in answer.data]
    assert answer.usage.prompt_tokens > 0 and all(abs(sum(it * it for it in vector) - 1) < 1e-4 for vector in vectors)
    short = client.embeddings.create(model="embeds", input=TEXTS[0], dimensions=8, encoding_format="float").data[0].embedding
    length = sum(it * it for it in vectors[0][:8]) ** 0.5
    assert same(short, [it / length for it in vectors[0][:8]])
    for call, endpoint in [
        (lambda: client.chat.completions.create(model="embeds", messages=[{"role": "user", "content": "Hi"}]), "/v1/embeddings"),
        (lambda: client.embeddings.create(model="ranks", input="a"), "/v1/rerank"),
    ]:
        try:
            call()
        except openai.BadRequestError as error:
            assert error.body["param"] == "model" and endpoint in error.body["message"], error.body
        else:
            raise AssertionError("a 400 was expected")
    return vectors


def test_ollama(base, expected):
    client = ollama.Client(host=base)
    answer = client.embed("embeds", TEXTS)
    expect_same("ollama", answer.embeddings, expected)
    assert answer.total_duration >= answer.load_duration and answer.prompt_eval_count > 0
    assert same(client.embeddings("embeds", TEXTS[0]).embedding, expected[0])
    assert "embedding" in client.show("embeds").capabilities


def test_langchain(base, expected):
    openai_like = langchain_openai.OpenAIEmbeddings(
        model="embeds", base_url=base + "/v1", api_key="unused", check_embedding_ctx_length=False
    )
    ollama_like = langchain_ollama.OllamaEmbeddings(model="embeds", base_url=base)
    for name, embeddings in [("langchain-openai", openai_like), ("langchain-ollama", ollama_like)]:
        expect_same(name, embeddings.embed_documents(TEXTS), expected)
        expect_same(name, [embeddings.embed_query(TEXTS[0])], expected[:1])


def test_llama_index(base, expected):
    openai_like = OpenAILikeEmbedding(model_name="embeds", api_base=base + "/v1", api_key="unused")
    ollama_like = OllamaEmbedding(model_name="embeds", base_url=base)
    for name, embeddings in [("openai-like", openai_like), ("ollama", ollama_like)]:
        expect_same(name, embeddings.get_text_embedding_batch(TEXTS), expected)
        expect_same(name, [embeddings.get_query_embedding(TEXTS[0])], expected[:1])


def test_rerankers(base):
    cohere = langchain_cohere.CohereRerank(base_url=base, cohere_api_key="unused", model="ranks", top_n=3)
    ranked = [(it["index"], it["relevance_score"]) for it in cohere.rerank(TEXTS, QUERY)]
    assert sorted(index for index, _ in ranked) == [0, 1, 2]
    scores = [score for _, score in ranked]
    assert scores == sorted(scores, reverse=True)
    nodes = [NodeWithScore(node=TextNode(text=text), score=0) for text in TEXTS]
    jina = JinaRerank(base_url=base + "/v1", api_key="unused", model="ranks", top_n=3)
    tei = TextEmbeddingInference(model_name="ranks", base_url=base, top_n=3)
    for name, reranker in [("jina", jina), ("tei", tei)]:
        found = reranker.postprocess_nodes(nodes, QueryBundle(QUERY))
        assert [node.text for node in found] == [TEXTS[index] for index, _ in ranked], name
        assert same([node.score for node in found], scores), name


if __name__ == "__main__":
    with Server() as base:
        vectors = test_openai(base)
        print("openai: ok", flush=True)
        test_ollama(base, vectors)
        print("ollama: ok", flush=True)
        test_langchain(base, vectors)
        print("langchain: ok", flush=True)
        test_llama_index(base, vectors)
        print("llama-index: ok", flush=True)
        test_rerankers(base)
        print("rerankers: ok", flush=True)
    names = ["openai", "ollama", "langchain-openai", "langchain-ollama", "langchain-cohere", "llama-index-core"]
    print("5 tests passed with", ", ".join(f"{name} {importlib.metadata.version(name)}" for name in names))
