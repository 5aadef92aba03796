//! Mirrors of the Hub, which redirect and omit checksums. Only the endpoint gets the token.

use mlx_tests::hub::Hub;
use mlx_tests::model_folder;

use super::{Setup, failed, succeeded};

#[test]
fn a_mirror_may_omit_checksums() {
    let setup = Setup::with("llama-f32");
    setup.hub.behave().hides_checksums = true;
    succeeded(&setup.pull());
    setup.expect_complete();
}

#[test]
fn a_mirror_may_redirect_within_its_host() {
    for hops in [1, 5] {
        let setup = Setup::new();
        {
            let mut behavior = setup.hub.behave();
            (behavior.hides_checksums, behavior.is_mirror, behavior.hops) = (true, true, hops);
        }
        let mut pull = setup.command(&["pull", "org/tiny"]);
        succeeded(&pull.env("HF_TOKEN", "secret").output().expect("it starts"));
        setup.expect_complete();
        let requests = setup.hub.behave().requests.clone();
        let heads = requests.iter().filter(|request| request.line.starts_with("HEAD")).count();
        assert!(heads > 0 && heads.is_multiple_of(hops + 1), "{heads} requests");
        assert!(
            requests.iter().all(|request| request.authorization.is_some()),
            "requests to the endpoint's host need the token"
        );
    }
    let setup = Setup::with("llama-f32");
    setup.hub.behave().hops = 20;
    failed(&setup.pull(), &["org/tiny", "more than 10 redirects"]);
}

#[test]
fn a_token_is_sent_to_the_hub_only() {
    // The storage is on another host, or on another port of the same host.
    let storage = Hub::start(&model_folder("llama-f32"));
    for (hops, other) in [(0, None), (3, None), (0, Some(&storage)), (3, Some(&storage))] {
        let setup = Setup::with("llama-f32");
        std::fs::write(setup.home.path().join("token"), "from-a-file\n").expect("writes");
        {
            let mut behavior = setup.hub.behave();
            (behavior.hides_checksums, behavior.hops) = (true, hops);
            behavior.storage = other.map(Hub::endpoint);
        }
        succeeded(&setup.pull());
        setup.expect_complete();
        succeeded(&setup.run(&["rm", "org/tiny"]));
        let mut pull = setup.command(&["pull", "org/tiny"]);
        succeeded(&pull.env("HF_TOKEN", "from-a-variable").output().expect("it starts"));
        let requests = setup.hub.behave().requests.clone();
        for token in ["Bearer from-a-file", "Bearer from-a-variable"] {
            assert!(requests.iter().any(|request| request.authorization.as_deref() == Some(token)));
        }
        for request in requests {
            assert_eq!(request.authorization.is_none(), request.line.contains("/cdn/"), "{}", request.line);
        }
    }
    let stored = storage.behave().requests.clone();
    assert!(!stored.is_empty() && stored.iter().all(|request| request.authorization.is_none()), "{stored:?}");
}
