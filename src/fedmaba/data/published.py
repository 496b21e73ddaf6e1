"""What is published: the data sets, their files with sizes and SHA-256, and how pixels are scaled.

No torch here.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from fedmaba.data import natural
from fedmaba.errors import InputError, unknown


class PlainFile(NamedTuple):
    """A file as its publisher ships it, unpacked."""

    name: str
    size: int
    sha256: str


def _table(text: str) -> tuple[PlainFile, ...]:
    """Lines of "name size sha256" as files."""
    rows = [line.split() for line in text.strip().splitlines()]
    return tuple(PlainFile(name, int(size), digest) for name, size, digest in rows)


@dataclass(frozen=True)
class Published:
    """A data set as its publisher ships it: files, digests, classes, addresses."""

    name: str
    about: str
    files: tuple[PlainFile, ...]  # plain files, training ones first
    classes: tuple[str, ...]
    shape: tuple[int, int, int] = (1, 28, 28)
    # These are per channel, of pixels / 255, of its training images.
    mean: tuple[float, ...] = (0.2860,)
    std: tuple[float, ...] = (0.3530,)
    usual: str = "scale"  # Pixels become inputs in this way, unless a run says how.
    # A record of a *.bin file has the label lists of a Python batch in this order.
    labels: tuple[str, ...] = ()
    label: int = -1  # which of them is learnt
    files_of: str = ""  # These files belong to this set, if it goes by another name.
    urls: tuple[str, ...] = ()
    folders: tuple[str, ...] = ()  # The plain files may lie in these sub-folders, too.
    # This is the archive of the plain files, and its folder inside.
    binary: tuple[PlainFile, str] | None = None
    # This is the archive of the Python batches, and its folder inside.
    python: tuple[PlainFile, str] | None = None
    system: Path | None = None  # A package of the operating system puts the files here.

    @property
    def folder(self) -> str:
        """The name of the folder that the files are kept in."""
        return self.files_of or self.name

    @property
    def record(self) -> int:
        """Bytes of one example: its labels (*.bin only), then the pixels."""
        return len(self.labels) + math.prod(self.shape)

    def bad(self, path: object, what: str) -> InputError:
        """The error for a file that is not what the publisher ships."""
        fix = f"delete it and run `fedmaba data fetch {self.name}`"
        return InputError(f"{path}: {what}: {fix if self.urls else 'install fedmaba again'}")


_CLOTHES = "T-shirt/top,Trouser,Pullover,Dress,Coat,Sandal,Shirt,Sneaker,Bag,Ankle boot"
_CIFAR10 = "airplane,automobile,bird,cat,deer,dog,frog,horse,ship,truck"
_CIFAR100 = """apple aquarium_fish baby bear beaver bed bee beetle bicycle bottle bowl boy bridge
bus butterfly camel can castle caterpillar cattle chair chimpanzee clock cloud cockroach couch crab
crocodile cup dinosaur dolphin elephant flatfish forest fox girl hamster house kangaroo keyboard
lamp lawn_mower leopard lion lizard lobster man maple_tree motorcycle mountain mouse mushroom
oak_tree orange orchid otter palm_tree pear pickup_truck pine_tree plain plate poppy porcupine
possum rabbit raccoon ray road rocket rose sea seal shark shrew skunk skyscraper snail snake spider
squirrel streetcar sunflower sweet_pepper table tank telephone television tiger tractor train trout
tulip turtle wardrobe whale willow_tree wolf woman worm"""
_CIFAR20 = """aquatic_mammals fish flowers food_containers fruit_and_vegetables
household_electrical_devices household_furniture insects large_carnivores
large_man-made_outdoor_things large_natural_outdoor_scenes large_omnivores_and_herbivores
medium_mammals non-insect_invertebrates people reptiles small_mammals trees vehicles_1 vehicles_2"""
_ZALANDO = "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion/"
_TORONTO = "https://www.cs.toronto.edu/~kriz/"
_CIFAR10_PIXELS = ((0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010))  # mean, std
_CIFAR100_PIXELS = ((0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762))
_SAMPLE_FILES = _table("""
train-images-idx3-ubyte 4704016 cf313073c7eb485392848071d5c433571d7166043e971e3345b095cc30518084
train-labels-idx1-ubyte 6008 097b93fbcf9bd5bc648b1a457ddc55c9e4ab49afb33f9ecae8ce068399a75e3a
t10k-images-idx3-ubyte 1568016 15a92dd1e9b16ea361928086e77df4dfa890c255c00b5a8c8162c1040ce8eef1
t10k-labels-idx1-ubyte 2008 234596aeb6eb48133ec99a62541f90bc0728c9559a681f1e0638037462458f2c
""")
_FASHION_FILES = _table("""
train-images-idx3-ubyte 47040016 c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888
train-labels-idx1-ubyte 60008 bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9
t10k-images-idx3-ubyte 7840016 5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b
t10k-labels-idx1-ubyte 10008 0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34
""")
_CIFAR10_FILES = _table("""
data_batch_1.bin 30730000 cee916563c9f80d84e3cc88e17fdc0941787f1244f00a67874d45b261883ada5
data_batch_2.bin 30730000 a591ca11fa1708a91ee40f54b3da4784ccd871ecf2137de63f51ada8b3fa57ed
data_batch_3.bin 30730000 bbe8596564c0f86427f876058170b84dac6670ddf06d79402899d93ceea26f67
data_batch_4.bin 30730000 014e562d6e23c72197cc727519169a60359f5eccd8945ad5a09d710285ff4e48
data_batch_5.bin 30730000 755304fc0b379caeae8c14f0dac912fbc7d6cd469eb67a1029a08a39453a9add
test_batch.bin 30730000 8e2eb146ae340b09e24670f29cabc6326dba54da8789dab6768acf480273f65b
""")
_CIFAR100_FILES = _table("""
train.bin 153700000 f31298fc616915fa142368359df1c4ca2ae984d6915ca468b998a5ec6aeebf29
test.bin 30740000 d8b1e6b7b3bee4020055f0699b111f60b1af1e262aeb93a0b659061746f8224a
""")
_ARCHIVES = _table("""
cifar-10-binary.tar.gz 170052171 c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd
cifar-10-python.tar.gz 170498071 6d958be074577803d12ecdefd02955f39262c83c16fe9348329d7fe0b5c001ce
cifar-100-binary.tar.gz 168513733 58a81ae192c23a4be8b1804d68e518ed807d710a4eb253b1f2a199162a40d8ec
cifar-100-python.tar.gz 169001437 85cd44d02ba6437773c5bbd22e183051d648de2e7d6b014e1ef29b855ba677a7
""")
PUBLISHED = {
    "sample": Published(
        "sample",
        "8,000 images of Fashion-MNIST that come with the package (6,000 train, 2,000 test)",
        _SAMPLE_FILES,
        tuple(_CLOTHES.split(",")),
    ),
    "fashion-mnist": Published(
        "fashion-mnist",
        "70,000 grey images of clothes, 10 classes (60,000 train, 10,000 test); MIT licence",
        _FASHION_FILES,
        tuple(_CLOTHES.split(",")),
        urls=tuple(f"{_ZALANDO}{file.name}.gz" for file in _FASHION_FILES),
        folders=("FashionMNIST/raw",),
        system=Path("/usr/share/datasets/fashion-mnist"),
    ),
    "cifar10": Published(
        "cifar10",
        "60,000 colour images, 10 classes (50,000 train, 10,000 test); Krizhevsky 2009",
        _CIFAR10_FILES,
        tuple(_CIFAR10.split(",")),
        (3, 32, 32),
        *_CIFAR10_PIXELS,
        usual="cifar10",
        labels=("labels",),
        urls=(_TORONTO + _ARCHIVES[0].name,),
        folders=("cifar-10-batches-bin",),
        binary=(_ARCHIVES[0], "cifar-10-batches-bin"),
        python=(_ARCHIVES[1], "cifar-10-batches-py"),
    ),
    "cifar100": Published(
        "cifar100",
        "60,000 colour images, 100 fine classes (50,000 train, 10,000 test); Krizhevsky 2009",
        _CIFAR100_FILES,
        tuple(_CIFAR100.split()),
        (3, 32, 32),
        *_CIFAR100_PIXELS,
        usual="cifar10",
        labels=("coarse_labels", "fine_labels"),
        urls=(_TORONTO + _ARCHIVES[2].name,),
        folders=("cifar-100-binary",),
        binary=(_ARCHIVES[2], "cifar-100-binary"),
        python=(_ARCHIVES[3], "cifar-100-python"),
    ),
}
PUBLISHED["cifar100-coarse"] = replace(
    PUBLISHED["cifar100"],
    name="cifar100-coarse",
    about="CIFAR-100 with its 20 coarse classes; the same files",
    classes=tuple(_CIFAR20.split()),
    label=0,
    files_of="cifar100",
)


# The last is standard by the numbers of CIFAR-10, also for CIFAR-100.
NORMALISE = ("scale", "standard", "cifar10")


class Normalisation(NamedTuple):
    """How pixels become inputs: (pixel / 255 - mean) / std, channel by channel."""

    name: str
    mean: tuple[float, ...]
    std: tuple[float, ...]

    def in_words(self) -> str:
        """One line for the record of a run."""
        if self.name == "scale":
            return "scale: pixels / 255"
        mean, std = (" ".join(f"{v:.4f}" for v in values) for values in (self.mean, self.std))
        return f"{self.name}: (pixels / 255 - {mean}) / {std}"


def normalisation(spec: Published, how: str | None) -> Normalisation:
    """How the pixels of a set become inputs; None: as is usual for the set."""
    name, channels = how or spec.usual, spec.shape[0]
    if name == "scale":
        return Normalisation(name, (0.0,) * channels, (1.0,) * channels)
    if name == "standard":
        return Normalisation(name, spec.mean, spec.std)
    if name != "cifar10":
        raise unknown("normalise", name, NORMALISE)
    if channels != 3:
        raise InputError(
            f"normalise={name!r} is for colour images, but {spec.name} is grey: say scale or "
            "standard"
        )
    return Normalisation(name, *_CIFAR10_PIXELS)


def spec_of(name: str) -> Published:
    """The published set of this name."""
    if name in PUBLISHED:
        return PUBLISHED[name]
    if name.partition(":")[0] == "synthetic" or name.endswith((".npz", ".csv", ".parquet")):
        raise InputError(f"{name} has no published files: choose one of {', '.join(PUBLISHED)}")
    raise unknown("data set", name, [*PUBLISHED, *natural.NATURAL, "synthetic"])
