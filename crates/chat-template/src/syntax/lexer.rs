//! Splits a template into tokens, like Jinja with `trim_blocks` and `lstrip_blocks`.

use super::super::fault::{Outcome, at, invalid};
use super::super::python::is_space;
use super::token::{Kind, Token};

/// All operators, longer ones first.
const OPERATORS: [&str; 26] = [
    "//", "**", "==", "!=", ">=", "<=", "+", "-", "/", "*", "%", "~", "[", "]", "(", ")", "{", "}", ">", "<",
    "=", ".", ":", "|", ",", ";",
];

/// Returns the tokens of a template. The last one is [`Kind::End`].
pub(in super::super) fn tokenize(source: &str) -> Outcome<Vec<Token>> {
    let source = source.replace("\r\n", "\n").replace('\r', "\n");
    // Jinja drops one trailing line break.
    let source = source.strip_suffix('\n').unwrap_or(&source);
    let mut lexer = Lexer { source, at: 0, line: 1, counted: 0, tokens: Vec::new(), starts_line: true };
    let outcome = lexer.run();
    let line = lexer.line();
    at(line, outcome)?;
    lexer.push(Kind::End);
    Ok(lexer.tokens)
}

struct Lexer<'a> {
    source: &'a str,
    at: usize,
    /// The line number at the byte `counted`.
    line: u32,
    counted: usize,
    tokens: Vec<Token>,
    /// True if a line break precedes `at`.
    starts_line: bool,
}

/// The three kinds of tags.
#[derive(Clone, Copy, PartialEq)]
enum Tag {
    Block,
    Variable,
    Comment,
}

impl<'a> Lexer<'a> {
    fn rest(&self) -> &'a str {
        &self.source[self.at..]
    }

    fn line(&mut self) -> u32 {
        let breaks = self.source[self.counted..self.at].bytes().filter(|byte| *byte == b'\n').count();
        self.line += breaks as u32;
        self.counted = self.at;
        self.line
    }

    fn push(&mut self, kind: Kind) {
        let line = self.line();
        self.tokens.push(Token { kind, line });
    }

    fn run(&mut self) -> Outcome<()> {
        while let Some((length, tag)) = next_tag(self.rest()) {
            let text = &self.rest()[..length];
            let sign = self.rest()[length + 2..].chars().next().filter(|sign| matches!(sign, '-' | '+'));
            self.data(strip_end(text, sign, tag, self.starts_line), length);
            let begin = self.at;
            self.at += 2 + usize::from(sign.is_some());
            match tag {
                Tag::Comment => self.comment()?,
                Tag::Block if self.raw()? => {}
                Tag::Block | Tag::Variable => {
                    let after = std::mem::replace(&mut self.at, begin);
                    self.push(if tag == Tag::Block { Kind::BlockBegin } else { Kind::VariableBegin });
                    self.at = after;
                    self.tag(tag)?;
                }
            }
        }
        let rest = self.rest();
        self.data(rest, rest.len());
        Ok(())
    }

    /// Adds text outside tags, and advances by `length` bytes of the source.
    fn data(&mut self, text: &str, length: usize) {
        if !text.is_empty() {
            self.push(Kind::Data(text.to_owned()));
        }
        self.at += length;
    }

    /// Skips a comment.
    fn comment(&mut self) -> Outcome<()> {
        let end = self.rest().find("#}").ok_or_else(|| invalid("a comment is not closed"))?;
        let sign = self.rest()[..end].chars().next_back();
        self.at += end;
        self.end(2, sign, true);
        Ok(())
    }

    /// Skips the end of a tag, and the whitespace after it that its sign removes.
    fn end(&mut self, length: usize, sign: Option<char>, trims: bool) {
        self.at += length;
        let rest = self.rest();
        if sign == Some('-') {
            self.at += rest.len() - rest.trim_start_matches(is_space).len();
        } else if trims && sign != Some('+') && rest.starts_with('\n') {
            self.at += 1;
        }
        self.starts_line = self.source[..self.at].ends_with('\n');
    }

    /// Reads a raw block whose `{%` was read. Returns false if this is not one.
    fn raw(&mut self) -> Outcome<bool> {
        let Some((start, sign)) = keyword_tag(self.rest(), "raw").filter(|(_, sign)| *sign != Some('+'))
        else {
            return Ok(false);
        };
        self.end(start, sign, false);
        let text = self.rest();
        let mut from = 0;
        while let Some(found) = text[from..].find("{%").map(|found| from + found) {
            let open = text[found + 2..].chars().next().filter(|sign| matches!(sign, '-' | '+'));
            let inside = found + 2 + usize::from(open.is_some());
            if let Some((length, close)) = keyword_tag(&text[inside..], "endraw") {
                self.data(strip_end(&text[..found], open, Tag::Block, self.starts_line), inside);
                self.end(length, close, true);
                return Ok(true);
            }
            from = found + 2;
        }
        Err(invalid("a raw block is not closed"))
    }

    /// Reads the tokens of a tag, including its end.
    fn tag(&mut self, tag: Tag) -> Outcome<()> {
        let close = if tag == Tag::Block { "%}" } else { "}}" };
        let mut brackets: Vec<&str> = Vec::new();
        loop {
            let rest = self.rest();
            let rest = rest.trim_start_matches(is_space);
            self.at = self.source.len() - rest.len();
            let Some(letter) = rest.chars().next() else { return Err(invalid("a tag is not closed")) };
            let signs: &[char] = if tag == Tag::Block { &['-', '+'] } else { &['-'] };
            let (sign, ending) = match rest.strip_prefix(signs) {
                Some(ending) => (Some(letter), ending),
                None => (None, rest),
            };
            if brackets.is_empty() && ending.starts_with(close) {
                self.push(if tag == Tag::Block { Kind::BlockEnd } else { Kind::VariableEnd });
                self.end(rest.len() - ending.len() + 2, sign, tag == Tag::Block);
                return Ok(());
            }
            let after_dot = self.source[..self.at].ends_with('.');
            let (kind, length) = token(rest, letter, after_dot)?;
            if let Kind::Operator(operator) = kind {
                balance(&mut brackets, operator)?;
            }
            self.push(kind);
            self.at += length;
        }
    }
}

/// Returns the offset of the next tag, and its kind.
fn next_tag(text: &str) -> Option<(usize, Tag)> {
    text.match_indices('{').find_map(|(start, _)| {
        let tag = match text.as_bytes().get(start + 1)? {
            b'%' => Tag::Block,
            b'{' => Tag::Variable,
            b'#' => Tag::Comment,
            _ => return None,
        };
        Some((start, tag))
    })
}

/// Returns the text before a tag, without the whitespace that the tag removes.
fn strip_end(text: &str, sign: Option<char>, tag: Tag, starts_line: bool) -> &str {
    if sign == Some('-') {
        return text.trim_end_matches(is_space);
    }
    let line = text.rfind('\n').map_or(0, |at| at + 1);
    let strips = sign.is_none() && tag != Tag::Variable && (line > 0 || starts_line);
    if strips && text[line..].chars().all(is_space) { &text[..line] } else { text }
}

/// Returns the length of `keyword %}` at the start of `text`, and the sign before its end.
fn keyword_tag(text: &str, keyword: &str) -> Option<(usize, Option<char>)> {
    let rest = text.trim_start_matches(is_space).strip_prefix(keyword)?.trim_start_matches(is_space);
    let sign = rest.chars().next().filter(|sign| matches!(sign, '-' | '+'));
    let rest = rest[usize::from(sign.is_some())..].strip_prefix("%}")?;
    Some((text.len() - rest.len(), sign))
}

fn balance(brackets: &mut Vec<&'static str>, operator: &str) -> Outcome<()> {
    match operator {
        "(" => brackets.push(")"),
        "[" => brackets.push("]"),
        "{" => brackets.push("}"),
        ")" | "]" | "}" if brackets.pop() != Some(operator) => {
            return Err(invalid(format!("syntax error: unexpected \"{operator}\"")));
        }
        _ => {}
    }
    Ok(())
}

/// Returns the token at the start of `rest`, and its length.
fn token(rest: &str, letter: char, after_dot: bool) -> Outcome<(Kind, usize)> {
    if letter == '"' || letter == '\'' {
        return string(rest, letter);
    }
    if letter.is_ascii_digit() {
        return number(rest, after_dot);
    }
    if letter.is_alphabetic() || letter == '_' {
        let end = rest.find(|letter: char| !letter.is_alphanumeric() && letter != '_');
        let name = &rest[..end.unwrap_or(rest.len())];
        return Ok((Kind::Name(name.to_owned()), name.len()));
    }
    let operator = OPERATORS.into_iter().find(|operator| rest.starts_with(operator));
    let operator =
        operator.ok_or_else(|| invalid(format!("syntax error: unexpected character {letter:?}")))?;
    Ok((Kind::Operator(operator), operator.len()))
}

fn string(rest: &str, quote: char) -> Outcome<(Kind, usize)> {
    let mut escaped = false;
    let end = rest[1..].find(|letter| {
        let ends = letter == quote && !escaped;
        escaped = letter == '\\' && !escaped;
        ends
    });
    let end = end.ok_or_else(|| invalid("syntax error: a string is not closed"))?;
    Ok((Kind::Text(unescaped(&rest[1..=end])?), end + 2))
}

/// Replaces Python's escape sequences.
fn unescaped(text: &str) -> Outcome<String> {
    let mut output = String::with_capacity(text.len());
    let mut letters = text.chars();
    while let Some(letter) = letters.next() {
        if letter != '\\' {
            output.push(letter);
            continue;
        }
        let code = |digits: usize, radix: u32, letters: &mut std::str::Chars<'_>| {
            let digits: String = letters.as_str().chars().take(digits).collect();
            *letters = letters.as_str()[digits.len()..].chars();
            let code = u32::from_str_radix(&digits, radix).ok().and_then(char::from_u32);
            code.ok_or_else(|| invalid("syntax error: invalid escape in a string"))
        };
        match letters.next() {
            Some('\n') | None => {}
            Some('n') => output.push('\n'),
            Some('t') => output.push('\t'),
            Some('r') => output.push('\r'),
            Some('a') => output.push('\u{7}'),
            Some('b') => output.push('\u{8}'),
            Some('f') => output.push('\u{c}'),
            Some('v') => output.push('\u{b}'),
            Some('x') => output.push(code(2, 16, &mut letters)?),
            Some('u') => output.push(code(4, 16, &mut letters)?),
            Some('U') => output.push(code(8, 16, &mut letters)?),
            Some(digit @ '0'..='7') => {
                let more = letters.as_str().chars().take(2).take_while(|next| next.is_digit(8)).count();
                let digits: String = std::iter::once(digit).chain(letters.by_ref().take(more)).collect();
                output.extend(u32::from_str_radix(&digits, 8).ok().and_then(char::from_u32));
            }
            Some(same @ ('\\' | '\'' | '"')) => output.push(same),
            Some(other) => output.extend(['\\', other]),
        }
    }
    Ok(output)
}

fn number(rest: &str, after_dot: bool) -> Outcome<(Kind, usize)> {
    let digits = |text: &str, radix: u32| {
        let end = text.find(|letter: char| !letter.is_digit(radix) && letter != '_').unwrap_or(text.len());
        text[..end].trim_end_matches('_').len()
    };
    let wrong = || invalid("syntax error: a number is too large");
    let prefixes = [("0x", 16), ("0X", 16), ("0o", 8), ("0O", 8), ("0b", 2), ("0B", 2)];
    if let Some((prefix, radix)) = prefixes.into_iter().find(|(prefix, _)| rest.starts_with(prefix)) {
        let length = digits(&rest[2..], radix);
        let value =
            i128::from_str_radix(&rest[2..2 + length].replace('_', ""), radix).map_err(|_| wrong())?;
        return Ok((Kind::Int(value), prefix.len() + length));
    }
    let whole = digits(rest, 10);
    let mut length = whole;
    if !after_dot {
        if rest[length..]
            .strip_prefix('.')
            .is_some_and(|rest| rest.starts_with(|next: char| next.is_ascii_digit()))
        {
            length += 1 + digits(&rest[length + 1..], 10);
        }
        if let Some(exponent) = rest[length..].strip_prefix(['e', 'E']) {
            let unsigned = exponent.strip_prefix(['+', '-']).unwrap_or(exponent);
            if unsigned.starts_with(|next: char| next.is_ascii_digit()) {
                length = rest.len() - unsigned.len() + digits(unsigned, 10);
            }
        }
    }
    let text = rest[..length].replace('_', "");
    let kind =
        if length == whole { text.parse().ok().map(Kind::Int) } else { text.parse().ok().map(Kind::Float) };
    Ok((kind.ok_or_else(wrong)?, length))
}
