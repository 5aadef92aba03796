//! Exact answers about audio keep their bits with concurrent requests and after cached prefixes, and clips are never confused.

use chat_format::{Audio, Message, Part};
use mlx_core::chat::ChatPrompt;
use mlx_core::engine::{EngineOptions, Event, Generation, Priority, RequestOptions, Speculate};
use mlx_tests::input_audio::{MODELS, many, noise, question, start};
use mlx_tests::pictures::{answer, bits, cached, exact, options, prompt, submit};
use mlx_tests::{collect, cpu, device, keeps_bits};

#[test]
fn exact_answers_about_audio_have_the_same_bits_alone_and_in_company() {
    let _turn = cpu();
    for model in MODELS {
        let alone = start(model, &EngineOptions { prefix_cache: Some(0), max_running: 1, ..exact() });
        if !keeps_bits(&alone) {
            continue;
        }
        let prompts = many(&alone);
        assert!(prompts[5].tokens.len() > 100, "it has several chunks: {}", prompts[5].tokens.len());
        let expected: Vec<_> = prompts.iter().map(|prompt| bits(&answer(&alone, prompt, 12))).collect();
        drop(alone);
        let engine = start(model, &exact());
        for round in 0..2 {
            let running: Vec<Generation> = prompts.iter().map(|prompt| submit(&engine, prompt, 12)).collect();
            for (count, (generation, expected)) in running.into_iter().zip(&expected).enumerate() {
                assert_eq!(&bits(&collect(generation)), expected, "{model}, {count} clips, round {round}");
            }
        }
        assert!(engine.stats().prefix_hits > 0, "the second round did not reuse the first one's prefixes");
    }
}

#[test]
fn a_clip_is_never_taken_for_another() {
    let _turn = device();
    for model in MODELS {
        let engine = start(model, &EngineOptions::default());
        let cold = start(model, &EngineOptions { prefix_cache: Some(0), ..EngineOptions::default() });
        // More than a chunk of common text before the clip.
        let text = "The lamp burns all night. Who lit it, and what for? ".repeat(9);
        let ask = |audio: &Audio| {
            let parts = vec![
                Part::Text(text.clone()),
                Part::Audio(audio.clone()),
                Part::Text("What is it?".to_owned()),
            ];
            prompt(&engine, vec![Message { parts, ..Message::user("") }])
        };
        let (first, second) = (ask(&noise(900, 1)), ask(&noise(900, 2)));
        assert_eq!(first.tokens, second.tokens, "the tokens must not tell the clips apart");
        let token = engine.audio_processor().expect("it hears").audio_token();
        let place = first.tokens.iter().position(|it| *it == token).expect("a place");
        let mut heard = Vec::new();
        for (prompt, least, most) in [
            (&first, 0, 0),
            (&second, 64, place),
            // All of a repeated prompt may be cached.
            (&first, place - 64, first.tokens.len() - 1),
        ] {
            let outcome = answer(&engine, prompt, 16);
            assert!((least..=most).contains(&cached(&outcome)), "{} of {least} to {most}", cached(&outcome));
            let alone = answer(&cold, prompt, 16);
            assert_eq!((cached(&alone), alone.ids()), (0, outcome.ids()));
            let logprob = outcome.tokens[0].logprob.as_ref().expect("it was asked for").logprob;
            heard.push((outcome.ids(), logprob));
        }
        let differs = |one: usize, other: usize| (heard[one].1 - heard[other].1).abs();
        assert!(differs(0, 1) > 1e-3, "{model}: different clips must give different answers");
        assert!(
            heard[0].0 == heard[2].0 && differs(0, 2) < 1e-4,
            "{model}: the same clip gives the same answer"
        );
    }
}

/// Its prompt is prefilled again, and its answer continues at the same positions.
#[test]
fn a_preempted_answer_about_audio_resumes_with_the_same_bits() {
    let _turn = cpu();
    for model in MODELS {
        let engine = start(model, &EngineOptions { max_running: 1, speculate: Speculate::Off, ..exact() });
        let (one, other) = (noise(1200, 1), noise(800, 2));
        let (low, high) = (question(&engine, &[&one, &other], "Why?"), question(&engine, &[&other], "And?"));
        let with = |prompt: &ChatPrompt, priority, tokens| {
            let options = RequestOptions { priority, ..options(prompt, tokens) };
            let request = engine.request(prompt.tokens.clone(), &options).expect("it is valid");
            engine.submit(request).expect("it runs")
        };
        let alone = collect(with(&low, Priority::Low, 100));
        let mut preempted = with(&low, Priority::Low, 100);
        let first = preempted.next().expect("it runs");
        assert_eq!(bits(&collect(with(&high, Priority::High, 4))).len(), 4);
        let rest = collect(preempted);
        let Event::Token(first) = first else { panic!("a token comes first") };
        let tokens: Vec<_> = std::iter::once(first).chain(rest.tokens).collect();
        assert_eq!(tokens, alone.tokens, "{model}");
        assert!(engine.stats().preemptions > 0, "{model}");
    }
}
