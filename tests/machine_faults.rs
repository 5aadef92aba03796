//! Failing machines: whatever happens to a connection during answers, every stream ends soon, no token is wrong, no memory stays reserved,
//! and the engine continues when the machine is back. `MLX_TEST_SCALE=13` makes a long run.

use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use mlx_core::distributed::{Key, Parallel, WorkerEvent, Workers};
use mlx_core::engine::{Engine, EngineOptions, FinishReason, RequestOptions};
use mlx_tests::proxy::{Fault, Proxy};
use mlx_tests::scale::cases;
use mlx_tests::workers::{HEARTBEAT_TIMEOUT, ThreadWorker, with_key_heads, with_layers, workers};
use mlx_tests::{Dice, at_rest, collect, copied, cpu, exact_level, greedy, model_folder, run, tensors};

const FAULTS: [Fault; 4] = [Fault::Cut, Fault::Stall, Fault::Slow, Fault::Garbage];

/// The time within which every stream through a lost machine ends. A silent machine counts as lost after `HEARTBEAT_TIMEOUT`; three times
/// that allows for a busy computer.
const ENDS: Duration = HEARTBEAT_TIMEOUT.saturating_mul(3);

/// The time within which a returned machine is found and a model is loaded.
const SOON: Duration = HEARTBEAT_TIMEOUT.saturating_mul(5);

fn options(addresses: &[SocketAddr]) -> EngineOptions {
    EngineOptions { workers: Some(workers(addresses)), ..EngineOptions::default() }
}

fn prompts() -> Vec<Vec<u32>> {
    (0..4).map(|salt: u32| (0..20).map(|place| (place * 31 + salt * 17) % 88 + 4).collect()).collect()
}

/// Waits until all machines are connected.
fn wait_for(engine: &Engine) {
    let begun = Instant::now();
    while let Some(outage) = engine.outage() {
        assert!(begun.elapsed() < SOON, "still away: {outage}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Waits until the engine has noticed the fault of its connection and has a new one.
fn wait_for_another(engine: &Engine, proxy: &Proxy) {
    let begun = Instant::now();
    while !proxy.is_whole() {
        assert!(begun.elapsed() < SOON, "a damaged connection is still in use: {:?}", engine.outage());
        std::thread::sleep(Duration::from_millis(10));
    }
    wait_for(engine);
}

#[test]
fn every_stream_ends_and_the_engine_goes_on() {
    let _turn = cpu();
    endure(with_layers("qwen3_5-f32", 8).path(), Parallel::Pipeline, 2);
}

#[test]
fn so_it_is_where_a_machine_fails_in_the_middle_of_layers() {
    let _turn = cpu();
    endure(with_key_heads("gpt_oss-f32", 4).path(), Parallel::Tensor, 1);
    endure(&model_folder("qwen3_5-f32"), Parallel::Tensor, 3);
}

/// Applies network faults to the last of `count` workers during answers.
fn endure(folder: &Path, parallel: Parallel, count: usize) {
    let rounds = cases(FAULTS.len());
    let there: Vec<ThreadWorker> = (0..count).map(|_| ThreadWorker::start(folder)).collect();
    let proxy = Proxy::start(there[count - 1].address);
    let mut addresses: Vec<SocketAddr> = there.iter().map(|worker| worker.address).collect();
    addresses[count - 1] = proxy.address;
    let workers = Workers { parallel, ..workers(&addresses) };
    let options = EngineOptions { workers: Some(workers), ..EngineOptions::default() };
    let engine = Engine::start(folder, &options, |_, _| {}).expect("all are there");
    let idle = engine.stats();
    let prompts = prompts();
    // On a slow connection each sum within a layer takes as long as a whole pass of a pipeline.
    let tokens = if parallel == Parallel::Tensor { 60 / count } else { 60 };
    let expected: Vec<Vec<u32>> = match parallel {
        Parallel::Pipeline => {
            let alone = Engine::start(folder, &EngineOptions::default(), |_, _| {}).expect("it loads");
            prompts.iter().map(|it| run(&alone, it, &greedy(tokens)).ids()).collect()
        }
        // The order of sums differs.
        Parallel::Tensor => prompts.iter().map(|it| run(&engine, it, &greedy(tokens)).ids()).collect(),
    };
    let (mut dice, mut failed, mut whole) = (Dice::new(7), 0, 0);
    for round in 0..rounds {
        let fault = FAULTS[round % FAULTS.len()];
        let submit = |prompt: &Vec<u32>| {
            engine
                .submit(engine.request(prompt.clone(), &greedy(tokens)).expect("all are there"))
                .expect("room")
        };
        let generations: Vec<_> = prompts.iter().map(submit).collect();
        std::thread::sleep(Duration::from_millis(dice.below(400) as u64));
        proxy.set(fault);
        let begun = Instant::now();
        if fault == Fault::Slow {
            // A silent connection would count as lost by then.
            std::thread::sleep(HEARTBEAT_TIMEOUT.mul_f32(1.5));
            proxy.set(Fault::None);
        }
        for (generation, expected) in generations.into_iter().zip(&expected) {
            let outcome = collect(generation);
            let ids = outcome.ids();
            match &outcome.finished.reason {
                FinishReason::Error(message) => {
                    assert!(message.contains(&format!("rank {count}")), "{message}");
                    assert!(expected.starts_with(&ids), "round {round}: a token is wrong");
                    failed += 1;
                }
                reason => {
                    assert_eq!((reason, &ids), (&FinishReason::Length, expected), "round {round}");
                    whole += 1;
                }
            }
        }
        // A slow connection is not silent, so its streams have no time limit.
        let is_in_time = fault == Fault::Slow || begun.elapsed() < ENDS;
        assert!(is_in_time, "round {round}, {fault:?}: {:?}", begun.elapsed());
        proxy.set(Fault::None);
        wait_for_another(&engine, &proxy);
        let after = run(&engine, &prompts[0], &greedy(tokens));
        let found = (&after.finished.reason, after.ids());
        assert_eq!(found, (&FinishReason::Length, expected[0].clone()), "round {round}: after the fault");
    }
    assert!(failed > 0 && whole > 0, "{failed} failed and {whole} did not");
    let after = at_rest(&engine);
    assert_eq!(after.waiting, 0);
    assert_eq!((after.reserved_bytes, after.used_bytes), (idle.reserved_bytes, idle.used_bytes));
}

#[test]
fn results_are_bit_exact_after_a_machine_was_lost_during_the_check() {
    let _turn = cpu();
    let folder = with_layers("llama-f32", 4);
    let worker = ThreadWorker::start(folder.path());
    let proxy = Proxy::start(worker.address);
    let engine = Engine::start(folder.path(), &options(&[proxy.address]), |_, _| {}).expect("it is there");
    let exact = RequestOptions { exact: Some(true), ..greedy(20) };
    proxy.set(Fault::Stall);
    let lost = engine.request(prompts()[0].clone(), &exact).expect_err("the check is cut").to_string();
    assert!(lost.contains("rank 1"), "{lost}");
    assert!(engine.outage().is_some(), "the outage must be recorded before a client gets the error");
    proxy.set(Fault::None);
    wait_for(&engine);
    assert_eq!(run(&engine, &prompts()[0], &exact).finished.exactness, exact_level(folder.path()));
}

#[test]
fn a_worker_that_ends_and_starts_again_is_found() {
    let _turn = cpu();
    let folder = with_layers("llama-f32", 4);
    let worker = ThreadWorker::start(folder.path());
    let proxy = Proxy::start(worker.address);
    let engine = Engine::start(folder.path(), &options(&[proxy.address]), |_, _| {}).expect("it is there");
    let prompt = &prompts()[0];
    let before = run(&engine, prompt, &greedy(20)).ids();
    drop(worker);
    let begun = Instant::now();
    while engine.outage().is_none() {
        assert!(begun.elapsed() < SOON, "an idle engine does not notice the outage");
        std::thread::sleep(Duration::from_millis(20));
    }
    let refused = engine.request(prompt.clone(), &greedy(20)).expect_err("a worker is away").to_string();
    assert!(refused.contains("rank 1"), "{refused}");
    assert!(engine.is_ready(), "the engine's thread must continue");
    let again = ThreadWorker::start(folder.path());
    proxy.lead_to(again.address);
    wait_for(&engine);
    assert_eq!(run(&engine, prompt, &greedy(20)).ids(), before);
}

#[test]
fn mismatched_workers_are_refused() {
    let _turn = cpu();
    let (folder, other) = (with_layers("llama-f32", 4), with_layers("llama-bias-f32", 4));
    let refusal = |folder: &Path, workers: Workers| {
        let options = EngineOptions { workers: Some(workers), ..EngineOptions::default() };
        Engine::start(folder, &options, |_, _| {}).map(drop).expect_err("it does not fit").to_string()
    };
    let worker = ThreadWorker::start(folder.path());
    let connect_timeout = Duration::from_millis(500);
    let of = |address: &SocketAddr| Workers { connect_timeout, ..workers([address]) };
    let model = refusal(other.path(), of(&worker.address));
    assert!(model.contains("is not the model that rank 0 has"), "{model}");
    let key_file = folder.path().join("key");
    std::fs::write(&key_file, "0123456789abcdef").expect("it can be written");
    let key = Key::read(&key_file).expect("it is long enough");
    let wrong = refusal(folder.path(), Workers { key: key.clone(), ..of(&worker.address) });
    assert!(wrong.contains("does not accept the key"), "{wrong}");
    let keyed = ThreadWorker::start_with(folder.path(), key, None);
    assert!(refusal(folder.path(), of(&keyed.address)).contains("does not accept the key"));
    let engine = Engine::start(folder.path(), &options(&[worker.address]), |_, _| {}).expect("it fits");
    let second = refusal(folder.path(), of(&worker.address));
    assert!(second.contains("works for another rank 0"), "{second}");
    drop(engine);
    let unused_address =
        TcpListener::bind("127.0.0.1:0").and_then(|it| it.local_addr()).expect("a free port");
    assert!(refusal(folder.path(), of(&unused_address)).contains("cannot be reached"));
    let many = Workers { connect_timeout, ..workers(&[worker.address; 4]) };
    assert!(refusal(&model_folder("llama-f32"), many).contains("works for another rank 0"));
    let small = ThreadWorker::start_with(folder.path(), Key::default(), Some(1000));
    assert!(refusal(folder.path(), of(&small.address)).contains("memory_budget"));
    // Memory for its layers and no more.
    let full = ThreadWorker::start_with(folder.path(), Key::default(), Some(1 << 20));
    let refused = refusal(folder.path(), of(&full.address));
    assert!(refused.starts_with("memory_budget: of rank 1 leaves"), "{refused}");
}

#[test]
fn connections_that_say_nothing_keep_no_rank_0_out() {
    let _turn = cpu();
    let folder = with_layers("llama-f32", 4);
    let (found, events) = channel();
    let hear = move |event| found.send(event).expect("the test waits");
    let worker = ThreadWorker::start_heard(folder.path(), Key::default(), None, hear);
    let idle: Vec<TcpStream> =
        (0..3).map(|_| TcpStream::connect(worker.address).expect("it listens")).collect();
    let workers = Workers { connect_timeout: Duration::from_secs(1), ..workers([&worker.address]) };
    let options = EngineOptions { workers: Some(workers), ..EngineOptions::default() };
    let engine = Engine::start(folder.path(), &options, |_, _| {}).expect("it is there");
    assert_eq!(run(&engine, &prompts()[0], &greedy(4)).ids().len(), 4);
    drop(idle);
    // No event reports that rank 0 joined or left.
    let mut refused = 0;
    while refused < 3 {
        match events.recv_timeout(SOON).expect("they were closed") {
            WorkerEvent::Refused { .. } => refused += 1,
            WorkerEvent::Left { reason } => panic!("{reason}"),
            _ => {}
        }
    }
}

#[test]
fn a_start_ends_soon_where_a_worker_fails_while_it_loads_and_the_worker_is_free() {
    let _turn = cpu();
    let folder = with_layers("llama-f32", 4);
    for fault in [Fault::Cut, Fault::Stall] {
        let (found, events) = channel();
        let (resume, wait) = channel::<()>();
        let hear = move |event: WorkerEvent| {
            found.send(event.clone()).expect("the test waits");
            if let WorkerEvent::Loading { .. } = event {
                // Loads for as long as the test needs, and from then on without end.
                wait.recv().ok();
            }
        };
        let worker = ThreadWorker::start_heard(folder.path(), Key::default(), None, hear);
        let proxy = Proxy::start(worker.address);
        let begun = Instant::now();
        let error = std::thread::scope(|scope| {
            let start = scope.spawn(|| {
                Engine::start(folder.path(), &options(&[proxy.address]), |_, _| {}).map(drop).err()
            });
            while !matches!(events.recv_timeout(SOON), Ok(WorkerEvent::Loading { .. })) {}
            proxy.set(fault);
            start.join().expect("no panic")
        });
        let error = error.expect("its worker is away").to_string();
        assert!(error.contains(&format!("rank 1 ({})", proxy.address)), "{error}");
        assert!(begun.elapsed() < SOON, "{fault:?}: {error} after {:?}", begun.elapsed());
        // It stops working for a rank 0 that has left.
        drop(resume);
        loop {
            match events.recv_timeout(SOON).expect("it goes on") {
                WorkerEvent::Left { .. } => break,
                // A tiny share may be loaded before the loss is noticed.
                WorkerEvent::Loading { .. } | WorkerEvent::Ready { .. } => {}
                other => panic!("{other:?}"),
            }
        }
        let engine =
            Engine::start(folder.path(), &options(&[worker.address]), |_, _| {}).expect("it is free");
        assert_eq!(run(&engine, &prompts()[0], &greedy(4)).ids().len(), 4);
    }
}

#[test]
fn a_worker_that_comes_back_as_another_is_named_and_not_used() {
    let _turn = cpu();
    let folder = with_layers("llama-f32", 4);
    let budget = |size: u64| ThreadWorker::start_with(folder.path(), Key::default(), Some(size << 20));
    let first = budget(64);
    let proxy = Proxy::start(first.address);
    let engine = Engine::start(folder.path(), &options(&[proxy.address]), |_, _| {}).expect("it is there");
    let before = run(&engine, &prompts()[0], &greedy(20)).ids();
    // Change a byte that the comparison of folders does not read.
    let changed = copied(folder.path());
    let path = changed.path().join("model.safetensors");
    let mut tensors = tensors::read(&path);
    let (_, _, bytes) = tensors.get_mut("model.layers.3.mlp.down_proj.weight").expect("it has it");
    bytes[0] ^= 1;
    tensors::write(&path, &tensors);
    let others = [
        (budget(32), "has less memory than before"),
        (
            ThreadWorker::start_with(changed.path(), Key::default(), Some(64 << 20)),
            "has other weights than before",
        ),
    ];
    drop(first);
    for (other, reason) in others {
        proxy.lead_to(other.address);
        let begun = Instant::now();
        while !engine
            .outage()
            .is_some_and(|it| it.to_string().contains("rank 1 (") && it.to_string().contains(reason))
        {
            assert!(begun.elapsed() < SOON, "{:?} instead of {reason}", engine.outage());
            std::thread::sleep(Duration::from_millis(20));
        }
        let refused =
            engine.request(prompts()[0].clone(), &greedy(20)).expect_err("it is not used").to_string();
        assert!(refused.contains(reason), "{refused}");
    }
    let again = budget(64);
    proxy.lead_to(again.address);
    wait_for(&engine);
    assert_eq!(run(&engine, &prompts()[0], &greedy(20)).ids(), before);
}
