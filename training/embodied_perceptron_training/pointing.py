"""What a decoder over detected objects is trained on: to point at the one that a sentence means.

The paper's token loss judges every query by itself, and all things of the class fit the word "chair" of "the chair
closest to the desk" about equally well. Here the word is shared out among all objects and "none of these" (a softmax,
as a pointer network's: Vinyals et al., NeurIPS 2015), so that what the sentence means has to win over its look-alikes
and over the anchors, which is what a robot acts on. All other words mean "none of these".
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from embodied_perceptron.boxes import box_iou
from embodied_perceptron.nn.object_grounding import ObjectGroundingOutput
from embodied_perceptron_training.losses import Reduce, same

Losses = dict[str, Tensor]


@dataclass(frozen=True, eq=False)
class Pointed:
    """Answers about one scene, and what is right.

    Attributes:
        output: S sentences, boxes in the world.
        boxes: per sentence (G, 9) of what it means; none where that is not there.
        named: (S, T) bool, the tokens that name it. pad: (S, T) True at padding.
    """

    output: ObjectGroundingOutput
    boxes: Sequence[Tensor]
    named: Tensor
    pad: Tensor


@dataclass(frozen=True)
class PointingCriterion:
    """Cross entropy of every token's shares; the mean over layers, then sentences.

    Attributes:
        min_iou: an object that overlaps what is meant by at least so much is right; of several each as far as it does.
            Where none is, "none of these" is.
        other_weight: of the words that do not name what is meant, together.
        reduce: mean of a value over processes.
    """

    min_iou: float = 0.25
    other_weight: float = 0.2
    reduce: Reduce = same

    def __call__(self, answers: Sequence[Pointed], like: Tensor) -> Losses:
        """``{"named", "others"}``; 0 without any sentence. ``like``: a tensor of the device to count on."""
        number = self.reduce(like.new_tensor(float(sum(len(a.pad) for a in answers)))).clamp_min(1.0)
        named, others = [like.new_zeros(())], [like.new_zeros(())]
        for answer in answers:
            shares = answer.output.log_shares  # (L, S, 1 + Q, T)
            right = self.targets(answer).to(shares)  # (S, 1 + Q)
            words, rest = answer.named & ~answer.pad, ~answer.named & ~answer.pad
            pointing = -torch.einsum("sq,lsqt->lst", right, shares).mean(0)
            silent = -shares[:, :, 0].mean(0)
            named.append(_mean_of(pointing, words).sum())
            others.append(self.other_weight * _mean_of(silent, rest).sum())
        return {"named": torch.stack(named).sum() / number, "others": torch.stack(others).sum() / number}

    def targets(self, answer: Pointed) -> Tensor:
        """(S, 1 + Q) how the tokens that name what is meant are shared out: "none of these" first, then the objects."""
        boxes, valid = answer.output.boxes[-1, 0], answer.output.query_valid[0]
        right = boxes.new_zeros(len(answer.boxes), 1 + len(boxes))
        counts = [len(b) for b in answer.boxes]
        overlaps = box_iou(boxes.double(), torch.cat(list(answer.boxes)).double()).to(boxes)  # (Q, all G)
        for row, iou in enumerate(torch.split(overlaps, counts, dim=1)):
            if iou.shape[1]:
                best = iou.amax(1)
                right[row, 1:] = torch.where((best >= self.min_iou) & valid, best, 0.0)
        right[:, 0] = (right.sum(1) == 0).to(right)
        return right / right.sum(1, keepdim=True)


def _mean_of(values: Tensor, mask: Tensor) -> Tensor:
    """(S, T) -> (S,) means over the masked tokens, 0 where there are none."""
    return torch.where(mask, values, 0.0).sum(1) / mask.sum(1).clamp_min(1)
