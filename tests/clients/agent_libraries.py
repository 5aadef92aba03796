"""Libraries for agents, unmodified, against the server on a scripted model: python agent_libraries.py BASE_URL. Run by `cargo xtask
clients`, which sets MLX_SERVER. It starts a server of its own; BASE_URL is not used.

OpenAI's Agents SDK, Pydantic AI, LangChain and LiteLLM, each by every protocol that it has: an answer, a stream, a loop with a tool
whose result goes back to the model, and structured output."""

import asyncio
import importlib.metadata
import json
import os
from typing import Literal

# Before the import: it looks for a list of prices on the network otherwise.
os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"

import agents
import anthropic
import langchain_anthropic
import langchain_openai
import litellm
import openai
import pydantic
import pydantic_ai
from agents.models.openai_chatcompletions import OpenAIChatCompletionsModel
from agents.models.openai_responses import OpenAIResponsesModel
from langchain_core.messages import HumanMessage, ToolMessage
from langchain_core.tools import tool as langchain_tool
from pydantic_ai.models.anthropic import AnthropicModel
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel as PydanticResponsesModel
from pydantic_ai.providers.anthropic import AnthropicProvider
from pydantic_ai.providers.openai import OpenAIProvider

from scripted_server import Server


def call(name, arguments):
    return "<tool_call>\n" + json.dumps({"name": name, "arguments": arguments}) + "\n</tool_call>"


class Tide(pydantic.BaseModel):
    """A tide."""

    is_high: bool
    kind: Literal["spring", "neap"]


MODEL = "scripted"
HI, QUESTION, TASK = "Hi", "When is high tide?", "Describe the tide."
SPRING = Tide(is_high=True, kind="spring")
# Tools through which libraries ask for structured output.
OUTPUTS = ["Tide", "final_result", "json_tool_call"]
SCRIPT = [
    {"when": "'When is' in asked and results == 0", "say": ["<think>", "A table ", "helps.", "</think>", "I look it up.", "\n" + call("tide_at", {"place": "Brest"})]},
    {"when": "'When is' in asked", "say": ["At ", "six."]},
    *({"when": f"asked == '{TASK}' and tools and tools[-1].function.name == '{name}'", "say": [call(name, SPRING.model_dump())]} for name in OUTPUTS),
    {"when": f"asked == '{TASK}'", "say": ['{"is_high":', " true,", ' "kind":', ' "spring"}']},
    {"when": "true", "say": ["Hello ", "from ", "the ", "model."]},
]
PARAMETERS = {"type": "object", "properties": {"place": {"type": "string"}}, "required": ["place"]}
TOOL = {"type": "function", "function": {"name": "tide_at", "description": "High tide.", "parameters": PARAMETERS}}


class Places(list):
    """The places that a model asked for; its tool is `tide_at`."""

    def tide_at(self, place: str) -> str:
        """High tide.

        Args:
            place: Where.
        """
        self.append(place)
        return "6:00"


class Agents:
    """OpenAI's Agents SDK. A stream goes through a tool, too."""

    def __init__(self, server, kind):
        client = openai.AsyncOpenAI(base_url=server.base + "/v1", api_key="unused", max_retries=0)
        self.model = kind(model=MODEL, openai_client=client)

    def agent(self, **options):
        return agents.Agent(name="Keeper", instructions="Be brief.", model=self.model, **options)

    async def text(self, question):
        return (await agents.Runner.run(self.agent(), question)).final_output

    async def stream(self, question):
        result = agents.Runner.run_streamed(self.agent(), question)
        return [event.data.delta async for event in result.stream_events() if event.type == "raw_response_event" and event.data.type == "response.output_text.delta"]

    async def tool(self, question, places):
        agent = self.agent(tools=[agents.function_tool(places.tide_at)])
        whole = await agents.Runner.run(agent, question)
        streamed = agents.Runner.run_streamed(agent, question)
        async for _ in streamed.stream_events():
            pass
        assert whole.final_output == streamed.final_output, streamed.final_output
        return whole.final_output

    async def structured(self, question):
        yield (await agents.Runner.run(self.agent(output_type=Tide), question)).final_output


class PydanticAi:
    """Pydantic AI. Output types are tools, or the protocol's own form."""

    def __init__(self, kind, provider, outputs):
        self.model, self.outputs = kind(MODEL, provider=provider), outputs

    async def text(self, question):
        return (await pydantic_ai.Agent(self.model, instructions="Be brief.").run(question)).output

    async def stream(self, question):
        async with pydantic_ai.Agent(self.model).run_stream(question) as result:
            return [piece async for piece in result.stream_text(delta=True, debounce_by=None)]

    async def tool(self, question, places):
        result = await pydantic_ai.Agent(self.model, tools=[places.tide_at]).run(question)
        places_of_run = list(places)
        async with pydantic_ai.Agent(self.model, tools=[places.tide_at]).iter(question) as run:
            async for node in run:
                if pydantic_ai.Agent.is_model_request_node(node):
                    async with node.stream(run.ctx) as events:
                        async for _ in events:
                            pass
        assert (run.result.output, places) == (result.output, places_of_run * 2), run.result
        return result.output

    async def structured(self, question):
        for output in self.outputs:
            yield (await pydantic_ai.Agent(self.model, output_type=output).run(question)).output


class LangChain:
    """LangChain's chat models."""

    def __init__(self, model, methods):
        self.model, self.methods = model, methods

    async def text(self, question):
        return (await self.model.ainvoke(question)).text

    async def stream(self, question):
        return [chunk.text async for chunk in self.model.astream(question) if chunk.text]

    async def tool(self, question, places):
        model = self.model.bind_tools([langchain_tool(places.tide_at)])
        answers = []
        for ask in (model.ainvoke, self.streamed(model)):
            messages = [HumanMessage(question)]
            while (answer := await ask(messages)).tool_calls:
                messages.append(answer)
                messages += [ToolMessage(places.tide_at(**call["args"]), tool_call_id=call["id"]) for call in answer.tool_calls]
            answers.append(answer.text)
        assert answers[0] == answers[1], answers
        return answers[0]

    @staticmethod
    def streamed(model):
        async def ask(messages):
            whole = None
            async for chunk in model.astream(messages):
                whole = chunk if whole is None else whole + chunk
            return whole

        return ask

    async def structured(self, question):
        for method in self.methods:
            yield await self.model.with_structured_output(Tide, method=method).ainvoke(question)


class LiteLlm:
    """LiteLLM by one of its providers."""

    def __init__(self, provider, base):
        self.options = {"model": f"{provider}/{MODEL}", "api_base": base, "api_key": "unused", "max_tokens": 400, "num_retries": 0}

    def ask(self, messages, **options):
        messages = [{"role": "user", "content": messages}] if isinstance(messages, str) else messages
        return litellm.acompletion(messages=messages, **self.options, **options)

    async def text(self, question):
        return (await self.ask(question)).choices[0].message.content

    async def chunks(self, messages, **options):
        return [chunk async for chunk in await self.ask(messages, stream=True, **options)]

    async def stream(self, question):
        return [chunk.choices[0].delta.content for chunk in await self.chunks(question) if chunk.choices[0].delta.content]

    async def tool(self, question, places):
        answers = []
        for is_streamed in (False, True):
            messages = [{"role": "user", "content": question}]
            while True:
                if is_streamed:
                    answer = litellm.stream_chunk_builder(await self.chunks(messages, tools=[TOOL]), messages=messages)
                else:
                    answer = await self.ask(messages, tools=[TOOL])
                message = answer.choices[0].message
                if not message.tool_calls:
                    break
                messages.append(message.model_dump())
                for asked in message.tool_calls:
                    result = places.tide_at(**json.loads(asked.function.arguments))
                    messages.append({"role": "tool", "tool_call_id": asked.id, "content": result})
            answers.append(message.content)
        assert answers[0] == answers[1], answers
        return answers[0]

    async def structured(self, question):
        answer = await self.ask(question, response_format=Tide)
        yield Tide.model_validate_json(answer.choices[0].message.content)


def ways(server):
    """Every library by every protocol that it has."""
    base = server.base + "/v1"
    client = openai.AsyncOpenAI(base_url=base, api_key="unused", max_retries=0)
    claude = anthropic.AsyncAnthropic(base_url=server.base, api_key="unused", max_retries=0)
    to_openai, to_anthropic = OpenAIProvider(openai_client=client), AnthropicProvider(anthropic_client=claude)
    options = {"model": MODEL, "api_key": "unused", "max_retries": 0}
    # Pydantic AI does not use the own form of Messages with models that it does not know.
    outputs = [Tide, pydantic_ai.NativeOutput(Tide)]
    chat_openai = lambda is_responses: langchain_openai.ChatOpenAI(base_url=base, use_responses_api=is_responses, **options)
    chat_anthropic = langchain_anthropic.ChatAnthropic(base_url=server.base, max_tokens=400, **options)
    return {
        ("openai-agents", "responses"): Agents(server, OpenAIResponsesModel),
        ("openai-agents", "chat"): Agents(server, OpenAIChatCompletionsModel),
        ("pydantic-ai-slim", "responses"): PydanticAi(PydanticResponsesModel, to_openai, outputs),
        ("pydantic-ai-slim", "chat"): PydanticAi(OpenAIChatModel, to_openai, outputs),
        ("pydantic-ai-slim", "messages"): PydanticAi(AnthropicModel, to_anthropic, [Tide]),
        ("langchain-openai", "responses"): LangChain(chat_openai(True), ["json_schema", "function_calling"]),
        ("langchain-openai", "chat"): LangChain(chat_openai(False), ["json_schema", "function_calling", "json_mode"]),
        ("langchain-anthropic", "messages"): LangChain(chat_anthropic, ["json_schema", "function_calling"]),
        ("litellm", "openai"): LiteLlm("openai", base),
        ("litellm", "anthropic"): LiteLlm("anthropic", server.base),
    }


async def check(way):
    assert (text := await way.text(HI)) == "Hello from the model.", text
    pieces = await way.stream(HI)
    assert "".join(pieces) == "Hello from the model." and len(pieces) > 1, pieces
    places = Places()
    assert (answer := await way.tool(QUESTION, places)) == "At six.", answer
    assert places == ["Brest", "Brest"], places
    outputs = [output async for output in way.structured(TASK)]
    assert outputs and all(output == SPRING for output in outputs), outputs


async def main():
    agents.set_tracing_disabled(True)
    litellm.suppress_debug_info = True
    with Server(SCRIPT) as server:
        for (library, protocol), way in ways(server).items():
            await check(way)
            print(f"{library} {importlib.metadata.version(library)}, {protocol}: ok", flush=True)


if __name__ == "__main__":
    asyncio.run(main())
