'''Docstring: the parameters of a Python function are documented in the order of its signature.

    clean    def load(self, size, path, mode, color, limit):
                 """Read the old file.

                 :param size: a small number
                 :param path: the first choice
                 :param
    corrupt  the same with other names in the signature: def load(self, index, user, step, title, port):
    answer   " mode", wrong the signature's other arguments

The model finds the argument that follows the last documented one in the signature. In the corrupt prompt the documented
names do not occur in the signature, so that it cannot tell which one is next.
'''

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import TYPE_CHECKING

from headscope.tasks.items import Item, build, single_tokens
from headscope.tasks.task import Task

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

ARGUMENTS = (
    "size path mode color limit index user step title port name count width height depth weight score label group "
    "order level rate date month page item table column row node graph model batch layer target source message code "
    "token string offset length scale shape angle speed price status event role owner parent root host client query "
    "filter format style font image audio frame region city phone email domain link method option flag mask sample seed"
).split()

FUNCTIONS = "load save build check update create remove move find send open close read write make draw".split()

VERBS = "Read Change Make Keep Find Show Send Clean Take Build".split()

OBJECTS = "the old file, a new record, the whole list, one more entry, the next part, a copy, the result".split(", ")

MEANINGS = (
    "a small number, the first choice, what to use, a short text, the one to keep, any value above zero, how it should "
    "be, the place to begin, where it goes, a thing to look for, what was asked, the part that matters"
).split(", ")

LISTED = 2
SIGNATURE = 5


def draw(rng: random.Random, slot: int, arguments: Sequence[str]) -> Item:
    """One pair from the given argument names."""
    words = rng.sample(arguments, 2 * SIGNATURE)
    names, others = words[:SIGNATURE], words[SIGNATURE:]
    head, summary = f"def {rng.choice(FUNCTIONS)}(self, ", f"{rng.choice(VERBS)} {rng.choice(OBJECTS)}."
    meanings = rng.sample(MEANINGS, LISTED)
    listed = [f":param {name}: {meaning}" for name, meaning in zip(names, meanings, strict=False)]
    body = "\n    ".join([f'"""{summary}\n', *listed, ":param"])
    clean, corrupt = (f"{head}{', '.join(signature)}):\n    {body}" for signature in (names, others))
    answer = names[LISTED]
    wrong = tuple(f" {name}" for name in names if name != answer)
    return Item(clean, corrupt, (f" {answer}",), wrong, changed=SIGNATURE)


def docstring(tokenizer: PreTrainedTokenizerBase, *, n: int = 100, seed: int = 0) -> Task:
    """The next argument of a Python function in its docstring. (logit difference to the best other argument)

    Args:
        tokenizer: of the model that is to be asked; prompts are chosen to fit it.
        n: how many prompt pairs.
        seed: of the prompts.

    Returns:
        The task: n prompts with their corrupt twins, targets and foils.
    """
    arguments = single_tokens("docstring", tokenizer, ARGUMENTS, after="(self,", least=2 * SIGNATURE)
    return build("docstring", "logit-diff", lambda rng, slot: draw(rng, slot, arguments), tokenizer, n=n, seed=seed)
