"""A run from its settings to its folder.

RUN/
  config.toml           every setting; with checkpoints/ all that `resume` needs
  tokenizer.json        and special_tokens_map.json
  data/                 the text as tokens, for tasks that read files
  metrics.jsonl         and tensorboard/
  checkpoints/          the newest, and the one before it
  kept/                 weights of the best models
  best/                 the result, for `regard.load`: Hugging Face-format where the family has one
  result.json           its scores; loss.png, alignment-1.png, ...
"""

import json
import math
import shutil
import time
import zlib
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, replace
from itertools import count
from operator import eq
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock, Timeout
from safetensors import SafetensorError
from safetensors.torch import load_file

from regard.allocation import keep_freed_memory
from regard.decoding.loop import generate
from regard.errors import ArgumentError, LoadError, TrainError
from regard.files.loading import Loaded, checked_device, save
from regard.train import checkpoint
from regard.train.batches import Batches
from regard.train.build import Objective, build_model, finished
from regard.train.corpus import HeldOut, open_corpus, prepare
from regard.train.data import write_whole
from regard.train.display import Display, alignment_maps, figures, loss_curve, read_metrics
from regard.train.distributed import World, joined
from regard.train.loop import Training, stoppable
from regard.train.score import answered, mean_loss, translation_scores
from regard.train.settings import GENERATED, Settings

_MOST_BLOCKS = 4096  # held-out blocks or pairs whose loss is taken at an evaluation


@dataclass(frozen=True, slots=True)
class TrainingRun:
    """The state of a training run.

    Attributes:
        folder: Where it is.
        step: Updates made so far.
        stopped: Why it ended before its last step; empty at the end.
        scores: Scores of the finished model on held-out data; empty before that.
    """

    folder: Path
    step: int
    stopped: str = ""
    scores: Mapping[str, Any] = field(default_factory=dict)

    @property
    def best(self) -> Path:
        """The finished model, for `regard.load`."""
        return self.folder / "best"

    @property
    def finished(self) -> bool:
        """Whether there is nothing left to do."""
        return bool(self.scores)


def train(settings: Settings, *, quiet: bool = False) -> TrainingRun:
    """Train a model.

    Args:
        settings: Every option of the run.
        quiet: Print nothing while training.

    Returns:
        The run: its folder holds checkpoints, metrics and the best model.

    Raises:
        TrainError: If training cannot continue; the message says what is saved.
    """
    with joined(settings) as world:
        folder = Path(world.from_first(str(_new_folder(settings)) if world.first else ""))
        # The threads it starts with are written down: bits depend on them.
        settings = replace(settings, out=str(folder), threads=settings.threads or torch.get_num_threads())
        return _run(folder, world, quiet, new=settings)


def resume(folder: str | Path, *, quiet: bool = False) -> TrainingRun:
    """Resume the run in that folder from its last checkpoint."""
    folder = Path(folder)
    if not (folder / "config.toml").is_file():
        raise LoadError(
            f"{folder} is not a run: a folder that `regard train` made has a config.toml. "
            f"{'It does not exist.' if not folder.exists() else 'There is none in it.'}"
        )
    if (done := _done(folder)) is not None:
        return done
    with joined(Settings.read(folder / "config.toml")) as world:
        return _run(folder, world, quiet)


def _done(folder: Path) -> TrainingRun | None:
    """Return what result.json says; None where there is none, or a damaged one, which is then made again."""
    try:
        done = json.loads((folder / "result.json").read_text(encoding="utf-8"))
        run = TrainingRun(folder, done["step"], done["stopped"], done["scores"])
    except (OSError, ValueError, LookupError, TypeError, RecursionError):
        return None
    sound = type(run.step) is int and isinstance(run.stopped, str) and isinstance(run.scores, dict)
    return run if sound and run.finished and run.best.is_dir() else None


def _new_folder(settings: Settings) -> Path:
    if not settings.out:
        folders = (Path("runs") / f"{settings.task}-{number}" for number in count(1))
        return next(folder for folder in folders if not folder.exists())
    folder = Path(settings.out)
    if (folder / "config.toml").exists():
        raise ArgumentError(
            f"{folder} holds a run already: resume it (--resume {folder}), or give another folder."
        )
    # A process that was killed as it began leaves these two.
    started = {".lock", "config.toml.part"}
    if folder.exists() and (not folder.is_dir() or {path.name for path in folder.iterdir()} - started):
        raise ArgumentError(f"{folder} is not an empty folder: a run needs one of its own.")
    return folder


def _run(folder: Path, world: World, quiet: bool, new: Settings | None = None) -> TrainingRun:
    """Train in this folder while no other process does; a `new` run's settings are written into it."""

    def begin() -> None:
        folder.mkdir(parents=True, exist_ok=True)
        stack.enter_context(FileLock(folder / ".lock", timeout=0))
        if new is not None:
            write_whole(folder / "config.toml", new.to_toml())

    with ExitStack() as stack:
        try:
            world.by_first(begin)  # the others wait until it is there
            settings = replace(Settings.read(folder / "config.toml"), out=str(folder))
            keep_freed_memory()
            stack.callback(torch.set_num_threads, torch.get_num_threads())
            torch.set_num_threads(settings.threads)
            try:
                running = _Running(settings, folder, world, quiet)
            except BaseException:
                # A start that failed: all in the folder is ours, and in the way of the next.
                if new is not None and world.first:
                    shutil.rmtree(folder, ignore_errors=True)
                raise
        except Timeout as error:
            raise TrainError(
                f"{folder} is being trained by another process: wait for it, or end it."
            ) from error
        except OSError as error:
            raise TrainError(
                f"the run's folder {folder} cannot be written: {error.strerror or error}."
            ) from error
        return running.go()


class _Running:
    """One process of a run, from opening the data to the result."""

    def __init__(self, settings: Settings, folder: Path, world: World, quiet: bool) -> None:
        self.settings, self.folder, self.world = settings, folder, world
        self.device = checked_device(settings.device)
        world.by_first(lambda: prepare(settings, folder))
        self.corpus = open_corpus(settings, folder)
        tokenizer = self.corpus.tokenizer
        special = tokenizer.special
        self.crc = zlib.crc32(f"{tokenizer.backend.to_str()} {special}".encode(), self.corpus.crc)
        assert special.pad is not None  # every vocabulary of ours has one
        self.pad = special.pad
        objective = Objective(build_model(settings, tokenizer), settings.label_smoothing)
        shuffled = settings.task not in GENERATED
        batches = Batches(
            self.corpus.train, settings.batch_tokens, settings.seed, self.pad, shuffled=shuffled
        )
        self.training = Training(objective, batches, settings, world, self.device)
        # What bits depend on beside the settings.
        self.here = {"processes": world.size, "torch": torch.__version__, "device": self.device.type}
        notes = [*self.corpus.notes, *self._restore()]
        self.kept_before = {model["file"] for model in self.training.progress.kept}
        start, length = self.training.progress.step, self.training.progress.metrics_bytes
        self.display = Display(folder, settings, first=world.first, quiet=quiet, start=start, length=length)
        for note in notes:
            self.display.note(note)

    def _restore(self) -> list[str]:
        """Restore the latest checkpoint; return notes for the user."""
        newest = checkpoint.latest(self.folder / "checkpoints")
        if newest is None:
            return []
        state = newest.state
        if state["crc"] != self.crc:
            raise TrainError(
                f"{self.folder} was trained on other data or with another tokenizer than it now holds: a run "
                "can only be resumed with the data it began with. Start a new run."
            )
        self.training.restore(newest.tensors(), state["progress"])
        notes = [f"resuming from {newest.path.name}"]
        notes += [f"passed over a damaged checkpoint, {name}" for name in newest.damaged]
        differs = [
            f"{name} {state[name]} then, {now} now" for name, now in self.here.items() if state[name] != now
        ]
        if differs:
            notes.append(f"bits will differ from an uninterrupted run: {', '.join(differs)}")
        return notes

    def go(self) -> TrainingRun:
        """Train to the end, or to where somebody stops it."""
        progress = self.training.progress
        try:
            with self.display:
                stopped = self._train()
                if stopped and not progress.over:  # a person or a scheduler, not the settings
                    self.display.note(
                        f"stopped by {stopped} at step {progress.step}, and saved. "
                        f"Go on with: regard train --resume {self.folder}"
                    )
                    return TrainingRun(self.folder, progress.step, stopped)
                return self._finish(stopped)
        except (TrainError, SafetensorError, OSError) as error:
            said = error if isinstance(error, TrainError) else f"the run {self.folder} cannot go on: {error}."
            saved = checkpoint.checkpoints(self.folder / "checkpoints")
            raise TrainError(f"{said} The last checkpoint is {saved[-1]}." if saved else str(said)) from error

    def _train(self) -> str:
        """Train to the last step; says "" at the end, or why it ended before."""
        settings, progress = self.settings, self.training.progress
        with stoppable() as signals:
            while progress.step < settings.steps and not progress.over:
                began = time.perf_counter()
                measured = self.training.update()
                progress.seconds += time.perf_counter() - began
                self.display.step(progress.step, measured)
                at_end = progress.step == settings.steps
                if progress.step % settings.eval_every == 0 or at_end:
                    self._evaluate()
                stop = self.world.total(float(len(signals))) > 0
                if progress.step % settings.save_every == 0 or at_end or stop or progress.over:
                    self._save()
                if stop:
                    return signals[0] if signals else "a signal to another process"
        return progress.over

    def _evaluate(self) -> None:
        """Score the model, and keep it if it is among the best; every process must ask."""
        settings, progress, weights = self.settings, self.training.progress, self.training.weights()
        if self.world.first:
            loaded = finished(settings, self.corpus.tokenizer, weights)
            values, samples = self._scores(loaded, self.corpus.valid, settings.eval_size)
            self.display.evaluated(progress.step, values, samples[0] if samples else None)
            score = [values[name] for name in ("bleu", "exact") if name in values] + [-values["loss"]]
            this: dict[str, Any] = {"score": score, "step": progress.step}
            ranked = sorted([*progress.kept, this], key=lambda model: model["score"], reverse=True)
            progress.kept = ranked[: settings.keep_best]  # the earlier of two that are equal comes first
            if this in progress.kept:  # what falls out is deleted after the next checkpoint
                whole = {name: weight.contiguous() for name, weight in weights.items()}
                this["file"] = checkpoint.write_checked(self.folder / "kept", progress.step, whole, {}).name
        progress.kept = self.world.from_first(progress.kept)
        n_worse = math.ceil((progress.step - progress.kept[0]["step"]) / settings.eval_every)
        if settings.patience and n_worse >= settings.patience:
            progress.over = f"no better score in {n_worse} evaluations"

    def _scores(
        self, loaded: Loaded, held_out: HeldOut, most: int | None = None
    ) -> tuple[dict[str, Any], list[tuple[str, str, str]]]:
        """Return every figure of a model, and some of what it says: source, right answer, its answer."""
        settings = self.settings
        limit = None if most is None else _MOST_BLOCKS
        objective = Objective(loaded.model.to(self.device)).eval()
        loss = mean_loss(objective, held_out.examples, max(settings.batch_tokens, 2048), self.pad, limit)
        values: dict[str, Any] = {"loss": loss, "perplexity": math.exp(min(loss, 700.0))}
        if loaded.model.lm_head == "masked":  # a masked word's loss says nothing of a whole text's size
            return values, []
        if settings.task == "lm":
            values["bits_per_byte"] = loss / math.log(2) / held_out.bytes_per_token
            prompt = torch.as_tensor(held_out.examples.get(0, 0).inputs[: settings.context // 2 or 1])
            done = generate(loaded, prompt[None], max_new=max(1, settings.context // 2 - 1))
            text = (done.texts or ("",))[0]
            return values, [(self.corpus.tokenizer.decode(prompt), "", text)]  # there is no one right text
        sources, targets = zip(*held_out.pairs[:most], strict=True)
        answers = answered(loaded, held_out.pairs[:most])
        if settings.task in GENERATED:
            values["exact"] = sum(map(eq, answers, targets)) / len(answers)
        else:
            values |= translation_scores(answers, targets)
        return values, list(zip(sources, targets, answers, strict=True))

    def _save(self) -> None:
        tensors, progress = self.training.tensors(), self.training.progress

        def write() -> None:
            progress.metrics_bytes = self.display.length
            state = {"progress": asdict(progress), "crc": self.crc, **self.here, "step": progress.step}
            checkpoint.save_checkpoint(self.folder / "checkpoints", progress.step, tensors, state)
            # Models that neither this checkpoint speaks of nor the one before it are deleted.
            kept = {model["file"] for model in progress.kept}
            for path in (self.folder / "kept").glob("*"):
                if path.name not in kept | self.kept_before:
                    path.unlink(missing_ok=True)
            self.kept_before = kept

        self.world.by_first(write)

    def _finish(self, stopped: str) -> TrainingRun:
        """Write the result: the best model, or the mean of the best ones, with its scores and pictures."""
        progress = self.training.progress
        result: dict[str, Any] = {}
        if self.world.first:
            best = progress.kept if self.settings.average else progress.kept[:1]
            paths = [self.folder / "kept" / model["file"] for model in best]
            for path in paths:
                if not checkpoint.is_whole(path):
                    raise TrainError(
                        f"{path} is not what was written (its checksum differs): start the run anew."
                    )
            models = [load_file(path) for path in paths]
            weights = {name: torch.stack([model[name] for model in models]).mean(0) for name in models[0]}
            loaded = finished(self.settings, self.corpus.tokenizer, weights)
            scores, samples = self._scores(loaded, self.corpus.test)
            part = self.folder / ".part-best"
            shutil.rmtree(part, ignore_errors=True)
            save(loaded, part)
            shutil.rmtree(self.folder / "best", ignore_errors=True)
            part.rename(self.folder / "best")
            self.display.write(progress.step, "test", scores)
            loss_curve(read_metrics(self.display.path), self.folder / "loss.png")
            if self.settings.task != "lm":
                # A model that has learned nothing may answer nothing: then the true answer is aligned.
                pairs = [(source, answer or target) for source, target, answer in samples[:4]]
                alignment_maps(loaded, pairs, self.folder)
            result = {
                "step": progress.step,
                "stopped": stopped,
                "of_steps": [model["step"] for model in best],
                "n_parameter": loaded.facts.n_parameter,
                "seconds": round(progress.seconds, 2),
                "scores": scores,
            }
            write_whole(self.folder / "result.json", json.dumps(result, indent=2, ensure_ascii=False))
            self.display.note(f"{self.folder}: {figures(scores)}")
        result = self.world.from_first(result)
        return TrainingRun(self.folder, progress.step, stopped, result["scores"])
