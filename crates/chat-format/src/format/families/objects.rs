//! Families whose arguments are one object, in JSON or another notation.

use super::super::family::{Args, Envelope, Family, Ids, Part};
use super::rows::{NAMED, OBJECT, each, on_lines, row, shared};
use Part::{Id, Name, NameInId, Text};

pub(super) const OBJECTS: [Family; 27] = [
    // Qwen2.5, Qwen3, QwQ, Hermes, Granite 4, MiMo, Bielik, Reka, EXAONE 4
    on_lines("hermes", ("<tool_call>\n", "\n</tool_call>"), OBJECT),
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
    // MiniMax M1
    Family {
        section: Some(shared("<tool_calls>\n", "\n</tool_calls>")),
        between: "\n",
        ..row("minimax-m1", OBJECT)
    },
    // Apriel
    Family {
        thoughts: "Here are my reasoning steps:",
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
        thoughts: "<|think|>",
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
    // GigaChat 3: one format from its template, and one from its documentation
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
    // gpt-oss; its channels have a separate parser
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
    // LongCat Flash, with the format of its first template
    Family {
        thoughts: "<longcat_think>",
        ..on_lines("longcat-flash", ("<longcat_tool_call>\n", "\n</longcat_tool_call>"), OBJECT)
    },
    // Llama 3.1 to 3.3. The section marker precedes calls of its built-in tools.
    Family {
        section: Some(each("<|python_tag|>", "")),
        only_first: true,
        ..row("llama-3", &[Part::Envelope(Envelope { args: "parameters", ..NAMED })])
    },
];
