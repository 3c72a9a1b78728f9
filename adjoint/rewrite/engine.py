"""The engine: applies rules to a graph until none applies.

* Rules are found by the operator that their pattern ends in, so an operator that no rule ends in
  costs one lookup.  Each node is looked at once, and then those near a change.
* `legality.py` decides whether a replacement may take the place of what it replaces.  Where strides
  differ, the fake values of users are computed anew, and those of results must stay.
* The graph that is given is not changed: the first match makes a copy.  So after an error it is as
  it was.
"""

from __future__ import annotations

import contextlib
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field

from torch import fx

from adjoint.errors import RewriteError
from adjoint.failing import call_user_code, works_on
from adjoint.graph.boundary import is_raised_in_user_code
from adjoint.graph.copying import copied
from adjoint.graph.metadata import set_value, source_of, value_of
from adjoint.graph.origins import replace
from adjoint.graph.purity import remove_dead_code
from adjoint.graph.show import show_call
from adjoint.rewrite.building import Builder, WrongReplacement
from adjoint.rewrite.legality import check_value, may_replace
from adjoint.rewrite.matching import match_at
from adjoint.rewrite.patterns import Match, NoMatch, depth
from adjoint.rewrite.refreshing import NotRefreshed, computing_fakes_of, refresh_users, same_values
from adjoint.rewrite.rules import Edit, Rule, roots_of
from adjoint.torch_private.graph_modules import is_erased

# Rules may fire this often per node of the graph; more means that they undo each other.
MAX_MATCHES_PER_NODE = 8

# Metadata key of a rewritten graph: how often each rule fired.
MATCHES = "matches"


@dataclass
class Rewriting:
    """What rewriting a graph did."""

    graph_module: fx.GraphModule
    matches: Counter[str] = field(default_factory=Counter)
    """How often each rule fired."""
    refreshed: int = 0
    """How many fake values of other nodes were computed anew."""


def rewrite(graph_module: fx.GraphModule, rules: Sequence[Rule], name: str) -> fx.GraphModule:
    """The graph with rules applied until none does; the graph itself if none did.

    `name`: of the pass, for errors.
    """
    return rewriting(graph_module, rules, name).graph_module


def rewriting(graph_module: fx.GraphModule, rules: Sequence[Rule], name: str) -> Rewriting:
    """The same, with the number of matches."""
    engine = _Engine(rules, name)
    places = {place for place, each in enumerate(graph_module.graph.nodes) if engine.applies(each)}
    if not places:
        return Rewriting(graph_module)
    made = Rewriting(copied(graph_module))
    first = {each for place, each in enumerate(made.graph_module.graph.nodes) if place in places}
    with computing_fakes_of(graph_module):
        engine.run(made, first)
    if not made.matches:
        return Rewriting(graph_module)
    remove_dead_code(made.graph_module.graph)
    made.graph_module.meta[MATCHES] = dict(made.matches)
    return made


@dataclass
class Limit:
    """How many matches a pass may have, in all of its runs together; for finding a wrong one."""

    name: str
    most: int | None
    count: int = 0
    last: str = ""
    """The last match: rule, node and the user's line."""

    def allows(self, name: str) -> bool:
        return name != self.name or self.most is None or self.count < self.most

    def note(self, name: str, rule: Rule, shown: str) -> None:
        if name == self.name:
            self.count += 1
            self.last = f"rule {rule.name!r} at {shown}"


_LIMIT: ContextVar[Limit | None] = ContextVar("_LIMIT", default=None)


@contextlib.contextmanager
def limited(name: str, most: int | None) -> Iterator[Limit]:
    """Limit the pass `name` to `most` matches; None: no limit, the matches are only counted."""
    limit = Limit(name, most)
    token = _LIMIT.set(limit)
    try:
        yield limit
    finally:
        _LIMIT.reset(token)


class _Engine:
    def __init__(self, rules: Sequence[Rule], name: str) -> None:
        self.name = name
        self.by_root: dict[object, list[Rule]] = {}
        for rule in rules:
            for op in dict.fromkeys(roots_of(rule.patterns[0])):
                self.by_root.setdefault(op, []).append(rule)
        self.lately: deque[str] = deque(maxlen=2 * len(rules))
        """The rules that fired last."""
        self.reach = max((depth(each) for rule in rules for each in rule.patterns), default=1)

    def applies(self, node: fx.Node) -> bool:
        """Whether some rule applies here, unless results of the program or strides forbid it."""
        return any(
            self._replacement(rule, match) is not None
            for rule in self.by_root.get(node.target, ())
            for match in match_at(rule.patterns, node)
        )

    def _replacement(self, rule: Rule, match: Match) -> object:
        """What a rule puts in the place of a match; None if it does not apply."""
        try:
            return call_user_code(rule.replacement, match)
        except NoMatch:
            return None
        except Exception as error:
            if not is_raised_in_user_code(error):
                raise
            raise self._raised(rule, match.root, error) from error

    def run(self, made: Rewriting, dirty: set[fx.Node]) -> None:
        """Apply rules at the nodes `dirty`, and then near what changed."""
        graph = made.graph_module.graph
        bound = MAX_MATCHES_PER_NODE * len(graph.nodes)
        last: fx.Node | None = None
        while dirty:
            now, dirty = dirty, set()
            for node in sorted(each for each in now if not is_erased(each)):
                if is_erased(node):
                    continue
                changed = self._visit(node, made)
                dirty.update(self._near(changed))
                last = changed[-1] if changed else last
            if made.matches.total() > bound:
                raise self._endless(made, last)

    def _endless(self, made: Rewriting, last: fx.Node | None) -> RewriteError:
        """The error for rules that cycle; `last`: what the last match was replaced by."""
        if last is not None and is_erased(last):
            last = None
        cycle = sorted(set(self.lately))
        named = ", ".join(map(repr, cycle))
        why = (
            "its replacement contains what it replaces; a guard `where` can tell them apart"
            if len(cycle) == 1
            else f"{named} undo what they did"
        )
        count, nodes = made.matches.total(), len(made.graph_module.graph.nodes)
        return RewriteError(
            cycle[0],
            self.name,
            None if last is None else f"{last.name} = {show_call(last)}",
            f"after {count} matches in a graph of {nodes} nodes there is no end: {why}",
            None if last is None else source_of(last),
        )

    def _near(self, changed: Sequence[fx.Node]) -> Iterator[fx.Node]:
        """The nodes at which a match that contains one of `changed` may end."""
        seen = set(changed)
        near = list(changed)
        for _ in range(self.reach):
            near = [user for node in near for user in node.users if user not in seen]
            seen.update(near)
        yield from seen

    @works_on("node")
    def _visit(self, node: fx.Node, made: Rewriting) -> list[fx.Node]:
        """Apply the first rule that applies here; returns the new nodes."""
        limit = _LIMIT.get()
        if limit is not None and not limit.allows(self.name):
            return []
        for rule in self.by_root.get(node.target, ()):
            for match in match_at(rule.patterns, node):
                shown = "" if limit is None else _shown(node)
                changed = self._applied(rule, match, made)
                if changed is not None:
                    if limit is not None:
                        limit.note(self.name, rule, shown)
                    made.matches[rule.name] += 1
                    self.lately.append(rule.name)
                    return changed
        return []

    def _applied(self, rule: Rule, match: Match, made: Rewriting) -> list[fx.Node] | None:
        root = match.root
        replacement = self._replacement(rule, match)
        if replacement is None:
            return None
        try:
            if isinstance(replacement, Edit):
                return self._edited(match, replacement, made)
            return self._replaced(match, replacement, made)
        except NoMatch:
            return None
        except WrongReplacement as error:
            raise self._wrong(rule, root, str(error)) from error.__cause__
        except Exception as error:
            if not is_raised_in_user_code(error):
                raise
            raise self._raised(rule, root, error) from error

    def _raised(self, rule: Rule, root: fx.Node, error: Exception) -> RewriteError:
        """The error for an exception in the user's code of a replacement."""
        return self._wrong(rule, root, f"its replacement raised {type(error).__name__}: {error}")

    def _wrong(self, rule: Rule, root: fx.Node, why: str) -> RewriteError:
        shown = f"{root.name} = {show_call(root)}"
        return RewriteError(rule.name, self.name, shown, why, source_of(root))

    def _replaced(self, match: Match, replacement: object, made: Rewriting) -> list[fx.Node] | None:
        builder = Builder(match.root, _place(match), match.bound)
        try:
            new = builder.built(replacement)
            outputs = len(match.roots) + len(match.unused)
            if len(new) != outputs:
                raise WrongReplacement(
                    f"the replacement has {len(new)} outputs, the pattern {outputs}"
                )
            new = [each for n, each in enumerate(new) if n not in match.unused]
            for old, value in zip(match.roots, new, strict=True):
                check_value(old, value)
                if not may_replace(old, value, builder):
                    raise NoMatch
        except BaseException:
            builder.undo()
            raise
        return self._put(match, new, builder, made)

    def _put(
        self, match: Match, new: list[fx.Node], builder: Builder, made: Rewriting
    ) -> list[fx.Node] | None:
        """Put new nodes in the place of the roots; None, and nothing changed, if strides forbid
        it."""
        pairs = list(zip(match.roots, new, strict=True))
        moved: list[tuple[fx.Node, list[fx.Node]]] = []
        for old, node in pairs:
            users = list(old.users)
            old.replace_all_uses_with(node)
            moved.append((old, users))
            if same_values(value_of(node), value_of(old)):
                continue
            try:
                made.refreshed += refresh_users(node, match.nodes)
            except NotRefreshed:
                for back, its_users in moved:
                    for user in its_users:
                        user.replace_input_with(dict(pairs)[back], back)
                builder.undo()
                return None
        for old, node in pairs:
            builder.finish(old, node)
            replace(old, node)
        builder.remove_unused(new)
        # Users come first, so that what only they use is erased after them.
        left = [each for each in match.nodes if not is_erased(each)]
        for node in sorted(left, reverse=True):
            if not node.users:
                node.graph.erase_node(node)
        return [*(each for each in builder.made if not is_erased(each)), *new]

    def _edited(self, match: Match, edit: Edit, made: Rewriting) -> list[fx.Node] | None:
        """Change the root in place; it is the same value, so only its strides may change."""
        root = match.root
        builder = Builder(root, root, match.bound)
        try:
            node = builder.call(edit.op, tuple(map(builder.value, edit.args)), {})
            check_value(root, node)
            same = same_values(value_of(node), value_of(root))
            value, args = value_of(node), node.args
        except BaseException:
            builder.undo()
            raise
        builder.graph.erase_node(builder.made.pop())
        before = (root.target, root.args, root.kwargs, value_of(root))
        root.target, root.args, root.kwargs = edit.op, args, {}
        if not same:
            set_value(root, value)
            try:
                made.refreshed += refresh_users(root)
            except NotRefreshed:
                root.target, root.args, root.kwargs = before[:3]
                set_value(root, before[3])
                builder.undo()
                return None
        return [root]


def _shown(node: fx.Node) -> str:
    source = source_of(node)
    place = "" if source is None else f"\n  at {source}"
    return f"{node.name} = {show_call(node)}{place}"


def _place(match: Match) -> fx.Node:
    """The node before which a replacement is put: after all that it uses, before its users."""
    if len(match.roots) == 1:
        return match.root
    last = max(match.roots)
    users = [user for root in match.roots for user in root.users if user not in match.nodes]
    if any(user < last for user in users):
        raise NoMatch
    return last
