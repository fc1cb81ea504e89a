"""Open-vocabulary detectors, and open-vocabulary labels of objects by an image-text encoder.

Models of ``transformers`` by hub name or folder: OWL-ViT, OWLv2, Grounding DINO and others of
``AutoModelForZeroShotObjectDetection``; CLIP, SigLIP and the like for embeddings. Weights are read as safetensors only;
code of a hub repository is never run. A word names an object if it takes the larger part of a softmax over the word,
the labels of the map and a few neutral words.
"""

from __future__ import annotations

import threading
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from embodied_perceptron.detection2d.detections2d import Detections2d, Limits2d, accept_detections, clean_label
from embodied_perceptron.mapping.devices import resolve_device
from embodied_perceptron.results import UNNAMED, SceneObject
from embodied_perceptron.sensors.frame import RgbdFrame

_WORDS_AT_ONCE = 24  # text encoders of detectors take a few hundred tokens
MAX_WORDS = 400
_MEMORY = 20  # recent views in the mean embedding of an object
_MAX_REGIONS = 24  # best regions of an image that get an embedding
_REGION_MARGIN = 0.1  # some context around a box helps recognition
_SAFE: dict[str, Any] = {"trust_remote_code": False}


class ZeroShotDetector:
    """Detector of ``transformers``, prompted with words.

    Args:
        name: hub name or folder.
        words: initial prompt.
        limits: on its output.
        device: see :func:`embodied_perceptron.mapping.devices.resolve_device`.

    Raises ``ImportError`` without ``transformers``, ``OSError`` for an unreadable name, ``ValueError`` for another kind
    of model or no words.
    """

    def __init__(self, name: str, words: Sequence[str], limits: Limits2d | None = None, device: str = "cpu") -> None:
        import transformers

        self._device = resolve_device(device)
        self.limits = limits if limits is not None else Limits2d()
        model = transformers.AutoModelForZeroShotObjectDetection.from_pretrained(name, use_safetensors=True, **_SAFE)
        self._model = model.to(self._device).eval()
        self._processor = _processor(name)
        self._grounded = model.config.model_type.endswith("grounding-dino")
        self._lock = threading.Lock()
        self._words: tuple[str, ...] = ()
        self.look_for(words)
        if not self._words:
            raise ValueError("an open-vocabulary detector needs words: classes is empty")

    @property
    def vocabulary(self) -> frozenset[str]:
        """Return the current words."""
        return frozenset(self._words)

    def look_for(self, words: Iterable[str]) -> None:
        """Replace the words from the next image on; names are cleaned, duplicates and more than 400 dropped."""
        clean = dict.fromkeys(label for word in words if (label := clean_label(word)))
        with self._lock:
            self._words = tuple(clean)[:MAX_WORDS]

    def detect(self, frame: RgbdFrame) -> tuple[Detections2d, Counter[str]]:
        """See :class:`embodied_perceptron.detection2d.detectors.Detector`."""
        with self._lock:
            words = self._words
        boxes, scores, labels = [np.zeros((0, 4))], [np.zeros(0)], list[str]()
        for first in range(0, len(words), _WORDS_AT_ONCE):
            some = words[first : first + _WORDS_AT_ONCE]
            found = self._ask(frame.color, some)
            boxes.append(found["boxes"].detach().cpu().double().numpy().reshape(-1, 4))
            scores.append(found["scores"].detach().cpu().double().numpy().reshape(-1))
            labels += [_nearest_word(text, some) for text in found["text_labels"]]
        size = frame.intrinsics.width, frame.intrinsics.height
        corners = np.concatenate(boxes) - 0.5  # from the image corner to pixel centres
        return accept_detections(
            frame.camera, frame.stamp_ns, corners, np.concatenate(scores), labels, size, self.limits
        )

    def _ask(self, image: NDArray[np.uint8], words: Sequence[str]) -> dict[str, Any]:
        inputs = self._processor(text=[list(words)], images=[image], return_tensors="pt").to(self._device)
        with torch.inference_mode():
            outputs = self._model(**inputs)
        options: dict[str, Any] = {"threshold": self.limits.min_score, "target_sizes": [image.shape[:2]]}
        if self._grounded:
            options |= {"input_ids": inputs["input_ids"], "text_threshold": self.limits.min_score}
        result: dict[str, Any] = self._processor.post_process_grounded_object_detection(
            outputs, text_labels=[list(words)], **options
        )[0]
        return result


def _processor(name: str) -> Any:
    """Load the preprocessor of images and words."""
    import transformers

    kind: Any = transformers.AutoProcessor
    return kind.from_pretrained(name, **_SAFE)


def _nearest_word(text: str, words: Sequence[str]) -> str:
    """Return the word that a detector's phrase stands for, as phrases may be parts of it; '' without one."""
    label = clean_label(text)
    if label in words:
        return label
    tokens = set(label.split())
    shared = [(len(tokens & set(word.split())), -len(word), word) for word in words]
    best = max(shared, default=(0, 0, ""))
    return best[2] if best[0] > 0 else ""


class RegionEncoder:
    """An image-text encoder of ``transformers``: embeddings of image regions and of words in one space.

    Args:
        name: hub name or folder.
        device: see :func:`embodied_perceptron.mapping.devices.resolve_device`.

    Raises as :class:`ZeroShotDetector`.
    """

    def __init__(self, name: str, device: str = "cpu") -> None:
        import transformers

        self._device = resolve_device(device)
        model = transformers.AutoModel.from_pretrained(name, use_safetensors=True, **_SAFE)
        if not hasattr(model, "get_image_features") or not hasattr(model, "get_text_features"):
            raise ValueError(f"{name} is a {model.config.model_type}: not an image-text encoder")
        self._model = model.to(self._device).eval()
        self._processor = _processor(name)

    def regions(self, image: NDArray[np.uint8], boxes_px: NDArray[np.float64]) -> NDArray[np.float32]:
        """(H, W, 3) RGB and (N, 4) boxes -> (N, D) float32 unit vectors."""
        crops = [_crop(image, box) for box in boxes_px]
        if not crops:
            return np.zeros((0, 0), np.float32)
        inputs = self._processor(images=crops, return_tensors="pt").to(self._device)
        with torch.inference_mode():
            return _unit(self._model.get_image_features(pixel_values=inputs["pixel_values"]))

    def texts(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """N texts -> (N, D) float32 unit vectors."""
        inputs = self._processor(text=list(texts), return_tensors="pt", padding=True, truncation=True).to(self._device)
        with torch.inference_mode():
            return _unit(self._model.get_text_features(**inputs))

    def with_embeddings(self, found: Detections2d, frame: RgbdFrame) -> Detections2d:
        """Add embeddings to the best detections of an image; the rest get zero vectors."""
        some = self.regions(frame.color, found.boxes_px[:_MAX_REGIONS])
        if not len(some):
            return found
        every = np.zeros((len(found), some.shape[1]), np.float32)
        every[: len(some)] = some
        return replace(found, embeddings=every)


def _crop(image: NDArray[np.uint8], box_px: NDArray[np.float64]) -> NDArray[np.uint8]:
    height, width = image.shape[:2]
    margin = _REGION_MARGIN * (box_px[2:] - box_px[:2])
    left, top = np.maximum(np.floor(box_px[:2] - margin + 0.5), 0).astype(int)
    right, bottom = np.ceil(box_px[2:] + margin + 0.5).astype(int)
    return image[top : max(top + 1, min(bottom, height)), left : max(left + 1, min(right, width))]


def _unit(features: Any) -> NDArray[np.float32]:
    """Normalise to (N, D) unit vectors; newer versions of ``transformers`` wrap the features."""
    values = features if isinstance(features, torch.Tensor) else features.pooler_output
    unit: NDArray[np.float32] = torch.nn.functional.normalize(values.float(), dim=-1).cpu().numpy()
    return unit


def mean_embedding(vectors: NDArray[np.float32], weight: NDArray[np.float64]) -> NDArray[np.float32] | None:
    """(N, D) unit vectors (zero = unknown) -> (D,) weighted mean as a unit vector; None if all are unknown."""
    total = (vectors * weight[:, None]).sum(axis=0)
    norm = float(np.linalg.norm(total))
    return (total / norm).astype(np.float32) if norm > 1e-6 else None


_ANSWERS = 0.35  # similarity of label and word from which the label matches
_NEUTRAL = ("object", "wall", "floor")  # words that resemble everything a little
_PROMPT = "a photo of a {}"
_SHARPNESS = 100.0  # of the softmax over cosines, as CLIP is trained
_MIN_SHARE = 0.5
_MAX_TEXTS = 512


class OpenVocabularyLabels:
    """Running mean embedding of each object of the map, by id, over about 20 recent views, and scores of words against
    them. Thread-safe.

    Args:
        encoder: of words; embeddings of its images are passed to :meth:`update`.
    """

    def __init__(self, encoder: RegionEncoder) -> None:
        self._encoder = encoder
        self._texts: OrderedDict[str, NDArray[np.float32]] = OrderedDict()
        self._lock = threading.Lock()
        self._known: dict[int, tuple[NDArray[np.float32], int]] = {}  # mean, number of views

    def __len__(self) -> int:
        return len(self._known)

    def clear(self) -> None:
        """Delete all embeddings."""
        with self._lock:
            self._known.clear()

    def update(
        self, objects: Sequence[SceneObject], boxes: NDArray[np.float64], vectors: Sequence[NDArray[np.float32] | None]
    ) -> None:
        """Update each object with the embedding of the nearest box within half of its size; drop removed objects.

        Args:
            objects: of the map.
            boxes: (M, 9) of detections.
            vectors: M unit vectors of (D,), None if unknown.
        """
        with self._lock:
            self._known = {o.id: self._known[o.id] for o in objects if o.id in self._known}
            for thing in objects if len(boxes) else ():
                apart = np.linalg.norm(boxes[:, :3] - thing.box[:3], axis=1)
                nearest = int(np.argmin(apart))
                vector = vectors[nearest]
                if vector is None or apart[nearest] > max(0.1, 0.5 * float(thing.box[3:6].max())):
                    continue
                old, views = self._known.get(thing.id, (np.zeros_like(vector), 0))
                views = min(views + 1, _MEMORY)
                mean = old + (vector - old) / views
                self._known[thing.id] = (mean / max(float(np.linalg.norm(mean)), 1e-6)).astype(np.float32), views

    def similarities(self, text: NDArray[np.float32]) -> dict[int, float]:
        """Return the cosine of a (D,) text embedding with each object's embedding, by id. Needs the lock."""
        return {known: float(mean @ text) for known, (mean, _) in self._known.items() if mean.shape == text.shape}

    def shares(self, noun: str, labels: Sequence[str]) -> dict[int, float]:
        """Return the softmax share of ``noun`` among it, ``labels`` and neutral words, by object id."""
        words = list(dict.fromkeys([noun, *labels, *_NEUTRAL]))
        vectors = self._encode(words)
        with self._lock:
            columns = [self.similarities(vector) for vector in vectors]
        result = {}
        for known in columns[0]:
            logits = _SHARPNESS * np.array([column[known] for column in columns])
            weight = np.exp(logits - logits.max())
            result[known] = float(weight[0] / weight.sum())
        return result

    def renamed(
        self, objects: Sequence[SceneObject], nouns: Sequence[str], likeness: Callable[[str, str], float]
    ) -> tuple[SceneObject, ...]:
        """Rename the objects that look like a noun that no label matches; their scores are times its share.

        Args:
            nouns: of a sentence.
            likeness: similarity of a noun and a label, in [0, 1].
        """
        labels = tuple(sorted({o.label for o in objects} - {UNNAMED}))
        unknown = [noun for noun in nouns if all(likeness(noun, label) < _ANSWERS for label in labels)]
        if not unknown or not len(self):
            return tuple(objects)
        shares = {noun: self.shares(noun, labels) for noun in unknown}
        result = []
        for thing in objects:
            noun = max(unknown, key=lambda n: shares[n].get(thing.id, 0.0))
            share = shares[noun].get(thing.id, 0.0)
            result.append(thing if share < _MIN_SHARE else replace(thing, label=noun, score=thing.score * share))
        return tuple(result)

    def _encode(self, words: Sequence[str]) -> list[NDArray[np.float32]]:
        with self._lock:
            new = [word for word in words if word not in self._texts]
        if new:
            vectors = self._encoder.texts([_PROMPT.format(word) for word in new])
            with self._lock:
                self._texts.update(zip(new, vectors, strict=True))
        with self._lock:
            found = [self._texts[word] for word in words]
            while len(self._texts) > _MAX_TEXTS:
                self._texts.popitem(last=False)
        return found
