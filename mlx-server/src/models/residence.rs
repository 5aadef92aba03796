//! The time that a model stays loaded without a request.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use mlx_json::Value;

use crate::field_value::{FieldValue, as_integer};

/// The maximum finite time. Longer ones would overflow clocks.
const LONGEST: Duration = Duration::from_hours(365 * 24);

/// The time that a model stays loaded after its last request, as Ollama's `keep_alive`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum KeepAlive {
    /// This long; zero unloads the model as soon as no request uses it.
    For(Duration),
    /// Until another model needs the memory.
    Forever,
}

impl FieldValue for KeepAlive {
    /// Reads a number of seconds or a text such as `5m` or `1h30m`. Negative times mean forever.
    fn read(value: Value) -> Result<Self, String> {
        const FORM: &str =
            "must be a number of seconds or a duration such as 5m; 0 unloads, -1 keeps the model";
        match value {
            Value::Number(number) => {
                let seconds = as_integer(&number).map(|it| it as f64).or_else(|| number.as_f64());
                seconds.map(Self::of_seconds).ok_or_else(|| FORM.to_owned())
            }
            Value::String(text) => duration(text.trim()).map(Self::of_seconds).ok_or_else(|| FORM.to_owned()),
            _ => Err(FORM.to_owned()),
        }
    }
}

impl KeepAlive {
    fn of_seconds(seconds: f64) -> Self {
        if seconds < 0.0 || seconds > LONGEST.as_secs_f64() {
            return Self::Forever;
        }
        Self::For(Duration::from_secs_f64(seconds))
    }
}

/// Parses a duration as Go does, in seconds: numbers with units, or one number of seconds.
fn duration(text: &str) -> Option<f64> {
    let (sign, mut rest) = match text.strip_prefix('-') {
        Some(rest) => (-1.0, rest),
        None => (1.0, text.strip_prefix('+').unwrap_or(text)),
    };
    if let Ok(seconds) = rest.parse::<f64>() {
        return (rest.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.')).then_some(sign * seconds);
    }
    if rest.is_empty() {
        return None;
    }
    let mut seconds = 0.0;
    while !rest.is_empty() {
        let digits = rest.find(|letter: char| !letter.is_ascii_digit() && letter != '.')?;
        let number: f64 = rest[..digits].parse().ok()?;
        let unit = &rest[digits..];
        let end = unit.find(|letter: char| letter.is_ascii_digit() || letter == '.').unwrap_or(unit.len());
        let scale = match &unit[..end] {
            "ns" => 1e-9,
            "us" | "\u{b5}s" | "\u{3bc}s" => 1e-6,
            "ms" => 1e-3,
            "s" => 1.0,
            "m" => 60.0,
            "h" => 3600.0,
            _ => return None,
        };
        seconds += number * scale;
        rest = &unit[end..];
    }
    Some(sign * seconds)
}

/// The `keep_alive` and the pin that clients set for a model.
#[derive(Debug, Default)]
pub(super) struct Residence(Mutex<Wishes>);

#[derive(Debug, Default, Clone, Copy)]
struct Wishes {
    keep_alive: Option<KeepAlive>,
    is_pinned: bool,
}

impl Residence {
    /// Sets the time without a request. It holds until the next call, or until the model is unloaded.
    pub(super) fn keep(&self, keep_alive: KeepAlive) {
        self.wishes().keep_alive = Some(keep_alive);
    }

    /// Pins the model, or removes the pin.
    pub(super) fn pin(&self, is_pinned: bool) {
        self.wishes().is_pinned = is_pinned;
    }

    /// Returns true if the model may only be unloaded on request.
    pub(super) fn is_pinned(&self) -> bool {
        self.wishes().is_pinned
    }

    /// Cancels the wish to unload the model as soon as no request uses it.
    pub(super) fn stay(&self) {
        let mut wishes = self.wishes();
        wishes.keep_alive = wishes.keep_alive.filter(|it| *it != KeepAlive::For(Duration::ZERO));
    }

    /// Returns to the server's time.
    pub(super) fn reset(&self) {
        self.wishes().keep_alive = None;
    }

    /// Returns the end of the stay of a model that was last used at this time, `None` if it has none. `default` is the server's time.
    pub(super) fn end(&self, last_used: Instant, default: Option<Duration>) -> Option<Instant> {
        let Wishes { keep_alive, is_pinned } = *self.wishes();
        match keep_alive {
            _ if is_pinned => None,
            Some(KeepAlive::For(time)) => Some(last_used + time),
            Some(KeepAlive::Forever) => None,
            None => default.map(|time| last_used + time.min(LONGEST)),
        }
    }

    fn wishes(&self) -> MutexGuard<'_, Wishes> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fields::value as json;

    #[test]
    fn times_are_read_as_ollama_reads_them() {
        let after = |seconds: f64| Some(KeepAlive::For(Duration::from_secs_f64(seconds)));
        for (given, expected) in [
            (json!(0), after(0.0)),
            (json!(300), after(300.0)),
            (json!(0.5), after(0.5)),
            (json!("0"), after(0.0)),
            (json!("5m"), after(300.0)),
            (json!("1h30m"), after(5400.0)),
            (json!("1.5h"), after(5400.0)),
            (json!("250ms"), after(0.25)),
            (json!(-1), Some(KeepAlive::Forever)),
            (json!("-1m"), Some(KeepAlive::Forever)),
            (json!("-1"), Some(KeepAlive::Forever)),
            (json!(1e30), Some(KeepAlive::Forever)),
            (json!(""), None),
            (json!("soon"), None),
            (json!("5 m"), None),
            (json!("m"), None),
            (json!("-"), None),
            (json!("inf"), None),
            (json!(true), None),
        ] {
            assert_eq!(KeepAlive::read(given.clone()).ok(), expected, "{given}");
        }
    }

    #[test]
    fn a_pin_is_stronger_than_a_time() {
        let (residence, now) = (Residence::default(), Instant::now());
        let second = Duration::from_secs(1);
        assert_eq!(residence.end(now, None), None);
        assert_eq!(residence.end(now, Some(second)), Some(now + second));
        residence.keep(KeepAlive::For(2 * second));
        assert_eq!(residence.end(now, Some(second)), Some(now + 2 * second));
        residence.keep(KeepAlive::Forever);
        assert_eq!(residence.end(now, Some(second)), None);
        residence.keep(KeepAlive::For(Duration::ZERO));
        residence.pin(true);
        assert_eq!((residence.end(now, Some(second)), residence.is_pinned()), (None, true));
        residence.pin(false);
        residence.stay();
        assert_eq!(residence.end(now, None), None, "a load cancels the wish to unload");
        residence.keep(KeepAlive::For(second));
        residence.stay();
        assert_eq!(residence.end(now, None), Some(now + second));
        residence.reset();
        assert_eq!(residence.end(now, Some(second)), Some(now + second));
    }
}
