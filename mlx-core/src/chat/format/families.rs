//! The families' syntax of calls, as data. A new family is a new row. Where several rows read what a template writes, one
//! that writes the same text is taken, or else the first.

use super::family::{Args, Envelope, Family, Ids, KindOfValue, Part, Section, Tagged};
use Part::{Id, Name, NameInId, Text};

const fn each(open: &'static str, close: &'static str) -> Section {
    Section { open, close, is_shared: false }
}

const fn shared(open: &'static str, close: &'static str) -> Section {
    Section { open, close, is_shared: true }
}

/// A row whose calls have nothing around them.
const fn row(name: &'static str, call: &'static [Part]) -> Family {
    Family {
        name,
        thoughts: "<think>",
        signs: &[],
        section: None,
        call,
        between: "",
        ids: Ids::AsGiven,
        silent: &[],
        only_first: false,
    }
}

const NAMED: Envelope = Envelope { name: "name", args: "arguments", id: None };
const OBJECT: &[Part] = &[Part::Envelope(NAMED)];

const fn tags(key: (&'static str, &'static str), value: (&'static str, &'static str)) -> Part {
    Part::Args(Args::Tagged(Tagged { key, kind: None, value, has_cdata: false }))
}

const LINES: Part = tags(("<parameter=", ">\n"), ("", "\n</parameter>\n"));
const FUNCTION_LINES: &[Part] = &[Text("<function="), Name, Text(">\n"), LINES, Text("</function>")];

const DSML: Part = Part::Args(Args::Tagged(Tagged {
    key: ("<｜DSML｜parameter name=\"", "\" string=\""),
    kind: Some((KindOfValue::IsText, "\">")),
    value: ("", "</｜DSML｜parameter>\n"),
    has_cdata: false,
}));
const DSML_CALL: &[Part] =
    &[Text("<｜DSML｜invoke name=\""), Name, Text("\">\n"), DSML, Text("</｜DSML｜invoke>\n")];

/// All families.
pub(in crate::chat) const FAMILIES: [Family; 36] = [
    // Qwen2.5, Qwen3, QwQ, Hermes, Granite 4, MiMo, Bielik, Reka, EXAONE 4
    Family { section: Some(each("<tool_call>\n", "\n</tool_call>")), between: "\n", ..row("hermes", OBJECT) },
    // Qwen3-Coder, Qwen3.5 and later, Nemotron 3, Step 3.5
    Family {
        section: Some(each("<tool_call>\n", "\n</tool_call>")),
        between: "\n",
        ..row("qwen3-coder", FUNCTION_LINES)
    },
    // Seed-OSS
    Family {
        thoughts: "<seed:think>",
        section: Some(each("<seed:tool_call>\n", "\n</seed:tool_call>")),
        between: "\n",
        ..row(
            "seed-oss",
            &[
                Text("<function="),
                Name,
                Text(">\n"),
                tags(("<parameter=", ">"), ("", "</parameter>\n")),
                Text("</function>"),
            ],
        )
    },
    // MiniCPM5
    row(
        "minicpm5",
        &[
            Text("<function name=\""),
            Name,
            Text("\">"),
            Part::Args(Args::Tagged(Tagged {
                key: ("<param name=\"", "\">"),
                kind: None,
                value: ("", "</param>"),
                has_cdata: true,
            })),
            Text("</function>"),
        ],
    ),
    // GLM 4.7, GLM 5, Spark 2.5
    Family {
        section: Some(each("<tool_call>", "</tool_call>")),
        ..row("glm-4.7", &[Name, tags(("<arg_key>", "</arg_key>"), ("<arg_value>", "</arg_value>"))])
    },
    // GLM 4.5 and 4.6, Ling 3, Laguna
    Family {
        section: Some(each("<tool_call>", "</tool_call>")),
        between: "\n",
        ..row(
            "glm-4.5",
            &[Name, Text("\n"), tags(("<arg_key>", "</arg_key>\n"), ("<arg_value>", "</arg_value>\n"))],
        )
    },
    // DeepSeek R1
    Family {
        section: Some(shared("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>")),
        between: "\n",
        ..row(
            "deepseek-r1",
            &[
                Text("<｜tool▁call▁begin｜>function<｜tool▁sep｜>"),
                Name,
                Text("\n```json\n"),
                Part::Args(Args::Json),
                Text("\n```<｜tool▁call▁end｜>"),
            ],
        )
    },
    // DeepSeek V3.1
    Family {
        section: Some(shared("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>")),
        ..row(
            "deepseek-v3.1",
            &[
                Text("<｜tool▁call▁begin｜>"),
                Name,
                Text("<｜tool▁sep｜>"),
                Part::Args(Args::Json),
                Text("<｜tool▁call▁end｜>"),
            ],
        )
    },
    // DeepSeek V3.2
    Family {
        section: Some(shared("<｜DSML｜function_calls>\n", "</｜DSML｜function_calls>")),
        ..row("deepseek-v3.2", DSML_CALL)
    },
    // DeepSeek V4
    Family {
        section: Some(shared("<｜DSML｜tool_calls>\n", "</｜DSML｜tool_calls>")),
        ..row("deepseek-v4", DSML_CALL)
    },
    // Kimi K2
    Family {
        section: Some(shared("<|tool_calls_section_begin|>", "<|tool_calls_section_end|>")),
        ids: Ids::NameAndIndex,
        ..row(
            "kimi-k2",
            &[
                Text("<|tool_call_begin|>"),
                NameInId,
                Text("<|tool_call_argument_begin|>"),
                Part::Args(Args::Json),
                Text("<|tool_call_end|>"),
            ],
        )
    },
    // Kimi K3
    Family {
        thoughts: "<|open|>think<|sep|>",
        section: Some(shared("<|open|>tools<|sep|>", "<|close|>tools<|sep|>")),
        silent: &[
            "<|open|>response<|sep|>",
            "<|close|>response<|sep|>",
            "<|close|>message<|sep|>",
            "<|end_of_msg|>",
        ],
        ..row(
            "kimi-k3",
            &[
                Text("<|open|>call tool=\""),
                Name,
                Text("\" index=\""),
                Id,
                Text("\"<|sep|>"),
                Part::Args(Args::Tagged(Tagged {
                    key: ("<|open|>argument key=\"", "\" type=\""),
                    kind: Some((KindOfValue::TypeName, "\"<|sep|>")),
                    value: ("", "<|close|>argument<|sep|>"),
                    has_cdata: false,
                })),
                Text("<|close|>call<|sep|>"),
            ],
        )
    },
    // MiniMax M2
    Family {
        section: Some(shared("<minimax:tool_call>\n", "</minimax:tool_call>")),
        ..row(
            "minimax-m2",
            &[
                Text("<invoke name=\""),
                Name,
                Text("\">\n"),
                tags(("<parameter name=\"", "\">"), ("", "</parameter>\n")),
                Text("</invoke>\n"),
            ],
        )
    },
    // MiniMax M3
    Family {
        thoughts: "<mm:think>",
        section: Some(shared("]<]minimax[>[<tool_call>\n", "]<]minimax[>[</tool_call>")),
        ..row(
            "minimax-m3",
            &[
                Text("]<]minimax[>[<invoke name=\""),
                Name,
                Text("\">"),
                Part::Args(Args::Nested { prefix: "]<]minimax[>[" }),
                Text("]<]minimax[>[</invoke>\n"),
            ],
        )
    },
    // MiniMax M1
    Family {
        section: Some(shared("<tool_calls>\n", "\n</tool_calls>")),
        between: "\n",
        ..row("minimax-m1", OBJECT)
    },
    // Apriel
    Family {
        section: Some(shared("<tool_calls>[", "]</tool_calls>")),
        between: ", ",
        ..row("apriel", OBJECT)
    },
    // Nemotron Nano 2
    Family {
        section: Some(shared("<TOOLCALL>[", "]</TOOLCALL>")),
        between: ", ",
        ..row("nemotron-nano", OBJECT)
    },
    // Mistral Small 3.2
    Family {
        thoughts: "[THINK]",
        ids: Ids::Nine,
        ..row(
            "mistral-small",
            &[Text("[TOOL_CALLS]"), Name, Text("[CALL_ID]"), Id, Text("[ARGS]"), Part::Args(Args::Json)],
        )
    },
    // Devstral, Ministral 3
    Family {
        thoughts: "[THINK]",
        ids: Ids::Nine,
        ..row("ministral", &[Text("[TOOL_CALLS]"), Name, Text("[ARGS]"), Part::Args(Args::Json)])
    },
    // Mistral Nemo
    Family {
        section: Some(shared("[TOOL_CALLS][", "]")),
        between: ", ",
        thoughts: "[THINK]",
        ids: Ids::Nine,
        ..row("mistral-nemo", &[Part::Envelope(Envelope { id: Some(("id", false)), ..NAMED })])
    },
    // Phi-4-mini
    Family {
        section: Some(shared("<|tool_call|>[", "]<|/tool_call|>")),
        between: ", ",
        ..row("phi-4", OBJECT)
    },
    // Granite 3
    Family { section: Some(shared("<|tool_call|>[", "]")), between: ", ", ..row("granite-3", OBJECT) },
    // Apertus
    Family {
        thoughts: "<|inner_prefix|>",
        section: Some(shared("<|tools_prefix|>[", "]<|tools_suffix|>")),
        between: ", ",
        ..row("apertus", &[Part::Envelope(Envelope { name: "", args: "", id: None })])
    },
    // Command R7B, Command A
    Family {
        thoughts: "<|START_THINKING|>",
        section: Some(shared("<|START_ACTION|>[\n", "\n]<|END_ACTION|>")),
        between: ",\n",
        silent: &["<|START_RESPONSE|>", "<|END_RESPONSE|>", "<|START_TEXT|>", "<|END_TEXT|>"],
        ..row(
            "command-r7b",
            &[
                Text("    "),
                Part::Envelope(Envelope {
                    name: "tool_name",
                    args: "parameters",
                    id: Some(("tool_call_id", true)),
                }),
            ],
        )
    },
    // Command R+
    Family {
        section: Some(shared("Action:\n```json\n[\n", "\n]```")),
        between: ",\n",
        ..row(
            "command-r-plus",
            &[Part::Envelope(Envelope { name: "tool_name", args: "parameters", id: None })],
        )
    },
    // Gemma 4
    Family {
        thoughts: "<|channel>",
        ..row(
            "gemma-4",
            &[
                Text("<|tool_call>call:"),
                Name,
                Part::Args(Args::Bare { quote: "<|\"|>" }),
                Text("<tool_call|>"),
            ],
        )
    },
    // FunctionGemma
    row(
        "function-gemma",
        &[
            Text("<start_function_call>call:"),
            Name,
            Part::Args(Args::Bare { quote: "<escape>" }),
            Text("<end_function_call>"),
        ],
    ),
    // LFM2
    Family {
        signs: &["<|tool_list_start|>", "List of tools: ["],
        section: Some(shared("<|tool_call_start|>[", "]<|tool_call_end|>")),
        between: ", ",
        ..row("lfm2", &[Name, Text("("), Part::Args(Args::Python)])
    },
    // Solar Open
    Family {
        silent: &["<|tool_calls|>", "<|calls|>", "<|content|>"],
        ..row(
            "solar",
            &[
                Text("<|tool_call:begin|>"),
                Id,
                Text("<|tool_call:name|>"),
                Name,
                Text("<|tool_call:args|>"),
                Part::Args(Args::Json),
                Text("<|tool_call:end|>"),
            ],
        )
    },
    // GigaChat 3, as its template writes it and as its documentation says
    Family {
        section: Some(each("function call<|role_sep|>\n", "")),
        silent: &["<|message_sep|>"],
        ..row("gigachat", OBJECT)
    },
    Family { section: Some(each("<|function_call|>", "")), ..row("gigachat-3.1", OBJECT) },
    // Functionary 3.1
    row(
        "functionary-3.1",
        &[Text("<function="), Name, Text(">"), Part::Args(Args::Json), Text("</function>")],
    ),
    // Functionary 3.2
    Family {
        silent: &[">>>all\n"],
        ..row("functionary-3.2", &[Text(">>>"), Name, Text("\n"), Part::Args(Args::Json)])
    },
    // Firefunction 2
    Family { section: Some(shared("functools[", "]")), between: ", ", ..row("firefunction", OBJECT) },
    // gpt-oss; its channels have a parser of their own
    row(
        "gpt-oss",
        &[
            Text("<|channel|>commentary to=functions."),
            Name,
            Text(" <|constrain|>json<|message|>"),
            Part::Args(Args::Json),
            Text("<|call|>"),
        ],
    ),
    // Llama 3.1 to 3.3. The section is what its own tools have before them.
    Family {
        section: Some(each("<|python_tag|>", "")),
        only_first: true,
        ..row("llama-3", &[Part::Envelope(Envelope { args: "parameters", ..NAMED })])
    },
];
