//! Generates the grammar of calls from a family's row, in llguidance's variant of Lark.

use serde_json::{Map, Value, json};

use super::calls::CallFormat;
use super::family::{Args, Envelope, Ids, KindOfValue, Part, Tagged};
use super::pattern::{Compiler, Piece, in_grammar};
use super::shape::{Shape, property_schema, shapes};
use crate::text::Tokenizer;
use crate::tool::Tool;

/// An argument name if any name is allowed.
const KEY: &str = "KEY: /[A-Za-z_][A-Za-z0-9_.-]{0,63}/";

/// A grammar under construction.
pub(super) struct Printer<'a> {
    pub(super) compiler: Compiler<'a>,
    ids: Ids,
    pub(super) rules: String,
    count: usize,
    has_key: bool,
    has_bare: bool,
}

impl CallFormat {
    /// Returns the grammar of an answer that consists of calls of these tools. Arguments of strict tools follow their
    /// schemas. An error contains the tool and the part that cannot be enforced.
    pub fn grammar(&self, tools: &[&Tool], is_single: bool, tokenizer: &Tokenizer) -> Result<String, String> {
        let mut printer = Printer::new(self, tokenizer);
        let calls = printer.calls(self, tools)?;
        let family = self.syntax().family;
        let between = printer.literal(family.between);
        let section = family.section.filter(|_| !family.only_first);
        let (open, close) = section.map_or(("", ""), |section| (section.open, section.close));
        let (open, close) = (printer.literal(open), printer.literal(close));
        let repeated =
            |one: &str| if is_single { one.to_owned() } else { format!("{one} ({between} {one})*") };
        let start = if section.is_some_and(|section| section.is_shared) {
            format!("{open} {} {close}", repeated(&calls))
        } else {
            printer.add(&format!("one: {open} {calls} {close}"));
            repeated("one")
        };
        Ok(format!("start: {start}\n{}", printer.rules))
    }
}

impl<'a> Printer<'a> {
    pub(super) fn new(format: &CallFormat, tokenizer: &'a Tokenizer) -> Self {
        let compiler = Compiler::new(Some(tokenizer));
        Self { compiler, ids: format.ids(), rules: String::new(), count: 0, has_key: false, has_bare: false }
    }

    /// Adds the rule for a call of any of these tools. Returns its name.
    fn calls(&mut self, format: &CallFormat, tools: &[&Tool]) -> Result<String, String> {
        let mut names = Vec::new();
        for tool in tools {
            let call = self.call(format.syntax().family.call, tool);
            let call = call.map_err(|why| format!("{:?} {why}", tool.name))?;
            names.push(self.rule("call", &call));
        }
        Ok(self.rule("any_call", &names.join(" | ")))
    }

    /// Adds a line.
    fn add(&mut self, line: &str) {
        self.rules.push_str(line);
        self.rules.push('\n');
    }

    /// Adds a rule and returns its name.
    pub(super) fn rule(&mut self, name: &str, body: &str) -> String {
        self.count += 1;
        let name = format!("{name}_{}", self.count);
        self.add(&format!("{name}: {body}"));
        name
    }

    /// Returns a literal, with special tokens by id.
    pub(super) fn literal(&mut self, text: &str) -> String {
        self.compiler.pieces(text).iter().map(in_grammar).collect::<Vec<_>>().join(" ")
    }

    /// Adds the rule for an unknown argument name.
    fn key(&mut self) {
        if !std::mem::replace(&mut self.has_key, true) {
            self.add(KEY);
        }
    }

    pub(super) fn json(&mut self, schema: &Value) -> String {
        self.rule("json", &format!("%json {schema}"))
    }

    fn id(&mut self) -> String {
        let pattern = if self.ids == Ids::Nine { "[A-Za-z0-9]{9}" } else { "[a-z0-9]{1,10}" };
        self.rule("id", &format!("/{pattern}/"))
    }

    fn call(&mut self, parts: &[Part], tool: &Tool) -> Result<String, String> {
        let mut written = Vec::new();
        for part in parts {
            written.push(match part {
                Part::Text(text) => self.literal(text),
                Part::Name => self.literal(&tool.name),
                Part::NameInId => {
                    let index = self.rule("index", "/[0-9]{1,3}/");
                    format!("{} {index}", self.literal(&format!("functions.{}:", tool.name)))
                }
                Part::Id => self.id(),
                Part::Envelope(envelope) => self.envelope(envelope, tool),
                Part::Args(args) => self.args(args, tool)?,
            });
        }
        Ok(written.join(" "))
    }

    fn envelope(&mut self, envelope: &Envelope, tool: &Tool) -> String {
        let name = Value::from(tool.name.as_str());
        let arguments = self.json(&object_schema(tool));
        if envelope.name.is_empty() {
            return format!("{} {arguments} \"}}\"", self.literal(&format!("{{{name}: ")));
        }
        let head = format!("\"{}\": {name}, \"{}\": ", envelope.name, envelope.args);
        match envelope.id {
            None => format!("{} {arguments} \"}}\"", self.literal(&format!("{{{head}"))),
            Some((key, true)) => {
                let (open, id) = (self.literal(&format!("{{\"{key}\": \"")), self.id());
                format!("{open} {id} {} {arguments} \"}}\"", self.literal(&format!("\", {head}")))
            }
            Some((key, false)) => {
                let (open, id) = (self.literal(&format!("{{{head}")), self.id());
                format!(
                    "{open} {arguments} {} {id} {}",
                    self.literal(&format!(", \"{key}\": \"")),
                    self.literal("\"}")
                )
            }
        }
    }

    fn args(&mut self, args: &Args, tool: &Tool) -> Result<String, String> {
        match args {
            Args::Json => Ok(self.json(&object_schema(tool))),
            Args::Tagged(tagged) if tool.is_strict => self.tags(tagged, tool),
            Args::Tagged(tagged) => Ok(self.any_tags(tagged)),
            Args::Python if tool.is_strict => {
                let mut items = Vec::new();
                for (key, schema) in properties(&tool.parameters) {
                    let value = self.json(&property_schema(schema, &tool.parameters));
                    items.push((
                        format!("{} {value}", self.literal(&format!("{key}="))),
                        is_required(&tool.parameters, key),
                    ));
                }
                Ok(format!("{} \")\"", self.separated(&items, ", ")))
            }
            Args::Python => {
                let any = self.json(&json!({}));
                self.key();
                Ok(format!("(KEY \"=\" {any} (\", \" KEY \"=\" {any})*)? \")\""))
            }
            Args::Bare { quote } if tool.is_strict => {
                self.bare_map(&tool.parameters, &tool.parameters, quote, 0)
            }
            Args::Bare { quote } => Ok(self.any_bare(quote)),
            Args::Nested { .. } if tool.is_strict => {
                Err("is strict, and this model writes arguments in elements, whose schema cannot be enforced"
                    .into())
            }
            Args::Nested { prefix } => {
                let mut elements = Vec::new();
                for (key, _) in properties(&tool.parameters) {
                    let open = self.literal(&format!("{prefix}<{key}>"));
                    let value = self.text_until(&format!("{prefix}</{key}>"));
                    elements.push(format!("({open} {value})?"));
                }
                Ok(elements.join(" "))
            }
        }
    }

    /// Returns a text followed by a literal. As in the parser, the text ends at the first word of the literal.
    fn text_until(&mut self, end: &str) -> String {
        let word = end.split_ascii_whitespace().next().unwrap_or_default();
        let after = end.trim_ascii_start().strip_prefix(word).unwrap_or_default();
        let text = self.text_and(word);
        format!("{text} {}", self.literal(after))
    }

    fn text_and(&mut self, word: &str) -> String {
        match self.compiler.pieces(word).as_slice() {
            // Text cannot contain special tokens.
            [] | [Piece::Special(_), ..] => {
                let text = self.rule("text", "/(?s:.+)/");
                format!("{text}? {}", self.literal(word))
            }
            [Piece::Text(text)] => self.text_with(text),
            // The text may contain the beginning of the literal.
            [Piece::Text(first), rest @ ..] => {
                let part = self.text_with(first);
                let rest: Vec<String> = rest.iter().map(in_grammar).collect();
                format!("{part} ({part})* {}", rest.join(" "))
            }
        }
    }

    /// Adds the rule for a text up to and including the first occurrence of `end`. Returns its name.
    fn text_with(&mut self, end: &str) -> String {
        self.count += 1;
        let name = format!("text_{}", self.count);
        self.add(&format!("{name}[suffix={}]: /(?s:.*)/", Value::from(end)));
        name
    }

    fn tags(&mut self, tagged: &Tagged, tool: &Tool) -> Result<String, String> {
        let mut tags = Vec::new();
        for (key, schema) in properties(&tool.parameters) {
            let mut values = Vec::new();
            for shape in shapes(schema, &tool.parameters)
                .map_err(|why| format!("has an argument {key:?} that {why}"))?
            {
                values.push(self.tag_value(tagged, &shape));
            }
            let open = self.literal(&format!("{}{key}{}", tagged.key.0, tagged.key.1));
            let tag = self.rule("tag", &format!("{open} ({})", values.join(" | ")));
            tags.push(if is_required(&tool.parameters, key) { tag } else { format!("{tag}?") });
        }
        Ok(tags.join(" "))
    }

    /// Returns a value and everything after the name of its argument.
    fn tag_value(&mut self, tagged: &Tagged, shape: &Shape) -> String {
        let kind = |name: fn(KindOfValue) -> &'static str| {
            tagged.kind.map(|(kind, after)| [name(kind), after].concat()).unwrap_or_default()
        };
        let of_text = |kind| if kind == KindOfValue::IsText { "true" } else { "string" };
        let before = kind(of_text) + tagged.value.0;
        match shape {
            Shape::Text => format!("{} {}", self.literal(&before), self.text_until(tagged.value.1)),
            Shape::Choice(text) => self.literal(&[&before, text, tagged.value.1].concat()),
            Shape::Json(schema) => {
                let name = match schema["type"].as_str() {
                    Some("integer") => "number",
                    Some(name) => name,
                    None => "object",
                };
                let kind = tagged.kind.map(|(kind, after)| {
                    let said = if kind == KindOfValue::IsText { "false" } else { name };
                    [said, after].concat()
                });
                let before = self.literal(&(kind.unwrap_or_default() + tagged.value.0));
                format!("{before} {} {}", self.json(schema), self.literal(tagged.value.1))
            }
        }
    }

    fn any_tags(&mut self, tagged: &Tagged) -> String {
        self.key();
        let value = self.tag_value(tagged, &Shape::Text);
        let (open, close) = (self.literal(tagged.key.0), self.literal(tagged.key.1));
        let tag = self.rule("tag", &format!("{open} KEY {close} {value}"));
        format!("{tag}*")
    }

    /// Returns the items, separated by `between`. Optional items may be missing.
    fn separated(&mut self, items: &[(String, bool)], between: &str) -> String {
        let between = self.literal(between);
        let (mut after_some, mut after_none) = (String::new(), String::new());
        for (item, is_required) in items.iter().rev() {
            let some = format!("{between} {item} {after_some}");
            let first = format!("{item} {after_some}");
            let (some, none) = if *is_required {
                (some, first)
            } else {
                (format!("{some} | {after_some}"), format!("{first} | {after_none}"))
            };
            (after_some, after_none) = (self.rule("rest", &some), self.rule("items", &none));
        }
        after_none
    }

    fn bare_map(
        &mut self,
        schema: &Value,
        root: &Value,
        quote: &str,
        depth: usize,
    ) -> Result<String, String> {
        if depth > 8 {
            return Err("has a schema that is nested too deeply for this model's format".into());
        }
        let mut items = Vec::new();
        for (key, property) in properties(schema) {
            let mut values = Vec::new();
            for shape in
                shapes(property, root).map_err(|why| format!("has an argument {key:?} that {why}"))?
            {
                values.push(self.bare(&shape, root, quote, depth)?);
            }
            let value = self.rule("value", &values.join(" | "));
            items.push((format!("{} {value}", self.literal(&format!("{key}:"))), is_required(schema, key)));
        }
        Ok(format!("\"{{\" {} \"}}\"", self.separated(&items, ",")))
    }

    fn bare(&mut self, shape: &Shape, root: &Value, quote: &str, depth: usize) -> Result<String, String> {
        Ok(match shape {
            Shape::Text => format!("{} {}", self.literal(quote), self.text_until(quote)),
            Shape::Choice(text) => self.literal(&[quote, text, quote].concat()),
            Shape::Json(schema) if schema["type"] == "object" => {
                self.bare_map(schema, root, quote, depth + 1)?
            }
            Shape::Json(schema) if schema["type"] == "array" => {
                let mut items = Vec::new();
                for shape in shapes(schema.get("items").unwrap_or(&Value::Null), root)? {
                    items.push(self.bare(&shape, root, quote, depth + 1)?);
                }
                let item = self.rule("item", &items.join(" | "));
                format!("\"[\" ({item} (\",\" {item})*)? \"]\"")
            }
            Shape::Json(schema) => self.json(schema),
        })
    }

    fn any_bare(&mut self, quote: &str) -> String {
        if std::mem::replace(&mut self.has_bare, true) {
            return "bare_map".to_owned();
        }
        self.key();
        let (open, text) = (self.literal(quote), self.text_until(quote));
        let scalar = self.json(&json!({"type": ["number", "boolean", "null"]}));
        self.add(&format!(
            "bare: {open} {text} | {scalar} | bare_map | \"[\" (bare (\",\" bare)*)? \"]\"\n\
             bare_map: \"{{\" (KEY \":\" bare (\",\" KEY \":\" bare)*)? \"}}\""
        ));
        "bare_map".to_owned()
    }
}

/// Returns the schema of all arguments: that of a strict tool, or any object.
pub(super) fn object_schema(tool: &Tool) -> Value {
    if tool.is_strict && tool.parameters != json!({}) {
        tool.parameters.clone()
    } else {
        json!({"type": "object"})
    }
}

fn properties(schema: &Value) -> impl Iterator<Item = (&String, &Value)> {
    schema["properties"].as_object().into_iter().flat_map(Map::iter)
}

fn is_required(schema: &Value, key: &str) -> bool {
    schema["required"].as_array().is_some_and(|required| required.iter().any(|name| name == key))
}
