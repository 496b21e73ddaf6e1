"""FedJAX: fedjax.algorithms.fed_avg with its default for-each-client backend."""

import jax

jax.tree_map = jax.tree_util.tree_map  # taken out of newer JAX; fedjax 0.0.17 still asks for it
import fedjax
import haiku as hk
import numpy as np
from common import CLIENTS, LR, MINIBATCH, PARTICIPANTS, ROUNDS, WARM, Clock, data

x, y = data()
clients = {f"{c:03}".encode(): {"x": x[c], "y": y[c]} for c in range(CLIENTS)}
federated = fedjax.InMemoryFederatedData(clients)
net = hk.transform(lambda batch: hk.nets.MLP([200, 200, 10])(batch["x"]))


def loss(batch, out):
    return -jax.nn.log_softmax(out)[jax.numpy.arange(len(out)), batch["y"]]


model = fedjax.create_model_from_haiku(net, {"x": x[0][:2], "y": y[0][:2]}, loss)
algorithm = fedjax.algorithms.fed_avg.federated_averaging(
    fedjax.model_grad(model),
    fedjax.optimizers.sgd(LR),
    fedjax.optimizers.sgd(1.0),
    fedjax.ShuffleRepeatBatchHParams(batch_size=MINIBATCH, num_epochs=1),
)
state = algorithm.init(model.init(jax.random.PRNGKey(0)))
sampler = fedjax.client_samplers.UniformGetClientSampler(federated, PARTICIPANTS, seed=0)
clock = Clock()
for t in range(WARM + ROUNDS):
    sampler.set_round_num(t)
    state, _ = algorithm.apply(state, sampler.sample())
    np.asarray(jax.tree_util.tree_leaves(state.params)[0])  # wait for it
    clock.tick()
