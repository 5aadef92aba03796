//! Grammars of calls on random walks: every text that they allow parses to valid calls.

use chat_format::{
    CallFormat, ChatEvent, ConstraintSpec, Grammar, OutputFormat, OutputParser, Scope, Tool, Tools,
};
use mlx_core::ModelFolder;
use mlx_core::engine::Grammars;
use mlx_core::sampling::{Sampler, SamplingOptions, SamplingParams, Scratch, TokenHistory};
use mlx_tests::{model_folder, validator};
use serde_json::{Value, json};

const WIDTH: usize = 320;

/// The texts that end a call in one of the formats, so that a random walk terminates.
const ENDS: [&str; 8] = [
    "\n</parameter>",
    "</parameter>",
    "</param>",
    "</arg_value>",
    "</｜DSML｜parameter>",
    "<|close|>argument<|sep|>",
    "<|\"|>",
    "]<]minimax[>[</",
];

fn tools(is_strict: bool) -> Tools {
    let properties = json!({
        "kind": {"enum": ["calm", "storm"]},
        "count": {"type": "integer", "minimum": 0, "maximum": 99},
        "exact": {"type": "boolean"},
        "note": {"type": "string"},
        "where": {"type": "object", "properties": {"x": {"type": "integer", "minimum": 0, "maximum": 9}}, "required": ["x"], "additionalProperties": false},
        "days": {"type": "array", "items": {"enum": ["mon", "tue"]}},
    });
    let schema = json!({"type": "object", "properties": properties, "required": ["kind", "where"], "additionalProperties": false});
    let tool = |name: &str, parameters: Value| {
        let function = json!({"name": name, "parameters": parameters, "strict": is_strict});
        Tool::read(json!({"type": "function", "function": function})).expect("a tool")
    };
    Tools::new(vec![
        tool("look_up", schema),
        tool("stop", json!({"type": "object", "properties": {}, "additionalProperties": false})),
    ])
    .expect("two tools")
}

struct Walker {
    folder: ModelFolder,
    grammars: Grammars,
    /// The token of each byte.
    bytes: Vec<Option<u32>>,
}

impl Walker {
    fn new() -> Self {
        let folder = ModelFolder::open(&model_folder("llama-f32")).expect("the fixture opens");
        let token = |byte: u8| (0..WIDTH as u32).find(|id| folder.tokenizer.token_bytes(*id) == [byte]);
        let bytes = (0..=u8::MAX).map(token).collect();
        Self { folder, grammars: Grammars::default(), bytes }
    }

    /// Returns the text of a walk along the masks; `None` if it does not end soon.
    fn walk(&self, grammar: &str, seed: u64) -> Result<Option<String>, String> {
        let spec = ConstraintSpec { grammar: Grammar::Lark(grammar.to_owned()), scope: Scope::AfterThoughts };
        let mut history = TokenHistory::new(vec![1, 9, 30]);
        let options = SamplingOptions { seed: Some(seed), ..SamplingOptions::default() };
        let params = SamplingParams::resolve(&options, &SamplingOptions::default()).expect("valid");
        let follower = self.grammars.follower(&spec, &self.folder, WIDTH, &history, false);
        let follower = follower.map_err(|error| error.to_string())?;
        let mut sampler = Sampler::new(params, None, &self.folder.token_table).with_constraint(follower);
        let mut written: Vec<u8> = Vec::new();
        for _ in 0..600 {
            let row = self.row(&written);
            let drawn = sampler.draw_row(&row, &history, &mut Scratch::default());
            let token = drawn.map_err(|error| error.to_string())?.token;
            if self.folder.end_tokens.contains(&token) {
                return Ok(Some(String::from_utf8_lossy(&written).into_owned()));
            }
            written.extend(self.folder.tokenizer.token_bytes(token));
            history.push(token);
        }
        Ok(None)
    }

    /// Returns logits under which all tokens are equally likely, except the ends of a text.
    fn row(&self, written: &[u8]) -> Vec<f32> {
        let mut row = vec![0.0_f32; WIDTH];
        for end in ENDS.map(str::as_bytes).into_iter().chain([&b"\""[..], b"}", b"]", b")"]) {
            let begun = (0..end.len()).rev().find(|&length| written.ends_with(&end[..length])).unwrap_or(0);
            if let Some(id) = self.bytes[end[begun] as usize] {
                let logit = &mut row[id as usize];
                *logit = logit.max(if begun == 0 { 3.0 } else { 12.0 });
            }
        }
        self.folder.end_tokens.iter().for_each(|&end| row[end as usize] = 3.0);
        row
    }
}

/// Returns name and arguments of the calls, and the text around them.
fn read(format: &CallFormat, tools: &Tools, text: &str) -> (Vec<(String, String)>, String) {
    let output = OutputFormat::of_calls(format);
    let parser = OutputParser::new(&output, "").with_calls(format, tools.clone(), "");
    let (mut calls, mut beside) = (Vec::<(String, String)>::new(), String::new());
    for event in parser.read(text) {
        match event {
            ChatEvent::CallStart { name, .. } => calls.push((name, String::new())),
            ChatEvent::Args(more) => calls.last_mut().expect("a call has begun").1.push_str(&more),
            ChatEvent::Text(more) | ChatEvent::Reasoning(more) => beside.push_str(&more),
            ChatEvent::CallEnd => {}
        }
    }
    (calls, beside)
}

#[test]
fn every_walk_parses_to_calls_that_validate() {
    let walker = Walker::new();
    for name in CallFormat::names() {
        let format = CallFormat::named(name).expect("a format");
        let mut ended = 0;
        for (is_strict, is_single) in [(true, false), (true, true), (false, true)] {
            let tools = tools(is_strict);
            let all: Vec<&Tool> = tools.list().iter().collect();
            let grammar = match format.grammar(&all, is_single, &walker.folder.tokenizer) {
                Ok(grammar) => grammar,
                Err(why) => {
                    assert!(name == "minimax-m3" && is_strict && why.contains("elements"), "{name}: {why}");
                    ended += 4;
                    continue;
                }
            };
            for seed in 0..8 {
                let text =
                    walker.walk(&grammar, seed).unwrap_or_else(|why| panic!("{name}: {why}\n{grammar}"));
                let Some(text) = text else { continue };
                ended += 1;
                let (calls, beside) = read(&format, &tools, &text);
                assert!(
                    !calls.is_empty() && beside.trim().is_empty(),
                    "{name}: {calls:?} {beside:?} of {text}"
                );
                assert!(!is_single || calls.len() == 1, "{name}: {calls:?}");
                for (called, arguments) in calls {
                    let tool = tools.get(&called).unwrap_or_else(|| panic!("{name}: {called} of {text}"));
                    let value: Value = serde_json::from_str(&arguments)
                        .unwrap_or_else(|_| panic!("{name}: {arguments} of {text}"));
                    assert!(value.is_object(), "{name}: {arguments}");
                    if is_strict {
                        let checked = validator::check(&tool.parameters, &value);
                        assert_eq!(checked, Ok(()), "{name}: {arguments} of {text}");
                    }
                }
            }
        }
        assert!(ended >= 8, "{name}: {ended} walks have ended");
    }
}
