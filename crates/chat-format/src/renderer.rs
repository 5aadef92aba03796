//! Renders a conversation in the first layout that the model's template accepts. All renderings of a request share its
//! limits.

use super::history::{prepared, with_objects};
use super::layout::{Layout, split_head};
use super::message::{Message, Role};
use super::tool_support::ToolSupport;
use crate::error::{Error, Result};
use crate::{ChatTemplate, RenderLimits, TemplateInput, text::Pause};

/// Marks the end of a continued message while it is rendered.
const CONTINUED: &str = "qZ7continuedHere7Zq";
/// A conversation with several leading instructions.
const HEAD: [Role; 3] = [Role::System, Role::System, Role::User];
/// A conversation with instructions after each kind of message.
const LATER: [Role; 8] = [
    Role::System,
    Role::User,
    Role::System,
    Role::Assistant,
    Role::User,
    Role::Assistant,
    Role::System,
    Role::User,
];

/// Renders the conversations of one request.
pub struct Renderer<'a> {
    /// The model's template.
    pub template: &'a ChatTemplate,
    /// The model's tool support, if it can call tools.
    pub tools: Option<&'a ToolSupport>,
    /// The limits of all renderings together.
    pub limits: RenderLimits,
    /// Called during renderings.
    pub pause: Pause<'a>,
}

impl Renderer<'_> {
    /// Returns the prompt of a conversation.
    pub fn text(&self, input: &TemplateInput) -> Result<String> {
        let Some(support) = self.tools.filter(|_| has_calls(&input.messages)) else {
            return self.in_any_layout(input, &input.messages)?;
        };
        let messages = prepared(&input.messages, support);
        let rendered = self.in_any_layout(input, &messages)?;
        match (rendered, with_objects(&messages)) {
            (Err(_), Some(messages)) => self.in_any_layout(input, &messages)?,
            (rendered, _) => rendered,
        }
    }

    /// Renders the messages as given, except for instructions that the template would reject, drop or move. If the
    /// template raises an error, other layouts are tried. If all fail, the first error is returned. The inner error is
    /// the template's own.
    fn in_any_layout(&self, input: &TemplateInput, messages: &[Message]) -> Result<Result<String>> {
        let needed = self.needed(input, messages)?;
        let mut refused = None;
        for layout in Layout::all().filter(|layout| layout.has(needed)) {
            let Some(messages) = layout.of(messages) else { continue };
            match self.continued(&with(input, messages))? {
                Ok(text) => return Ok(Ok(text)),
                Err(error) => drop(refused.get_or_insert(error)),
            }
        }
        Ok(Err(refused.unwrap_or_else(|| Error::Template("it accepts no layout of the messages".into()))))
    }

    /// Returns the layout changes without which the template would reject, drop or move instructions. Some templates
    /// only show the first or the last instruction. Some show all of them at the beginning, where each new one changes
    /// the whole prompt.
    fn needed(&self, input: &TemplateInput, messages: &[Message]) -> Result<Layout> {
        let (head, rest) = split_head(messages);
        let mut needed = Layout::default();
        if head.len() > 1 && !self.shows_in_order(input, &HEAD)? {
            needed = needed.with(Layout::MERGE_SYSTEM);
        }
        if rest.iter().any(|message| message.role.is_instruction()) && !self.shows_in_order(input, &LATER)? {
            needed = needed.with(Layout::REMINDERS);
        }
        Ok(needed)
    }

    /// Returns true if the template renders messages of these roles in order. Their texts are made up, so that texts of
    /// the conversation cannot be confused, and the result is the same for each of its turns. A template that raises an
    /// error may still accept some instructions as user or assistant messages, if their number is right.
    fn shows_in_order(&self, input: &TemplateInput, roles: &[Role]) -> Result<bool> {
        let text = |place: usize| format!("qZ{place}instructionZq");
        let messages = roles.iter().enumerate().map(|(place, role)| Message::new(*role, text(place)));
        let probe = TemplateInput {
            add_generation_prompt: false,
            continue_final_message: false,
            ..with(input, messages.collect())
        };
        let Ok(rendered) = self.template.try_render(&probe, &self.limits, self.pause)? else {
            return Ok(false);
        };
        let places: Option<Vec<usize>> = (0..roles.len()).map(|place| rendered.find(&text(place))).collect();
        Ok(places.is_some_and(|places| places.is_sorted()))
    }

    /// Renders a conversation. If its last message is continued, the text ends inside that message.
    fn continued(&self, input: &TemplateInput) -> Result<Result<String>> {
        let render = |input: &TemplateInput| self.template.try_render(input, &self.limits, self.pause);
        let Some((last, before)) = input.messages.split_last().filter(|_| input.continue_final_message)
        else {
            return render(input);
        };
        // The template's text after the message is cut off.
        let mut marked = last.clone();
        marked.push_text(CONTINUED);
        let messages = [before, &[marked]].concat();
        let rendered = render(&TemplateInput { add_generation_prompt: false, ..with(input, messages) })?;
        Ok(rendered.and_then(|text| match text.rfind(CONTINUED) {
            Some(end) => Ok(text[..end].to_owned()),
            None => Err(Error::Template("it does not write the message to continue".into())),
        }))
    }
}

fn has_calls(messages: &[Message]) -> bool {
    messages.iter().any(|message| !message.tool_calls.is_empty())
}

/// Returns the input with other messages.
fn with(input: &TemplateInput, messages: Vec<Message>) -> TemplateInput {
    TemplateInput {
        messages,
        tools: input.tools.clone(),
        documents: input.documents.clone(),
        add_generation_prompt: input.add_generation_prompt,
        continue_text: input.continue_text,
        continue_final_message: input.continue_final_message,
        extra: input.extra.clone(),
        now: input.now,
    }
}

#[cfg(test)]
mod tests;
