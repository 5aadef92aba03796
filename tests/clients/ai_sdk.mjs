// Vercel's AI SDK, unmodified, against the server on a scripted model: node ai_sdk.mjs BASE_URL. Run by ai_sdk.py, which has the script.
import assert from "node:assert/strict";
import { generateText, isStepCount, Output, streamText, tool } from "ai";
import { createAnthropic } from "@ai-sdk/anthropic";
import { createOpenAI } from "@ai-sdk/openai";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { z } from "zod";

const [base] = process.argv.slice(2);
const settings = { baseURL: base + "/v1", apiKey: "unused" };
const compatible = { ...settings, name: "local", includeUsage: true, supportsStructuredOutputs: true };
const MODELS = {
  openai: createOpenAI(settings)("scripted"),
  "openai-compatible": createOpenAICompatible(compatible)("scripted"),
  anthropic: createAnthropic(settings)("scripted"),
};

const LIMITS = { maxOutputTokens: 400, maxRetries: 0 };

const Tide = z.object({ is_high: z.boolean(), kind: z.enum(["spring", "neap"]) });
const SPRING = { is_high: true, kind: "spring" };

// One tool, and the places that it was asked for.
function tides() {
  const places = [];
  const inputSchema = z.object({ place: z.string() });
  const tideAt = tool({
    description: "High tide.",
    inputSchema,
    execute: async ({ place }) => { places.push(place); return "6:00"; },
  });
  return { tools: { tide_at: tideAt }, places };
}

async function all(iterable) {
  const parts = [];
  for await (const part of iterable) parts.push(part);
  return parts;
}

const TESTS = {
  async "text"(model) {
    const answer = await generateText({ model, prompt: "Hi", instructions: "Be brief.", ...LIMITS });
    assert.equal(answer.text, "Hello from the model.");
    assert.equal(answer.finishReason, "stop");
    assert.equal(answer.usage.outputTokens, 5);
    assert.ok(answer.usage.inputTokens > 0);
    assert.deepEqual(answer.warnings, []);
    const cut = await generateText({ model, prompt: "Hi", ...LIMITS, maxOutputTokens: 2 });
    assert.deepEqual([cut.text, cut.finishReason], ["Hello from ", "length"]);
  },

  async "a stream"(model) {
    const stream = streamText({ model, prompt: "Hi", ...LIMITS });
    const pieces = await all(stream.textStream);
    assert.equal(pieces.join(""), "Hello from the model.");
    assert.ok(pieces.length > 1, "the text comes in pieces");
    assert.equal(await stream.finishReason, "stop");
    assert.equal((await stream.usage).outputTokens, 5);
  },

  async "a loop with a tool"(model, shows) {
    const { tools, places } = tides();
    const asked = { model, tools, prompt: "When is high tide?", stopWhen: isStepCount(4), ...LIMITS };
    const answer = await generateText(asked);
    assert.deepEqual(places, ["Brest"]);
    check(answer.steps, shows);
    assert.equal(answer.text, "At six.");
  },

  async "a streamed loop with a tool"(model, shows) {
    const { tools, places } = tides();
    const stream = streamText({ model, tools, prompt: "When is high tide?", stopWhen: isStepCount(4), ...LIMITS });
    const kinds = new Set((await all(stream.fullStream)).map((part) => part.type));
    const expected = ["text-delta", "tool-input-delta", "tool-call", "tool-result"];
    for (const kind of shows.thoughts ? ["reasoning-delta", ...expected] : expected) {
      assert.ok(kinds.has(kind), `${kind} is not among ${[...kinds]}`);
    }
    assert.deepEqual(places, ["Brest"]);
    check(await stream.steps, shows);
    assert.equal(await stream.text, "At six.");
  },

  async "a forced call"(model) {
    const { tools } = tides();
    const toolChoice = { type: "tool", toolName: "tide_at" };
    const answer = await generateText({ model, tools, toolChoice, prompt: "Call tide_at.", ...LIMITS });
    assert.deepEqual(answer.toolCalls.map((call) => [call.toolName, call.input]), [["tide_at", { place: "Dover" }]]);
  },

  async "an object"(model) {
    const output = Output.object({ schema: Tide });
    const answer = await generateText({ model, output, prompt: "Describe the tide.", ...LIMITS });
    assert.deepEqual(answer.output, SPRING);
    const stream = streamText({ model, output, prompt: "Describe the tide.", ...LIMITS });
    const partial = await all(stream.partialOutputStream);
    assert.deepEqual(partial.at(-1), SPRING);
    assert.deepEqual(await stream.output, SPRING);
  },

  async "an object beside a tool"(model) {
    const { tools, places } = tides();
    const output = Output.object({ schema: Tide });
    const prompt = "Look up and describe the tide.";
    const answer = await generateText({ model, tools, output, prompt, stopWhen: isStepCount(4), ...LIMITS });
    assert.deepEqual(places, ["Brest"]);
    assert.deepEqual(answer.output, SPRING);
  },
};

// The first step thinks, says something and calls; the second reads the result, and most of its prompt is known.
function check(steps, shows) {
  assert.equal(steps.length, 2);
  const [first, second] = steps;
  assert.equal(first.reasoningText, shows.thoughts ? "A table helps." : undefined);
  assert.equal(first.text, "I look it up.");
  assert.equal(first.finishReason, "tool-calls");
  assert.deepEqual(first.toolCalls.map((call) => [call.toolName, call.input]), [["tide_at", { place: "Brest" }]]);
  assert.equal(second.finishReason, "stop");
  // The last token of a prompt is the state of the script.
  const cached = second.usage.inputTokenDetails.cacheReadTokens;
  assert.ok(cached >= first.usage.inputTokens - 1, `${cached} of ${first.usage.inputTokens} tokens are known`);
}

for (const [provider, model] of Object.entries(MODELS)) {
  for (const [name, test] of Object.entries(TESTS)) {
    // The provider for OpenAI shows summaries of thoughts only; it sends the thoughts back all the same.
    await test(model, { thoughts: provider !== "openai" });
    console.log(`${provider}: ${name}: ok`);
  }
}
