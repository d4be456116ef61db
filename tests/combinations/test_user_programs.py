"""Programs as new users write them from the docs, each with six or more features."""

import numpy as np

from programs.users import gpt, lstm, resnet
from support.devices import on


def test_gpt_resumes_with_the_same_losses(tmp_path):
    one, resumed = gpt.main(str(tmp_path / "one"), [on(0), on(0)])
    two, _ = gpt.main(str(tmp_path / "two"), [on(0), on(1)])
    assert one == two, "two devices give other losses than one"
    assert resumed == one[4:], "resuming gives other losses than going on"
    assert one[-1] < one[0] - 0.1


def test_lstm_along_time_trains_as_without_a_pipeline(tmp_path):
    losses, weights = lstm.train(False, [on(0), on(1)], str(tmp_path))
    found, others = lstm.train(True, [on(0), on(1)])
    np.testing.assert_allclose(found, losses, rtol=1e-4)
    for a, b in zip(others, weights, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-5)


def test_residual_network_moves_from_one_device_to_a_mesh_and_back(tmp_path):
    losses, on_mesh, alone = resnet.main(str(tmp_path), [on(i) for i in range(4)])
    assert losses[-1] < losses[0] / 2, losses
    np.testing.assert_allclose(on_mesh, alone, rtol=1e-4, atol=1e-5)
