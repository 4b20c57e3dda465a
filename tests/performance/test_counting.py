import numpy as np

from tinyinfer.performance.counting import Tally, count_into, counted


def test_products_are_counted_by_their_actual_shapes():
    tally = Tally()
    left = count_into(tally, np.ones((3, 5)))
    assert (left @ np.ones((5, 7))).tally is tally
    assert (tally.flops, tally.matrix_products) == (2 * 3 * 5 * 7, 1)
    (left @ np.ones(5), np.ones((2, 4, 3)) @ (left * 2))
    assert tally.flops == 2 * 3 * 5 * 7 + 2 * 3 * 5 + 2 * 2 * 4 * 3 * 5


def test_a_counted_model_computes_the_same_logits(tang):
    twin, tally = counted(tang)
    ids = tang.tokenizer.encode("白日依山")
    np.testing.assert_array_equal(twin.start(4).prefill(ids), tang.start(4).prefill(ids))
    assert tally.flops > 0
    np.testing.assert_array_equal(np.asarray(twin.logits(ids)), tang.logits(ids))
