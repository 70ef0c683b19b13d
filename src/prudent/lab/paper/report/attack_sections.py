"""The sections of the report on bad records and bad gradients: what is proved, what survived."""

from collections.abc import Sequence

from prudent.lab.paper.report import display_names, essay
from prudent.lab.paper.report.document import Block, Bullets, Paragraph, Section
from prudent.lab.paper.report.frontier import Attacker, Frontier
from prudent.lab.paper.report.grids import UNCOVERED, frontier_grid, worst_cases_grid
from prudent.lab.paper.results import Results

_WHO = {
    Attacker.RECORDS: (
        "The attacker chooses some of the records, inputs and labels, before training, and touches "
        "no gradient. Each method computes, clips and sums what these records give. The ε of every "
        "run holds for the honest records, but for one attack, on the certified classifiers alone: "
        f"{UNCOVERED} it knows all other records, the noise and the test records, and inserts "
        "whatever vectors lower the accuracy most, whether or not an image has them."
    ),
    Attacker.GRADIENTS: (
        "The attacker chooses, at every step, the gradients that some of the records send: faulty "
        f"hardware, or hostile clients. {UNCOVERED} These attackers read the gradients of other "
        "records, so one record reaches the sum through more than its own gradient, and the price "
        "of the run is no guarantee for it: ε is then that of the same run without the attack."
    ),
}

_NOT_RUN = Paragraph("Attacks: not run (`prudent paper frontier --run`).")


def opening(found: Sequence[Frontier]) -> Section:
    """The section that says what is proved about bad records, and what only survived attacks."""
    return Section(
        "Bad records: proved and measured",
        "robustness",
        (
            Bullets(tuple(essay.lines("What is proved"))),
            *(_worst_cases(found) if found else [_NOT_RUN]),
        ),
    )


def _worst_cases(found: Sequence[Frontier]) -> list[Block]:
    places = dict.fromkeys((each.dataset, each.epsilon) for each in found)
    return [
        Paragraph(
            "Measured is something else. Below is what is left of each method under the worst of "
            "the attacks that were tried, by who the attacker is. It is no guarantee: the next "
            "attack may do more."
        ),
        *(
            worst_cases_grid([each for each in found if (each.dataset, each.epsilon) == place])
            for place in places
        ),
    ]


def survived(results: Results, found: Sequence[Frontier], attacker: Attacker) -> Section:
    """The section on all attacks of one attacker."""
    here = [frontier for frontier in found if frontier.attacker == attacker]
    title = f"{display_names.attacker(attacker)}: what survived"
    if not here:
        return Section(title, f"bad-{attacker}", (_NOT_RUN,))
    explained = essay.bad_records() if attacker is Attacker.RECORDS else essay.how_far(results)
    blocks: list[Block] = [
        Paragraph(_WHO[attacker]),
        Paragraph(
            "Every method at the same (ε, δ), under every attack that was run. The worst attack on "
            "each method stands out, and at each ratio the method whose worst is best, among those "
            "that met every attack. None of it is a guarantee."
        ),
        *map(frontier_grid, here),
        explained,
    ]
    return Section(title, f"bad-{attacker}", tuple(blocks))
