"""Syntax: a short phrase is turned into another form, after one example that shows which.

    prompt   One cup, two cups. One dog, two
    target   " dogs", against the foil " dog"

Six forms take turns: plural, past tense, agreement of verb and subject, pronoun, question and negation. The foil is the
target in the wrong form. The corrupt prompt is another item of the same form behind the same example.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import TYPE_CHECKING

from headscope.tasks.items import Item, build
from headscope.tasks.task import Task

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

NOUNS = (
    "cat dog bird boy girl car tree ball book hat cup bed door king bear frog duck cow pig hen ant bee boat ship "
    "train truck kite doll toy game song star cloud hill road farm park house room table chair box bag shoe sock coat "
    "apple egg cake cookie flower leaf rock stick shell nut seed plant garden river lake friend teacher doctor farmer "
    "queen monster dragon rabbit horse monkey lion tiger snake turtle spider"
).split()
IRREGULAR = {"box": "boxes", "leaf": "leaves"}

ANIMALS = "cat dog bird boy girl bear frog duck cow pig hen rabbit horse monkey lion tiger turtle king queen".split()

VERBS = {
    "walk": "walked", "jump": "jumped", "play": "played", "help": "helped", "cook": "cooked", "look": "looked",
    "laugh": "laughed", "talk": "talked", "work": "worked", "smile": "smiled", "dance": "danced", "run": "ran",
    "sing": "sang", "swim": "swam", "eat": "ate", "sit": "sat", "cry": "cried", "sleep": "slept", "win": "won",
    "fall": "fell", "fly": "flew", "hide": "hid", "draw": "drew", "wait": "waited", "listen": "listened",
}  # fmt: skip
MODALS = "can will must should could may".split()
WHO = {"I": "I", "You": "you", "He": "he", "She": "she", "We": "we", "They": "they"}

HE = "Tom Ben Tim Sam Max Jack John Bob Jim Dan Billy Peter Paul David James Mike Fred George Harry".split()
SHE = "Anna Lily Lucy Mary Amy Jane Kate Emma Sue Mia Sara Alice Sarah Laura Susan Maria Rose Lisa".split()
THINGS = "ball hat book toy car doll bag cup coat shoe kite box ring key bike boat truck cookie drum".split()

# What is given, its other form, and that in the wrong form.
Forms = tuple[str, str, str]


def plural(rng: random.Random) -> Forms:
    noun = rng.choice(NOUNS)
    return f"One {noun}, two", f" {IRREGULAR.get(noun, noun + 's')}", f" {noun}"


def tense(rng: random.Random) -> Forms:
    verb, who = rng.choice(list(VERBS)), rng.choice(("I", "you", "we", "they"))
    return f"Today {who} {verb}, yesterday {who}", f" {VERBS[verb]}", f" {verb}"


def agreement(rng: random.Random) -> Forms:
    noun, verb = rng.choice(ANIMALS), rng.choice([verb for verb in VERBS if not verb.endswith("y")])
    return f"The {noun} {verb}s, the {noun}s", f" {verb}", f" {verb}s"


def pronoun(rng: random.Random) -> Forms:
    # (The thing is put in afterwards, because the example has to give it away.)
    he = rng.random() < 0.5
    right, wrong = ("his", "her") if he else ("her", "his")
    return f"{rng.choice(HE if he else SHE)} lost", f" {right}", f" {wrong}"


def question(rng: random.Random) -> Forms:
    who, modal = rng.choice(list(WHO)), rng.choice(MODALS)
    verb = rng.choice([verb for verb in VERBS if not verb.endswith("y")])
    return f"{who} {modal} {verb}. {modal.capitalize()}", f" {WHO[who]} {verb}?", f" {WHO[who]} {verb}s?"


def negation(rng: random.Random) -> Forms:
    who, verb = rng.choice(list(WHO)), rng.choice(list(VERBS))
    return f"{who} {VERBS[verb]}. {who} did not", f" {verb}", f" {VERBS[verb]}"


FORMS: tuple[Callable[[random.Random], Forms], ...] = (plural, tense, agreement, pronoun, question, negation)


def draw(rng: random.Random, slot: int) -> Item:
    """One item: an example, what is given, and as target its other form."""
    form = FORMS[slot % len(FORMS)]
    (shown, shown_other, _), (given, target, wrong), (other, other_target, _) = (form(rng) for _ in range(3))
    usable = shown != given and target != other_target
    if form is pronoun:
        thing = rng.choice(THINGS)
        shown_other, target, wrong = (f"{word} {thing}" for word in (shown_other, target, wrong))
    example = f"{shown}{shown_other} " if shown_other.endswith("?") else f"{shown}{shown_other}. "
    return Item(example + given, example + other if usable else "", (target,), (wrong,))


def syntax(tokenizer: PreTrainedTokenizerBase, *, n: int = 100, seed: int = 0) -> Task:
    """Plural, tense, agreement, pronoun, question, negation: another form of a phrase, after one example. (targets)

    Args:
        tokenizer: of the model that is to be asked; prompts are chosen to fit it.
        n: how many prompt pairs.
        seed: of the prompts.

    Returns:
        The task: n prompts with their corrupt twins, targets and foils.
    """
    return build("syntax", "log-prob", draw, tokenizer, n=n, seed=seed)
