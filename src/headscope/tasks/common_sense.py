"""Common sense: a question about everyday things, after one example.

    prompt   Question: What do you use to cut paper?
             Answer: scissors
             Question: What do you use to open a lock?
             Answer:
    target   " a key", against the foils " a broom", " a lamp" and " a pen"

In the second form, `common-sense-letters`, the options are shown behind the question as "A. a broom B. a key" and the
target is the letter; small models rarely manage that. Wrong options are right answers to other questions of the kind.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from headscope.tasks.items import Item, build
from headscope.tasks.task import Task

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

# Kinds of questions, and what is asked with its answer. Answers of one kind exclude each other.
KINDS: dict[str, dict[str, str]] = {
    "What do you use to {}?": {
        "cut paper": "scissors", "open a lock": "a key", "eat soup": "a spoon", "dig a hole": "a shovel",
        "sweep the floor": "a broom", "write a letter": "a pen", "hit a nail": "a hammer", "dry your hands": "a towel",
        "tell the time": "a clock", "brush your teeth": "a toothbrush", "take a photo": "a camera",
        "call a friend": "a phone", "stay dry in the rain": "an umbrella", "climb to the roof": "a ladder",
        "catch a fish": "a net", "light a dark room": "a lamp", "wash your hair": "shampoo", "sew a button": "a needle",
        "boil water": "a kettle", "carry your books": "a bag", "cut wood": "a saw", "cut bread": "a knife",
    },
    "Where do you find {}?": {
        "many books": "in a library", "a teacher": "in a school", "cows and pigs": "on a farm",
        "sick people": "in a hospital",
        "whales": "in the sea", "fresh bread": "in a bakery", "planes": "at an airport", "camels": "in the desert",
        "the moon": "in the sky", "a stove": "in the kitchen", "a pillow": "on a bed",
        "many tall trees": "in the forest",
        "money": "in a bank", "lions in cages": "in a zoo", "trains": "at a station", "old paintings": "in a museum",
        "a bride": "at a wedding", "clowns": "in a circus", "a judge": "in a court",
        "movies on a big screen": "in a cinema",
        "penguins": "on the ice", "swings and slides": "in a playground",
    },
    "Which animal {}?": {
        "says meow": "a cat", "barks": "a dog", "gives us milk": "a cow", "lays eggs": "a hen", "makes honey": "a bee",
        "has a very long neck": "a giraffe", "has a trunk": "an elephant", "has black and white stripes": "a zebra",
        "spins a web": "a spider", "swims in the sea and is huge": "a whale", "hops and has a pouch": "a kangaroo",
        "gives us wool": "a sheep", "eats bananas in trees": "a monkey", "carries its house": "a snail",
        "hoots at night": "an owl", "has a hump": "a camel", "is green and jumps": "a frog",
        "eats cheese and is small": "a mouse",
        "pulls a cart": "a horse", "is the king of the jungle": "a lion",
    },
    "Who {}?": {
        "puts out fires": "a firefighter", "teaches children": "a teacher", "helps sick people": "a doctor",
        "flies a plane": "a pilot", "bakes bread": "a baker", "grows food": "a farmer",
        "catches thieves": "a police officer",
        "fixes teeth": "a dentist", "cuts hair": "a barber", "paints pictures": "an artist", "sings songs": "a singer",
        "brings letters": "a mailman", "goes to space": "an astronaut", "sails a ship": "a sailor",
        "builds houses": "a builder", "takes care of animals": "a vet", "cooks in a restaurant": "a chef",
        "wears a crown": "a king", "repairs cars": "a mechanic", "writes books": "an author",
    },
}  # fmt: skip
LETTERS = "ABCDE"


def choose(rng: random.Random, kind: str, options: int) -> tuple[str, str, list[str]]:
    """A question, its answer, and the options in the order shown."""
    facts = KINDS[kind]
    asked = rng.choice(list(facts))
    wrong = rng.sample([answer for answer in facts.values() if answer != facts[asked]], options - 1)
    choices = [facts[asked], *wrong]
    rng.shuffle(choices)
    return kind.format(asked), facts[asked], choices


def lettered(question: str, shown: list[str]) -> str:
    listed = " ".join(f"{letter}. {text}" for letter, text in zip(LETTERS, shown, strict=False))
    return f"Question: {question}\n{listed}\nAnswer:"


def draw_letter(rng: random.Random, options: int) -> Item:
    """A lettered item; the corrupt prompt asks another question of the same kind, whose answer has another letter."""
    kind = rng.choice(list(KINDS))
    shown, asked, other = (choose(rng, kind, options) for _ in range(3))
    letters = [f" {LETTERS[listed.index(answer)]}" for _, answer, listed in (shown, asked, other)]
    example = f"{lettered(shown[0], shown[2])}{letters[0]}\n"
    wrong = tuple(f" {letter}" for letter in LETTERS[:options] if f" {letter}" != letters[1])
    usable = shown[0] != asked[0] and letters[1] != letters[2]
    corrupt = example + lettered(other[0], other[2])
    return Item(example + lettered(asked[0], asked[2]), corrupt if usable else "", (letters[1],), wrong)


def draw_words(rng: random.Random, options: int) -> Item:
    """An item whose target is the answer's words; foils are the other options, which are not shown."""
    kind = rng.choice(list(KINDS))
    shown, asked, other = (choose(rng, kind, options) for _ in range(3))
    example = f"Question: {shown[0]}\nAnswer: {shown[1]}\n"
    wrong = tuple(f" {text}" for text in asked[2] if text != asked[1])
    usable = shown[0] != asked[0] and asked[1] != other[1]
    prompt, corrupt = (f"{example}Question: {question}\nAnswer:" for question, _, _ in (asked, other))
    return Item(prompt, corrupt if usable else "", (f" {asked[1]}",), wrong)


def common_sense(tokenizer: PreTrainedTokenizerBase, *, n: int = 100, seed: int = 0) -> Task:
    """Everyday questions after one example; the target is the answer in words. (targets, against three wrong ones)

    Args:
        tokenizer: of the model that is to be asked; prompts are chosen to fit it.
        n: how many prompt pairs.
        seed: of the prompts.

    Returns:
        The task: n prompts with their corrupt twins, targets and foils.
    """
    return build("common-sense", "log-prob", lambda rng, slot: draw_words(rng, 4), tokenizer, n=n, seed=seed)


def common_sense_letters(tokenizer: PreTrainedTokenizerBase, *, n: int = 100, seed: int = 0) -> Task:
    """Everyday questions with lettered options, after one example; the target is the letter. (targets)

    Args:
        tokenizer: of the model that is to be asked; prompts are chosen to fit it.
        n: how many prompt pairs.
        seed: of the prompts.

    Returns:
        The task: n prompts with their corrupt twins, targets and foils.
    """
    draw = lambda rng, slot: draw_letter(rng, 4)  # noqa: E731
    return build("common-sense-letters", "log-prob", draw, tokenizer, n=n, seed=seed)
