//! `mlx chat`: a conversation on a terminal or from a pipe.

mod args;
mod attach;
mod calls;
mod command;
mod complete;
mod copy;
mod editor;
mod fence;
mod file_reference;
mod input;
mod kept;
mod markdown;
mod params;
mod preview;
mod reply;
mod resume;
mod retry;
mod screen;
mod settings;
mod style;
mod thumbnails;
mod tokens;
mod tools;
mod wrap;

use chat_format::Part;
use mlx_core::Error;
use mlx_core::chat::ChatSession;
use mlx_core::engine::{EngineOptions, Engines, RequestOptions, TokenOutput};
use mlx_guide as guide;
use mlx_options::{DeviceArgs, describe};

use crate::ask;
use crate::exit_code::Failure;
use crate::input::{expanded, read_file};
use crate::interrupt::Interrupt;
use crate::keyboard::EchoGuard;
use crate::model_args::start;
use crate::model_choice::{self, ChosenModel};
use crate::profile_args::{model_with_profile, think_error, thinking_with_profile, with_profile};
use crate::terminal;
pub(crate) use args::ChatArgs;
use attach::{MessageWithFiles, Senses, with_files};
use command::{HELP, Line, parse};
use fence::Text;
use file_reference::begins_with_file;
use input::{Input, LineReader};
use kept::ChatFile;
pub(crate) use kept::state_folder;
pub(crate) use params::change as change_params;
use reply::StatsLevel;
pub(crate) use screen::{Colors, Screen, ThoughtView};
use thumbnails::Thumbnails;
use tools::{StartingServers, Toolbox};

/// Alternatives per token that `/tokens` shows.
const ALTERNATIVE_COUNT: usize = 4;

/// Runs the command.
pub(crate) fn run(args: &ChatArgs) -> Result<(), Failure> {
    // Report errors in flags before loading the model.
    let first = args.prompt_file.as_deref().map(read_file).transpose()?;
    let profile = args.profile.read()?;
    let profile = profile.as_ref();
    let model = model_with_profile(profile, &args.model)?;
    let flags = args.options.options(Some(ALTERNATIVE_COUNT));
    flags.check()?;
    let (options, engine_options) =
        (with_profile(profile, &flags), model.engine_options(&args.prefix_cache)?);
    options.check()?;
    let mut tools = args.tools.as_deref().map_or_else(|| Ok(Toolbox::default()), Toolbox::open)?;
    let continued = ChatFile::continued(args)?;
    let starting = args.mcp.as_deref().map(|file| {
        StartingServers::read(
            &expanded(&file.to_string_lossy()),
            args.mcp_timeout.duration(),
            tools.command_names(),
        )
    });
    let starting = starting.transpose()?;
    if starting.is_none() {
        tools.allow_all(&args.allow_tool)?;
    }
    let ChosenModel { folder, is_guide } = model_choice::find_or_ask(model.name.given()?)?;
    model_choice::expect_chat_model(&folder)?;
    let interrupt = Interrupt::install();
    let engines = Engines::default();
    let device = model.device;
    let engine = engines.start_by(&folder, &engine_options, || start(&folder, &engine_options, device))?;
    let engine = model.adapted(engine)?;
    if let Some(starting) = starting {
        let failures = tools.add_servers(starting);
        for line in failures.into_iter().chain(tools.allow_all(&args.allow_tool)?) {
            terminal::note(&line);
        }
    }
    // Adapters belong to one model and do not carry over to another.
    let engine_options = EngineOptions { adapters: Vec::new(), ..engine_options };
    let name = if is_guide { guide::NAME.to_owned() } else { engine.folder().name() };
    let session = ChatSession::new(engine, options.clone());
    let policy = args.context_policy.or_else(|| profile?.context_policy);
    let mut session = session.with_policy(policy.unwrap_or_default());
    let thinking = thinking_with_profile(profile, &args.think);
    session.set_thinking(thinking).map_err(|error| think_error(profile, &args.think, error))?;
    session.set_tools(tools.definitions()?).map_err(|error| args.tool_error(error))?;
    let chat_file = continued.unwrap_or_else(|| ChatFile::of(args));
    let session_file = chat_file.path.clone();
    let existing_file = session_file.as_deref().filter(|file| file.exists());
    existing_file.map_or(Ok(()), |file| session.load(file))?;
    if existing_file.is_none() || args.system.is_some() {
        let of_profile = || profile?.system.as_deref();
        session.set_system(args.system.as_deref().or_else(of_profile).unwrap_or_default());
    }
    let lines = LineReader::open(!args.no_history);
    let is_interactive = lines.is_interactive();
    if is_guide {
        terminal::note(guide::NOTE);
    }
    if let Some(note) = model_choice::base_model_note(session.engine().folder()) {
        terminal::note(&note);
    }
    if is_interactive {
        terminal::note(&format!("{name} is ready. /help lists the commands, Ctrl-D leaves."));
    }
    let mut chat = Chat {
        session,
        lines,
        tools,
        rounds: args.tool_rounds,
        interrupt,
        engines,
        engine_options,
        device,
        flags,
        initial: options,
        file: chat_file,
        last: Vec::new(),
        is_cut: false,
        last_options: None,
        colors: terminal::has_colors() && !args.plain,
        thumbnails: Thumbnails::new(is_interactive && terminal::has_colors() && !args.plain),
        view: if is_interactive { ThoughtView::Folded } else { ThoughtView::Hidden },
        stats: match args.model.verbose {
            true => StatsLevel::All,
            false if is_interactive && !args.plain => StatsLevel::Short,
            false => StatsLevel::None,
        },
        failed: false,
    };
    chat.show_last_turns();
    if let Some(text) = first {
        let outcome = chat.respond(|session| session.ask(&text));
        chat.handle_outcome(outcome)?;
    }
    chat.run_loop()?;
    // Scripts need the exit code; on a terminal the user saw the message.
    if chat.failed && !is_interactive { Err(Failure::Reported) } else { Ok(()) }
}

/// Returns the text of an error for a chat, where parameters have names instead of flags.
fn chat_error_text(error: &Error) -> String {
    match error {
        Error::Request { field: "content", message } => format!("a message {message}"),
        Error::Request { field: field @ ("messages" | "prompt"), message }
        | Error::ContextLength { field: field @ ("messages" | "prompt"), message, .. } => {
            format!("the {field} {message}")
        }
        Error::Request { .. } | Error::ContextLength { .. } => error.to_string(),
        other => describe(other),
    }
}

struct Chat {
    session: ChatSession,
    lines: LineReader,
    tools: Toolbox,
    /// Maximum rounds of tool calls; the next answer must be text.
    rounds: usize,
    interrupt: Interrupt,
    /// Finds a running engine by its model.
    engines: Engines,
    /// The options to start another model with.
    engine_options: EngineOptions,
    device: DeviceArgs,
    /// The request options from the command line.
    flags: RequestOptions,
    /// The flags with the options of the profile.
    initial: RequestOptions,
    /// The file of the conversation.
    file: ChatFile,
    /// The tokens of the last answer.
    last: Vec<TokenOutput>,
    /// True if the last answer was stopped or cut by a limit.
    is_cut: bool,
    /// The options of the last answer.
    last_options: Option<RequestOptions>,
    colors: bool,
    thumbnails: Thumbnails,
    view: ThoughtView,
    stats: StatsLevel,
    /// True if an error occurred.
    failed: bool,
}

impl Chat {
    fn run_loop(&mut self) -> Result<(), Failure> {
        loop {
            let line = match self.lines.read()? {
                Input::Text(Text::Joined(text)) if begins_with_file(&text) => Line::Message(text),
                Input::Text(Text::Joined(text)) => parse(&text),
                Input::Text(Text::Fenced(text)) => Line::Message(text),
                Input::Invalid(message) => Line::Invalid(message),
                Input::Interrupted => {
                    terminal::note("press Ctrl-D or type /quit to leave");
                    continue;
                }
                Input::End => return Ok(()),
            };
            let _echo_guard = self.lines.is_interactive().then(EchoGuard::begin);
            let outcome = match line {
                Line::Quit => return Ok(()),
                Line::Edit(None) if !self.lines.is_interactive() => {
                    self.execute(Line::Invalid("/edit needs the new text, because there is no editor".into()))
                }
                Line::Edit(None) => {
                    let Some(last) = self.session.last_question() else {
                        terminal::note("there is no message to change");
                        continue;
                    };
                    let text = self.lines.edit(&last);
                    text.map_or(Ok(()), |text| self.edit(&text))
                }
                line => self.execute(line),
            };
            self.handle_outcome(outcome)?;
        }
    }

    /// Reports a failure. Only a closed output ends the chat.
    fn handle_outcome(&mut self, outcome: Result<(), Failure>) -> Result<(), Failure> {
        match outcome {
            // An interruption ends the answer, not the chat.
            Ok(()) | Err(Failure::Interrupted) => {}
            Err(Failure::Error(error)) => self.report_error(&chat_error_text(&error)),
            Err(Failure::Usage(message)) => self.report_error(&message),
            Err(Failure::Reported) => self.failed = true,
            Err(closed @ Failure::OutputClosed) => return Err(closed),
        }
        Ok(())
    }

    fn execute(&mut self, line: Line) -> Result<(), Failure> {
        match line {
            Line::Empty | Line::Quit | Line::Edit(None) => {}
            Line::Message(text) => {
                if let Some(MessageWithFiles { text, media, .. }) = self.attach_files(&text)? {
                    self.respond(|session| session.ask_about(media, &text))?;
                }
            }
            Line::Retry => self.retry()?,
            Line::Continue => self.continue_answer()?,
            Line::Branch(number, choice) => self.branch(number, choice)?,
            Line::Edit(Some(text)) => {
                self.edit(&text)?;
            }
            Line::Ask(question) => terminal::note(&ask::ask(&self.engines, &question, &self.interrupt)?),
            Line::Help => terminal::note(HELP),
            Line::Save { file, overwrite } => self.save(&file, overwrite)?,
            Line::Load(file) => {
                self.session.load(&expanded(&file))?;
                self.file.begin_new();
                self.conversation_changed()?;
                terminal::note(&format!("{} messages loaded", self.session.messages().len()));
                self.show_last_turns();
            }
            Line::Invalid(message) => self.report_error(&message),
            setting => self.execute_setting(setting)?,
        }
        Ok(())
    }

    /// Runs the commands that start no answer.
    fn execute_setting(&mut self, line: Line) -> Result<(), Failure> {
        match line {
            Line::Clear => {
                self.session.clear();
                self.file.begin_new();
                self.conversation_changed()?;
                terminal::note("conversation cleared");
            }
            Line::Undo => {
                let removed = self.session.undo()?;
                self.conversation_changed()?;
                terminal::note(&format!("removed: {removed}"));
            }
            Line::System(Some(text)) => {
                self.session.set_system(&text);
                self.save_session()?;
                terminal::note("system prompt set; it applies from the next answer on");
            }
            Line::System(None) => self.show_system(),
            Line::Copy { code } => self.copy(code)?,
            Line::Models => self.list_models()?,
            Line::Context => self.show_context_fill()?,
            Line::Tools => terminal::note(&self.tools.list()),
            Line::Servers => terminal::note(&self.tools.list_servers()),
            Line::Tokens => self.show_tokens(),
            Line::Why(number) => self.show_alternatives(number),
            Line::Params(None) => terminal::note(&self.params().table()?),
            Line::Params(Some(text)) => self.change_params(&text, |chat| chat.params().line())?,
            Line::Seed(None) => terminal::note(&self.seed_in_use()),
            Line::Seed(Some(seed)) => {
                self.change_params(&format!("seed={seed}"), |chat| Ok(chat.seed_in_use()))?;
            }
            Line::Think(word) => self.think(word.as_deref())?,
            Line::Model(None) => terminal::note(&self.session.engine().folder().path.display().to_string()),
            Line::Model(Some(name)) => self.change_model(&name)?,
            _ => {}
        }
        Ok(())
    }

    /// Writes the conversation to a file. An existing file is overwritten only if `overwrite` is set.
    fn save(&mut self, file: &str, overwrite: bool) -> Result<(), Failure> {
        let path = expanded(file);
        if path.exists() && !overwrite {
            self.report_error(&format!("{file} exists; /save! {file} overwrites it"));
            return Ok(());
        }
        self.session.save(&path)?;
        terminal::note(&format!("saved to {}", path.display()));
        Ok(())
    }

    /// Replaces the last message. Its pictures and recordings stay unless the new text names others.
    fn edit(&mut self, text: &str) -> Result<(), Failure> {
        let Some(MessageWithFiles { text, media, .. }) = self.attach_files(text)? else { return Ok(()) };
        self.respond(
            |session| {
                if media.is_empty() { session.edit(&text) } else { session.edit_about(media, &text) }
            },
        )
    }

    /// Writes the conversation to the session file, if any.
    fn save_session(&self) -> Result<(), Failure> {
        self.file.save(&self.session)
    }

    /// Drops the tokens of the last answer, because the conversation has changed.
    fn conversation_changed(&mut self) -> Result<(), Failure> {
        self.last.clear();
        self.save_session()
    }

    /// Attaches the files that a message names and prints a note for each, with a thumbnail of pictures if the terminal supports it. `None` if
    /// one cannot be attached.
    fn attach_files(&mut self, text: &str) -> Result<Option<MessageWithFiles>, Failure> {
        let engine = self.session.engine();
        let count_tokens =
            |text: &str| engine.folder().tokenizer.encode(text, false).map_or(0, |tokens| tokens.len());
        // An unusable tower is reported with its cause when the message is sent.
        let senses = Senses {
            vision: !matches!(engine.image_processor(), Err(Error::Request { .. })),
            hearing: !matches!(engine.audio_processor(), Err(Error::Request { .. })),
        };
        match with_files(text, senses, count_tokens) {
            Ok(attached) => {
                for note in &attached.notes {
                    terminal::note(note);
                }
                self.thumbnails.show(attached.media.iter().filter_map(Part::image))?;
                Ok(Some(attached))
            }
            Err(message) => {
                self.report_error(&message);
                Ok(None)
            }
        }
    }

    fn report_error(&mut self, message: &str) {
        terminal::note(&format!("error: {message}"));
        self.failed = true;
    }
}
