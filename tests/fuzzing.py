"""Damaged inputs by the hundred: what is done to them, and what may come of it.

`attack` counts how cases end. A few hundred run with the other tests, thousands with `make fuzz`, which
prints the counts. A case is a function of (REGARD_FUZZ_SEED, kind, number), so a number repeats it.
"""

import copy
import json
import math
import os
import random
import resource
import signal
import struct
import time
import traceback
from collections import Counter

from regard.errors import RegardError

MANY = os.environ.get("REGARD_FUZZ") == "many"
SEED = os.environ.get("REGARD_FUZZ_SEED", "0")
SLOWEST = 60  # seconds: a case that takes longer hangs
MOST_MEMORY = 2**30  # that one attack may add to the process

HOSTILE = [
    None, True, False, 0, 1, -1, -5, 7, 2**31, 2**53, 2**63, 10**30, -(2**63), 0.5, -0.0, 1e-320, 1e308,
    math.nan, math.inf, -math.inf, "", "x", "1e5", "\ud800", "\x00", "\x1b[2J", "a" * 5000, [], [[]], {},
    {"a": 1}, [None] * 3, json.loads("[" * 60 + "]" * 60),
]  # fmt: skip


class HungError(BaseException):
    """A case took too long."""


def attack(record_property, kind, case, *, few, many):
    """Run `case(rng)`, which names its outcome, for many seeds: only a `RegardError` may be raised."""

    def hung(*_):
        raise HungError(f"longer than {SLOWEST} s")

    outcomes, escaped = Counter(), {}
    before, began = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.perf_counter()
    previous = signal.signal(signal.SIGALRM, hung)
    try:
        for number in range(many if MANY else few):
            rng = random.Random(f"{SEED} {kind} {number}")
            signal.alarm(SLOWEST)
            try:
                outcome = case(rng)
            except RegardError as error:
                outcome = f"refused ({type(error).__name__})"
            except (KeyboardInterrupt, SystemExit):
                raise
            except BaseException as error:  # a panic of Rust's is one
                outcome = f"ESCAPED {type(error).__name__}"
                where = traceback.extract_tb(error.__traceback__)[-1]
                what = f"{type(error).__name__} in {where.filename.split('/regard/')[-1]}:{where.lineno}"
                escaped.setdefault(what, (number, str(error)[:200]))
            finally:
                signal.alarm(0)
            outcomes[outcome] += 1
    finally:
        signal.signal(signal.SIGALRM, previous)
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024
    record_property("fuzz", [kind, dict(outcomes), round(time.perf_counter() - began, 1)])
    said = "\n".join(f"  {what}, case {number}: {message}" for what, (number, message) in escaped.items())
    assert not escaped, f"{kind}, seed {SEED}, {dict(outcomes)}:\n{said}"
    assert grown < MOST_MEMORY, f"{kind} took {grown / 2**20:.0f} MB more than there was"


def damaged_bytes(rng, data):
    """The bytes with some flipped, cut, doubled, moved or replaced by numbers that lengths should not be."""
    data = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 5))):
        if not data:
            break
        # Most formats say all that matters at their beginning.
        at = rng.randrange(len(data) if rng.random() < 0.6 else min(len(data), 400))
        span = rng.choice((1, 2, 8, 50, 1000))
        match rng.randrange(8):
            case 0:
                data[at] ^= 1 << rng.randrange(8)
            case 1:
                data[at] = rng.choice((0, 1, 127, 128, 255, rng.randrange(256)))
            case 2:
                del data[at:]
            case 3:
                del data[at : at + span]
            case 4:
                data[at:at] = data[at : at + span]
            case 5:
                data[at:at] = rng.choice(
                    (b"[" * 100_000, rng.randbytes(span), b"\xff\xfe", b"NaN", b"-", b'"', b"{")
                )
            case 6:
                number = rng.choice((0, 1, 2**31, 2**32 - 1, 2**62, 2**63, 2**64 - 1))
                data[at : at + 8] = struct.pack("<Q", number)
            case 7:
                data[at : at + span] = bytes(min(span, len(data) - at))
    return bytes(data)


def damaged_json(rng, value):
    """The value with one to three of its parts replaced, removed, doubled or added."""
    value = json.loads(json.dumps(value))
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        places = list(_places(value))
        if not places:
            return rng.choice(HOSTILE)
        inside, key = rng.choice(places)
        other = rng.choice(places)
        hostile = copy.deepcopy(rng.choice([*HOSTILE, other[0][other[1]]]))
        kind = rng.random()
        if kind < 0.8:
            inside[key] = hostile
        elif kind < 0.9:
            del inside[key]
        elif isinstance(inside, list):
            inside.insert(key, hostile)
        else:
            inside[f"{key}x"] = hostile
    return value


def _places(value, depth=0):
    """Every container and key in it; of long lists the ends."""
    if depth > 8 or not isinstance(value, dict | list):
        return
    keys = list(value) if isinstance(value, dict) else [*range(min(len(value), 8))]
    for key in keys:
        yield value, key
        yield from _places(value[key], depth + 1)


def damaged_text(rng, text):
    """A JSON text with its values or its bytes damaged."""
    if rng.random() < 0.7:
        return json.dumps(damaged_json(rng, json.loads(text))).encode("utf-8", "surrogatepass")
    return damaged_bytes(rng, text.encode())
