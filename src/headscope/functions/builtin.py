"""The built-in questions: four functions, short answers, easy enough for a model of 135 million parameters.

`builtin_items` gives them in the shape of `cogqa.py`, as a user's file would. Facts are in `facts.py`; the other
questions are made from the words below, the same ones every time.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

from headscope.functions.cogqa import questions_of
from headscope.functions.facts import CAPITALS, CONTINENTS, LANGUAGES, OTHERS
from headscope.functions.questions import FUNCTIONS, QuestionSet

EACH = 170

NAMES = "Mia Tom Anna Ben Lucy Sam Emma Jack Kate Paul Rose Mark Sara Adam Jane Luke".split()
COLOURS = "red blue green yellow black white brown pink purple orange".split()
THINGS = "hat bag cup car bike coat ball book pen chair box lamp".split()
ROOMS = "kitchen garden bedroom bathroom garage office cellar attic".split()
CITIES = "Paris London Rome Berlin Madrid Vienna Oslo Dublin".split()
JOBS = "teacher doctor farmer baker driver nurse painter singer".split()
KINDS = "cat dog bird horse goat lion frog duck".split()
FOODS = "milk bread cheese rice corn apples nuts carrots".split()
SKILLS = "fly swim run jump sing climb dance hide".split()

Draw = random.Random
Made = tuple[str, str, str]  # context, question, answer


def builtin_items() -> list[dict[str, Any]]:
    """All built-in questions, as CogQA has them."""
    items = [_item(made, "knowledge-recall") for made in _knowledge()]
    items += [_item(made, "math-calculation") for made in _math()]
    makers: dict[str, Callable[[Draw], Iterator[Made]]] = {"retrieval": _retrieval, "inference": _inference}
    for function, make in makers.items():
        draw = Draw(function)
        different: dict[Made, None] = {}
        while len(different) < EACH:
            different |= dict.fromkeys(make(draw))
        items += [_item(made, function) for made in list(different)[:EACH]]
    return items


def builtin_questions() -> QuestionSet:
    return questions_of(builtin_items(), "built-in questions")


def _item(made: Made, function: str) -> dict[str, Any]:
    context, text, answer = made
    part = {"subquestion": text, "answer": answer, "cognitive_skill": FUNCTIONS[function]}
    return {"question": context or text, "answer": answer, "generated": [part]}


def _knowledge() -> Iterator[Made]:
    for country, capital in CAPITALS.items():
        yield "", f"What is the capital of {country}?", capital
    for country, continent in CONTINENTS.items():
        yield "", f"On which continent is {country}?", continent
    for country, language in LANGUAGES.items():
        yield "", f"Which language is spoken in {country}?", language
    for question, answer in OTHERS.items():
        yield "", question, answer


def _math() -> Iterator[Made]:
    """One step with small numbers."""
    for x in range(1, 10):
        for y in range(1, 10):
            yield "", f"What is {x} + {y}?", str(x + y)
    for x in range(2, 61):
        yield "", f"What is {x} times 10?", str(10 * x)
    for x in range(2, 22):
        yield "", f"What is {x} times 2?", str(2 * x)


def _retrieval(draw: Draw) -> Iterator[Made]:
    """The answer stands in the text, among other things."""
    who, city, job, food = (draw.choice(words) for words in (NAMES, CITIES, JOBS, FOODS))
    colour, thing, price = draw.choice(COLOURS), draw.choice(THINGS), draw.randint(11, 99)
    yield f"{who} is a {job} and lives in {city}. {who} has a {colour} {thing}.", f"Where does {who} live?", city
    yield f"{who} lives in {city} and works as a {job}. {who} likes {food}.", f"What is the job of {who}?", job
    bought = f"{who} bought a {colour} {thing} in {city} for {price} dollars."
    yield bought, f"What colour is the {thing}?", colour
    yield bought, f"What did {who} buy?", f"a {colour} {thing}"


def _inference(draw: Draw) -> Iterator[Made]:
    """Statements that have to be put together; none of them says it."""
    a, b = draw.sample(NAMES, 2)
    kind, food, skill, room = (draw.choice(words) for words in (KINDS, FOODS, SKILLS, ROOMS))
    colour, thing, city = (draw.choice(words) for words in (COLOURS, THINGS, CITIES))
    yield f"All {kind}s like {food}. {a} is a {kind}.", f"What does {a} like?", food
    yield f"Every {kind} can {skill}. {a} is a {kind}.", f"What can {a} do?", skill
    yield f"{a} is in the {room}. {b} is with {a}.", f"Where is {b}?", room
    yield f"{a} has a {colour} {thing}. {b} has the same {thing}.", f"What colour is the {thing} of {b}?", colour
    yield f"{a} took the {thing} and went to {city}.", f"Where is the {thing} now?", city
