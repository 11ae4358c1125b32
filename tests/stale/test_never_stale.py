"""Nothing is answered that belongs to another question, and nothing is computed twice, whatever changes in between.

A tiny world (`worlds.py`) is changed in one thing after the other (`changes.py`) and asked by one door after the other
(`doors.py`). `law.py` says what has to be answered. Everything goes through public doors, so nothing here depends on
how the package keeps what it has computed.
"""

import os
import re
from collections.abc import Iterable, Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings, strategies
from hypothesis.stateful import RuleBasedStateMachine, rule, run_state_machine_as_test

from changes import KINDS, NOTHING, facts_of, values_of
from doors import doors_of
from law import HOW, Lab, Story

# What fails today, as "kind, door, how: facts": the law is broken so if one of these facts has changed since the door
# was asked, or if these methods are asked for. Tests fail as well if something stands here that does not fail any more:
# then it is to be removed.
KNOWN = """
pixels, python, refused: pixel, added, name, order, swap, weights, scheduler, timesteps, draws, noise, projection,
    projection_dim, parameters, seed, projection_seed, dtype, autocast
pixels, python, stale: encoder weights
pixels, command, stale: artist, caption, checkpoint weights, retrained weights, encoder weights
pixels, command, refused: weights, scheduler, projection_seed
pixels, scores, answered: pixel, added, swap, artist, caption, query pixel, query caption, weights, scheduler,
    checkpoint weights, retrained weights, losses, encoder weights
pixels, report, answered: artist, caption, query caption, weights, scheduler, checkpoint weights, retrained weights,
    losses, encoder weights
pixels, credit, answered: pixel, added, name, order, swap, artist, caption, query pixel, query caption, weights,
    scheduler, checkpoint weights, retrained weights, losses, encoder weights
pixels, card, answered: pixel, added, swap, artist, caption, query pixel, query caption, weights, scheduler,
    checkpoint weights, retrained weights, losses, encoder weights
pixels, explorer, stale: encoder weights
pixels, new process, refused: pixel, added, name, order, swap, weights, scheduler
pixels, new process, stale: package
lora, python, refused: pixel, added, name, order, swap, caption, weights, autoencoder weights, text encoder weights,
    lora weights, strength, template, scheduler, timesteps, draws, noise, projection, projection_dim, parameters,
    seed, projection_seed, dtype, autocast
lora, python, computed: nothing
lora, command, computed: nothing
lora, command, refused: weights, autoencoder weights, text encoder weights, lora weights, strength, template,
    scheduler, projection_seed
lora, scores, answered: pixel, added, swap, artist, caption, query pixel, query caption, weights, autoencoder weights,
    text encoder weights, lora weights, strength, template, scheduler
lora, report, answered: artist, caption, query caption, weights, autoencoder weights, text encoder weights,
    lora weights, strength, template, scheduler
lora, credit, answered: pixel, added, name, order, swap, artist, caption, query pixel, query caption, weights,
    autoencoder weights, text encoder weights, lora weights, strength, template, scheduler
lora, card, answered: pixel, added, swap, artist, caption, query pixel, query caption, weights, autoencoder weights,
    text encoder weights, lora weights, strength, template, scheduler
lora, explorer, computed: nothing
lora, index, answered: template
lora, generate, wrong: caption, template, prompts
latent, python, refused: pixel, added, name, order, swap, caption, weights, autoencoder weights, text encoder weights,
    template, precision, scheduler, timesteps, draws, noise, projection, projection_dim, parameters, seed, dtype,
    autocast
latent, python, computed: nothing
latent, command, refused: pixel, added, name, order, swap, place
latent, command, stale: artist, caption, query caption
latent, command, computed: damping, batch_size, skip_bad
latent, scores, answered: pixel, added, swap, artist, caption, query pixel, query caption, weights,
    autoencoder weights, text encoder weights, scheduler
latent, report, answered: artist, caption, query caption, weights, autoencoder weights, text encoder weights,
    scheduler
latent, credit, answered: pixel, added, name, order, swap, artist, caption, query pixel, query caption, weights,
    autoencoder weights, text encoder weights, scheduler
latent, card, answered: pixel, added, swap, artist, caption, query pixel, query caption, weights, autoencoder weights,
    text encoder weights, scheduler
latent, explorer, computed: nothing
latent, index, refused: everything
module, python, refused: pixel, label, weights, scheduler, averaged weights, conditioner, helper, closure, timesteps,
    draws, noise, projection, projection_dim, parameters, seed, projection_seed, dtype, autocast
module, python, stale: autoencoder weights, frozen weights, attribute, adapter, global, object, encoder weights
"""


def known() -> dict[tuple[str, str, str], set[str]]:
    """How the law is broken, by (kind, fact, door)."""
    found: dict[tuple[str, str, str], set[str]] = {}
    for line in re.split(r"\n(?! )", KNOWN.strip()):
        head, facts = line.split(": ")
        kind, door, how = head.split(", ")
        named = facts_of(kind) if facts == "everything" else re.split(r",\s+", facts)
        for fact in named:
            found.setdefault((kind, fact, door), set()).add(how)
    return found


BROKEN = known()


def is_known(kind: str, door: str, how: str, causes: Iterable[str]) -> bool:
    """Whether the law is broken as expected, after these have changed."""
    return any(how in BROKEN.get((kind, cause, door), ()) for cause in (NOTHING, *causes))


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda descriptor: None)  # no world has to outlast a power cut
        yield Lab(tmp_path_factory.mktemp("worlds"))


class Stories(RuleBasedStateMachine):
    """A walk through the states of one kind of world. A story ends where the law is broken as expected."""

    def __init__(self, lab: Lab, kind: str) -> None:
        super().__init__()
        self.lab, self.kind = lab, kind
        self.story: Story | None = None

    @rule(data=strategies.data())
    def change_one_thing_and_ask(self, data: Any) -> None:
        fact = data.draw(strategies.sampled_from(facts_of(self.kind)), "change")
        value = data.draw(strategies.sampled_from(values_of(self.kind, fact)), "to")
        door = data.draw(strategies.sampled_from(doors_of(self.kind)), "and ask by")
        is_new, story = self.story is None, self.story or self.lab.story(self.kind, door, fact)
        how = story.how or story.turn(fact, value, door)
        self.story = None if how else story
        if how:
            story.end()
        told = f"{self.kind}: after {', '.join(story.changed)} changed, {door} {HOW[how]}; asked were {story.asked}"
        causes = [*story.changed, *story.world.state["methods"].split(",")]
        assert not how or is_known(self.kind, story.asked[-1], how, causes), told
        if is_new and not how:
            assert (self.kind, fact, door) not in BROKEN, f"{told}. Remove this from KNOWN: it does not fail any more"

    def teardown(self) -> None:
        if self.story is not None:
            self.story.end()


def walk(lab: Lab, kind: str, examples: int, steps: int) -> None:
    how = settings(
        max_examples=examples,
        stateful_step_count=steps,
        derandomize=True,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    run_state_machine_as_test(lambda: Stories(lab, kind), settings=how)


@pytest.mark.parametrize("kind", KINDS)
def test_every_answer_belongs_to_its_question(lab: Lab, kind: str) -> None:
    walk(lab, kind, examples=2, steps=20)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_every_answer_belongs_to_its_question_in_long_stories(lab: Lab, kind: str) -> None:
    walk(lab, kind, examples=20, steps=50)


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "door"), [(kind, door) for kind in KINDS for door in doors_of(kind)])
def test_one_change_by_one_door(lab: Lab, kind: str, door: str) -> None:
    """All that can change, one by one; what stands in `KNOWN` is compared with what fails."""
    found = {}
    for fact in facts_of(kind):
        story = lab.story(kind, door, fact)
        found[fact] = story.how or story.turn(fact, values_of(kind, fact)[1], door)
        story.end()
    unknown = {fact: how for fact, how in found.items() if how and not is_known(kind, door, how, [fact])}
    mended = [fact for fact, how in found.items() if not how and (kind, fact, door) in BROKEN]
    assert (unknown, mended) == ({}, [])
