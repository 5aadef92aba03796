//! Format specifications, number formats, and padding.

use super::super::fault::{Outcome, invalid};
use super::super::meter::Buffer;
use super::super::python;
use super::super::value::Value;
use super::MAX_WIDTH;

/// The maximum number of digits after the decimal point.
const MAX_PRECISION: usize = 1000;

/// The format of a field.
#[derive(Default)]
pub(super) struct Spec {
    pub(super) fill: Option<char>,
    pub(super) align: Option<char>,
    /// `+`, a space, or `\0`.
    pub(super) sign: char,
    pub(super) alternate: bool,
    pub(super) zero: bool,
    pub(super) width: usize,
    pub(super) grouping: Option<char>,
    pub(super) precision: Option<usize>,
    /// The type letter, or `\0`.
    pub(super) kind: char,
}

impl Spec {
    /// Parses `[[fill]align][sign][#][0][width][grouping][.precision][type]`.
    pub(super) fn parse(text: &str) -> Outcome<Self> {
        let mut spec = Self::default();
        let mut rest = text;
        let is_align = |letter: &char| matches!(letter, '<' | '>' | '^' | '=');
        let mut letters = rest.chars();
        if let (Some(fill), Some(align)) = (letters.next(), letters.next().filter(is_align)) {
            (spec.fill, spec.align) = (Some(fill), Some(align));
            rest = letters.as_str();
        } else if let Some(align) = rest.chars().next().filter(is_align) {
            spec.align = Some(align);
            rest = &rest[1..];
        }
        if let Some(sign) = rest.chars().next().filter(|sign| matches!(sign, '+' | '-' | ' ')) {
            spec.sign = if sign == '-' { '\0' } else { sign };
            rest = &rest[1..];
        }
        if let Some(after) = rest.strip_prefix('#') {
            (spec.alternate, rest) = (true, after);
        }
        if let Some(after) = rest.strip_prefix('0') {
            (spec.zero, rest) = (spec.align.is_none(), after);
        }
        rest = spec.read_width(rest)?;
        let mut letters = rest.chars();
        spec.kind = letters.next().unwrap_or('\0');
        if letters.next().is_some() {
            return Err(invalid("invalid format specifier"));
        }
        Ok(spec)
    }

    /// Parses `[width][grouping][.precision]` and returns the remaining text.
    pub(super) fn read_width<'a>(&mut self, text: &'a str) -> Outcome<&'a str> {
        let digits = |text: &'a str| {
            text.split_at(text.find(|next: char| !next.is_ascii_digit()).unwrap_or(text.len()))
        };
        let number = |digits: &str, most: usize| match digits.parse::<usize>() {
            Ok(number) if number <= most => Ok(number),
            _ => Err(invalid(format!("a number in a format string is greater than {most}"))),
        };
        let (width, mut rest) = digits(text);
        if !width.is_empty() {
            self.width = number(width, MAX_WIDTH)?;
        }
        if rest.starts_with('*') {
            return Err(invalid("a width in a format string must be a number"));
        }
        if let Some(letter) = rest.chars().next().filter(|letter| matches!(letter, ',' | '_')) {
            (self.grouping, rest) = (Some(letter), &rest[1..]);
        }
        if let Some(after) = rest.strip_prefix('.') {
            let (precision, after) = digits(after);
            self.precision = Some(if precision.is_empty() { 0 } else { number(precision, MAX_PRECISION)? });
            rest = after;
        }
        Ok(rest)
    }

    /// Truncates a text to the precision.
    pub(super) fn cut<'a>(&self, text: &'a str) -> &'a str {
        let end = self.precision.and_then(|most| text.char_indices().nth(most));
        end.map_or(text, |(end, _)| &text[..end])
    }
}

/// Formats a number with its sign.
pub(super) fn written(spec: &Spec, value: &Value) -> Outcome<String> {
    let float = value.as_float();
    let float = float.ok_or_else(|| invalid(format!("a number is required, not {}", value.type_name())))?;
    let (negative, digits) = match (spec.kind, value.as_int()) {
        ('d' | 'i' | 'u' | '\0' | 'n', None) if let Value::Long(number) = value => {
            let digits = number.content();
            (digits.starts_with('-'), digits.trim_start_matches('-').to_owned())
        }
        ('d' | 'i' | 'u' | '\0' | 'n', Some(number)) => (number < 0, number.unsigned_abs().to_string()),
        ('d' | 'i' | 'u', None) if float.is_finite() => {
            (float < 0.0, (float.trunc() as i128).unsigned_abs().to_string())
        }
        ('x', Some(number)) => (number < 0, based(spec, "0x", &format!("{:x}", number.unsigned_abs()))),
        ('X', Some(number)) => (number < 0, based(spec, "0X", &format!("{:X}", number.unsigned_abs()))),
        ('o', Some(number)) => (number < 0, based(spec, "0o", &format!("{:o}", number.unsigned_abs()))),
        ('b', Some(number)) => (number < 0, based(spec, "0b", &format!("{:b}", number.unsigned_abs()))),
        ('\0', None) if spec.precision.is_none() => (float < 0.0, python::float(float.abs())),
        ('f' | 'F' | 'e' | 'E' | 'g' | 'G' | '%' | '\0' | 'n', _) => {
            (float.is_sign_negative(), decimal(spec, float.abs()))
        }
        (kind, _) => return Err(invalid(format!("unsupported format character {kind:?}"))),
    };
    let sign = if negative {
        "-"
    } else {
        ["", "+", " "][usize::from(spec.sign == '+') + 2 * usize::from(spec.sign == ' ')]
    };
    Ok(format!("{sign}{}", grouped(spec, digits)))
}

fn based(spec: &Spec, prefix: &str, digits: &str) -> String {
    if spec.alternate { format!("{prefix}{digits}") } else { digits.to_owned() }
}

fn grouped(spec: &Spec, digits: String) -> String {
    let Some(separator) = spec.grouping else { return digits };
    let whole = digits.find(|letter: char| !letter.is_ascii_digit()).unwrap_or(digits.len());
    let mut output = String::new();
    for (index, digit) in digits[..whole].chars().enumerate() {
        if index > 0 && (whole - index).is_multiple_of(3) {
            output.push(separator);
        }
        output.push(digit);
    }
    output + &digits[whole..]
}

/// Formats a non-negative float.
fn decimal(spec: &Spec, number: f64) -> String {
    if !number.is_finite() {
        return python::float(number);
    }
    let precision = spec.precision.unwrap_or(6);
    let text = match spec.kind {
        'f' | 'F' => format!("{number:.precision$}"),
        '%' => format!("{:.precision$}%", number * 100.0),
        'e' | 'E' => exponential(number, precision),
        _ => general(number, precision.max(1)),
    };
    if spec.kind.is_ascii_uppercase() { text.to_uppercase() } else { text }
}

/// Formats a float like `1.5e+02`.
fn exponential(number: f64, precision: usize) -> String {
    let text = format!("{number:.precision$e}");
    let (digits, exponent) = text.split_once('e').unwrap_or((&text, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    format!("{digits}e{}{:02}", if exponent < 0 { '-' } else { '+' }, exponent.abs())
}

/// Formats a float in the shorter of both notations, without trailing zeros.
fn general(number: f64, precision: usize) -> String {
    let text = format!("{number:.*e}", precision - 1);
    let exponent: i32 = text.split_once('e').and_then(|(_, exponent)| exponent.parse().ok()).unwrap_or(0);
    let strip = |text: &str| {
        let digits = if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.') } else { text };
        digits.to_owned()
    };
    if (-4..precision as i32).contains(&exponent) {
        return strip(&format!("{number:.*}", (precision as i32 - 1 - exponent) as usize));
    }
    let text = exponential(number, precision - 1);
    let (digits, exponent) = text.split_once('e').unwrap_or((&text, "+00"));
    format!("{}e{exponent}", strip(digits))
}

/// Writes a text padded to the width.
pub(super) fn padded(output: &mut Buffer, spec: &Spec, text: &str, is_number: bool) -> Outcome<()> {
    let missing = spec.width.saturating_sub(text.chars().count());
    let zeros = spec.zero && is_number;
    let align = spec.align.unwrap_or(if is_number { '>' } else { '<' });
    if zeros || align == '=' {
        let signed = usize::from(text.starts_with(['+', '-', ' ']));
        output.push(&text[..signed])?;
        fill(output, if zeros { '0' } else { spec.fill.unwrap_or(' ') }, missing)?;
        return output.push(&text[signed..]);
    }
    let left = match align {
        '<' => 0,
        '^' => missing / 2,
        _ => missing,
    };
    let letter = spec.fill.unwrap_or(' ');
    fill(output, letter, left)?;
    output.push(text)?;
    fill(output, letter, missing - left)
}

fn fill(output: &mut Buffer, letter: char, count: usize) -> Outcome<()> {
    (0..count).try_for_each(|_| output.push_char(letter))
}
