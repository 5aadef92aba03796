//! Conversations and answers longer than the context: they continue in constant memory, and the model always sees its system prompt.

use chat_format::text::NO_PAUSE;
use chat_format::{Message, Role, TemplateInput};
use mlx_core::array::{active_memory, peak_memory, reset_peak_memory};
use mlx_core::chat::{ChatSession, ContextPolicy, StreamEvent, chat_prompt};
use mlx_core::engine::{Engine, EngineOptions, Exactness, FinishReason, RequestOptions};
use mlx_core::sampling::SamplingOptions;
use mlx_tests::scale::cases;
use mlx_tests::{Outcome, collect, device, greedy, model_folder, run};

const MODEL: &str = "llama-f32";

fn start(options: &EngineOptions) -> Engine {
    Engine::start(&model_folder(MODEL), options, |_, _| {}).expect("it loads")
}

fn cold(exact: bool) -> Engine {
    start(&EngineOptions { exact, prefix_cache: Some(0), ..EngineOptions::default() })
}

fn drawn(tokens: usize) -> RequestOptions {
    let sampling = SamplingOptions { temperature: Some(0.8), seed: Some(3), ..SamplingOptions::default() };
    RequestOptions { sampling, ..greedy(tokens) }
}

/// Returns the messages in the model's context.
fn visible(session: &ChatSession) -> Vec<Message> {
    let mut messages = session.messages().to_vec();
    messages.drain(session.dropped());
    messages
}

/// The memory of a quarter of a chat: its peak, and the least that stayed allocated after a turn.
#[derive(Debug)]
struct Memory {
    peak: usize,
    kept: usize,
}

/// Runs a chat of this many turns. Returns the memory of each quarter, and the visible messages and the outcome of each turn.
fn chat(policy: ContextPolicy, tokens: usize, count: usize) -> (Vec<Memory>, Vec<(Vec<Message>, Outcome)>) {
    let engine =
        start(&EngineOptions { exact: true, prefix_cache: Some(400_000), ..EngineOptions::default() });
    let mut session = ChatSession::new(engine, drawn(tokens)).with_policy(policy);
    session.set_system("Be brief.");
    let (mut quarters, mut turns, mut kept) = (Vec::new(), Vec::new(), usize::MAX);
    for turn in 0..count {
        if turn % (count / 4) == 0 {
            reset_peak_memory().expect("a device");
            kept = usize::MAX;
        }
        let question = format!("Question {turn}?");
        let asked = session.ask(&question).map(|answer| {
            mlx_tests::outcome(answer.filter_map(|event| match event {
                StreamEvent::Engine(event) => Some(event),
                StreamEvent::Chat(_) => None,
            }))
        });
        match asked {
            Ok(outcome) => {
                let mut seen = visible(&session);
                let answer = seen.pop().expect("the answer is a message of the session");
                assert_eq!(answer, Message::assistant(&outcome.text), "turn {turn}");
                assert_eq!(seen[0], Message::system("Be brief."), "turn {turn}");
                assert_eq!(seen.last(), Some(&Message::user(question.as_str())), "turn {turn}");
                turns.push((seen, outcome));
            }
            Err(error) => {
                assert_eq!(policy, ContextPolicy::Stop, "turn {turn}: {error}");
                let message = error.to_string();
                assert!(message.contains("the model's context holds 256"), "{message}");
            }
        }
        kept = kept.min(active_memory().expect("a figure"));
        if turn % (count / 4) == count / 4 - 1 {
            quarters.push(Memory { peak: peak_memory().expect("a figure"), kept });
        }
    }
    (quarters, turns)
}

fn assert_flat(quarters: &[Memory]) {
    // The caches are full after the first quarter. From then on the allocated memory is constant to the byte, so any leak shows.
    assert!(quarters[3].kept <= quarters[1].kept, "memory grows with each turn: {quarters:?}");
    // The peak of a single quarter depends on how much memory of an old pass is still allocated when the next one starts.
    let peak = |half: &[Memory]| half.iter().map(|it| it.peak).max().expect("two quarters");
    let (early, late) = (peak(&quarters[..2]), peak(&quarters[2..]));
    // Tolerates the extra digits of later questions and that effect, which is up to 6 % on a busy machine.
    assert!(late <= early + early / 10, "peak memory grows: {quarters:?}");
}

#[test]
fn evicted_turns_leave_an_exact_chat_of_200_turns() {
    let _turn = device();
    let (quarters, turns) = chat(ContextPolicy::EvictTurns, 12, 200);
    assert_flat(&quarters);
    assert_eq!(turns.len(), 200);
    let engine = cold(true);
    let (mut hits, mut moved) = (0, 0);
    for (turn, (seen, outcome)) in turns.iter().enumerate() {
        let roles: Vec<Role> = seen[1..].iter().map(|message| message.role).collect();
        let complete_turns =
            roles.chunks(2).all(|pair| pair == [Role::User, Role::Assistant] || pair == [Role::User]);
        assert!(complete_turns && roles.last() == Some(&Role::User), "turn {turn}: {roles:?}");
        // A new session with the same visible messages on an engine with an empty cache.
        let messages = seen.clone();
        let input = TemplateInput { messages, add_generation_prompt: true, ..TemplateInput::default() };
        let prompt = chat_prompt(&engine, &input, NO_PAUSE).expect("it renders");
        let fresh = run(&engine, &prompt.tokens, &drawn(12));
        assert_eq!((fresh.ids(), &fresh.text), (outcome.ids(), &outcome.text), "turn {turn}");
        assert_ne!(outcome.finished.exactness, Exactness::Approximate);
        hits += usize::from(outcome.finished.usage.cached_tokens > 0);
        moved += usize::from(turn > 0 && seen[1] != turns[turn - 1].0[1]);
    }
    assert!(
        moved < 150 && hits > 60,
        "the oldest turns went {moved} times, {hits} turns began with something known"
    );
}

#[test]
fn a_sliding_chat_gives_answers_longer_than_the_context() {
    let _turn = device();
    let (quarters, turns) = chat(ContextPolicy::Slide, 240, cases(80));
    assert_flat(&quarters);
    assert_eq!(turns.len(), cases(80));
    let slid = |outcome: &&Outcome| outcome.finished.exactness == Exactness::Approximate;
    for outcome in turns.iter().map(|turn| &turn.1) {
        let usage = outcome.finished.usage;
        assert_eq!(usage.completion_tokens, 240);
        assert_eq!(slid(&outcome), usage.prompt_tokens + usage.completion_tokens > 256);
    }
    assert!(
        turns.iter().map(|turn| &turn.1).filter(slid).count() > turns.len() * 3 / 4,
        "few answers outgrew the context"
    );
}

#[test]
fn the_stop_policy_refuses_and_leaves_the_chat_unchanged() {
    let _turn = device();
    let (quarters, turns) = chat(ContextPolicy::Stop, 12, 200);
    assert_flat(&quarters);
    assert!(turns.len() > 3 && turns.len() < 200, "{} turns fitted", turns.len());
}

/// A text of twenty contexts is generated in the memory of one. It does not depend on concurrent requests.
#[test]
fn context_shift_gives_twenty_contexts_of_text_in_flat_memory() {
    let _turn = device();
    let engine = cold(true);
    let context = engine.spec().context_length;
    let options = RequestOptions { n_keep: Some(10), logprobs: Some(0), ..drawn(20 * context) };
    let prompt: Vec<u32> = (0..30).map(|index| index * 7 % 80 + 5).collect();
    let generation = engine.submit(engine.request(prompt.clone(), &options).expect("valid")).expect("room");
    let before = active_memory().expect("a figure");
    let (mut peaks, mut count) = (Vec::new(), 0);
    reset_peak_memory().expect("a device");
    let mut last = None;
    let mut ids = Vec::new();
    for event in generation {
        match event {
            mlx_core::engine::Event::Token(token) => {
                ids.push(token.id);
                assert!(token.logprob.expect("it was asked for").logprob.is_finite());
                count += 1;
                if count % (5 * context) == 0 {
                    peaks.push(
                        peak_memory().expect("a figure") - before.min(peak_memory().expect("a figure")),
                    );
                    reset_peak_memory().expect("a device");
                }
            }
            mlx_core::engine::Event::Done(finished) => last = Some(finished),
            _ => {}
        }
    }
    let finished = last.expect("it ends");
    assert_eq!((finished.reason, finished.exactness), (FinishReason::Length, Exactness::Approximate));
    assert_eq!(ids.len(), 20 * context);
    assert!(peaks[3] <= peaks[1] + peaks[1] / 10 + 100_000, "peak memory grows: {peaks:?}");
    // The text is the same with concurrent requests and after preemptions: shifts depend on nothing else.
    let crowd: Vec<_> = (0..3)
        .map(|salt| {
            engine.submit(engine.request(vec![9 + salt; 20], &drawn(200)).expect("valid")).expect("room")
        })
        .collect();
    let again = run(&engine, &prompt, &RequestOptions { max_tokens: Some(3 * context), ..options });
    assert_eq!(again.ids(), ids[..3 * context]);
    for generation in crowd {
        assert_eq!(collect(generation).ids().len(), 200);
    }
}

/// The error names the policy, which is the field that the user set.
#[test]
fn an_error_of_context_shift_names_the_policy() {
    let _turn = device();
    for (name, keep) in [("llama-f32", 200), ("gemma3_text-f32", 4)] {
        let options = RequestOptions { n_keep: Some(keep), ..drawn(1) };
        let error = mlx_tests::engine(name).request(vec![1, 2], &options).expect_err("it cannot slide");
        assert!(error.to_string().starts_with("context_policy: slide "), "{error}");
    }
}
