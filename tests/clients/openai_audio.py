"""Audio with OpenAI's Python SDK, unmodified: recordings in chats and Responses, transcriptions and translations.

    MLX_SERVER=target/debug/mlx-server python openai_audio.py

Run by `cargo xtask clients`, whose BASE_URL is not used. The script starts its own server with a model that hears and one that transcribes."""

import base64
import importlib.metadata
import io
import json
import os
import subprocess
import wave
from pathlib import Path

import openai

GOLDEN = Path(__file__).parents[1] / "golden"
CLIPS = GOLDEN / "input_audio"


class Server:
    def __init__(self):
        models = ["-m", f"hears={CLIPS / 'gemma4-f32'}", "-m", f"speech={GOLDEN / 'speech/whisper-f32'}", "-m", f"reads={GOLDEN / 'models/llama-f32'}"]
        command = [os.environ["MLX_SERVER"], "--port", "0", "--all-models=false", *models]
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        for line in self.process.stderr:
            if json.loads(line).get("message") == "listening":
                self.base = "http://" + json.loads(line)["address"]
                break
        # Nobody reads the pipe from here on; the server drops the lines that do not fit.

    def __enter__(self):
        return openai.OpenAI(base_url=self.base + "/v1", api_key="unused", max_retries=0)

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()


def part(bytes, format="wav"):
    return {"type": "input_audio", "input_audio": {"data": base64.b64encode(bytes).decode(), "format": format}}


def content(said):
    """The parts of a fixture's message, as the SDK sends them."""
    lengths = json.loads((CLIPS / "gemma4-f32/cases.json").read_text())["lengths"]
    picture = "data:image/png;base64," + base64.b64encode((CLIPS / "picture.png").read_bytes()).decode()
    kinds = {
        "audio": lambda it: part((CLIPS / f"{lengths[it['audio']]}.wav").read_bytes()),
        "image": lambda it: {"type": "image_url", "image_url": {"url": picture}},
        "text": lambda it: it,
    }
    return said if isinstance(said, str) else [kinds[it["type"]](it) for it in said]


def chats(client):
    """The tokens of transformers, at once and as a stream."""
    for case in json.loads((CLIPS / "gemma4-f32/cases.json").read_text())["cases"]:
        messages = [dict(role=said["role"], content=content(said["content"])) for said in case["messages"]]
        options = dict(model="hears", messages=messages, temperature=0, max_tokens=len(case["tokens"]))
        extra = {"ignore_eos": True, "return_token_ids": True}
        answer = client.chat.completions.create(**options, extra_body=extra)
        assert answer.choices[0].token_ids == case["tokens"], answer
        usage = answer.usage
        assert usage.prompt_tokens == len(case["prompt_ids"]), usage
        heard = any(it["type"] == "audio" for said in case["messages"] if isinstance(said["content"], list) for it in said["content"])
        assert bool(usage.prompt_tokens_details.audio_tokens) == heard, usage
        stream = client.chat.completions.create(**options, stream=True, extra_body={"ignore_eos": True})
        text = "".join(chunk.choices[0].delta.content or "" for chunk in stream if chunk.choices)
        assert text == answer.choices[0].message.content


def responses(client):
    clip = (CLIPS / "16000.wav").read_bytes()
    asked = dict(model="hears", temperature=0)
    chat = client.chat.completions.create(
        **asked, max_tokens=16, messages=[{"role": "user", "content": [part(clip), {"type": "text", "text": "What is this?"}]}])
    parts = [part(clip), {"type": "input_text", "text": "What is this?"}]
    first = client.responses.create(**asked, max_output_tokens=16, input=[{"role": "user", "content": parts}])
    assert first.output_text == chat.choices[0].message.content, first
    more = client.responses.create(**asked, max_output_tokens=4, input="And now?", previous_response_id=first.id)
    assert more.usage.input_tokens > first.usage.input_tokens, more.usage


def errors(client):
    def refused(model, bytes, format="wav"):
        messages = [{"role": "user", "content": [part(bytes, format), {"type": "text", "text": "?"}]}]
        try:
            client.chat.completions.create(model=model, messages=messages, max_tokens=4)
        except openai.BadRequestError as error:
            return error.param, error.message
        raise AssertionError("it was accepted")

    clip = (CLIPS / "16000.wav").read_bytes()
    param, message = refused("reads", clip)
    assert param == "input_audio" and "no audio tower" in message, message
    param, message = refused("hears", clip[:9000])
    assert param == "input_audio" and "cut" in message, message
    param, message = refused("hears", clip, "midi")
    assert param == "messages[0].content[0].input_audio.format", param
    param, message = refused("hears", silence(31))
    assert param == "input_audio" and "30 seconds" in message, message


def silence(seconds):
    file = io.BytesIO()
    with wave.open(file, "wb") as written:
        written.setnchannels(1), written.setsampwidth(2), written.setframerate(16000)
        written.writeframes(bytes(2 * 16000 * seconds))
    return file.getvalue()


def transcriptions(client):
    clip = ("clip.wav", (CLIPS / "36960.wav").read_bytes())
    # The random model falls back to random tokens, so they need a seed.
    fixed = dict(model="speech", file=clip, temperature=0.1, extra_body={"seed": 7})
    plain = client.audio.transcriptions.create(**fixed, language="de")
    verbose = client.audio.transcriptions.create(**fixed, language="de", response_format="verbose_json", timestamp_granularities=["segment"])
    assert verbose.text == plain.text and verbose.language == "german" and abs(verbose.duration - 2.31) < 0.01, verbose
    assert "".join(segment.text for segment in verbose.segments).strip() == plain.text.strip()
    words = client.audio.transcriptions.create(**fixed, language="de", response_format="verbose_json", timestamp_granularities=["word"]).words
    assert all(0 <= word.start <= word.end <= 2.4 for word in words), words
    for format, begin in (("text", plain.text), ("srt", "1\n00:00:"), ("vtt", "WEBVTT\n\n")):
        text = client.audio.transcriptions.create(**fixed, language="de", response_format=format)
        assert text.startswith(begin), (format, text)
    events = list(client.audio.transcriptions.create(**fixed, language="de", stream=True))
    assert events[-1].type == "transcript.text.done" and events[-1].text == plain.text, events[-1]
    assert "".join(event.delta for event in events[:-1]) == plain.text
    translated = client.audio.translations.create(**fixed, response_format="verbose_json")
    assert translated.language == "english", translated
    assert client.audio.translations.create(**fixed).text == translated.text
    try:
        client.audio.transcriptions.create(**{**fixed, "file": ("clip.wav", b"no audio")})
    except openai.BadRequestError as error:
        assert error.param == "file", error
    else:
        raise AssertionError("it was accepted")


with Server() as client:
    for check in (chats, responses, errors, transcriptions):
        check(client)
        print(f"OpenAI's SDK {importlib.metadata.version('openai')}: audio, {check.__name__}: ok", flush=True)
