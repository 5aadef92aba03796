"""A client as a user of replicas should write it: a stream that breaks is asked for again, and what was read of it is skipped."""

import http.client
import json
import time
from dataclasses import dataclass, field

MOST_TRIES = 5
# The tokens that end an answer never come.
ENDLESS = {"2": -100, "4": -100}


def chat(messages, length, **more):
    return {"messages": messages, "max_tokens": length, "logit_bias": ENDLESS, **more}


@dataclass
class Asked:
    """What a client saw of one request."""

    text: str = ""
    usage: dict = field(default_factory=dict)
    statuses: list = field(default_factory=list)
    # When streams broke, and how much text had come.
    broken: list = field(default_factory=list)
    # Whether an answer that was asked for again began as the one that broke.
    is_same: bool = True


def ask(port, body, session=None, progress=None, header="x-session-id"):
    """Asks until the answer is whole. `progress` gets the text so far of a stream."""
    asked = Asked()
    headers = {"content-type": "application/json"} | ({header: session} if session else {})
    for _ in range(MOST_TRIES):
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=300)
        try:
            connection.request("POST", "/v1/chat/completions", json.dumps(body), headers)
            response = connection.getresponse()
            asked.statuses.append(response.status)
            if response.status != 200:
                response.read()
            elif not body.get("stream"):
                answer = json.loads(response.read())
                asked.text, asked.usage = answer["choices"][0]["message"]["content"], answer["usage"]
                return asked
            elif read_stream(response, asked, progress):
                return asked
        except (OSError, http.client.HTTPException) as error:
            asked.statuses.append(type(error).__name__)
        finally:
            connection.close()
    return asked


def read_stream(response, asked, progress):
    """Whether the stream came to its end. Its text must go on where one before it broke."""
    text = ""
    try:
        for line in response:
            if line == b"data: [DONE]\n":
                asked.is_same &= text.startswith(asked.text)
                asked.text = text
                return True
            if line.startswith(b"data: "):
                event = json.loads(line[6:])
                if "error" in event:
                    break
                text += event["choices"][0]["delta"].get("content") or ""
                if progress:
                    progress(text)
    except (OSError, http.client.HTTPException):
        pass
    asked.broken.append((time.monotonic(), len(text)))
    shorter, longer = sorted([asked.text, text], key=len)
    asked.is_same &= longer.startswith(shorter)
    asked.text = longer
    return False
