"""The world around a cluster's decisions, for `cluster_checker.py`: all steps that are possible in a state.

The store, logs that lose what is not fsynced, a network that delays, crashes, lost leases and lost disks; and what must
hold in every state. States are values: a step makes a new one.
"""

from __future__ import annotations

from collections.abc import Iterator

from msgspec.structs import replace

from tests.simulation.checker_rules import (
    BEGUN,
    CHANGES,
    DISKS,
    DOWN,
    FAULTS,
    KEY,
    MOVES,
    NODE,
    NODE_REVISION,
    READ,
    RUNS,
    TRANSFERS,
    VALUES,
    Answer,
    Log,
    Node,
    Request,
    Rules,
    Sent,
    State,
    Step,
    history,
    is_prefix,
    put,
)
from waystation.catalog.catalog import ABSENT
from waystation.cluster.decisions import elections, following, reassignment, starting
from waystation.cluster.decisions.promises import FetchVerdict, FollowerProgress, LeaderState
from waystation.cluster.decisions.replica_fetch import FetchAnswer
from waystation.cluster.decisions.starting import FolderIdentity
from waystation.cluster.decisions.state import NOBODY, DiskState, PartitionState, disk_key, node_key
from waystation.cluster.decisions.writes import Identity, StoreEntry, Write
from waystation.errors import Conflict


class World:
    """All steps that are possible in a state, and what must hold in it."""

    def __init__(self, rules: Rules) -> None:
        self.rules = rules
        self.bounds = rules.bounds

    def initial(self) -> State:
        count = self.bounds.nodes
        replicas = tuple(range(count - self.bounds.strangers))
        members = replicas[: len(replicas) - self.bounds.outside]
        part = StoreEntry(KEY, PartitionState(replicas, 0, 0, members), 1)
        disks = tuple(StoreEntry(disk_key(n), DiskState("first", 1), 1) for n in range(count))
        nodes = tuple(
            Node((), 0, FolderIdentity(n, "first", 1), RUNS, Identity(n, disk), part, -1)
            for n, disk in enumerate(disks)
        )
        s = State(part, (part,), (True,) * count, disks, (), nodes)
        return self.lead(s, 0)

    # -- the store ----------------------------------------------------------------------------------------------------

    def matches(self, s: State, expected: Iterator[tuple[str, int]]) -> bool:
        for key, revision in expected:
            kind, _, name = key.partition("/")
            if kind == "partitions":
                found = s.part.revision
            elif kind == "disks":
                disk = s.disks[int(name)]
                found = ABSENT if disk is None else disk.revision
            elif not self.bounds.keys:
                continue
            else:
                found = NODE_REVISION if s.keys[int(name)] else ABSENT
            if found != revision:
                return False
        return True

    def write(self, s: State, write: Write) -> State | None:
        """The store makes it, or not."""
        if not self.matches(s, iter(write.expected.items())):
            return None
        for key, value in write.changes.items():
            name = key.rpartition("/")[2]
            if isinstance(value, PartitionState):
                part = StoreEntry(KEY, value, s.part.revision + 1)
                s = s._replace(part=part, past=(*s.past, part), writes=self.possible(s.writes, part.revision))
            elif isinstance(value, DiskState):
                known = s.disks[int(name)]
                revision = 1 if known is None else known.revision + 1
                s = s._replace(disks=put(s.disks, int(name), StoreEntry(key, value, revision)))
            else:
                s = s._replace(keys=put(s.keys, int(name), value is not None))
        return s

    @staticmethod
    def possible(writes: tuple[Sent, ...], revision: int) -> tuple[Sent, ...]:
        """Without those that can only fail, because they compare an older revision."""
        return tuple(one for one in writes if dict(one.expected).get(KEY, revision) == revision)

    def decided(self, s: State, author: int, what: str, write: Write | None) -> Iterator[Step]:
        """A write of an election: made at once, and perhaps on its way for a while."""
        if write is None:
            return
        after = self.write(s, write)
        if after is not None:
            made = after
            yield f"{what}", lambda: made
        if self.bounds.late:
            (state,) = write.changes.values()
            if isinstance(state, PartitionState):
                sent = Sent(author, what, state, tuple(sorted(write.expected.items())))
                if sent not in s.writes and len(s.writes) < 3:
                    on_its_way = s._replace(writes=tuple(sorted((*s.writes, sent), key=repr)))
                    yield f"send {what}", lambda: on_its_way

    def learn(self, s: State, n: int, part: StoreEntry[PartitionState]) -> State:
        """The watch tells node n of one value of the partition's entry, in the order of revisions."""
        node = s.nodes[n]
        newer = part.state.epoch > node.view.state.epoch
        former = node.leads
        node = node._replace(view=part)
        if former is not None:
            leads = copied(former)
            if leads.learned(part):
                node = node._replace(leads=leads)
            else:  # deposed
                remembered = self.rules.remembers(former)
                node = node._replace(leads=None, high_watermark=former.high_watermark, remembered=remembered)
        if newer and part.state.leader != n:
            node = self.rules.truncates_at_new_epoch(node)
        if n not in part.state.replicas and node.log:  # moved away: the copy is deleted
            node = node._replace(log=(), synced=0, high_watermark=0)
        s = s._replace(nodes=put(s.nodes, n, node))
        if node.leads is None and self.rules.may_lead(node, history(node.log).last_epoch):
            s = self.lead(s, n)
        return self.told(self.forgotten(s), n)

    def forgotten(self, s: State) -> State:
        """Without values that no view has any more. Who starts reads afresh."""
        oldest = min((one.view.revision for one in s.nodes if one.phase != DOWN), default=s.part.revision)
        oldest = self.rules.catches_up_from(oldest)
        if s.past[0].revision < oldest:
            return s._replace(past=tuple(one for one in s.past if one.revision >= oldest))
        return s

    def lead(self, s: State, n: int) -> State:
        node = s.nodes[n]
        leads = self.rules.leader_state(
            node_id=n,
            view=node.view,
            min_in_sync=self.rules.min_in_sync,
            start=len(node.log),
            high_watermark=node.high_watermark,
            since=0.0,
            end=len(node.log),
            durable=node.synced,
            followers=dict(node.remembered),
        )
        epoch = node.view.state.epoch
        for other_epoch, other in s.owners:
            if other_epoch == epoch and other != n and not s.broken:
                s = s._replace(broken=f"(b) nodes {other} and {n} both lead epoch {epoch}")
        owners = s.owners if (epoch, n) in s.owners else tuple(sorted((*s.owners, (epoch, n))))
        return s._replace(nodes=put(s.nodes, n, node._replace(leads=leads)), owners=owners)

    # -- what the world is told ---------------------------------------------------------------------------------------

    def told(self, s: State, n: int) -> State:
        """A leader's high watermark has perhaps moved: what is below it is acknowledged, and shown."""
        node = s.nodes[n]
        if node.leads is None:
            return s
        high_watermark = node.leads.high_watermark
        shown = self.rules.may_show(node, high_watermark)
        if high_watermark != len(s.acked) or (high_watermark and node.log[:high_watermark] != s.acked):
            s = self.tell(s, "acked", node.log[:high_watermark])
        if shown != len(s.shown) or (shown and node.log[:shown] != s.shown):
            s = self.tell(s, "shown", node.log[:shown])
        return s

    def tell(self, s: State, ghost: str, prefix: Log) -> State:
        known = s.acked if ghost == "acked" else s.shown
        short, long = (prefix, known) if len(prefix) <= len(known) else (known, prefix)
        if not is_prefix(short, long) and not s.broken:
            s = s._replace(broken=f"(d) {ghost} {show(known)} before, and now {show(prefix)}")
        return s._replace(acked=long) if ghost == "acked" else s._replace(shown=long)

    # -- fetching -----------------------------------------------------------------------------------------------------

    def serve(self, s: State, request: Request) -> State:
        requests = list(s.requests)
        if request in requests:
            requests.remove(request)
        s = s._replace(requests=tuple(requests))
        n, fetch = request.leader, request.fetch
        node = s.nodes[n]
        if node.leads is None:
            return s
        leads = copied(node.leads)
        verdict, diverging = leads.fetched(fetch, history(node.log), 0.0)
        if verdict not in (FetchVerdict.SERVED, FetchVerdict.DIVERGING):
            return s
        follower = leads.followers[fetch.node_id]
        leads.followers[fetch.node_id] = FollowerProgress(
            follower.folder, follower.incarnation, 0, follower.offset, 0.0, 0, 0.0
        )
        s = self.told(s._replace(nodes=put(s.nodes, n, node._replace(leads=leads))), n)
        if request.orphan:
            return s
        head = FetchAnswer(n, fetch.epoch, fetch.offset, 0, leads.high_watermark, diverging)
        answer = Answer(fetch.node_id, head, node.log[fetch.offset :] if diverging is None else ())
        return s._replace(answers=tuple(sorted((*s.answers, answer), key=repr)))

    def receive(self, s: State, answer: Answer) -> State:
        answers = list(s.answers)
        answers.remove(answer)
        s = s._replace(answers=tuple(answers))
        node = s.nodes[answer.follower]
        what = self.rules.received(node, answer)
        if isinstance(what, following.Append):
            log = node.log[: answer.head.offset] + answer.records
            synced = min(node.synced, answer.head.offset)
            if not self.bounds.split and self.rules.syncs_at_once():
                synced = len(log)
            node = node._replace(log=log, synced=synced, high_watermark=min(what.high_watermark, len(log)))
        elif isinstance(what, following.BeginAgain):
            raise AssertionError("no log start moves here")
        elif isinstance(what, following.Truncate):
            end = what.offset
            if what.below_high_watermark and not s.broken:
                s = s._replace(broken=f"(c) node {answer.follower} truncates {show(node.log)} below its high watermark")
            node = node._replace(cut=end)
            if not self.bounds.split:
                return self.truncated(s, answer.follower, node)
        return s._replace(nodes=put(s.nodes, answer.follower, node))

    def truncated(self, s: State, n: int, node: Node) -> State:
        """The truncation is done. Who was made leader meanwhile leads from now on."""
        end = node.cut
        log = node.log[:end]
        node = node._replace(
            log=log,
            synced=min(node.synced, len(log)),
            high_watermark=min(node.high_watermark, len(log)),
            cut=None,
        )
        s = self.wrote(s, n, node)
        if node.leads is None and self.rules.may_lead(node, history(log).last_epoch):
            s = self.told(self.lead(s, n), n)
        return s

    # -- all steps ----------------------------------------------------------------------------------------------------

    def steps(self, s: State) -> Iterator[Step]:
        for n, node in enumerate(s.nodes):
            if node.phase == DOWN:
                yield from self.while_down(s, n, node)
                continue
            yield from self.while_starting(s, n, node) if node.phase != RUNS else self.while_running(s, n, node)
            if s.used[FAULTS] < self.bounds.faults:
                yield f"crash {n}", lambda n=n: self.crash(s, n)  # type: ignore[misc]
        for sent in s.writes:
            write = Write({KEY: sent.state}, dict(sent.expected))
            if (made := self.write(s, write)) is not None:
                yield f"made: {sent.what}", lambda made=made: made  # type: ignore[misc]
        for request in s.requests:
            late = "-late" if request.orphan else ""
            label = f"serve{late} {request.leader} {request.fetch.node_id}"
            yield label, lambda request=request: self.serve(s, request)  # type: ignore[misc]
        for answer in s.answers:
            if s.nodes[answer.follower].phase == RUNS:
                label = f"receive {answer.follower} {answer.head.leader}"
                yield label, lambda answer=answer: self.receive(s, answer)  # type: ignore[misc]
        if s.used[MOVES] < self.bounds.moves:
            yield from self.moves(s)

    def while_running(self, s: State, n: int, node: Node) -> Iterator[Step]:
        bounds = self.bounds
        told = next((part for part in s.past if part.revision == node.view.revision + 1), None)
        if told is not None:
            yield f"learn {n}", lambda: self.learn(s, n, told)
        if node.cut is not None:
            yield f"truncate {n}", lambda: self.truncated(s, n, node)
        elif node.synced < len(node.log):
            yield f"fsync {n}", lambda: self.wrote(s, n, node._replace(synced=len(node.log)))
        if node.leads is not None:
            yield from self.as_leader(s, n, node, node.leads)
        else:
            yield from self.as_follower(s, n, node)
        if not bounds.keys:
            return
        if not s.keys[n]:
            write = self.rules.register(node.me, present=False)
            if (after := self.write(s, write)) is not None:
                yield f"register {n}", lambda: after
        elif s.used[FAULTS] < bounds.faults:
            yield f"lease {n}", lambda: s._replace(used=use(s, FAULTS), keys=put(s.keys, n, False))

    def wrote(self, s: State, n: int, node: Node) -> State:
        """The node's own log has changed."""
        if node.leads is not None:
            leads = copied(node.leads)
            leads.wrote(len(node.log), node.synced)
            node = node._replace(leads=leads)
        return self.told(s._replace(nodes=put(s.nodes, n, node)), n)

    def as_leader(self, s: State, n: int, node: Node, leads: LeaderState) -> Iterator[Step]:
        bounds, view = self.bounds, node.view
        if s.used[VALUES] < bounds.values and leads.accepts(0.0, 1.0):
            record = (leads.epoch, s.used[VALUES] + 1)
            yield (
                f"append {n}",
                lambda: self.wrote(s._replace(used=use(s, VALUES)), n, node._replace(log=(*node.log, record))),
            )
        if s.used[TRANSFERS] < bounds.transfers:
            given = s._replace(used=use(s, TRANSFERS))
            yield from self.decided(given, n, f"resign {n}", elections.resign(node.me, view))
            if view.state.epoch < bounds.epochs:
                for f in view.state.in_sync:
                    if f != n and (s.keys[f] or not bounds.keys):
                        heir = StoreEntry(node_key(f), NODE, NODE_REVISION)
                        write = elections.hand_over(node.me, view, f, heir)
                        yield from self.decided(given, n, f"hand-over {n} {f}", write)
        if leads.pending is None and view.state.epoch < bounds.epochs and (view.state.adding or view.state.removing):
            nodes = {f: StoreEntry(node_key(f), NODE, NODE_REVISION) for f in range(bounds.nodes)}
            write = reassignment.advance(node.me, view, self.rules.min_in_sync, nodes, leads.caught_up())
            yield from self.decided(s, n, f"advance {n}", self.rules.moved(view.state, write))
        if leads.pending is not None:
            yield from self.refused(s, n, leads)
            return
        if s.used[CHANGES] >= bounds.changes:
            return
        for f in view.state.in_sync:
            if f != n and (write := self.rules.shrink(node.me, view, f)) is not None:
                yield f"shrink {n} {f}", lambda f=f, write=write: self.propose(s, n, f"shrink {n} {f}", write)  # type: ignore[misc]
        disks = {f: disk for f, disk in enumerate(s.disks) if disk is not None}
        for joiner in leads.may_join():
            f = joiner.node_id
            if (write := self.rules.grow(node.me, view, joiner, disks)) is not None:
                yield f"grow {n} {f}", lambda f=f, write=write: self.propose(s, n, f"grow {n} {f}", write)  # type: ignore[misc]

    def refused(self, s: State, n: int, leads: LeaderState) -> Iterator[Step]:
        """A change of the set that cannot be made any more, or was made and is sent again: the store refuses it."""
        if any(one.author == n and self.matches(s, iter(one.expected)) for one in s.writes):
            return
        after = copied(leads)
        self.rules.refused(s, after)
        after.wrote(after.end, after.durable)
        if after.pending is None:
            node = s.nodes[n]._replace(leads=after)
            yield f"refused {n}", lambda: self.told(s._replace(nodes=put(s.nodes, n, node)), n)

    def propose(self, s: State, n: int, what: str, write: Write) -> State:
        node = s.nodes[n]
        state = write.changes[KEY]
        if node.leads is None or not isinstance(state, PartitionState):
            raise TypeError(write)
        leads = copied(node.leads)
        leads.proposed(state.in_sync)
        s = s._replace(nodes=put(s.nodes, n, node._replace(leads=leads)), used=use(s, CHANGES))
        sent = Sent(n, what, state, tuple(sorted(write.expected.items())))
        writes = self.possible((*s.writes, sent), s.part.revision)
        return self.told(s._replace(writes=tuple(sorted(writes, key=repr))), n)

    def as_follower(self, s: State, n: int, node: Node) -> Iterator[Step]:
        fetch = self.rules.next_fetch(node)
        if fetch is not None and not self.waits(s, n, node.view.state.leader):
            request = Request(node.view.state.leader, fetch)
            if self.bounds.split:
                sent = tuple(sorted((*s.requests, request), key=repr))
                yield f"send {n}", lambda: s._replace(requests=sent)
            else:
                served = self.serve(s, request)
                if served.nodes != s.nodes or served.answers:
                    lost = served._replace(answers=())
                    if served.nodes is not s.nodes:
                        yield f"fetch-lost {n}", lambda: lost
                    if served.answers:
                        yield f"fetch {n}", lambda: self.receive(served, served.answers[0])
        if node.view.state.epoch < self.bounds.epochs:
            yield from self.takeovers(s, n, node)

    def waits(self, s: State, n: int, leader: int) -> bool:
        """One fetch at a time, for each connection."""
        return any(one.fetch.node_id == n and one.leader == leader and not one.orphan for one in s.requests) or any(
            one.follower == n and one.head.leader == leader for one in s.answers
        )

    def takeovers(self, s: State, n: int, node: Node) -> Iterator[Step]:
        """With what the node believes of the others: that they live or not. Only the leader's entry is compared."""
        leader = node.view.state.leader
        if self.bounds.keys:
            living = {one for one, there in enumerate(s.keys) if there}
        else:
            living = set(range(self.bounds.nodes)) - {leader}
        epoch = history(node.log).last_epoch
        writes: list[Write] = []
        for what, believed in (("takeover", living), ("takeover-all", living & {leader})):
            write = self.rules.takeover(node.me, node.view, believed, epoch)
            if write is None or any(other.changes == write.changes for other in writes):
                continue
            writes.append(write)
            for label, after in self.decided(s, n, f"{what} {n}", write):
                yield label, lambda after=after: self.checked(s, after(), n, leader)  # type: ignore[misc]

    def checked(self, s: State, after: State, n: int, leader: int) -> State:
        if self.bounds.keys and leader != NOBODY and s.keys[leader] and after.part is not s.part and not after.broken:
            return after._replace(broken=f"(h) node {n} took over from node {leader}, whose node entry is there")
        return after

    # -- starts, crashes, disks ---------------------------------------------------------------------------------------

    def crash(self, s: State, n: int) -> State:
        """The process or the machine dies: the tail that was not fsynced is lost, and all that was in memory. What it
        has sent may still arrive; what was sent to it does not."""
        old = s.nodes[n]
        node = Node(old.log[: old.synced], old.synced, old.folder, DOWN, old.me, s.part, -1)
        requests = [
            one._replace(orphan=True) if one.fetch.node_id == n else one for one in s.requests if one.leader != n
        ]
        return s._replace(
            nodes=put(s.nodes, n, node),
            requests=tuple(sorted(requests, key=repr)),
            answers=tuple(one for one in s.answers if one.follower != n),
            used=use(s, FAULTS),
        )

    def while_down(self, s: State, n: int, node: Node) -> Iterator[Step]:
        if s.keys[n] and self.bounds.keys:  # its lease runs out, or a peer evicts it
            yield f"expire {n}", lambda: s._replace(keys=put(s.keys, n, False))
        yield f"restart {n}", lambda: self.started(s, n, node)
        if s.used[FAULTS] < self.bounds.faults and s.used[DISKS] < self.bounds.disks and node.synced:
            lost = s._replace(used=use(s, FAULTS))
            lost = lost._replace(used=use(lost, DISKS))
            empty = node._replace(log=(), synced=0, folder=FolderIdentity(n, "empty"))
            yield f"restart-empty {n}", lambda: self.started(lost, n, empty)
            length = node.synced - 1
            folder = FolderIdentity(n, node.folder.id, node.folder.incarnation - 1)
            old = node._replace(log=node.log[:length], synced=length, folder=folder)
            yield f"restart-old {n}", lambda: self.started(lost, n, old)

    def started(self, s: State, n: int, node: Node) -> State:
        """It reads the store. With the promised folder, it writes its next incarnation in the same step."""
        view = self.rules.reads_at_start(s)
        node = node._replace(phase=READ, view=view, barred=view.state.epoch)
        s = s._replace(nodes=put(s.nodes, n, node))
        return self.begun(s, n) if self.rules.trusted(s, n) else s

    def begun(self, s: State, n: int) -> State:
        node, disk = s.nodes[n], s.disks[n]
        known = 0 if disk is None else disk.state.incarnation
        beginning = self.rules.begin(s, n, f"id {known + 1}")
        after = self.write(s, beginning.write)
        if after is None:
            raise AssertionError(f"the first write of a start was refused: {beginning}")
        me = Identity(n, after.disks[n])  # type: ignore[arg-type]
        node = node._replace(folder=beginning.folder, me=me, phase=BEGUN)
        return after._replace(nodes=put(after.nodes, n, node))

    def while_starting(self, s: State, n: int, node: Node) -> Iterator[Step]:
        if self.rules.announces(s, n):
            yield f"begin {n}", lambda: self.begun(s, n)
            return
        for write in self.rules.leave(s, n):
            if (after := self.write(s, write)) is not None:
                yield f"leave {n}", lambda after=after: self.rules.left(after, n)  # type: ignore[misc]
        if self.rules.settles(s, n):
            yield f"settle {n}", lambda: self.settled(s, n)
        elif node.phase == BEGUN and not node.me.leaving:
            yield from self.joined(s, n)

    def settled(self, s: State, n: int) -> State:
        write = starting.settle(s.nodes[n].me)
        after = s if write is None else self.write(s, write)
        if after is None:
            raise AssertionError("a node that has left every set could not write that")
        node = after.nodes[n]._replace(me=Identity(n, after.disks[n]))  # type: ignore[arg-type]
        after = after._replace(nodes=put(after.nodes, n, node))
        return next(self.joined(after, n, settled=True))[1]()

    def joined(self, s: State, n: int, *, settled: bool = False) -> Iterator[Step]:
        """It reads afresh, claims what names it as leader, and writes its node entry."""
        node = s.nodes[n]
        view, barred = self.rules.reads_before_joining(s, n, settled=settled)
        node = node._replace(view=view, barred=barred, phase=RUNS)
        claims = self.rules.claim(node.me, view, history(node.log).last_epoch) if view is s.part else []
        if n not in view.state.replicas:
            node = node._replace(log=(), synced=0)
        after: State | None = s._replace(nodes=put(s.nodes, n, node))
        for write in claims:
            if view.state.epoch >= self.bounds.epochs and after is not None:
                return
            after = None if after is None else self.write(after, write)
        if after is None:
            return  # the store has changed since: it starts again
        if node.leads is None and self.rules.may_lead(node, history(node.log).last_epoch):
            after = self.lead(after, n)
        if self.bounds.keys:
            after = self.write(after, self.rules.register(node.me, after.keys[n]))
        if after is not None:
            made = self.forgotten(after)
            yield f"join {n}", lambda: made

    # -- reassignments ------------------------------------------------------------------------------------------------

    def moves(self, s: State) -> Iterator[Step]:
        """An operator moves replicas, or takes that back; the store refuses what rests on an old revision anyway."""
        given = s._replace(used=use(s, MOVES))
        count, state = self.bounds.nodes, s.part.state
        if state.epoch >= self.bounds.epochs:
            return
        targets = [tuple(one for one in range(count) if one != without) for without in range(count)]
        for target in [*targets, tuple(range(count))]:
            if len(target) < self.bounds.min_in_sync:
                continue
            try:
                write = reassignment.begin(s.part, target, range(count), self.rules.min_in_sync)
                write = self.rules.moved(state, write)
            except Conflict:
                continue
            if write is not None and (after := self.write(given, write)) is not None:
                yield f"move {''.join(map(str, target))}", lambda after=after: after  # type: ignore[misc]
        if state.adding or state.removing:
            try:
                write = self.rules.moved(state, reassignment.cancel(s.part, self.rules.min_in_sync))
            except Conflict:
                return
            if write is not None and (after := self.write(given, write)) is not None:
                yield "cancel", lambda: after

    # -- what must hold -----------------------------------------------------------------------------------------------

    def violation(self, s: State) -> str:
        found = s.broken or self.violated(s)
        return found if found[1:2] in self.rules.judged else ""

    def violated(self, s: State) -> str:
        nodes, acked, shown = s.nodes, s.acked, s.shown
        for n, node in enumerate(nodes):
            log, leads = node.log, node.leads
            known = node.high_watermark if leads is None else leads.high_watermark
            if leads is not None and leads.epoch == s.part.state.epoch:
                if not is_prefix(acked, log):
                    return f"(a) acknowledged {show(acked)}, but node {n} leads epoch {leads.epoch} with {show(log)}"
                if not is_prefix(shown, log):
                    return f"(d) readers saw {show(shown)}, but node {n} leads epoch {leads.epoch} with {show(log)}"
            if known > len(log) or not is_prefix(log[:known], shown):
                return f"(c) node {n} has {show(log)} and high watermark {known}, but readers saw {show(shown)}"
            for m in range(n):
                other = nodes[m].log
                for i in range(min(len(log), len(other)) - 1, -1, -1):
                    if log[i][0] == other[i][0]:
                        if log[: i + 1] != other[: i + 1]:
                            return f"(e) node {m} has {show(other)}, node {n} has {show(log)}: same epoch at offset {i}"
                        break
        if acked:
            copies = sum(is_prefix(acked, node.log[: node.synced]) for node in nodes)
            if copies < self.bounds.min_in_sync - s.used[DISKS] and "f" in self.rules.judged:
                return f"(f) acknowledged {show(acked)}, but only {copies} disks have it"
            if "g" in self.rules.judged:
                for n in s.part.state.in_sync:
                    disk, node = s.disks[n], nodes[n]
                    if disk is None or disk.state.leaving or not starting.trusted(node.folder, disk):
                        continue
                    if not is_prefix(acked, node.log[: node.synced]):
                        return f"(g) acknowledged {show(acked)}, but in-sync node {n} does not have it on disk"
        return ""


def copied(leads: LeaderState) -> LeaderState:
    return replace(leads, followers=dict(leads.followers))


def show(log: Log) -> str:
    """A log as [value@epoch …]."""
    return "[" + " ".join(f"{'abcdefghijklmnop'[value - 1]}@{epoch}" for epoch, value in log) + "]"


def use(s: State, what: int) -> tuple[int, int, int, int, int, int]:
    return put(s.used, what, s.used[what] + 1)  # type: ignore[return-value]
