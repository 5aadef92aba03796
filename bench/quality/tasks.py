"""Plain questions, JSON of schemas, and drafts, each on a server with the defaults."""

import json
import re
import time

from plain_questions import QUESTIONS, call

SEED = 1
# Sentences, the schema of their facts, and the facts.
PERSON = {"name": {"type": "string", "maxLength": 20}, "age": {"type": "integer", "minimum": 0, "maximum": 120}}
TRIP = {"from": {"type": "string", "maxLength": 20}, "to": {"type": "string", "maxLength": 20}, "means": {"enum": ["train", "car", "ship", "plane"]}}
ORDER = {"item": {"type": "string", "maxLength": 20}, "count": {"type": "integer", "minimum": 1, "maximum": 99}, "paid": {"type": "boolean"}}
WEATHER = {"city": {"type": "string", "maxLength": 20}, "degrees": {"type": "integer", "minimum": -60, "maximum": 60}, "sky": {"enum": ["clear", "cloudy", "rain", "snow"]}}
REQUESTS = [
    ("Anna is 34 years old.", PERSON, {"name": "Anna", "age": 34}),
    ("My brother Tom turned 12 yesterday.", PERSON, {"name": "Tom", "age": 12}),
    ("At the age of 81, Ruth still swims every morning.", PERSON, {"name": "Ruth", "age": 81}),
    ("The doctor, Omar, is 45.", PERSON, {"name": "Omar", "age": 45}),
    ("Lena, who is 7, has lost a tooth.", PERSON, {"name": "Lena", "age": 7}),
    ("We took the train from Rome to Milan.", TRIP, {"from": "Rome", "to": "Milan", "means": "train"}),
    ("The ship left Oslo for Kiel at noon.", TRIP, {"from": "Oslo", "to": "Kiel", "means": "ship"}),
    ("She drove her car from Boston to Albany.", TRIP, {"from": "Boston", "to": "Albany", "means": "car"}),
    ("A plane brought them from Cairo to Athens.", TRIP, {"from": "Cairo", "to": "Athens", "means": "plane"}),
    ("The night train goes from Vienna to Berlin.", TRIP, {"from": "Vienna", "to": "Berlin", "means": "train"}),
    ("The customer ordered 3 lamps and has paid.", ORDER, {"item": "lamps", "count": 3, "paid": True}),
    ("Please send 12 pencils; the bill is still open, not paid.", ORDER, {"item": "pencils", "count": 12, "paid": False}),
    ("One table was bought and paid in cash.", ORDER, {"item": "table", "count": 1, "paid": True}),
    ("They want 40 chairs and will pay later.", ORDER, {"item": "chairs", "count": 40, "paid": False}),
    ("He paid for 2 tickets.", ORDER, {"item": "tickets", "count": 2, "paid": True}),
    ("It is 25 degrees in Madrid, and the sky is clear.", WEATHER, {"city": "Madrid", "degrees": 25, "sky": "clear"}),
    ("Snow fell in Helsinki at -8 degrees.", WEATHER, {"city": "Helsinki", "degrees": -8, "sky": "snow"}),
    ("London has rain and 14 degrees.", WEATHER, {"city": "London", "degrees": 14, "sky": "rain"}),
    ("In Lima it is cloudy with 18 degrees.", WEATHER, {"city": "Lima", "degrees": 18, "sky": "cloudy"}),
    ("A clear morning in Denver, 2 degrees.", WEATHER, {"city": "Denver", "degrees": 2, "sky": "clear"}),
]
ARTICLE = (
    "The old bridge over the river Lund was closed on Monday. Engineers found cracks in two of its stone pillars. The town council "
    "expects that the repair takes until April and costs 2 million crowns. Until then a ferry carries passengers every 20 minutes, from "
    "6 in the morning to 10 at night. Cars have to use the motorway bridge, which is 14 kilometres to the north."
)
CODE = (
    "def mean(values):\n    total = 0\n    for value in values:\n        total += value\n    return total / len(values)\n\n\n"
    "def variance(values):\n    center = mean(values)\n    total = 0\n    for value in values:\n        total += (value - center) ** 2\n    return total / len(values)\n"
)
DRAFTED = {
    "repeat a text": f"Repeat this text word for word:\n\n{ARTICLE}",
    "correct a text": f"Correct the spelling and write the whole text again:\n\n{ARTICLE.replace('bridge', 'brigde').replace('repair', 'repare')}",
    "summarize": f"Summarize this text:\n\n{ARTICLE}",
    "rename in code": f"Rename `total` to `sum` in this code, and show all of it:\n\n```python\n{CODE}```",
    "add comments to code": f"Add a docstring to each function, and show the whole code:\n\n```python\n{CODE}```",
    "tell a story": "Tell a story about a fox and a well.",
}


def chat(port, text, **options):
    body = {"messages": [{"role": "user", "content": text}], "seed": SEED, **options}
    return call(port, "/v1/chat/completions", body)


def text_of(answer):
    return answer["choices"][0]["message"]["content"]


def defaults(port):
    """Returns the sampling of the terminal and the page."""
    sampling = call(port, "/v1/models")["data"][0]["chat_sampling"]
    return {name: sampling[name]["value"] for name in ("temperature", "min_p", "top_p", "top_k")}


def questions(port):
    """Answers to the plain questions: sampled as in the terminal, and greedily."""
    rows = []
    for question, expected in QUESTIONS:
        row = {"question": question}
        for name, sampling in (("sampled", defaults(port)), ("greedy", {"temperature": 0})):
            answer = text_of(chat(port, question, max_tokens=40, **sampling))
            row |= {name: answer, f"{name} is right": bool(re.search(expected, answer.lower()))}
        rows.append(row)
    return rows


def follows(value, properties):
    """Returns true if the value is an object with exactly these properties in their types and limits."""
    return isinstance(value, dict) and value.keys() == properties.keys() and all(allowed(value[name], rule) for name, rule in properties.items())


def allowed(value, rule):
    if "enum" in rule:
        return value in rule["enum"]
    if rule["type"] == "boolean":
        return isinstance(value, bool)
    if rule["type"] == "integer":
        return isinstance(value, int) and not isinstance(value, bool) and rule["minimum"] <= value <= rule["maximum"]
    return isinstance(value, str) and len(value) <= rule["maxLength"]


def schemas(port):
    """Facts of sentences as JSON: valid answers, complete answers and right values, with the schema enforced and only described."""
    rows = []
    for sentence, properties, facts in REQUESTS:
        schema = {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}
        prompt = f"{sentence}\n\nWrite the facts of this sentence as JSON with the fields {', '.join(properties)}."
        row = {"sentence": sentence, "facts": facts}
        for name, format in (("enforced", {"response_format": {"type": "json_schema", "json_schema": {"name": "facts", "schema": schema}}}), ("asked", {})):
            value = parsed(text_of(chat(port, prompt, max_tokens=120, temperature=0, **format)))
            kept = follows(value, properties)
            right = sum(same(value.get(field), fact) for field, fact in facts.items()) if kept else 0
            row[name] = {"value": value, "kept": kept, "right": right}
        rows.append(row)
    return rows


def parsed(text):
    """Returns the value of a text, also of one between backticks or other words."""
    try:
        return json.loads(text[text.find("{") : text.rfind("}") + 1])
    except ValueError:
        return None


def same(value, fact):
    return value.lower() == fact.lower() if isinstance(value, str) and isinstance(fact, str) else value == fact


def drafts(port):
    """Accepted drafts and time with prompt lookup, beside the same answer without drafts."""
    rows = []
    for name, prompt in DRAFTED.items():
        row = {"task": name}
        for source in ("off", "lookup"):
            begin = time.perf_counter()
            answer = chat(port, prompt, max_tokens=160, temperature=0, speculate=source)
            seconds = time.perf_counter() - begin
            drafted = answer.get("timings") or {}
            row[source] = {
                "text": text_of(answer),
                "tokens": answer["usage"]["completion_tokens"],
                "seconds": seconds,
                "drafted": drafted.get("draft_n", 0),
                "accepted": drafted.get("draft_n_accepted", 0),
            }
        rows.append(row)
    return rows
