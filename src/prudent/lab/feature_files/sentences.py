"""The direction of the map `minilm`, between embeddings of made-up blame and made-up praise.

Made-up film reviews: public text from which directions of praise and blame are learned.

Sentences are drawn from templates and word lists written for this purpose; no review of any data
set was used. What a review says about the film (genre, plot, length) is drawn independently of
whether it praises it, so the first is variation that a map should ignore.
"""

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from prudent._files import replacing
from prudent.certify.features.sentences import FORMAT, LAYERS, Intervals, MiniLMEmbedding, Real


def direction_of(embeddings: Real, labels: npt.NDArray[np.int64], shrink: float = 0.5) -> Real:
    """Fisher's discriminant of two classes; deviation 1 within classes.

    Args:
        embeddings: One per row.
        labels: 0 or 1.
        shrink: Weight of the mean variance in the covariance within classes.
    """
    means = np.stack([embeddings[labels == label].mean(axis=0) for label in (0, 1)])
    within = embeddings - means[labels]
    covariance = within.T @ within / len(within)
    mean = np.trace(covariance) / len(covariance)
    covariance = (1 - shrink) * covariance + shrink * mean * np.eye(len(covariance))
    found: Real = np.linalg.solve(covariance, means[1] - means[0])
    found /= np.std(within @ found)
    return found


def fitted(
    embeddings: Real, labels: npt.NDArray[np.int64], provenance: dict[str, Any]
) -> Intervals:
    """The map from embeddings of made-up reviews."""
    rows = embeddings / np.sqrt(np.square(embeddings).sum(axis=1, keepdims=True))
    return Intervals("minilm", "", rows.mean(axis=0), direction_of(rows, labels), provenance)


def make(
    path: str | os.PathLike[str], count: int = 6000, embedding: MiniLMEmbedding | None = None
) -> dict[str, Any]:
    """Embed made-up reviews, find the direction and write the map.

    Returns:
        How it was made.
    """
    texts, labels = reviews(count, seed=1)
    network = embedding or MiniLMEmbedding()
    rows = network(texts)
    provenance = {"reviews": count, "seed": 1, "layers": LAYERS}
    write(path, fitted(rows, labels, provenance))
    return provenance


def write(path: str | os.PathLike[str], found: Intervals) -> None:
    """Write a map."""
    header = np.array(json.dumps({"format": FORMAT, "provenance": found.provenance}))
    with replacing(Path(path), "wb") as file:
        np.savez_compressed(
            file,
            header=header,
            centre=found.centre.astype(np.float32),
            direction=found.direction.astype(np.float32),
        )


def _listed(text: str, mark: str = "|") -> list[str]:
    return text.split(mark)


_PRAISE = _listed(
    "wonderful brilliant excellent superb moving touching delightful charming gripping clever "
    "beautiful outstanding memorable hilarious powerful magnificent fresh captivating masterful "
    "honest thrilling perfect fantastic stunning heartwarming witty unforgettable great lovely "
    "terrific refreshing believable fascinating enjoyable flawless remarkable inspired absorbing",
    " ",
)
_BLAME = _listed(
    "terrible awful boring dreadful predictable dull lame pathetic pointless horrible ridiculous "
    "annoying clumsy tedious bland laughable stupid incoherent shallow painful amateurish wooden "
    "disappointing cheap forgettable lifeless unwatchable bad silly unconvincing sloppy tiresome "
    "mediocre worthless confusing poor embarrassing ludicrous",
    " ",
)
_ASPECTS = _listed(
    "acting|script|story|plot|direction|dialogue|ending|music|camera work|editing|humour|pacing|"
    "lead actor|lead actress|supporting cast|screenplay|villain|opening scene|soundtrack|"
    "whole production|character development|special effects|cinematography|romance|first half"
)
_GENRES = _listed(
    "comedy|horror film|western|thriller|romance|documentary|cartoon|war film|musical|drama|"
    "science fiction film|crime film|martial arts film|television film|biography|ghost story|"
    "family film|low budget film|sequel|remake|silent film|mystery|slasher|costume drama"
)
_PEOPLE = _listed(
    "a detective|two brothers|a young widow|a retired soldier|a group of teenagers|a scientist|"
    "a small town sheriff|an orphan|a teacher|a gang of thieves|a princess|a boxer|a journalist|"
    "a lonely farmer|a family of five|a robot|a serial killer|an ageing singer|three friends"
)
_EVENTS = _listed(
    "has to solve a murder|falls in love with a stranger|travels across the country|"
    "finds a hidden treasure|is haunted by the past|fights against an evil corporation|"
    "moves into an old house|gets lost in the desert|plans one last robbery|looks for revenge|"
    "discovers a family secret|tries to win a competition|survives a plane crash|"
    "is chased by a monster|returns home after the war|must save the world"
)
_TIMES = _listed("Sunday|television|a plane|DVD|a rainy evening|video")
_FRIENDS = _listed("wife|husband|brother|sister|neighbour|daughter")
_NEUTRAL = _listed(
    "I watched this {genre} on {when}.|It is a {genre} about {person} who {event}.|"
    "{person} {event}.|The film runs for about {minutes} minutes.|It was made in {year}.|"
    "I had read the book before.|My {friend} and I saw it on {when}.|"
    "The story is set in {year}, where {person} {event}.|I rented this {genre} last week.|"
    "Then {person} {event}.|In the second half {person} {event}.|The director made another {genre} "
    "in {year}."
)
_JUDGED = _listed(
    "The {aspect} is {word}.|The {aspect} was {word} and {other}.|What a {word} {genre}!|"
    "I thought the {aspect} was really {word}.|This is a {word}, {other} film.|"
    "The {aspect} and the {aspect2} are both {word}.|It has a {word} {aspect}.|"
    "Everything about it is {word}.|I found it {word} from beginning to end.|"
    "One of the most {word} films I have ever seen.|The {aspect} is simply {word}.|"
    "A {word} {genre} with a {other} {aspect}.|It is {word}, and the {aspect} is {other}."
)
_VERDICTS = (
    _listed(
        "I loved it.|Highly recommended.|Ten out of ten.|I could watch it again and again.|"
        "Do not miss it.|It made me laugh and cry.|A must see.|I was glued to the screen.|"
        "This film is a gem.|I enjoyed every minute of it.|One of my favourites.|"
        "I was pleasantly surprised.|It deserves more attention.|A classic.|"
        "Buy it, you will not regret it.|I left with a smile on my face."
    ),
    _listed(
        "I hated it.|Avoid it at all costs.|One out of ten.|I want my money back.|"
        "Do not waste your time.|I nearly fell asleep.|I turned it off halfway through.|"
        "What were they thinking?|This film is a mess.|I regret every minute of it.|"
        "One of the worst films ever made.|I was bitterly disappointed.|It fails completely.|"
        "Nothing works.|Save your money, stay away.|I could not wait for it to end."
    ),
)


def reviews(count: int, seed: int) -> tuple[list[str], npt.NDArray[np.int64]]:
    """Reviews and their labels: 1 for praise, 0 for blame, in turn."""
    draw = np.random.RandomState(seed)  # frozen across versions of numpy

    def one(options: list[str]) -> str:
        return options[draw.randint(len(options))]

    def filled(template: str, words: list[str]) -> str:
        text = template.format(
            genre=one(_GENRES),
            person=one(_PEOPLE),
            event=one(_EVENTS),
            aspect=one(_ASPECTS),
            aspect2=one(_ASPECTS),
            word=one(words),
            other=one(words),
            when=one(_TIMES),
            friend=one(_FRIENDS),
            minutes=80 + draw.randint(80),
            year=1930 + draw.randint(75),
        )
        return text[0].upper() + text[1:]

    texts = []
    for index in range(count):
        praise = index % 2
        words = _PRAISE if praise else _BLAME
        parts = [filled(one(_NEUTRAL), words) for _ in range(draw.randint(1, 7))]
        parts += [filled(one(_JUDGED), words) for _ in range(draw.randint(1, 5))]
        parts += [one(_VERDICTS[1 - praise]) for _ in range(draw.randint(0, 3))]
        draw.shuffle(parts)
        texts.append(" ".join(parts))
    return texts, np.arange(count, dtype=np.int64) % 2
