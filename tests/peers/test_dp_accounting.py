"""dp_accounting's own tests of its accountants, run against ours.

The package ships its tests. Each runs as it stands, with our accountant wherever it builds one of
dp_accounting's. `DIFFERENCES` lists every test that ours does not pass, and why ours is right. A
test listed there that passes, or that dp_accounting no longer has, fails here.
"""

import types

import pytest
from dp_accounting.pld import pld_privacy_accountant, pld_privacy_accountant_test
from dp_accounting.rdp import rdp_privacy_accountant, rdp_privacy_accountant_test

from prudent.accounting import PldAccountant, RdpAccountant

pytestmark = pytest.mark.peers


def substituted(module: types.ModuleType, **ours: type) -> types.SimpleNamespace:
    """The names of a module, some of them replaced."""
    assert ours.keys() <= vars(module).keys()
    return types.SimpleNamespace(**{**vars(module), **ours})


pld_privacy_accountant_test.pld_privacy_accountant = substituted(
    pld_privacy_accountant, PLDAccountant=PldAccountant
)
rdp_privacy_accountant_test.rdp_privacy_accountant = substituted(
    rdp_privacy_accountant, RdpAccountant=RdpAccountant
)


class TestPldAccountant(pld_privacy_accountant_test.PldPrivacyAccountantTest):
    pass


class TestRdpAccountant(rdp_privacy_accountant_test.RdpPrivacyAccountantTest):
    pass


SAMPLED_WITHOUT_NOISE = (
    "A record sampled with probability 0.1 and released without noise is revealed with probability "
    "0.1: δ is 0.1 at every ε, where dp_accounting says 1."
)
WORDING = (
    "The same ValueError in other words: ours names the field of the event, what it allows and "
    "what was given."
)
SMALLER_SELECTION = (
    "The test asks for the bound of Papernot and Steinke to several digits; ours is the smaller of "
    "that one and its own (prudent.accounting.losses.repeated_selection)."
)
NO_CANDIDATE = (
    "A Poisson number of candidates may be zero. Ours adds the probability of that outcome to the "
    "moment, dp_accounting's formula has no such term; with few candidates ours is larger."
)
DIFFERENCES = {
    TestPldAccountant: {
        "test_additive_noise_mechanisms_with_zero_noise_multiplier3": SAMPLED_WITHOUT_NOISE,
        "test_additive_noise_mechanisms_with_zero_noise_multiplier4": SAMPLED_WITHOUT_NOISE,
        "test_non_positive_composition_value_error0": (
            "Zero runs of an event cost nothing, whether composed so or as a SelfComposedDpEvent; "
            "dp_accounting accepts only the latter."
        ),
    },
    TestRdpAccountant: {
        "test_compute_rdp_poisson_sampled_gaussian": (
            "The number asked for at order 1.5 is 3 % above the divergence, which ours has to six "
            "digits (test_a_free_test_leaves_the_subsampled_gaussian)."
        ),
        "test_log_a_frac_early_termination": (
            "dp_accounting's series does not converge at small orders, and the test asks for "
            "infinity there; ours is an integral, and finite."
        ),
        "test_raises_on_invalid_noise_multiplier": WORDING,
        "test_raises_on_invalid_sampling_rate_q_large": WORDING,
        "test_raises_on_invalid_sampling_rate_q_neg": WORDING,
        "test_repeat_and_select_pure_poisson_mean1": NO_CANDIDATE,
        "test_repeat_and_select_pure_poisson_mean2": NO_CANDIDATE,
        "test_repeat_and_select_pure_poisson_mean10": SMALLER_SELECTION,
        **{
            f"test_repeat_select_gaussian_negative_binomial_{size}{shape}": SMALLER_SELECTION
            for size in ("large", "small")
            for shape in ("0", "0.5", "1", "5")
        },
        **{f"test_repeat_select_trivial_shape{n}": SMALLER_SELECTION for n in (0, 1, 2)},
    },
}


def mark_differences() -> None:
    for suite, reasons in DIFFERENCES.items():
        for name, reason in reasons.items():
            mark = pytest.mark.xfail(reason=reason, raises=AssertionError, strict=True)
            setattr(suite, name, mark(getattr(suite, name)))


mark_differences()
