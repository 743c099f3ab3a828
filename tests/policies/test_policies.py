import hypothesis.extra.numpy as hnp
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import scipy.stats
from hypothesis import given, settings

from ppga.policies.network import Network
from ppga.policies.normalizer import NormalizerState
from ppga.policies.policy import init_mlp, init_policy, log_density

NETWORK = Network((5, 7, 6, 3))


def test_layers_of_flat_vectors_are_the_original_layers() -> None:
    layers = init_mlp(jax.random.key(0), NETWORK.sizes)
    flat = NETWORK.flatten(layers)
    assert flat.shape == (NETWORK.parameters,)
    for (weights, biases), (again_weights, again_biases) in zip(layers, NETWORK.layers(flat), strict=True):
        np.testing.assert_array_equal(weights, again_weights)
        np.testing.assert_array_equal(biases, again_biases)
    many = jnp.stack([flat, 2 * flat])
    np.testing.assert_array_equal(NETWORK.flatten(NETWORK.layers(many)), many)


def test_outputs_of_numpy_and_jax_equal_a_calculation_by_hand() -> None:
    policy = init_policy(jax.random.key(1), NETWORK, std=0.5)
    inputs = np.random.default_rng(0).standard_normal((4, 5)).astype(np.float32)
    expected = inputs
    for weights, biases in NETWORK.layers(np.asarray(policy.parameters))[:-1]:
        expected = np.tanh(expected @ weights + biases)
    weights, biases = NETWORK.layers(np.asarray(policy.parameters))[-1]
    np.testing.assert_allclose(NETWORK(policy.parameters, inputs), expected @ weights + biases, atol=1e-6)
    np.testing.assert_allclose(
        NETWORK(np.asarray(policy.parameters), inputs), expected @ weights + biases, atol=1e-6
    )


def test_initial_layers_are_orthogonal_and_initial_actions_are_small() -> None:
    *hidden, (last, _) = init_mlp(jax.random.key(2), (8, 8, 8), last_scale=0.01)
    for weights, biases in hidden:
        np.testing.assert_allclose(weights.T @ weights, 2 * np.eye(8), atol=1e-5)
        assert not biases.any()
    np.testing.assert_allclose(last.T @ last, 1e-4 * np.eye(8), atol=1e-8)
    policy = init_policy(jax.random.key(3), NETWORK, std=0.5)
    np.testing.assert_allclose(np.exp(policy.log_std), 0.5, rtol=1e-6)
    assert np.abs(policy.mean_action(NETWORK, jnp.ones((1, 5)))).max() < 0.05


@settings(max_examples=20)
@given(st.lists(st.integers(1, 9), min_size=1, max_size=4), st.integers(0, 2**31))
def test_normalizer_has_the_moments_of_all_observations(sizes: list[int], seed: int) -> None:
    rng = np.random.default_rng(seed)
    batches = [rng.normal(3.0, 2.0, (size, 2)).astype(np.float32) for size in sizes]
    normalizer = NormalizerState.initial(2)
    for batch in batches:
        normalizer = normalizer.updated(jnp.asarray(batch), jnp.ones(len(batch), bool))
    observations = np.concatenate(batches)
    assert normalizer.count == len(observations)
    np.testing.assert_allclose(normalizer.mean, observations.mean(axis=0), rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(normalizer.variance, observations.var(axis=0), rtol=1e-3, atol=1e-3)
    outlier = normalizer.normalize(jnp.full((1, 2), 1e9))
    np.testing.assert_array_equal(outlier, [[10.0, 10.0]])


def test_initial_normalizer_changes_nothing() -> None:
    values = jnp.array([[1.5, -2.0]])
    np.testing.assert_allclose(NormalizerState.initial(2).normalize(values), values, rtol=1e-6)


@given(hnp.arrays(np.float32, 3, elements=st.floats(-3, 3, width=32)))
def test_log_density_equals_scipys(noise: np.ndarray[tuple[int], np.dtype[np.float32]]) -> None:
    log_std = np.array([-1.0, 0.0, 0.5])
    expected = scipy.stats.norm.logpdf(noise * np.exp(log_std), scale=np.exp(log_std)).sum()
    np.testing.assert_allclose(log_density(jnp.asarray(noise), jnp.asarray(log_std)), expected, rtol=1e-4)
