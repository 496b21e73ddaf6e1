"""Methods that people ask for and that are not here, with what comes closest."""

from fedmaba.errors import InputError

PAGE = "docs/bring-your-own.md, 'What a strategy can and cannot do'"
CLOSEST = {  # what a user can run instead, by how the method's name is usually written
    "a strategy with --batchnorm local": "fedbn",
    "perfedavg, or fedavg with --finetune": "fedmeta reptile",
    "ditto, pfedme or apfl": "fedamp l2gd superfed",
    "fedper or fedrep": "fedrod fedcp gpfl fedpac fedas",
    "fedntd, or an objective of your own": "fedgkd feddistill fedlc fedrs feddecorr fedlogit",
    "fedprox": "fedcurv fedsplit",
    "multikrum, median or trimmed": "bulyan fltrust foolsgold",
    "rfa": "geomed",
    "cclip": "centeredclip",
    "fedvarp or mifa": "fedlaavg",
    "scaffold or fedavgm": "fedcm fedacg mime fedspeed fedsam",
    "fedntd, or local": "fedproto fedmd fedgen",
    "scaffpd or afl": "drfa drfl",
    "local, beside fedavg": "fedfomo ifca pfedhn lotteryfl",
}


OTHERWISE = {"fedeba+": "fedebaplus"}  # names that papers write, and no file could have


def absent(name: str) -> InputError | None:
    """The refusal of a method that is known and not here, or not so; None for any other name."""
    if name.lower() in OTHERWISE:
        return InputError(f"strategy {name!r} is written {OTHERWISE[name.lower()]}")
    low = name.lower().replace("-", "").replace("_", "").replace("+", "")
    for closest, names in CLOSEST.items():
        if low in names.split():
            return InputError(
                f"strategy {name!r} is not part of fedmaba: the closest is {closest}; {PAGE}, says "
                "what you can add yourself"
            )
    return None
