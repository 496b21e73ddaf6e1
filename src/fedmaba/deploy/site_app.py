"""A site's ClientApp: it trains as the server's message says, and answers. Imports flwr."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from fedmaba.deploy import secure_site, validation
from fedmaba.deploy.kept_vectors import KeptVectors
from fedmaba.deploy.messages import array_record, weights_of
from fedmaba.deploy.secure import write_message as as_text
from fedmaba.deploy.secure_round import MASKED
from fedmaba.deploy.settings import batchnorm_choice
from fedmaba.deploy.site_rules import SiteRules
from fedmaba.errors import InputError

if TYPE_CHECKING:
    from fedmaba.data.dataset import Dataset
    from fedmaba.rows import LossFn, models
    from fedmaba.simulation.evaluation import MetricFn

SECURE_STATE = "fedmaba-secure"  # where a site keeps its secrets until a secure round ends
SITE_IS_PLAIN = (
    "the server asks for a secure sum, and this site would send its model to it: give "
    "client_app(secure=True), or app.train(mods=[secure_mod]) in an app of your own"
)
SITE_IS_SECURE = (
    "this site takes part in secure sums alone, and the server asks for its model: give "
    "FlowerStrategy(secure=SecureSum())"
)


def client_app(
    model: models.Factory | str,
    data: Dataset | Callable[[Context], Dataset],
    *,
    site: str | Callable[[Context], str] | None = None,
    classes: int | Sequence[str] | None = None,
    loss: LossFn | None = None,
    metric: MetricFn | None = None,
    device: str = "cpu",
    mods: Sequence[Any] = (),
    keep: str | Path | None = None,
    batchnorm: str = "refuse",
    secure: bool = False,
    peers: str | Path | Mapping[str, object] | None = None,
    signing_key: str | Path | None = None,
    most_share: float | None = None,
    most_rounds: int | None = None,
) -> ClientApp:
    """A ClientApp for every strategy: it trains as the server's message says.

    Its name is `site`, by default what the SuperNode's --node-config says: 'site="north"'. The
    rows of `data` before n_train are trained on; accuracy on the others is reported, or the error
    where lower is better, as in a regression. `classes`
    are the names of all classes in one order for all sites, or how many there are, 0 to C-1.
    `mods` are Flower's, around training: LocalDpMod(...), say. `keep` is a folder of this site for
    vectors that a strategy lets it keep between rounds, by default --node-config 'keep="..."'.
    `batchnorm` says what becomes of BatchNorm layers: refuse, group, local, average or frozen.
    `secure`: it takes part in secure sums alone, and never sends its model. `peers` lists the sites
    that it sums with, name = "SHA256:..."; each signs its keys with its `signing_key`, and nobody
    else's are taken. `most_share`: no sum in which one site holds more of the weight (0.9).
    `most_rounds`: in how many rounds this site trains, in all; it counts them in `keep`. By
    --node-config these are 'peers="..." signing-key="..." most-share=0.9 most-rounds=50'.
    """

    if not secure and (peers or signing_key or most_share is not None):
        raise InputError("peers, signing_key and most_share are for secure sums: add secure=True")
    norms = batchnorm_choice(batchnorm)

    def name(context: Context) -> str:
        if site is not None:
            return site if isinstance(site, str) else site(context)
        if "site" not in context.node_config:
            raise InputError("this site has no name: start its SuperNode with --node-config "
                             "'site=\"north\"'")  # fmt: skip
        return str(context.node_config["site"])

    def worker(context: Context) -> Any:
        from fedmaba.deploy.client import (
            LocalClient,  # with torch, which neither a server nor a query needs
        )

        mine = data(context) if callable(data) else data
        folder = keep or context.node_config.get("keep")
        kept = KeptVectors(Path(str(folder)) if folder else None, name(context))
        return LocalClient(model, mine, classes, loss, metric, device, kept, norms)

    def train(message: Message, context: Context) -> Message:
        weights, task = weights_of(message), dict(message.content["config"])
        if "secure" in task and not secure:
            raise InputError(SITE_IS_PLAIN)
        rules(context).take_round(name(context))
        trained, numbers = worker(context).train(weights, task)
        return reply(message, array_record(trained), numbers, name(context))

    def evaluate(message: Message, context: Context) -> Message:
        task = dict(message.content["config"]) if "config" in message.content else {}
        numbers = worker(context).evaluate(weights_of(message), task)
        return reply(message, None, numbers, name(context))

    def query(message: Message, context: Context) -> Message:
        return reply(message, None, {}, name(context))

    def rules(context: Context) -> SiteRules:
        own = (peers, signing_key, most_share, keep, most_rounds)
        return SiteRules.of(context.node_config, *own)

    def mod(message: Message, context: Context, call_next: Any) -> Message:
        return secure_mod(message, context, call_next, rules(context))

    app = ClientApp()
    app.train(mods=[*([mod] if secure else []), *mods])(train)
    app.evaluate()(evaluate)
    app.query()(query)
    return app


def secure_mod(
    message: Message,
    context: Context,
    call_next: Callable[[Message, Context], Message],
    rules: SiteRules | None = None,  # by default those of --node-config
) -> Message:
    """A Flower mod for training: the site's change goes into a secure sum, and nowhere else.

    The app trains and answers as usual. The mod takes the model out of the answer, and later sends
    the change scaled and masked. The first mod of a list sees what leaves the site: put it there.
    Where the server's rule says so, the loss gets noise here, and no score leaves the site.
    """
    text = message.content["config"].get("secure") if "config" in message.content else None
    if text is None:
        raise InputError(SITE_IS_SECURE)
    rules = rules or SiteRules.of(context.node_config)
    state = context.state.get(SECURE_STATE)
    memory = None if state is None else json.loads(str(state["memory"]))
    asked = secure_site.asked(text, memory)
    if asked["stage"] == "keys":
        rules.memory.forget_old_marks()
        answer = call_next(message, context)
        if answer.has_error():
            return answer
        told, memory = secure_site.give_keys(asked, rules)
        words = {k: v for one in answer.content.config_records.values() for k, v in one.items()}
        (trained,) = answer.content.array_records.values()
        start = weights_of(message)
        change = secure_site.flat_change({n: a.numpy() for n, a in trained.items()}, start)
        records: dict[str, Any] = dict(answer.content.metric_records)
        numbers = {k: v for one in answer.content.metric_records.values() for k, v in one.items()}
        noised = secure_site.noise_numbers(asked, numbers)
        if noised is not None:
            records = {"metrics": MetricRecord(noised)}
            if not np.isfinite(change).all():  # that it takes no part would tell of its data
                change = np.zeros_like(change)
        context.state[SECURE_STATE + "-change"] = ArrayRecord({"change": Array(change)})
        memory["site"] = words.get("site")
        return _secure_reply(message, context, memory, told, records)
    assert memory is not None
    if asked["stage"] in ("mask", "agree", "unmask"):
        rules.memory.answer_once(asked["attempt"], memory["place"], asked["stage"])
    if asked["stage"] == "shares":
        told, after = secure_site.give_shares(asked, memory, rules)
        return _secure_reply(message, context, after, told)
    if asked["stage"] == "mask":
        change = context.state.pop(SECURE_STATE + "-change")["change"].numpy()
        masked, told, after = secure_site.give_masked(asked, memory, change, rules)
        records = {} if masked is None else {"arrays": array_record({MASKED: masked})}
        return _secure_reply(message, context, {**after, "site": memory["site"]}, told, records)
    if asked["stage"] == "agree":
        told, after = secure_site.give_agreed(asked, memory, rules)
        return _secure_reply(message, context, after, told)
    told = secure_site.give_unmask(asked, memory, rules)
    answer = _secure_reply(message, context, memory, told)
    del context.state[SECURE_STATE]
    return answer


def _secure_reply(
    message: Message,
    context: Context,
    memory: secure_site.Memory,
    told: Mapping[str, Any],
    records: Mapping[str, Any] | None = None,
) -> Message:
    """A site's answer in a secure round; what it must remember stays in its own state."""
    context.state[SECURE_STATE] = ConfigRecord({"memory": json.dumps(memory)})
    words = {"secure": as_text(told)}
    words |= {} if memory["site"] is None else {"site": memory["site"]}
    return Message(RecordDict({**(records or {}), "config": ConfigRecord(words)}), reply_to=message)


def reply(
    message: Message, arrays: ArrayRecord | None, numbers: Mapping[str, float], site: str
) -> Message:
    """The answer of a site: the trained model, "num-examples", "loss" where asked for, its name.

    Arrays without names, as ArrayRecord makes them of a list, are those of the message in order.
    """
    records: dict[str, Any] = {"metrics": MetricRecord(dict(numbers))}
    records["config"] = ConfigRecord({"site": site})
    if arrays is not None:
        records["arrays"] = _named(arrays, list(message.content["arrays"]))
    return Message(RecordDict(records), reply_to=message)


def _named(arrays: ArrayRecord, names: list[str]) -> ArrayRecord:
    """Arrays under the names that the server knows, or InputError."""
    if set(arrays) == set(names):
        return arrays
    if list(arrays) == [str(place) for place in range(len(names))]:
        return ArrayRecord(dict(zip(names, arrays.values(), strict=True)))
    raise InputError(
        f"{validation.other_names(arrays, names)}: answer with those of "
        'message.content["arrays"], by name or as a list in their order'
    )
