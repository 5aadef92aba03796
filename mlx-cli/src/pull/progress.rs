//! Download progress: one bar for all files, with the actual network rate and the remaining time. Without a terminal, one line per
//! completed file.

use std::collections::VecDeque;
use std::fmt::Write;
use std::io::{IsTerminal, stderr};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressState, ProgressStyle};
use mlx_hub_client::FileProgress;
use mlx_options::{printable, rough_size};

use crate::terminal::note;

/// The layout of the bar. It fits a terminal of 60 columns.
const TEMPLATE: &str = "{wide_bar} {percent:>3} %  {amount}{rate}{left}{activity}";

/// The time window of the rate.
const WINDOW: Duration = Duration::from_secs(8);

/// The progress of all files of a model.
pub(super) struct Progress {
    bar: ProgressBar,
    state: Arc<Mutex<BarState>>,
}

/// The values that the bar shows besides bytes.
#[derive(Default)]
struct BarState {
    rate: Rate,
    activity: &'static str,
}

impl Progress {
    /// Creates a bar for this total of bytes.
    pub(super) fn new(bytes: u64) -> Self {
        let is_watched = stderr().is_terminal();
        let target = if is_watched { ProgressDrawTarget::stderr() } else { ProgressDrawTarget::hidden() };
        let bar = ProgressBar::with_draw_target(Some(bytes), target);
        let state = Arc::default();
        bar.set_style(style(&state));
        if is_watched {
            // The shown rate must also fall while nothing arrives.
            bar.enable_steady_tick(Duration::from_millis(250));
        }
        Self { bar, state }
    }

    /// Runs code that may print while the bar is hidden.
    pub(super) fn pausing(&self, work: impl FnOnce()) {
        self.bar.suspend(work);
    }

    /// Removes the bar.
    pub(super) fn finish(&self) {
        self.bar.finish_and_clear();
    }

    fn state(&self) -> MutexGuard<'_, BarState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl mlx_hub_client::Progress for Progress {
    fn file<'a>(&'a self, name: &'a str) -> Box<dyn FileProgress + 'a> {
        Box::new(File { all: self, name, counted: AtomicU64::new(0) })
    }
}

/// The progress of one file.
struct File<'a> {
    all: &'a Progress,
    name: &'a str,
    /// Bytes of the file that the bar counts.
    counted: AtomicU64,
}

impl File<'_> {
    /// Sets the counted bytes of the file and returns the previous count.
    fn count(&self, bytes: u64) -> u64 {
        let before = self.counted.swap(bytes, Ordering::Relaxed);
        if bytes >= before {
            self.all.bar.inc(bytes - before);
        } else {
            self.all.bar.dec(before - bytes);
        }
        before
    }
}

impl FileProgress for File<'_> {
    fn verified(&self, bytes: u64) {
        self.all.state().activity = "  checking";
        self.count(bytes);
    }

    fn received(&self, bytes: u64) {
        let before = self.count(bytes);
        let mut state = self.all.state();
        state.activity = "";
        state.rate.add(Instant::now(), bytes.saturating_sub(before));
    }

    fn resumed(&self, bytes: u64) {
        self.count(bytes);
    }

    fn note(&self, line: &str) {
        self.all.bar.suspend(|| note(&format!("{}: {line}", printable(self.name))));
    }

    fn done(&self, size: u64) {
        self.count(size);
        if self.all.bar.is_hidden() {
            note(&format!("{}  {}", printable(self.name), rough_size(size)));
        }
    }
}

/// The rate of arriving bytes.
#[derive(Default)]
struct Rate {
    /// Times and sizes of arrivals, oldest first.
    arrivals: VecDeque<(Instant, u64)>,
    /// The time of the first byte.
    begin: Option<Instant>,
}

impl Rate {
    fn add(&mut self, now: Instant, bytes: u64) {
        self.begin.get_or_insert(now);
        match self.arrivals.back_mut() {
            Some((then, sum)) if now.duration_since(*then) < Duration::from_millis(100) => *sum += bytes,
            _ => self.arrivals.push_back((now, bytes)),
        }
        self.drop_old(now);
    }

    fn drop_old(&mut self, now: Instant) {
        while self.arrivals.front().is_some_and(|(then, _)| now.duration_since(*then) > WINDOW) {
            self.arrivals.pop_front();
        }
    }

    /// Returns the bytes per second; `None` while that would be a guess.
    fn bytes_per_second(&mut self, now: Instant) -> Option<f64> {
        self.drop_old(now);
        let time = now.duration_since(self.begin?).min(WINDOW).as_secs_f64();
        let bytes: u64 = self.arrivals.iter().map(|(_, bytes)| bytes).sum();
        (time >= 0.5).then(|| bytes as f64 / time)
    }
}

fn style(state: &Arc<Mutex<BarState>>) -> ProgressStyle {
    let locked = |state: &Arc<Mutex<BarState>>| {
        let state = Arc::clone(state);
        move || state.lock().unwrap_or_else(PoisonError::into_inner).rate.bytes_per_second(Instant::now())
    };
    let (rate, same_rate, activity) = (locked(state), locked(state), Arc::clone(state));
    // Writing to a string cannot fail.
    let style = ProgressStyle::with_template(TEMPLATE).unwrap_or_else(|_| ProgressStyle::default_bar());
    style
        .with_key("amount", |bar: &ProgressState, out: &mut dyn Write| {
            let _ = out.write_str(&amount(bar.pos(), bar.len().unwrap_or_default()));
        })
        .with_key("rate", move |_: &ProgressState, out: &mut dyn Write| {
            if let Some(rate) = rate() {
                let _ = write!(out, "  {}/s", rough_size(rate as u64));
            }
        })
        .with_key("left", move |bar: &ProgressState, out: &mut dyn Write| {
            let rest = bar.len().unwrap_or_default().saturating_sub(bar.pos());
            if let Some(rate) = same_rate().filter(|rate| *rate > 0.0 && rest > 0) {
                let _ = write!(out, "  {} left", clock((rest as f64 / rate) as u64));
            }
        })
        .with_key("activity", move |_: &ProgressState, out: &mut dyn Write| {
            let _ = out.write_str(activity.lock().unwrap_or_else(PoisonError::into_inner).activity);
        })
        .progress_chars("█▉▊▋▌▍▎▏░")
}

/// Formats bytes of a total, in the unit of the total: `1.2 of 2.8 GB`.
fn amount(bytes: u64, total: u64) -> String {
    let (unit, name, digits) = match total {
        1_000_000_000.. => (1e9, "GB", 1),
        1_000_000.. => (1e6, "MB", 0),
        _ => (1e3, "kB", 0),
    };
    format!("{:.digits$} of {:.digits$} {name}", bytes as f64 / unit, total as f64 / unit)
}

/// Formats minutes and seconds, with hours if there are any.
fn clock(seconds: u64) -> String {
    let (hours, minutes, seconds) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
    if hours > 0 { format!("{hours}:{minutes:02}:{seconds:02}") } else { format!("{minutes}:{seconds:02}") }
}

#[cfg(test)]
mod tests {
    use mlx_hub_client::Progress as _;

    use super::*;

    #[test]
    fn amounts_and_times_are_short() {
        assert_eq!(amount(1_234_000_000, 2_800_000_000), "1.2 of 2.8 GB");
        assert_eq!(amount(97_400_000, 340_000_000), "97 of 340 MB");
        assert_eq!(amount(0, 900), "0 of 1 kB");
        assert_eq!([clock(9), clock(83), clock(3_725)], ["0:09", "1:23", "1:02:05"]);
    }

    #[test]
    fn the_rate_counts_what_arrived_lately() {
        let (mut rate, begin) = (Rate::default(), Instant::now());
        assert_eq!(rate.bytes_per_second(begin), None);
        let second = |number: u64| begin + Duration::from_secs(number);
        for number in 0..4 {
            rate.add(second(number), 100);
        }
        assert_eq!(rate.bytes_per_second(second(4)), Some(100.0));
        rate.add(second(20), 1600);
        assert_eq!(rate.bytes_per_second(second(20)), Some(200.0), "a burst after a pause, over the window");
        assert_eq!(rate.bytes_per_second(second(40)), Some(0.0), "nothing arrives any more");
    }

    #[test]
    fn a_file_that_begins_again_takes_its_bytes_back() {
        let progress = Progress::new(100);
        let file = progress.file("a");
        file.verified(60);
        file.received(80);
        file.received(10);
        assert_eq!(progress.bar.position(), 10);
        file.done(50);
        assert_eq!(progress.bar.position(), 50);
    }
}
