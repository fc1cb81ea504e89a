"""The training loop: one task, one folder, any number of processes, interruptible at every step."""

from __future__ import annotations

import contextlib
import math
import signal
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, TaskID, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.progress import Progress as RichProgress
from torch import nn

from embodied_perceptron_training.training.data_order import Corrupt, Fetched, Order, sample_stream
from embodied_perceptron_training.training.optimization import (
    AveragedModel,
    ForwardBackward,
    Processes,
    SavedBuffers,
    parameter_groups,
)
from embodied_perceptron_training.training.run_folder import RunFolder
from embodied_perceptron_training.training.state import Counters, load_state, save_state, seed_step
from embodied_perceptron_training.training.task import TrainingTask
from embodied_perceptron_training.training.training_run import TrainingRun

_LINE_EVERY_S = 30.0  # where the console is no terminal
_RETRY_S = 20.0  # after a checkpoint that could not be written
MINUTES = "its minutes are over"


class Progress:
    """A bar with the remaining time on a terminal, a line every half minute elsewhere.

    Args:
        steps: of the whole training.
        quiet: no output.
    """

    def __init__(self, steps: int, quiet: bool = False) -> None:
        self.steps, self.quiet = steps, quiet
        self.console = Console(quiet=quiet, highlight=False)
        self._bar: RichProgress | None = None
        self._task: TaskID | None = None
        self._line_at = 0.0

    def __enter__(self) -> Progress:
        if not self.quiet and self.console.is_terminal:
            self._bar = RichProgress(
                TextColumn("{task.description}"),
                BarColumn(),
                TextColumn("{task.percentage:.1f} %"),
                TimeElapsedColumn(),
                TextColumn("left"),
                TimeRemainingColumn(),
                console=self.console,
            )
            self._task = self._bar.add_task("training", total=self.steps)
            self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()
            self._bar = None

    def update(self, step: int, elapsed_s: float, loss: float, rate: float, best: float | None) -> None:
        """Show a finished step."""
        if self.quiet:
            return
        text = f"step {step} loss {loss:.3f} rate {rate:.1e}" + ("" if best is None else f" best {best:.2f}")
        if self._bar is not None and self._task is not None:
            self._bar.update(self._task, completed=step, description=text)
        elif time.monotonic() - self._line_at >= _LINE_EVERY_S:
            self._line_at = time.monotonic()
            share = step / self.steps
            left = elapsed_s * (1 - share) / max(share, 1e-9)
            self.console.print(f"{text}, {100 * share:.1f} %, {_clock(elapsed_s)} passed, {_clock(left)} left")

    def say(self, text: str) -> None:
        """Print a line."""
        (self._bar.console if self._bar is not None else self.console).print(escape(text), soft_wrap=True)


def _clock(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02d}:{rest:02d}"


class TrainingError(RuntimeError):
    """A training that cannot continue; the message gives the reason and the last good checkpoint."""

    exit_code = 4


@dataclass(frozen=True)
class TrainingOutcome:
    """End of a training."""

    finished: bool  # False when it was stopped and can be resumed
    steps: int  # done altogether
    best: float | None  # figure of the best validation, if any
    samples_per_s: float  # of this part of the run
    waiting: float  # share of the time spent waiting for data
    stopped: str = ""  # the reason: the name of a signal, or :data:`MINUTES`


class Trainer:
    """Train ``task`` with the settings ``config`` in ``folder``.

    Args:
        task: see :class:`~embodied_perceptron_training.training.task.TrainingTask`.
        config: settings; its task is ignored.
        folder: of the run.
        processes: this process among its peers; None = alone, on the run's device.
        information: for ``run.json`` and the weights files: task, command, data.
        quiet: no progress on the console.
    """

    def __init__(
        self,
        task: TrainingTask,
        config: TrainingRun,
        folder: RunFolder | str | Path,
        processes: Processes | None = None,
        information: Mapping[str, Any] | None = None,
        quiet: bool = False,
    ) -> None:
        self.task, self.config = task, config
        self.folder = folder if isinstance(folder, RunFolder) else RunFolder(folder)
        self.processes = processes or Processes.start(config.execution.device)
        self.information: dict[str, Any] = dict(information or {})
        self.device = self.processes.device
        self.total_steps = config.total_steps(len(task.samples), self.processes.world)
        optimisation = config.optimisation
        self.learning_rate = config.learning_rate(self.processes.world)
        self.model = task.model.to(self.device)
        self.average = AveragedModel(self.model, optimisation.ema_decay)
        groups = parameter_groups(self.model, optimisation.weight_decay, optimisation.rate_scales)
        self.optimizer = torch.optim.AdamW(groups, lr=self.learning_rate, betas=optimisation.betas, fused=True)
        self.passes = ForwardBackward(task, optimisation, self.processes)
        self.scaler = self.passes.scaler
        self.counters = Counters()
        self.parameters = [p for group in groups for p in group["params"]]
        self.progress = Progress(self.total_steps, quiet or not self.processes.first)
        self._asked = ""  # the signal that asked this process to stop
        self._stop = ""  # the same, once all processes know
        self._unsaved = ""  # why the last checkpoint could not be written
        self._saved_at = self._started = self._resumed_elapsed_s = 0.0

    def run(self, resume: bool = False) -> TrainingOutcome:
        """Train until the end, or until SIGTERM, SIGINT or the run's minutes stop it at the end of a step.

        ``resume`` continues the run in the folder (from the start without a checkpoint).

        Raises :class:`TrainingError` when losses stay NaN, too many samples are corrupt, or the last state cannot be
        written; what the folder and the data raise.
        """
        if self.processes.first:
            information = {**self.information, "settings": self.config.to_json()["settings"]}
            self.information = self.folder.open(information, resume, self.processes.world)
        try:
            with self._signals(), self.progress:
                return self._run(resume)
        finally:
            if self.processes.first:
                self.folder.close()

    def _run(self, resume: bool) -> TrainingOutcome:
        if resume and self.processes.from_first(self.folder.state.exists()):
            self._load()
        elif resume and self.processes.first:
            self.folder.forget_after(-1)  # ended before its first checkpoint
        first_step, first_waited = self.counters.step, self.counters.waited_s
        self._started = self._saved_at = time.monotonic()
        self._resumed_elapsed_s = self.counters.elapsed_s
        if self.processes.first and not self.folder.open_board(self.counters.step):
            self.progress.say("TensorBoard is not installed: scalars go to log.jsonl alone")
        if not self.counters.finished:
            self._say_schedule()
            self._train()
        seconds = max(time.monotonic() - self._started, 1e-9)
        done = self.counters.step - first_step
        return TrainingOutcome(
            self.counters.finished,
            self.counters.step,
            self.counters.best,
            done * self._samples_per_step() / seconds,
            (self.counters.waited_s - first_waited) / seconds,
            "" if self.counters.finished else self._stop,
        )

    def _train(self) -> None:
        config, processes = self.config, self.processes
        order = Order(
            len(self.task.samples),
            config.optimisation.batch,
            config.seed,
            self.counters.position,
            processes.rank,
            processes.world,
        )
        if self.counters.step == 0 and config.validation.before_start and config.validation.count:
            self._keep_best(self._validate())
        self.counters.elapsed_s = self._elapsed_s()
        with sample_stream(
            self.task.samples, self.task.collate, order, config.execution.workers, self.device
        ) as batches:
            while self.counters.step < self.total_steps and not self._stop:
                self.model.train()
                if self.config.optimisation.freeze_norms:
                    for module in self.model.modules():
                        if isinstance(module, nn.modules.batchnorm._BatchNorm):
                            module.eval()
                self._step(batches)
                self._validate_when_due()
                self._save_when_due()
                minutes, spent_s = self.config.execution.minutes, self.counters.elapsed_s - self._resumed_elapsed_s
                # every process has the first one's clock
                if minutes and spent_s >= 60 * minutes and not self._stop and self.counters.step < self.total_steps:
                    self._stop = MINUTES
        if self.counters.step >= self.total_steps and not self._stop:
            self._validate_when_due()
            self.counters.finished = True
        self._last_save()

    def _say_schedule(self) -> None:
        """Print settings that the command does not show: the scaled learning rate, and the length where only minutes
        were given."""
        minutes, samples = self.config.execution.minutes, len(self.task.samples)
        optimisation = self.config.optimisation
        if optimisation.reference_batch:
            self.progress.say(
                f"learning rate {self.learning_rate:g} for {self._samples_per_step()} samples a step: "
                f"{optimisation.learning_rate:g} is for {optimisation.reference_batch}"
            )
        if minutes:
            passes = self.total_steps * self._samples_per_step() / samples
            self.progress.say(
                f"the schedule runs over {self.total_steps} steps ({passes:.3g} passes over {samples} samples); "
                f"after {minutes:g} minutes the training stops and can be resumed"
            )

    # -- one step

    def _step(self, batches: Iterator[Fetched]) -> None:
        config, counters = self.config, self.counters
        seed_step(config.seed, counters.step, self.processes.rank)
        buffers = SavedBuffers(self.model)
        self.optimizer.zero_grad(set_to_none=True)
        result = self.passes.run(batches)
        counters.waited_s += result.waited_s
        places, corrupt = result.places, result.corrupt
        if not result.complete:
            self._count_corrupt(corrupt)
            raise TrainingError(f"no usable sample replaces {corrupt[0].name}: {corrupt[0].reason}")
        terms, length = self._figures(result.terms)
        # one agreement per step: all processes must take the same decisions
        loss, stops, errors, elapsed = self.processes.total(
            [sum(terms.values()), float(bool(self._asked)), len(corrupt), self._elapsed_s() * self.processes.first]
        )
        loss /= self.processes.world
        rate = self.learning_rate * config.schedule.factor(self._passed(), counters.step)
        norm = self._update(rate, length, math.isfinite(loss))
        counters.elapsed_s = elapsed
        counters.step += 1
        counters.position += self._samples_per_step()
        if norm is None:
            buffers.restore()
            self._count_bad(terms, places)
        else:
            counters.bad_in_a_row = 0
            self.average.update_parameters(self.model)
            counters.average_updates = self.average.updates
            self._log_step({"loss": loss, "norm": norm, **{f"loss/{k}": v for k, v in terms.items()}}, rate)
        if errors:
            self._count_corrupt([c for part in self.processes.gather(corrupt) for c in part])
        if stops:
            self._stop = self._asked or "another process was asked to stop"
        self.progress.update(counters.step, counters.elapsed_s, loss, rate, counters.best)

    def _gradients(self) -> list[torch.Tensor]:
        return [p.grad for p in self.parameters if p.grad is not None]

    def _figures(self, terms: Mapping[str, torch.Tensor]) -> tuple[dict[str, float], float]:
        """The losses, and the gradient norm before clipping; the only synchronisation of a step."""
        self.scaler.unscale_(self.optimizer)
        gradients = self._gradients()
        length = torch.stack(list(torch._foreach_norm(gradients))).norm() if gradients else torch.zeros(())
        *values, length_read = torch.stack([*terms.values(), length.to(self.device)]).tolist()
        return dict(zip(terms, values, strict=True)), length_read

    def _update(self, rate: float, length: float, finite: bool) -> float | None:
        """One optimiser step; returns the gradient norm ``length``, or None when the step was skipped."""
        for group in self.optimizer.param_groups:
            group["lr"] = rate * group["scale"]
        clip = self.config.optimisation.clip
        if not finite or (not math.isfinite(length) and not self.scaler.is_enabled()):
            self.optimizer.zero_grad(set_to_none=True)
            self.scaler.update()
            return None
        if clip and length > clip and math.isfinite(length):
            torch._foreach_mul_(self._gradients(), clip / length)
        self.scaler.step(self.optimizer)  # leaves out steps whose scaled gradients overflow
        self.scaler.update()
        return length

    def _count_bad(self, terms: Mapping[str, float], places: list[tuple[int, int]]) -> None:
        counters = self.counters
        counters.skipped += 1
        counters.bad_in_a_row += 1
        bad = [name for name, value in terms.items() if not math.isfinite(value)] or ["gradient"]
        self._log({"event": "skipped", "step": counters.step, "terms": bad, "samples": places})
        self.progress.say(f"step {counters.step} skipped: {', '.join(bad)} not finite")
        if counters.bad_in_a_row >= self.config.optimisation.max_bad_steps:
            raise TrainingError(
                f"{counters.bad_in_a_row} steps in a row were not finite, the last for {', '.join(bad)} "
                f"(step {counters.step}, samples {places}); the last checkpoint in {self.folder.path} is complete"
            )

    def _count_corrupt(self, corrupt: list[Corrupt]) -> None:
        counters = self.counters
        for one in corrupt:
            counters.corrupt += 1
            if one.epoch > counters.corrupt_epoch:
                counters.corrupt_epoch, counters.corrupt_names = one.epoch, []
            if one.epoch == counters.corrupt_epoch and one.name not in counters.corrupt_names:
                counters.corrupt_names.append(one.name)
            self._log({"event": "corrupt", "step": counters.step, "sample": one.name, "reason": one.reason})
            self.progress.say(f"skipped a corrupt sample: {one.name}: {one.reason}")
        names, samples = counters.corrupt_names, len(self.task.samples)
        allowed = self.config.execution.max_corrupt_share
        if len(names) > allowed * samples:
            shown = "; ".join(f"{c.name}: {c.reason}" for c in corrupt[:3])
            raise TrainingError(
                f"{len(names)} of an epoch's {samples} samples are corrupt, more than "
                f"{100 * allowed:g} %: {', '.join(names[:10])}. The last: {shown}"
            )

    # -- time

    def _samples_per_step(self) -> int:
        return self.config.samples_per_step(self.processes.world)

    def _elapsed_s(self) -> float:
        return self._resumed_elapsed_s + time.monotonic() - self._started

    def _passed(self) -> float:
        """Finished share of the training, in [0, 1]."""
        return min(1.0, self.counters.step / self.total_steps)

    # -- validation, checkpoints, log

    def _validate_when_due(self) -> None:
        due = int(self._passed() * self.config.validation.count + 1e-9)
        if due <= self.counters.validations:
            return
        self._save()  # in case the validation fails
        figures = self._validate()
        self.counters.validations = due
        self.counters.elapsed_s = self.processes.from_first(self._elapsed_s())
        if not figures:
            return
        self._keep_best(figures)
        self._save()
        self._draw()

    def _keep_best(self, figures: Mapping[str, float]) -> None:
        """Write the weights as the best ones where no validation was better, the one before the first step included."""
        value = float(figures[self.task.best_metric]) if figures else math.nan
        if math.isfinite(value) and (self.counters.best is None or value > self.counters.best):
            self.counters.best = value
            self._write_weights(self.folder.best, figures)

    def _validate(self) -> dict[str, float]:
        """Figures of the averaged weights, in every process; logged."""
        started = time.monotonic()
        figures: dict[str, float] = {}
        if self.processes.first:
            with torch.no_grad():
                figures = self.task.validate(self.average.module.eval())
        figures = self.processes.from_first(figures)
        if not figures:
            return {}
        if self.task.best_metric not in figures:
            raise TrainingError(f"the validation gives no {self.task.best_metric!r}, but {', '.join(sorted(figures))}")
        step, seconds = self.counters.step, round(time.monotonic() - started, 2)
        line = {"event": "validation", "step": step, "elapsed_s": round(self._elapsed_s(), 1)}
        self._log({**line, "seconds": seconds, "figures": figures})
        self.progress.say(f"step {step}: " + ", ".join(f"{k} {v:.4g}" for k, v in list(figures.items())[:8]))
        if self.processes.first:
            self.folder.scalars({f"validation/{k}": v for k, v in figures.items()}, step)
        return figures

    def _draw(self) -> None:
        if self.processes.first:
            try:
                if not self.folder.draw_curves():
                    self.progress.say("matplotlib is not installed: no curves.png")
            except OSError as error:
                self.progress.say(f"curves.png could not be written: {error}")

    def _save_when_due(self) -> None:
        wait = _RETRY_S if self._unsaved else self.config.execution.checkpoint_s
        if self.processes.first and not self._stop and time.monotonic() - self._saved_at >= wait:
            self._save()

    def _save(self) -> bool:
        """Write state and weights; on a full disk a message is printed, the old files are kept, and it is tried again
        later."""
        if not self.processes.first:
            return True
        self._saved_at = time.monotonic()
        try:
            scaler = self.scaler.state_dict() if self.scaler.is_enabled() else None
            save_state(self.folder.state, self.counters, self.model, self.average.module, self.optimizer, scaler)
            self._unsaved = ""
        except OSError as error:
            self._unsaved = str(error)
            self._log({"event": "checkpoint failed", "step": self.counters.step, "reason": str(error)})
            self.progress.say(f"checkpoint at step {self.counters.step} failed, the previous one is kept: {error}")
            return False
        self._write_weights(self.folder.last, {})
        return True

    def _last_save(self) -> None:
        saved = self._save()
        if self._stop:
            self._log({"event": "stopped", "step": self.counters.step, "reason": self._stop})
        elif self.processes.first:
            self._draw()
        if not self.processes.from_first(saved):
            raise TrainingError(
                f"the state after step {self.counters.step} could not be written: {self._unsaved or 'see above'}; "
                f"the previous checkpoint in {self.folder.path} is complete"
            )

    def _write_weights(self, path: Path, figures: Mapping[str, float]) -> None:
        if not self.processes.first:
            return
        counters = self.counters
        extra = {
            **self.information,
            "step": counters.step,
            "samples": counters.position,
            "elapsed_s": round(counters.elapsed_s, 1),
            "figures": dict(figures),
        }
        try:
            self.task.save_weights(path, self.average.module, extra)
        except OSError as error:
            self._log({"event": "weights failed", "step": counters.step, "reason": str(error)})
            self.progress.say(f"{path} could not be written: {error}")

    def _load(self) -> None:
        self.counters, scaler = load_state(self.folder.state, self.model, self.average.module, self.optimizer)
        self.average.updates = self.counters.average_updates
        if scaler is not None and self.scaler.is_enabled():
            self.scaler.load_state_dict(scaler)
        # the training may have been extended
        self.counters.finished = self.counters.finished and self.counters.step >= self.total_steps
        if self.processes.first:
            self.folder.forget_after(self.counters.step)
        self.progress.say(f"resumed at step {self.counters.step}")

    def _log(self, line: Mapping[str, Any]) -> None:
        if self.processes.first:
            self.folder.log(line)

    def _log_step(self, values: Mapping[str, float], rate: float) -> None:
        """Log means over the last ``log_every`` steps that have the term; terms are those of the first process."""
        counters = self.counters
        for name, value in values.items():
            counters.counts[name] = counters.counts.get(name, counters.summed) + 1
            counters.sums[name] = counters.sums.get(name, 0.0) + value
        if counters.step % self.config.execution.log_every and counters.step < self.total_steps:
            return
        means = {k: v / counters.counts[k] for k, v in counters.sums.items() if k in counters.counts}
        counters.sums, counters.counts, counters.summed = {}, {}, 0
        line = {"event": "train", "step": counters.step, "epoch": counters.position / len(self.task.samples)}
        elapsed = max(counters.elapsed_s, 1e-9)
        line |= {"rate": rate, "elapsed_s": round(elapsed, 2), "waiting": round(counters.waited_s / elapsed, 4)}
        self._log({**line, **means})
        if self.processes.first:
            self.folder.scalars({**means, "rate": rate}, counters.step)

    # -- signals

    @contextlib.contextmanager
    def _signals(self) -> Iterator[None]:
        """Stop the training after the step on SIGTERM and SIGINT; at once on a second SIGINT."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return

        def ask(number: int, _frame: FrameType | None) -> None:
            if number == signal.SIGINT and self._asked == "SIGINT":
                raise KeyboardInterrupt
            self._asked = signal.Signals(number).name
            self.progress.say(f"{self._asked}: stopping after this step")

        before = {number: signal.signal(number, ask) for number in (signal.SIGTERM, signal.SIGINT)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
