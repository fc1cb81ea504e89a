"""Data sets: one reader for EmbodiedScan's layout, whatever the source of its scans."""

from embodied_perceptron_training.datasets.embodiedscan import (
    DatasetError,
    EmbodiedScanDataset,
    Prompt,
    Scan,
    ScanImage,
    ScanView,
)

__all__ = ["DatasetError", "EmbodiedScanDataset", "Prompt", "Scan", "ScanImage", "ScanView"]
