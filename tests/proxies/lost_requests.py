"""Replicas behind nginx, HAProxy and Envoy, with the files of docs/many-machines: `MLX_SERVER=PROGRAM lost_requests.py`. Run by `cargo xtask proxies`.

1. Conversations: how much of their prompts comes from a cache, with affinity by session, by the beginning of the prompt, and with round robin.
2. 64 clients, of whose replicas one is killed and one drained: no request is lost, and both are used again when they are back.
3. 200 streams, in whose middle a replica is killed: each ends with the text that it would have had."""

import random
import sys
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

from client import ask, chat
from proxy import KINDS, Proxy, program
from replicas import Replicas, wait_until

SESSIONS, TURNS = 24, 5
CLIENTS, REQUESTS, STREAMS = 64, 8, 200
LONG = 800


def words(draw, length):
    return "".join(draw.choice("abcdefghij klmnopqrstuvwxyz ") for _ in range(length))


def cached(proxy, seed, header):
    """The share of prompt tokens that came from a cache, in all turns but the first of conversations that go on by turns. They have this header,
    and then bodies that never begin alike."""
    draw = random.Random(seed)
    chats = [[{"role": "user", "content": words(draw, LONG)}] for _ in range(SESSIONS)]
    sums = Counter()

    def turn(number):
        body = chat(chats[number], 8)
        if header:
            asked = ask(proxy.port, {"user": f"turn {len(chats[number])} of {number}", **body}, f"{seed}-{number}", header=header)
        else:
            asked = ask(proxy.port, body)
        assert asked.statuses == [200], asked
        chats[number] += [{"role": "assistant", "content": asked.text}, {"role": "user", "content": f"And {number}?"}]
        return asked.usage

    with ThreadPoolExecutor(8) as pool:
        for count in range(TURNS):
            order = list(range(SESSIONS))
            draw.shuffle(order)
            for usage in pool.map(turn, order):
                if count > 0:
                    sums.update(prompt=usage["prompt_tokens"], cached=usage["prompt_tokens_details"]["cached_tokens"])
    return sums["cached"] / sums["prompt"]


def conversations(kind, replicas):
    with Proxy(kind, replicas.all) as proxy:
        shares = [cached(proxy, 1, "x-session-id"), cached(proxy, 2, "session-id"), cached(proxy, 3, None)]
    with Proxy(kind, replicas.all, round_robin=True) as proxy:
        neither = cached(proxy, 4, None)
    shown = ", ".join(f"{share:.1%}" for share in shares)
    print(f"{kind}: from a cache by x-session-id, session-id, prompt {shown}, by round robin {neither:.1%}", flush=True)
    assert min(shares) > 0.9 and neither < min(shares) - 0.1


def known_answers(replica, count, length):
    """Requests that ask for exact answers, and these, from one replica alone."""
    bodies = [chat([{"role": "user", "content": f"Go {seed}"}], length, exact=True, seed=seed, temperature=1.0) for seed in range(count)]
    with ThreadPoolExecutor(8) as pool:
        return list(zip(bodies, [it.text for it in pool.map(lambda body: ask(replica.port, body), bodies)], strict=True))


def clients(kind, replicas):
    killed, drained, _ = replicas.all
    answers = known_answers(killed, 16, 24)
    lost, seen, done, lock = [], [], [0] * CLIENTS, threading.Lock()

    def client(number):
        for count in range(REQUESTS):
            body, text = answers[(number + count) % len(answers)]
            asked = ask(proxy.port, body | {"stream": (number + count) % 2 == 0}, f"client-{number}")
            with lock:
                done[number] += 1
                seen.append(asked)
                if asked.text != text or not asked.is_same:
                    lost.append((body, asked))

    def wait_for_more():
        count = sum(done) + CLIENTS
        wait_until(lambda: sum(done) >= count, f"{count} requests are done", 300)

    def wait_for_each():
        before = list(done)
        have_all = lambda: all(now > then or now == REQUESTS for now, then in zip(done, before, strict=True))
        wait_until(have_all, "each client has an answer to what it had asked", 300)

    with Proxy(kind, replicas.all) as proxy, ThreadPoolExecutor(CLIENTS) as pool:
        running = [pool.submit(client, number) for number in range(CLIENTS)]
        wait_for_more()
        killed.kill()
        # What breaks later is not of the kill.
        wait_for_each()
        end_of_kill = time.monotonic()
        status = drained.drain()
        wait_for_more()
        killed.start()
        drained.start()
        for it in running:
            it.result()
        statuses = Counter(status for asked in seen for status in asked.statuses)
        times = [when for asked in seen for when, _ in asked.broken]
        late = sum(when > end_of_kill for when in times)
        print(f"{kind}: {CLIENTS} clients, {len(seen)} requests, {len(lost)} lost; statuses {dict(statuses)}; streams broken by the kill {len(times) - late}, later {late}", flush=True)
        assert not lost, lost[0]
        assert set(statuses) == {200} and late == 0 and status == 0, f"the drained one ended with status {status}"
        replicas.wait()
        used = [0]

        def is_used():
            used[0] += 1
            assert ask(proxy.port, answers[0][0], f"later-{used[0]}").statuses == [200]
            return killed.requests() > 0 and drained.requests() > 0

        wait_until(is_used, "replicas that are back are used")


def streams(kind, replicas):
    answers = known_answers(replicas.all[0], 20, 48)
    texts, lock = {}, threading.Lock()

    def stream(number):
        body, text = answers[number % len(answers)]

        def progress(so_far):
            with lock:
                texts[number] = len(so_far) < len(text)

        asked = ask(proxy.port, body | {"stream": True}, f"stream-{number}", progress)
        return asked, asked.text == text

    def is_in_the_middle():
        with lock:
            return sum(texts.values()) >= STREAMS // 5

    with Proxy(kind, replicas.all) as proxy, ThreadPoolExecutor(STREAMS) as pool:
        running = [pool.submit(stream, number) for number in range(STREAMS)]
        wait_until(is_in_the_middle, "streams are in their middle", 300)
        replicas.all[1].kill()
        ended = [it.result() for it in running]
    broken = [asked for asked, _ in ended if asked.broken]
    middle = sum(max(length for _, length in asked.broken) > 0 for asked in broken)
    right = sum(is_right and asked.is_same for asked, is_right in ended)
    print(f"{kind}: {len(ended)} streams, {len(broken)} broke, {middle} of them within their text; {right} ended with their text", flush=True)
    assert right == STREAMS and middle > 0
    replicas.all[1].start()
    replicas.wait()


def main():
    kinds = [kind for kind in KINDS if program(kind)]
    for kind in KINDS:
        if kind not in kinds:
            print(f"{kind} is not installed: its file was not tried")
    assert kinds, "install nginx or haproxy"
    for kind in sys.argv[1:] or kinds:
        with Replicas() as replicas:
            conversations(kind, replicas)
            clients(kind, replicas)
            streams(kind, replicas)


main()
