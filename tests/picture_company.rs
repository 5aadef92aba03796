//! Exact answers about pictures keep their bits with concurrent requests, after cached prefixes and from disk, and pictures are never confused.

use chat_format::{Image, Message, Part};
use mlx_core::cache::DiskOptions;
use mlx_core::chat::ChatPrompt;
use mlx_core::engine::{Engine, EngineOptions, Event, Generation, Priority, RequestOptions, Speculate};
use mlx_tests::pictures::{
    MODELS, answer, bits, cached, exact, many, noise, options, prompt, question, start, submit,
};
use mlx_tests::{collect, cpu, device, keeps_bits};

#[test]
fn exact_answers_about_pictures_have_the_same_bits_alone_and_in_company() {
    let _turn = cpu();
    for model in MODELS {
        let alone = start(model, &EngineOptions { prefix_cache: Some(0), max_running: 1, ..exact() });
        if !keeps_bits(&alone) {
            continue;
        }
        let prompts = many(&alone);
        assert!(prompts[8].tokens.len() > 256, "it has several chunks: {}", prompts[8].tokens.len());
        let expected: Vec<_> = prompts.iter().map(|prompt| bits(&answer(&alone, prompt, 12))).collect();
        drop(alone);
        let engine = start(model, &exact());
        for round in 0..3 {
            let running: Vec<Generation> = prompts.iter().map(|prompt| submit(&engine, prompt, 12)).collect();
            for (count, (generation, expected)) in running.into_iter().zip(&expected).enumerate() {
                assert_eq!(&bits(&collect(generation)), expected, "{count} pictures, round {round}");
            }
        }
        assert!(engine.stats().prefix_hits > 0, "the second round did not reuse the first one's prefixes");
    }
}

#[test]
fn a_picture_is_never_taken_for_another() {
    let _turn = device();
    for model in MODELS {
        for options in [EngineOptions::default(), exact()] {
            let engine = start(model, &options);
            let cold = start(model, &EngineOptions { prefix_cache: Some(0), ..options });
            // More than a chunk of common text before the picture.
            let text = "The lamp burns all night. Who lit it, and what for? ".repeat(9);
            let (one, other) = (noise(64, 64, 1), noise(64, 64, 2));
            let ask = |image: &Image| {
                let parts = vec![
                    Part::Text(text.clone()),
                    Part::Image(image.clone()),
                    Part::Text("What is it?".to_owned()),
                ];
                prompt(&engine, vec![Message { parts, ..Message::user("") }])
            };
            let (first, second) = (ask(&one), ask(&other));
            assert_eq!(first.tokens, second.tokens, "the tokens must not tell the pictures apart");
            let token = engine.image_processor().expect("it sees").image_token();
            let place = first.tokens.iter().position(|it| *it == token).expect("a place");
            let mut seen = Vec::new();
            for (prompt, least, most) in [
                (&first, 0, 0),
                (&second, 64, place),
                // All of a repeated prompt may be cached.
                (&first, place - 64, first.tokens.len() - 1),
                (&second, place - 64, first.tokens.len() - 1),
            ] {
                let outcome = answer(&engine, prompt, 16);
                assert!(
                    (least..=most).contains(&cached(&outcome)),
                    "{} of {least} to {most}",
                    cached(&outcome)
                );
                assert_eq!(bits(&outcome).len(), 16);
                let alone = answer(&cold, prompt, 16);
                assert_eq!((cached(&alone), alone.ids()), (0, outcome.ids()));
                seen.push(outcome.ids());
            }
            assert_ne!(seen[0], seen[1], "different pictures must give different answers");
            assert_eq!((&seen[0], &seen[1]), (&seen[2], &seen[3]));
        }
    }
}

/// Requests in flight share their prefixes up to the first different picture.
#[test]
fn pictures_in_flight_are_not_mixed_up() {
    let _turn = device();
    for model in MODELS {
        let cold = start(model, &EngineOptions { prefix_cache: Some(0), max_running: 1, ..exact() });
        let images: Vec<Image> = (0..4).map(|seed| noise(80, 64, seed)).collect();
        let prompts: Vec<ChatPrompt> =
            images.iter().map(|image| question(&cold, &[image, &images[0]], "Which one?")).collect();
        let expected: Vec<_> = prompts.iter().map(|prompt| bits(&answer(&cold, prompt, 10))).collect();
        let engine = start(model, &exact());
        let running: Vec<(usize, Generation)> =
            [0, 1, 2, 3, 0, 1, 2, 3].map(|it| (it, submit(&engine, &prompts[it], 10))).into();
        for (which, generation) in running {
            assert_eq!(bits(&collect(generation)), expected[which], "picture {which}");
        }
    }
}

/// Its prompt is prefilled again, and its answer continues at the same positions.
#[test]
fn a_preempted_answer_about_pictures_resumes_with_the_same_bits() {
    let _turn = cpu();
    for model in MODELS {
        // With its own answer as a draft, the low-priority request would end before the high-priority one arrives.
        let speculate = Speculate::Off;
        let engine = start(model, &EngineOptions { max_running: 1, speculate, ..exact() });
        let (one, other) = (noise(96, 80, 1), noise(64, 96, 2));
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

/// Tokens after a picture are not saved to disk. Tokens before it serve any picture.
#[test]
fn on_disk_is_what_stands_before_the_first_picture() {
    let _turn = device();
    let saved = tempfile::tempdir().expect("a folder");
    let options = || EngineOptions {
        prompt_cache: Some(DiskOptions::new(saved.path().to_path_buf())),
        ..EngineOptions::default()
    };
    let text = "The lamp burns all night. Who lit it, and what for? ".repeat(9);
    let ask = |engine: &Engine, image: Image| {
        let parts = vec![Part::Text(text.clone()), Part::Image(image), Part::Text("What is it?".to_owned())];
        prompt(engine, vec![Message { parts, ..Message::user("") }])
    };
    let engine = start(MODELS[0], &options());
    let first = ask(&engine, noise(96, 96, 1));
    let expected = answer(&engine, &first, 8);
    drop(engine);
    let engine = start(MODELS[0], &options());
    let token = engine.image_processor().expect("it sees").image_token();
    let place = first.tokens.iter().position(|it| *it == token).expect("a place");
    let other = answer(&engine, &ask(&engine, noise(96, 96, 2)), 8);
    assert_eq!(cached(&other), place / 64 * 64);
    assert_ne!(other.ids(), expected.ids());
    assert_eq!(answer(&engine, &first, 8).ids(), expected.ids());
}
