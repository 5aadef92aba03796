//! Families with a tag or an element for each argument.

use super::super::family::{Args, Family, KindOfValue, Part, Tagged};
use super::rows::{each, on_lines, row, shared, tags};
use Part::{Id, Name, Text};

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

const ATEM: Part = tags(("<atem:parameter name=\"", "\">"), ("", "</atem:parameter>\n"));

pub(super) const TAGGED: [Family; 14] = [
    // Qwen3-Coder, Qwen3.5 and later, Nemotron 3, Step 3.5
    on_lines("qwen3-coder", ("<tool_call>\n", "\n</tool_call>"), FUNCTION_LINES),
    // Seed-OSS
    Family {
        thoughts: "<seed:think>",
        ..on_lines(
            "seed-oss",
            ("<seed:tool_call>\n", "\n</seed:tool_call>"),
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
    // Kimi K3
    Family {
        thoughts: "<|open|>think<|sep|>",
        section: Some(shared("<|open|>tools<|sep|>", "<|close|>tools<|sep|>")),
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
    // Muse Glimmer: each call is a message to its tool that contains a call in the format "atem"
    Family {
        between: "<|eom|><|start|>assistant",
        ..row(
            "muse-glimmer",
            &[
                Text(" to="),
                Name,
                Text("<|message|><atem:function_calls>\n<atem:invoke name=\""),
                Name,
                Text("\">\n"),
                ATEM,
                Text("</atem:invoke>\n</atem:function_calls>"),
            ],
        )
    },
    Family {
        section: Some(shared("<atem:function_calls>\n", "</atem:function_calls>")),
        ..row("atem", &[Text("<atem:invoke name=\""), Name, Text("\">\n"), ATEM, Text("</atem:invoke>\n")])
    },
    // LongCat 2, and LongCat Flash
    Family {
        thoughts: "<longcat_think>",
        section: Some(each("<longcat_tool_call>", "</longcat_tool_call>")),
        between: "\n",
        ..row(
            "longcat",
            &[
                Name,
                Text("\n"),
                tags(
                    ("<longcat_arg_key>", "</longcat_arg_key>\n"),
                    ("<longcat_arg_value>", "</longcat_arg_value>\n"),
                ),
            ],
        )
    },
    // Hunyuan 3 and 4
    Family {
        thoughts: "<think:opensource>",
        section: Some(shared("<tool_calls:opensource>\n", "</tool_calls:opensource>")),
        ..row(
            "hunyuan-3",
            &[
                Text("<tool_call:opensource>"),
                Name,
                Text("<tool_sep:opensource>\n"),
                tags(
                    ("<arg_key:opensource>", "</arg_key:opensource>\n"),
                    ("<arg_value:opensource>", "</arg_value:opensource>\n"),
                ),
                Text("</tool_call:opensource>\n"),
            ],
        )
    },
];
