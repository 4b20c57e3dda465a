import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tinyinfer import BadInput
from tinyinfer.serving.sampling import Sampling, choose_token, next_token_probabilities

# Ids 0 to 3 with probabilities 0.15, 0.5, 0.1, 0.25 at temperature 1: unsorted, so that order matters.
LOGITS = np.log(np.array([0.15, 0.5, 0.1, 0.25])).astype(np.float32)


def probabilities(logits=LOGITS, temperature=1.0, **options):
    return next_token_probabilities(np.asarray(logits), Sampling(temperature, **options))


def kept_ids(*arguments, **options):
    return np.flatnonzero(probabilities(*arguments, **options)).tolist()


def test_temperature_one_is_the_softmax():
    np.testing.assert_allclose(probabilities(), [0.15, 0.5, 0.1, 0.25], atol=1e-7)


def test_temperature_raises_probabilities_to_its_inverse_power():
    squares = np.array([0.15, 0.5, 0.1, 0.25]) ** 2
    np.testing.assert_allclose(probabilities(temperature=0.5), squares / squares.sum(), atol=1e-7)
    roots = np.array([0.15, 0.5, 0.1, 0.25]) ** 0.5
    np.testing.assert_allclose(probabilities(temperature=2.0), roots / roots.sum(), atol=1e-7)


def test_top_k_keeps_the_k_most_likely_and_shares_out_what_the_others_had():
    np.testing.assert_allclose(probabilities(top_k=2), [0, 2 / 3, 0, 1 / 3], atol=1e-7)
    np.testing.assert_allclose(probabilities(top_k=1), [0, 1, 0, 0], atol=0)


def test_top_k_beyond_the_vocabulary_cuts_nothing():
    np.testing.assert_array_equal(probabilities(top_k=100), probabilities())


def test_top_p_keeps_the_fewest_tokens_that_reach_it():
    np.testing.assert_allclose(probabilities(top_p=0.7), [0, 2 / 3, 0, 1 / 3], atol=1e-7)
    assert kept_ids(top_p=0.4) == [1]
    assert kept_ids(top_p=0.8) == [0, 1, 3]
    assert kept_ids(top_p=0.95) == [0, 1, 2, 3]


def test_top_p_keeps_one_token_however_small_it_is():
    assert kept_ids(top_p=1e-9) == [1]


def test_top_p_that_is_reached_exactly_adds_no_further_token():
    assert kept_ids(np.zeros(4), top_p=0.5) == [0, 1]  # four exact quarters


def test_top_p_of_nearly_one_keeps_all_although_their_sum_is_rounded():
    assert kept_ids(np.zeros(7), top_p=float(np.nextafter(1, 0))) == list(range(7))


def test_temperature_acts_before_top_p():
    # Sharpened to 0.725 for the best token, which then reaches 0.7 alone.
    assert kept_ids(temperature=0.5, top_p=0.7) == [1]


def test_top_k_acts_before_top_p():
    # Among the best three, 0.5 and 0.25 become 0.556 and 0.278: together more than 0.8.
    assert kept_ids(top_k=3, top_p=0.8) == [1, 3]


def test_of_equal_logits_the_lower_id_comes_first():
    assert kept_ids([1, 2, 2, 2], top_k=2) == [1, 2]
    assert choose_token(np.array([1, 2, 2, 2], np.float32), Sampling(), np.random.default_rng(0)) == 1


def test_large_logits_do_not_overflow():
    np.testing.assert_allclose(probabilities(np.array([3e38, 3e38, -3e38], np.float32)), [0.5, 0.5, 0], atol=0)


def test_greedy_takes_the_largest_logit_and_draws_nothing():
    generator = np.random.default_rng(5)
    assert [choose_token(LOGITS, Sampling(seed=seed), generator) for seed in range(3)] == [1, 1, 1]
    assert generator.random() == np.random.default_rng(5).random()


def draw(logits, sampling, count):
    generator = np.random.default_rng(sampling.seed)
    return [choose_token(logits, sampling, generator) for _ in range(count)]


def test_equal_logits_and_an_equal_seed_give_equal_tokens():
    sampling = Sampling(temperature=1.3, top_k=3, top_p=0.9, seed=11)
    assert draw(LOGITS, sampling, 50) == draw(LOGITS.copy(), sampling, 50)
    assert draw(LOGITS, sampling, 50) != draw(LOGITS, Sampling(1.3, 3, 0.9, seed=12), 50)


@pytest.mark.parametrize("options", [{}, {"temperature": 0.6}, {"top_k": 3}, {"top_p": 0.8}])
def test_frequencies_of_many_draws_are_the_probabilities(options):
    sampling = Sampling(**{"temperature": 1.0, "seed": 3} | options)
    expected, draws = next_token_probabilities(LOGITS, sampling), 20_000
    frequencies = np.bincount(draw(LOGITS, sampling, draws), minlength=4) / draws
    deviation = np.sqrt(expected * (1 - expected) / draws)
    assert np.all(np.abs(frequencies - expected) <= 4 * deviation)  # and so a token of probability 0 never comes


def test_the_same_seed_repeats_an_answer(tang):
    first, again, other = (
        tang.generate("白日依山", max_new_tokens=12, temperature=3.0, seed=seed).token_ids for seed in (7, 7, 8)
    )
    assert first == again != other


@given(
    logits=st.lists(st.floats(-30, 30, width=32), min_size=1, max_size=23),
    temperature=st.floats(0.1, 5),
    top_k=st.none() | st.integers(1, 29),
    top_p=st.floats(0.01, 1),
)
@example(logits=[0.0, 0.5, 1.1754943508222875e-38], temperature=1.0, top_k=None, top_p=0.5)
def test_any_cut_keeps_a_smallest_set_of_the_most_likely_tokens(logits, temperature, top_k, top_p):
    cut = probabilities(logits, temperature, top_k=top_k, top_p=top_p)
    after_top_k = probabilities(logits, temperature, top_k=top_k)
    kept = cut > 0
    assert cut.sum() == pytest.approx(1)
    assert kept.sum() <= (top_k or len(logits))
    assert after_top_k[kept].sum() >= top_p - 1e-9
    assert after_top_k[kept].sum() - after_top_k[kept].min() < top_p + 1e-9
    if not kept.all():
        assert min(np.array(logits)[kept]) >= max(np.array(logits)[~kept])
    np.testing.assert_allclose(cut[kept], after_top_k[kept] / after_top_k[kept].sum(), rtol=1e-9)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"temperature": -0.1}, "temperature is -0.1"),
        ({"temperature": float("nan")}, "temperature is nan"),
        ({"temperature": float("inf")}, "temperature is inf"),
        ({"top_k": 0}, "top_k is 0"),
        ({"top_k": -3}, "top_k is -3"),
        ({"top_p": 0.0}, "top_p is 0"),
        ({"top_p": 1.01}, "top_p is 1.01"),
        ({"top_p": -0.5}, "top_p is -0.5"),
        ({"top_p": float("nan")}, "top_p is nan"),
        ({"seed": -1}, "seed is -1"),
    ],
)
def test_a_bad_value_is_refused_by_name(options, named, tang):
    with pytest.raises(BadInput, match=named):
        Sampling(**options)
    with pytest.raises(BadInput, match=named):
        tang.stream("白日依山", max_new_tokens=2, **options)  # before the first token is asked for
