"""Every order of events of one partition, its replicas and the store, within small bounds: is any promise broken?

What the nodes decide is decided by the product's own functions (`waystation.cluster`); this module is the world around
them: the store, logs that lose what is not fsynced, a network that delays, crashes, lost leases and lost disks. What is
right for the functions here is right for the broker, as far as its shell calls them in the same way.

    python -m tests.simulation.cluster_checker                      the decisions as they are; must find nothing
    python -m tests.simulation.cluster_checker --mistake NAME       one deliberate mistake; prints the trace
    python -m tests.simulation.cluster_checker --walks 2000 --seed 7    random runs with larger bounds
    python -m tests.simulation.cluster_checker --list

store     Linearizable. The partition's entry; of each node a node entry, which can disappear, and a disk entry.
node      A log of (epoch, value) records, of which the first `synced` are fsynced; and a `view`: the newest value of
          the partition's entry that its watch has told. It decides by its view, never by the store itself.
network   Fetches and answers. Each may arrive late, after its sender has crashed or moved on to another epoch.
ghosts    What the world was told: `acked` (acknowledged to producers) and `shown` (seen by readers).

Every step is optional: a cut link, a slow node and a paused process are runs in which some steps do not happen. So a
follower may suspect its leader at any moment, and any follower may be too slow: nothing here depends on a clock.

What must always hold:

(a) an acknowledged record is in the log of every later leader, at the same offset
(b) an epoch has at most one leader
(c) replicas agree up to any high watermark that either of them knows
(d) a reader never sees a record vanish or change
(e) two replicas with the same epoch at the same offset hold the same record there, and the same records before it
(f) an acknowledged record is on at least min.insync.replicas disks, less the disks that were lost
(g) every in-sync replica whose disk is the promised one has every acknowledged record on disk
(h) nobody takes over from a leader whose node entry is there

(g) is the reason why the rest holds. It and (f) are checked for the decisions as they are, and not for the deliberate
mistakes, so that those are reported by what a user loses (but for the one that only (f) can show).
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections.abc import Iterable
from dataclasses import replace
from typing import NamedTuple

from tests.simulation.checker_rules import DOWN, KEY, Bounds, Rules, Sent, State, Step
from tests.simulation.checker_world import World
from waystation.cluster.decisions.promises import FollowerProgress, LeaderState, Pending
from waystation.cluster.decisions.replica_fetch import EpochEnd
from waystation.cluster.decisions.state import NOBODY, PartitionState
from waystation.cluster.decisions.writes import StoreEntry

# -- symmetry: nodes differ only by name, so one naming of each state is enough ---------------------------------------


def fingerprint(s: State) -> int:
    """A hash that is the same for (most) states that differ only by the nodes' names."""
    part = s.part.state
    looks = []
    for n, node in enumerate(s.nodes):
        leads, disk = node.leads, s.disks[n]
        looks.append((
            n == part.leader, n in part.in_sync, n in part.replicas, node.phase, node.log, node.synced,
            -1 if leads is None else leads.high_watermark, node.view.revision if node.phase != DOWN else 0,
            node.high_watermark, node.barred, node.folder.incarnation, s.keys[n], node.me.disk.revision,
            node.me.leaving, node.folder.id,
            () if disk is None else (disk.revision, disk.state.folder, disk.state.incarnation),
            node.view.state.leader == n and node.phase != DOWN, -1 if node.cut is None else node.cut, n,
        ))  # fmt: skip
    looks.sort()
    order = [look[-1] for look in looks]
    new = [0] * (len(order) + 1)
    for i, n in enumerate(order):
        new[n] = i
    new[NOBODY] = NOBODY

    def of_part(known: StoreEntry[PartitionState]) -> tuple[object, ...]:
        state = known.state
        return (
            known.revision, new[state.leader], state.epoch, frozenset([new[n] for n in state.in_sync]),
            frozenset([new[n] for n in state.replicas]), frozenset([new[n] for n in state.adding]),
            frozenset([new[n] for n in state.removing]),
        )  # fmt: skip

    def of_followers(followers: Iterable[tuple[int, FollowerProgress]]) -> object:
        return frozenset([(new[n], one.folder, one.incarnation, one.offset) for n, one in followers])

    def of_leader(leads: LeaderState | None) -> object:
        if leads is None:
            return None
        pending: Pending | None = leads.pending
        return (
            leads.start, leads.high_watermark, of_followers(leads.followers.items()),
            None if pending is None else (pending.revision, frozenset([new[n] for n in pending.members])),
            frozenset([new[n] for n in leads.broken]),
        )  # fmt: skip

    def of_sent(sent: Sent) -> object:
        expected = [(key if key == KEY else f"{key[0]}{new[int(key.rpartition('/')[2])]}", revision)
                    for key, revision in sent.expected]  # fmt: skip
        state = sent.state
        return (
            new[sent.author], sent.what[0], new[state.leader], state.epoch, frozenset([new[n] for n in state.in_sync]),
            len(state.replicas), frozenset(expected),
        )  # fmt: skip

    nodes = [(look[:-1], of_leader(s.nodes[n].leads), of_followers(s.nodes[n].remembered))
             for look, n in zip(looks, order, strict=True)]  # fmt: skip
    fetches = [
        (new[one.leader], new[one.fetch.node_id], one.fetch.epoch, one.fetch.folder, one.fetch.incarnation,
         one.fetch.offset, one.fetch.last_epoch, one.orphan)
        for one in s.requests
    ]  # fmt: skip
    answers = []
    for one in s.answers:
        diverging: EpochEnd | None = one.head.diverging
        answers.append((
            new[one.follower], new[one.head.leader], one.head.epoch, one.head.offset, one.head.high_watermark,
            None if diverging is None else (diverging.epoch, diverging.end), one.records,
        ))  # fmt: skip
    return hash((
        tuple([of_part(one) for one in s.past]), frozenset([of_sent(one) for one in s.writes]),
        tuple(nodes), frozenset(fetches), frozenset(answers), s.acked, s.shown,
        frozenset([(epoch, new[n]) for epoch, n in s.owners]), s.used, s.broken,
    ))  # fmt: skip


# -- searching --------------------------------------------------------------------------------------------------------


class Found(NamedTuple):
    """What a search or walks have found."""

    violation: str  # "": none
    trace: tuple[str, ...]  # the steps to it; of a walk that found nothing: all
    states: int  # looked at; of walks: steps
    complete: bool  # all states within the bounds; of walks: never


def search(world: World, most: int = 10_000_000) -> Found:
    """Breadth first, so that the first violation that is found has the shortest trace. `most`: states to look at."""
    first = world.initial()
    mine = fingerprint(first)
    parent: dict[int, int] = {mine: 0}
    frontier = [(mine, first)]
    while frontier:
        later = []
        for mine, s in frontier:
            for _, step in world.steps(s):
                after = step()
                key = fingerprint(after)
                if key in parent:
                    continue
                parent[key] = mine
                if violation := world.violation(after):
                    return Found(violation, retraced(world, parent, key), len(parent), complete=False)
                later.append((key, after))
            if len(parent) >= most:
                return Found("", (), len(parent), complete=False)
        frontier = later
    return Found("", (), len(parent), complete=True)


def retraced(world: World, parent: dict[int, int], key: int) -> tuple[str, ...]:
    """The steps of a run from the start along the fingerprints that led to `key`."""
    keys = []
    while key:
        keys.append(key)
        key = parent[key]
    s, labels = world.initial(), []
    for wanted in reversed(keys[:-1]):
        for label, step in world.steps(s):
            after = step()
            if fingerprint(after) == wanted:
                labels.append(label)
                s = after
                break
    return tuple(labels)


FAULTY = ("crash", "lease", "restart-empty", "restart-old", "move", "cancel", "resign")


def walk(world: World, seed: int, length: int) -> Found:
    """One random run. First a kind of step is chosen, then one of that kind; faults are rarer than work."""
    rng = random.Random(seed)
    s, labels = world.initial(), []
    for i in range(length):
        kinds: dict[str, list[Step]] = {}
        for label, step in world.steps(s):
            kinds.setdefault(label.split(" ", 1)[0], []).append((label, step))
        if not kinds:
            break
        names = sorted(kinds)
        kind = rng.choices(names, [0.2 if name in FAULTY else 1.0 for name in names])[0]
        label, step = rng.choice(sorted(kinds[kind], key=lambda item: item[0]))
        s = step()
        labels.append(label)
        if violation := world.violation(s):
            return Found(violation, shortened(world, tuple(labels)), i + 1, complete=False)
    return Found("", tuple(labels), len(labels), complete=False)


def play(world: World, labels: tuple[str, ...], *, strict: bool = True) -> tuple[str, tuple[str, ...]]:
    """The run that these steps give, up to the first violation: that, and the steps that were taken. Not strict: steps
    that are not possible are left out."""
    s = world.initial()
    taken: list[str] = []
    for label in labels:
        step = next((step for other, step in world.steps(s) if other == label), None)
        if step is None:
            if strict:
                raise ValueError(f"after {', '.join(taken)}: there is no step {label!r}")
            continue
        s = step()
        taken.append(label)
        if violation := world.violation(s):
            return violation, tuple(taken)
    return "", tuple(taken)


def shortened(world: World, labels: tuple[str, ...]) -> tuple[str, ...]:
    """Leaves out steps of a run for as long as it still violates something."""
    changed = True
    while changed:
        changed = False
        for i in range(len(labels) - 1, -1, -1):
            violation, taken = play(world, labels[:i] + labels[i + 1 :], strict=False)
            if violation and len(taken) < len(labels):
                labels, changed = taken, True
                break
    return labels


def main() -> int:
    from tests.simulation.checker_mistakes import MISTAKES, WALKS

    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--mistake", choices=list(MISTAKES), metavar="NAME", default="")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--all", action="store_true", help="search for every deliberate mistake")
    parser.add_argument("--states", type=int, default=1_000_000, help="give up after this many")
    parser.add_argument("--walks", type=int, default=0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--length", type=int, default=300, help="steps of a walk")
    for name, kind in Bounds.__annotations__.items():
        flag = name.replace("_", "-")
        if kind == "bool":
            parser.add_argument(f"--{flag}", action=argparse.BooleanOptionalAction, default=None)
        else:
            parser.add_argument(f"--{flag}", type=int)
    args = parser.parse_args()
    if args.list:
        for name, mistake in MISTAKES.items():
            print(f"{name:24}{mistake.what}")
        return 0
    chosen = {name: getattr(args, name) for name in Bounds.__annotations__ if getattr(args, name) is not None}
    worst = 0
    for name in MISTAKES if args.all else [args.mistake]:
        rules, bounds = (MISTAKES[name].rules, MISTAKES[name].bounds) if name else (Rules, Bounds())
        bounds = replace(WALKS if args.walks else bounds, **chosen)
        world = World(rules(bounds))
        began = time.process_time()
        if args.walks:
            steps = 0
            for seed in range(args.seed, args.seed + args.walks):
                found = walk(world, seed, args.length)
                steps += found.states
                if found.violation:
                    print(f"walk {seed - args.seed + 1}, seed {seed}: ", end="")
                    break
            found = found._replace(states=steps)
        else:
            found = search(world, args.states)
        took = f"{found.states} {'steps' if args.walks else 'states'}, {time.process_time() - began:.1f} s"
        print(f"{name or 'as designed'}: {found.violation or 'no violation'}; {took}", flush=True)
        print(f"  {', '.join(found.trace)}" if found.violation else f"  complete: {found.complete}", flush=True)
        worst = max(worst, int(bool(found.violation)))
    return worst


if __name__ == "__main__":
    sys.exit(main())
