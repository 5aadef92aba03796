//! `mlx transcribe`: turns speech in audio files into text or subtitles.

mod files;

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use clap::{Args, ValueEnum};
use mlx_audio::Limits;
use mlx_core::engine::{Engine, EngineOptions, RequestOptions};
use mlx_core::speech::language_code;
use mlx_core::transcription::{
    SpeechAudio, Timed, Transcript, TranscriptFormat, Transcription, TranscriptionOptions, Translate,
};
use mlx_core::{Abilities, Error, SamplingOptions};
use mlx_options::{DeviceArgs, LoadArgs, printable};

use crate::completion::model_completer;
use crate::exit_code::Failure;
use crate::model_choice;
use crate::terminal;

pub(crate) const EXAMPLES: &str = "\
Examples:
  mlx transcribe -m MODEL talk.mp3
  mlx transcribe -m MODEL --format srt film.m4a > film.srt
  mlx transcribe -m MODEL --format verbose_json --word-timestamps talk.mp3
  mlx transcribe -m MODEL --task translate --language de interview.flac
  mlx transcribe -m MODEL --format vtt --output-dir subtitles recordings/

MODEL is a Whisper model or Qwen3-ASR. Translation and the times of words need Whisper. A folder stands for the audio files in it. Formats:
wav, flac, mp3, m4a and mp4 with AAC, ogg and webm with Vorbis or Opus. MLX_MODEL and `mlx default` name a model too.";

#[derive(Debug, Args)]
pub(crate) struct TranscribeArgs {
    /// Audio files, or folders of them
    #[arg(value_name = "FILE", required = true)]
    files: Vec<PathBuf>,

    /// A Whisper model or Qwen3-ASR: a name that `mlx list` shows, ORG/NAME to download, or a folder
    #[arg(short, long, value_name = "MODEL", add = model_completer())]
    model: Option<PathBuf>,

    /// The format of the output
    #[arg(long, value_enum, default_value_t = Format::Text)]
    format: Format,

    /// Find the times of words; for Whisper and the formats verbose_json, srt and vtt
    #[arg(long)]
    word_timestamps: bool,

    /// The spoken language, as a code or a name, such as de or german [default: detected]
    #[arg(long, value_name = "LANGUAGE")]
    language: Option<String>,

    /// Write the text in the spoken language, or translate it to English (Whisper)
    #[arg(long, value_enum, default_value_t = Task::Transcribe)]
    task: Task,

    /// Names, terms and a style to follow: the text before the first words, or the context for Qwen3-ASR
    #[arg(long, value_name = "TEXT")]
    prompt: Option<String>,

    /// Only try this temperature [default: 0; Whisper then tries higher ones for windows that fail]
    #[arg(long, value_name = "T")]
    temperature: Option<f32>,

    /// Seed of the random draws at temperatures above 0
    #[arg(long, value_name = "N")]
    seed: Option<u64>,

    /// Do not give the text so far to Whisper, which can prevent repetitions; Qwen3-ASR never gets it
    #[arg(long)]
    no_previous_text: bool,

    /// Write one file for each input into this folder instead of printing
    #[arg(long, value_name = "FOLDER")]
    output_dir: Option<PathBuf>,

    #[command(flatten)]
    device: DeviceArgs,

    #[command(flatten)]
    load: LoadArgs,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Format {
    Text,
    Srt,
    Vtt,
    Json,
    #[value(name = "verbose_json")]
    VerboseJson,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Task {
    Transcribe,
    Translate,
}

/// Runs the command.
pub(crate) fn run(args: &TranscribeArgs) -> Result<(), Failure> {
    let options = args.options()?;
    let format = args.format();
    let files = files::expanded(&args.files)?;
    if files.len() > 1 && args.output_dir.is_none() && format != TranscriptFormat::Text {
        let message =
            format!("is needed for the {} files, since only text can be printed for several", files.len());
        return Err(Failure::usage("--output-dir", message));
    }
    if let Some(folder) = &args.output_dir {
        let mut targets = BTreeMap::new();
        for file in &files {
            if let Some(other) = targets.insert(args.target(folder, file), file) {
                let message =
                    format!("would get one file for {} and {}; rename one", other.display(), file.display());
                return Err(Failure::usage("--output-dir", message));
            }
        }
    }
    args.device.choose()?;
    let folder = model_choice::find(args.model.as_deref())?;
    if Abilities::of(&folder).is_ok_and(|abilities| !abilities.transcribes) {
        let message = "transcribes no audio; name a speech recognizer, such as openai/whisper-base or Qwen/Qwen3-ASR-0.6B-hf, or give the file to a model that hears by mlx generate --audio";
        return Err(Failure::usage("--model", message));
    }
    let mut engine_options = EngineOptions::single();
    args.load.apply(&mut engine_options);
    let engine = Engine::start(&folder, &engine_options, terminal::load_bar())?;
    options.check(&engine).map_err(|error| args.named(error))?;
    let mut failed = false;
    for file in &files {
        let written = transcript(&engine, file, &options, args.seed)
            .and_then(|transcript| args.write(file, &transcript, files.len() > 1));
        match written {
            // With several files, the others are still transcribed.
            Err(failure) if files.len() > 1 && failure.message().is_some() => {
                let message = failure.message().unwrap_or_default();
                terminal::note(&format!("error: {message}"));
                failed = true;
            }
            other => other?,
        }
    }
    if failed { Err(Failure::Reported) } else { Ok(()) }
}

impl TranscribeArgs {
    fn options(&self) -> Result<TranscriptionOptions, Failure> {
        let code = |text: &String| {
            let unknown = || {
                Failure::usage(
                    "--language",
                    format!("is {text:?}; give a code or an English name, such as de or german"),
                )
            };
            language_code(text).map(str::to_owned).ok_or_else(unknown)
        };
        let mut options = TranscriptionOptions {
            language: self.language.as_ref().map(code).transpose()?,
            translate: if self.task == Task::Translate { Translate::ToEnglish } else { Translate::No },
            prompt: self.prompt.clone(),
            condition_on_previous: !self.no_previous_text,
            timed: if self.word_timestamps { Timed::Both } else { Timed::Segments },
            ..TranscriptionOptions::default()
        };
        let format = self.format();
        if self.word_timestamps && matches!(format, TranscriptFormat::Text | TranscriptFormat::Json) {
            let message = "needs --format verbose_json, srt or vtt, which have times";
            return Err(Failure::usage("--word-timestamps", message));
        }
        if let Some(temperature) = self.temperature {
            if !(0.0..=2.0).contains(&temperature) {
                return Err(Failure::usage(
                    "--temperature",
                    format!("is {temperature}; it must be from 0 to 2"),
                ));
            }
            options.temperatures = vec![temperature];
        }
        Ok(options)
    }

    /// Names the flag of an option that the model does not support.
    fn named(&self, error: Error) -> Failure {
        match error {
            Error::Request { field: "timestamp_granularities", .. } => Failure::usage(
                "--word-timestamps",
                "is not available: this model gives no times of words; use a Whisper model",
            ),
            Error::Request { field: "model", message } if self.task == Task::Translate => {
                Failure::usage("--task translate", format!("cannot be done: the model {message}"))
            }
            other => other.into(),
        }
    }

    fn format(&self) -> TranscriptFormat {
        match self.format {
            Format::Text => TranscriptFormat::Text,
            Format::Srt => TranscriptFormat::Srt,
            Format::Vtt => TranscriptFormat::Vtt,
            Format::Json => TranscriptFormat::Json,
            Format::VerboseJson => TranscriptFormat::VerboseJson,
        }
    }

    /// Returns the path of a transcript.
    fn target(&self, folder: &Path, file: &Path) -> PathBuf {
        let name = file.file_name().unwrap_or_default().to_string_lossy();
        folder.join(format!("{name}.{}", self.format().suffix()))
    }

    /// Prints a transcript, or writes its file.
    fn write(&self, file: &Path, transcript: &Transcript, is_one_of_several: bool) -> Result<(), Failure> {
        let format = self.format();
        let mut text = match format {
            // Segments on separate lines are easier to read.
            TranscriptFormat::Text => lines(transcript),
            _ => transcript.format(format),
        };
        if !text.ends_with('\n') {
            text.push('\n');
        }
        let Some(folder) = &self.output_dir else {
            if is_one_of_several {
                text = format!("{}:\n{text}\n", file.display());
            }
            return terminal::show(&text);
        };
        std::fs::create_dir_all(folder).map_err(|error| Error::io(folder, error))?;
        let path = self.target(folder, file);
        mlx_files::write_atomically(&path, text.as_bytes())?;
        terminal::note(&format!("wrote {}", path.display()));
        Ok(())
    }
}

/// Returns the text with a line for each segment.
fn lines(transcript: &Transcript) -> String {
    transcript.segments.iter().flat_map(|segment| [segment.text.trim(), "\n"]).collect()
}

/// Transcribes a file.
fn transcript(
    engine: &Engine,
    file: &Path,
    options: &TranscriptionOptions,
    seed: Option<u64>,
) -> Result<Transcript, Failure> {
    let audio = SpeechAudio::of_file(engine, read(file, &Limits::default())?, &mut |_| Ok(()));
    let audio = audio.map_err(|error| Error::file(file, error.to_string()))?;
    let base = RequestOptions {
        sampling: SamplingOptions { seed: Some(seed.unwrap_or(0)), ..SamplingOptions::default() },
        ..RequestOptions::default()
    };
    let mut transcription = Transcription::new(engine, audio, options.clone(), &base)?;
    let name = file.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let mut progress = terminal::seconds_bar(&printable(&name), transcription.duration());
    let mut segments = Vec::new();
    while let Some(more) = transcription.next_segments()? {
        segments.extend(more);
        progress(transcription.position());
    }
    Ok(transcription.transcript(segments))
}

/// Reads a file. One byte more than the limit suffices to reject it.
fn read(file: &Path, limits: &Limits) -> Result<Vec<u8>, Error> {
    let mut bytes = Vec::new();
    let opened = File::open(file).map_err(|error| Error::io(file, error))?;
    let read = opened.take(limits.bytes as u64 + 1).read_to_end(&mut bytes);
    read.map_err(|error| Error::io(file, error))?;
    Ok(bytes)
}
