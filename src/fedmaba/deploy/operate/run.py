"""A federation's run, begun, followed to its end, and begun again where it failed."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from fedmaba.deploy.flower_app import commands
from fedmaba.deploy.operate import control
from fedmaba.deploy.operate.bundle import app_hash
from fedmaba.deploy.operate.control import Unavailable
from fedmaba.deploy.operate.server_folder import FILE, ServerFolder
from fedmaba.deploy.round_log import lines_of
from fedmaba.errors import FedmabaError, InputError
from fedmaba.results import state_folder

LOOK_SECONDS, ASK_SECONDS, SITES_SECONDS = 1.0, 10.0, 20.0
TRIES = 5  # without a new round between them
PAUSE_SECONDS = 20.0
DONE = "finished:completed"
Say = Callable[[str], None]


class RunFailed(FedmabaError):
    """The run failed again and again; its state folder says more."""

    exit_code = 70


def follow(folder: ServerFolder, say: Say) -> None:
    """Bring the run of a federation to its end, over crashes of everything else."""
    folder.check_run()
    tries, done = 0, -1
    while True:
        state = state_folder.load_state_folder(folder.state)
        if state is not None and _reached(folder, state):
            say(f"the run has ended after round {state.done}: {folder.state / 'models'}; for more,")
            say(f"raise rounds in {folder.path / FILE} and start again")
            return
        if state is not None and state.spent and not state.has_models:
            raise InputError(f"{last_error(folder)}; here: move {folder.state} away")
        now = 0 if state is None else state.done
        tries, done = (1, now) if now > done else (tries + 1, done)
        if tries > TRIES:
            raise RunFailed(f"no new round in {TRIES} starts: {last_error(folder)}")
        try:
            why = _one_run(folder, say)
        except Unavailable as error:
            why = str(error)
        if why:
            folder.audit.add("run ended", why=why)
            say(f"the run stopped: {why}; it goes on in {PAUSE_SECONDS:.0f} s")
            time.sleep(PAUSE_SECONDS)


def _one_run(folder: ServerFolder, say: Say) -> str:
    """Start a run and follow it; "" if it came to its end, else why it did not."""
    _wait_for_admission(folder, say)
    control.wait_for_link(folder, say)
    for line in control.register(folder):
        say(line)
    for run in control.runs(folder.path):  # of before a crash: two would fight for the state
        with suppress(Unavailable):  # it ended by itself meanwhile
            control.flwr(folder.path, "stop", run, commands.LINK)
            say(f"run {run} of before is stopped")
    told = folder.run_config()
    run = control.submit(folder.path, folder.path / "app", told)
    app = app_hash(folder.path / "app")
    folder.audit.add("run", run=run, app=app, told={k: str(v) for k, v in told.items()})
    say(f"run {run}: {told.get('strategy', 'the strategy of the app')}, app {app[:16]}...")
    return _Followed(folder, run, say).until_its_end()


def _wait_for_admission(folder: ServerFolder, say: Say) -> None:
    """Wait until so many sites are admitted as the run begins with, and say who is not."""
    said = ""
    while len(folder.admitted) < folder.run_config()["sites"]:
        missing = [site for site in folder.sites if site not in folder.admitted]
        line = f"waiting until {', '.join(missing)} are admitted: fedmaba flower admit"
        if line != said:
            say(line)
            said = line
        time.sleep(LOOK_SECONDS)


@dataclass
class _Followed:
    """A run that is followed by its state folder and by what the SuperLink says of it."""

    folder: ServerFolder
    run: str
    say: Say
    seen: int = 0
    asked: float = 0.0
    looked: float = 0.0
    waited_for: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.seen = len(state_folder.read_rounds(self.folder.state, 0))

    def until_its_end(self) -> str:
        while True:
            lines = state_folder.read_rounds(self.folder.state, self.seen)
            self.seen += len(lines)
            for line in lines:
                self._tell(line)
            now = time.monotonic()
            if now - self.asked > ASK_SECONDS:
                self.asked = now
                status = control.run_status(self.folder.path, self.run)
                if status == DONE and not state_folder.read_rounds(self.folder.state, self.seen):
                    return ""
                if status.startswith("finished") and status != DONE:
                    return f"{status}: {last_error(self.folder)}"
            if now - self.looked > SITES_SECONDS:
                self.looked = now
                self._tell_who_is_missing()
            time.sleep(LOOK_SECONDS)

    def _tell(self, line: Mapping[str, Any]) -> None:
        for text in lines_of(line):
            self.say(text)
        ended = "deployed" in line
        digest = hashlib.sha256(json.dumps(line, sort_keys=True).encode()).hexdigest()
        told = {"round": line["round"], "sha256": digest}
        if not ended:
            told |= {"asked": line.get("asked"), "answered": sorted(line["sites"])}
            told["refused"] = len(line["refused"])
        self.folder.audit.add("end" if ended else "round", **told)

    def _tell_who_is_missing(self) -> None:
        there = control.online(self.folder)
        missing = [site for site in self.folder.sites if there.get(site) != "online"]
        if missing != self.waited_for:
            self.waited_for = missing
            self.say(f"not here: {', '.join(missing)}" if missing else "all sites are here")


def _reached(folder: ServerFolder, state: state_folder.FederationState) -> bool:
    """Whether all rounds that are asked for now are done, or the budget of privacy is spent."""
    return state.finished and (state.spent or state.done >= folder.rounds())


def last_error(folder: ServerFolder) -> str:
    """Why the run failed, by its own log."""
    state = state_folder.load_state_folder(folder.state)
    for line in reversed([] if state is None else list(state.events)):
        if line["level"] == "error":
            return str(line["text"])
    return f"see {folder.path / 'logs' / 'superlink.log'}"
